from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types.responses import (
    Response,
    ResponseCustomToolCall,
    ResponseFunctionToolCall,
    ResponseFunctionWebSearch,
    ResponseOutputMessage,
    ResponseOutputRefusal,
    ResponseOutputText,
    ResponseReasoningItem,
)

from chatstack import (
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ContextOverflowError,
    File,
    Image,
    InputError,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from chatstack.errors import AuthenticationError, BrokenStreamError, ProviderError, RateLimitError, ServerError
from chatstack.providers.openai import OpenAIResponsesClient
from chatstack.providers.openai.chat_wire import messages_to_wire as chat_messages_to_wire
from chatstack.providers.openai.responses_options import request_to_wire
from chatstack.providers.openai.responses_wire import (
    message_from_wire,
    messages_from_wire,
    messages_to_wire,
    with_server,
)
from chatstack.providers.openai.usages import responses_usage
from chatstack.values.parts import ProviderItem
from chatstack.values.requests import DeclaredTool, OutputSchema, ToolDeclaration
from chatstack.values.responses import ChatUpdate
from tests.servers import MockServer, answering_with, mock_server

KEY = "sk-test-0123456789"
WEATHER = ToolDeclaration("get_weather", "the weather", '{"type":"object","properties":{"city":{"type":"string"}}}')

OUTPUT = [
    ResponseReasoningItem.model_validate(
        {
            "id": "rs_1",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "first"}, {"type": "summary_text", "text": "then"}],
            "encrypted_content": "gAAA",
        }
    ),
    ResponseFunctionWebSearch.model_validate(
        {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}
    ),
    ResponseOutputMessage(
        id="msg_1",
        type="message",
        role="assistant",
        status="completed",
        content=[
            ResponseOutputText(type="output_text", text="It is ", annotations=[]),
            ResponseOutputText.model_validate(
                {
                    "type": "output_text",
                    "text": "hot.",
                    "annotations": [
                        {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 4}
                    ],
                }
            ),
        ],
    ),
    ResponseFunctionToolCall(
        id="fc_1", type="function_call", call_id="c1", name="look", arguments='{"a":  1}', status="completed"
    ),
    ResponseCustomToolCall(id="ctc_1", type="custom_tool_call", call_id="c2", name="sh", input='echo "hi"'),
]
ITEMS: list[dict[str, Any]] = [item.to_dict() for item in OUTPUT]
USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 8},
    "output_tokens": 50,
    "output_tokens_details": {"reasoning_tokens": 32},
    "total_tokens": 150,
}


def response_of(output: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    whole = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1.0,
        "model": "m",
        "status": "completed",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": USAGE,
        **fields,
    }
    return Response.model_validate(whole).to_dict(mode="json")


@pytest.fixture(scope="module")
def server() -> Iterator[MockServer]:
    with mock_server(context_window=2000) as running:
        yield running


def client_of(server: MockServer, **options: Any) -> OpenAIResponsesClient:
    options = {"max_retries": 0, "stall_seconds": 20, **options}
    return OpenAIResponsesClient("gpt-4o", api_key=KEY, base_url=server.openai_url, **options)


def ask(client: OpenAIResponsesClient, text: str = "hello", *, stream: bool = False, **options: Any) -> ChatResponse:
    async def asked() -> ChatResponse:
        async with client:
            request = ChatRequest((Message.user(text),), ChatOptions(**options), None, stream)
            return await (await client.send(request)).response()

    return asyncio.run(asked())


def answered(body: bytes, content_type: str, *, stream: bool) -> tuple[list[ChatUpdate], ChatResponse]:
    async def asked() -> tuple[list[ChatUpdate], ChatResponse]:
        async with answering_with(body, content_type) as http_client:
            client = OpenAIResponsesClient("m", api_key=KEY, http_client=http_client, max_retries=0)
            opened = await client.send(ChatRequest((Message.user("hi"),), stream=stream))
            return [update async for update in opened], await opened.response()

    return asyncio.run(asked())


def streamed(*events: dict[str, Any]) -> tuple[list[ChatUpdate], ChatResponse]:
    lines = [
        f"event: {event['type']}\ndata: {json.dumps({'sequence_number': number, **event})}\n\n"
        for number, event in enumerate(events)
    ]
    return answered("".join(lines).encode(), "text/event-stream", stream=True)


def whole(response: dict[str, Any]) -> ChatResponse:
    return answered(json.dumps(response).encode(), "application/json", stream=False)[1]


def said(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content}


def text_delta(delta: str) -> dict[str, Any]:
    place = {"item_id": "msg_1", "output_index": 2, "content_index": 0, "logprobs": []}
    return {"type": "response.output_text.delta", "delta": delta, **place}


@pytest.mark.server
@pytest.mark.parametrize("stream", [False, True])
def test_it_chats(server: MockServer, stream: bool) -> None:
    server.script({"type": "reply", "text": "A day in Dubai."})
    response = ask(client_of(server), stream=stream, max_tokens=50, instructions="be brief")
    assert response.text == "A day in Dubai."
    assert response.finish_reason == "stop"
    assert response.usage.output_tokens > 0
    assert response.id.startswith("resp_")
    (body,) = server.bodies()
    assert body["input"] == [{"role": "user", "content": "hello"}]
    assert (body["max_output_tokens"], body["instructions"]) == (50, "be brief")


@pytest.mark.server
def test_streamed_text_is_the_text_of_the_message(server: MockServer) -> None:
    server.script({"type": "reply", "text": "one two three"})

    async def read() -> tuple[list[str], str]:
        async with client_of(server) as client, client.get_streaming_response("hello") as stream:
            return [update.text async for update in stream if update.text], (await stream.response()).text

    pieces, text = asyncio.run(read())
    assert "".join(pieces) == text == "one two three"
    assert len(pieces) == 3


@pytest.mark.server
@pytest.mark.parametrize("stream", [False, True])
def test_parallel_tool_calls_come_whole(server: MockServer, stream: bool) -> None:
    calls = [{"name": "get_weather", "arguments": {"city": city}} for city in ("Dubai", "Paris")]
    server.script({"type": "reply", "tool_calls": calls})
    response = ask(client_of(server), stream=stream, tools=(WEATHER,))
    assert [json.loads(call.arguments) for call in response.messages[0].calls] == [{"city": "Dubai"}, {"city": "Paris"}]
    assert response.finish_reason == "tool_calls"


@pytest.mark.server
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "kind"), [(401, AuthenticationError), (429, RateLimitError), (500, ServerError), (529, ServerError)]
)
def test_a_refusal_is_the_error_that_fits(
    server: MockServer, status: int, kind: type[ProviderError], stream: bool
) -> None:
    server.script({"type": "fail", "status": status, "retry_after": 2.5})
    with pytest.raises(kind) as caught:
        ask(client_of(server), stream=stream)
    assert caught.value.status == status
    if isinstance(caught.value, RateLimitError):
        assert caught.value.retry_after_seconds == 2.5


@pytest.mark.server
@pytest.mark.parametrize("stream", [False, True])
def test_an_overflow_tells_both_sizes(server: MockServer, stream: bool) -> None:
    server.script()
    with pytest.raises(ContextOverflowError) as caught:
        ask(client_of(server), "word " * 4000, stream=stream)
    assert caught.value.limit == 2000
    assert (caught.value.actual or 0) > 2000


@pytest.mark.server
@pytest.mark.parametrize("after", [0, 2, 6])
@pytest.mark.parametrize("fault", ["truncate", "disconnect", "malformed", "stall"])
def test_a_broken_stream_is_an_error_and_never_a_short_answer(server: MockServer, fault: str, after: int) -> None:
    server.script(
        {"type": "reply", "text": "one two three four five"},
        {"type": "stream_fault", "kind": fault, "after_chunks": after, "stall_seconds": 30},
    )
    with pytest.raises(BrokenStreamError):
        ask(client_of(server, stall_seconds=0.5), stream=True)


def test_items_of_the_sdks_own_types_are_one_message() -> None:
    message = message_from_wire(ITEMS)
    reasoning, search, first, second, call, custom = message.parts
    assert isinstance(reasoning, Reasoning)
    assert (reasoning.text, reasoning.provider) == ("first\n\nthen", "openai")
    assert isinstance(search, ProviderItem)
    assert message.text == "It is hot."
    assert isinstance(first, Text)
    assert isinstance(second, Text)
    assert json.loads(second.extra_json)["openai-responses"]["annotations"][0]["url"] == "u"
    assert isinstance(call, ToolCall)
    assert (call.id, call.name, call.arguments) == ("c1", "look", '{"a":  1}')
    assert isinstance(custom, ToolCall)
    assert (custom.id, json.loads(custom.arguments)) == ("c2", 'echo "hi"')


def test_items_of_the_sdks_own_types_go_back_as_they_came() -> None:
    assert messages_to_wire([message_from_wire(ITEMS)]) == ITEMS


def test_a_whole_conversation_of_items_goes_out_as_it_came() -> None:
    items: list[dict[str, Any]] = [
        {"role": "developer", "content": "be brief"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "look", "prompt_cache_breakpoint": {"mode": "explicit"}},
                {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"},
                {"type": "input_image", "file_id": "file_1"},
                {"type": "input_file", "file_data": "data:application/pdf;base64,JVBERg==", "filename": "a.pdf"},
                {"type": "input_file", "file_url": "https://example.org/a.pdf"},
                {"type": "input_file", "file_data": "https://example.org/a.pdf", "filename": "a.pdf"},
                {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
            ],
        },
        *ITEMS,
        {"type": "function_call_output", "call_id": "c1", "output": "seen"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "hi"}]},
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"},
        {"role": "user", "content": "and?"},
        {"role": "assistant", "content": "nothing"},
    ]
    messages = messages_from_wire(items)
    assert [message.role for message in messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    assert messages[3].results[0].name == "look"
    assert messages_to_wire(messages) == items


def test_messages_made_by_hand_become_items() -> None:
    messages = [
        Message.system("be brief"),
        Message.user("look", Image(url="u"), File(text="notes", name="n.txt")),
        Message.assistant("I look", ToolCall("c1", "look", "{}")),
        Message("tool", (ToolResult("c1", "look", "seen", is_error=True), ToolResult("c2", "look", (Text("a"),)))),
    ]
    assert messages_to_wire(messages) == [
        {"role": "system", "content": "be brief"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "look"},
                {"type": "input_image", "image_url": "u"},
                {"type": "input_file", "file_data": "data:text/plain;base64,bm90ZXM=", "filename": "n.txt"},
            ],
        },
        said("I look"),
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "seen"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "a"}]},
    ]


def test_what_others_left_on_a_message_is_left_out() -> None:
    message = Message(
        "assistant",
        (
            Reasoning("hm", '{"type":"thinking"}', "anthropic"),
            Reasoning("hm", '{"reasoning_content":"hm"}', "openai"),
            ProviderItem("anthropic", "{}"),
            Text("so", '{"anthropic":{"citations":[]}}'),
        ),
        extra_json='{"openai-chat":{"refusal":null}}',
    )
    assert messages_to_wire([message]) == [said("so")]


SAID = {
    "a string": {"role": "assistant", "content": "so"},
    "a string in a message of a phase": {
        "type": "message",
        "role": "assistant",
        "content": "so",
        "phase": "commentary",
    },
    "output text": {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "so", "annotations": []}],
    },
    "output text of an answer": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "so", "annotations": [], "logprobs": [{"token": "so"}]}],
    },
}


@pytest.mark.parametrize("item", SAID.values(), ids=SAID.keys())
def test_what_the_assistant_said_goes_back_in_the_form_that_it_had(item: dict[str, Any]) -> None:
    (message,) = messages_from_wire([item])
    assert message.text == "so"
    assert messages_to_wire([message]) == [item]


def test_a_text_made_by_hand_comes_back_as_the_same_value() -> None:
    message = Message.assistant("so")
    assert messages_from_wire(messages_to_wire([message])) == (message,)


def test_a_text_of_an_answer_can_be_quoted_in_a_question() -> None:
    (answer,) = messages_from_wire([SAID["output text of an answer"]])
    (item,) = messages_to_wire([Message("user", answer.parts)])
    assert item == {"role": "user", "content": [{"type": "input_text", "text": "so"}]}


def test_an_answer_of_responses_can_go_on_in_chat_completions() -> None:
    (wire,) = chat_messages_to_wire([message_from_wire(ITEMS)])
    assert wire == {
        "role": "assistant",
        "content": [{"type": "text", "text": "It is "}, {"type": "text", "text": "hot."}],
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a":  1}'}},
            {"id": "c2", "type": "function", "function": {"name": "sh", "arguments": json.dumps('echo "hi"')}},
        ],
    }


@pytest.mark.parametrize(
    ("items", "where"),
    [
        (["a"], r"input\[0\]"),
        ([{"role": "user", "content": 5}], r"input\[0\]\.content"),
        ([{"role": "user", "content": "a"}, {"role": ["user"], "content": "a"}], r"input\[1\]\.role: .* got list"),
        ([{"role": {"a": "user"}, "content": "a"}], r"input\[0\]\.role: .* got dict"),
        ([{"type": "function_call_output", "output": ""}], r"input\[0\]\.call_id"),
        ([{"type": "function_call", "name": "look"}], r"output\[0\]\.call_id"),
    ],
)
def test_what_is_malformed_is_named_by_its_place(items: list[object], where: str) -> None:
    with pytest.raises(InputError, match=where):
        messages_from_wire(items)


def test_reasoning_without_its_item_stays_behind() -> None:
    """An answer that was cut off while the model was reasoning would have every later request refused."""
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"}
    said = {"type": "message", "id": "m", "role": "assistant", "content": [
        {"type": "output_text", "text": "4", "annotations": []}]}  # fmt: skip
    question = {"role": "user", "content": "go on"}
    assert messages_to_wire(messages_from_wire([reasoning, {**reasoning, "id": "rs_2"}, question])) == [question]
    assert messages_to_wire(messages_from_wire([reasoning, said, reasoning, question])) == [reasoning, said, question]
    thought = Reasoning("hm", json.dumps(reasoning), "openai")
    assert messages_to_wire([Message.assistant(thought, ProviderItem("anthropic", "{}"))]) == []


@pytest.mark.parametrize("extra", [{}, {"store": None}, {"store": True}, {"store": False}])
def test_reasoning_that_is_but_an_id_goes_to_a_server_that_stores_it(extra: dict[str, Any]) -> None:
    """Without ``store`` the API would not find it, and refuse each later round of a tool loop."""
    bare = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
    sealed, open_ = (
        {**bare, "encrypted_content": "gAAA"},
        {**bare, "content": [{"type": "reasoning_text", "text": "hm"}]},
    )
    call = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "look", "arguments": "{}"}
    for item in (bare, sealed, open_):
        history = (Message.user("go"), message_from_wire([item, call]), Message.tool("c", "found"))
        sent: Any = request_to_wire(ChatRequest(history, ChatOptions(extra=extra)))["input"]
        assert sent[1:-1] == ([call] if item is bare and extra.get("store") is False else [item, call])


def test_options_become_fields_of_the_body() -> None:
    options = ChatOptions(
        instructions="be brief",
        tools=(WEATHER, ToolDeclaration("strict", strict=True), ProviderItem("openai", '{"type":"web_search"}')),
        tool_choice="get_weather",
        parallel_tool_calls=False,
        max_tokens=100,
        temperature=0.5,
        reasoning_effort="low",
        output_schema=OutputSchema("answer", '{"type":"object"}', True),
        extra={"store": False, "include": ["reasoning.encrypted_content"]},
    )
    assert request_to_wire(ChatRequest((Message.user("hi"),), options, stream=True), model="m") == {
        "model": "m",
        "input": [{"role": "user", "content": "hi"}],
        "instructions": "be brief",
        "tools": [
            {
                "type": "function",
                "name": "get_weather",
                "strict": False,
                "description": "the weather",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
            },
            {"type": "function", "name": "strict", "strict": True, "parameters": None},
            {"type": "web_search"},
        ],
        "tool_choice": {"type": "function", "name": "get_weather"},
        "parallel_tool_calls": False,
        "max_output_tokens": 100,
        "temperature": 0.5,
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "answer", "schema": {"type": "object"}, "strict": True}},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "stream": True,
    }


@pytest.mark.parametrize(("name", "kind"), [("get_weather", "function"), ("sh", "custom"), ("web_search", "function")])
def test_a_tool_is_chosen_by_its_type_and_name(name: str, kind: str) -> None:
    items = [{"type": "web_search"}, {"type": "custom", "name": "sh", "description": "a shell"}]
    tools: list[DeclaredTool] = [WEATHER, *(ProviderItem("openai", json.dumps(each)) for each in items)]
    body = request_to_wire(ChatRequest((Message.user("hi"),), ChatOptions(tools=tuple(tools), tool_choice=name)))
    assert body["tool_choice"] == {"type": kind, "name": name}


@pytest.mark.parametrize("options", [ChatOptions(stop=("END",)), ChatOptions(seed=1)])
def test_options_that_this_api_has_not_are_a_mistake(options: ChatOptions) -> None:
    with pytest.raises(InputError, match="Responses has no"):
        request_to_wire(ChatRequest((), options))


def test_usage_is_read_with_its_details() -> None:
    assert responses_usage(USAGE) == Usage(100, 50, 64, 8, 32)
    assert responses_usage({"input_tokens": 1}) == Usage(1)
    assert responses_usage(None) is None


def test_a_whole_answer_and_a_streamed_one_are_the_same() -> None:
    final = response_of(ITEMS)
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**final, "status": "in_progress", "output": [], "usage": None}},
        {
            "type": "response.reasoning_summary_text.delta",
            "delta": "first",
            "item_id": "rs_1",
            "output_index": 0,
            "summary_index": 0,
        },
        *(
            {"type": "response.output_item.done", "output_index": index, "item": item}
            for index, item in enumerate(ITEMS)
        ),
        text_delta("It is "),
        text_delta("hot."),
        {
            "type": "response.output_item.added",
            "output_index": 3,
            "item": {**ITEMS[3], "arguments": "", "status": "in_progress"},
        },
        {"type": "response.function_call_arguments.delta", "delta": '{"a":', "item_id": "fc_1", "output_index": 3},
    ]
    updates, response = streamed(*events, {"type": "response.completed", "response": final})
    assert "".join(update.text for update in updates) == "It is hot."
    assert [update.reasoning for update in updates if update.reasoning] == ["first"]
    deltas = [update.call_delta for update in updates if update.call_delta]
    assert [(delta.index, delta.id, delta.name, delta.arguments) for delta in deltas] == [
        (0, "c1", "look", ""),
        (0, "", "", '{"a":'),
    ]
    assert response.messages == (with_server(message_from_wire(ITEMS), "api.openai.com"),)
    assert isinstance(response.raw, Response)
    same = whole(final)
    assert (same.messages, same.usage, same.finish_reason, same.id, same.model) == (
        response.messages,
        response.usage,
        response.finish_reason,
        response.id,
        response.model,
    )
    assert (same.usage, same.finish_reason) == (Usage(100, 50, 64, 8, 32), "tool_calls")
    # What came only in the items takes the place of an empty output in the last event.
    _, short = streamed(*events, {"type": "response.completed", "response": {**final, "output": []}})
    assert short.messages == response.messages


def _call(id: str, call_id: str, arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "id": id, "call_id": call_id, "name": "look", "arguments": arguments}


@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("kind", ["delta", "done"])
def test_a_call_whose_item_lacks_its_arguments_has_those_that_were_streamed(
    kind: str, numbered: bool, is_listed: bool
) -> None:
    """Gateways end so, and the tools would run with nothing; llama.cpp tells calls apart by their ids alone."""
    events: list[dict[str, Any]] = []
    for at, id in enumerate(("fc_a", "fc_b")):
        where = {"output_index": at} if numbered else {}
        item, field = _call(id, f"c{at}", ""), "delta" if kind == "delta" else "arguments"
        events += [
            {"type": "response.output_item.added", "item": item, **where},
            {"type": f"response.function_call_arguments.{kind}", "item_id": id, field: f'{{"at":{at}}}', **where},
            {"type": "response.output_item.done", "item": item, **where},
        ]
    output = [_call("fc_a", "c0", ""), _call("fc_b", "c1", "")] if is_listed else []
    ended = {"status": "completed", "output": output, "id": "r"}
    updates, response = streamed(*events, {"type": "response.completed", "response": ended})
    assert [(each.id, each.arguments) for each in response.messages[0].calls] == [
        ("c0", '{"at":0}'),
        ("c1", '{"at":1}'),
    ]
    assert [each.call_delta.index for each in updates if each.call_delta and each.call_delta.id] == [0, 1]


@pytest.mark.parametrize(
    ("output", "kinds"),
    [
        ([], [Text]),
        ([{**ITEMS[2], "content": []}], [Text]),
        ([ITEMS[0], ITEMS[3]], [Reasoning, Text, ToolCall]),
    ],
    ids=["no item", "an empty item", "other items"],
)
def test_text_that_no_item_has_stays_part_of_the_answer(output: list[dict[str, Any]], kinds: list[type]) -> None:
    """Some gateways send the text as deltas alone, and end with an empty output."""
    final = response_of(output)
    _, response = streamed(text_delta("It is "), text_delta("hot."), {"type": "response.completed", "response": final})
    assert response.text == "It is hot."
    assert [type(part) for part in response.messages[0].parts] == kinds


@pytest.mark.parametrize(
    ("fields", "means"),
    [
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_messages"}}, "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "refused"),
        ({"status": "incomplete", "incomplete_details": {"reason": "steered"}}, "other"),
        ({"status": "incomplete", "incomplete_details": None}, "other"),
        ({}, "stop"),
    ],
)
def test_an_incomplete_response_says_why(fields: dict[str, Any], means: str) -> None:
    final = response_of([ITEMS[2]]) | fields  # the lowest SDK knows fewer reasons
    kind = "response.incomplete" if fields else "response.completed"
    _, response = streamed(text_delta("It is hot."), {"type": kind, "response": final})
    assert response.finish_reason == whole(final).finish_reason == means
    assert response.text == "It is hot."


def test_a_refusal_by_the_model_finishes_as_refused() -> None:
    refusal = ResponseOutputMessage(
        id="msg_2",
        type="message",
        role="assistant",
        status="completed",
        content=[ResponseOutputRefusal(type="refusal", refusal="no")],
    ).to_dict()
    response = whole(response_of([refusal]))
    assert response.finish_reason == "refused"
    assert messages_to_wire(response.messages) == [refusal]


@pytest.mark.parametrize("kinds", [("text", "no"), ("no", "text"), ("text", "no", "text"), ("no", "no")])
def test_a_message_with_a_refusal_goes_back_as_one_item(kinds: tuple[str, ...]) -> None:
    """OpenAI refuses an input in which two items have the same id."""
    forms = {
        "text": {"type": "output_text", "text": "Step one is", "annotations": []},
        "no": {"type": "refusal", "refusal": "I cannot go on."},
    }
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
    items = [
        {**message, "content": [forms[kind] for kind in kinds]},
        {**message, "id": "msg_2", "content": [forms["no"]]},
    ]
    assert messages_to_wire(messages_from_wire(items)) == items
    response = whole(response_of(items))
    assert response.finish_reason == "refused"
    assert messages_to_wire(response.messages) == items


ERRORS: list[tuple[dict[str, Any], type[ProviderError]]] = [
    ({"code": "context_length_exceeded", "message": "Your input exceeds the context window"}, ContextOverflowError),
    ({"code": "rate_limit_exceeded", "message": "slow down"}, RateLimitError),
    ({"code": "server_error", "message": "oops"}, ServerError),
]


@pytest.mark.parametrize(("error", "kind"), ERRORS)
@pytest.mark.parametrize("began", [False, True])
def test_every_form_of_error_in_the_stream_is_the_error_that_fits(
    error: dict[str, Any], kind: type[ProviderError], began: bool
) -> None:
    forms = [
        {"type": "error", "param": None, **error},
        {"type": "error", "error": error},
        {"type": "response.failed", "response": response_of([], status="in_progress", usage=None) | {
            "status": "failed", "error": error}},
    ]  # fmt: skip
    for form in forms:
        with pytest.raises(kind) as caught:
            streamed(*([text_delta("be")] if began else []), form)
        assert type(caught.value) is kind, form
        assert "context window of" not in str(caught.value)


def test_a_failed_response_is_an_error_without_streaming_too() -> None:
    failed = response_of([]) | {"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "slow"}}
    with pytest.raises(RateLimitError):
        whole(failed)


@pytest.mark.parametrize("status", ["queued", "in_progress", "cancelled"])
def test_a_response_that_is_not_there_yet_is_no_answer(status: str) -> None:
    with pytest.raises(ServerError, match=status):
        whole(response_of([], status=status))


def test_a_stream_without_its_last_event_is_broken() -> None:
    with pytest.raises(BrokenStreamError, match=r"response\.completed"):
        streamed(text_delta("It is"))
    with pytest.raises(BrokenStreamError):
        streamed()


def test_the_repr_has_no_secrets() -> None:
    client = OpenAIResponsesClient("m", api_key=KEY)
    assert repr(client) == "OpenAIResponsesClient('m', server='api.openai.com')"
