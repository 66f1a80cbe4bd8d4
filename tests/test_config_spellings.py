"""Other spellings: the block of Xpert's plugin, and its names of options, in errors too as the file has them; the short
form of a price."""

from __future__ import annotations

import pytest

from chatstack import Budget, ChatStack, Price, ToolResultClearer, WiringError, find
from chatstack.config.recipes import from_config
from chatstack.testing import ScriptedClient

XPERT = {
    "type": "ContextEditingMiddleware",
    "options": {
        "trigger": {"tokens": 100000},
        "keep": {"messages": 3},
        "excludeTools": ["healthcheck"],
        "placeholder": "[cleared]",
        "clearToolInputs": False,
        "tokenCountMethod": "approx",
    },
}


def test_the_block_of_xperts_plugin_is_a_clearer() -> None:
    theirs = from_config({"layers": [XPERT]}, provider=ScriptedClient())
    ours = ChatStack(theirs.provider).use(
        ToolResultClearer,
        trigger={"tokens": 100_000},
        keep={"messages": 3},
        exclude_tools=("healthcheck",),
        placeholder="[cleared]",
        clear_tool_inputs=False,
        token_count_method="approx",
    )
    assert repr(theirs.build()) == repr(ours.build())


def test_its_spellings_are_taken_with_our_name_of_the_layer_too() -> None:
    entry = {"use": "ToolResultClearer", "trigger": {"fraction": 0.5}, "excludeTools": ["a"], "clearToolInputs": ["b"]}
    built = from_config({"layers": [entry]}, provider=ScriptedClient()).build()
    clearer = find(built, ToolResultClearer)
    assert clearer is not None
    assert (clearer.trigger, tuple(clearer.exclude_tools), clearer.clear_tool_inputs) == (
        {"fraction": 0.5},
        ("a",),
        ("b",),
    )


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({**XPERT, "extra": 1}, r"layers\[0\]: unknown key 'extra'"),
        ({"type": "ContextEditingMiddleware", "options": 3}, r"layers\[0\]\.options: expected a table"),
        ({"use": "ToolResultClearer", "excludeTools": [], "exclude_tools": []}, "are the same option"),
        ({"use": "ToolResultClearer", "trigger": {"tokens": 5, "messages": 3}}, r"layers\[0\]\.trigger: .*exactly one"),
        ({"use": "ToolResultClearer", "keep": {"messages": -1}}, r"layers\[0\]\.keep.*messages.*-1"),
        ({"use": "ToolResultClearer", "trigger": {"fraction": 1.5}}, r"layers\[0\]\.trigger.*fraction.*1\.5"),
        ({"use": "ToolResultClearer", "excludeTool": []}, r"layers\[0\]\.excludeTool: .*did you mean 'excludeTools'\?"),
        ({"use": "ToolResultClearer", "exclude_tool": []}, "did you mean 'exclude_tools'"),
        ({"use": "ToolResultClearer", "excludeTools": "a"}, r"layers\[0\]\.excludeTools: expected array"),
        ({"use": "ToolResultClearer", "clearToolInputs": ["a", 3]}, r"layers\[0\]\.clearToolInputs\[1\]: expected str"),
        ({"use": "ToolResultClearer", "clearAtLeast": -1}, r"layers\[0\]\.clearAtLeast: expected an integer >= 0: -1"),
        (
            {"type": "ContextEditingMiddleware", "options": {"maxContextTokens": 0}},
            r"layers\[0\]\.options\.maxContextTokens: expected an integer >= 1: 0",
        ),
        ({**XPERT, "name": 3}, r"layers\[0\]\.name: expected text, got 3"),
    ],
)
def test_what_is_wrong_with_a_clearer_is_told_with_its_place(entry: dict[str, object], told: str) -> None:
    with pytest.raises(WiringError, match=told):
        from_config({"layers": [entry]}, provider=ScriptedClient())


def budget(price: object) -> Budget:
    entry = {"use": "Budget", "max_cost": 1, "price": price}
    found = find(from_config({"layers": [entry]}, provider=ScriptedClient()).build(), Budget)
    assert found is not None
    return found


def test_a_price_is_the_arguments_of_per_million_or_all_its_rates() -> None:
    given = {"input": 2, "output": 8.5, "cache_read": 0.5, "cache_write": None, "model": "m"}
    expected = Price.per_million(input=2, output=8.5, cache_read=0.5, model="m")
    assert budget(given).price == expected
    rates = {name: {"base": base} for name, base in (("input", 2), ("read", 0.5), ("write", 2), ("output", 8.5))}
    assert budget({"model": "m", "provider": "", "source": "given", **rates}).price == expected


@pytest.mark.parametrize(
    ("price", "told"),
    [
        ({"input": 1}, r"layers\[0\]\.price\.output: is missing"),
        ({"input": -1, "output": 1}, r"layers\[0\]\.price\.input: expected a number >= 0\.0: -1\.0"),
        ({"input": 1, "output": float("inf")}, r"layers\[0\]\.price\.output: .*inf must be dollars for a million"),
        ({"input": 1, "output": 1, "cache_reed": 1}, r"layers\[0\]\.price\.cache_reed: .*did you mean 'cache_read'\?"),
        ({1: 2}, r"layers\[0\]\.price: 1 is not a name; keys are text"),
        ({"input": {"base": 1}, "output": 1}, r"layers\[0\]\.price: expected object \| null, got int - at \$\.output"),
    ],
)
def test_what_is_wrong_with_a_price_is_told_with_its_place(price: dict[object, object], told: str) -> None:
    with pytest.raises(WiringError, match=told):
        budget(price)
