"""A fallback among other layers: a guard around it still recovers, and one within another keeps each client's span."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from chatstack import (
    ChatStack,
    ContextOverflowError,
    ContextWindowGuard,
    Fallback,
    FallbackError,
    Message,
    OutputError,
    ProviderInfo,
    ServerError,
)
from chatstack.testing import ScriptedClient, TelemetryCapture

TALK = [*(Message.user("words " * 100) if number % 2 == 0 else Message.assistant("fine " * 100) for number in range(8))]
ASKED = [*TALK, Message.user("and now?")]


def named(name: str, *answers: object) -> ScriptedClient:
    return ScriptedClient(list(answers), info=ProviderInfo(name=name, model=name))  # type: ignore[arg-type]


def test_a_guard_recovers_from_an_overflow_though_nobody_else_could_answer_either() -> None:
    first = named("first", ContextOverflowError(1_200, 500), "fine")
    stack = ChatStack(first).use(ContextWindowGuard, max_context_tokens=5_000, prune_on_overflow=True)
    stack = stack.use(Fallback, clients=[named("second", ServerError("down"))])
    assert asyncio.run(stack.build().get_response(ASKED)).text == "fine"
    assert len(first.requests[-1].messages) < len(ASKED)


def test_a_guard_lets_pass_what_is_about_something_else() -> None:
    stack = ChatStack(named("first", ServerError("no"))).use(ContextWindowGuard, max_context_tokens=5_000)
    stack = stack.use(Fallback, clients=[named("second", ContextOverflowError(9, 5))])
    with pytest.raises(FallbackError):
        asyncio.run(stack.build().get_response(ASKED))


def test_each_client_of_a_fallback_in_a_fallback_has_a_span_of_its_own() -> None:
    capture = TelemetryCapture()
    inner = Fallback(named("b", ServerError("no")), clients=[named("c", "fine")])
    stack = ChatStack(named("a", ServerError("no"))).use(Fallback, clients=[inner])
    assert asyncio.run(stack.build(capture.resolve).get_response("hello")).text == "fine"
    assert [(span.name, span.status) for span in capture.spans if span.name.startswith("chat ")] == [
        ("chat a", "error"),
        ("chat b", "error"),
        ("chat c", "unset"),
    ]


@dataclass
class Checked:
    number: int

    def __post_init__(self) -> None:
        assert self.number > 5, "too small"


def test_an_answer_that_its_own_class_refuses_keeps_its_text() -> None:
    client = ChatStack(named("a", '{"number": 3}')).build()
    with pytest.raises(OutputError) as refused:
        asyncio.run(client.get_response("hello", output_type=Checked))
    assert refused.value.text == '{"number": 3}'
    assert isinstance(refused.value.__cause__, AssertionError)
