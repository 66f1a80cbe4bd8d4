"""One tool call: whatever goes wrong becomes a result that the model can act on; cancellation never does."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from opentelemetry import context as otel

from chatstack import (
    File,
    Image,
    Injected,
    Message,
    Text,
    Tool,
    ToolCall,
    ToolContext,
    ToolLoopError,
    WiringError,
    tool,
)
from chatstack.errors import ToolTimeoutError, UnknownToolError
from chatstack.telemetry.turns import Turn, attached, with_turn
from chatstack.testing import TelemetryCapture
from chatstack.tools.execution import Outcome, ToolRunner

CONTEXT = ToolContext(conversation_id="c-42", call_id="call-1", tool_name="f", round=0, messages=(Message.user("hi"),))


class Database:
    def __init__(self) -> None:
        self.rows = ["tea"]


def ran(function: Callable[..., Any] | Tool[..., Any], arguments: str = "{}", **options: Any) -> Outcome:
    """The outcome of one call of that function."""
    made = function if isinstance(function, Tool) else tool(function)
    telemetry = options.pop("telemetry", None) or TelemetryCapture().telemetry
    runner = ToolRunner({made.name: made}, telemetry, **options)
    return asyncio.run(asyncio.wait_for(runner.run(ToolCall("call-1", made.name, arguments), CONTEXT), 300))


# What a tool returns


@dataclass
class Weather:
    city: str
    degrees: float


class Rows(msgspec.Struct):
    rows: list[int]


PICTURE, FILE = Image(url="https://example.test/a.png"), File(text="notes")


@pytest.mark.parametrize(
    ("value", "output"),
    [
        ("text", "text"),
        ("", ""),
        (None, ""),
        (7, "7"),
        (True, "true"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        ([1, "two"], '[1,"two"]'),
        ([], "[]"),
        (Weather("Dubai", 41.5), '{"city":"Dubai","degrees":41.5}'),
        (Rows([1, 2]), '{"rows":[1,2]}'),
        ([Weather("Dubai", 41.5)], '[{"city":"Dubai","degrees":41.5}]'),
        (PICTURE, (PICTURE,)),
        (FILE, (FILE,)),
        ([Text("see"), PICTURE], (Text("see"), PICTURE)),
        ((PICTURE, FILE), (PICTURE, FILE)),
    ],
    ids=repr,
)
def test_what_a_tool_returns_reaches_the_model_as_text_parts_or_json(value: object, output: object) -> None:
    def function() -> object:
        return value

    outcome = ran(function)
    assert outcome.result.output == output
    assert (outcome.result.call_id, outcome.result.name, outcome.result.is_error) == ("call-1", "function", False)
    assert outcome.failure is None


def test_what_cannot_be_written_as_json_is_a_failure_of_the_tool() -> None:
    def function() -> object:
        return object()

    outcome = ran(function)
    assert outcome.result.is_error
    assert isinstance(outcome.failure, TypeError)


LOCK = threading.Lock()
RAN = "Error: send_invoice was run, but its result cannot be given to you; calling it again would not help. "
BY_TYPE = "In the result, a lock cannot be written as JSON; the tool must return text or plain values instead."
BYTES = (
    "The result holds bytes, for which JSON has no form; the tool must return text, or Image.from_bytes(...) or "
    "File.from_bytes(...)."
)
KEYS = (
    "The result (dict) cannot be written as JSON (TypeError); the tool must return text, or plain values with text as "
    "keys"
)


@pytest.mark.parametrize(
    ("value", "why"),
    [(LOCK, BY_TYPE), ({"deep": [{"er": LOCK}]}, BY_TYPE), (b"x", BYTES), ({None: 1}, KEYS), ({("a", 1): 1}, KEYS)],
)
def test_the_model_is_told_that_a_tool_ran_whose_result_cannot_be_written_and_the_developer_what_to_do(
    value: object, why: str
) -> None:
    def send_invoice() -> object:
        return value

    capture = TelemetryCapture()
    outcome = ran(send_invoice, telemetry=capture.telemetry)
    assert outcome.result.is_error
    assert outcome.was_run
    assert outcome.result.text == RAN + why.removesuffix(".") + "."
    (log,) = capture.logs
    assert log.body == f"send_invoice was run, but the model cannot be given its result. {why}"
    assert dict(log.attributes) == {
        "chatstack.warning.code": "tool_result_unwritable",
        "gen_ai.tool.name": "send_invoice",
    }
    detailed = ran(send_invoice, include_error_details=True).result.text
    assert detailed == RAN + (f"{why}: TypeError: {outcome.failure}" if why is KEYS else why)


@pytest.mark.parametrize("is_async", [True, False])
def test_sync_and_async_functions_get_their_arguments(is_async: bool) -> None:
    async def slow(city: str, days: int = 2) -> str:
        return f"{city} {days}"

    def quick(city: str, days: int = 2) -> str:
        return f"{city} {days}"

    assert ran(slow if is_async else quick, '{"city": "Dubai"}').result.output == "Dubai 2"


def test_a_decorated_coroutine_function_is_awaited_though_it_does_not_look_like_one() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @logged
    async def look(city: str) -> str:
        return f"sunny in {city}"

    assert ran(look, '{"city": "Dubai"}').result.output == "sunny in Dubai"


# What goes wrong


def test_an_unknown_tool_is_an_error_that_names_the_nearest() -> None:
    def get_weather() -> None: ...

    runner = ToolRunner({"get_weather": tool(get_weather)}, TelemetryCapture().telemetry)
    outcome = asyncio.run(runner.run(ToolCall("c", "get_wether", "{}"), CONTEXT))
    assert outcome.result.output == "Error: no tool 'get_wether'; did you mean 'get_weather'?"
    assert outcome.result.is_error
    assert isinstance(outcome.failure, UnknownToolError)


def test_the_name_of_an_unknown_tool_is_told_to_the_model_alone() -> None:
    events: list[str] = []
    capture = TelemetryCapture()
    turn = Turn(capture.telemetry.tracer.start_span("root"), None, lambda event: events.append(event.name))

    async def run() -> Outcome:
        with attached(with_turn(turn, otel.get_current())):
            runner = ToolRunner({"broken": tool(broken)}, capture.telemetry)
            return await runner.run(ToolCall("c", "hunter2 told me", "{}"), CONTEXT)

    outcome = asyncio.run(run())
    assert outcome.result.output == "Error: no tool 'hunter2 told me'; known: broken"
    assert str(outcome.failure) == "the model called a tool that is not there; known: broken"
    span = capture.span("execute_tool _OTHER")
    assert (span.attributes["gen_ai.tool.name"], span.status_text) == ("_OTHER", "UnknownToolError")
    assert "hunter2" not in json.dumps(dict(span.attributes))
    (point,) = capture.metric("gen_ai.execute_tool.duration")
    assert dict(point.labels) == {"gen_ai.tool.name": "_OTHER", "error.type": "UnknownToolError"}
    assert events == ["_OTHER", "_OTHER"]


class Picky(msgspec.Struct):
    number: int

    def __post_init__(self) -> None:
        raise KeyError("hunter2")


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ('{"value": ' + '{"a":' * 100_000 + "1" + "}" * 100_001, RecursionError),
        ('{"value": "\ud800"}', UnicodeEncodeError),
        ('{"value": {"a": "\\ud800"}}', msgspec.DecodeError),
        ('{"picky": {"number": 1}, "value": {}}', KeyError),
    ],
    ids=["deeply nested", "half a character", "half a character, escaped", "a class that refuses"],
)
def test_whatever_a_model_writes_as_arguments_is_an_error_that_it_can_act_on(arguments: str, kind: type) -> None:
    def take(value: dict[str, Any], picky: Picky | None = None) -> None: ...

    outcome = ran(take, arguments)
    assert type(outcome.failure) is kind
    assert outcome.result.is_error
    assert outcome.result.text.startswith("Error: the arguments do not fit: ")
    assert outcome.result.text.endswith("Correct them and call again.")
    assert "hunter2" not in outcome.result.text


def test_the_text_of_a_failure_can_be_sent_whatever_was_in_it() -> None:
    def open_it() -> None:
        raise FileNotFoundError("caf\udce9.txt")

    outcome = ran(open_it, include_error_details=True)
    assert outcome.result.output == "Error: open_it failed: FileNotFoundError: caf\ufffd.txt"


def test_file_names_that_are_not_utf_8_reach_the_model_with_a_replacement() -> None:
    def names() -> list[str]:
        return ["caf\udce9.txt"]

    assert ran(names).result.output == '["caf\ufffd.txt"]'


@pytest.mark.parametrize("is_async", [True, False])
def test_a_stop_iteration_is_a_failure_of_the_tool_and_hangs_nobody(is_async: bool) -> None:
    def first() -> object:
        return next(iter(()))

    async def first_later() -> object:
        return next(iter(()))

    outcome = ran(first_later if is_async else first)
    assert outcome.result.is_error
    assert isinstance(outcome.failure, RuntimeError)
    assert isinstance(outcome.failure.__cause__, StopIteration)


def test_bad_arguments_say_where_and_what_to_do() -> None:
    def get_weather(city: str) -> None: ...

    outcome = ran(get_weather, '{"city": 5}')
    assert outcome.result.output == (
        "Error: the arguments do not fit: Expected `str`, got `int` - at `$.city`. Correct them and call again."
    )
    assert isinstance(outcome.failure, msgspec.ValidationError)
    assert ran(get_weather, '{"city": ').result.is_error


def broken(secret: str) -> str:
    raise ValueError(f"cannot open {secret}")


def test_an_exception_is_an_error_without_details_unless_they_are_asked_for() -> None:
    plain = ran(broken, '{"secret": "hunter2"}')
    assert plain.result.output == "Error: broken failed."
    assert isinstance(plain.failure, ValueError)
    detailed = ran(broken, '{"secret": "hunter2"}', include_error_details=True)
    assert detailed.result.output == "Error: broken failed: ValueError: cannot open hunter2"


def test_an_async_tool_that_takes_too_long_is_stopped() -> None:
    stopped: list[bool] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            stopped.append(True)
            raise

    outcome = ran(slow, timeout_seconds=0.02)
    assert outcome.result.output == "Error: slow took longer than 0.02 seconds."
    assert isinstance(outcome.failure, ToolTimeoutError)
    assert stopped == [True]


def test_a_sync_tool_that_takes_too_long_is_no_longer_waited_for() -> None:
    released, ended = threading.Event(), list[bool]()

    def slow() -> None:
        ended.append(released.wait(300))

    async def run() -> Outcome:
        runner = ToolRunner({"slow": tool(slow)}, TelemetryCapture().telemetry, timeout_seconds=0.02)
        outcome = await runner.run(ToolCall("c", "slow"), CONTEXT)
        assert ended == []
        released.set()
        return outcome

    assert isinstance(asyncio.run(run()).failure, ToolTimeoutError)


def test_a_tools_own_timeout_wins_over_the_loops() -> None:
    @tool(timeout_seconds=5)
    async def patient() -> str:
        await asyncio.sleep(0.05)
        return "done"

    assert ran(patient, timeout_seconds=0.01).result.output == "done"


def test_a_timeout_that_the_tool_raises_itself_is_a_failure_like_any_other() -> None:
    def connect() -> None:
        raise TimeoutError("no route")

    outcome = ran(connect, timeout_seconds=5)
    assert outcome.result.output == "Error: connect failed."
    assert not isinstance(outcome.failure, ToolTimeoutError)


def test_sync_tools_run_off_the_loop() -> None:
    loop_thread: list[int] = []
    tool_thread: list[int] = []

    def where() -> None:
        tool_thread.append(threading.get_ident())

    async def run() -> None:
        loop_thread.append(threading.get_ident())
        await ToolRunner({"where": tool(where)}, TelemetryCapture().telemetry).run(ToolCall("c", "where"), CONTEXT)

    asyncio.run(run())
    assert tool_thread != loop_thread


def test_a_pool_that_others_have_used_up_costs_a_sync_tool_none_of_its_time() -> None:
    release = threading.Event()

    async def run() -> Outcome:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        stuck = loop.run_in_executor(None, release.wait, 20)
        runner = ToolRunner({"quick": tool(quick)}, TelemetryCapture().telemetry, timeout_seconds=2)
        outcome = await runner.run(ToolCall("c", "quick"), CONTEXT)
        release.set()
        await stuck
        return outcome

    def quick() -> str:
        return "done"

    assert asyncio.run(run()).result.output == "done"


def test_sync_tools_that_hang_leave_the_pool_to_others() -> None:
    release = threading.Event()

    def hang() -> None:
        release.wait(300)

    async def run() -> str:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        runner = ToolRunner({"hang": tool(hang)}, TelemetryCapture().telemetry, timeout_seconds=0.02)
        await runner.run(ToolCall("c", "hang"), CONTEXT)
        try:
            async with asyncio.timeout(300):
                return await asyncio.to_thread(str, "free")
        finally:
            release.set()

    assert asyncio.run(run()) == "free"


# Cancellation


def test_cancellation_passes_through_and_is_never_a_failure_of_the_tool() -> None:
    async def slow() -> None:
        await asyncio.sleep(3_600)

    async def run() -> None:
        capture = TelemetryCapture()
        runner = ToolRunner({"slow": tool(slow)}, capture.telemetry, timeout_seconds=5)
        running = asyncio.ensure_future(runner.run(ToolCall("c", "slow"), CONTEXT))
        await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        span = capture.span("execute_tool slow")
        assert (span.status, span.attributes["error.type"]) == ("unset", "cancelled")

    asyncio.run(run())


def test_a_tool_that_raises_cancelled_error_itself_is_a_failed_tool() -> None:
    async def confused() -> None:
        raise asyncio.CancelledError

    outcome = ran(confused)
    assert outcome.result.output == "Error: confused was cancelled."
    assert isinstance(outcome.failure, asyncio.CancelledError)


# What is filled in


def test_context_and_services_are_given() -> None:
    seen: list[ToolContext] = []

    def find(query: str, database: Injected[Database], context: ToolContext) -> str:
        seen.append(context)
        return database.rows[0] + query

    database = Database()
    outcome = ran(find, '{"query": "!"}', resolve={Database: database}.__getitem__)
    assert outcome.result.output == "tea!"
    assert seen == [CONTEXT]


def find_rows(database: Injected[Database]) -> str:
    return database.rows[0]


def test_a_service_that_nobody_bound_surfaces_by_tool_parameter_type_and_remedy() -> None:
    def resolve(kind: type) -> object:
        raise LookupError(kind)

    with pytest.raises(WiringError) as caught:
        ran(find_rows, resolve=resolve)
    assert str(caught.value) == (
        "tool 'find_rows': database (Database) is required; bind it in the container that the stack was built with"
    )
    assert (caught.value.layer, caught.value.parameter) == ("FunctionInvoker", "database")


@pytest.mark.parametrize("is_async", [True, False])
def test_a_provider_that_gives_nothing_has_bound_nothing(is_async: bool) -> None:
    async def later(found: object) -> object:
        return found

    def giving(found: object) -> Callable[[type], object]:
        return lambda kind: later(found) if is_async else found

    def find(database: Injected[Database] | None = None) -> str:
        return "nowhere" if database is None else database.rows[0]

    with pytest.raises(WiringError, match=r"tool 'find_rows': database \(Database\) is required; bind it"):
        ran(find_rows, resolve=giving(None))
    assert ran(find, resolve=giving(None)).result.output == "nowhere"
    with pytest.raises(WiringError, match="the container gave the class Database itself"):
        ran(find_rows, resolve=giving(Database))


def test_a_service_that_cannot_be_made_surfaces_as_it_is() -> None:
    def resolve(kind: type) -> object:
        raise ConnectionError("no database")

    with pytest.raises(ConnectionError, match="no database"):
        ran(find_rows, resolve=resolve)


def test_a_service_that_takes_too_long_is_a_failed_call_whose_tool_is_not_run() -> None:
    ended: list[bool] = []

    async def connect() -> Database:
        try:
            await asyncio.sleep(3_600)
        finally:
            ended.append(True)
        return Database()

    outcome = ran(find_rows, resolve=lambda kind: connect(), timeout_seconds=0.02)
    assert outcome.result.output == "Error: not run: find_rows waited for its services for 0.02 seconds."
    assert isinstance(outcome.failure, ToolTimeoutError)
    assert ended == [True]


def test_a_timeout_of_a_service_itself_surfaces_as_it_is() -> None:
    async def connect() -> Database:
        raise TimeoutError("no route")

    with pytest.raises(TimeoutError, match="no route"):
        ran(find_rows, resolve=lambda kind: connect(), timeout_seconds=5)


def test_a_future_that_others_wait_for_outlives_a_call_that_is_out_of_time() -> None:
    async def run() -> list[str]:
        made = asyncio.get_running_loop().create_future()
        runner = ToolRunner({"find_rows": tool(find_rows)}, TelemetryCapture().telemetry, lambda kind: made, 0.02)
        first = await runner.run(ToolCall("c", "find_rows"), CONTEXT)
        made.set_result(Database())
        second = await runner.run(ToolCall("d", "find_rows"), CONTEXT)
        return [first.result.text, second.result.text]

    assert asyncio.run(run())[1] == "tea"


@pytest.mark.parametrize("is_async", [True, False])
def test_a_service_whose_provider_was_cancelled_is_no_cancellation_of_the_turn(is_async: bool) -> None:
    def connect(kind: type) -> Database:
        raise asyncio.CancelledError

    async def connect_later(kind: type) -> Database:
        return connect(kind)

    with pytest.raises(ToolLoopError, match="FunctionInvoker: the provider of Database was cancelled"):
        ran(find_rows, resolve=connect_later if is_async else connect)


def test_a_cancellation_that_a_plain_approval_asks_for_is_one() -> None:
    def approve(call: ToolCall, context: ToolContext) -> bool:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        ran(find_rows, resolve=lambda kind: Database(), approve=approve)


# What is seen of it


def test_a_call_is_a_span_with_the_names_of_the_conventions() -> None:
    def look(city: str) -> str:
        """Looks."""
        return "sunny"

    capture = TelemetryCapture()
    ran(look, '{"city": "Dubai"}', telemetry=capture.telemetry)
    span = capture.span("execute_tool look")
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.call.id": "call-1",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": "Looks.",
    }
    assert (span.kind, span.status) == ("INTERNAL", "unset")
    (point,) = capture.metric("gen_ai.execute_tool.duration")
    assert (dict(point.labels), point.count) == ({"gen_ai.tool.name": "look"}, 1)


def test_a_failed_call_is_an_error_span_without_the_text_of_the_error() -> None:
    capture = TelemetryCapture()
    ran(broken, '{"secret": "hunter2"}', telemetry=capture.telemetry)
    span = capture.span("execute_tool broken")
    assert (span.status, span.status_text, span.attributes["error.type"]) == ("error", "ValueError", "ValueError")
    assert "hunter2" not in json.dumps([dict(span.attributes), [dict(each) for _, each in span.events]])
    (point,) = capture.metric("gen_ai.execute_tool.duration")
    assert point.labels["error.type"] == "ValueError"


def test_spans_that_a_tool_opens_are_inside_its_own() -> None:
    capture = TelemetryCapture()

    async def outer() -> None:
        with capture.telemetry.tracer.start_as_current_span("query"):
            await asyncio.sleep(0)

    def outer_sync() -> None:
        with capture.telemetry.tracer.start_as_current_span("query"):
            pass

    ran(outer, telemetry=capture.telemetry)
    ran(outer_sync, telemetry=capture.telemetry)
    assert capture.tree() == [
        ("execute_tool outer", [("query", [])]),
        ("execute_tool outer_sync", [("query", [])]),
    ]
