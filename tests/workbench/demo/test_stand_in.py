"""The stand-in for a model: its rules, and that it is a server like a real one to the official SDK."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from chatstack.workbench.demo.notes import city_in
from chatstack.workbench.demo.rules import BadRequestError, Reply, count_tokens, reply_to
from chatstack.workbench.demo.stand_in import StandIn
from chatstack.workbench.demo.travel import CITIES, TOOLS, get_clothing_advice, get_weather, question

Wire = dict[str, Any]

DECLARED: list[Wire] = [
    {
        "type": "function",
        "function": {"name": each.name, "description": each.description, "parameters": json.loads(each.parameters)},
    }
    for each in TOOLS
]


def user(text: str) -> Wire:
    return {"role": "user", "content": text}


def called(call_id: str, name: str, **arguments: object) -> Wire:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def result(call_id: str, value: object) -> Wire:
    return {"role": "tool", "tool_call_id": call_id, "content": value if isinstance(value, str) else json.dumps(value)}


def body(*messages: Wire, **more: object) -> Wire:
    return {"model": "stand-in", "messages": list(messages), "tools": DECLARED, **more}


ASKED = [user(question("Lima"))]
WEATHER_KNOWN = [*ASKED, called("a", "get_weather", city="Lima"), result("a", get_weather("Lima"))]
ALL_KNOWN = [
    *WEATHER_KNOWN,
    called("b", "get_clothing_advice", temperature=19),
    result("b", get_clothing_advice(19)),
]


def test_a_city_is_answered_by_asking_for_its_weather() -> None:
    assert reply_to(body(*ASKED)) == Reply(call="get_weather", arguments={"city": "Lima"})


def test_known_weather_is_followed_by_asking_for_advice_at_that_temperature() -> None:
    assert reply_to(body(*WEATHER_KNOWN)) == Reply(call="get_clothing_advice", arguments={"temperature": 19})


def test_weather_and_advice_become_two_sentences() -> None:
    said = reply_to(body(*ALL_KNOWN))
    assert said.text == (
        "Lima has 19 degrees and overcast today. I would wear a light jacket or a sweater, and comfortable trousers."
    )


@pytest.mark.parametrize("without_tools", [{"tool_choice": "none"}, {"tools": []}])
def test_without_allowed_tools_it_answers_with_what_is_there(without_tools: Wire) -> None:
    assert reply_to(body(*WEATHER_KNOWN) | without_tools).text.startswith("Lima has 19 degrees")
    assert reply_to(body(*ASKED) | without_tools).text.startswith("I could not find out the weather in Lima.")


def test_a_failed_tool_is_admitted_and_not_called_again() -> None:
    failed = [*ASKED, called("a", "get_weather", city="Lima"), result("a", "Error: get_weather failed.")]
    assert reply_to(body(*failed)).text.startswith("I could not find out the weather in Lima.")


def test_results_of_an_earlier_turn_do_not_answer_this_one() -> None:
    again = [*ALL_KNOWN, {"role": "assistant", "content": "Lima has 19 degrees."}, user(question("Oslo"))]
    assert reply_to(body(*again)) == Reply(call="get_weather", arguments={"city": "Oslo"})


def test_it_knows_only_the_cities_that_are_in_the_request() -> None:
    asked = user("Which cities did we talk about?")
    whole = [user(question("Lima")), user(question("New York")), asked]
    assert "2 of your cities. They are Lima, New York." in reply_to(body(*whole)).text
    assert "1 of your cities. They are New York." in reply_to(body(*whole[1:])).text


@pytest.mark.parametrize("city", [*CITIES, "Rio de Janeiro", "Århus"])
def test_every_city_of_the_demo_is_understood(city: str) -> None:
    assert city_in(question(city)) == city
    assert city_in(f"And what do I pack for {city} tomorrow?") == city


@pytest.mark.parametrize("text", ["", "Hello!", "I am interested in cooking", "in"])
def test_text_without_a_city_has_none(text: str) -> None:
    assert city_in(text) == ""


@pytest.mark.parametrize(
    "messages",
    [
        [user(question("Lima")), result("nobody", "{}")],
        [user(question("Lima")), called("a", "get_weather", city="Lima"), user("Well?")],
        [{"role": "system", "content": "You are a travel assistant."}],
        [],
    ],
    ids=["result without call", "call without result", "no user message", "nothing"],
)
def test_a_conversation_that_a_real_server_refuses_is_refused(messages: list[Wire]) -> None:
    with pytest.raises(BadRequestError):
        reply_to(body(*messages))


def test_every_message_that_is_left_out_makes_the_request_shorter() -> None:
    sizes = [count_tokens(body(*ALL_KNOWN[: length + 1])) for length in range(len(ALL_KNOWN))]
    assert sizes == sorted(set(sizes))


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn(window_tokens=600) as running:
        yield running


@pytest.fixture
def sdk(server: StandIn) -> Iterator[openai.OpenAI]:
    direct = openai.DefaultHttpxClient(trust_env=False)
    with openai.OpenAI(base_url=server.base_url, api_key="none", http_client=direct, max_retries=0) as client:
        yield client


def test_the_sdk_reads_a_tool_call_with_its_usage(sdk: openai.OpenAI) -> None:
    request = body(*ASKED)
    answer = sdk.chat.completions.create(**request)
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Lima"})
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == count_tokens(request)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def streamed(sdk: openai.OpenAI, asked: Wire) -> Iterable[ChatCompletionChunk]:
    create: Callable[..., Iterable[ChatCompletionChunk]] = sdk.chat.completions.create
    return create(**asked)


@pytest.mark.parametrize("messages", [ASKED, ALL_KNOWN], ids=["call", "text"])
def test_a_streamed_answer_is_the_whole_one_in_pieces(sdk: openai.OpenAI, messages: list[Wire]) -> None:
    whole = sdk.chat.completions.create(**body(*messages))
    text, arguments, finish, usage = "", "", None, None
    options = {"include_usage": True}
    for chunk in streamed(sdk, body(*messages, stream=True, stream_options=options)):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                arguments += (call.function.arguments or "") if call.function else ""
    message = whole.choices[0].message
    assert text == (message.content or "")
    assert arguments == "".join(each.function.arguments for each in message.tool_calls or [] if each.type == "function")
    assert (finish, usage) == (whole.choices[0].finish_reason, whole.usage)


def test_usage_is_streamed_only_when_it_is_asked_for(sdk: openai.OpenAI) -> None:
    chunks = list(streamed(sdk, body(*ASKED, stream=True)))
    assert [chunk.usage for chunk in chunks] == [None] * len(chunks)


def test_a_request_longer_than_the_window_is_refused_with_both_numbers(sdk: openai.OpenAI, server: StandIn) -> None:
    long = body(user("x" * 4_000))
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.chat.completions.create(**long)
    assert refused.value.code == "context_length_exceeded"
    assert "maximum context length is 600 tokens" in str(refused.value)
    assert f"resulted in {count_tokens(long)} tokens" in str(refused.value)
    assert server.requests_served == 0


def test_an_orphaned_result_is_refused_over_http(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.chat.completions.create(**body(*ASKED, result("nobody", "{}")))
    assert refused.value.code == "invalid_messages"


def test_it_lists_its_model_with_its_window(sdk: openai.OpenAI) -> None:
    (model,) = sdk.models.list().data
    assert (model.id, (model.model_extra or {})["context_length"]) == ("stand-in", 600)


def test_other_paths_and_broken_bodies_are_refused(sdk: openai.OpenAI, server: StandIn) -> None:
    with pytest.raises(openai.NotFoundError):
        sdk.embeddings.create(model="stand-in", input="x", encoding_format="float")
    assert _raw(server, b"GET /nothing HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 404 ")
    for length, content in ((b"3", b"{no"), (b"2", b"[]"), (b"many", b""), (b"999999999999", b"")):
        head = b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " + length + b"\r\n\r\n"
        assert _raw(server, head + content).startswith(b"HTTP/1.0 400 ")


def test_it_listens_on_loopback_only_and_on_nothing_once_it_is_left() -> None:
    with StandIn() as server:
        host, port = server.base_url.removeprefix("http://").removesuffix("/v1").split(":")
        assert host == "127.0.0.1"
        socket.create_connection((host, int(port)), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=5)
    with pytest.raises(RuntimeError, match="not running"):
        server.base_url  # noqa: B018


def _raw(server: StandIn, request: bytes) -> bytes:
    host, port = server.base_url.removeprefix("http://").removesuffix("/v1").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(request)
        answer = b""
        while received := connection.recv(65_536):
            answer += received
        return answer


def test_it_can_be_started_and_closed_without_a_block() -> None:
    server = StandIn().start()
    assert server.base_url.startswith("http://127.0.0.1:")
    server.close()
    server.close()
    with pytest.raises(RuntimeError, match="not running"):
        _ = server.base_url
