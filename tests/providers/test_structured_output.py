"""Answers of a type over every wire, by the official SDKs: what goes out, and what is made of what comes back."""

from __future__ import annotations

import asyncio
import datetime
import json
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import pydantic
import pytest
from anthropic import transform_schema

from chatstack import ChatOptions, ChatResponse, ChatStack, FunctionInvoker, InputError, OutputError
from chatstack.client.parsing import shape_of
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.anthropic.options import output_config
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from tests.client.shapes import LOOSE, STRICT, Booking, Flight, Mood, Owner, Place, Train, Tree
from tests.model_server import MODEL, ModelServer, missing_part, model_server
from tests.servers import MockServer, mock_server

pytestmark = pytest.mark.server

Client: TypeAlias = OpenAIChatClient | OpenAIResponsesClient | AnthropicChatClient
Maker: TypeAlias = Callable[[str], Client]
SOME: list[Any] = [Place, Booking, Owner, Tree, list[Place]]
PLACE = '{"city": "Dubai", "degrees": 41.5}'
BOOKING = (
    '{"byWhat": {"type": "Train", "line": 7, "at": {"city": "Oslo", "degrees": -3}}, "mood": "good", "priceClass": 1, '
    '"seen": ["bad", "good"]}'
)


def chat(url: str) -> Client:
    return OpenAIChatClient("gpt-5-mini", api_key="none", base_url=f"{url}/v1", max_retries=0)


def responses(url: str) -> Client:
    return OpenAIResponsesClient("gpt-5-mini", api_key="none", base_url=f"{url}/v1", max_retries=0)


def claude(url: str) -> Client:
    return AnthropicChatClient("claude-sonnet-5", api_key="none", base_url=f"{url}/anthropic", max_retries=0)


BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ON_EVERY_WIRE = pytest.mark.parametrize("make", [chat, responses, claude])


@pytest.fixture(scope="module")
def server() -> Iterator[MockServer]:
    with mock_server() as running:
        yield running


def ask(client: Client, kind: Any, *, stream: bool, tools: list[Any] | None = None, **options: Any) -> ChatResponse:
    async def asked() -> ChatResponse:
        async with client:
            stack = ChatStack(client).use(FunctionInvoker, tools=tools) if tools else ChatStack(client)
            built = stack.build()
            chosen = ChatOptions(**options)
            answer: ChatResponse
            if stream:
                answer = await built.get_streaming_response("go", output_type=kind, options=chosen).response()
                return answer
            answer = await built.get_response("go", output_type=kind, options=chosen)
            return answer

    return asyncio.run(asyncio.wait_for(asked(), 300))


def asked_for(body: Any) -> dict[str, object]:
    """What the body of a request says of the answer's shape: everything that is not left to the server."""
    if "response_format" in body:
        return cast("dict[str, object]", body["response_format"])
    config = body["text"] if "text" in body else without_types_of_choices(body["output_config"])
    return cast("dict[str, object]", config["format"])


def expected(make: Maker, kind: Any) -> dict[str, object]:
    shape = shape_of(kind).schema
    schema = json.loads(shape.schema)
    named = {"name": shape.name, "schema": schema, "strict": shape.strict}
    if make is chat:
        return {"type": "json_schema", "json_schema": named}
    if make is responses:
        return {"type": "json_schema", **named}
    return {
        "type": "json_schema",
        "schema": transform_schema(without_types_of_choices(schema)),
    }  # as Anthropic's own SDK would ask for it


def without_types_of_choices(schema: Any) -> Any:
    """Anthropic's SDK leaves out the type where a choice already says it; both mean the same."""
    if isinstance(schema, list):
        return [without_types_of_choices(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    fields = cast("dict[str, Any]", schema)
    is_choice = not fields.keys().isdisjoint({"enum", "const"})
    return {k: without_types_of_choices(v) for k, v in fields.items() if not (is_choice and k == "type")}


@BOTH
@ON_EVERY_WIRE
@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [pytest.param(*each, id=str(each[0])) for each in STRICT + LOOSE if each[0] in SOME],
)
def test_the_schema_goes_out_and_the_value_comes_back(
    server: MockServer, make: Maker, kind: Any, text: str, value: object, stream: bool
) -> None:
    server.script({"type": "reply", "text": text})
    response = ask(make(server.url), kind, stream=stream)
    assert response.parsed == value
    assert response.text == text
    assert response.finish_reason == "stop"
    (body,) = server.bodies()
    assert asked_for(body) == expected(make, kind)


@ON_EVERY_WIRE
def test_what_is_nested_and_a_union_is_an_object_of_the_callers_classes(server: MockServer, make: Maker) -> None:
    server.script({"type": "reply", "text": BOOKING})
    parsed = ask(make(server.url), Booking, stream=True).parsed
    assert parsed == Booking(Train(7, Place("Oslo", -3)), Mood.GOOD, 1, [Mood.BAD, Mood.GOOD])


@BOTH
@ON_EVERY_WIRE
def test_effort_and_shape_go_out_together(server: MockServer, make: Maker, stream: bool) -> None:
    server.script({"type": "reply", "text": PLACE})
    ask(make(server.url), Place, stream=stream, reasoning_effort="low")
    (body,) = server.bodies()
    assert asked_for(body) == expected(make, Place)
    assert '"low"' in json.dumps(body)


@BOTH
@pytest.mark.parametrize("make", [chat, responses])
@pytest.mark.parametrize("kind", [Place, Booking, Owner, list[Place], Mood, Flight | Train], ids=str)
def test_what_a_server_makes_from_the_schema_alone_fits(
    server: MockServer, make: Maker, kind: Any, stream: bool
) -> None:
    server.script()
    response = ask(make(server.url), kind, stream=stream)
    assert response.parsed is not None


@BOTH
@ON_EVERY_WIRE
def test_with_tools_in_between_each_round_asks_for_the_shape(server: MockServer, make: Maker, stream: bool) -> None:
    def look(city: str) -> str:
        """Looks at the weather."""
        return f"sunny in {city}"

    call = {"name": "look", "arguments": {"city": "Dubai"}}
    server.script({"type": "reply", "tool_calls": [call]}, {"type": "reply", "text": PLACE})
    response = ask(make(server.url), Place, stream=stream, tools=[look])
    assert response.parsed == Place("Dubai", 41.5)
    assert response.rounds == 2
    assert [asked_for(body) for body in server.bodies()] == [expected(make, Place)] * 2


class Kept(pydantic.BaseModel):
    """Fields whose formats and keywords not every API knows."""

    at: Path
    name: str = pydantic.Field(examples=["k-1"], description="a name")
    page: pydantic.AnyUrl
    id: uuid.UUID
    waits: datetime.timedelta
    old: str = pydantic.Field(default="x", deprecated=True)


def test_anthropic_is_asked_for_what_its_own_sdk_would_ask_for() -> None:
    """A format or keyword that it does not know would be refused."""
    config = output_config(ChatOptions(output_schema=shape_of(Kept).schema))
    assert config["format"] == expected(claude, Kept)
    secret: Any = output_config(ChatOptions(output_schema=shape_of(pydantic.SecretStr).schema))["format"]
    assert secret["schema"]["properties"]["value"]["description"] == "{format: password, writeOnly: True}"


@dataclass
class Counts:
    per_day: dict[str, int]


@dataclass
class Deep:
    counts: list[Counts | None]


@dataclass
class Point:
    at: tuple[float, float]


FREE = (
    "has free keys, as a dict has, which Anthropic does not take; write a list of objects, each with a key and a value"
)
TUPLE = "is a tuple, which Anthropic does not take; write a class with a field for each item, or a list"


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Counts, f"Counts.per_day {FREE}"),
        (Deep, f"Counts.per_day {FREE}"),
        (list[dict[str, int]], f"list.value[] {FREE}"),
        (dict, f"dict.value {FREE}"),
        (Point, f"Point.at {TUPLE}"),
    ],
)
def test_what_anthropic_has_no_form_for_is_refused_by_its_field(server: MockServer, kind: Any, told: str) -> None:
    with pytest.raises(InputError) as caught:
        ask(claude(server.url), kind, stream=False)
    assert str(caught.value) == f"output_type: {told}"


# What is no answer


@BOTH
@ON_EVERY_WIRE
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("It is warm there.", "is not JSON"),
        ('{"city": "Dubai", "degrees": "warm"}', "does not fit: at `$.degrees`: expected float"),
    ],
)
def test_an_answer_that_does_not_fit_is_an_error_with_its_text(
    server: MockServer, make: Maker, text: str, told: str, stream: bool
) -> None:
    server.script({"type": "reply", "text": text})
    with pytest.raises(OutputError) as caught:
        ask(make(server.url), Place, stream=stream)
    assert str(caught.value) == f"output_type=Place: the answer {told}"
    assert caught.value.text == text
    assert caught.value.response is not None
    assert caught.value.response.usage.output_tokens > 0


@BOTH
@ON_EVERY_WIRE
def test_an_answer_that_was_cut_off_is_an_error_with_its_text(server: MockServer, make: Maker, stream: bool) -> None:
    server.script({"type": "reply", "text": PLACE[:12], "finish_reason": "length"})
    with pytest.raises(OutputError, match="was cut off by a limit") as caught:
        ask(make(server.url), Place, stream=stream)
    assert caught.value.text == PLACE[:12]
    assert caught.value.response is not None
    assert caught.value.response.finish_reason == "length"


def events(*data: dict[str, object]) -> str:
    """A stream of server-sent events, each named after its type where it has one."""
    return "".join(f"event: {each.get('type', 'message')}\ndata: {json.dumps(each)}\n\n" for each in data)


USAGE = {"input_tokens": 9, "output_tokens": 4}
NO = "I will not."
CHAT_MESSAGE: dict[str, object] = {"role": "assistant", "content": None, "refusal": NO}
CHAT_USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
ITEM = {
    "type": "message", "id": "m", "role": "assistant", "status": "completed",
    "content": [{"type": "refusal", "refusal": NO}],
}  # fmt: skip
RESPONSE: dict[str, object] = {
    "id": "r", "object": "response", "created_at": 0, "model": "m", "status": "completed", "output": [ITEM],
    "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": {
        **USAGE, "total_tokens": 13, "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0}},
}  # fmt: skip
CLAUDE: dict[str, object] = {
    "id": "a", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_sequence": None,
    "usage": USAGE,
}  # fmt: skip


def chat_chunk(delta: dict[str, object], finish: str | None) -> dict[str, object]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}


REFUSALS: dict[Maker, tuple[str, str]] = {
    chat: (
        json.dumps({"id": "c", "object": "chat.completion", "created": 0, "model": "m", "usage": CHAT_USAGE,
                    "choices": [{"index": 0, "message": CHAT_MESSAGE, "finish_reason": "stop"}]}),
        events(chat_chunk(CHAT_MESSAGE, None), chat_chunk({}, "stop")) + "data: [DONE]\n\n",
    ),
    responses: (
        json.dumps(RESPONSE),
        events(
            {"type": "response.created", "sequence_number": 0, "response": {**RESPONSE, "output": []}},
            {"type": "response.output_item.done", "sequence_number": 1, "output_index": 0, "item": ITEM},
            {"type": "response.completed", "sequence_number": 2, "response": RESPONSE},
        ),
    ),
    claude: (
        json.dumps({**CLAUDE, "stop_reason": "refusal"}),
        events(
            {"type": "message_start", "message": {**CLAUDE, "stop_reason": None}},
            {"type": "message_delta", "delta": {"stop_reason": "refusal", "stop_sequence": None}, "usage": USAGE},
            {"type": "message_stop"},
        ),
    ),
}  # fmt: skip
"""How each API says that the model would not: whole, and streamed."""


@asynccontextmanager
async def saying(text: str, content_type: str) -> AsyncGenerator[str, None]:
    """A server on loopback that says the same to everybody; gives its url."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = next(int(line.split(":")[1]) for line in head.splitlines() if line.startswith("content-length:"))
        await reader.readexactly(size)
        body = text.encode()
        writer.write(
            f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n".encode()
            + body
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@BOTH
@ON_EVERY_WIRE
def test_a_refusal_is_said_to_be_one(make: Maker, stream: bool) -> None:
    async def asked() -> None:
        kind = "text/event-stream" if stream else "application/json"
        async with saying(REFUSALS[make][stream], kind) as url, make(url) as client:
            if stream:
                await client.get_streaming_response("go", output_type=Place).response()
            else:
                await client.get_response("go", output_type=Place)

    with pytest.raises(OutputError) as caught:
        asyncio.run(asyncio.wait_for(asked(), 300))
    assert str(caught.value) == "output_type=Place: the answer was refused"
    assert caught.value.response is not None
    assert caught.value.response.finish_reason == "refused"
    assert NO not in str(caught.value)


# A real model


@pytest.fixture(scope="module")
def real() -> Iterator[ModelServer]:
    if missing_part():
        pytest.skip(f"needs {missing_part()}")
    with model_server() as running:
        yield running


@BOTH
@pytest.mark.parametrize("kind", [Place, Mood, Flight | Train], ids=str)
def test_a_real_model_that_is_held_to_the_schema_gives_a_value(real: ModelServer, kind: Any, stream: bool) -> None:
    client = OpenAIChatClient(MODEL, api_key="none", base_url=real.openai_url, max_retries=0)
    response = ask(client, kind, stream=stream, max_tokens=200, temperature=0.0)
    assert isinstance(response.parsed, kind)
