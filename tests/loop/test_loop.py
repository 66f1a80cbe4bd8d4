"""What a loop sends, gives its tools and writes into its records; and what cannot be built."""

from __future__ import annotations

import asyncio
import pickle
import typing
from typing import Any

import pytest

from chatstack import (
    ChatOptions,
    ChatStack,
    FunctionInvoker,
    InputError,
    Message,
    Usage,
    WiringError,
    tool,
)
from chatstack.loop.context import IterativeContext
from chatstack.loop.iterative import IterativeLoop
from chatstack.loop.results import IterationRecord, IterativeResult
from chatstack.loop.workspace import MemoryWorkspace, Workspace
from chatstack.loop.workspace_tools import workspace_tools
from chatstack.testing import ScriptedClient
from chatstack.tools.parameters import Injected, ToolContext
from tests.loop.runs import asked, call, fresh, look, looped, note, numbered, run


class Clock:
    now = 12


class Other(MemoryWorkspace):
    pass


def has_a_clock(kind: type) -> object:
    services: dict[type, object] = {Clock: Clock()}
    return services[kind]


def has_nothing(kind: type) -> object:
    raise LookupError(kind)


def test_a_prompt_may_be_text_a_message_or_messages_sync_or_async() -> None:
    async def later(context: IterativeContext) -> list[Message]:
        await asyncio.sleep(0)
        return [Message.user("one"), Message.assistant("two"), Message.user("three")]

    def text(context: IterativeContext) -> str:
        return "text"

    def message(context: IterativeContext) -> Message:
        return Message.user("message")

    sent: list[list[str]] = []
    for prompt in (text, message, later):
        loop = looped(["done"], prompt)
        run(loop)
        sent += asked(loop)
    assert sent == [["text"], ["message"], ["one", "two", "three"]]


def test_is_complete_may_be_async() -> None:
    async def is_complete(context: IterativeContext) -> bool:
        await asyncio.sleep(0)
        return context.workspace.exists("notes.md")

    assert run(looped(["hm", [call("note", text="a")], "hm"], is_complete=is_complete)).reason == "completed"


def test_the_prompt_is_built_from_the_files_that_tools_have_written() -> None:
    def prompt(context: IterativeContext) -> str:
        return context.workspace.read("notes.md") if context.workspace.exists("notes.md") else "nothing yet"

    loop = looped([[call("note", text="a")], [call("note", text="b")], "done"], prompt, mode="single_call")
    run(loop)
    assert asked(loop) == [["nothing yet"], ["a\n"], ["a\nb\n"]]


def test_instructions_tools_and_options_go_with_every_request_and_the_run_is_the_conversation() -> None:
    client = ScriptedClient([[call("look", what="a")], "done"])
    run(looped(client, options=ChatOptions(temperature=0.5, model="small")), fresh(run_id="r1"))
    for request in client.requests:
        options = request.options
        assert (options.instructions, options.temperature, options.model) == ("Do it.", 0.5, "small")
        assert ([getattr(each, "name", "") for each in options.tools], options.tool_choice) == (["note", "look"], None)
        assert request.conversation_id == "r1"


def test_functions_become_tools_and_may_ask_for_the_workspace_the_context_and_the_call() -> None:
    seen: list[object] = []

    def plain(
        number: int, workspace: Injected[Workspace], context: Injected[IterativeContext], about: ToolContext
    ) -> str:
        """Looks around."""
        seen.extend([number, workspace, context, about.conversation_id, about.call_id])
        return "ok"

    context = fresh(run_id="r1")
    result = run(looped([[call("plain", "c7", number=5)], "done"], tools=[plain]), context)
    assert result.reason == "answered"
    assert seen == [5, context.workspace, context, "r1", "c7"]


def test_other_services_come_from_the_resolver() -> None:
    @tool
    def time(clock: Injected[Clock], workspace: Injected[Workspace]) -> int:
        """The time."""
        return clock.now

    with pytest.raises(WiringError, match=r"'time' needs Clock injected; give it a resolver"):
        looped(["done"], tools=[time])
    result = run(looped([[call("time")], "done"], tools=[time], resolve=has_a_clock))
    assert result.iterations[0].tool_calls[0].output == "12"
    result = run(looped([[call("time")], "done"], tools=[time], resolve=has_nothing))
    assert (result.reason, type(result.error)) == ("error", WiringError)


def test_a_workspace_of_another_kind_than_a_tool_asks_for_is_an_error_of_the_program() -> None:
    @tool
    def use(workspace: Injected[Other]) -> str:
        """Uses it."""
        return "ok"

    assert type(run(looped([[call("use")]], tools=[use])).error) is WiringError
    assert run(looped([[call("use")], "done"], tools=[use]), fresh(workspace=Other())).reason == "answered"


def test_the_tools_of_a_workspace_are_all_that_a_loop_needs() -> None:
    workspace = MemoryWorkspace({"in.md": "7"})
    write = call("write_file", path="out.md", content="49")
    answers = [[call("read_file", path="in.md")], [write]]
    loop = looped(
        answers, tools=workspace_tools(workspace), is_complete=lambda context: context.workspace.exists("out.md")
    )
    assert run(loop, fresh(workspace=workspace)).reason == "completed"
    assert workspace.read("out.md") == "49"


def test_a_record_says_what_an_iteration_did_and_a_result_adds_them_up() -> None:
    client = ScriptedClient([[call("look", what="a")], "one", [call("nothing")], "two"])
    context = fresh()
    result = run(looped(client, is_complete=lambda context: context.iteration == 1), context)
    first, second = result.iterations
    assert (first.iteration, first.text, first.model_calls, first.is_final, first.is_partial) == (
        0,
        "one",
        2,
        False,
        False,
    )
    assert [(each.name, each.arguments, each.output, each.is_error) for each in first.tool_calls] == [
        ("look", '{"what": "a"}', "saw a", False)
    ]
    assert [each.is_error for each in second.tool_calls] == [True]
    assert result.usage == first.usage + second.usage
    assert first.usage.total_tokens > 0
    assert first.workspace_digest == context.workspace.digest()
    assert (result.text, result.tool_calls, result.cost, result.overhead_usage) == ("two", 2, None, Usage())
    assert context.records == list(result.iterations)
    assert pickle.loads(pickle.dumps(result)) == result


def test_the_state_holds_anything_and_stays_the_same_object() -> None:
    state: dict[str, Any] = {"open": object(), "seen": {1}}

    def prompt(context: IterativeContext) -> str:
        context.state["seen"].add(context.iteration)
        return "go on"

    context = fresh(state=state)
    run(looped([[call("note", text="a")], "b", "done"], prompt, is_complete=lambda c: c.iteration == 2), context)
    assert context.state is state
    assert state["seen"] == {0, 1, 2}


def test_a_context_is_for_one_run_and_a_loop_for_any_number() -> None:
    loop, context = looped(["done"]), fresh()
    assert run(loop, context).reason == "answered"
    with pytest.raises(InputError, match="this context has been through a run"):
        run(loop, context)
    assert run(loop).reason == "answered"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "twice"}, "mode='twice' must be 'single_call'"),
        ({"max_iterations": 0}, "max_iterations=0 must be"),
        ({"max_iterations": None}, "max_iterations=None must be"),
        ({"max_tool_rounds": 0}, "max_tool_rounds=0 must be"),
        ({"max_total_tool_calls": 0}, "max_total_tool_calls=0 must be"),
        ({"max_stalled_iterations": 1}, "max_stalled_iterations=1 must be a whole number, at least 2"),
        ({"max_concurrency": 0}, "max_concurrency=0 must be"),
        ({"max_tokens": 0}, "max_tokens=0 must be"),
        ({"max_cost": -1}, "max_cost=-1 must be"),
        ({"pressure": 0}, "pressure"),
        ({"pressure": 80}, "pressure"),
        ({"prompt": "text"}, "prompt='text' must be a function"),
        ({"prompt": None}, "prompt=None must be a function"),
        ({"is_complete": True}, "is_complete=True must be a function"),
        ({"tool_filter": ["look"]}, "tool_filter="),
        ({"on_tool_call": 5}, "on_tool_call=5 must be a function"),
        ({"tools": [look, look]}, "two tools are called 'look'"),
        ({"options": ChatOptions(tools=(look.declaration(),))}, "options="),
    ],
)
def test_what_cannot_work_fails_where_it_is_built_and_names_the_parameter(options: dict[str, Any], said: str) -> None:
    with pytest.raises(WiringError) as caught:
        looped(["done"], **options)
    assert said in str(caught.value)
    assert caught.value.parameter in options


def test_a_client_with_a_tool_loop_of_its_own_is_refused() -> None:
    client = ChatStack(ScriptedClient()).use(FunctionInvoker, tools=[look]).build()
    with pytest.raises(WiringError, match="one without a tool loop"):
        looped(client)


def test_what_is_no_context_is_refused() -> None:
    with pytest.raises(InputError, match="context is a MemoryWorkspace"):
        looped(["done"]).iterations(MemoryWorkspace())  # type: ignore[arg-type]


def test_the_repr_shows_no_function_and_no_text_of_options() -> None:
    shown = repr(looped(["done"], options=ChatOptions(instructions="secret"), approve=lambda call, about: True))
    assert "secret" not in shown
    assert "approve" not in shown


def test_the_hints_of_what_users_construct_resolve() -> None:
    for kind in (IterativeLoop, IterativeContext, IterativeResult, IterationRecord):
        assert typing.get_type_hints(kind)


def test_tools_run_together_and_no_more_than_max_concurrency() -> None:
    running: list[int] = [0, 0]

    @tool
    async def busy(number: int) -> int:
        """Busy."""
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(0.005)
        running[0] -= 1
        return number

    calls = [call("busy", f"c{number}", number=number) for number in range(6)]
    most: list[int] = []
    for limit in (None, 1, 3):
        running[:] = [0, 0]
        result = run(looped([calls, "done"], tools=[busy], max_concurrency=limit))
        assert [each.output for each in result.iterations[0].tool_calls] == ["0", "1", "2", "3", "4", "5"]
        most.append(running[1])
    assert most == [6, 1, 3]


def test_a_slow_tool_is_stopped_and_the_model_is_told() -> None:
    @tool
    async def slow() -> str:
        """Slow."""
        await asyncio.sleep(3_600)
        return "never"

    result = run(looped([[call("slow")], "done"], tools=[slow], tool_timeout_seconds=0.01))
    assert result.iterations[0].tool_calls[0].output == "Error: slow took longer than 0.01 seconds."


def test_details_of_errors_are_told_only_where_that_is_wanted() -> None:
    @tool
    def fail() -> str:
        """Fails."""
        raise KeyError("secret")

    def told(**options: Any) -> str:
        result = run(looped([[call("fail")], "done"], tools=[fail], **options))
        return result.iterations[0].tool_calls[0].output

    assert told() == "Error: fail failed."
    assert told(include_error_details=True) == "Error: fail failed: KeyError: 'secret'"


def test_a_loop_without_tools_asks_without_any() -> None:
    client = ScriptedClient(["a", "b"])
    result = run(looped(client, numbered, [], is_complete=lambda context: context.iteration == 1))
    assert (result.reason, [request.options.tools for request in client.requests]) == ("completed", [(), ()])


def test_a_note_is_written_in_each_workspace_alone() -> None:
    contexts = [fresh(), fresh()]
    for context in contexts:
        run(looped([[call("note", text="a")], "done"], tools=[note]), context)
    assert [context.workspace.read("notes.md") for context in contexts] == ["a\n", "a\n"]
