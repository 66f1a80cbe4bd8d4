"""wrap: an SDK's own client keeps its methods and types, and its calls go through a stack."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

from chatstack import (
    Budget,
    BudgetExceeded,
    ChatStack,
    ChatStackError,
    ContextOverflowError,
    ContextWindowGuard,
    FunctionInvoker,
    Telemetry,
    Truncate,
    WiringError,
    tool,
    wrap,
)
from chatstack.testing import TelemetryCapture
from chatstack.testing.provider_server import Delivery, ReceivedRequest, ScriptedServer, ServerReply

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Dubai"}'}}
ASKED = [{"role": "user", "content": "hello"}]


@tool
def weather(city: str) -> str:
    """Tell the weather."""
    return f"sunny in {city}"


def completion(text: str | None, *calls: object) -> ServerReply:
    message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    whole = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}
    return ServerReply.json(whole)


def chunks(*deltas: object, finish: str = "stop") -> ServerReply:
    def chunk(delta: object, reason: str | None) -> object:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}

    first = {"role": "assistant", "content": ""}
    return ServerReply.events(*(chunk(each, None) for each in (first, *deltas)), chunk({}, finish), "[DONE]")


def response(*output: Any) -> dict[str, object]:
    usage = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
    return {"id": "r", "object": "response", "status": "completed", "model": "m", "output": output, "usage": usage}


def said(text: str, id: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": id, "role": "assistant", "status": "completed", "content": content}


FUNCTION_CALL = {
    "type": "function_call",
    "id": "f",
    "call_id": "c1",
    "name": "weather",
    "arguments": '{"city":"Dubai"}',
}


def response_events(*items: dict[str, Any]) -> ServerReply:
    events: list[dict[str, object]] = [
        {"type": "response.created", "response": {**response(), "status": "in_progress"}}
    ]
    for at, item in enumerate(items):
        place = {"output_index": at, "item_id": item["id"]}
        empty = {**item, "content": []} if "content" in item else {**item, "arguments": ""}
        events.append({"type": "response.output_item.added", "output_index": at, "item": empty})
        if "content" in item:
            (part,) = item["content"]
            blank = {**part, "text": ""}
            events.append({"type": "response.content_part.added", **place, "content_index": 0, "part": blank})
            for word in part["text"].split(" "):
                delta = {"content_index": 0, "delta": f"{word} ", "logprobs": []}
                events.append({"type": "response.output_text.delta", **place, **delta})
        else:
            events.append({"type": "response.function_call_arguments.delta", **place, "delta": item["arguments"]})
        events.append({"type": "response.output_item.done", "output_index": at, "item": item})
    events.append({"type": "response.completed", "response": response(*items)})
    return ServerReply.events(*({**event, "sequence_number": at} for at, event in enumerate(events)), is_named=True)


TOOL_USE = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Dubai"}}


def message(*content: Any, stop: str = "end_turn") -> dict[str, object]:
    head = {"id": "m1", "type": "message", "role": "assistant", "model": "claude", "content": content}
    return {**head, "stop_reason": stop, "stop_sequence": None, "usage": {"input_tokens": 5, "output_tokens": 2}}


def message_events(*blocks: dict[str, Any], stop: str = "end_turn") -> ServerReply:
    events: list[object] = [{"type": "message_start", "message": {**message(), "stop_reason": None}}]
    for at, block in enumerate(blocks):
        is_text = block["type"] == "text"
        empty = {**block, "text": ""} if is_text else {**block, "input": {}}
        events.append({"type": "content_block_start", "index": at, "content_block": empty})
        parts = block["text"].split(" ") if is_text else [json.dumps(block["input"])]
        for part in parts:
            delta = {"type": "text_delta", "text": f"{part} "} if is_text else None
            delta = delta or {"type": "input_json_delta", "partial_json": part}
            events.append({"type": "content_block_delta", "index": at, "delta": delta})
        events.append({"type": "content_block_stop", "index": at})
    events.append({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 2}})
    return ServerReply.events(*events, {"type": "message_stop"}, is_named=True)


class Served:
    """SDK clients of a scripted server."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.openai: Any = openai.AsyncOpenAI(api_key="k", base_url=f"{server.base_url}/v1", max_retries=0, timeout=600)
        self.anthropic: Any = anthropic.AsyncAnthropic(
            api_key="k", base_url=server.base_url, max_retries=0, timeout=600
        )

    def body(self, at: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.server.requests[at].body)
        return found


@asynccontextmanager
async def serving(*replies: ServerReply | Delivery) -> AsyncGenerator[Served]:
    left = list(replies)

    def script(request: ReceivedRequest) -> Delivery:
        reply = left.pop(0)
        return reply if isinstance(reply, Delivery) else Delivery(reply)

    async with ScriptedServer(script) as server:
        served = Served(server)
        try:
            yield served
        finally:
            await served.openai.close()
            await served.anthropic.close()


EMPTY = ChatStack()
BELOW_EVERY_TRIGGER = EMPTY.use(FunctionInvoker, tools=[]).use(ContextWindowGuard, max_context_tokens=10**6)
LOOP = EMPTY.use(FunctionInvoker, tools=[weather])
BOTH = pytest.mark.parametrize("stack", [EMPTY, BELOW_EVERY_TRIGGER], ids=["empty", "below every trigger"])


def told(request: ReceivedRequest) -> tuple[str, dict[str, str], bytes]:
    return request.target, dict(request.headers), request.body


def calls_of(client: Any) -> Sequence[Callable[[], Any]]:
    chat, answer = client.chat.completions, client.responses
    odd = [{"content": "spelled  oddly", "role": "user", "name": "ann"}]
    return (
        lambda: chat.create(model="m", messages=odd, temperature=1, extra_body={"unheard_of": [1.50, None]}),
        lambda: chat.with_raw_response.create(model="m", messages=ASKED),
        lambda: answer.create(model="m", input="hello", metadata={"a": "b"}),
    )


@BOTH
def test_what_no_layer_edits_is_sent_byte_for_byte(stack: ChatStack) -> None:
    async def run() -> None:
        whole = ServerReply.json(response(said("fine", "a")))
        replies = (completion("fine"), completion("fine"), whole) * 2
        async with serving(*replies) as served:
            for client in (served.openai, wrap(served.openai, stack)):
                for call in calls_of(client):
                    await call()
            requests = [told(each) for each in served.server.requests]
        assert requests[:3] == requests[3:]

    asyncio.run(run())


@BOTH
def test_an_answer_comes_back_as_the_sdk_reads_it(stack: ChatStack) -> None:
    async def run() -> None:
        async with serving(*[completion("fine")] * 2) as served:
            bare = await served.openai.chat.completions.create(model="m", messages=ASKED)
            wrapped = await wrap(served.openai, stack).chat.completions.create(model="m", messages=ASKED)
        assert type(wrapped) is type(bare)
        assert wrapped == bare

    asyncio.run(run())


@BOTH
def test_a_stream_comes_back_event_by_event(stack: ChatStack) -> None:
    async def run() -> None:
        reply = chunks({"content": "all "}, {"content": "is "}, {"content": "well"})
        async with serving(reply, reply) as served:
            found: list[list[Any]] = []
            for client in (served.openai, wrap(served.openai, stack)):
                stream = await client.chat.completions.create(model="m", messages=ASKED, stream=True)
                found.append([each async for each in stream])
        assert found[0] == found[1]
        assert len(found[0]) == 5

    asyncio.run(run())


def test_text_is_not_held_back_while_it_streams() -> None:
    async def run() -> None:
        reply = Delivery(chunks({"content": "all "}, {"content": "is well"}), pieces=2, then="hold")
        async with serving(reply) as served:
            client = wrap(served.openai, LOOP)
            stream = await client.chat.completions.create(model="m", messages=ASKED, stream=True)
            texts = [(await anext(stream)).choices[0].delta.content for _ in range(2)]
            assert texts == ["", "all "]
            await stream.close()
            assert await served.server.until(lambda: served.server.open_connections == 0, 60)

    asyncio.run(run())


@BOTH
def test_helpers_keep_working(stack: ChatStack) -> None:
    class Town(BaseModel):
        name: str

    async def run() -> None:
        town = completion('{"name": "Dubai"}')
        streamed = chunks({"content": '{"name": '}, {"content": '"Dubai"}'})
        async with serving(town, streamed, town, town, town) as served:
            client = wrap(served.openai, stack)
            parsed = await client.chat.completions.parse(model="m", messages=ASKED, response_format=Town)
            assert parsed.choices[0].message.parsed == Town(name="Dubai")
            asked = {"model": "m", "messages": ASKED, "response_format": Town}
            async with client.chat.completions.stream(**asked) as stream:
                kinds = {event.type async for event in stream}
                assert (await stream.get_final_completion()).choices[0].message.parsed == Town(name="Dubai")
            assert {"chunk", "content.delta", "content.done"} <= kinds
            raw = await client.chat.completions.with_raw_response.create(model="m", messages=ASKED)
            assert raw.parse().choices[0].message.content == '{"name": "Dubai"}'
            assert raw.headers["content-type"] == "application/json"
            async with client.chat.completions.with_streaming_response.create(model="m", messages=ASKED) as unread:
                assert not unread.is_closed
                assert b'"Dubai' in b"".join([each async for each in unread.iter_bytes()])
            again = await client.with_options(timeout=5).chat.completions.create(model="m", messages=ASKED)
            assert again.choices[0].message.content == '{"name": "Dubai"}'

    asyncio.run(run())


@BOTH
def test_anthropics_client_keeps_its_helpers_too(stack: ChatStack) -> None:
    async def run() -> None:
        text = {"type": "text", "text": "all is well"}
        asked: Any = {"model": "claude", "max_tokens": 9, "messages": ASKED}
        whole, events = ServerReply.json(message(text)), message_events(text)
        async with serving(whole, whole, whole, events, events) as served:
            client = wrap(served.anthropic, stack)
            assert isinstance(client, anthropic.AsyncAnthropic)
            assert await client.messages.create(**asked) == await served.anthropic.messages.create(**asked)
            assert (await client.beta.messages.create(**asked, betas=["x"])).content[0].text == "all is well"
            async with client.messages.stream(**asked) as stream:
                texts = [each async for each in stream.text_stream]
                assert (await stream.get_final_message()).stop_reason == "end_turn"
            assert texts == ["all ", "is ", "well "]
            stream = await client.messages.create(**asked, stream=True)
            assert [event.type async for event in stream][-1] == "message_stop"
            first, second = (told(each) for each in served.server.requests[:2])
            assert first[2] == second[2]

    asyncio.run(run())


def test_an_older_sdk_whose_copies_take_less_can_be_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = anthropic.AsyncAnthropic.copy

    def older(self: anthropic.AsyncAnthropic, *, http_client: Any = None) -> anthropic.AsyncAnthropic:
        return copy(self, http_client=http_client)

    async def run() -> None:
        async with serving(ServerReply.json(message({"type": "text", "text": "fine"}))) as served:
            client = wrap(served.anthropic, BELOW_EVERY_TRIGGER)
            answer = await client.messages.create(model="claude", max_tokens=9, messages=ASKED)
            assert answer.content[0].text == "fine"

    monkeypatch.setattr(anthropic.AsyncAnthropic, "with_options", older)
    asyncio.run(run())


@pytest.mark.parametrize("status", [400, 401, 429, 500])
@BOTH
def test_errors_are_those_of_the_sdk(stack: ChatStack, status: int) -> None:
    async def run() -> None:
        body = {"error": {"message": "no", "type": "some_error", "code": "some_code"}}
        async with serving(*[ServerReply.json(body, status=status, headers={"x-request-id": "7"})] * 4) as served:
            raised: list[openai.APIStatusError] = []
            for client in (served.openai, wrap(served.openai, stack)):
                for stream in (False, True):
                    with pytest.raises(openai.APIStatusError) as found:
                        await client.chat.completions.create(model="m", messages=ASKED, stream=stream)
                    raised.append(found.value)
        assert len({type(each) for each in raised}) == 1
        assert len({(str(each), each.request_id, each.code, str(each.body)) for each in raised}) == 1

    asyncio.run(run())


def test_the_sdk_retries_and_connection_errors_are_its_own() -> None:
    async def run() -> None:
        busy = ServerReply.json({"error": {"message": "busy"}}, status=503, headers={"retry-after-ms": "1"})
        async with serving(busy, completion("fine")) as served:
            client = wrap(served.openai.with_options(max_retries=1), BELOW_EVERY_TRIGGER)
            raw = await client.chat.completions.with_raw_response.create(model="m", messages=ASKED)
            assert raw.retries_taken == 1
            closed = served.openai.with_options(base_url="http://127.0.0.1:9/v1")
            with pytest.raises(openai.APIConnectionError):
                await wrap(closed, EMPTY).chat.completions.create(model="m", messages=ASKED)

    asyncio.run(run())


BROKEN: dict[str, ServerReply | Delivery] = {
    "cut": Delivery(chunks({"content": "all "}, {"content": "is well"}), pieces=3, then="cut"),
    "noise": ServerReply.events("{}", "{noise"),
    "an error": ServerReply.events('{"choices": []}', '{"error": {"message": "down"}}'),
    "not that form": ServerReply.events('{"choices": 5}', "[DONE]"),
    "nothing": ServerReply.events("[DONE]"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_stream_that_breaks_ends_as_it_does_unwrapped(kind: str) -> None:
    async def run() -> None:
        reply = BROKEN[kind]
        async with serving(reply, reply) as served:
            ended: list[tuple[type | None, int]] = []
            for client in (served.openai, wrap(served.openai, BELOW_EVERY_TRIGGER)):
                stream = await client.chat.completions.create(model="m", messages=ASKED, stream=True)
                count, raised = 0, None
                try:
                    async for _ in stream:
                        count += 1
                except Exception as error:  # noqa: BLE001 - whatever it is unwrapped
                    raised = type(error)
                ended.append((raised, count))
        assert ended[0] == ended[1]

    asyncio.run(run())


def history(turns: int) -> list[dict[str, str]]:
    asked = [
        [{"role": "user", "content": f"question {at}"}, {"content": f"all is well {at}. " * 40, "role": "assistant"}]
        for at in range(turns)
    ]
    return [*(each for pair in asked for each in pair), {"role": "user", "content": "and now?"}]


def test_what_a_layer_edits_is_what_is_sent_and_the_rest_stays_as_it_was_written() -> None:
    async def run() -> None:
        async with serving(completion("fine")) as served:
            client = wrap(served.openai, EMPTY.use(Truncate, max_tokens=400))
            given = {"model": "m", "messages": history(8), "metadata": {"k": "v"}}
            await client.with_options(timeout=7).chat.completions.create(**given, extra_headers={"x-mine": "1"})
            sent = served.body(0)
            assert 0 < len(sent["messages"]) < 17
            assert [each for each in history(8) if each in sent["messages"]] == sent["messages"]
            assert b'{"content":"all is well' in served.server.requests[0].body
            assert (sent["metadata"], served.server.requests[0].headers["x-mine"]) == ({"k": "v"}, "1")

    asyncio.run(run())


def test_the_guard_recovers_from_a_refusal() -> None:
    async def run() -> None:
        text = "This model's maximum context length is 500 tokens. However, your messages resulted in 900 tokens."
        refusal = ServerReply.json({"error": {"message": text, "code": "context_length_exceeded"}}, status=400)
        async with serving(refusal, completion("fine")) as served:
            stack = EMPTY.use(ContextWindowGuard, max_context_tokens=100_000, prune_on_overflow=True)
            answer = await wrap(served.openai, stack).chat.completions.create(model="m", messages=history(8))
            assert answer.choices[0].message.content == "fine"
            assert len(served.body(1)["messages"]) < len(served.body(0)["messages"]) == 17

    asyncio.run(run())


def test_errors_of_layers_are_also_errors_of_the_sdk_and_not_retried() -> None:
    async def run() -> None:
        async with serving(completion(None, CALL), completion(None, CALL)) as served:
            stack = EMPTY.use(Budget, max_tokens=1).use(FunctionInvoker, tools=[weather])
            client = wrap(served.openai.with_options(max_retries=3), stack)
            for kind in (BudgetExceeded, openai.OpenAIError):
                with pytest.raises(kind) as found:
                    await client.chat.completions.create(model="m", messages=history(8))
                assert isinstance(found.value, ChatStackError)
            over = EMPTY.use(ContextWindowGuard, max_context_tokens=10, strict=True)
            other = wrap(served.anthropic.with_options(max_retries=3), over)
            asked: Any = {
                "model": "claude",
                "max_tokens": 9,
                "messages": [{"role": "user", "content": "all is well " * 90}],
            }
            with pytest.raises(ContextOverflowError) as too_long:
                await other.messages.create(**asked)
            assert isinstance(too_long.value, anthropic.AnthropicError)

    asyncio.run(run())


CHAT_ROUNDS = (completion("Let me look. ", CALL), completion("Sunny."))
CHAT_STREAMS = (
    chunks({"content": "Let me "}, {"content": "look. "}, {"tool_calls": [{"index": 0, **CALL}]}, finish="tool_calls"),
    chunks({"content": "Sun"}, {"content": "ny."}),
)


@pytest.mark.parametrize("silent", [False, True])
def test_tools_run_inside_and_their_rounds_are_one_answer(silent: bool) -> None:
    async def run() -> None:
        first = chunks({"tool_calls": [{"index": 0, **CALL}]}, finish="tool_calls") if silent else CHAT_STREAMS[0]
        whole = completion(None, CALL) if silent else CHAT_ROUNDS[0]
        async with serving(whole, CHAT_ROUNDS[1], first, CHAT_STREAMS[1]) as served:
            client = wrap(served.openai, LOOP)
            answer = await client.chat.completions.create(model="m", messages=ASKED)
            async with client.chat.completions.stream(model="m", messages=ASKED) as stream:
                streamed = await stream.get_final_completion()
        for each in (answer, streamed):
            found = each.choices[0].message
            assert (found.content, found.tool_calls) == ("Sunny." if silent else "Let me look. Sunny.", None)
        assert served.body(1)["messages"][-1]["content"] == "sunny in Dubai"
        assert served.body(1)["messages"][0] == ASKED[0]
        assert streamed.choices[0].finish_reason == "stop"

    asyncio.run(run())


@pytest.mark.parametrize("silent", [False, True])
def test_tools_run_inside_of_responses(silent: bool) -> None:
    async def run() -> None:
        before = [] if silent else [said("Let me look.", "a")]
        first, last = (*before, FUNCTION_CALL), (said("Sunny.", "b"),)
        replies = (
            *(ServerReply.json(response(*each)) for each in (first, last)),
            *(response_events(*each) for each in (first, last)),
        )
        async with serving(*replies) as served:
            client = wrap(served.openai, LOOP)
            answer = await client.responses.create(model="m", input="hello")
            async with client.responses.stream(model="m", input="hello") as stream:
                numbers = [event.sequence_number async for event in stream]
                streamed = await stream.get_final_response()
        assert numbers == list(range(len(numbers)))
        for each in (answer, streamed):
            assert each.output_text == ("Sunny." if silent else "Let me look.Sunny.")
            assert [item.type for item in each.output] == ["message"] * (1 if silent else 2)
        assert served.body(1)["input"][-1]["output"] == "sunny in Dubai"

    asyncio.run(run())


@pytest.mark.parametrize("silent", [False, True])
def test_tools_run_inside_of_anthropics_messages(silent: bool) -> None:
    async def run() -> None:
        before: list[dict[str, Any]] = [] if silent else [{"type": "text", "text": "Let me look."}]
        first, last = (*before, TOOL_USE), ({"type": "text", "text": "Sunny."},)
        whole = (ServerReply.json(message(*first, stop="tool_use")), ServerReply.json(message(*last)))
        async with serving(*whole, message_events(*first, stop="tool_use"), message_events(*last)) as served:
            client = wrap(served.anthropic, LOOP)
            asked: Any = {"model": "claude", "max_tokens": 9, "messages": ASKED}
            answer = await client.messages.create(**asked)
            async with client.messages.stream(**asked) as stream:
                streamed = await stream.get_final_message()
        for each in (answer, streamed):
            texts = [block.text.strip() for block in each.content]
            assert texts == (["Sunny."] if silent else ["Let me look.", "Sunny."])
            assert each.stop_reason == "end_turn"
        assert served.body(1)["messages"][-1]["content"][0]["content"] == "sunny in Dubai"
        assert served.body(1)["messages"][0] == ASKED[0]

    asyncio.run(run())


def test_tools_of_the_callers_own_come_back_to_the_caller() -> None:
    async def run() -> None:
        mine = {**CALL, "function": {"name": "mine", "arguments": "{}"}}
        declared = {
            "type": "function",
            "function": {"name": "mine", "strict": True, "parameters": {"type": "object", "x": 1}},
        }
        asked: Any = {"model": "m", "messages": ASKED, "tools": [declared]}
        streamed = chunks({"content": "so: "}, {"tool_calls": [{"index": 0, **mine}]}, finish="tool_calls")
        async with serving(completion(None, mine), streamed) as served:
            client = wrap(served.openai, LOOP)
            answer = await client.chat.completions.create(**asked)
            async with client.chat.completions.stream(**asked) as stream:
                whole = await stream.get_final_completion()
        for each in (answer, whole):
            assert each.choices[0].message.tool_calls[0].function.name == "mine"
        assert [each["function"]["name"] for each in served.body(0)["tools"]] == ["mine", "weather"]
        assert served.body(0)["tools"][0] == declared

    asyncio.run(run())


def test_calls_of_tools_that_nobody_declared_come_back_too() -> None:
    """The API may hold their declarations, as with a stored prompt."""

    async def run() -> None:
        stored = {**CALL, "function": {"name": "stored", "arguments": "{}"}}
        async with serving(completion(None, stored)) as served:
            answer = await wrap(served.openai, LOOP).chat.completions.create(model="m", messages=ASKED)
        assert answer.choices[0].message.tool_calls[0].function.name == "stored"

    asyncio.run(run())


def test_a_failed_later_round_is_retried_below_and_its_tools_run_once() -> None:
    async def run() -> None:
        busy = ServerReply.json({"error": {"message": "busy"}}, status=503, headers={"retry-after-ms": "1"})
        async with serving(completion(None, CALL), busy, completion("Sunny.")) as served:
            client = wrap(served.openai.with_options(max_retries=2), LOOP)
            answer = await client.chat.completions.create(model="m", messages=ASKED)
        assert answer.choices[0].message.content == "Sunny."
        assert [len(served.body(at)["messages"]) for at in range(3)] == [1, 3, 3]

    asyncio.run(run())


@pytest.mark.parametrize("streams", [False, True])
def test_a_turn_whose_tools_have_run_is_not_begun_again(streams: bool) -> None:
    ran: list[str] = []

    @tool(name="weather")
    def counted(city: str) -> str:
        """Tell the weather."""
        ran.append(city)
        return "sunny"

    async def run() -> None:
        busy = ServerReply.json({"error": {"message": "busy"}}, status=503, headers={"retry-after-ms": "1"})
        loop = EMPTY.use(FunctionInvoker, tools=[counted])
        first = (
            chunks({"tool_calls": [{"index": 0, **CALL}]}, finish="tool_calls") if streams else completion(None, CALL)
        )
        async with serving(first, *[busy] * 6) as served:
            client = wrap(served.openai.with_options(max_retries=1), loop)
            with pytest.raises(openai.InternalServerError):
                await client.chat.completions.create(model="m", messages=ASKED, stream=streams)
            assert len(served.server.requests) == 3
        events = (
            message_events(TOOL_USE, stop="tool_use")
            if streams
            else ServerReply.json(message(TOOL_USE, stop="tool_use"))
        )
        async with serving(events, *[busy] * 6) as served:
            other = wrap(served.anthropic.with_options(max_retries=1), loop)
            with pytest.raises(anthropic.AnthropicError):
                await other.messages.create(model="claude", max_tokens=9, messages=ASKED, stream=streams)
            assert len(served.server.requests) == 3

    asyncio.run(run())
    assert ran == ["Dubai"] * 2


def test_a_later_round_that_fails_behind_shown_text_raises_in_the_stream() -> None:
    async def run() -> None:
        busy = ServerReply.json({"error": {"message": "busy"}}, status=503)
        async with serving(CHAT_STREAMS[0], busy) as served:
            stream = await wrap(served.openai, LOOP).chat.completions.create(model="m", messages=ASKED, stream=True)
            texts: list[str] = []

            async def read() -> None:
                async for each in stream:
                    texts.append(each.choices[0].delta.content)

            with pytest.raises(openai.OpenAIError) as found:
                await read()
            assert texts == ["", "Let me ", "look. "]
            assert isinstance(found.value, ChatStackError)

    asyncio.run(run())


def test_a_server_that_takes_its_time_behind_the_end_holds_nothing_up() -> None:
    async def run() -> None:
        held = Delivery(chunks({"content": "fine"}), then="hold")
        async with serving(held) as served:
            stream = await wrap(served.openai, LOOP).chat.completions.create(model="m", messages=ASKED, stream=True)
            assert [each.choices[0].finish_reason async for each in stream][-1] == "stop"

    asyncio.run(run())


def test_spans_and_the_end_of_a_stream_are_told() -> None:
    async def run() -> TelemetryCapture:
        capture = TelemetryCapture()
        async with serving(completion("fine"), chunks({"content": "fine"})) as served:
            client = wrap(served.openai, EMPTY, resolve={Telemetry: capture.telemetry}.__getitem__)
            with capture.telemetry.tracer.start_as_current_span("view"):
                await client.chat.completions.create(model="m", messages=ASKED)
                async for _ in await client.chat.completions.create(model="m", messages=ASKED, stream=True):
                    pass
        return capture

    capture = asyncio.run(run())
    assert capture.tree() == [("view", [("chat m", []), ("chat m", [])])]
    assert {span.status for span in capture.spans} == {"unset"}
    assert not [span for span in capture.spans if "error.type" in span.attributes]


def test_other_calls_and_malformed_ones_go_as_they_are() -> None:
    async def run() -> None:
        models = ServerReply.json({"object": "list", "data": []})
        refused = ServerReply.json({"error": {"message": "what is a wizard?"}}, status=400)
        async with serving(models, refused) as served:
            client = wrap(served.openai, BELOW_EVERY_TRIGGER)
            assert (await client.models.list()).data == []
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(model="m", messages=[{"role": "wizard", "content": "hello"}])

    asyncio.run(run())


@pytest.mark.slow
def test_many_calls_at_once_do_not_mix() -> None:
    async def run() -> None:
        def echo(request: ReceivedRequest) -> Delivery:
            asked = json.loads(request.body)
            text = asked["messages"][-1]["content"]
            return Delivery(chunks({"content": text}) if asked.get("stream") else completion(text))

        async with ScriptedServer(echo) as server:
            client = wrap(Served(server).openai, BELOW_EVERY_TRIGGER)

            async def one(number: int) -> str:
                asked = {"model": "m", "messages": [{"role": "user", "content": str(number)}]}
                if number % 2:
                    return str((await client.chat.completions.create(**asked)).choices[0].message.content)
                stream = await client.chat.completions.create(**asked, stream=True)
                return "".join([each.choices[0].delta.content or "" async for each in stream])

            assert await asyncio.gather(*map(one, range(200))) == [str(number) for number in range(200)]
            await client.close()

    asyncio.run(run())


@pytest.mark.parametrize("streams", [False, True])
def test_a_cancelled_call_closes_its_connection(streams: bool) -> None:
    async def run() -> None:
        held = Delivery(chunks({"content": "all "}), pieces=0 if streams else None, then="hold")
        async with serving(held) as served:
            client = wrap(served.openai, BELOW_EVERY_TRIGGER)
            call = asyncio.ensure_future(client.chat.completions.create(model="m", messages=ASKED, stream=streams))
            assert await served.server.until(lambda: bool(served.server.requests), 60)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await served.server.until(lambda: served.server.open_connections == 0, 60)

    asyncio.run(run())


def test_the_given_client_is_not_changed_and_closing_the_wrapped_one_closes_both() -> None:
    async def run() -> None:
        async with serving(completion("bare")) as served:
            client = wrap(served.openai, EMPTY.use(Budget, max_tokens=1))
            answer = await served.openai.chat.completions.create(model="m", messages=ASKED)
            assert answer.choices[0].message.content == "bare"
            await client.close()
            assert served.openai.is_closed()

    asyncio.run(run())


def test_what_cannot_be_wrapped_is_refused() -> None:
    with pytest.raises(WiringError, match=r"wrap: client: expected openai\.AsyncOpenAI.*, got OpenAI$"):
        wrap(openai.OpenAI(api_key="k"), EMPTY)
    with pytest.raises(WiringError, match="wrap: stack: expected a ChatStack, got str"):
        wrap(openai.AsyncOpenAI(api_key="k"), "stack")  # type: ignore[arg-type]
    with pytest.raises(WiringError, match="no provider"):
        EMPTY.build()
    with pytest.raises(WiringError, match=r"wrap: Budget: per='conversation' needs a conversation_id, .* have none"):
        wrap(openai.AsyncOpenAI(api_key="k"), EMPTY.use(Budget, max_tokens=9, per="conversation"))
