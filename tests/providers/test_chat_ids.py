"""Ids of calls from other servers, to those that do not take every id."""

from __future__ import annotations

import re
from typing import Any

import pytest

from chatstack import ChatOptions, ChatRequest, Image, Message, ToolCall, ToolResult, to_openai_responses
from chatstack.providers.openai.chat_ids import ids_taken, with_ids
from chatstack.providers.openai.chat_wire import messages_to_wire
from chatstack.providers.openai.responses_options import request_to_wire
from chatstack.providers.openai.responses_wire import message_from_wire
from tests.providers.chat_bodies import bodies_of

VLLMS = "chatcmpl-tool-0123456789abcdef0123456789abcdef"
LONG = "call_" + "x" * 1_500
HISTORY = [
    Message.user("go"),
    Message.assistant(ToolCall("call_1", "look", "{}"), ToolCall(VLLMS, "look", "{}"), ToolCall(LONG, "look", "{}")),
    Message.tool("call_1", "one"),
    Message.tool(VLLMS, "two"),
    Message.tool(LONG, "three"),
]


def sent(base_url: str, *messages: Message) -> list[dict[str, Any]]:
    """The messages of a request to that address."""
    found: list[dict[str, Any]] = bodies_of(base_url, lambda model: model.get_response(messages))[0]["messages"]
    return found


def ids(messages: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """The ids of the calls, and those of the results."""
    calls = [call["id"] for each in messages for call in each.get("tool_calls", ())]
    return calls, [each["tool_call_id"] for each in messages if each["role"] == "tool"]


@pytest.mark.parametrize(
    ("base_url", "form"),
    [
        ("https://api.openai.com/v1", r"call_1|[0-9a-f]{9}"),
        ("https://mine.openai.azure.com/openai/v1", r"call_1|[0-9a-f]{9}"),
        ("https://api.mistral.ai/v1", r"[0-9a-f]{9}"),
    ],
)
def test_ids_that_a_server_refuses_are_replaced_in_calls_and_results(base_url: str, form: str) -> None:
    calls, results = ids(sent(base_url, *HISTORY))
    assert calls == results
    assert len(set(calls)) == 3
    assert all(re.fullmatch(form, each) for each in calls)


def test_other_servers_get_the_ids_as_they_came() -> None:
    assert ids(sent("http://127.0.0.1:1/v1", *HISTORY)) == (["call_1", VLLMS, LONG],) * 2


def test_mistral_gets_its_own_ids_as_they_came() -> None:
    own = [Message.assistant(ToolCall("D681PevKs", "look", "{}")), Message.tool("D681PevKs", "one")]
    assert ids(sent("https://api.mistral.ai/v1", *own)) == (["D681PevKs"],) * 2


def test_a_picture_of_a_result_stands_under_the_id_that_is_sent() -> None:
    png = Image.from_bytes(b"png", "image/png")
    wire = sent(
        "https://api.openai.com/v1",
        Message.assistant(ToolCall(VLLMS, "look", "{}")),
        Message("tool", (ToolResult(VLLMS, output=(png,)),)),
    )
    (call_id,), _ = ids(wire)
    assert wire[-1]["content"][0]["text"] == f"Result of look ({call_id}):"


def test_messages_whose_ids_are_taken_stay_the_same_objects() -> None:
    wire = messages_to_wire(HISTORY[:3])
    taken = ids_taken("api.openai.com", is_openais=True)
    assert taken is not None
    kept = with_ids(wire, taken)
    assert [a is b for a, b in zip(kept, wire, strict=True)] == [True, False, True]


@pytest.mark.parametrize(("server", "is_short"), [("api.openai.com", True), ("127.0.0.1", False)])
def test_responses_of_openais_gets_ids_of_64_characters_at_most(server: str, is_short: bool) -> None:
    body: Any = request_to_wire(ChatRequest(tuple(HISTORY), ChatOptions()), model="m", server=server)
    calls = [each["call_id"] for each in body["input"] if each.get("type") == "function_call"]
    results = [each["call_id"] for each in body["input"] if each.get("type") == "function_call_output"]
    assert calls == results
    assert calls[:2] == ["call_1", VLLMS]
    assert (len(calls[2]) <= 64) is is_short


def test_converters_keep_every_id() -> None:
    items: Any = to_openai_responses(HISTORY)
    assert items[-1]["call_id"] == LONG


def answered(*items: dict[str, Any]) -> Message:
    """An answer of a server that gives items ids of its own."""
    return message_from_wire(items)


@pytest.mark.parametrize(("server", "is_kept"), [("api.openai.com", False), ("127.0.0.1", True)])
def test_ids_of_items_that_openai_refuses_are_left_out(server: str, is_kept: bool) -> None:
    said = {"type": "output_text", "text": "well", "annotations": []}
    text = {"type": "message", "role": "assistant", "content": [said]}
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    for item, given in ((text, "chatcmpl-1"), (call, "toolu_01A"), (call, "fc_" + "x" * 62)):
        history = (Message.user("go"), answered({**item, "id": given}), Message.tool("c1", "one"))
        body: Any = request_to_wire(ChatRequest(history, ChatOptions()), model="m", server=server)
        assert body["input"][1] == ({**item, "id": given} if is_kept else item)
    for item, given in ((text, "msg_1"), (call, "fc_1")):
        body = request_to_wire(ChatRequest((answered({**item, "id": given}),), ChatOptions()), server=server)
        assert body["input"][0]["id"] == given
