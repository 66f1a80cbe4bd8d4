"""The tool loop: it runs what the model calls, and asks again, until the model answers."""

from __future__ import annotations

import asyncio
import json
import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from chatstack import (
    BuiltClient,
    ChatOptions,
    ChatResponse,
    ChatStack,
    FunctionInvoker,
    Injected,
    InputError,
    Message,
    ProgressReporter,
    ProviderInfo,
    ServerError,
    Tool,
    ToolCall,
    ToolContext,
    ToolDeclaration,
    ToolLoopError,
    ToolResult,
    Usage,
    WiringError,
    find,
    tool,
)
from chatstack.testing import Answer, ScriptedClient, TelemetryCapture
from chatstack.tools.turn import CUT_OFF, NOT_ALLOWED, OVER_LIMIT


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def broken() -> None:
    raise ValueError("hunter2")


def calls(*arguments: str, name: str = "add") -> Message:
    """An answer that calls one tool several times."""
    return Message.assistant(*(ToolCall(f"call-{number}", name, each) for number, each in enumerate(arguments)))


ONE = calls('{"a": 1, "b": 2}')


class Loop:
    """A tool loop around a script, and all that it said."""

    def __init__(
        self,
        *answers: Answer,
        tools: Sequence[Callable[..., object] | Tool[..., Any]] = (add, broken),
        resolve: dict[type, object] | None = None,
        **options: Any,
    ) -> None:
        self.provider = ScriptedClient(answers)
        self.capture = TelemetryCapture()
        bound: dict[type, object] = {type(self.capture.telemetry): self.capture.telemetry, **(resolve or {})}
        stack = ChatStack(self.provider).use(ProgressReporter).use(FunctionInvoker, tools=tools, **options)
        self.client: BuiltClient = stack.build(bound.__getitem__)

    def ask(self, **options: Any) -> ChatResponse:
        answer: ChatResponse = asyncio.run(self.client.get_response("go", **options))
        return answer

    def results(self, round_number: int = -1) -> list[ToolResult]:
        """The results that a request carried."""
        return [result for message in self.provider.requests[round_number].messages for result in message.results]


# The loop


def test_it_runs_the_call_and_asks_again_with_call_and_result() -> None:
    loop = Loop(ONE, "three")
    response = loop.ask()
    assert response.text == "three"
    assert response.messages == (ONE, Message.tool("call-0", "3", name="add"), Message.assistant("three"))
    assert loop.provider.requests[1].messages == (Message.user("go"), *response.messages[:2])
    assert response.rounds == 2


def test_an_answer_without_calls_is_one_round() -> None:
    loop = Loop("hello")
    assert loop.ask().messages == (Message.assistant("hello"),)
    assert len(loop.provider.requests) == 1


def test_tools_are_declared_from_the_first_round_on_and_the_same_in_every_round() -> None:
    loop = Loop(ONE, ONE, "done")
    loop.ask()
    declared = [[each.name for each in request.options.tools] for request in loop.provider.requests]  # type: ignore[union-attr]
    assert declared == [["add", "broken"]] * 3


def test_usage_of_all_rounds_is_summed() -> None:
    loop = Loop(ONE, "three")
    whole = loop.ask()
    provider = ScriptedClient([ONE, "three"])

    async def apart() -> Usage:
        usage = Usage()
        for request in loop.provider.requests:
            usage += (await (await provider.send(request)).response()).usage
        return usage

    assert whole.usage == asyncio.run(apart())
    assert whole.usage.input_tokens > 2


def test_streamed_updates_carry_their_round_and_results_are_among_them() -> None:
    async def run() -> tuple[list[tuple[int, str]], ChatResponse]:
        loop = Loop(["let me add ", ToolCall("call-0", "add", '{"a": 1, "b": 2}')], "it is three")
        async with loop.client.get_streaming_response("go") as stream:
            seen = []
            async for update in stream:
                if update.text:
                    seen.append((update.round, update.text))
                elif isinstance(update.part, ToolResult):
                    seen.append((update.round, f"={update.part.text}"))
            return seen, await stream.response()

    seen, response = asyncio.run(run())
    assert seen == [(0, "let me add "), (0, "=3"), (1, "it"), (1, " is"), (1, " three")]
    said = "".join(text for _, text in seen if not text.startswith("="))
    assert said == "".join(message.text for message in response.messages if message.role == "assistant")


def test_a_refused_first_round_is_raised_before_anything_is_streamed() -> None:
    async def run() -> None:
        loop = Loop(ServerError("no"))
        with pytest.raises(ServerError):
            await loop.client.get_streaming_response("go").__aenter__()

    asyncio.run(run())


def test_an_error_in_a_later_round_reaches_the_caller() -> None:
    with pytest.raises(ServerError):
        Loop(ONE, ServerError("no")).ask()


# Parallel calls


def test_parallel_calls_run_together_and_their_results_come_in_call_order() -> None:
    running: list[int] = []
    most: list[int] = []

    async def wait(number: int) -> int:
        running.append(number)
        most.append(len(running))
        await asyncio.sleep(0.05 - number * 0.02)
        running.remove(number)
        return number

    loop = Loop(calls('{"number": 0}', '{"number": 1}', '{"number": 2}', name="wait"), "done", tools=[wait])
    loop.ask()
    assert max(most) == 3
    assert [result.output for result in loop.results()] == ["0", "1", "2"]


@pytest.mark.parametrize("most", [1, 2])
def test_max_concurrency_bounds_how_many_run_at_once(most: int) -> None:
    running: list[int] = []
    peaks: list[int] = []

    async def wait(number: int) -> int:
        running.append(number)
        peaks.append(len(running))
        await asyncio.sleep(0.005)
        running.remove(number)
        return number

    arguments = [f'{{"number": {number}}}' for number in range(5)]
    loop = Loop(calls(*arguments, name="wait"), "done", tools=[wait], max_concurrency=most)
    loop.ask()
    assert max(peaks) == most
    assert [result.output for result in loop.results()] == ["0", "1", "2", "3", "4"]


def test_call_ids_may_be_used_again_in_later_rounds() -> None:
    loop = Loop(ONE, calls('{"a": 5, "b": 5}'), "done")
    assert [message.role for message in loop.ask().messages] == ["assistant", "tool", "assistant", "tool", "assistant"]
    assert [result.output for result in loop.results()] == ["3", "10"]


def test_sync_tools_do_not_block_the_loop() -> None:
    ticks: list[float] = []

    def slow() -> str:
        time.sleep(0.1)
        return "done"

    async def run() -> None:
        loop = Loop(calls("{}", name="slow"), "done", tools=[slow])
        asking = asyncio.ensure_future(loop.client.get_response("go"))
        while not asking.done():
            ticks.append(time.perf_counter())
            await asyncio.sleep(0.01)

    asyncio.run(run())
    assert len(ticks) >= 3


def test_a_turn_that_is_stopped_for_its_failures_tells_what_it_has_used() -> None:
    loop = Loop(calls("{}", name="broken"), max_consecutive_failures=2)
    with pytest.raises(ToolLoopError) as caught:
        loop.ask()
    spent = [span.attributes["gen_ai.usage.output_tokens"] for span in loop.capture.spans_named("chat script")]
    assert caught.value.usage is not None
    assert caught.value.usage.output_tokens == sum(map(int, map(str, spent)))


# The limit


def test_at_the_limit_the_model_is_asked_once_more_with_tools_declared_but_not_allowed() -> None:
    loop = Loop(ONE, ONE, "enough", max_tool_calls_per_turn=2)
    assert loop.ask().text == "enough"
    assert [request.options.tool_choice for request in loop.provider.requests] == [None, None, "none"]
    assert all(len(request.options.tools) == 2 for request in loop.provider.requests)
    assert loop.capture.warnings == ("tool_loop_limit_reached",)
    span = loop.capture.span("tool_loop")
    assert (span.attributes["chatstack.tools.calls"], span.attributes["chatstack.tools.limit"]) == (2, 2)


def test_the_limit_in_the_middle_of_a_batch_runs_the_first_and_answers_the_rest() -> None:
    loop = Loop(calls('{"a": 1, "b": 1}', '{"a": 2, "b": 2}', '{"a": 3, "b": 3}'), "enough", max_tool_calls_per_turn=2)
    loop.ask()
    assert [(result.output, result.is_error) for result in loop.results()] == [
        ("2", False),
        ("4", False),
        (OVER_LIMIT, True),
    ]
    assert len(loop.capture.spans_named("execute_tool add")) == 2


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("insists", [ONE, Message.assistant("One more, please.", *ONE.calls)])
def test_a_model_that_calls_on_beyond_the_limit_is_stopped_with_its_calls_answered(
    insists: Message, streaming: bool
) -> None:
    async def ask() -> None:
        if not streaming:
            await loop.client.get_response("go")
        async with loop.client.get_streaming_response("go") as stream:
            async for update in stream:
                if update.message_done is not None:
                    seen.append(update.message_done)

    seen: list[Message] = []
    loop = Loop(ONE, insists, max_tool_calls_per_turn=1)
    with pytest.raises(
        ToolLoopError, match=r"^1 tool call ran in this turn, all that max_tool_calls_per_turn allows, and the model"
    ) as caught:
        asyncio.run(ask())
    error = caught.value
    assert len(loop.provider.requests) == 2
    assert [message.role for message in error.messages] == ["assistant", "tool"] * 2
    assert error.messages[2:] == (insists, Message("tool", (ToolResult("call-0", "add", OVER_LIMIT, is_error=True),)))
    assert seen == (list(error.messages) if streaming else [])
    spent = [span.attributes["gen_ai.usage.input_tokens"] for span in loop.capture.spans_named("chat script")]
    assert error.usage is not None
    assert error.usage.input_tokens == sum(map(int, map(str, spent)))
    assert (error.overhead_usage, error.__cause__) == (Usage(), None)
    assert len(loop.capture.spans_named("execute_tool add")) == 1
    assert loop.capture.span("invoke_agent chat").attributes["error.type"] == "ToolLoopError"
    assert pickle.loads(pickle.dumps(error)).messages == error.messages


def test_calls_that_were_cut_off_at_the_limit_are_no_insisting() -> None:
    response = Loop(ONE, [*ONE.calls, "length"], max_tool_calls_per_turn=1).ask()
    assert response.finish_reason == "length"
    assert response.messages[-1].results[0].output == CUT_OFF


def test_a_turn_that_stays_below_the_limit_is_not_warned_of() -> None:
    loop = Loop(ONE, "done", max_tool_calls_per_turn=2)
    loop.ask()
    assert loop.capture.warnings == ()


def test_a_pause_after_the_limit_does_not_repeat_the_warning() -> None:
    loop = Loop(ONE, ["thinking", "paused"], ["thinking", "paused"], "done", max_tool_calls_per_turn=1)
    assert loop.ask().text == "done"
    assert loop.capture.warnings == ("tool_loop_limit_reached",)


def test_the_limit_counts_a_turn_and_not_a_conversation() -> None:
    loop = Loop(ONE, "done", ONE, "done", max_tool_calls_per_turn=2)
    loop.ask(conversation_id="c")
    loop.ask(conversation_id="c")
    assert loop.capture.warnings == ()


# Choices, pauses, cut-off answers


@pytest.mark.parametrize("choice", ["required", "add"])
def test_a_forced_choice_holds_for_the_first_round_only(choice: str) -> None:
    loop = Loop(ONE, "done")
    loop.ask(options=ChatOptions(tool_choice=choice))
    assert [request.options.tool_choice for request in loop.provider.requests] == [choice, None]


def test_where_the_caller_allows_no_calls_one_is_answered_and_not_run() -> None:
    loop = Loop(ONE, "never asked for")
    response = loop.ask(options=ChatOptions(tool_choice="none"))
    assert response.messages == (ONE, Message("tool", (ToolResult("call-0", "add", NOT_ALLOWED, True),)))
    assert len(loop.provider.requests) == 1
    assert loop.capture.spans_named("execute_tool add") == ()


def test_a_paused_answer_is_sent_back_and_goes_on() -> None:
    loop = Loop(["thinking", "paused"], "done")
    response = loop.ask()
    assert response.messages == (Message.assistant("thinking"), Message.assistant("done"))
    assert loop.provider.requests[1].messages == (Message.user("go"), Message.assistant("thinking"))
    assert response.finish_reason == "stop"


def test_a_model_that_only_pauses_is_not_asked_for_ever() -> None:
    loop = Loop(["hm", "paused"])
    assert loop.ask().finish_reason == "paused"
    assert len(loop.provider.requests) == 11


@pytest.mark.parametrize("finish", ["length", "refused"])
def test_the_calls_of_a_cut_off_answer_are_answered_and_not_run(finish: str) -> None:
    loop = Loop([ToolCall("call-0", "add", '{"a": 1, "b":'), finish])
    response = loop.ask()
    assert response.messages[-1].results == (ToolResult("call-0", "add", CUT_OFF, True),)
    assert response.finish_reason == finish
    assert len(loop.provider.requests) == 1
    assert loop.capture.spans_named("execute_tool add") == ()


# Failures


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (calls("{}", name="ad"), "Error: no tool 'ad'; did you mean 'add'?"),
        (
            calls("{}"),
            "Error: the arguments do not fit: Object missing required field `a`. Correct them and call again.",
        ),
        (calls("{}", name="broken"), "Error: broken failed."),
    ],
)
def test_a_call_that_fails_becomes_an_error_result_and_the_loop_goes_on(call: Message, said: str) -> None:
    loop = Loop(call, "sorry")
    assert loop.ask().text == "sorry"
    assert [(result.output, result.is_error) for result in loop.results()] == [(said, True)]


def test_details_of_an_exception_are_shown_only_if_asked_for() -> None:
    loop = Loop(calls("{}", name="broken"), "sorry", include_error_details=True)
    loop.ask()
    assert loop.results()[0].output == "Error: broken failed: ValueError: hunter2"


def test_failures_in_a_row_stop_the_turn_with_the_cause_and_the_messages_so_far() -> None:
    loop = Loop(ONE, calls("{}", name="broken"), max_consecutive_failures=2)
    with pytest.raises(ToolLoopError) as caught:
        loop.ask()
    assert isinstance(caught.value.__cause__, ValueError)
    assert [message.role for message in caught.value.messages] == ["assistant", "tool"] * 3
    assert len(loop.provider.requests) == 3
    assert "every tool call failed, 2 rounds in a row, the last one with ValueError" in str(caught.value)
    assert "max_consecutive_failures=2" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_success_in_between_starts_the_count_again() -> None:
    fails = calls("{}", name="broken")
    loop = Loop(fails, ONE, fails, ONE, fails, "done", max_consecutive_failures=2)
    assert loop.ask().text == "done"


def test_a_slow_tool_is_an_error_result() -> None:
    async def slow() -> None:
        await asyncio.sleep(3_600)

    loop = Loop(calls("{}", name="slow"), "sorry", tools=[slow], tool_timeout_seconds=0.02)
    loop.ask()
    assert loop.results()[0].output == "Error: slow took longer than 0.02 seconds."


def test_a_tool_that_cancels_itself_does_not_cancel_the_turn() -> None:
    async def confused() -> None:
        raise asyncio.CancelledError

    loop = Loop(Message.assistant(ToolCall("1", "confused"), *ONE.calls), "done", tools=[confused, add])
    assert loop.ask().text == "done"
    assert [result.is_error for result in loop.results()] == [True, False]


class Stop(BaseException):
    pass


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("error", [Stop("now"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_what_is_no_failure_comes_out_bare_and_stops_the_other_tools(error: BaseException, is_async: bool) -> None:
    stopped: list[bool] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            stopped.append(True)

    async def leave_later() -> None:
        await asyncio.sleep(0.01)
        raise error

    def leave() -> None:
        time.sleep(0.01)
        raise error

    tools: list[Callable[..., object]] = [tool(name="leave")(leave_later if is_async else leave), slow]
    loop = Loop(Message.assistant(ToolCall("1", "slow"), ToolCall("2", "leave")), "done", tools=tools)

    async def run() -> BaseException | None:
        try:
            await loop.client.get_response("go")
        except BaseException as caught:  # noqa: BLE001
            return caught
        return None

    assert asyncio.run(run()) is error
    assert stopped == [True]
    assert loop.capture.open_spans == ()


def test_a_stop_iteration_does_not_hang_the_turn() -> None:
    def first() -> object:
        return next(iter(()))

    loop = Loop(calls("{}", name="first"), "sorry", tools=[first])
    assert loop.ask(timeout_seconds=10).text == "sorry"
    assert [result.is_error for result in loop.results()] == [True]


def test_cancelling_the_turn_cancels_its_tools_and_leaves_no_task() -> None:
    stopped: list[int] = []

    async def slow(number: int) -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            stopped.append(number)

    async def run() -> int:
        loop = Loop(calls('{"number": 0}', '{"number": 1}', name="slow"), "done", tools=[slow])
        asking = asyncio.ensure_future(loop.client.get_response("go"))
        await asyncio.sleep(0.03)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert loop.capture.open_spans == ()
        return len(asyncio.all_tasks())

    assert asyncio.run(run()) == 1
    assert sorted(stopped) == [0, 1]


# The caller's own tools


THEIRS = ToolDeclaration("ask_user", "Asks the user.", "{}")


def test_a_call_of_a_tool_that_the_caller_declared_is_handed_back() -> None:
    call = Message.assistant(ToolCall("1", "ask_user"))
    loop = Loop(call)
    response = loop.ask(options=ChatOptions(tools=(THEIRS,)))
    assert response.messages == (call,)
    assert response.finish_reason == "tool_calls"
    assert [each.name for each in loop.provider.requests[0].options.tools] == ["ask_user", "add", "broken"]  # type: ignore[union-attr]


def test_a_call_of_the_callers_tool_is_handed_back_at_the_limit_too() -> None:
    theirs = Message.assistant(ToolCall("9", "ask_user"))
    response = Loop(ONE, theirs, max_tool_calls_per_turn=1).ask(options=ChatOptions(tools=(THEIRS,)))
    assert response.messages[-1] == theirs


def test_beside_a_call_of_the_callers_ours_are_run_all_the_same() -> None:
    call = Message.assistant(ToolCall("1", "ask_user"), *ONE.calls)
    response = Loop(call).ask(options=ChatOptions(tools=(THEIRS,)))
    assert response.messages == (call, Message.tool("call-0", "3", name="add"))


def test_a_tool_that_both_declare_goes_out_once() -> None:
    loop = Loop("hello")
    loop.ask(options=ChatOptions(tools=(add.declaration(),)))
    assert [each.name for each in loop.provider.requests[0].options.tools] == ["add", "broken"]  # type: ignore[union-attr]


def test_a_tool_of_the_same_name_with_other_parameters_is_refused_before_the_wrong_one_runs() -> None:
    theirs = ToolDeclaration("add", "Add words.", '{"type": "object", "properties": {"words": {"type": "string"}}}')
    ours = json.loads(add.declaration().parameters)
    titled = ToolDeclaration("add", "as ours", json.dumps({**ours, "title": "Add"}, indent=2))
    loop = Loop("hello")
    loop.ask(options=ChatOptions(tools=(titled,)))
    with pytest.raises(InputError, match="the tool 'add' of the options has other parameters than this stack's own"):
        loop.ask(options=ChatOptions(tools=(theirs,)))
    assert len(loop.provider.requests) == 1


@pytest.mark.parametrize(
    "schema", ["no JSON", '{"properties":{"x":' + "[" * 3_000, '{"properties":{"x":{"title":"\ud800"}}}'], ids=ascii
)
def test_a_declaration_of_that_name_without_a_schema_is_refused_too(schema: str) -> None:
    with pytest.raises(InputError, match="the tool 'add' of the options has other parameters"):
        Loop("hello").ask(options=ChatOptions(tools=(ToolDeclaration("add", "", schema),)))


# What is filled in


class Database:
    rows = ("tea",)


def find_rows(query: str, database: Injected[Database], context: ToolContext) -> str:
    return f"{database.rows[0]} {query} {context.round} {context.conversation_id} {len(context.messages)}"


def test_services_and_context_are_given_and_not_declared() -> None:
    ask = calls('{"query": "q"}', name="find_rows")
    loop = Loop(ask, ask, "done", tools=[find_rows], resolve={Database: Database()})
    loop.ask(conversation_id="c-1")
    assert [result.output for result in loop.results()] == ["tea q 0 c-1 2", "tea q 1 c-1 4"]
    (declared,) = loop.provider.requests[0].options.tools
    assert isinstance(declared, ToolDeclaration)
    assert "database" not in declared.parameters


def test_a_service_that_the_container_has_not_surfaces_when_the_tool_is_called() -> None:
    loop = Loop(calls('{"query": "q"}', name="find_rows"), tools=[find_rows])
    with pytest.raises(WiringError, match=r"tool 'find_rows': database \(Database\) is required"):
        loop.ask()


def test_an_error_from_inside_a_service_keeps_its_own_cause() -> None:
    class Resolving(dict[type, object]):
        def __getitem__(self, kind: type) -> object:
            if kind is Database:
                raise ConnectionError("no database") from OSError("refused")
            return super().__getitem__(kind)

    stack = ChatStack(ScriptedClient([calls('{"query": "q"}', name="find_rows")]))
    client = stack.use(FunctionInvoker, tools=[find_rows]).build(Resolving().__getitem__)
    with pytest.raises(ConnectionError, match="no database") as caught:
        asyncio.run(client.get_response("go"))
    assert isinstance(caught.value.__cause__, OSError)


# At build


@pytest.mark.parametrize("name", ["max_tool_calls_per_turn", "max_concurrency", "max_consecutive_failures"])
@pytest.mark.parametrize("bad", [0, -1, 1.5, "10", True])
def test_a_count_that_is_none_fails_at_build(name: str, bad: Any) -> None:
    with pytest.raises(WiringError) as caught:
        Loop("x", **{name: bad})
    said = f"FunctionInvoker: {name}={bad!r} must be a whole number, at least 1"
    assert str(caught.value) == said + (", or None" if name == "max_concurrency" else "")
    assert (caught.value.layer, caught.value.parameter) == ("FunctionInvoker", name)


def test_only_the_concurrency_may_be_unbounded() -> None:
    assert Loop("x", max_concurrency=None).ask().text == "x"
    for name in ("max_tool_calls_per_turn", "max_consecutive_failures"):
        with pytest.raises(WiringError, match=f"{name}=None must be a whole number"):
            Loop("x", **{name: cast("Any", None)})


@pytest.mark.parametrize("bad", [0, -1, "5", float("nan")])
def test_a_timeout_that_is_none_fails_at_build(bad: object) -> None:
    with pytest.raises(WiringError, match=f"FunctionInvoker: tool_timeout_seconds={bad!r} must be a number greater"):
        Loop("x", tool_timeout_seconds=bad)


@pytest.mark.parametrize("bad", [None, add, "add"])
def test_tools_that_are_no_list_fail_at_build(bad: Any) -> None:
    with pytest.raises(WiringError, match=r"FunctionInvoker: tools=.* must be a list of functions"):
        Loop("x", tools=bad)


def test_two_tools_of_one_name_fail_at_build_with_the_remedy() -> None:
    with pytest.raises(WiringError) as caught:
        Loop("x", tools=[add, add])
    assert str(caught.value) == "FunctionInvoker: two tools are called 'add'; rename one with @tool(name=...)"
    assert caught.value.parameter == "tools"


def test_a_tool_that_needs_a_service_fails_where_no_resolver_is() -> None:
    with pytest.raises(WiringError) as caught:
        FunctionInvoker(ScriptedClient(), tools=[find_rows])
    assert str(caught.value) == (
        "FunctionInvoker: tool 'find_rows' needs Database injected; give it a resolver (resolve=)"
    )
    with pytest.raises(WiringError, match="tool 'find_rows' needs Database injected"):
        ChatStack(ScriptedClient()).use(FunctionInvoker, tools=[find_rows]).build()


def test_functions_become_tools() -> None:
    invoker = find(Loop("x").client, FunctionInvoker)
    assert invoker is not None
    assert [type(each) for each in invoker.tools] == [Tool, Tool]


# Rounds, as telemetry sees them


def test_each_model_call_and_tool_is_inside_the_turn_with_its_round() -> None:
    loop = Loop(ONE, "done")
    loop.ask()
    assert loop.capture.tree() == [
        ("invoke_agent chat", [("chat script", []), ("execute_tool add", []), ("chat script", [])])
    ]
    assert [span.attributes["chatstack.iteration"] for span in loop.capture.spans_named("chat script")] == [0, 1]


@pytest.mark.parametrize("returns", [False, True])
def test_calls_of_tools_that_nobody_declared_are_the_callers_where_the_provider_says_so(returns: bool) -> None:
    info = ProviderInfo(name="scripted", model="script", returns_unfinished=returns)
    model = ScriptedClient([Message.assistant(ToolCall("1", "stored", "{}")), "no such tool, then"], info=info)
    answer = asyncio.run(ChatStack(model).use(FunctionInvoker, tools=[]).build().get_response("hello"))
    assert answer.rounds == (1 if returns else 2)
    assert [call.name for message in answer.messages for call in message.calls] == ["stored"]


@pytest.mark.parametrize("returns", [False, True])
def test_a_paused_answer_is_the_callers_where_the_provider_says_so(returns: bool) -> None:
    info = ProviderInfo(name="scripted", model="script", returns_unfinished=returns)
    model = ScriptedClient([["so far", "paused"], "the rest"], info=info)
    answer = asyncio.run(ChatStack(model).use(FunctionInvoker, tools=[]).build().get_response("hello"))
    assert (answer.rounds, answer.finish_reason) == ((1, "paused") if returns else (2, "stop"))
