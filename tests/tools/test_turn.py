"""The bookkeeping of one turn of the tool loop."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from chatstack import ChatOptions, ChatRequest, ChatResponse, Message, ToolCall, ToolDeclaration, ToolResult
from chatstack.tools import turn as module
from chatstack.tools.execution import Outcome
from chatstack.tools.together import run_together
from chatstack.tools.turn import CUT_OFF, NOT_ALLOWED, OVER_LIMIT, ToolTurn, refused
from chatstack.values.requests import DeclaredTool, declared_names
from chatstack.values.responses import FinishReason

ASK = ChatRequest((Message.user("go"),), ChatOptions(tools=(ToolDeclaration("theirs"),)), "c-1")


def calling(*names: str, finish: FinishReason = "tool_calls") -> ChatResponse:
    calls = [ToolCall(f"{name}-id", name) for name in names]
    return ChatResponse(messages=(Message.assistant(*calls),), finish_reason=finish)


def ok(name: str) -> Outcome:
    return Outcome(ToolResult(f"{name}-id", name, "fine"))


def failed(name: str) -> Outcome:
    return Outcome(ToolResult(f"{name}-id", name, "no", True), ValueError(name))


def test_the_calls_of_an_answer_are_open_until_they_are_answered() -> None:
    turn = ToolTurn(ASK, 10)
    turn.heard(calling("a", "b"))
    assert [call.name for call in turn.open_calls] == ["a", "b"]


def test_a_call_that_the_provider_has_answered_itself_is_not_open() -> None:
    turn = ToolTurn(ASK, 10)
    answer = Message.assistant(ToolCall("1", "search"), ToolResult("1", "search", "found"), ToolCall("2", "a"))
    turn.heard(ChatResponse(messages=(answer,), finish_reason="tool_calls"))
    assert [call.id for call in turn.open_calls] == ["2"]


def test_the_names_of_declared_tools_are_read_once_for_all_calls_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[str, ...]] = []

    def counted(tools: Collection[DeclaredTool]) -> frozenset[str]:
        names = declared_names(tools)
        read.append(tuple(names))
        return names

    monkeypatch.setattr(module, "declared_names", counted)
    turn = ToolTurn(ASK, 10)
    for round_of in (calling("theirs", "ours", "nobody's"), calling("theirs", "nobody's")):
        turn.heard(round_of)
        assert turn.is_over(("ours",))
        assert [call.name for call in turn.open_calls if turn.is_callers(call, ("ours",))] == ["theirs"]
    assert read == [("theirs",)]


@pytest.mark.parametrize(
    ("finish", "refusal"), [("length", CUT_OFF), ("refused", CUT_OFF), ("tool_calls", ""), ("stop", ""), ("other", "")]
)
def test_the_calls_of_a_cut_off_answer_must_not_be_run(finish: FinishReason, refusal: str) -> None:
    turn = ToolTurn(ASK, 10)
    answer = calling("a", finish=finish)
    turn.heard(answer)
    assert turn.refusal(answer) == refusal


def test_beyond_the_limit_no_call_must_be_run() -> None:
    turn = ToolTurn(ASK, 2)
    turn.calls_run = 2
    answer = calling("a")
    turn.heard(answer)
    assert turn.limit_reached
    assert turn.refusal(answer) == OVER_LIMIT


@pytest.mark.parametrize(("choice", "refusal"), [("none", NOT_ALLOWED), ("auto", ""), ("required", ""), (None, "")])
def test_where_the_caller_allows_no_calls_none_must_be_run(choice: str | None, refusal: str) -> None:
    turn = ToolTurn(ASK.but(options=ASK.options.but(tool_choice=choice)), 10)
    turn.heard(calling("a"))
    assert turn.refusal(calling("a")) == refusal


@pytest.mark.parametrize("finish", ["stop", "length", "refused"])
def test_an_answer_without_calls_ends_the_turn(finish: FinishReason) -> None:
    turn = ToolTurn(ASK, 10)
    answer = ChatResponse(messages=(Message.assistant("done"),), finish_reason=finish)
    turn.heard(answer)
    assert turn.open_calls == []
    assert turn.is_over({})


def test_a_call_that_the_caller_declared_ends_the_turn_and_one_of_ours_does_not() -> None:
    for names, is_over in ((("theirs",), True), (("a", "theirs"), True), (("a",), False), (("nobodys",), False)):
        turn = ToolTurn(ASK, 10)
        turn.heard(calling(*names))
        assert turn.is_over({"a"}) is is_over


def test_a_paused_answer_goes_on_but_not_for_ever() -> None:
    turn = ToolTurn(ASK, 10)
    paused = ChatResponse(messages=(Message.assistant("wait"),), finish_reason="paused")
    rounds = 0
    while True:
        turn.heard(paused)
        if turn.is_over({}):
            break
        rounds += 1
    assert rounds == 10


def test_results_become_messages_and_updates_in_call_order() -> None:
    turn = ToolTurn(ASK, 10)
    turn.heard(calling("a", "b"))
    updates = turn.add([ok("a"), failed("b")])
    assert [update.part for update in updates] == [ok("a").result, failed("b").result]
    assert [update.message_done for update in updates] == turn.added[1:]
    assert [message.role for message in turn.added] == ["assistant", "tool", "tool"]


def test_rounds_in_which_every_call_failed_are_counted_in_a_row() -> None:
    turn = ToolTurn(ASK, 10)
    turn.add([failed("a"), failed("b")])
    assert turn.failed_rounds == 1  # three parallel failures are one: the model has not yet read any of them
    turn.add([failed("c")])
    assert (turn.failed_rounds, str(turn.last_failure)) == (2, "c")
    turn.add([failed("d"), ok("e")])
    assert turn.failed_rounds == 0
    turn.add([])
    assert turn.failed_rounds == 0


@pytest.mark.parametrize(
    ("choice", "next_choice"),
    [(None, None), ("auto", "auto"), ("none", "none"), ("required", None), ("a", None)],
)
def test_a_forced_choice_holds_for_the_first_round_only(choice: str | None, next_choice: str | None) -> None:
    turn = ToolTurn(ASK.but(options=ASK.options.but(tool_choice=choice)), 10)
    assert turn.next_request().options.tool_choice == next_choice


def test_the_next_request_carries_what_was_added_and_the_same_options() -> None:
    turn = ToolTurn(ASK, 1)
    turn.heard(calling("a"))
    turn.add([ok("a")])
    turn.calls_run = 1
    request = turn.next_request()
    assert request.messages == (*ASK.messages, *turn.added)
    assert request.options == ASK.options.but(tool_choice="none")
    assert (request.conversation_id, turn.round) == ("c-1", 1)


def test_a_tool_is_told_about_its_call() -> None:
    turn = ToolTurn(ASK, 10)
    turn.heard(calling("a"))
    context = turn.context_of(turn.open_calls[0])
    assert (context.conversation_id, context.call_id, context.tool_name, context.round) == ("c-1", "a-id", "a", 0)
    assert context.messages == (*ASK.messages, *turn.added)


def test_what_was_not_run_counts_neither_as_failure_nor_as_success() -> None:
    turn = ToolTurn(ASK, 1)
    turn.heard(calling("a", "b"))
    turn.add([failed("a"), refused(ToolCall("b", "b"), OVER_LIMIT)])
    assert turn.failed_rounds == 1
    turn.add([refused(ToolCall("c", "c"), OVER_LIMIT)])
    assert turn.failed_rounds == 1


def test_no_call_begins_after_one_that_ended_the_round() -> None:
    begun: list[int] = []

    async def run(number: int) -> None:
        begun.append(number)
        await asyncio.sleep(0)
        raise KeyError(number)

    with pytest.raises(KeyError):
        asyncio.run(run_together(run, [1, 2, 3], 1))
    assert begun == [1]
