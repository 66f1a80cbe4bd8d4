"""Real servers, in processes of their own, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters
from raw_servers import raw_server

from chatstack import ChatStack, FunctionInvoker, Image, Message, Text, ToolCall, ToolContext, ToolResult, WiringError
from chatstack.testing import ScriptedClient
from chatstack_mcp import McpInvoker, McpServer, McpServerError
from chatstack_mcp.errors import is_lost, was_not_run

SERVER = str(Path(__file__).with_name("demo_server.py"))
RAW = str(Path(__file__).with_name("raw_servers.py"))
STDIO = StdioServerParameters(command=sys.executable, args=[SERVER, "stdio"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def over_http(port: int, *options: str) -> Iterator[str]:
    command = [sys.executable, SERVER, "streamable-http", str(port), *options]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as running:
        try:
            for _ in range(1_200):
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    time.sleep(0.05)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            running.kill()


@pytest.fixture(params=["stdio", "http", "http, as before 2026"])
def where(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "stdio":
        yield STDIO
        return
    with over_http(free_port()) as url:
        yield url if request.param == "http" else lambda: Client(url, mode="legacy")


def calling(*calls: tuple[str, str]) -> ScriptedClient:
    """A model that makes these calls, one after the other, and then says that it is done."""
    steps = [Message.assistant("", ToolCall(f"c{at}", name, text)) for at, (name, text) in enumerate(calls)]
    return ScriptedClient([*steps, "done"])


async def results_of(model: ScriptedClient, servers: Sequence[McpServer], **options: Any) -> list[ToolResult]:
    client = ChatStack(model).use(McpInvoker, servers=servers, **options).build()
    answer = await client.get_response("go")
    assert answer.text == "done"
    return [result for message in answer.messages for result in message.results]


async def becomes(condition: Callable[[], bool], hundredths: int = 6_000) -> None:
    for _ in range(hundredths):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never did")


def test_its_tools_are_declared_with_their_schemas_in_one_order(where: Any) -> None:
    async def run() -> None:
        model = calling()
        async with McpServer(where, prefix="demo_") as server:
            await results_of(model, [server])
        declared = model.requests[0].options.tools
        names = [each.name for each in declared]
        assert names == sorted(names)
        assert {"demo_add", "demo_refuse", "demo_die_once_safely"} <= set(names)
        add = next(each for each in declared if each.name == "demo_add")
        assert "Add two numbers" in add.description
        assert '"a"' in add.parameters
        assert '"integer"' in add.parameters

    asyncio.run(run())


def test_calls_are_answered_refused_and_in_parts(where: Any) -> None:
    async def run() -> None:
        model = calling(("add", '{"a": 1, "b": 2}'), ("add", '{"a": "x"}'), ("refuse", "{}"), ("picture", "{}"))
        async with McpServer(where) as server:
            summed, misfit, refused, picture = await results_of(model, [server], max_consecutive_failures=9)
        assert (summed.output, summed.is_error) == ("3", False)
        assert misfit.is_error
        assert "valid integer" in misfit.text
        assert refused.is_error
        assert "refuse" in refused.text
        assert isinstance(picture.output, tuple)
        assert picture.output[0] == Text("one pixel")
        assert picture.output[1] == Image.from_bytes(b"png", "image/png")

    asyncio.run(run())


def test_nothing_is_connected_to_before_the_first_request() -> None:
    made: list[int] = []

    def client() -> Client:
        made.append(1)
        return Client(STDIO)

    async def run() -> None:
        async with McpServer(client) as server:
            stack = ChatStack(ScriptedClient(["ok", "ok"])).use(McpInvoker, servers=[server]).build()
            assert made == []
            await asyncio.gather(stack.get_response("a"), stack.get_response("b"))
            assert made == [1]

    asyncio.run(run())


def test_own_tools_stand_beside_them_and_names_must_differ() -> None:
    def add(a: int) -> str:
        """My own."""
        return f"own {a}"

    async def run() -> None:
        async with McpServer(STDIO, only=["add"], prefix="far_") as server:
            model = calling(("add", '{"a": 1}'), ("far_add", '{"a": 1, "b": 1}'))
            assert [each.output for each in await results_of(model, [server], tools=[add])] == ["own 1", "2"]
            assert [each.name for each in model.requests[0].options.tools] == ["add", "far_add"]
        async with McpServer(STDIO, only=["add"]) as server:
            with pytest.raises(WiringError, match="McpInvoker: two tools are called 'add'; give a server a prefix"):
                await results_of(calling(), [server], tools=[add])

    asyncio.run(run())


def test_a_call_under_way_when_the_server_dies_is_told_and_the_next_one_reaches_a_new_one(tmp_path: Path) -> None:
    note = f'{{"note": "{tmp_path / "note"}"}}'

    async def run() -> None:
        model = calling(("die_once", note), ("add", '{"a": 1, "b": 2}'), ("die_once", note))
        async with McpServer(STDIO) as server:
            lost, after, again = await results_of(model, [server])
        assert lost.is_error
        assert "not known whether the tool has run" in lost.text
        assert (after.output, again.output) == ("3", "alive again")

    asyncio.run(run())


@pytest.mark.parametrize("trust_hints", [False, True])
def test_a_call_that_may_be_repeated_is_made_once_more_if_the_hint_is_trusted(
    tmp_path: Path, trust_hints: bool
) -> None:
    async def run() -> ToolResult:
        model = calling(("die_once_safely", f'{{"note": "{tmp_path / "note"}"}}'))
        async with McpServer(STDIO, trust_hints=trust_hints) as server:
            (result,) = await results_of(model, [server])
            return result

    result = asyncio.run(run())
    assert result.is_error is not trust_hints
    assert result.output == "alive again" if trust_hints else "not known" in result.text


def test_an_error_of_the_server_with_the_code_of_a_lost_connection_loses_nothing(where: Any) -> None:
    made: list[int] = []

    def client() -> Client:
        made.append(1)
        return where() if callable(where) else Client(where)

    async def run() -> None:
        async with McpServer(client, trust_hints=True) as server:
            model = calling(("ration", '{"note": "a"}'), ("add", '{"a": 1, "b": 2}'))
            refused, summed = await results_of(model, [server])
        assert refused.text == "Error: The server refused the call: used up, asked 1 times"
        assert (summed.output, made) == ("3", [1])

    asyncio.run(run())


def test_a_listing_that_the_server_answers_with_the_code_of_a_lost_connection_is_its_error() -> None:
    async def run() -> None:
        with raw_server() as raw:
            raw.answers = {"list": {"error": {"code": -32000, "message": "overloaded"}}}
            async with McpServer(raw.url) as server:
                with pytest.raises(McpServerError, match="its tools cannot be listed: overloaded"):
                    await server.tools()
            assert len(raw.sessions) == 1

    asyncio.run(run())


@pytest.mark.parametrize("stream", [b"", b"id: 1\nretry: 1\ndata:\n\n", b"data: " + b"-" * 2_000_000])
def test_an_answer_that_ends_before_it_has_come_is_a_lost_connection(stream: bytes) -> None:
    async def run() -> None:
        with raw_server() as raw:
            async with McpServer(raw.url) as server:
                await server.tools()
                raw.stream = stream
                lost, after = await results_of(calling(("look", "{}"), ("look", "{}")), [server])
            assert "not known whether the tool has run" in lost.text
            assert (after.output, len(raw.sessions)) == ("seen", 2)

    asyncio.run(run())


def test_a_server_that_was_restarted_over_http_is_found_again() -> None:
    async def run() -> None:
        port = free_port()
        with over_http(port) as url:
            server = McpServer(url)
            assert (await results_of(calling(("add", '{"a": 1, "b": 2}')), [server]))[0].output == "3"
            held = await server.tools()
        gone = calling(("add", '{"a": 1, "b": 2}'))
        stack = ChatStack(gone).use(FunctionInvoker, tools=held).build()
        (result,) = [each for message in (await stack.get_response("go")).messages for each in message.results]
        assert result.is_error
        with pytest.raises(McpServerError, match="cannot be reached"):
            await results_of(calling(), [server])
        with over_http(port):
            assert (await results_of(calling(("add", '{"a": 1, "b": 3}')), [server]))[0].output == "4"
            await server.aclose()

    asyncio.run(run())


@pytest.mark.parametrize(
    "not_found",
    [
        None,
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "Session not found"}},
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "Session not found"}},
    ],
)
def test_a_server_that_has_forgotten_the_session_gets_the_call_over_a_new_one(not_found: Any) -> None:
    async def run() -> None:
        with raw_server() as raw:
            raw.not_found = not_found
            async with McpServer(raw.url) as server:
                for _ in range(3):
                    raw.sessions[:] = ["other"] * (len(raw.sessions) + 1)  # restarted, or expired
                    assert [each.output for each in await results_of(calling(("look", "{}")), [server])] == ["seen"]
                    server._changed()
            assert raw.calls == 3

    asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MCPError(-32600, "Session terminated"), True),
        (MCPError(-32001, "Session not found"), True),
        (MCPError(-32000, "Bad Request: No valid session ID provided"), True),
        (MCPError(-32000, "Bad Request: Server not initialized"), True),
        (MCPError(-32000, "Session not found or expired"), True),
        (MCPError(-32000, "Log in first: your session has expired"), False),
        (MCPError(-32000, "The camera was not initialized"), False),
        (MCPError(-32001, "Order placed; the checkout session has expired"), False),
        (MCPError(-32602, "Browser session not found: b-1"), False),
    ],
)
def test_only_the_words_of_a_server_that_knows_no_session_tell_of_one_that_is_lost(
    error: MCPError, is_one: bool
) -> None:
    assert (is_lost(error), was_not_run(error)) == (is_one, is_one)


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MCPError(-32000, "Connection closed"), True),
        (MCPError(-32000, "Invalid session"), True),
        (MCPError(-32602, "Invalid session ID"), False),
        (MCPError(-32603, "Connection closed"), False),
        (MCPError(-32000, "Connection closed by the printer: no paper"), False),
    ],
)
def test_the_words_of_a_lost_connection_count_with_its_code_and_do_not_tell_whether_the_call_has_run(
    error: MCPError, is_one: bool
) -> None:
    assert (is_lost(error), was_not_run(error)) == (is_one, False)


def test_a_server_that_never_knows_the_session_is_asked_twice() -> None:
    class Forgetful(list[str]):
        def __contains__(self, session: object) -> bool:
            return False

    async def run() -> None:
        with raw_server() as raw:
            async with McpServer(raw.url) as server:
                held = await server.tools()
                raw.sessions = Forgetful(raw.sessions)
                stack = ChatStack(calling(("look", "{}"))).use(FunctionInvoker, tools=held).build()
                answer = await stack.get_response("go")
                with pytest.raises(McpServerError, match="its tools cannot be listed: Session terminated"):
                    await server.tools()
        assert "refused the call: Session terminated" in answer.messages[1].results[0].text
        assert len(raw.sessions) == 4
        assert raw.calls == 0

    asyncio.run(run())


def test_a_process_that_dies_while_it_lists_its_tools_is_started_anew(tmp_path: Path) -> None:
    command = StdioServerParameters(command=sys.executable, args=[RAW, str(tmp_path / "note")])

    async def run() -> None:
        async with McpServer(command) as server:
            assert await names_of(server) == {"look"}

    asyncio.run(run())


def test_a_call_that_takes_too_long_is_cancelled_at_the_server(where: Any, tmp_path: Path) -> None:
    note = tmp_path / "note"

    async def run() -> None:
        async with McpServer(where, timeout_seconds=0.5) as server:
            await server.tools()
            (late,) = await results_of(calling(("sleep", f'{{"seconds": 100, "note": "{note}"}}')), [server])
            assert late.is_error
            await becomes(note.exists)
            assert (await results_of(calling(("add", '{"a": 1, "b": 2}')), [server]))[0].output == "3"

    asyncio.run(run())


def test_a_caller_that_is_cancelled_leaves_the_connection_usable(tmp_path: Path) -> None:
    async def run() -> None:
        async with McpServer(STDIO) as server:
            await server.tools()
            call = ("sleep", f'{{"seconds": 100, "note": "{tmp_path / "note"}"}}')
            turn = asyncio.create_task(results_of(calling(call), [server]))
            await asyncio.sleep(0.3)
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn
            assert (await results_of(calling(("add", '{"a": 1, "b": 2}')), [server]))[0].output == "3"

    asyncio.run(run())


async def names_of(server: McpServer) -> set[str]:
    return {each.name for each in await server.tools()}


def test_tools_that_the_server_adds_are_declared_from_then_on(where: Any) -> None:
    async def run() -> None:
        async with McpServer(where) as server:
            for _ in range(60):  # before 2026 nobody knows when the server has begun to tell
                await results_of(calling(("grow", "{}")), [server])
                with suppress(AssertionError):
                    await becomes(lambda: server._listed is None, 100 if callable(where) else 6_000)
                    break
            assert (await results_of(calling(("a_new_one", "{}")), [server]))[0].output == "new"

    asyncio.run(run())


def test_a_change_of_tools_is_heard_while_they_are_kept() -> None:
    async def run() -> None:
        with over_http(free_port()) as url:
            async with McpServer(url) as server:
                await server.tools()
                await becomes(lambda: server._changes == 2)  # connected, and listening
                await results_of(calling(("grow", "{}")), [server])
                await becomes(lambda: server._changes > 2)
                assert "a_new_one" in await names_of(server)

    asyncio.run(run())


def test_a_change_told_during_a_listing_is_not_lost() -> None:
    async def run() -> None:
        async with McpServer(STDIO) as server:
            listing = server._list

            async def overtaken(client: Client) -> Any:
                listed = await listing(client)
                server._changed()
                return listed

            server._list = overtaken  # type: ignore[method-assign]
            assert await server.tools()
            assert server._listed is None

    asyncio.run(run())


def test_a_server_that_came_back_with_other_tools_is_heard_of() -> None:
    async def run() -> None:
        port = free_port()
        async with McpServer(f"http://127.0.0.1:{port}/mcp") as server:
            with over_http(port):
                assert "a_new_one" not in await names_of(server)
                await becomes(lambda: server._changes == 2)
                await server.tools()
            with over_http(port, "grown"):
                await becomes(lambda: server._changes > 2)
                assert "a_new_one" in await names_of(server)

    asyncio.run(run())


def test_approval_is_asked_for_each_call() -> None:
    asked: list[str] = []

    def approve(call: ToolCall, context: ToolContext) -> bool | str:
        asked.append(call.name)
        return call.name == "add" or "Not without the owner."

    async def run() -> None:
        async with McpServer(STDIO) as server:
            model = calling(("add", '{"a": 1, "b": 2}'), ("grow", "{}"))
            added, refused = await results_of(model, [server], approve=approve)
        assert asked == ["add", "grow"]
        assert (added.is_error, refused.is_error, refused.text) == (False, True, "Error: Not without the owner.")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: McpServer(StdioServerParameters(command="/nowhere/at-all", args=["secret"])), "No such file"),
        (lambda: McpServer(f"http://me:secret@127.0.0.1:{free_port()}/mcp?key=secret"), "cannot be reached"),
        (lambda: McpServer(StdioServerParameters(command=sys.executable, args=["-c", "1"])), "cannot be reached"),
        (
            lambda: McpServer(
                StdioServerParameters(command=sys.executable, args=["-c", "import time; time.sleep(99)"]),
                connect_seconds=0.5,
            ),
            "no answer within 0.5 s",
        ),
        (lambda: McpServer(STDIO, only=["ad"]), "only='ad' is not among its tools: add,"),
    ],
)
def test_a_server_that_cannot_be_used_is_an_error_that_names_it(make: Callable[[], McpServer], said: str) -> None:
    async def run() -> None:
        async with make() as server:
            await results_of(calling(), [server])

    with pytest.raises(McpServerError, match=said) as caught:
        asyncio.run(run())
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"server": 5},
            "McpServer: server=int must be a URL, StdioServerParameters, or a function that makes a Client",
        ),
        ({"prefix": 5}, "McpServer: prefix=5 must be text"),
        ({"only": 5}, "McpServer: only=5 must be a"),
        ({"timeout_seconds": "30"}, "McpServer: timeout_seconds='30' must be a number greater than 0 or None"),
        ({"connect_seconds": 0}, "McpServer: connect_seconds=0 must be a number greater than 0"),
        ({"trust_hints": "false"}, "McpServer: trust_hints='false' must be True or False"),
    ],
)
def test_an_option_of_the_wrong_type_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(WiringError) as caught:
        McpServer(**{"server": STDIO, **options})
    assert str(caught.value).startswith(said)


def test_a_loop_around_no_client_is_told_what_to_write() -> None:
    with pytest.raises(WiringError, match="McpInvoker: inner is of type int, and no chat client"):
        McpInvoker(5)  # type: ignore[arg-type]


def test_one_that_was_closed_is_not_opened_again() -> None:
    async def run() -> None:
        server = McpServer(STDIO)
        await server.aclose()
        await server.aclose()
        await server.tools()

    with pytest.raises(McpServerError, match="was closed"):
        asyncio.run(run())


def test_a_thousand_calls_at_once_get_their_own_answers() -> None:
    async def one(server: McpServer, number: int) -> None:
        (result,) = await results_of(calling(("add", f'{{"a": {number}, "b": 0}}')), [server])
        assert result.output == str(number)

    async def run() -> None:
        async with McpServer(STDIO, timeout_seconds=None) as server:
            await asyncio.gather(*[one(server, number) for number in range(1_000)])

    asyncio.run(run())


def test_nothing_is_left_when_it_is_closed() -> None:
    async def run() -> None:
        async with McpServer(STDIO) as server:
            await server.tools()
        assert [each for each in asyncio.all_tasks() if each is not asyncio.current_task()] == []

    asyncio.run(run())


def test_servers_that_are_none_are_refused_when_the_stack_is_built() -> None:
    server = McpServer(STDIO)
    for servers, told in (
        (server, r"not McpServer; write servers=\[server\]"),
        ([STDIO], r"not StdioServerParameters; write servers=\[McpServer\(\.\.\.\)\]"),
        ("notes", "not str"),
        (None, "not NoneType"),
    ):
        wrong: Any = servers
        with pytest.raises(WiringError, match=f"^McpInvoker: servers must be .*{told}") as caught:
            ChatStack(ScriptedClient()).use(McpInvoker, servers=wrong).build()
        assert caught.value.parameter == "servers"
    ChatStack(ScriptedClient()).use(McpInvoker, servers=()).build()


def test_a_server_that_cannot_be_one_is_refused_where_it_is_made() -> None:
    with pytest.raises(WiringError, match="is no http or https address; a command is StdioServerParameters"):
        McpServer("python my_server.py")
    with pytest.raises(WiringError, match=r"only='search' must be a list of names; write only=\['search'\]"):
        McpServer(STDIO, only="search")
