"""Hooks, the tool filter and approval: when they are asked, in which order, and that they are obeyed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chatstack import InputError, ToolCall, tool
from chatstack.loop.context import IterativeContext
from chatstack.loop.results import IterationRecord
from chatstack.testing import Answer, ScriptedClient
from chatstack.tools.parameters import Injected, ToolContext
from tests.loop.runs import call, fresh, looped, note, outputs, run


class Diary:
    """Hooks that write down when they were called; async ones after a pause."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def prompt(self, context: IterativeContext) -> str:
        self.told.append(f"prompt {context.iteration}")
        return "go on"

    def started(self, context: IterativeContext) -> None:
        self.told.append(f"start {context.iteration}")

    def ended(self, record: IterationRecord, context: IterativeContext) -> None:
        self.told.append(f"end {record.iteration}, {len(record.tool_calls)} calls, {len(context.records)} records")

    def called(self, call: ToolCall, context: IterativeContext) -> None:
        self.told.append(f"call {call.name} in {context.iteration}")

    def complete(self, context: IterativeContext) -> bool:
        self.told.append(f"complete? {context.iteration}")
        return context.iteration == 1

    def hooks(self, *, is_async: bool) -> dict[str, Any]:
        hooks = {
            "on_iteration_start": self.started,
            "on_iteration_end": self.ended,
            "on_tool_call": self.called,
            "is_complete": self.complete,
        }
        return {name: _later(hook) for name, hook in hooks.items()} if is_async else hooks


def _later(function: Any) -> Any:
    async def later(*given: Any) -> Any:
        await asyncio.sleep(0)
        return function(*given)

    return later


@pytest.mark.parametrize("is_async", [False, True])
def test_hooks_are_called_in_this_order_sync_or_async(is_async: bool) -> None:
    diary = Diary()

    @tool
    def work() -> str:
        """Works."""
        diary.told.append("work")
        return "done"

    run(looped([[call("work")], "one", "two"], diary.prompt, [work], **diary.hooks(is_async=is_async)))
    assert diary.told == [
        "start 0",
        "prompt 0",
        "call work in 0",
        "work",
        "end 0, 1 calls, 1 records",
        "complete? 0",
        "start 1",
        "prompt 1",
        "end 1, 0 calls, 2 records",
        "complete? 1",
    ]


def test_hooks_and_prompt_may_work_on_the_state_and_the_workspace() -> None:
    def started(context: IterativeContext) -> None:
        context.state["n"] = context.state.get("n", 0) + 1

    def ended(record: IterationRecord, context: IterativeContext) -> None:
        context.workspace.write(f"{record.iteration}.md", record.text)

    context = fresh()
    loop = looped(
        ["one", "two"],
        on_iteration_start=started,
        on_iteration_end=ended,
        is_complete=lambda context: context.workspace.exists("1.md"),
    )
    assert run(loop, context).reason == "completed"
    assert (context.state, context.workspace.list()) == ({"n": 2}, ["0.md", "1.md"])


def test_a_filtered_tool_is_not_offered() -> None:
    client = ScriptedClient(["one", "two"])
    run(
        looped(
            client,
            tool_filter=lambda name, context: name == "look" or context.iteration == 1,
            is_complete=lambda context: context.iteration == 1,
        )
    )
    offered = [[getattr(each, "name", "") for each in request.options.tools] for request in client.requests]
    assert offered == [["look"], ["note", "look"]]


def test_a_filtered_tool_that_the_model_calls_all_the_same_is_not_run() -> None:
    context = fresh()
    loop = looped(
        [[call("note", text="a"), call("look", "d", what="b")], "done"], tool_filter=lambda name, _: name != "note"
    )
    result = run(loop, context)
    assert outputs(result) == [["Error: note may not be called now.", "saw b"]]
    assert [(each.is_error, each.was_run) for each in result.iterations[0].tool_calls] == [(True, False), (False, True)]
    assert context.workspace.list() == []


def test_the_filter_is_asked_again_for_each_call() -> None:
    @tool
    async def close(context: Injected[IterativeContext]) -> str:
        """Closes the door."""
        context.state["closed"] = True
        return "closed"

    answers: list[Answer] = [[call("note", text="a")], [call("close")], [call("note", text="b")], "done"]
    loop = looped(
        answers,
        tools=[note, close],
        mode="multi_round",
        tool_filter=lambda name, context: name != "note" or not context.state.get("closed"),
    )
    context = fresh()
    assert outputs(run(loop, context)) == [["noted a", "closed", "Error: note may not be called now."]]
    assert context.workspace.read("notes.md") == "a\n"


def test_a_filter_that_gives_neither_yes_nor_no_is_an_error_and_no_yes() -> None:
    client = ScriptedClient([[call("note", text="a")]])
    result = run(looped(client, tool_filter=lambda name, context: "no"))  # type: ignore[arg-type, return-value]
    assert (result.reason, type(result.error), client.requests) == ("error", InputError, [])


@pytest.mark.parametrize("is_async", [False, True])
def test_approval_is_asked_for_each_call_and_its_no_is_read_by_the_model(is_async: bool) -> None:
    asked: list[str] = []

    def approve(call: ToolCall, about: ToolContext) -> bool | str:
        asked.append(f"{call.name} {call.arguments} {about.conversation_id}")
        return {"a": True, "b": False}.get(call.arguments[-3], "Ask later.")

    calls = [call("look", f"c{what}", what=what) for what in "abc"]
    client = ScriptedClient([calls, "done"])
    result = run(looped(client, approve=_later(approve) if is_async else approve), fresh(run_id="r"))
    assert asked == [f'look {{"what": "{what}"}} r' for what in "abc"]
    assert outputs(result) == [["saw a", "Error: look was not allowed. Go on without it.", "Error: Ask later."]]


def test_who_is_filtered_out_needs_no_approval() -> None:
    asked: list[str] = []

    def approve(call: ToolCall, about: ToolContext) -> bool:
        asked.append(call.name)
        return True

    answers: list[Answer] = [[call("note", text="a"), call("look", "d", what="b")], "done"]
    run(looped(answers, approve=approve, tool_filter=lambda name, context: name != "note"))
    assert asked == ["look"]


def test_no_hook_is_called_for_a_call_that_is_only_answered() -> None:
    diary = Diary()
    calls = [call("look", f"c{number}", what=str(number)) for number in range(3)]
    run(looped([calls], on_tool_call=diary.called, max_total_tool_calls=2))
    assert diary.told == ["call look in 0"] * 2
