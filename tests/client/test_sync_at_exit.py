"""Synchronous clients and streams that are open when their process ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from chatstack.testing.provider_server import Delivery, ServerReply
from tests.client.test_sync import server

SDK_STREAM = """
import sys
from chatstack import SyncClient
from chatstack.providers.openai import OpenAIChatClient
client = SyncClient(OpenAIChatClient("m", api_key="k", base_url=sys.argv[1]))
stream = client.get_streaming_response("hello")
print(next(stream).text)
"""

SDK_ITERATOR = """
import sys
from chatstack.client.blocking import Blocking
from chatstack.providers.openai import OpenAIChatClient
client = OpenAIChatClient("m", api_key="k", base_url=sys.argv[1])

async def updates():
    async with client.get_streaming_response("hello") as stream:
        async for update in stream:
            yield update

stream = Blocking().iterate(updates)
print(next(stream).text)
"""

VIEW = """
from chatstack import SyncClient
from chatstack.testing import ScriptedClient
client = SyncClient(ScriptedClient(["one two three"]))

def view():
    with client.get_streaming_response("hello") as stream:
        for update in stream:
            yield update.text

stream = view()
print(next(stream))
"""

LOOKUP = """
import asyncio, atexit, threading
from chatstack import SyncClient
from chatstack.client.fronts import ChatFronts
from chatstack.testing import ScriptedClient

class Looking(ChatFronts):
    def __init__(self):
        self.inner = ScriptedClient(["one"])

    async def send(self, request):
        await asyncio.get_running_loop().getaddrinfo("localhost", 80)
        return await self.inner.send(request)

def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

client = SyncClient(Looking())
print(client.get_response("hello").text)
atexit.register(setattr, threading.Thread, "start", refuse)
"""

HANDLER = """
import atexit, sys

def call():
    for step in (lambda: client.get_response("late").text, lambda: next(stream).text):
        try:
            print(step().strip())
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
    stream.close()
    client.close()

if sys.argv[1] == "before":
    atexit.register(call)
from chatstack import SyncClient
from chatstack.testing import ScriptedClient
if sys.argv[1] == "after":
    atexit.register(call)
client = SyncClient(ScriptedClient(["one two"] * 2))
stream = client.get_streaming_response("hello")
next(stream)
"""
TOO_LATE = (
    "StreamClosedError: the process is exiting, and the event loop of its synchronous clients has ended; exit handlers "
    "run last registered first: register yours after the import of chatstack's SyncClient, or call it before the exit"
)


@pytest.mark.parametrize(("registered", "said"), [("before", [TOO_LATE] * 2), ("after", ["one two", "two"])])
def test_an_exit_handler_that_calls_is_answered_or_told_why_not(registered: str, said: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "default", "-c", HANDLER, registered], capture_output=True, text=True, timeout=300
    )
    assert (ran.stdout.splitlines(), ran.stderr, ran.returncode) == (said, "", 0)


@pytest.mark.parametrize("script", [SDK_STREAM, SDK_ITERATOR, VIEW], ids=["stream", "iterator", "view"])
@pytest.mark.parametrize("ending", ["", "request = [stream]; request.append(request); del stream, request"])
def test_a_script_that_ends_with_an_open_stream_ends_quietly(script: str, ending: str) -> None:
    choice = {"index": 0, "delta": {"content": "one"}, "finish_reason": None}
    chunk = {"id": "1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}

    def answer(request: object) -> Delivery:
        return Delivery(ServerReply.events(chunk, chunk), then="hold")

    with server() as there:
        there.script = answer
        ran = subprocess.run(
            [sys.executable, "-W", "default", "-c", script + ending, there.base_url],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert (ran.stdout.split(), ran.stderr, ran.returncode) == (["one"], "", 0)


def test_a_script_whose_loop_has_used_threads_ends_quietly_where_none_can_start_at_the_exit() -> None:
    ran = subprocess.run([sys.executable, "-c", LOOKUP], capture_output=True, text=True, timeout=300, check=False)
    assert (ran.stdout.split(), ran.stderr, ran.returncode) == (["one"], "", 0)
