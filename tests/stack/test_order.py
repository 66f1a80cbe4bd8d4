"""The order of layers: which orders are warned of, and what is said of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest

from chatstack import (
    Budget,
    ChatStack,
    ClearThenDrop,
    ContextWindow,
    ContextWindowGuard,
    Fallback,
    FunctionInvoker,
    LayerOrderWarning,
    ModelTracer,
    ProgressReporter,
    Summarizer,
    ToolResultClearer,
    ToolResultShaper,
    named,
)
from chatstack.testing import ScriptedClient

LAYERS: dict[str, Callable[[ChatStack], ChatStack]] = {
    "reporter": lambda stack: stack.use(ProgressReporter),
    "budget": lambda stack: stack.use(Budget, max_tokens=1_000),
    "loop": lambda stack: stack.use(FunctionInvoker),
    "shaper": lambda stack: stack.use(ToolResultShaper),
    "clearer": lambda stack: stack.use(ToolResultClearer),
    "dropper": lambda stack: stack.use(ClearThenDrop, max_tokens=1_000),
    "summarizer": lambda stack: stack.use(Summarizer, max_tokens=1_000),
    "window": lambda stack: stack.use(ContextWindow, max_tokens=1_000),
    "guard": lambda stack: stack.use(ContextWindowGuard, max_context_tokens=1_000),
    "early guard": lambda stack: stack.use(named("early", ContextWindowGuard), max_context_tokens=9_000),
    "fallback": lambda stack: stack.use(Fallback, clients=[ScriptedClient()]),
    "tracer": lambda stack: stack.use(ModelTracer),
}


def said_of(order: str) -> list[str]:
    """What is said of layers in this order, outermost first, when they are built."""
    stack = ChatStack(ScriptedClient())
    for name in order.split(", "):
        stack = LAYERS[name](stack)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        stack.build()
    assert all(each.category is LayerOrderWarning for each in warned)
    return [str(each.message) for each in warned]


@pytest.mark.parametrize(
    "order",
    [
        "reporter, budget, loop, shaper, clearer, summarizer, guard, fallback, tracer",
        "budget, reporter, loop, shaper, dropper, guard",
        "loop, clearer, window, guard",
        "early guard, guard",
        "early guard, clearer, summarizer, guard",
        "fallback, guard",  # of the first client's window: the others have guards of their own
    ],
)
def test_an_order_that_makes_sense_is_not_warned_of(order: str) -> None:
    assert said_of(order) == []


@pytest.mark.parametrize(
    ("order", "told"),
    [
        (
            "guard, loop",
            "'ContextWindowGuard' is outside the tool loop 'FunctionInvoker': it sees a turn's first request",
        ),
        (
            "fallback, loop",
            "'Fallback' is outside the tool loop 'FunctionInvoker': its other clients are asked without tools",
        ),
        ("loop, budget", "'Budget' is inside the tool loop 'FunctionInvoker': it sees one round at a time"),
        ("fallback, budget", "'Budget' is inside 'Fallback': it does not see what the other clients cost"),
        (
            "loop, reporter",
            "'ProgressReporter' is inside the tool loop 'FunctionInvoker': it takes each round for a turn",
        ),
        (
            "guard, reporter",
            "'ProgressReporter' is inside 'ContextWindowGuard': that one's edits and warnings are outside",
        ),
        ("tracer, loop", "'ModelTracer' is outside the tool loop 'FunctionInvoker': its span is of all rounds"),
        (
            "tracer, guard",
            "'ModelTracer' is outside 'ContextWindowGuard': its span is of the request before it was edited",
        ),
        ("tracer, fallback", "'ModelTracer' is outside 'Fallback': its span is of all attempts"),
        (
            "guard, clearer",
            "'ContextWindowGuard' is outside 'ToolResultClearer': it counts what is there before that one's",
        ),
        (
            "guard, dropper",
            "'ContextWindowGuard' is outside 'ClearThenDrop': it counts what is there before that one's",
        ),
        (
            "summarizer, clearer",
            "'Summarizer' is outside 'ToolResultClearer': it summarizes, by a model, what that one",
        ),
        ("window, clearer", "'ContextWindow' is outside 'ToolResultClearer': it summarizes, by a model, what that one"),
        ("summarizer, shaper", "'Summarizer' is outside 'ToolResultShaper': it counts what is there before that one's"),
        (
            "clearer, shaper",
            "'ToolResultClearer' is outside 'ToolResultShaper': it counts what is there before that one's",
        ),
        ("fallback, clearer", "'ToolResultClearer' is inside 'Fallback': the other clients are asked without it"),
    ],
)
def test_an_order_that_is_hardly_intended_is_warned_of_with_the_reason(order: str, told: str) -> None:
    (said,) = said_of(order)

    assert said.startswith(f"layer {told}")
    wrong, other = said.split("'")[1:5:2]
    assert said.endswith(f"; add it {'after' if f'{wrong!r} is outside' in said else 'before'} {other!r}")


def test_of_several_layers_the_one_to_pass_is_named() -> None:
    assert said_of("guard, clearer, summarizer") == [
        "layer 'ContextWindowGuard' is outside 'Summarizer': it counts what is there before that one's edits; "
        "add it after 'Summarizer'"
    ]
    assert said_of("shaper, clearer, reporter") == [
        "layer 'ProgressReporter' is inside 'ToolResultShaper': that one's edits and warnings are outside of its "
        "turns; add it before 'ToolResultShaper'"
    ]


def test_guards_without_one_behind_all_edits_are_warned_of() -> None:
    early, late = said_of("early guard, guard, clearer")

    assert early.startswith("layer 'early' is outside 'ToolResultClearer'")
    assert late.startswith("layer 'ContextWindowGuard' is outside 'ToolResultClearer'")
