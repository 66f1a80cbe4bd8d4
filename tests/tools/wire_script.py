"""Each provider's wire: answers with reasoning and items in them, played to the official SDK over an HTTP transport."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import openai.types.responses as sdk
from openai.types.responses.response_output_item import ImageGenerationCall, McpCall

from chatstack import ChatClient
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from tests.servers import http_library

Item: TypeAlias = dict[str, Any]
Round: TypeAlias = list[Item]
"""What the model said in one answer: content blocks, output items, or the one message of a chat completion."""


@dataclass(frozen=True)
class Played:
    """One answer of the server's."""

    body: str
    content_type: str = "application/json"
    status: int = 200


class PlayedServer:
    """Plays its answers in order to clients that have its transport; keeps the bodies of the requests, as sent."""

    def __init__(self, *answers: Played) -> None:
        self.answers = answers
        self.bodies: list[Item] = []

    def http_client(self, *, of_openai: bool) -> Any:
        """An HTTP client for an SDK, on no network."""
        http = http_library(of_openai=of_openai)

        def answer(request: Any) -> object:
            self.bodies.append(json.loads(request.content))
            played = self.answers[len(self.bodies) - 1]
            headers = {"content-type": played.content_type}
            return http.Response(played.status, content=played.body.encode(), headers=headers)

        return http.AsyncClient(transport=http.MockTransport(answer))


def events(*each: Mapping[str, object], is_named: bool = True) -> Played:
    """A stream of those events."""
    lines = [(f"event: {event['type']}\n" if is_named else "") + f"data: {json.dumps(event)}\n\n" for event in each]
    return Played("".join(lines) + ("" if is_named else "data: [DONE]\n\n"), "text/event-stream")


def halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


# Anthropic

_USAGE = {"input_tokens": 10, "output_tokens": 10}
_ANSWER: Item = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "usage": _USAGE}


def anthropic_whole(content: Round) -> Played:
    return Played(json.dumps({**_ANSWER, "content": content, "stop_reason": _stop_reason(content)}))


def anthropic_streamed(content: Round) -> Played:
    found: list[Item] = [{"type": "message_start", "message": {**_ANSWER, "content": [], "stop_reason": None}}]
    for index, block in enumerate(content):
        found += anthropic_block(index, block)
    delta = {"stop_reason": _stop_reason(content), "stop_sequence": None}
    found.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 10}})
    return events(*found, {"type": "message_stop"})


def anthropic_block(index: int, block: Item) -> list[Item]:
    """The events that bring one block, its texts in two pieces each."""
    began, deltas = dict(block), list[Item]()
    if block["type"] == "text":
        began["text"] = ""
        deltas += [{"type": "citations_delta", "citation": each} for each in began.pop("citations", ())]
        deltas += [{"type": "text_delta", "text": piece} for piece in halves(block["text"])]
    elif block["type"] == "thinking":
        began |= {"thinking": "", "signature": ""}
        deltas += [{"type": "thinking_delta", "thinking": piece} for piece in halves(block["thinking"]) if piece]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    elif "input" in block:
        began["input"] = {}
        text = json.dumps(block["input"])
        deltas += [{"type": "input_json_delta", "partial_json": piece} for piece in halves(text)]
    return [
        {"type": "content_block_start", "index": index, "content_block": began},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def _stop_reason(content: Round) -> str:
    return "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"


def anthropic_rounds(body: Item) -> list[Round]:
    return [message["content"] for message in body["messages"] if message["role"] == "assistant"]


# OpenAI Responses

_COUNTS = {"input_tokens": 10, "output_tokens": 10, "total_tokens": 20}
_SETTINGS: Item = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": _COUNTS}
_RESPONSE = {"id": "resp_1", "object": "response", "created_at": 1.0, "model": "m", **_SETTINGS}


def responses_whole(items: Round) -> Played:
    return Played(json.dumps({**_RESPONSE, "status": "completed", "output": items}))


def responses_streamed(items: Round, *, is_told_at_the_end: bool = True) -> Played:
    """Item by item, then the whole, where the items may be left out."""
    found: list[Item] = []
    for index, item in enumerate(items):
        at = {"output_index": index, "sequence_number": index}
        found.append({"type": "response.output_item.added", "item": {**item, "status": "in_progress"}, **at})
        found.append({"type": "response.output_item.done", "item": item, **at})
    whole = {**_RESPONSE, "status": "completed", "output": items if is_told_at_the_end else []}
    return events(*found, {"type": "response.completed", "sequence_number": 99, "response": whole})


def responses_rounds(body: Item) -> list[Round]:
    """The model's items, those in a row together."""
    rounds: list[Round] = []
    is_open = False
    for item in body["input"]:
        is_models = item.get("role") != "user" and item.get("type") not in OUTPUTS
        if is_models and not is_open:
            rounds.append([])
        if is_models:
            rounds[-1].append(item)
        is_open = is_models
    return rounds


OUTPUTS = ("function_call_output", "custom_tool_call_output")


# OpenAI chat completions


def chat_whole(message: Round) -> Played:
    choice = {"index": 0, "message": message[0], "finish_reason": _finish_reason(message)}
    return Played(json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}))


def chat_streamed(message: Round) -> Played:
    deltas: list[Item] = [{"role": "assistant"}]
    for name, value in message[0].items():
        if name in ("content", "reasoning_content", "reasoning") and value:
            deltas += [{name: piece} for piece in halves(value)]
        elif name == "reasoning_details":
            deltas += [{name: [each]} for each in value]
        elif name == "tool_calls":
            deltas += [{name: [{**each, "index": index}]} for index, each in enumerate(value)]
    chunks: list[Item] = [{"delta": delta, "finish_reason": None} for delta in deltas]
    chunks.append({"delta": {}, "finish_reason": _finish_reason(message)})
    whole = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return events(*({**whole, "choices": [{"index": 0, **chunk}]} for chunk in chunks), is_named=False)


def _finish_reason(message: Round) -> str:
    return "tool_calls" if message[0].get("tool_calls") else "stop"


def chat_rounds(body: Item) -> list[Round]:
    return [[message] for message in body["messages"] if message["role"] == "assistant"]


# The wires, and on each a turn of three rounds with calls and a last one without

ARGUMENTS = '{"place": "Zürich",  "at": [1.0, 12345678901234567890123]}'


def use(id: str, place: str = "Oslo", **fields: object) -> Item:
    return {"type": "tool_use", "id": id, "name": "look", "input": {"place": place}, **fields}


SEARCH: Item = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}}
FOUND: Item = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "S-enc", "page_age": None}
    ],
}
CITED: Item = {"type": "web_search_result_location", "url": "u", "title": "t", "encrypted_index": "S-index"}
ANTHROPIC_ROUNDS: list[Round] = [
    [
        {"type": "thinking", "thinking": "First this.\n", "signature": "S-1=="},
        {"type": "text", "text": "I look. "},
        {"type": "thinking", "thinking": "Then – that.", "signature": "S-2=="},
        {"type": "redacted_thinking", "data": "S-redacted=="},
        {"type": "text", "text": "Twice."},
        {**use("toolu_1"), "input": json.loads(ARGUMENTS)},
        use("toolu_2", caller={"type": "direct"}),
    ],
    [
        {"type": "thinking", "thinking": "", "signature": "S-3=="},
        SEARCH,
        FOUND,
        {"type": "text", "text": "They say so.", "citations": [{**CITED, "cited_text": "so"}]},
        use("toolu_3"),
    ],
    [
        {"type": "redacted_thinking", "data": "S-redacted-2=="},
        {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "m", "server_name": "s", "input": {"b": 1, "a": 2}},
        {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "is_error": False, "content": []},
        use("toolu_4"),
    ],
    [{"type": "text", "text": "Done."}],
]


def typed(kind: Any, **fields: object) -> Item:
    """An item made by the SDK's own type for it, which checks its fields; those that were not given are left out."""
    item: Item = kind.model_validate(fields, strict=True).to_dict()
    return item


def reasoning(id: str, *summary: str, **fields: object) -> Item:
    texts = [{"type": "summary_text", "text": text} for text in summary]
    encrypted = {"encrypted_content": f"S-{id}=="}
    return typed(sdk.ResponseReasoningItem, id=id, type="reasoning", summary=texts, **encrypted, **fields)


def function_call(number: int, arguments: str = '{"place":  "Oslo"}') -> Item:
    ids = {"id": f"fc_{number}", "call_id": f"call_{number}", "status": "completed"}
    return typed(sdk.ResponseFunctionToolCall, type="function_call", name="look", arguments=arguments, **ids)


_DONE = {"status": "completed"}
_SEARCH = {"type": "search", "query": "q", "sources": [{"type": "url", "url": "u"}]}
_RUN: Item = {"id": "ci_1", "code": "1 + 1", "container_id": "cntr_1", "outputs": None, **_DONE}
_ASKED: Item = {"id": "mcp_1", "name": "m", "server_label": "s", "arguments": '{"b": 1}', "output": "so", "error": None}
_HIT: Item = {"file_id": "f", "filename": "a.txt", "score": 0.5, "text": "so", "attributes": {}}
SERVER_ITEMS: list[Item] = [
    typed(sdk.ResponseFunctionWebSearch, type="web_search_call", id="ws_1", action=_SEARCH, **_DONE),
    typed(sdk.ResponseCodeInterpreterToolCall, type="code_interpreter_call", **_RUN),
    typed(sdk.ResponseCompactionItem, type="compaction", id="cmp_1", encrypted_content="S-compacted=="),
    typed(sdk.ResponseFileSearchToolCall, type="file_search_call", id="fs_1", queries=["q"], results=[_HIT], **_DONE),
    typed(ImageGenerationCall, type="image_generation_call", id="ig_1", result=None, status="failed"),
    typed(McpCall, type="mcp_call", **_ASKED),
]


def _said(text: str) -> Item:
    cited: Item = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 2}
    content = [{"type": "output_text", "text": text, "annotations": [cited]}]
    fields = {"id": "msg_1", "role": "assistant", "phase": "commentary", **_DONE}
    return typed(sdk.ResponseOutputMessage, type="message", content=content, **fields)


RESPONSES_ROUNDS: list[Round] = [
    [reasoning("rs_1", "First this.", "Then – that."), SERVER_ITEMS[0], function_call(1, ARGUMENTS), function_call(2)],
    [
        SERVER_ITEMS[2],
        reasoning("rs_2", content=[{"type": "reasoning_text", "text": "openly"}]),
        SERVER_ITEMS[1],
        _said("So it is."),
        reasoning("rs_3"),
        function_call(3),
    ],
    [
        reasoning("rs_4", status="completed"),
        typed(sdk.ResponseCustomToolCall, id="ctc_1", type="custom_tool_call", call_id="call_4", name="sh", input='"'),
        function_call(5),
    ],
    [_said("Done.")],
]


def _chat_call(number: int, arguments: str = '{"place":  "Oslo"}', **fields: object) -> Item:
    return {"id": f"call_{number}", "type": "function", "function": {"name": "look", "arguments": arguments}, **fields}


CHAT_ROUNDS: list[Round] = [
    [{
        "role": "assistant", "content": None, "reasoning_content": "First – this.",
        "tool_calls": [_chat_call(1, ARGUMENTS), _chat_call(2)],
    }],
    [{
        "role": "assistant", "content": "I look.", "reasoning": "Then that.",
        "reasoning_details": [
            {"type": "reasoning.text", "text": "Then that.", "signature": "S-r==", "format": "f", "index": 0},
            {"type": "reasoning.encrypted", "data": "S-d==", "id": "r", "index": 1},
        ],
        "tool_calls": [_chat_call(3)],
    }],
    [{
        "role": "assistant", "content": None,
        "tool_calls": [_chat_call(4, extra_content={"google": {"thought_signature": "S-g=="}}), _chat_call(5)],
    }],
    [{"role": "assistant", "content": "Done."}],
]  # fmt: skip


@dataclass(frozen=True)
class Wire:
    """One provider's wire. ``rounds`` reads from a request's body what the model is said to have said."""

    name: str
    connected: Callable[[Any], ChatClient]
    whole: Callable[[Round], Played]
    streamed: Callable[[Round], Played]
    rounds: Callable[[Item], list[Round]]
    turn: Sequence[Round]

    def plays(self, rounds: Iterable[Round], *, stream: bool) -> list[Played]:
        return [(self.streamed if stream else self.whole)(each) for each in rounds]

    def client(self, server: PlayedServer) -> ChatClient:
        return self.connected(server.http_client(of_openai=self is not ANTHROPIC))


ANTHROPIC = Wire(
    "anthropic",
    lambda http: AnthropicChatClient("claude", api_key="none", max_retries=0, http_client=http),
    anthropic_whole, anthropic_streamed, anthropic_rounds, ANTHROPIC_ROUNDS,
)  # fmt: skip
RESPONSES = Wire(
    "responses",
    lambda http: OpenAIResponsesClient("gpt", api_key="none", max_retries=0, http_client=http),
    responses_whole, responses_streamed, responses_rounds, RESPONSES_ROUNDS,
)  # fmt: skip
CHAT = Wire(
    "chat",
    lambda http: OpenAIChatClient("gpt", api_key="none", max_retries=0, http_client=http),
    chat_whole, chat_streamed, chat_rounds, CHAT_ROUNDS,
)  # fmt: skip
WIRES = (ANTHROPIC, RESPONSES, CHAT)
