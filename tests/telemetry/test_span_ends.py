"""A tree of spans that all end, once, wherever a call is stopped; and a process that ends takes them along."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import gc
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context as otel

from chatstack import (
    BuiltClient,
    ChatFronts,
    ChatRequest,
    ChatStack,
    ChatStream,
    ContextWindowGuard,
    FunctionInvoker,
    IterativeContext,
    IterativeLoop,
    MemoryWorkspace,
    Message,
    ProgressEvent,
    ProgressReporter,
    ProviderInfo,
    ServerError,
    StreamClosedError,
    Summarizer,
    ToolCall,
    ToolTimeoutError,
    TurnTimeoutError,
    tool,
)
from chatstack.client.sources import StreamWatch
from chatstack.testing import Answer, CapturedSpan, ScriptedClient, TelemetryCapture
from chatstack.testing.leftovers import cancelled_at, complaints

HISTORY = [
    *(
        each(f"{number} of the old days {'x' * 80}")
        for number in range(6)
        for each in (Message.user, Message.assistant)
    ),
    Message.user("and now?"),
]
LOOK = Message.assistant(ToolCall("1", "look"))
ROOT, CHAT, TOOL, SUMMARY = "invoke_agent chat", "chat script", "execute_tool look", "compact_context summarize"
TREE: list[Any] = [
    (ROOT, [(SUMMARY, [("chat writer", [])]), ("context_guard", []), (CHAT, []), (TOOL, []), (CHAT, [])])
]


class Whole:
    """A stack of everything: a summary is written, a tool is called, the guard warns, and the answer has some words."""

    def __init__(
        self,
        *answers: Answer,
        writer: Answer = "they met",
        look: Callable[[], object] | None = None,
        pause: bool = False,
    ) -> None:
        async def looks() -> str:
            await asyncio.sleep(0)
            return "sunny" if look is None else str(look())

        delay = 0 if pause else None
        self.provider = ScriptedClient(answers or (LOOK, "it is sunny today"), delay_seconds=delay)
        self.writer = ScriptedClient([writer], delay_seconds=delay, info=ProviderInfo(name="scripted", model="writer"))
        self.capture = TelemetryCapture()
        self.client: BuiltClient = (
            ChatStack(self.provider)
            .use(ProgressReporter)
            .use(FunctionInvoker, tools=[tool(name="look")(looks)], propagate=(ServerError,))
            .use(Summarizer, max_tokens=200, keep_recent_turns=1, summary_client=self.writer)
            .use(ContextWindowGuard, max_context_tokens=60)
            .build(self.capture.resolve)
        )

    async def ask(self, *, streaming: bool) -> None:
        if not streaming:
            await self.client.get_response(HISTORY)
            return
        async with self.client.get_streaming_response(HISTORY) as stream:
            async for _ in stream:
                pass

    def stopped(self) -> list[str]:
        """The spans that were stopped; all have ended, and none says that this is an error."""
        assert self.capture.open_spans == ()
        found = [span for span in self.capture.spans if error_of(span)]
        assert {(error_of(span), span.status) for span in found} <= {("cancelled", "unset")}
        return [span.name for span in found]


def error_of(span: CapturedSpan) -> str:
    return str(span.attributes.get("error.type", ""))


async def settle() -> None:
    """Let the loop close what was dropped."""
    gc.collect()
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def no_complaints() -> Iterator[None]:
    """OpenTelemetry has nothing to say: no span that ended twice, no context that was detached in a wrong place."""
    with complaints() as heard:
        yield
    assert heard == []


@pytest.mark.parametrize("streaming", [False, True])
def test_the_whole_call_has_a_summary_a_warning_a_tool_and_two_rounds(streaming: bool) -> None:
    whole = Whole()
    asyncio.run(whole.ask(streaming=streaming))
    assert whole.capture.tree() == TREE
    assert whole.stopped() == []


@pytest.mark.parametrize("streaming", [False, True])
def test_a_call_that_is_cancelled_at_any_step_ends_all_its_spans(streaming: bool) -> None:
    async def run() -> Counter[str]:
        found: Counter[str] = Counter()
        await Whole().ask(streaming=streaming)  # what is loaded once, in a thread, takes any number of steps
        before = otel.get_current()
        for step in range(1, 1_000):
            whole = Whole(pause=True)
            stopped = await cancelled_at(step, lambda whole=whole: whole.ask(streaming=streaming))  # type: ignore[misc]
            await settle()
            names = whole.stopped()
            assert otel.get_current() == before
            if stopped is False:
                return found
            assert names[:1] == [ROOT]
            found.update(["later " + CHAT] if len(whole.capture.spans_named(CHAT)) == 2 else names)
        raise AssertionError("it does not end")

    found = asyncio.run(run())
    assert {ROOT, SUMMARY, "chat writer", CHAT, TOOL, "later " + CHAT} <= set(found)


@pytest.mark.parametrize("how", ["closed", "dropped", "left in a cycle", "closed by another task", "left to the loop"])
def test_a_stream_that_is_not_read_to_its_end_ends_all_its_spans(how: str) -> None:
    async def stop_after(count: int) -> tuple[Whole, bool]:
        whole = Whole(pause=True)
        stream: ChatStream | None = whole.client.get_streaming_response(HISTORY)
        before = otel.get_current()
        for _ in range(count):
            assert stream is not None
            if await anext(stream, None) is None:
                return whole, True
            assert otel.get_current() == before
        assert stream is not None
        if how == "closed":
            await stream.aclose()
        elif how == "closed by another task":
            return whole, await close_while_reading(stream)
        elif how == "left in a cycle":
            cycle: list[object] = [stream]
            cycle.append(cycle)
            del cycle
        if how != "left to the loop":
            stream = None
            gc.collect()
            assert ROOT not in whole.capture.open_spans
        await settle()
        return whole, False

    async def close_while_reading(stream: ChatStream) -> bool:
        reading = asyncio.ensure_future(stream.response())
        await asyncio.sleep(0)
        await stream.aclose()
        return not isinstance((await asyncio.gather(reading, return_exceptions=True))[0], StreamClosedError)

    names: set[str] = set()
    is_over = False
    for count in range(1, 100):
        whole, is_over = asyncio.run(stop_after(count))
        gc.collect()
        if is_over:
            break
        stopped = whole.stopped()
        assert stopped[:1] == [ROOT]
        names |= {*stopped, *(["later " + CHAT] if len(whole.capture.spans_named(CHAT)) == 2 else [])}
    assert is_over
    assert {ROOT, CHAT, "later " + CHAT} <= names


def test_a_call_that_the_collector_closes_from_elsewhere_is_cancelled_as_well() -> None:
    """What becomes of a task that waits when its loop is closed, and nobody looks back."""
    whole, context = Whole(pause=True), contextvars.copy_context()
    calling = whole.client.send(ChatRequest((Message.user("hello"),)))
    with complaints() as heard:
        context.run(calling.send, None)
        calling.close()
    assert (whole.stopped(), heard) == ([ROOT, CHAT], [])


def refuses(error: BaseException) -> Callable[[], object]:
    def look() -> object:
        raise error

    return look


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("error", "of_the_tool", "of_the_turn"),
    [
        (ValueError("hunter2"), ("ValueError", "error"), ("", "unset")),
        (ServerError("hunter2"), ("ServerError", "error"), ("ServerError", "error")),
        (SystemExit("hunter2"), ("SystemExit", "error"), ("SystemExit", "error")),
        (KeyboardInterrupt("hunter2"), ("cancelled", "unset"), ("cancelled", "unset")),
        (asyncio.CancelledError("hunter2"), ("cancelled", "unset"), ("", "unset")),
    ],
)
def test_what_a_tool_raises_ends_all_spans(
    error: BaseException, of_the_tool: tuple[str, str], of_the_turn: tuple[str, str], streaming: bool
) -> None:
    whole = Whole(look=refuses(error))
    with pytest.raises(type(error)) if of_the_turn[0] else nullcontext():
        asyncio.run(whole.ask(streaming=streaming))
    gc.collect()
    capture = whole.capture
    assert capture.open_spans == ()
    found = [(error_of(span), span.status) for span in (capture.span(TOOL), capture.span(ROOT))]
    assert found == [of_the_tool, of_the_turn]
    assert {error_of(span) for span in capture.spans_named(CHAT)} == {""}
    assert "hunter2" not in capture.said()


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("answers", "ended"),
    [
        ((ServerError("no"),), [(ROOT, "error"), (CHAT, "error")]),
        ((["half an ", ServerError("no")],), [(ROOT, "error"), (CHAT, "error")]),
        ((LOOK, ServerError("no")), [(ROOT, "error"), (CHAT, "unset"), (TOOL, "unset"), (CHAT, "error")]),
        ((LOOK, ["half", ServerError("no")]), [(ROOT, "error"), (CHAT, "unset"), (TOOL, "unset"), (CHAT, "error")]),
    ],
)
def test_an_error_of_the_model_is_one_on_its_call_and_on_the_turn(
    answers: tuple[Answer, ...], ended: list[tuple[str, str]], streaming: bool
) -> None:
    whole = Whole(*answers)
    with pytest.raises(ServerError):
        asyncio.run(whole.ask(streaming=streaming))
    spans = [span for span in whole.capture.spans if span.name in (ROOT, CHAT, TOOL)]
    assert whole.capture.open_spans == ()
    assert [(span.name, span.status) for span in spans] == ended


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("writer", [ServerError("no"), ["half", ServerError("no")]])
def test_a_summary_that_fails_is_an_error_of_its_own_and_none_of_the_turn(writer: Answer, streaming: bool) -> None:
    whole = Whole(writer=writer)
    asyncio.run(whole.ask(streaming=streaming))
    capture = whole.capture
    assert capture.open_spans == ()
    failed = [span.name for span in capture.spans if span.status == "error"]
    assert failed == [SUMMARY, "chat writer"]
    assert capture.warnings[0] == "summarizer_failed"


def test_a_watch_that_raises_at_the_end_is_left_all_the_same() -> None:
    class Raises:
        def enter(self) -> object:
            return otel.attach(otel.set_value("watched", True))

        def leave(self, token: Any, /) -> None:
            otel.detach(token)

        def ended(self, answer: object, error: BaseException | None, /) -> None:
            raise ValueError("no")

    async def run(stop: Callable[[ChatStream], Any]) -> None:
        inner = await ScriptedClient(["one two"]).send(ChatRequest((Message.user("hello"),)))
        watch: StreamWatch = Raises()
        with pytest.raises(ValueError, match="no"):
            await stop(ChatStream.watched(inner, watch))
        assert otel.get_value("watched") is None

    async def read(stream: ChatStream) -> None:
        async for _ in stream:
            pass

    for stop in (ChatStream.response, ChatStream.aclose, read):
        asyncio.run(run(stop))


# Time that runs out


def run_out_of_time() -> None:
    """Set the clock of the running event loop an hour ahead."""
    loop = asyncio.get_running_loop()
    ahead = loop.time() + 3_600
    loop.time = lambda: ahead  # type: ignore[method-assign]


class Hangs:
    """A client whose time runs out as soon as it is asked; it never answers."""

    info = ProviderInfo(name="scripted", model="hangs")

    async def send(self, request: ChatRequest, /) -> ChatStream:
        run_out_of_time()
        await asyncio.Event().wait()
        raise AssertionError("it waits for ever")


async def hang() -> str:
    """Look for ever."""
    run_out_of_time()
    await asyncio.Event().wait()
    return "never"


def ended_by_time(*ends: tuple[str, str]) -> dict[str, tuple[str, str]]:
    return {name: (error, "error" if error not in ("", "cancelled") else "unset") for name, error in ends}


def ends_of(capture: TelemetryCapture) -> dict[str, tuple[str, str]]:
    assert capture.open_spans == ()
    return {span.name: (error_of(span), span.status) for span in capture.spans}


async def answered(client: ChatFronts, *, streaming: bool, **given: Any) -> None:
    if streaming:
        await client.get_streaming_response("hello", **given).response()
    else:
        await client.get_response("hello", **given)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("hanging", ["model", "tool"])
def test_a_turn_that_runs_out_of_time_is_an_error_on_all_that_it_ends(hanging: str, streaming: bool) -> None:
    capture, events = TelemetryCapture(), list[ProgressEvent]()
    stack = ChatStack(Hangs() if hanging == "model" else ScriptedClient([LOOK])).use(
        ProgressReporter, on_progress=events.append
    )
    stack = stack.use(FunctionInvoker, tools=[tool(name="look")(hang)])

    async def run() -> None:
        async with stack.open(capture.resolve) as client:
            with pytest.raises(TurnTimeoutError):
                await answered(client, streaming=streaming, timeout_seconds=600)

    asyncio.run(run())
    late = TurnTimeoutError.__name__
    inside = [("chat hangs", late)] if hanging == "model" else [(CHAT, ""), (TOOL, late)]
    assert ends_of(capture) == ended_by_time((ROOT, late), *inside)
    assert [point.labels.get("error.type") for point in capture.metric("gen_ai.invoke_agent.duration")] == [late]
    chat = "" if hanging == "tool" else late
    assert [point.labels.get("error.type", "") for point in capture.metric("gen_ai.client.operation.duration")] == [
        chat
    ]
    assert (events[-1].kind, events[-1].error) == ("turn_ended", late)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_time_limit_of_the_callers_own_is_a_stop(streaming: bool) -> None:
    capture = TelemetryCapture()
    client = ChatStack(Hangs()).use(ProgressReporter).build(capture.resolve)

    async def run() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(600):
                await answered(client, streaming=streaming, timeout_seconds=100_000)

    asyncio.run(run())
    assert ends_of(capture) == ended_by_time((ROOT, "cancelled"), ("chat hangs", "cancelled"))


@pytest.mark.parametrize("streaming", [False, True])
def test_an_agent_in_a_tool_that_runs_out_of_time_is_ended_by_the_limit_of_the_tool(streaming: bool) -> None:
    capture = TelemetryCapture()
    inner = ChatStack(Hangs()).use(ProgressReporter, agent_name="inner").build(capture.resolve)

    async def look() -> str:
        return (await inner.get_response("look", timeout_seconds=100_000)).text

    stack = ChatStack(ScriptedClient([LOOK, "it is sunny"])).use(ProgressReporter)
    client = stack.use(FunctionInvoker, tools=[look], tool_timeout_seconds=600).build(capture.resolve)
    asyncio.run(answered(client, streaming=streaming, timeout_seconds=200_000))
    late = ToolTimeoutError.__name__
    assert ends_of(capture) == ended_by_time(
        (ROOT, ""), (CHAT, ""), (TOOL, late), ("invoke_agent inner", late), ("chat hangs", late)
    )


def test_a_call_for_a_summary_that_runs_out_of_time_is_an_error() -> None:
    capture = TelemetryCapture()
    client = ChatStack(ScriptedClient(["sunny"]))
    client = client.use(ProgressReporter).use(Summarizer, max_tokens=200, keep_recent_turns=1, summary_client=Hangs())
    asyncio.run(client.build(capture.resolve).get_response(HISTORY))
    found = ends_of(capture)
    assert (found[SUMMARY], found["chat hangs"], found[ROOT]) == (
        ("timeout", "error"),
        ("timeout", "error"),
        ("", "unset"),
    )


def test_a_loop_in_a_tool_of_a_turn_that_runs_out_of_time_ends_with_it() -> None:
    capture = TelemetryCapture()
    loop = IterativeLoop(Hangs(), "look around", lambda _: "go on", telemetry=capture.telemetry)

    async def look() -> str:
        return str(await loop.run(IterativeContext(workspace=MemoryWorkspace())))

    client = ChatStack(ScriptedClient([LOOK])).use(FunctionInvoker, tools=[look]).build(capture.resolve)
    with pytest.raises(TurnTimeoutError):
        asyncio.run(client.get_response("hello", timeout_seconds=600))
    late = TurnTimeoutError.__name__
    names = "invoke_workflow loop", "invoke_agent loop", "chat hangs", TOOL
    assert {name: end for name, end in ends_of(capture).items() if name != CHAT} == ended_by_time(
        *((name, late) for name in names)
    )


def test_what_is_stopped_after_the_turn_that_ran_out_of_time_is_just_stopped() -> None:
    capture = TelemetryCapture()
    inner = ChatStack(ScriptedClient(["late"], delay_seconds=0)).use(ProgressReporter).build(capture.resolve)
    contexts: list[contextvars.Context] = []

    async def look() -> str:
        contexts.append(contextvars.copy_context())
        return await hang()

    async def run() -> None:
        with pytest.raises(TurnTimeoutError):
            await client.get_response("hello", timeout_seconds=600)
        asking = asyncio.create_task(inner.get_response("hello"), context=contexts[0])
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])

    client = ChatStack(ScriptedClient([LOOK])).use(FunctionInvoker, tools=[look]).build(capture.resolve)
    asyncio.run(run())
    assert error_of(capture.span(ROOT)) == "cancelled"


# A process that ends


def test_the_exit_of_the_process_is_asked_for_once_however_many_calls_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked_for: list[object] = []
    monkeypatch.setattr(atexit, "register", asked_for.append)
    whole = Whole()
    for _ in range(5):
        asyncio.run(whole.ask(streaming=True))
    assert len(asked_for) == 1


@pytest.mark.parametrize(
    ("program", "code"),
    [
        pytest.param("exits_while_it_reads", 3, marks=pytest.mark.slow),
        pytest.param("exits_in_a_tool", 3, marks=pytest.mark.slow),
        ("ends_with_an_open_stream", 0),
        pytest.param("ends_with_an_open_loop", 0, marks=pytest.mark.slow),
        pytest.param("ends_with_streams_of_two_providers", 0, marks=pytest.mark.slow),
        pytest.param("ends_while_another_thread_calls", 0, marks=pytest.mark.slow),
        pytest.param("leaves_a_task_behind", 0, marks=pytest.mark.slow),
        ("is_killed_in_a_tool SIGINT", -2),
        pytest.param("is_killed_in_a_tool SIGTERM", 3, marks=pytest.mark.slow),
        pytest.param("forks exits", 0, marks=pytest.mark.slow),
        pytest.param("forks drops", 0, marks=pytest.mark.slow),
        pytest.param("forks calls", 0, marks=pytest.mark.slow),
        pytest.param("forks interrupts", 0, marks=pytest.mark.slow),
    ],
)
def test_a_process_that_ends_exports_each_span_once(program: str, code: int) -> None:
    command = [sys.executable, str(Path(__file__).with_name("at_exit.py")), *program.split()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "detach" not in ran.stderr
    assert ran.returncode in (code, 130 if code == -2 else code)
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    began = Counter(span for what, span, *_ in lines if what == "began")
    assert len(began) >= 2
    assert Counter(span for what, span, *_ in lines if what == "exported") == began
    exported = [(error, status, has_ended) for what, _, _, error, status, has_ended in lines if what == "exported"]
    assert set(exported) <= {("", "UNSET", True), ("cancelled", "UNSET", True), ("SystemExit", "ERROR", True)}
