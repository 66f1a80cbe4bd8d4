"""Answers over HTTP, as the client reads them, and as it sends them back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from google.genai import types
from standin import check_request, chunk

from chatstack.errors import BrokenStreamError, ServerError
from chatstack.testing.provider_server import Delivery, ReceivedRequest, ScriptedServer, ServerReply
from chatstack.values.messages import Message
from chatstack.values.parts import Image, ProviderItem, Reasoning, Text, ToolCall
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatResponse, Usage
from chatstack_gemini import GeminiChatClient
from chatstack_gemini.answers import FINISHES, AnswerFold

Fields = dict[str, Any]
SIGNATURE = "+/8/abcd"  # with the characters that base64 has in two spellings


def reply_of(*chunks: Fields, stream: bool) -> ServerReply:
    return ServerReply.events(*chunks) if stream else ServerReply.json(chunks[0])


def answered(
    *replies: ServerReply, stream: bool, then: Sequence[Message] | None = None
) -> tuple[ChatResponse, list[Fields]]:
    """Return the answer that these replies make up, and the bodies that arrived. With ``then`` the answer is sent back
    before those messages."""

    async def work() -> tuple[ChatResponse, list[Fields]]:
        def script(request: ReceivedRequest) -> Delivery:
            at = min(len(server.requests), len(replies)) - 1
            return Delivery(replies[at])

        async with ScriptedServer(script) as server:
            client = GeminiChatClient("gemini-3.8-flash", api_key="k", base_url=server.base_url, max_retries=0)
            asked = Message.user("hi")
            try:
                answer = await (await client.send(ChatRequest((asked,), stream=stream))).response()
                if then is not None:
                    history = (asked, *answer.messages, *then)
                    await (await client.send(ChatRequest(history, stream=stream))).response()
            finally:
                await client.aclose()
            return answer, [check_request(each) for each in server.requests]

    return asyncio.run(work())


END: Fields = {"finishReason": "STOP"}


def test_thoughts_and_signatures_go_back_as_they_came() -> None:
    parts = [
        {"text": "hm", "thought": True},
        {"text": "I look.", "thoughtSignature": SIGNATURE},
        {"functionCall": {"id": "a1", "name": "f", "args": {"x": 1, "y": None}}, "thoughtSignature": SIGNATURE},
        {"functionCall": {"id": "b2", "name": "f", "args": {}}},
    ]
    for stream in (False, True):
        reply = reply_of(chunk(parts, **END), stream=stream)
        answer, bodies = answered(reply, stream=stream, then=[Message.tool("a1", "x"), Message.tool("b2", "y")])
        (message,) = answer.messages
        assert [type(part) for part in message.parts] == [Reasoning, Text, ToolCall, ToolCall]
        assert answer.finish_reason == "tool_calls"
        assert bodies[-1]["contents"][1]["parts"] == parts


def test_pieces_of_a_stream_are_joined_except_where_a_signature_is() -> None:
    pieces: list[Fields] = [
        *({"text": "h", "thought": True}, {"text": "m", "thought": True}),
        *({"text": "one "}, {"text": "two "}, {"text": "three", "thoughtSignature": SIGNATURE}, {"text": " four"}),
        {"text": "", "thoughtSignature": SIGNATURE},
    ]
    chunks = [*(chunk([piece]) for piece in pieces), chunk([], **END)]
    answer, bodies = answered(reply_of(*chunks, stream=True), stream=True, then=[Message.user("so")])
    assert answer.text == "one two three four"
    assert bodies[-1]["contents"][1]["parts"] == [
        {"text": "hm", "thought": True},
        {"text": "one two "},
        {"text": "three", "thoughtSignature": SIGNATURE},
        {"text": " four"},
        {"text": "", "thoughtSignature": SIGNATURE},
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_calls_without_ids_get_ids_that_differ_and_stay_here(stream: bool) -> None:
    parts = [{"functionCall": {"name": "f", "args": {"x": 1}}}, {"functionCall": {"name": "f", "args": {"x": 2}}}]
    first, second = (
        answered(reply_of(chunk(parts, **END, responseId=id), stream=stream), stream=stream)[0] for id in ("r1", "r2")
    )
    ids = [call.id for answer in (first, second) for call in answer.messages[0].calls]
    assert len(set(ids)) == 4
    results = [Message.tool(id, "x") for id in ids[:2]]
    reply = reply_of(chunk(parts, **END, responseId="r1"), stream=stream)
    _, bodies = answered(reply, stream=stream, then=results)
    contents = bodies[-1]["contents"]
    assert not any("id" in part["functionCall"] for part in contents[1]["parts"])
    assert [part["functionResponse"] for part in contents[2]["parts"]] == [
        {"name": "f", "response": {"output": "x"}}
    ] * 2


@pytest.mark.parametrize("stream", [False, True])
def test_calls_without_ids_of_answers_without_an_id_differ_from_round_to_round(stream: bool) -> None:
    parts = [{"functionCall": {"name": "f", "args": {}}}, {"functionCall": {"name": "f", "args": {}}}]
    nameless = {name: value for name, value in chunk(parts, **END).items() if name != "responseId"}

    async def rounds() -> list[str]:
        async with ScriptedServer(lambda request: Delivery(reply_of(nameless, stream=stream))) as server:
            client = GeminiChatClient("gemini-3.8-flash", api_key="k", base_url=server.base_url, max_retries=0)
            history: list[Message] = [Message.user("hi")]
            for _ in range(3):
                answer = await (await client.send(ChatRequest(tuple(history), stream=stream))).response()
                history += [*answer.messages, *(Message.tool(call.id, "x") for call in answer.messages[0].calls)]
            await client.aclose()
            return [call.id for message in history for call in message.calls]

    ids = asyncio.run(rounds())
    assert len(set(ids)) == 6
    assert asyncio.run(rounds()) == ids, "the same each time they are read"


@pytest.mark.parametrize("stream", [False, True])
def test_usage_counts_thoughts_as_output_and_tools_at_google_as_input(stream: bool) -> None:
    usage = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 60,
        "candidatesTokenCount": 20,
        "thoughtsTokenCount": 7,
        "toolUsePromptTokenCount": 5,
        "totalTokenCount": 132,
    }
    answer, _ = answered(reply_of(chunk([{"text": "x"}], **END, usageMetadata=usage), stream=stream), stream=stream)
    assert answer.usage == Usage(105, 27, cache_read_tokens=60, reasoning_tokens=7)


def test_usage_of_the_input_is_told_as_the_answer_begins_and_adds_up() -> None:
    fold = AnswerFold(ChatRequest((Message.user("hi"),)))
    used = {"promptTokenCount": 100, "candidatesTokenCount": 1, "thoughtsTokenCount": 4}
    (first,) = fold.updates(chunk([{"text": "x"}], usageMetadata=used))
    assert (first.text, first.usage) == ("x", Usage(100))
    (second,) = fold.updates(chunk([{"text": "y"}], **END, usageMetadata={**used, "candidatesTokenCount": 20}))
    assert second.usage is None
    assert [each.usage for each in fold.ended(None)] == [Usage(0, 24, reasoning_tokens=4)]


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        *((each, "refused") for each in ("SAFETY", "RECITATION", "PROHIBITED_CONTENT", "BLOCKLIST", "SPII")),
        *((each, "other") for each in ("OTHER", "MALFORMED_FUNCTION_CALL", "TOO_MANY_TOOL_CALLS")),
    ],
)
def test_each_finish_reason_is_ours(told: str, reason: str) -> None:
    answer, _ = answered(reply_of(chunk([{"text": "x"}], finishReason=told), stream=True), stream=True)
    assert answer.finish_reason == reason


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("parts", [[], [{"text": "Hm", "thought": True}], [{"text": "", "thoughtSignature": "+/8/"}]])
@pytest.mark.parametrize("told", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"])
def test_an_answer_that_gemini_took_back_is_a_failure_and_not_an_empty_answer(
    told: str, parts: list[Fields], stream: bool
) -> None:
    with pytest.raises(ServerError, match=told):
        answered(reply_of(chunk(parts, finishReason=told), stream=stream), stream=stream)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.filterwarnings("ignore:A_LATER_REASON is not a valid FinishReason")  # the SDK's own warning
def test_a_reason_of_a_later_version_is_another(stream: bool) -> None:
    later = chunk([{"text": "x"}], finishReason="A_LATER_REASON")
    assert answered(reply_of(later, stream=stream), stream=stream)[0].finish_reason == "other"


def test_every_reason_of_the_sdk_has_a_meaning() -> None:
    others = {each.value for each in types.FinishReason} - FINISHES.keys()
    assert others == {
        *("FINISH_REASON_UNSPECIFIED", "OTHER", "MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "IMAGE_OTHER"),
        *("NO_IMAGE", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MISSING_THOUGHT_SIGNATURE", "CONTINUATION"),
    }


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_blocked_is_a_refused_answer(stream: bool) -> None:
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 9}}
    answer, _ = answered(reply_of(blocked, stream=stream), stream=stream)
    assert (answer.finish_reason, answer.text, answer.usage.input_tokens) == ("refused", "", 9)


@pytest.mark.parametrize("stream", [False, True])
def test_what_only_gemini_understands_goes_back_as_it_came(stream: bool) -> None:
    parts = [
        {"executableCode": {"code": "1+1", "language": "PYTHON"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}, "thoughtSignature": SIGNATURE},
        {"inlineData": {"mimeType": "image/png", "data": SIGNATURE}, "thoughtSignature": SIGNATURE},
        {"text": "two", "partMetadata": {"later": [1]}},
    ]
    reply = reply_of(chunk(parts, **END), stream=stream)
    answer, bodies = answered(reply, stream=stream, then=[Message.user("so")])
    assert [type(part) for part in answer.messages[0].parts] == [ProviderItem, ProviderItem, Image, Text]
    assert bodies[-1]["contents"][1]["parts"] == parts


def test_raw_is_the_sdks_object_of_the_whole_answer() -> None:
    chunks = [chunk([{"text": "one "}]), chunk([{"text": "two", "thoughtSignature": SIGNATURE}], **END)]
    answer, _ = answered(reply_of(*chunks, stream=True), stream=True)
    assert isinstance(answer.raw, types.GenerateContentResponse)
    assert answer.raw.text == "one two"
    plain, _ = answered(reply_of(chunk([{"text": "one"}], **END), stream=False), stream=False)
    assert isinstance(plain.raw, types.GenerateContentResponse)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_in_several_calls_is_continued_by_the_sdk(stream: bool) -> None:
    first = chunk([{"text": "one "}], finishReason="CONTINUATION")
    first["candidates"][0]["continuationToken"] = "dG9rZW4="
    replies = [reply_of(each, stream=stream) for each in (first, chunk([{"text": "two"}], **END))]
    answer, bodies = answered(*replies, stream=stream)
    assert (answer.text, answer.finish_reason) == ("one two", "stop")
    assert [each.get("continuationToken") for each in bodies] == [None, "dG9rZW4="]
    assert bodies[0]["contents"] == bodies[1]["contents"]


def test_a_call_in_pieces_is_an_error_and_not_a_call_without_arguments() -> None:
    piece = {"functionCall": {"name": "f", "partialArgs": [{"jsonPath": "$.x", "stringValue": "y"}]}}
    with pytest.raises(BrokenStreamError, match="streamFunctionCallArguments"):
        answered(reply_of(chunk([piece], **END), stream=True), stream=True)


def test_only_the_first_candidate_is_read() -> None:
    both = chunk([{"text": "one"}], **END)
    both["candidates"].append({"index": 1, "content": {"parts": [{"text": "two"}]}, "finishReason": "STOP"})
    assert answered(reply_of(both, stream=True), stream=True)[0].text == "one"
