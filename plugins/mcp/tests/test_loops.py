"""One server, several event loops: scripts that run one after the other, and synchronous clients."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mcp import StdioServerParameters

from chatstack import ChatStack, Message, SyncClient, ToolCall
from chatstack.testing import ScriptedClient
from chatstack_mcp import McpInvoker, McpServer, McpServerError

RAW = str(Path(__file__).with_name("raw_servers.py"))


def server_with(note: Path) -> McpServer:
    """A server that leaves a note when it ends."""
    note.touch()
    return McpServer(StdioServerParameters(command=sys.executable, args=[RAW, str(note)]))


def over(server: McpServer) -> ChatStack:
    answers = [each for at in range(3) for each in (Message.assistant("", ToolCall(f"c{at}", "look", "{}")), "done")]
    return ChatStack(ScriptedClient(answers)).use(McpInvoker, servers=[server])


def seen_by(client: SyncClient) -> str:
    return client.get_response("go").messages[1].results[0].text


def test_each_event_loop_after_the_other_gets_a_connection_of_its_own(tmp_path: Path) -> None:
    server = server_with(tmp_path / "note")
    client = over(server).build()
    for _ in range(3):
        answer = asyncio.run(client.get_response("go"))
        assert answer.messages[1].results[0].text == "seen"
    asyncio.run(server.aclose())
    with pytest.raises(McpServerError, match="was closed"):
        asyncio.run(server.tools())


def test_two_event_loops_at_once_are_told_apart(tmp_path: Path) -> None:
    server = server_with(tmp_path / "note")
    with over(server).build_sync() as client:
        assert seen_by(client) == "seen"
        with pytest.raises(McpServerError, match=r"python.*in use on another event loop; make an McpServer for each"):
            asyncio.run(server.tools())
        assert seen_by(client) == "seen"


def test_a_server_under_a_synchronous_client_ends_with_it(tmp_path: Path) -> None:
    server = server_with(tmp_path / "note")
    with over(server).build_sync() as client:
        assert seen_by(client) == "seen"
        assert (tmp_path / "note").read_text() == ""
    assert (tmp_path / "note").read_text() == "ended"
    asyncio.run(server.aclose())


def test_a_server_under_a_synchronous_client_can_be_closed_before_it(tmp_path: Path) -> None:
    server = server_with(tmp_path / "note")
    with over(server).build_sync() as client:
        assert seen_by(client) == "seen"
        asyncio.run(server.aclose())
        assert (tmp_path / "note").read_text() == "ended"
        with pytest.raises(McpServerError, match="was closed"):
            client.get_response("go")


def test_an_event_loop_that_only_waits_keeps_its_connection(tmp_path: Path) -> None:
    server, first = server_with(tmp_path / "note"), asyncio.new_event_loop()
    try:
        first.run_until_complete(server.tools())
        with pytest.raises(McpServerError, match="which is not running; close it there"):
            asyncio.run(server.aclose())
        first.run_until_complete(server.aclose())
    finally:
        first.close()
    assert (tmp_path / "note").read_text() == "ended"


FORKS = """
import os, sys, warnings
from mcp import StdioServerParameters
from test_loops import over, seen_by
from chatstack_mcp import McpServer

warnings.simplefilter("ignore")  # of forking with threads, which is what is tried here
server = McpServer(StdioServerParameters(command=sys.executable, args=sys.argv[1:]))
client = over(server).build_sync()
print("parent", seen_by(client), flush=True)
if os.fork() == 0:
    with client:
        print("child", seen_by(client), flush=True)
    os._exit(0)
os.wait()
print("parent", seen_by(client), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_connects_anew_and_leaves_the_parents_connection_alone(tmp_path: Path) -> None:
    (note := tmp_path / "note").touch()
    done = subprocess.run(
        [sys.executable, "-c", FORKS, RAW, str(note)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.splitlines() == ["parent seen", "child seen", "parent seen"], done.stderr
