"""What is wrong deep in a layer is told with the very place of it."""

from __future__ import annotations

import pytest

from chatstack import WiringError, from_config
from chatstack.testing import ScriptedClient


def wrong_layer(**layer: object) -> str:
    with pytest.raises(WiringError) as caught:
        from_config({"layers": ["ModelTracer", layer]}, ScriptedClient())
    return str(caught.value)


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        (
            {"use": "ToolResultClearer", "keep": {"messages": "3"}},
            "config: layers[1].keep.messages: expected int, got str: '3'",
        ),
        (
            {"use": "ToolResultClearer", "keep": {"message": 3}},
            "config: layers[1].keep.message: unknown key; did you mean 'messages'?",
        ),
        (
            {"use": "ToolResultClearer", "keep": {"messages": -1}},
            "config: layers[1].keep.messages: expected an integer >= 0: -1",
        ),
        (
            {"use": "ToolResultClearer", "trigger": {"tokens": 5, "messages": 3}},
            "config: layers[1].trigger: trigger={'tokens': 5, 'messages': 3} must be exactly one of ",
        ),
        (
            {"use": "ToolResultClearer", "trigger": {}},
            "config: layers[1].trigger: trigger={} must be exactly one of ",
        ),
        (
            {"use": "ToolResultClearer", "clear_tool_inputs": ["a", 3]},
            "config: layers[1].clear_tool_inputs[1]: expected str, got int: 3",
        ),
        (
            {"type": "ContextEditingMiddleware", "options": {"trigger": {"token": 5}}},
            "config: layers[1].options.trigger.token: unknown key; did you mean 'tokens'?",
        ),
        (
            {"use": "Truncate", "max_token": 5},
            "config: layers[1].max_token: unknown option of Truncate; did you mean 'max_tokens'?",
        ),
        (
            {"use": "Truncate", "max_tokens": 5, "countr": "table"},
            "config: layers[1].countr: unknown option of Truncate; did you mean 'counter'?",
        ),
        ({"use": "OldestFirst", "max_tokens": 5}, "config: layers[1].target_tokens: is missing"),
        (
            {"use": "OldestFirst", "max_tokens": 5, "target_token": 3},
            "config: layers[1].target_token: unknown option of OldestFirst; did you mean 'target_tokens'?",
        ),
    ],
)
def test_a_wrong_key_or_type_deep_in_a_layer_is_told_with_its_place(layer: dict[str, object], told: str) -> None:
    assert wrong_layer(**layer).startswith(told)


def test_what_is_refused_because_of_a_default_is_no_missing_option() -> None:
    assert wrong_layer(use="ClearThenDrop", mentions=0.5).startswith(
        "config: layers[1].target: target=0.45 must be more than mentions=0.5"
    )
    assert wrong_layer(use="Summarizer").startswith(
        "config: layers[1].max_tokens: give max_tokens or max_context_items"
    )
