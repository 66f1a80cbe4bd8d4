"""Native edits on Anthropic's wire, beside whatever the caller writes there."""

from __future__ import annotations

from typing import Any

import pytest

from chatstack import AppliedEdit, ChatOptions, ChatRequest, Message, NativeClearing, NativeCompaction
from chatstack.providers.anthropic.native import applied_edits, is_capable
from chatstack.providers.anthropic.wire import request_to_wire

CLEARING, COMPACTION = NativeClearing(trigger_tokens=9), NativeCompaction(trigger_tokens=50_000)
BOTH = ["context-management-2025-06-27", "compact-2026-01-12"]


def body_of(*edits: Any, **extra: Any) -> dict[str, Any]:
    return request_to_wire(ChatRequest((Message.user("hi"),), ChatOptions(native_edits=edits, extra=extra)))


def test_without_edits_nothing_is_written() -> None:
    assert body_of().keys() == {"max_tokens", "messages"}


def test_both_edits_go_together_each_with_its_beta() -> None:
    body = body_of(CLEARING, COMPACTION)
    assert [each["type"] for each in body["context_management"]["edits"]] == [
        "clear_tool_uses_20250919",
        "compact_20260112",
    ]
    assert body["betas"] == BOTH


@pytest.mark.parametrize("betas", [BOTH[0], [*BOTH], ("other", *BOTH)])
def test_each_beta_is_named_once(betas: Any) -> None:
    named = [betas] if isinstance(betas, str) else [*betas]
    assert body_of(CLEARING, COMPACTION, betas=betas)["betas"] == [
        *named,
        *(each for each in BOTH if each not in named),
    ]


@pytest.mark.parametrize("given", ["none", 7, ["edits"]])
def test_what_is_no_configuration_stays_as_the_caller_wrote_it(given: object) -> None:
    body = body_of(CLEARING, context_management=given)
    assert body["context_management"] == given
    assert "betas" not in body


@pytest.mark.parametrize("given", [{}, {"edits": None}, {"edits": "all"}, {"edits": [7]}])
def test_a_configuration_without_edits_gets_ours(given: object) -> None:
    (edit,) = body_of(CLEARING, context_management=given)["context_management"]["edits"]
    assert edit["type"] == "clear_tool_uses_20250919"


def test_betas_that_are_none_are_left_for_the_header_to_refuse() -> None:
    assert body_of(CLEARING, betas=7)["betas"] == 7


def test_messages_of_the_callers_own_may_be_anything() -> None:
    for messages in ("all", [7], [{"role": "user", "content": "hi"}], [{"role": "user", "content": [7]}]):
        assert body_of(messages=messages)["messages"] == messages


@pytest.mark.parametrize("told", [None, 7, {}, {"applied_edits": None}, {"applied_edits": {}}, {"applied_edits": [7]}])
def test_a_report_that_is_none_reports_nothing(told: object) -> None:
    assert applied_edits(told) == ()


def test_a_report_is_read_as_far_as_it_can_be_believed() -> None:
    known = {"type": "clear_thinking_20251015", "cleared_input_tokens": 7, "cleared_thinking_turns": 2}
    new = {"type": "clear_pictures_20270101", "cleared_input_tokens": -7, "cleared_tool_uses": 10**12}
    assert applied_edits({"applied_edits": [known, new]}) == (
        AppliedEdit("clear_thinking_20251015", 7, cleared_thinking_turns=2),
        AppliedEdit("clear_pictures_20270101"),
    )


@pytest.mark.parametrize("card", [{}, {"capabilities": None}, {"capabilities": {"context_management": True}}])
def test_a_card_that_does_not_say_so_is_of_a_model_that_cannot(card: dict[str, object]) -> None:
    assert not is_capable(card, CLEARING)
