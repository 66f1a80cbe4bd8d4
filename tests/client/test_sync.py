"""The synchronous front: plain calls and iterators, from any thread, on one loop that ends with its users."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pytest
from opentelemetry import trace

from chatstack import (
    ChatFronts,
    ChatRequest,
    ChatStack,
    ChatStackError,
    ChatStream,
    ChatUpdate,
    FunctionInvoker,
    InputError,
    Message,
    StreamBusyError,
    StreamClosedError,
    SyncClient,
    ToolCall,
    WiringError,
    find,
    tool,
)
from chatstack.providers.openai import OpenAIChatClient
from chatstack.testing import ScriptedClient, TelemetryCapture
from chatstack.testing.capture import SpanTree
from chatstack.testing.provider_server import Delivery, ScriptedServer, ServerReply

THREAD = "chatstack-sync"


def portal_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


def wait_for_threads() -> None:
    """Wait until the thread of dropped clients has ended."""
    gc.collect()
    for thread in portal_threads():
        thread.join(60)
    assert not portal_threads()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    wait_for_threads()  # of other tests
    yield
    wait_for_threads()


def test_an_answer_is_returned() -> None:
    with ChatStack(ScriptedClient(["fine"])).build_sync() as client:
        assert client.get_response("hello").text == "fine"


def test_a_stream_is_a_plain_iterator() -> None:
    with ChatStack(ScriptedClient(["all is well"])).build_sync() as client:
        stream = client.get_streaming_response("hello")
        assert "".join(update.text for update in stream) == "all is well"
        assert list(stream) == []
        assert stream.response().text == "all is well"
    assert stream.response().text == "all is well"


def test_an_output_type_is_parsed() -> None:
    @dataclass
    class Town:
        name: str

    with ChatStack(ScriptedClient(['{"name": "Dubai"}'])).build_sync() as client:
        assert client.get_response("which?", output_type=Town).parsed == Town("Dubai")
        assert client.get_streaming_response("which?", output_type=Town).response().parsed == Town("Dubai")


def test_a_client_that_has_only_send_gets_the_front() -> None:
    class Bare:
        async def send(self, request: ChatRequest, /) -> ChatStream:
            return await ScriptedClient(["bare"]).send(request)

    with SyncClient(Bare()) as client:
        assert client.get_response("hello").text == "bare"


def test_what_is_no_client_is_refused() -> None:
    with pytest.raises(WiringError, match="SyncClient: inner is a name, and no chat client"):
        SyncClient("gpt")  # type: ignore[arg-type]


def test_wrong_arguments_are_told_as_by_the_async_front() -> None:
    with ChatStack(ScriptedClient()).build_sync() as client:
        with pytest.raises(InputError, match="get_response: unknown option 'temperature'"):
            client.get_response("hello", temperature=0)  # type: ignore[call-overload]
        with pytest.raises(InputError, match="messages: empty"):
            client.get_streaming_response([])


def test_a_layer_is_found_behind_the_front() -> None:
    client = ChatStack(ScriptedClient()).use(FunctionInvoker, tools=[]).build_sync()
    assert isinstance(find(client, FunctionInvoker), FunctionInvoker)
    assert "FunctionInvoker" in repr(client)


def test_nothing_starts_before_the_first_call() -> None:
    client = ChatStack(ScriptedClient()).build_sync()
    client.get_streaming_response("never read")
    client.close()
    assert not portal_threads()


def test_all_clients_share_one_thread_which_ends_with_the_last_of_them() -> None:
    one, other = (ChatStack(ScriptedClient()).build_sync() for _ in range(2))
    one.get_response("hello")
    (thread,) = portal_threads()
    with other:
        other.get_response("hello")
        for _ in other.get_streaming_response("hello"):
            pass
        assert portal_threads() == [thread]
        one.close()
        one.close()
        assert portal_threads() == [thread]
    assert not portal_threads()


def test_a_closed_client_begins_anew() -> None:
    client = ChatStack(ScriptedClient()).build_sync()
    for _ in range(2):
        assert client.get_response("hello").text == "fine"
        client.close()


def test_a_dropped_client_ends_the_thread_and_its_layers_are_closed() -> None:
    closed = threading.Event()

    class Closing(ScriptedClient):
        async def aclose(self) -> None:
            closed.set()

    SyncClient(Closing()).get_response("hello")
    gc.collect()
    assert closed.wait(60)


def test_an_open_stream_outlives_its_client_and_a_dropped_one_is_closed() -> None:
    inner = ScriptedClient(["all is well"])
    with ChatStack(inner).build_sync() as client:
        stream = client.get_streaming_response("hello")
        assert next(stream).text == "all"
    assert "".join(update.text for update in stream) == " is well"
    stream = client.get_streaming_response("hello")
    next(stream)
    client.close()
    assert inner.open_streams == 1
    (thread,) = portal_threads()
    del stream
    gc.collect()
    thread.join(60)
    assert inner.open_streams == 0


def test_closing_a_stream_cancels_everything_below() -> None:
    inner = ScriptedClient(["all is well"])
    with ChatStack(inner).build_sync() as client:
        with client.get_streaming_response("hello") as stream:
            next(stream)
            assert inner.open_streams == 1
        assert inner.open_streams == 0
        with pytest.raises(StreamClosedError):
            next(stream)
        stream.close()


def test_a_stream_that_fails_and_is_dropped_holds_nothing() -> None:
    with ChatStack(ScriptedClient([["so ", "far", KeyError("unheard of")]])).build_sync() as client:
        for _ in range(2):
            with pytest.raises(KeyError):
                list(client.get_streaming_response("hello"))
        (thread,) = portal_threads()
    thread.join(60)
    assert not thread.is_alive()


def test_a_stream_that_is_closed_before_it_is_read_cannot_be_read() -> None:
    stream = ChatStack(ScriptedClient()).build_sync().get_streaming_response("hello")
    stream.close()
    with pytest.raises(StreamClosedError):
        next(stream)


class Hanging(ChatFronts):
    """A client whose answer never comes; it says when it was asked, and when it was cancelled."""

    def __init__(self) -> None:
        self.asked, self.cancelled = threading.Event(), threading.Event()

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await ChatStream.primed(self._updates())

    async def _updates(self) -> AsyncGenerator[ChatUpdate, None]:
        yield ChatUpdate(text="so far")
        self.asked.set()
        try:
            await asyncio.sleep(3_600)
        finally:
            self.cancelled.set()


def in_thread(function: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(function())
        except ChatStackError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, ended


def test_closing_a_stream_from_another_thread_stops_its_reader() -> None:
    inner = Hanging()
    with SyncClient(inner) as client:
        stream = client.get_streaming_response("hello")
        thread, ended = in_thread(lambda: list(stream))
        assert inner.asked.wait(60)
        with pytest.raises(StreamBusyError):
            next(stream)
        stream.close()
        thread.join(60)
        assert inner.cancelled.is_set()
    assert isinstance(ended[0], StreamClosedError)


def test_closing_the_last_client_ends_its_calls() -> None:
    inner = Hanging()
    client = SyncClient(inner)
    thread, ended = in_thread(lambda: client.get_response("hello"))
    assert inner.asked.wait(60)
    client.close()
    thread.join(60)
    assert inner.cancelled.is_set()
    assert isinstance(ended[0], StreamClosedError)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs a signal of its own")
@pytest.mark.parametrize("streams", [False, True])
def test_an_interrupted_call_is_cancelled_and_has_ended_when_it_raises(streams: bool) -> None:
    inner = Hanging()

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def when_asked() -> None:
        inner.asked.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with SyncClient(inner) as client:
            threading.Thread(target=when_asked).start()
            asked = (
                client.get_streaming_response("hello").response if streams else partial(client.get_response, "hello")
            )
            with pytest.raises(KeyboardInterrupt):
                asked()
            assert inner.cancelled.is_set()
            with ChatStack(ScriptedClient()).build_sync() as other:
                assert other.get_response("hello").text == "fine"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_it_may_be_called_where_an_event_loop_runs_already() -> None:
    """As in a notebook, or in an async view."""

    async def cell() -> str:
        with ChatStack(ScriptedClient(["from a cell"])).build_sync() as client:
            return client.get_response("hello").text + "".join(u.text for u in client.get_streaming_response("hello"))

    assert asyncio.run(cell()) == "from a cell" * 2


def test_async_code_on_its_own_loop_is_refused_and_does_not_hang() -> None:
    def answers() -> ScriptedClient:
        return ScriptedClient([Message.assistant(ToolCall("1", "ask_again", "{}")), "done"])

    said: list[BaseException] = []

    @tool
    async def ask_again() -> str:
        """Ask the model again."""
        try:
            return client.get_response("again").text
        except WiringError as error:
            said.append(error)
            raise

    with ChatStack(answers()).use(FunctionInvoker, tools=[ask_again]).build_sync() as client:
        assert client.get_response("hello").text == "done"
    assert "await the async client there" in str(said[0])


def test_a_tool_that_is_a_plain_function_may_use_it() -> None:
    with ChatStack(ScriptedClient(["inner"])).build_sync() as other:

        @tool
        def ask_another() -> str:
            """Ask another model."""
            return other.get_response("hello").text

        answers = ScriptedClient([Message.assistant(ToolCall("1", "ask_another", "{}")), "done"])
        with ChatStack(answers).use(FunctionInvoker, tools=[ask_another]).build_sync() as client:
            assert client.get_response("hello").messages[1].results[0].output == "inner"


def test_what_ends_a_process_is_raised_in_the_caller_and_the_loop_goes_on() -> None:
    with ChatStack(ScriptedClient([SystemExit(3), "fine"])).build_sync() as client:
        with pytest.raises(SystemExit):
            client.get_response("hello")
        assert client.get_response("hello").text == "fine"


def test_many_threads_share_a_client() -> None:
    class Echo(ChatFronts):
        async def send(self, request: ChatRequest, /) -> ChatStream:
            await asyncio.sleep(0)
            return await ScriptedClient([request.messages[-1].text]).send(request)

    with ChatStack(Echo()).build_sync() as client, ThreadPoolExecutor(30) as threads:
        found = list(threads.map(lambda number: client.get_response(str(number)).text, range(300)))
    assert found == [str(number) for number in range(300)]


def test_context_variables_are_those_of_the_caller() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user")
    seen: list[str] = []

    class Looking(ChatFronts):
        async def send(self, request: ChatRequest, /) -> ChatStream:
            seen.append(user.get())
            user.set("changed below")
            return await ScriptedClient().send(request)

    def call(name: str) -> str:
        user.set(name)
        client.get_response("hello")
        for _ in client.get_streaming_response("hello"):
            pass
        return user.get()

    with SyncClient(Looking()) as client, ThreadPoolExecutor(2) as threads:
        assert list(threads.map(call, ["ann", "bob"])) == ["ann", "bob"]
    assert sorted(seen) == ["ann", "ann", "bob", "bob"]


def test_spans_are_in_the_tree_of_the_caller() -> None:
    capture = TelemetryCapture()
    inner = ScriptedClient([Message.assistant(ToolCall("1", "look", "{}")), "done"] * 2)

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    stack = ChatStack(inner).use(FunctionInvoker, tools=[look])
    tracer = capture.telemetry.tracer
    with stack.build_sync(capture.resolve) as client:
        with tracer.start_as_current_span("view"):
            client.get_response("hello")
        with tracer.start_as_current_span("streamed view"):
            for _ in client.get_streaming_response("hello"):
                assert trace.get_current_span().get_span_context().is_valid
    round_tree: list[SpanTree] = [("chat script", []), ("execute_tool look", []), ("chat script", [])]
    assert capture.tree() == [("view", round_tree), ("streamed view", round_tree)]


def completion(request: object) -> Delivery:
    message = {"role": "assistant", "content": "fine"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return Delivery(ServerReply.json({"id": "1", "object": "chat.completion", "model": "m", "choices": [choice]}))


@contextmanager
def server() -> Iterator[ScriptedServer]:
    """A server in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    found = ScriptedServer(completion)
    asyncio.run_coroutine_threadsafe(found.__aenter__(), loop).result()
    try:
        yield found
    finally:
        asyncio.run_coroutine_threadsafe(found.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_provider_of_the_callers_own_outlives_the_thread() -> None:
    """Its pool would use the connections of a loop that is gone."""
    import openai

    with server() as there:
        sdk = openai.AsyncOpenAI(api_key="k", base_url=there.base_url, max_retries=0)
        stack = ChatStack(OpenAIChatClient("m", client=sdk))
        for _ in range(3):
            with stack.build_sync() as client:
                assert [client.get_response("hello").text for _ in range(2)] == ["fine", "fine"]
            assert not portal_threads()


def _ask(client: SyncClient, count: int) -> None:
    texts = [client.get_response("from the child").text for _ in range(count)]
    client.close()
    os._exit(0 if texts == ["fine"] * count else 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_loop_and_connections_of_its_own() -> None:
    with server() as there:
        provider = OpenAIChatClient("m", api_key="k", base_url=there.base_url, max_retries=0)
        with ChatStack(provider).build_sync() as client:
            stream = client.get_streaming_response("hello")
            assert client.get_response("hello").text == "fine"
            child = multiprocessing.get_context("fork").Process(target=_ask, args=(client, 3))
            child.start()
            child.join(60)
            assert child.exitcode == 0
            assert client.get_response("hello").text == "fine"
            stream.close()


SCRIPT = """
import contextlib, threading
from chatstack import ChatStack, StreamClosedError, SyncClient
from chatstack.testing import ScriptedClient
from tests.client.test_sync import Hanging

client = ChatStack(ScriptedClient(["fine", "one two three"])).build_sync()
print(client.get_response("hello").text)
stream = client.get_streaming_response("hello")
print(next(stream).text)
inner = Hanging()

def call():
    with contextlib.suppress(StreamClosedError):
        SyncClient(inner).get_response("hello")

threading.Thread(target=call, daemon=True).start()
inner.asked.wait()
print("over")
"""


def test_a_script_that_closes_nothing_ends_quietly() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "default", "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=False
    )
    assert (ran.stdout.split(), ran.stderr, ran.returncode) == (["fine", "one", "over"], "", 0)


def test_time_limits_hold() -> None:
    with SyncClient(Hanging()) as client:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            client.get_response("hello", timeout_seconds=0.05)
        assert time.monotonic() - began < 60
