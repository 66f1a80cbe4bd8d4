"""A conversation read from one wire and sent over another: nothing that only the first one understands goes along."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any, TypeAlias

import pytest

from chatstack import (
    ChatOptions,
    ChatRequest,
    ContextWindowGuard,
    Message,
    ProviderItem,
    Text,
    ToolDeclaration,
    ToolResult,
)
from chatstack.providers.anthropic import wire as anthropic_wire
from chatstack.providers.anthropic.blocks import WIRE as ANTHROPIC
from chatstack.providers.openai import chat_wire, responses_wire
from chatstack.providers.openai.chat_options import tools_from_wire
from chatstack.providers.openai.chat_parts import WIRE as CHAT
from chatstack.providers.openai.responses_options import request_to_wire as responses_request
from chatstack.providers.openai.responses_parts import WIRE as RESPONSES
from chatstack.testing import ScriptedClient
from chatstack.values.requests import DeclaredTool
from tests.context.strictness import refusals

Item: TypeAlias = dict[str, Any]

WIRES = (CHAT, RESPONSES, ANTHROPIC)
READ: dict[str, Callable[[Any], tuple[Message, ...]]] = {
    CHAT: chat_wire.messages_from_wire,
    RESPONSES: responses_wire.messages_from_wire,
    ANTHROPIC: anthropic_wire.messages_from_wire,
}
WRITE: dict[str, Callable[[Sequence[Message]], list[Item]]] = {
    CHAT: chat_wire.messages_to_wire,
    RESPONSES: responses_wire.messages_to_wire,
    ANTHROPIC: anthropic_wire.messages_to_wire,
}
REQUEST: dict[str, Callable[[ChatRequest], Item]] = {
    CHAT: chat_wire.request_to_wire,
    RESPONSES: responses_request,
    ANTHROPIC: anthropic_wire.request_to_wire,
}
PAIRS = pytest.mark.parametrize(("origin", "target"), list(permutations(WIRES, 2)))

CACHED = {"cache_control": {"type": "ephemeral"}}
BREAKPOINT = {"prompt_cache_breakpoint": {"mode": "explicit"}}
PICTURE = "data:image/png;base64,iVBORw0KGgo="
PDF = "application/pdf"
CITED = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 4}
CALL = {"name": "look", "arguments": '{"a":  1}'}
CUSTOM = {"name": "sh", "input": 'echo "hi"'}

CONVERSATIONS: dict[str, list[Item]] = {
    CHAT: [
        {"role": "developer", "content": "be brief", "name": "boss"},
        {
            "role": "user",
            "name": "ann",
            "content": [
                {"type": "text", "text": "look", **BREAKPOINT},
                {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low", "blur": 1}, **BREAKPOINT},
                {"type": "file", "file": {"file_data": f"data:{PDF};base64,JVBERg==", "filename": "a.pdf", "pages": 2}},
            ],
        },
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "I look.", "logprobs": []}],
            "annotations": [CITED],
            "audio": {"id": "audio_1"},
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {**CALL, "parsed": 1}, "extra_content": {"google": {}}},
                {"id": "c2", "type": "custom", "custom": {**CUSTOM, "format": "text"}, "caller": "me"},
            ],
        },
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": [{"type": "text", "text": "seen", **BREAKPOINT}],
            "name": "n",
        },
        {"role": "tool", "tool_call_id": "c2", "content": "hi", "status": "completed"},
        {"role": "assistant", "content": None, "function_call": CALL},
        {"role": "function", "name": "look", "content": "seen", "namespace": "n"},
        {"role": "assistant", "content": "I will not.", "refusal": "no"},
        {"role": "user", "content": "well"},
    ],
    RESPONSES: [
        {"role": "developer", "content": "be brief", "status": "completed"},
        {
            "role": "user",
            "id": "msg_0",
            "content": [
                {"type": "input_text", "text": "look", **BREAKPOINT},
                {"type": "input_image", "image_url": PICTURE, "detail": "low", "blur": 1},
                {
                    "type": "input_file",
                    "file_data": f"data:{PDF};base64,JVBERg==",
                    "filename": "a.pdf",
                    "detail": "high",
                },
            ],
        },
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "phase": "commentary",
            "content": [
                {"type": "output_text", "text": "I ", "annotations": [CITED], "logprobs": [{"token": "I"}]},
                {"type": "output_text", "text": "look.", "annotations": []},
            ],
        },
        {"type": "function_call", "call_id": "c1", **CALL, "id": "fc_1", "status": "completed", "namespace": "n"},
        {"type": "custom_tool_call", "call_id": "c2", **CUSTOM, "id": "ctc_1", "namespace": "n"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "seen", **BREAKPOINT}],
            "status": "completed",
        },
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "hi", "id": "ctco_1"},
        {"role": "assistant", "content": "so", "phase": "final_answer"},
        {"role": "user", "content": "well"},
    ],
    ANTHROPIC: [
        {"role": "system", "content": [{"type": "text", "text": "be brief", **CACHED}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look", **CACHED},
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
                    **CACHED,
                },
                {
                    "type": "document",
                    "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
                    "title": "a.pdf",
                    "citations": {"enabled": True},
                    "context": "c",
                },
                {"type": "document", "source": {"type": "content", "content": "words"}, **CACHED},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look.", "citations": [{"type": "char_location", "cited_text": "c"}]},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"a": 1}, "caller": {"type": "direct"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "content": [{"type": "text", "text": "seen", **CACHED}],
                    **CACHED,
                },
                {"type": "text", "text": "well", **CACHED},
            ],
        },
    ],
}
"""On every wire a conversation with everything that has no field of its own in our values."""

OWN_NAMES: dict[str, set[str]] = {
    CHAT: {
        "refusal", "audio", "extra_content", "custom", "format", "parsed", "caller", "blur", "pages", "namespace",
        "annotations", "logprobs", "prompt_cache_breakpoint", "status", "boss", "ann",
    },
    RESPONSES: {
        "annotations", "logprobs", "message", "status", "phase", "namespace", "prompt_cache_breakpoint", "blur",
        "developer", "msg_0", "msg_1", "fc_1", "ctc_1", "ctco_1", "custom_tool_call", "custom_tool_call_output",
    },
    ANTHROPIC: {"cache_control", "citations", "caller", "context", "char_location"},
}  # fmt: skip
"""Names and values that only that wire brings along."""

BY_ITSELF: dict[str, set[str]] = {CHAT: set(), RESPONSES: {"annotations", "message"}, ANTHROPIC: set()}
"""What a wire writes of its own accord, whatever the conversation: the documented form of an answer's text."""


@pytest.mark.parametrize("wire", WIRES)
def test_over_its_own_wire_a_conversation_goes_out_as_it_came(wire: str) -> None:
    assert WRITE[wire](READ[wire](CONVERSATIONS[wire])) == CONVERSATIONS[wire]


@PAIRS
def test_over_another_wire_no_foreign_field_goes_out(origin: str, target: str) -> None:
    sent = WRITE[target](READ[origin](CONVERSATIONS[origin]))
    assert set(words(CONVERSATIONS[origin])) >= OWN_NAMES[origin] - {"message"}
    assert set(words(sent)) & (OWN_NAMES[origin] - BY_ITSELF[target]) == set()
    assert [text for item in sent for text in words(item) if text == "well"] == ["well"]


@PAIRS
def test_over_another_wire_a_conversation_is_what_it_would_be_without_those_fields(origin: str, target: str) -> None:
    messages = READ[origin](CONVERSATIONS[origin])
    assert WRITE[target](messages) == WRITE[target]([bare(message) for message in messages])


@PAIRS
def test_what_was_put_there_for_each_wire_goes_out_over_that_one_alone(origin: str, target: str) -> None:
    extra = json.dumps({origin: {"theirs": 1}, target: {"ours": 2}})
    sent = WRITE[target]([
        Message.user(Text("hi", extra)),
        Message.assistant(Text("so", extra)),
        Message("tool", (ToolResult("c1", output=(Text("seen", extra),), extra_json=extra),)),
    ])  # fmt: skip
    assert list(words(sent)).count("ours") == 4
    assert "theirs" not in set(words(sent))


def test_calls_of_chat_completions_go_out_over_responses_as_calls_of_functions() -> None:
    sent = WRITE[RESPONSES](READ[CHAT](CONVERSATIONS[CHAT]))
    assert sent[3:7] == [
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"a":  1}'},
        {"type": "function_call", "call_id": "c2", "name": "sh", "arguments": json.dumps('echo "hi"')},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "seen"}],
        },
        {"type": "function_call_output", "call_id": "c2", "output": "hi"},
    ]


def test_calls_of_responses_go_out_over_chat_completions_as_calls_of_functions() -> None:
    sent = WRITE[CHAT](READ[RESPONSES](CONVERSATIONS[RESPONSES]))
    assert sent[2] == {
        "role": "assistant",
        "content": [{"type": "text", "text": "I "}, {"type": "text", "text": "look."}],
        "tool_calls": [
            {"id": "c1", "type": "function", "function": CALL},
            {"id": "c2", "type": "function", "function": {"name": "sh", "arguments": json.dumps('echo "hi"')}},
        ],
    }
    assert sent[3] == {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "seen"}]}


def test_calls_of_both_go_out_over_anthropic_as_uses_of_tools() -> None:
    for origin in (CHAT, RESPONSES):
        sent = WRITE[ANTHROPIC](READ[origin](CONVERSATIONS[origin]))
        assert sent[2]["content"][-2:] == [
            {"type": "tool_use", "id": "c1", "name": "look", "input": {"a": 1}},
            {"type": "tool_use", "id": "c2", "name": "sh", "input": {"INVALID_JSON": json.dumps('echo "hi"')}},
        ]


def test_a_conversation_whose_results_came_late_on_responses_goes_out_over_the_other_wires() -> None:
    """There, anything may stand between a call and its result."""
    items: list[Item] = [
        {"role": "user", "content": "look"},
        {"type": "function_call", "call_id": "c1", **CALL},
        {"type": "computer_call", "call_id": "c2", "id": "i", "action": {"type": "screenshot"}},
        {"role": "user", "content": "hurry"},
        {"type": "computer_call_output", "call_id": "c2", "output": {"type": "computer_screenshot"}},
        {"type": "function_call_output", "call_id": "c1", "output": "seen"},
    ]
    model = ScriptedClient()
    asyncio.run(ContextWindowGuard(model, max_context_tokens=1_000).get_response(READ[RESPONSES](items)))
    sent = model.requests[0].messages
    assert WRITE[RESPONSES](sent) == [*items[:3], items[5], items[3], items[4]]
    assert [each["role"] for each in WRITE[CHAT](sent)] == ["user", "assistant", "tool", "user"]
    assert refusals(sent) == []


def test_a_refusal_that_is_content_goes_out_over_responses_as_an_output_item() -> None:
    refusal = {"type": "refusal", "refusal": "no"}
    messages = READ[CHAT]([{"role": "assistant", "content": [refusal]}])
    assert WRITE[RESPONSES](messages) == [{"type": "message", "role": "assistant", "content": [refusal]}]
    assert WRITE[ANTHROPIC](messages) == []


SCHEMA = {"type": "object", "properties": {}}
TOOLS: dict[str, tuple[DeclaredTool, ...]] = {
    CHAT: tools_from_wire([
        {"type": "function", "function": {"name": "look", "parameters": SCHEMA, "strict": None, "later": 1}, "new": 1}
    ]),
    RESPONSES: (
        ToolDeclaration(
            "look", parameters=json.dumps(SCHEMA), extra_json=json.dumps({RESPONSES: {"new": 1, "later": 1}})
        ),
    ),
    ANTHROPIC: anthropic_wire.request_from_wire({
        "messages": [],
        "tools": [{"type": "custom", "name": "look", "input_schema": SCHEMA, **CACHED, "later": 1, "new": 1}],
    }).options.tools,
}  # fmt: skip
DECLARED: dict[str, Item] = {
    CHAT: {"type": "function", "function": {"name": "look", "parameters": SCHEMA}},
    RESPONSES: {"type": "function", "name": "look", "strict": False, "parameters": SCHEMA},
    ANTHROPIC: {"name": "look", "input_schema": SCHEMA},
}


@PAIRS
def test_tools_are_declared_as_if_they_had_been_made_for_the_wire(origin: str, target: str) -> None:
    request = ChatRequest((), ChatOptions(tools=TOOLS[origin]))
    assert REQUEST[target](request)["tools"] == [DECLARED[target]]
    assert {"later", "new"} <= set(words(REQUEST[origin](request)["tools"]))


@PAIRS
def test_whether_a_tool_is_strict_is_known_on_every_wire(origin: str, target: str) -> None:
    (tool,) = (each for each in TOOLS[origin] if isinstance(each, ToolDeclaration))
    strict = ToolDeclaration(tool.name, tool.description, tool.parameters, True, tool.extra_json)
    (wire,) = REQUEST[target](ChatRequest((), ChatOptions(tools=(strict,))))["tools"]
    assert wire.get("function", wire)["strict"] is True


SEARCH = {
    CHAT: ProviderItem("anthropic", '{"type":"web_search_20250305","name":"web_search"}'),
    RESPONSES: ProviderItem("openai", '{"type":"custom","custom":{"name":"sh"}}'),
    ANTHROPIC: ProviderItem("openai", '{"type":"web_search"}'),
}
"""For each wire a tool that only another one knows."""


@pytest.mark.parametrize("target", WIRES)
@pytest.mark.parametrize("choice", [None, "auto", "required", "look"])
def test_where_no_tool_can_go_out_nothing_is_said_of_tools(target: str, choice: str | None) -> None:
    """An empty list, and a choice among no tools, are refused."""
    options = ChatOptions(tools=(SEARCH[target],), tool_choice=choice, parallel_tool_calls=False)
    said = {"tools", "tool_choice", "parallel_tool_calls"}
    assert not said & REQUEST[target](ChatRequest((Message.user("hi"),), options)).keys()
    with_one = options.but(tools=(*options.tools, *TOOLS[target]))
    assert len(REQUEST[target](ChatRequest((Message.user("hi"),), with_one))["tools"]) == 1
    by_extra = REQUEST[target](ChatRequest((Message.user("hi"),), options.but(extra={"tools": [{"name": "own"}]})))
    assert by_extra["tools"] == [{"name": "own"}]
    assert bool(choice) <= ("tool_choice" in by_extra)


def bare(message: Message) -> Message:
    """The message without what rides along, in it and in its parts."""
    return Message(message.role, tuple(without_extra(part) for part in message.parts))


def without_extra(part: Any) -> Any:
    fields = {name: getattr(part, name) for name in part.__struct_fields__ if name != "extra_json"}
    if isinstance(fields.get("output"), tuple):
        fields["output"] = tuple(without_extra(each) for each in fields["output"])
    return type(part)(**fields)


def words(value: object) -> Iterator[str]:
    """All names and all texts in it."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield str(name)
            yield from words(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from words(each)
    elif isinstance(value, str):
        yield value
