"""What servers send that no model reads, and what they should not send."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from raw_servers import LOOK, raw_server

from chatstack import ChatStack, File, Image, Message, Text, ToolCall, ToolResult
from chatstack.testing import ScriptedClient
from chatstack_mcp import McpInvoker, McpServer, McpServerError

DATA = base64.b64encode(b"abc").decode()


def result_of(tools: list[Any], **result: Any) -> ToolResult:
    """The result of one call of a server that lists these tools, and answers so."""

    async def run() -> ToolResult:
        with raw_server() as raw:
            raw.answers = {"list": {"tools": tools}, "call": result}
            async with McpServer(raw.url) as server:
                model = ScriptedClient([Message.assistant("", ToolCall("c1", "look", "{}")), "done"])
                answer = await ChatStack(model).use(McpInvoker, servers=[server]).build().get_response("go")
                return answer.messages[1].results[0]

    return asyncio.run(run())


def resource(kind: str, data: str = DATA) -> Any:
    return {"type": "resource", "resource": {"uri": "file:///a", "mimeType": kind, "blob": data}}


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"type": "image", "data": DATA, "mimeType": "image/jpg"}, Image(data=DATA, media_type="image/jpeg")),
        (resource("IMAGE/PNG; q=1"), Image(data=DATA, media_type="image/png")),
        (resource("application/pdf"), File(data=DATA, media_type="application/pdf", name="file:///a")),
        (resource("text/csv"), "abc"),
        (resource("text/csv", "gA=="), "[file:///a, text/csv, broken data: cannot be shown]"),
        (resource("application/zip"), "[file:///a, application/zip, 3 bytes: cannot be shown]"),
        ({"type": "audio", "data": DATA, "mimeType": "audio/wav"}, "[audio/wav, 3 bytes: cannot be shown]"),
        ({"type": "image", "data": DATA, "mimeType": "image/svg+xml"}, "[image/svg+xml, 3 bytes: cannot be shown]"),
        ({"type": "image", "data": "###", "mimeType": "image/png"}, "[image/png, broken data: cannot be shown]"),
        ({"type": "image", "data": "", "mimeType": "image/png"}, "[image/png, 0 bytes: cannot be shown]"),
    ],
)
def test_media_arrive_as_models_read_them_or_in_words(block: Any, part: Any) -> None:
    alone = result_of([LOOK], content=[block]).output
    assert alone == (part if isinstance(part, str) else (part,))
    picture = {"type": "image", "data": DATA, "mimeType": "image/png"}
    beside = result_of([LOOK], content=[picture, block]).output
    assert beside == (Image(data=DATA, media_type="image/png"), Text(part) if isinstance(part, str) else part)


@pytest.mark.parametrize(
    ("beginning", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\x24\x00\x00\x00WEBP", "image/webp"),
    ],
)
@pytest.mark.parametrize("named", ["image/png", "image/jpeg"])
def test_a_picture_is_of_the_kind_that_it_begins_as(beginning: bytes, kind: str, named: str) -> None:
    """Screenshots often come under another name, and Anthropic refuses each request with such a one."""
    data = base64.b64encode(beginning + b"...").decode()
    found = result_of([LOOK], content=[{"type": "image", "data": data, "mimeType": named}]).output
    assert found == (Image(data=data, media_type=kind),)


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({}, "Tool look has an output schema but did not return structured content"),
        ({"structuredContent": {"a": "no"}}, "'no' is not of type 'integer'"),
        ({"content": [{"type": "hologram"}]}, "validation errors for CallToolResult"),
    ],
)
def test_a_result_that_is_not_what_was_declared_is_an_error_with_its_reason(result: Any, reason: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    given = {"content": [{"type": "text", "text": "seen"}], **result}
    found = result_of([{**LOOK, "outputSchema": schema}], **given)
    assert found.is_error
    assert found.text.startswith("Error: The server's answer cannot be used: ")
    assert reason in found.text
    assert len(found.text) < 500


def test_a_tool_that_is_listed_twice_is_one_tool() -> None:
    assert result_of([LOOK, LOOK], content=[{"type": "text", "text": "seen"}]).output == "seen"


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ({**LOOK, "description": "Another."}, "lists two different tools named 'look'; name the others in only="),
        ({**LOOK, "name": ""}, "one of its tools has no name; name the others in only="),
        ({**LOOK, "name": "lo/ok"}, "two of its tools would be called 'lo_ok'; name one of them in only="),
    ],
)
def test_tools_that_cannot_be_told_apart_are_an_error_that_names_the_server(tool: Any, said: str) -> None:
    with pytest.raises(McpServerError, match=f"McpServer.*127.0.0.1.*{said}"):
        result_of([LOOK, {**LOOK, "name": "lo_ok"}, tool])


def test_parameters_whose_names_anthropic_refuses_have_others_and_reach_the_server_under_their_own() -> None:
    """With one such tool, Anthropic refuses every request."""
    names = ["$top", "@top", "_top", "tags[]", "a.b-c", "x" * 70, ""]
    schema = {"type": "object", "properties": {each: {"title": each} for each in names}, "required": ["$top", "a.b-c"]}
    taken = {
        "_top_1": "$top",
        "_top_2": "@top",
        "_top": "_top",
        "tags__": "tags[]",
        "a.b-c": "a.b-c",
        "x" * 64: "x" * 70,
    }
    taken["_"] = ""

    async def run() -> tuple[Any, dict[str, Any]]:
        with raw_server() as raw:
            raw.answers = {"list": {"tools": [{**LOOK, "inputSchema": schema}]}}
            async with McpServer(raw.url) as server:
                call = ToolCall("c1", "look", json.dumps({**taken, "more": "more"}))
                model = ScriptedClient([Message.assistant("", call), "done"])
                await ChatStack(model).use(McpInvoker, servers=[server]).build().get_response("go")
                (tool,) = await server.tools()
                return json.loads(tool.parameters), raw.arguments

    declared, arguments = asyncio.run(run())
    assert {name: each["title"] for name, each in declared["properties"].items()} == taken
    assert declared["required"] == ["_top_1", "a.b-c"]
    assert arguments == {**{each: each for each in names}, "more": "more"}
