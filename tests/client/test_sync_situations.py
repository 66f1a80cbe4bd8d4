"""Where the synchronous front is used: threads that begin at once, a threaded web server, a notebook's cells."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from socketserver import ThreadingMixIn
from typing import Any, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest

from chatstack import ChatFronts, ChatRequest, ChatStack, ChatStream, ContextWindowGuard, SyncClient
from chatstack.testing import ScriptedClient
from tests.client.test_sync import portal_threads, wait_for_threads

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    wait_for_threads()
    yield
    wait_for_threads()


class Echo(ChatFronts):
    """Answers with the last message, and notes the event loop that it was asked on."""

    def __init__(self) -> None:
        self.loops: set[int] = set()

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.loops.add(id(asyncio.get_running_loop()))
        await asyncio.sleep(0)
        return await ScriptedClient([request.messages[-1].text]).send(request)


def at_once(count: int, work: Callable[[int], T]) -> list[T]:
    """Do it in so many threads, which begin together."""
    start = threading.Barrier(count)

    def begin(number: int) -> T:
        start.wait()
        return work(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(begin, range(count)))


def begun_at_once(echo: Echo) -> None:
    clients = [SyncClient(echo) for _ in range(16)]
    assert at_once(16, lambda number: clients[number].get_response(f"{number}").text) == list(map(str, range(16)))
    at_once(16, lambda number: clients[number].close())


def test_threads_that_begin_at_once_share_one_loop() -> None:
    for _ in range(20):
        echo = Echo()
        begun_at_once(echo)
        assert len(echo.loops) == 1
        wait_for_threads()


def test_threads_that_make_use_and_close_clients_at_any_time_get_their_answers() -> None:
    def work(number: int) -> str:
        said = ""
        for _ in range(20):
            with SyncClient(Echo()) as client:
                said = client.get_response(f"{number}").text
                said += "".join(update.text for update in client.get_streaming_response(f"{number}"))
        return said

    assert at_once(12, work) == [f"{number}" * 2 for number in range(12)]


class Threaded(ThreadingMixIn, WSGIServer):
    daemon_threads = False


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.mark.slow
def test_views_of_a_threaded_server_share_a_client_made_with_the_module() -> None:
    client = ChatStack(Echo()).use(ContextWindowGuard, max_context_tokens=1_000).build_sync()

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        question = environ["PATH_INFO"].strip("/")
        if environ["QUERY_STRING"] == "stream":
            return (update.text.encode() for update in client.get_streaming_response(question))
        return [client.get_response(question, conversation_id=question).text.encode()]

    with make_server("127.0.0.1", 0, app, Threaded, Quiet) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()

        def ask(number: int) -> str:
            mode = "?stream" if number % 2 else ""
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/q{number}{mode}", timeout=60) as answer:
                return str(answer.read().decode())

        assert at_once(24, ask) == [f"q{number}" for number in range(24)]
        assert len(portal_threads()) == 1
        server.shutdown()
        serving.join()
    client.close()


def test_a_cell_that_is_run_again_leaves_no_thread_behind() -> None:
    async def cell() -> str:
        client = ChatStack(ScriptedClient(["from a cell"])).build_sync()  # never closed; the name is bound anew
        for update in client.get_streaming_response("hello"):  # left early
            return update.text
        return ""

    async def notebook() -> None:
        for _ in range(20):
            assert (await cell()) == "from"

    asyncio.run(notebook())
    wait_for_threads()


def test_a_stream_that_one_thread_opens_is_read_and_closed_by_others() -> None:
    with SyncClient(ScriptedClient(["one two three"])) as client, ThreadPoolExecutor(3) as threads:
        stream = client.get_streaming_response("hello")
        with closing(stream):
            words = [threads.submit(next, stream).result().text for _ in range(2)]
        assert words == ["one", " two"]
        assert len(portal_threads()) == 1
