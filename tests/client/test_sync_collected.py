"""What the collector closes: it runs in any thread, at any point, with any lock held, and must not wait there."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import pytest

from chatstack import (
    ChatFronts,
    ChatRequest,
    ChatStack,
    ChatStream,
    FunctionInvoker,
    Message,
    SyncClient,
    ToolCall,
    tool,
)
from chatstack.client.blocking import Blocking
from chatstack.testing import ScriptedClient
from tests.client.test_sync import wait_for_threads


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """What finalizers raised, where nobody can catch it."""
    said: list[object] = []

    def note(told: sys.UnraisableHookArgs) -> None:
        said.append(told.exc_value)

    monkeypatch.setattr(sys, "unraisablehook", note)
    wait_for_threads()
    yield said
    wait_for_threads()
    assert not said


@pytest.fixture(autouse=True)
def _collector_runs_when_it_is_told_to() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def leave(iterator: Iterator[Any]) -> None:
    """Read one item, and leave the iterator to the collector, in a reference cycle."""
    next(iterator)
    request: list[object] = [iterator]
    request.append(request)


def streaming_view(client: SyncClient) -> Iterator[str]:
    with client.get_streaming_response("hello") as stream:
        for update in stream:
            yield update.text


def whole_view(inner: ScriptedClient) -> Iterator[str]:
    with SyncClient(inner) as client:
        yield client.get_response("hello").text


def iterated_view(inner: ScriptedClient) -> Iterator[str]:
    async def updates() -> AsyncGenerator[str, None]:
        async with inner.get_streaming_response("hello") as stream:
            async for update in stream:
                yield update.text

    return Blocking().iterate(updates)


VIEWS: list[Callable[[ScriptedClient], Iterator[str]]] = [
    lambda inner: streaming_view(SyncClient(inner)),
    whole_view,
    iterated_view,
]


@pytest.mark.parametrize("view", VIEWS, ids=["stream", "client", "iterate"])
def test_a_view_that_is_collected_while_a_call_is_handed_over_is_closed(
    view: Callable[[ScriptedClient], Iterator[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = ScriptedClient(["one two three"])
    leave(view(left))
    before, is_time = asyncio.BaseEventLoop.call_soon_threadsafe, False

    def call_soon_threadsafe(*args: Any, **options: Any) -> Any:
        nonlocal is_time
        if is_time:
            is_time = False
            gc.collect()
        return before(*args, **options)

    with ChatStack(ScriptedClient(["fine"])).build_sync() as client:
        client.get_response("hello")
        monkeypatch.setattr(asyncio.BaseEventLoop, "call_soon_threadsafe", call_soon_threadsafe)
        is_time = True
        answers: list[str] = []
        thread = threading.Thread(target=lambda: answers.append(client.get_response("hello").text), daemon=True)
        thread.start()
        thread.join(60)
        assert answers == ["fine"]
    wait_for_threads()
    assert left.open_streams == 0


@pytest.mark.parametrize("view", VIEWS, ids=["stream", "client", "iterate"])
def test_a_view_that_is_collected_while_a_lock_is_held_that_the_loop_needs_is_closed(
    view: Callable[[ScriptedClient], Iterator[str]],
) -> None:
    lock = threading.Lock()

    class Locking(ScriptedClient):
        async def aclose(self) -> None:
            with lock:
                pass

        async def send(self, request: ChatRequest, /) -> ChatStream:
            inner = await super().send(request)

            async def updates() -> AsyncGenerator[Any, None]:
                try:
                    async for update in inner:
                        yield update
                finally:
                    with lock:
                        await inner.aclose()

            return ChatStream(updates())

    left = Locking(["one two three"])
    leave(view(left))

    def collect() -> None:
        with lock:
            gc.collect()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    wait_for_threads()
    assert left.open_streams == 0


@pytest.mark.parametrize("view", VIEWS, ids=["stream", "client", "iterate"])
def test_a_view_that_is_collected_on_the_loops_thread_is_closed_quietly(
    view: Callable[[ScriptedClient], Iterator[str]],
) -> None:
    @tool
    async def busy() -> str:
        """Allocate."""
        gc.collect()
        return "done"

    left = ScriptedClient(["one two three"])
    leave(view(left))
    answers = ScriptedClient([Message.assistant(ToolCall("1", "busy", "{}")), "fine"])
    with ChatStack(answers).use(FunctionInvoker, tools=[busy]).build_sync() as client:
        assert client.get_response("hello").text == "fine"
    wait_for_threads()
    assert left.open_streams == 0


def test_a_stream_that_is_closed_on_the_loops_thread_is_closed() -> None:
    left = ScriptedClient(["one two three"])
    open_stream = SyncClient(left).get_streaming_response("hello")
    next(open_stream)

    @tool
    async def close_it() -> str:
        """Close the stream."""
        open_stream.close()
        return "done"

    answers = ScriptedClient([Message.assistant(ToolCall("1", "close_it", "{}")), "fine"])
    with ChatStack(answers).use(FunctionInvoker, tools=[close_it]).build_sync() as client:
        assert client.get_response("hello").text == "fine"
        assert left.open_streams == 0


def test_a_client_that_the_collector_closes_and_others_use_goes_on() -> None:
    """The close is handed over; calls that begin after it are not ended by it."""
    ended = threading.Event()

    class Slow(ChatFronts):
        async def send(self, request: ChatRequest, /) -> ChatStream:
            if request.messages[-1].text == "long":
                await asyncio.to_thread(ended.wait, 60)
            return await ScriptedClient(["fine"]).send(request)

        async def aclose(self) -> None:
            asyncio.get_running_loop().call_later(0.1, ended.set)

    client = SyncClient(Slow())

    def view() -> Iterator[str]:
        with client:
            yield client.get_response("hello").text

    leave(view())
    gc.collect()
    assert client.get_response("long").text == "fine"
    client.close()
