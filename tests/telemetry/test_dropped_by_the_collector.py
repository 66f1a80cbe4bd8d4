"""Streams that only the collector finds, wherever it runs; and what a forked child does with progress."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap

import pytest

from chatstack import ChatStack, ModelTracer, ProgressReporter, WiringError
from chatstack.telemetry.feed import ProgressFeed
from chatstack.testing import ScriptedClient, TelemetryCapture

PREAMBLE = """
import asyncio, random, os, sys
from chatstack import ChatStack, ProgressReporter
from chatstack.testing import ScriptedClient
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    code = PREAMBLE + textwrap.dedent(script)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_streams_left_in_cycles_never_harm_the_process() -> None:
    """The collector may run inside the setting of a context variable; to set another one in there kills Python 3.11."""
    done = run("""
        client = ChatStack(ScriptedClient(["one two"])).use(ProgressReporter, on_progress=lambda event: None).build()

        async def leaves() -> None:
            stream = client.get_streaming_response("hi")
            try:
                async for _ in stream:
                    raise ValueError("closed")
            except ValueError as error:
                kept, junk = error, [[] for _ in range(random.randrange(40))]
                junk.append(junk)

        async def main() -> None:
            for _ in range(12_000):
                await leaves()
                await client.get_response("x")

        random.seed(7)
        asyncio.run(main())
        print("survived")
    """)
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_delivers_progress_of_its_own() -> None:
    done = run("""
        heard = []
        client = ChatStack(ScriptedClient()).use(ProgressReporter, on_progress=lambda e: heard.append(e.kind)).build()
        asyncio.run(client.get_response("in the parent"))  # its delivering thread lives on for a while
        if os.fork() == 0:
            heard.clear()

            async def child() -> None:
                async with client:
                    await client.get_response("in the child")

            asyncio.run(child())
            os.write(1, " ".join(heard).encode())
            os._exit(0)
        os.wait()
    """)
    assert done.stdout == "turn_started model_call_started model_call_ended turn_ended", done.stderr


def test_a_built_client_as_a_provider_is_traced_once() -> None:
    capture = TelemetryCapture()
    inner = ChatStack(ScriptedClient(["fine"])).build(capture.resolve)
    outer = ChatStack(inner).use(ProgressReporter).build(capture.resolve)
    asyncio.run(outer.get_response("hello"))
    assert capture.tree() == [("invoke_agent chat", [("chat script", [])])]
    assert sum(point.count for point in capture.metric("gen_ai.client.operation.duration")) == 1


@pytest.mark.parametrize("given", ["", 5, ["c-42"]])
def test_a_feed_refuses_what_is_no_conversation(given: object) -> None:
    with pytest.raises(WiringError, match="conversation_id="):
        ProgressFeed().events(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "named"),
    [({"agent_name": None}, "agent_name"), ({"feed": "x"}, "feed"), ({"on_progress": lambda: (yield)}, "on_progress")],
)
def test_a_reporter_refuses_what_cannot_work(options: dict[str, object], named: str) -> None:
    with pytest.raises(WiringError, match=f"ProgressReporter: {named}="):
        ProgressReporter(ScriptedClient(), **options)  # type: ignore[arg-type]


def test_a_tracer_refuses_an_unknown_way_with_others() -> None:
    with pytest.raises(WiringError, match="nested='quietly' must be 'suppress', 'keep' or 'defer'"):
        ModelTracer(ScriptedClient(), nested="quietly")  # type: ignore[arg-type]
