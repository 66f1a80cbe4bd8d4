"""One provider on one event loop after another, and on several at once, as scripts, notebooks and threads have it."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from chatstack import ChatStackError
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from chatstack.providers.per_loop import PerLoop
from chatstack.providers.sdk_provider import SdkProvider

USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
ANSWERS: dict[str, dict[str, Any]] = {
    "/chat/completions": {
        "id": "a",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}],
        "usage": USAGE,
    },
    "/responses": {
        "id": "a",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "completed",
        "output": [
            {
                "id": "o",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "fine", "annotations": []}],
            }
        ],
        "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
    },
    "/v1/messages": {
        "id": "a",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "fine"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
}
PROVIDERS: dict[str, Callable[..., SdkProvider[Any]]] = {
    "chat completions": OpenAIChatClient,
    "responses": OpenAIResponsesClient,
    "anthropic": AnthropicChatClient,
}


class Answering(BaseHTTPRequestHandler):
    """Answers whole, and keeps connections open, as servers do; in threads, so that it outlives event loops."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps(ANSWERS[self.path]).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(params=PROVIDERS)
def make(request: pytest.FixtureRequest, address: str) -> Callable[..., SdkProvider[Any]]:
    kind = PROVIDERS[request.param]
    return lambda **settings: kind("m", **{"base_url": address, "api_key": "k", "max_retries": 0, **settings})


def test_each_run_of_an_event_loop_gets_its_answers(make: Callable[..., SdkProvider[Any]]) -> None:
    provider = make()

    async def calls() -> list[str]:
        return [(await provider.get_response("hello")).text for _ in range(3)]

    assert [asyncio.run(calls()) for _ in range(4)] == [["fine"] * 3] * 4
    gc.collect()  # what was not closed complains, which is an error in tests


def test_loops_in_several_threads_use_it_at_once(make: Callable[..., SdkProvider[Any]]) -> None:
    provider = make()
    together = threading.Barrier(3)

    async def calls() -> list[str]:
        together.wait(30)
        return [(await provider.get_response("hello")).text for _ in range(5)]

    with ThreadPoolExecutor(3) as threads:
        found = [each.result() for each in [threads.submit(asyncio.run, calls()) for _ in range(3)]]
    assert found == [["fine"] * 5] * 3


def test_a_key_of_the_environment_may_be_gone_by_then(
    make: Callable[..., SdkProvider[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "k")
    provider = make(api_key=None)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name)

    async def call() -> str:
        return (await provider.get_response("hello")).text

    assert [asyncio.run(call()) for _ in range(2)] == ["fine"] * 2


def test_a_provider_that_was_closed_stays_closed(make: Callable[..., SdkProvider[Any]]) -> None:
    provider = make()

    async def close() -> None:
        await provider.get_response("hello")
        await provider.aclose()
        await provider.aclose()
        with pytest.raises((ChatStackError, RuntimeError)):
            await provider.get_response("hello")

    async def call() -> None:
        with pytest.raises((ChatStackError, RuntimeError)):
            await provider.get_response("hello")

    asyncio.run(close())
    asyncio.run(call())


class Client:
    """Tells by which loops it was closed."""

    def __init__(self) -> None:
        self.closed: list[asyncio.AbstractEventLoop] = []

    async def close(self) -> None:
        self.closed.append(asyncio.get_running_loop())


def test_each_loop_closes_its_own_client_at_its_end() -> None:
    made: list[Client] = [Client()]

    def make() -> Client:
        made.append(Client())
        return made[-1]

    clients = PerLoop(made[0], make)

    async def use() -> asyncio.AbstractEventLoop:
        assert clients.current is clients.current is made[-1]
        return asyncio.get_running_loop()

    loops = [asyncio.run(use()) for _ in range(3)]
    assert [client.closed for client in made] == [[loop] for loop in loops]
    assert clients.current is made[0]  # where no loop runs


@pytest.mark.parametrize("ends_generators", [True, False])
def test_a_loop_that_was_closed_is_not_kept(ends_generators: bool) -> None:
    made: list[Client] = []

    def make() -> Client:
        made.append(Client())
        return made[-1]

    clients = PerLoop(make(), make)

    async def use() -> weakref.ref[asyncio.AbstractEventLoop]:
        assert clients.current is made[-1]
        await asyncio.sleep(0)
        return weakref.ref(asyncio.get_running_loop())

    def loop_closed() -> weakref.ref[asyncio.AbstractEventLoop]:
        loop = asyncio.new_event_loop()
        used = loop.run_until_complete(use())
        if ends_generators:
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        return used

    loops = [loop_closed() for _ in range(5)]
    assert [len(each.closed) for each in made] == [1, 1, 1, 1, int(ends_generators)]
    for each in made:
        each.closed.clear()  # they hold the loops
    gc.collect()
    alive = [each() is not None for each in loops]
    assert alive == [False] * 4 + [not ends_generators]  # the last one goes with the next


def test_one_loop_does_not_wait_for_the_client_of_another() -> None:
    is_making, may_go_on = threading.Event(), threading.Event()
    is_slow = iter((True, False))

    def make() -> Client:
        if next(is_slow):
            is_making.set()
            assert may_go_on.wait(30)
        return Client()

    clients = PerLoop(Client(), make)

    async def use() -> Client:
        return clients.current

    asyncio.run(use())
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(asyncio.run, use())
        assert is_making.wait(30)
        quick = threads.submit(asyncio.run, use())
        try:
            assert quick.result(5)
        finally:
            may_go_on.set()
        assert slow.result(30)


def test_connections_of_loops_that_were_closed_are_given_up_quietly(
    make: Callable[..., SdkProvider[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    provider = make()

    async def call() -> str:
        text = (await provider.get_response("hello")).text
        gc.collect()
        await asyncio.sleep(0.01)  # what the SDK does when a client is collected
        return text

    async def close() -> None:
        await provider.aclose()

    def use_loops() -> None:
        for _ in range(3):
            loop = asyncio.new_event_loop()
            assert loop.run_until_complete(call()) == "fine"
            loop.close()
        asyncio.run(close())
        gc.collect()

    with pytest.warns(ResourceWarning, match="unclosed"):  # the caller has left the connections open
        use_loops()
    assert not caplog.records


def test_a_loop_that_closes_no_generators_ends_quietly(make: Callable[..., SdkProvider[Any]]) -> None:
    """As nest_asyncio's loops, which set no hooks for asynchronous generators."""

    async def call(provider: SdkProvider[Any]) -> str:
        sys.set_asyncgen_hooks(None, None)
        return (await provider.get_response("hello")).text

    def use_loop() -> None:
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(call(make())) == "fine"
        loop.close()
        gc.collect()

    with pytest.warns(ResourceWarning, match="unclosed"):  # the caller has left the connections open
        use_loop()


def test_closing_reaches_the_client_of_a_loop_that_runs_elsewhere() -> None:
    first = Client()
    others: list[Client] = []

    def make() -> Client:
        others.append(Client())
        return others[-1]

    clients = PerLoop(first, make)
    used, may_end = threading.Event(), threading.Event()

    async def elsewhere() -> None:
        assert clients.current is first
        used.set()
        await asyncio.to_thread(may_end.wait, 30)
        await asyncio.sleep(0)

    async def here() -> None:
        assert clients.current is others[0]
        await clients.close()
        assert others[0].closed == [asyncio.get_running_loop()]

    thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    thread.start()
    used.wait(30)
    asyncio.run(here())
    may_end.set()
    thread.join()
    assert first.closed


def test_the_callers_own_client_is_the_only_one() -> None:
    clients = PerLoop(Client(), None)

    async def use() -> Client:
        await clients.close()
        return clients.current

    assert asyncio.run(use()) is asyncio.run(use()) is clients.current
    assert clients.current.closed == []
