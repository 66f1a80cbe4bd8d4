from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest

from chatstack import (
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ContextOverflowError,
    Message,
    ToolCall,
    Usage,
    WiringError,
    from_openai_chat,
    to_openai_chat,
    to_openai_responses,
)
from chatstack.errors import (
    AuthenticationError,
    BrokenStreamError,
    ProviderConnectionError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    RequestRefusedError,
    ServerError,
)
from chatstack.providers.openai import OpenAIChatClient
from chatstack.providers.openai.sdk import OPENAI
from chatstack.providers.wires import AnswerReader
from chatstack.values.parts import Reasoning, Text
from chatstack.values.requests import ToolDeclaration
from chatstack.values.responses import ChatUpdate
from tests.servers import MockServer, answering_with, free_port, mock_server, silent_server

KEY = "sk-test-0123456789"
WEATHER = ToolDeclaration("get_weather", "the weather", '{"type":"object","properties":{"city":{"type":"string"}}}')


@pytest.fixture(scope="module")
def server() -> Iterator[MockServer]:
    with mock_server(context_window=2000) as running:
        yield running


def client_of(server: MockServer, **options: Any) -> OpenAIChatClient:
    options = {"max_retries": 0, "stall_seconds": 20, **options}
    return OpenAIChatClient("gpt-4o", api_key=KEY, base_url=server.openai_url, **options)


def ask(client: OpenAIChatClient, text: str = "hello", *, stream: bool = False, **options: Any) -> ChatResponse:
    async def asked() -> ChatResponse:
        async with client:
            request = ChatRequest((Message.user(text),), ChatOptions(**options), None, stream)
            return await (await client.send(request)).response()

    return asyncio.run(asked())


def sse(*chunks: object) -> bytes:
    return b"".join(
        b"data: " + (chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode()) + b"\n\n" for chunk in chunks
    )


def chunk(finish: str | None = None, **delta: object) -> dict[str, object]:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def streamed(*chunks: object, tools: tuple[ToolDeclaration, ...] = (), **options: Any) -> ChatResponse:
    async def asked() -> ChatResponse:
        async with answering_with(sse(*chunks), "text/event-stream") as http_client:
            client = OpenAIChatClient("m", api_key=KEY, http_client=http_client, max_retries=0, **options)
            request = ChatRequest((Message.user("hi"),), ChatOptions(tools=tools), stream=True)
            return await (await client.send(request)).response()

    return asyncio.run(asked())


def whole(body: object, content_type: str = "application/json") -> ChatResponse:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def asked() -> ChatResponse:
        async with answering_with(data, content_type) as http_client:
            client = OpenAIChatClient("m", api_key=KEY, http_client=http_client, max_retries=0)
            return await client.get_response("hi")

    return asyncio.run(asked())


@pytest.mark.server
@pytest.mark.parametrize("stream", [False, True])
def test_it_chats(server: MockServer, stream: bool) -> None:
    server.script({"type": "reply", "text": "A day in Dubai."})
    response = ask(client_of(server), stream=stream, max_tokens=50)
    assert response.messages == (Message.assistant("A day in Dubai."),)
    assert response.finish_reason == "stop"
    assert response.usage.output_tokens > 0
    assert response.model == "gpt-4o"
    assert response.id.startswith("chatcmpl-")
    assert response.raw is not None
    (body,) = server.bodies()
    assert body["max_completion_tokens"] == 50
    assert body.get("stream", False) is stream
    assert body["messages"] == [{"role": "user", "content": "hello"}]


def test_the_raw_answer_of_a_stream_is_the_whole_completion() -> None:
    """With log probabilities and every choice, as ``n`` asks for several."""
    odds: list[dict[str, Any]] = [
        {"token": token, "bytes": None, "logprob": -0.5, "top_logprobs": []} for token in ("o", "k")
    ]
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a":'}}
    rest = {"index": 0, "id": None, "type": "function", "function": {"name": None, "arguments": " 1}"}}
    deltas: list[tuple[int, dict[str, Any], dict[str, Any] | None, str | None]] = [
        (0, {"role": "assistant", "content": "o"}, {"content": odds[:1], "refusal": None}, None),
        (1, {"role": "assistant", "content": "other", "tool_calls": [call]}, None, None),
        (0, {"role": "assistant", "content": "k"}, {"content": odds[1:], "refusal": None}, None),
        (1, {"tool_calls": [rest]}, None, "tool_calls"),
        (0, {}, None, "stop"),
    ]
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt"}
    chunks: list[dict[str, Any]] = [
        {**head, "choices": [{"index": index, "delta": delta, "logprobs": told, "finish_reason": reason}]}
        for index, delta, told, reason in deltas
    ]
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    response = streamed(*chunks, {**head, "choices": [], "usage": usage})
    assert isinstance(response.raw, openai.types.chat.ChatCompletion)
    called = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    other = {"role": "assistant", "content": "other", "tool_calls": [called]}
    assert response.raw.to_dict() == {
        **head,
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "ok"},
                "logprobs": {"content": odds, "refusal": None},
                "finish_reason": "stop",
            },
            {"index": 1, "message": other, "logprobs": None, "finish_reason": "tool_calls"},
        ],
        "usage": usage,
    }


def _piece(name: str, arguments: str, **fields: object) -> dict[str, object]:
    return {**fields, "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    "pieces",
    [
        [_piece("look", "{}", index=0, id="a"), _piece("list", "[]", index=0, id="b")],
        [_piece("look", "{", id="a"), _piece("", "}"), _piece("list", "[]", id="b")],
        [_piece("lo", "", index=0, id="a"), _piece("ok", "{}", index=0), _piece("list", "[]", index=1, id="b")],
        [_piece("look", "{", index=0, id="a"), _piece("look", "}", index=0), _piece("list", "[]", index=1, id="b")],
    ],
    ids=["all numbered 0", "no numbers", "a name in pieces", "a name with every piece"],
)
def test_the_raw_answer_of_a_stream_has_the_calls_of_its_message(pieces: list[dict[str, object]]) -> None:
    response = streamed(*(chunk(tool_calls=[piece]) for piece in pieces), chunk("tool_calls"))
    assert isinstance(response.raw, openai.types.chat.ChatCompletion)
    raw: Any = response.raw.to_dict()
    calls = raw["choices"][0]["message"]["tool_calls"]
    told = [(each["id"], each["function"]["name"], each["function"]["arguments"]) for each in calls]
    assert told == [("a", "look", "{}"), ("b", "list", "[]")]
    assert told == [(call.id, call.name, call.arguments) for call in response.messages[0].calls]


@pytest.mark.server
def test_streamed_text_is_the_text_of_the_message(server: MockServer) -> None:
    server.script({"type": "reply", "text": "one two three"})

    async def read() -> tuple[list[ChatUpdate], ChatResponse]:
        async with client_of(server) as client, client.get_streaming_response("hello") as stream:
            return [update async for update in stream], await stream.response()

    updates, response = asyncio.run(read())
    assert "".join(update.text for update in updates) == response.text == "one two three"
    assert sum(bool(update.text) for update in updates) == 3
    assert updates[-1].message_done == response.messages[0]


@pytest.mark.server
@pytest.mark.parametrize("stream", [False, True])
def test_parallel_tool_calls_come_whole(server: MockServer, stream: bool) -> None:
    calls = [{"name": "get_weather", "arguments": {"city": city}} for city in ("Dubai", "Paris")]
    server.script({"type": "reply", "tool_calls": calls})
    response = ask(client_of(server), stream=stream, tools=(WEATHER,))
    assert [(call.name, json.loads(call.arguments)) for call in response.messages[0].calls] == [
        ("get_weather", {"city": "Dubai"}),
        ("get_weather", {"city": "Paris"}),
    ]
    assert response.finish_reason == "tool_calls"
    assert len({call.id for call in response.messages[0].calls}) == 2


@pytest.mark.server
def test_calls_and_results_go_out_again(server: MockServer) -> None:
    server.script()

    async def turn() -> ChatResponse:
        async with client_of(server) as client:
            options = ChatOptions(tools=(WEATHER,))
            first = await client.get_response("the weather in Dubai?", options=options)
            (call,) = first.messages[0].calls
            history = [Message.user("the weather in Dubai?"), *first.messages, Message.tool(call.id, "40 degrees")]
            return await client.get_response(history, options=options)

    assert asyncio.run(turn()).text
    sent = server.bodies()[1]["messages"]
    assert [each["role"] for each in sent] == ["user", "assistant", "tool"]  # type: ignore[attr-defined]


@pytest.mark.server
def test_fields_that_the_sdk_does_not_know_go_out_too(server: MockServer) -> None:
    server.script()
    ask(client_of(server), extra={"top_k": 4, "user": "u"})
    (body,) = server.bodies()
    assert (body["top_k"], body["user"]) == (4, "u")


@pytest.mark.server
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, AuthenticationError),
        (404, RequestRefusedError),
        (408, ProviderTimeoutError),
        (422, RequestRefusedError),
        (429, RateLimitError),
        (500, ServerError),
        (529, ServerError),
    ],
)
def test_a_refusal_is_the_error_that_fits(
    server: MockServer, status: int, kind: type[ProviderError], stream: bool
) -> None:
    server.script({"type": "fail", "status": status, "retry_after": 2.5})
    with pytest.raises(kind) as caught:
        ask(client_of(server), stream=stream)
    assert type(caught.value) is kind
    assert (caught.value.provider, caught.value.status) == ("openai", status)
    assert isinstance(caught.value.__cause__, openai.APIStatusError)
    if isinstance(caught.value, RateLimitError):
        assert caught.value.retry_after_seconds == 2.5


@pytest.mark.server
def test_the_sdk_retries_and_nobody_else(server: MockServer) -> None:
    server.script({"type": "fail", "status": 500, "retry_after": 0, "times": 2})
    assert ask(client_of(server, max_retries=2)).text
    assert len(server.records()) == 3
    server.script({"type": "fail", "status": 500, "retry_after": 0, "times": 5})
    with pytest.raises(ServerError):
        ask(client_of(server, max_retries=1))
    assert len(server.records()) == 2


@pytest.mark.server
@pytest.mark.parametrize("stream", [False, True])
def test_an_overflow_tells_both_sizes(server: MockServer, stream: bool) -> None:
    server.script()
    with pytest.raises(ContextOverflowError) as caught:
        ask(client_of(server), "word " * 4000, stream=stream)
    assert caught.value.limit == 2000
    assert (caught.value.actual or 0) > 2000
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
    assert "word" not in str(caught.value)


@pytest.mark.server
@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("fault", ["truncate", "disconnect", "malformed", "stall"])
def test_a_broken_stream_is_an_error_and_never_a_short_answer(server: MockServer, fault: str, after: int) -> None:
    server.script(
        {"type": "reply", "text": "one two three four five"},
        {"type": "stream_fault", "kind": fault, "after_chunks": after, "stall_seconds": 30},
    )
    with pytest.raises(BrokenStreamError) as caught:
        ask(client_of(server, stall_seconds=0.5), stream=True)
    assert caught.value.provider == "openai"
    assert "two" not in str(caught.value)


def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    client = OpenAIChatClient("m", api_key=KEY, base_url=f"http://127.0.0.1:{free_port()}/v1", max_retries=0)
    with pytest.raises(ProviderConnectionError) as caught:
        ask(client)
    assert isinstance(caught.value.__cause__, openai.APIConnectionError)


def test_a_server_that_does_not_answer_is_a_timeout() -> None:
    with silent_server() as url:
        client = OpenAIChatClient("m", api_key=KEY, base_url=url, max_retries=0, timeout_seconds=0.2)
        with pytest.raises(ProviderTimeoutError):
            ask(client)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": "context_length_exceeded", "message": "Your input exceeds the context window"}, ContextOverflowError),
        ({"code": "rate_limit_exceeded", "message": "slow"}, RateLimitError),
        ({"type": "server_error", "message": "oops"}, ServerError),
        ({"code": 502, "message": "upstream"}, ServerError),
        ({"message": "what?"}, BrokenStreamError),
    ],
)
def test_an_error_in_the_stream_is_the_error_that_fits(error: dict[str, object], kind: type[ProviderError]) -> None:
    for before in ((), (chunk(content="be"), chunk(content="gun"))):
        with pytest.raises(kind) as caught:
            streamed(*before, {"error": error})
        assert type(caught.value) is kind
        assert isinstance(caught.value.__cause__, openai.APIError)


def test_an_error_in_the_stream_before_the_answer_is_raised_by_send() -> None:
    async def asked() -> None:
        async with answering_with(sse({"error": {"code": "rate_limit_exceeded"}}), "text/event-stream") as http_client:
            client = OpenAIChatClient("m", api_key=KEY, http_client=http_client, max_retries=0)
            with pytest.raises(RateLimitError):
                await client.send(ChatRequest((Message.user("hi"),), stream=True))

    asyncio.run(asked())


def test_a_choice_that_ends_in_an_error_is_one() -> None:
    failed = chunk("error")
    failed["choices"][0]["error"] = {"code": 502, "message": "upstream"}  # type: ignore[index]
    with pytest.raises(ServerError):
        streamed(chunk(content="be"), failed)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        *((each, each) for each in ("error", "network_error", "insufficient_system_resource")),
        ("function_call_filter: MALFORMED_FUNCTION_CALL", "MALFORMED_FUNCTION_CALL"),
    ],
)
def test_a_finish_reason_that_says_that_the_answer_failed_is_an_error(reason: str, told: str) -> None:
    with pytest.raises(ServerError, match=told):
        streamed(chunk(content="half an ans"), chunk(reason))
    with pytest.raises(ServerError, match=told):
        whole({"choices": [{"message": {"content": "half an ans"}, "finish_reason": reason}]})


def test_a_window_that_mistral_finds_full_cuts_the_answer_off_or_is_an_overflow() -> None:
    answer = {"choices": [{"message": {"content": "be"}, "finish_reason": "model_length"}]}
    assert whole(answer).finish_reason == "length"
    with pytest.raises(ContextOverflowError):
        whole({"choices": [{"message": {"content": ""}, "finish_reason": "model_length"}]})


def test_details_of_reasoning_that_come_in_pieces_go_back_whole() -> None:
    """OpenRouter sends them so; Anthropic, behind it, refuses a signature beside a piece of what it signs."""
    text: dict[str, object] = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0, "signature": None}
    sealed = {"type": "reasoning.encrypted", "data": "S", "index": 2}
    details: list[list[dict[str, object]]] = [
        [{**text, "text": "two "}],
        [{**text, "text": "and two"}],
        [{**text, "text": None, "signature": "Et8B"}],
        [{**text, "text": "more", "index": 1}, sealed],
        [{**sealed, "data": "T"}],
        [{"type": "reasoning.text", "text": "so"}],
        [{"type": "reasoning.text", "text": "so"}],
    ]
    response = streamed(*(chunk(reasoning_details=each) for each in details), chunk("stop", content="four"))
    (wire,) = to_openai_chat(response.messages)
    assert wire["reasoning_details"] == [
        {**text, "text": "two and two", "signature": "Et8B"},
        {**text, "text": "more", "index": 1},
        sealed,
        {**sealed, "data": "T"},
        {"type": "reasoning.text", "text": "so"},
        {"type": "reasoning.text", "text": "so"},
    ]


def test_thinking_in_the_content_is_reasoning() -> None:
    """Mistral's models send it so, a list of texts in each delta."""

    def thinking(said: str) -> dict[str, object]:
        return {"type": "thinking", "thinking": [{"type": "text", "text": said}]}

    deltas: list[object] = ["", [thinking("two and ")], [thinking("two")], [{"type": "text", "text": ""}], "four"]
    chunks = [*(chunk(content=each) for each in deltas), chunk("stop")]
    reader = AnswerReader("chat", streaming=True)
    updates = [update for each in chunks for update in reader.add(each)]
    assert [(each.reasoning, each.text) for each in updates] == [("two and ", ""), ("two", ""), ("", "four")]
    response = streamed(*chunks)
    content = [thinking("two and two"), {"type": "text", "text": "four"}]
    answer = whole({"choices": [{"message": {"content": content}, "finish_reason": "stop"}]})
    (read,) = from_openai_chat([{"role": "assistant", "content": content}])
    assert response.messages == answer.messages == (read,) == (Message.assistant(Reasoning("two and two"), "four"),)
    assert to_openai_chat([read]) == [{"role": "assistant", "content": "four"}]


@pytest.mark.parametrize("bad", [[1], {"choices": [3]}, {"choices": {"a": 1}}, {"choices": [{"delta": "x"}]}])
def test_chunks_of_another_shape_break_the_stream(bad: object) -> None:
    with pytest.raises(BrokenStreamError):
        streamed(chunk(content="a"), bad, chunk("stop"))


@pytest.mark.parametrize("body", [{}, {"choices": None}, {"choices": 1}, {"detail": "Not Found"}, b"{"])
def test_an_answer_of_another_shape_is_the_servers_failure(body: object) -> None:
    with pytest.raises(ServerError):
        whole(body)


def test_a_page_instead_of_an_answer_says_what_to_check() -> None:
    with pytest.raises(ServerError, match="base_url"):
        whole(b"<html></html>", "text/html")


def test_an_error_with_status_200_is_an_error() -> None:
    with pytest.raises(RateLimitError):
        whole({"error": {"code": 429, "message": "slow down"}})


@pytest.mark.slow
def test_keep_alives_that_the_sdk_hides_are_no_stall() -> None:
    async def slowly() -> AsyncIterator[bytes]:
        for _ in range(8):
            yield b": still thinking\n\n"
            await asyncio.sleep(0.1)
        yield sse(chunk(content="done"), chunk("stop"))

    async def asked() -> str:
        async with answering_with(slowly(), "text/event-stream") as http_client:
            client = OpenAIChatClient("m", api_key=KEY, http_client=http_client, stall_seconds=0.4)
            return (await client.get_streaming_response("hi").response()).text

    assert asyncio.run(asked()) == "done"


def test_what_breaks_behind_the_finish_reason_costs_only_the_usage() -> None:
    response = streamed(chunk(content="done"), chunk("stop"), b'{"choices":[], "usa')
    assert (response.text, response.finish_reason, response.usage) == ("done", "stop", Usage())


def test_usage_may_come_with_the_last_chunk_or_behind_it() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    together = streamed(chunk(content="a"), {**chunk("stop"), "usage": usage}, b"[DONE]")
    behind = streamed(chunk(content="a"), chunk("stop"), {"id": "c", "choices": [], "usage": usage}, b"[DONE]")
    assert together.usage == behind.usage == Usage(5, 2)


def test_usage_that_comes_with_every_chunk_counts_in_an_answer_that_does_not_end() -> None:
    """Some servers send it so (vLLM's ``continuous_usage_stats``): its last figures are those of the answer."""
    reader = AnswerReader("chat", streaming=True)
    chunks = [
        {**chunk(finish, **delta), "usage": {"prompt_tokens": 5, "completion_tokens": said}}
        for said, (finish, delta) in enumerate([(None, {"content": "a"}), (None, {"content": "b"}), ("stop", {})], 1)
    ]
    first, second = (reader.add(each)[0] for each in chunks[:2])
    assert (first.usage, second.usage) == (Usage(5), None)
    reader.add(chunks[2])
    assert reader.finish()[-1].usage == Usage(0, 3)


@pytest.mark.parametrize("beside", [{}, {"usage": None}])
def test_usage_that_stands_in_the_choice_counts(beside: dict[str, Any]) -> None:
    """Moonshot tells it there, and in a chunk of its own only where it is asked to, which a gateway may not pass on."""
    usage = {"prompt_tokens": 19, "completion_tokens": 13, "total_tokens": 32, "cached_tokens": 4}
    last: dict[str, Any] = {**chunk("stop"), **beside}
    last["choices"][0]["usage"] = usage
    told = streamed(chunk(content="a"), last).usage
    assert told == whole({"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "usage": usage}).usage
    assert told == Usage(19, 13, 4)


@pytest.mark.parametrize("empty", [{}, {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}])
def test_an_empty_usage_takes_the_place_of_no_other(empty: dict[str, int]) -> None:
    told = {**chunk("stop"), "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
    response = streamed({**chunk(content="a"), "usage": empty}, told, {"id": "c", "choices": [], "usage": empty})
    assert response.usage == Usage(5, 2)


def test_reasoning_of_compatible_servers_is_kept_and_can_go_back() -> None:
    response = streamed(
        chunk(role="assistant", content=""),
        chunk(reasoning_content="be"),
        chunk(reasoning_content="cause"),
        chunk(content="so"),
        chunk("stop"),
    )
    assert response.messages[0].parts == (
        Reasoning("because", '{"reasoning_content":"because"}', "openai"),
        Text("so"),
    )


def test_text_behind_a_call_is_where_a_whole_answer_has_it() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    late = streamed(chunk(tool_calls=[{"index": 0, **call}]), chunk(content="so"), chunk("tool_calls"))
    message = {"role": "assistant", "content": "so", "tool_calls": [call]}
    assert late.messages == whole({"choices": [{"message": message, "finish_reason": "tool_calls"}]}).messages
    assert late.messages[0].parts == (Text("so"), ToolCall("c1", "look"))


def called(arguments: object, *, name: str = "look", **fields: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **fields}


def answered_both_ways(*calls: dict[str, object]) -> list[tuple[ToolCall, ...]]:
    """The calls of a whole answer, and of one that comes in a single chunk."""
    message = {"role": "assistant", "content": None, "tool_calls": [*calls]}
    at_once = whole({"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    return [each.messages[0].calls for each in (at_once, streamed(chunk(tool_calls=[*calls]), chunk("tool_calls")))]


def test_arguments_that_are_an_object_are_its_text() -> None:
    """Else the tool would run with its defaults."""
    for calls in answered_both_ways(called({"at": "/here"}, id="a")):
        assert [(each.name, each.arguments) for each in calls] == [("look", '{"at":"/here"}')]


@pytest.mark.parametrize("arguments", [7, ["/here"], True])
def test_arguments_that_are_neither_text_nor_an_object_are_refused(arguments: object) -> None:
    with pytest.raises(ServerError, match=r"tool_calls\[0\].arguments"):
        answered_both_ways(called(arguments, id="a"))


@pytest.mark.parametrize("kind", ["", "FUNCTION", None])
def test_a_call_whose_type_is_spelt_otherwise_is_one_of_a_function(kind: str | None) -> None:
    """Azure and gateways leave it empty behind the first piece; without its function no server takes the call back."""
    first, rest = called("{", id="a", index=0), called("}", index=0, name="", type=kind)
    in_pieces = streamed(chunk(tool_calls=[first]), chunk(tool_calls=[rest]), chunk("tool_calls")).messages[0].calls
    for calls in (in_pieces, *answered_both_ways(called("{}", id="a", type=kind))):
        assert calls == (ToolCall("a", "look", "{}"),)


@pytest.mark.parametrize("ids", [{}, {"id": None}, {"id": ""}, {"id": "same"}], ids=str)
@pytest.mark.parametrize("second", ["look", "delete"])
def test_parallel_calls_without_ids_of_their_own_stay_apart(ids: dict[str, Any], second: str) -> None:
    for calls in answered_both_ways(called('{"at":1}', **ids), called('{"at":2}', name=second, **ids)):
        assert [(each.name, each.arguments) for each in calls] == [("look", '{"at":1}'), (second, '{"at":2}')]
        assert len({each.id for each in calls}) == 2


def test_a_second_name_behind_arguments_is_another_call_and_an_id_that_comes_again_is_not() -> None:
    one = streamed(
        chunk(tool_calls=[called("", index=0, id="", name="lo")]),
        chunk(tool_calls=[called('{"at":', index=0, id="", name="ok")]),
        chunk(tool_calls=[called("1}", index=0, id="", name="")]),
        chunk(tool_calls=[called("{}", index=0, id="", name="delete")]),
        chunk("tool_calls"),
    )
    assert [(each.name, each.arguments) for each in one.messages[0].calls] == [("look", '{"at":1}'), ("delete", "{}")]
    again = streamed(
        chunk(tool_calls=[called('{"at":', id="a")]), chunk(tool_calls=[called("1}", id="a")]), chunk("tool_calls")
    )
    assert again.messages[0].calls == (ToolCall("a", "look", '{"at":1}'),)


@pytest.mark.parametrize(
    ("name", "kept"),
    [("functions.look", "functions_look"), ("", "_"), ("a" * 70, "a" * 64), ("look", "look"), ("my.tool", "my.tool")],
)
def test_a_name_that_the_model_makes_up_can_be_sent_again_and_one_that_is_declared_stays(name: str, kept: str) -> None:
    """OpenAI refuses others, and so every later request of the conversation."""
    tools = (ToolDeclaration("my.tool", "..."),)
    answer = streamed(chunk(tool_calls=[called("{}", id="a", name=name)]), chunk("tool_calls"), tools=tools)
    assert [each.name for each in answer.messages[0].calls] == [kept]


@pytest.mark.parametrize("arguments", ['{"path":"a","text":"long te', "{}", '{"a":  1}', '"text"', "{} {}"])
def test_arguments_that_were_cut_off_go_out_as_json(arguments: str) -> None:
    """Some servers read them, and would refuse every later request of the conversation."""
    legacy = ToolCall("a", "look", arguments, '{"openai-chat":{"type":"function_call"}}')
    history = [Message("assistant", (ToolCall("a", "look", arguments),)), Message("assistant", (legacy,))]
    written: Any = to_openai_chat(history)
    items: Any = to_openai_responses(history)
    for sent in (
        written[0]["tool_calls"][0]["function"]["arguments"],
        written[1]["function_call"]["arguments"],
        items[0]["arguments"],
    ):
        try:
            assert json.loads(arguments) == json.loads(sent)
            assert sent == arguments
        except json.JSONDecodeError:
            assert json.loads(sent) == {"INVALID_JSON": arguments}


def test_a_custom_call_streams_its_input() -> None:
    response = streamed(
        chunk(tool_calls=[{"index": 0, "id": "c1", "type": "custom", "custom": {"name": "sh", "input": "echo "}}]),
        chunk(tool_calls=[{"index": 0, "custom": {"input": '"hi"'}}]),
        chunk("tool_calls"),
    )
    assert response.messages[0].calls == (
        ToolCall("c1", "sh", json.dumps('echo "hi"'), '{"openai-chat":{"type":"custom"}}'),
    )


def test_a_refusal_by_the_model_finishes_as_refused() -> None:
    response = streamed(chunk(refusal="I "), chunk(refusal="will not"), chunk("stop"))
    assert response.finish_reason == "refused"
    assert json.loads(response.messages[0].extra_json) == {"openai-chat": {"refusal": "I will not"}}


def test_only_the_first_of_several_choices_counts() -> None:
    other = {"id": "c", "choices": [{"index": 1, "delta": {"content": "other"}, "finish_reason": "stop"}]}
    assert streamed(chunk(content="first"), other, chunk("stop")).text == "first"
    with pytest.raises(BrokenStreamError):
        streamed(chunk(content="first"), other)


@pytest.mark.server
def test_closing_early_closes_the_connection_and_leaves_no_task(server: MockServer) -> None:
    server.script({"type": "stream_fault", "kind": "stall", "after_chunks": 2, "stall_seconds": 3})

    async def read() -> int:
        async with client_of(server) as client:
            async with client.get_streaming_response("hello") as stream:
                async for _ in stream:
                    break
            # The SDK leaves generators of its own to the collector, which ends them within a turn of the loop or two.
            await asyncio.sleep(0.05)
            return len(asyncio.all_tasks())

    assert asyncio.run(read()) == 1
    (record,) = server.records()
    assert record["completed"] is False


@pytest.mark.server
def test_cancelling_a_stalled_stream_is_a_cancellation(server: MockServer) -> None:
    server.script({"type": "stream_fault", "kind": "stall", "after_chunks": 0, "stall_seconds": 3})

    async def read() -> None:
        async with client_of(server) as client:
            task = asyncio.ensure_future(client.send(ChatRequest((Message.user("hello"),), stream=True)))
            await asyncio.sleep(0.2)
            task.cancel()
            await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(read())


@pytest.mark.server
def test_many_streams_at_once_stay_apart(server: MockServer) -> None:
    replies: list[dict[str, object]] = [{"type": "reply", "text": f"answer {number}"} for number in range(10)]
    server.script(*replies)

    async def read() -> list[str]:
        async with client_of(server) as client:
            answers = await asyncio.gather(*(client.get_streaming_response("hi").response() for _ in range(10)))
            return sorted(answer.text for answer in answers)

    assert asyncio.run(read()) == [f"answer {number}" for number in range(10)]


def test_the_repr_has_no_secrets() -> None:
    client = OpenAIChatClient("m", api_key=KEY, base_url="https://user:password@example.org:8443/v1?token=hunter2")
    shown = repr(client) + repr(client.info)
    assert repr(client) == "OpenAIChatClient('m', server='example.org')"
    assert not any(secret in shown for secret in (KEY, "password", "hunter2"))
    assert (client.info.server_address, client.info.server_port) == ("example.org", 8443)


@pytest.mark.server
def test_an_error_has_no_secrets_and_no_prompt(server: MockServer) -> None:
    server.script({"type": "fail", "status": 401, "message": f"Incorrect API key provided: {KEY}, asked: hello"})
    with pytest.raises(AuthenticationError) as caught:
        ask(client_of(server))
    shown = str(caught.value) + repr(caught.value) + repr(caught.value.__dict__)
    assert KEY not in shown
    assert "hello" not in shown
    assert str(caught.value) == (
        "openai: authentication failed (401 invalid_api_key): check the key and what it may do"
    )


def test_a_missing_key_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(WiringError, match="OPENAI_API_KEY") as caught:
        OpenAIChatClient("m")
    assert "\n" not in str(caught.value)
    assert caught.value.parameter == "api_key"


def test_the_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert OpenAIChatClient("m").info.server_address == "api.openai.com"


def test_a_client_of_yours_is_used_and_stays_open() -> None:
    async def asked() -> bool:
        async with openai.AsyncOpenAI(api_key=KEY, base_url="http://127.0.0.1:1/v1") as given:
            client = OpenAIChatClient("m", client=given)
            await client.aclose()
            assert client.info.server_port == 1
            return given.is_closed()

    assert asyncio.run(asked()) is False


def test_a_client_made_here_is_closed() -> None:
    async def asked() -> str:
        client = OpenAIChatClient("m", api_key=KEY, base_url=f"http://127.0.0.1:{free_port()}/v1", max_retries=0)
        await client.aclose()
        await client.aclose()
        try:
            await client.get_response("hi")
        except (ProviderError, RuntimeError) as error:
            return type(error).__name__
        return ""

    assert asyncio.run(asked())


def test_a_connection_error_of_any_cause_is_ours() -> None:
    request: Any = object()
    error = openai.APIConnectionError(request=request)
    error.__cause__ = RuntimeError("Cannot send a request, as the client has been closed.")
    assert isinstance(OPENAI.translated(error), ProviderConnectionError)
    assert isinstance(OPENAI.translated(error, streaming=True), BrokenStreamError)


def test_a_client_beside_options_for_one_is_a_mistake() -> None:
    with pytest.raises(WiringError, match="api_key, max_retries"):
        OpenAIChatClient("m", client=openai.AsyncOpenAI(api_key=KEY), api_key=KEY, max_retries=1)


def test_a_synchronous_client_is_a_mistake() -> None:
    with pytest.raises(WiringError, match="AsyncOpenAI"):
        OpenAIChatClient("m", client=openai.OpenAI(api_key=KEY))


def test_without_the_sdk_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(WiringError, match=r"pip install 'chatstack-core\[openai\]'"):
        OpenAIChatClient("m", api_key=KEY)


def test_importing_the_provider_imports_neither_the_sdk_nor_an_http_library() -> None:
    code = (
        "import sys, chatstack.providers.openai; "
        "print([name for name in ('openai', 'httpx', 'httpx2', 'anthropic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
