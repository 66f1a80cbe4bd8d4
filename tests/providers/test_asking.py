"""What is asked of an API beside answers: a model's window, and the length of a request."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, TypeAlias

import anthropic
import openai
import pytest

from chatstack import (
    AuthenticationError,
    ChatOptions,
    ChatRequest,
    InputError,
    Message,
    OutputSchema,
    ProviderError,
    ProviderTimeoutError,
    RequestRefusedError,
    ServerError,
    ToolCall,
    ToolDeclaration,
)
from chatstack.client.protocol import CountsTokens, TellsWindow
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.anthropic.sdk import COUNTED, COUNTED_WITH_BETAS
from chatstack.providers.asking import card_of, window_on
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from chatstack.tokens.windows import Windows
from tests.servers import MockServer, mock_server, silent_server

Client: TypeAlias = OpenAIChatClient | OpenAIResponsesClient | AnthropicChatClient
MODEL = "house/model"
ON_EVERY_WIRE = pytest.mark.parametrize("kind", [OpenAIChatClient, OpenAIResponsesClient, AnthropicChatClient])
COUNTING = pytest.mark.parametrize("kind", [OpenAIResponsesClient, AnthropicChatClient])
NOT_FOUND = (404, {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}})
LLAMA = {"id": "smollm2", "aliases": ["small"], "owned_by": "llamacpp", "meta": {"n_ctx": 2048, "n_ctx_train": 8192}}
WEATHER = ToolDeclaration("weather", "The weather", '{"type":"object","properties":{"city":{"type":"string"}}}')
TALK = (
    Message.system("You are brief."),
    Message.user("Weather?"),
    Message.assistant(ToolCall("a", "weather", '{"city": "Dubai"}')),
    Message.tool("a", "41C"),
    Message.user("And tomorrow?"),
)


class Api:
    """Answers by the end of the path, on no network, and keeps what it was asked."""

    def __init__(self, **answers: object) -> None:
        self.answers = answers
        self.requests: list[Any] = []

    def http_client(self, kind: type[Client]) -> Any:
        is_old = kind is not AnthropicChatClient and openai.__version__.startswith("2.")
        http = importlib.import_module("httpx" if is_old else "httpx2")

        def answer(request: Any) -> Any:
            self.requests.append(request)
            said = self.answers.get(request.url.path.rsplit("/", 1)[-1], NOT_FOUND)
            status, body = said if isinstance(said, tuple) else (200, said)
            if isinstance(body, bytes):
                return http.Response(status, content=body, headers={"content-type": "text/html"})
            return http.Response(status, json=body)

        return http.AsyncClient(transport=http.MockTransport(answer))

    def ask(self, kind: type[Client], use: Callable[[Any], Any]) -> Any:
        async def asked() -> Any:
            async with self.http_client(kind) as http_client:
                client = kind(MODEL, api_key="k", http_client=http_client, max_retries=0)
                return await use(client)

        return asyncio.run(asked())

    def window(self, kind: type[Client], model: str = "") -> Any:
        return self.ask(kind, lambda client: client.window_tokens(model))

    def count(self, kind: type[Client], *messages: Message, **options: object) -> Any:
        request = ChatRequest(messages or TALK, ChatOptions().but(**options), stream=True)
        return self.ask(kind, lambda client: client.count_tokens(request))

    @property
    def paths(self) -> list[str]:
        return [request.url.raw_path.decode() for request in self.requests]

    @property
    def body(self) -> dict[str, Any]:
        found = json.loads(self.requests[-1].content)
        assert isinstance(found, dict)
        return found


@pytest.fixture(scope="module")
def server() -> Iterator[MockServer]:
    with mock_server() as running:
        yield running


@pytest.mark.parametrize(
    ("card", "window"),
    [
        ({"max_input_tokens": 200_000, "max_tokens": 64_000}, 200_000),
        ({"max_model_len": 32_768}, 32_768),
        ({"context_window": 131_072, "max_completion_tokens": 8_192}, 131_072),
        ({"context_length": 1_048_576}, 1_048_576),
        ({"context_length": 1_048_576, "top_provider": {"context_length": 262_000}}, 262_000),
        ({"context_length": 32_768, "top_provider": {"context_length": None}}, 32_768),
        ({"context_length": 32_768, "top_provider": None}, 32_768),
        ({"max_context_length": 131_072}, 131_072),
        ({"max_context_length": 131_072, "loaded_context_length": 4_096}, 4_096),
        ({"meta": {"n_ctx": 2_048, "n_ctx_train": 8_192}}, 2_048),
        ({"meta": {"n_ctx_train": 8_192}}, None),
        ({"meta": {"n_ctx": 2_048}, "max_model_len": 1_024}, 1_024),
        ({"id": "gpt-5", "created": 1, "object": "model", "owned_by": "openai"}, None),
        ({"max_tokens": 64_000}, None),
        ({"max_input_tokens": None, "context_window": 0, "context_length": 8_192}, 8_192),
        *(({"context_length": value}, None) for value in (0, -1, True, "8192", 8e3, 10**30, [8_192])),
        ({"meta": [2_048], "top_provider": 3}, None),
    ],
)
def test_every_server_has_a_field_of_its_own_for_the_window(card: dict[str, object], window: int | None) -> None:
    assert window_on(card) == window


def test_a_model_is_found_by_its_id_or_an_alias() -> None:
    one, other = {"id": "one"}, {"id": "other", "aliases": ["another"]}
    assert card_of("one", {"data": [other, one]}) is one
    assert card_of("another", {"data": [one, other]}) is other
    assert card_of("one", [other, one]) is one, "one router sends the bare list"
    assert card_of("third", {"data": [one, other]}) is None


def test_a_server_of_one_model_serves_it_under_any_name() -> None:
    assert card_of("whatever", {"data": [LLAMA]}) is LLAMA
    assert card_of("whatever", {"data": [{**LLAMA, "owned_by": "somebody"}]}) is None
    assert card_of("whatever", {"data": [LLAMA, {**LLAMA, "id": "b"}]}) is None


@pytest.mark.parametrize("listing", [None, {}, {"data": None}, {"data": {"id": "one"}}, [1, "one", None], "one", 3])
def test_a_list_of_another_shape_holds_no_model(listing: object) -> None:
    assert card_of("one", listing) is None


@ON_EVERY_WIRE
def test_the_window_is_what_the_models_endpoint_says(kind: type[Client]) -> None:
    api = Api(model={"id": MODEL, "max_input_tokens": 200_000})
    assert api.window(kind) == 200_000
    assert api.paths == ["/v1/models/house%2Fmodel"]


@ON_EVERY_WIRE
def test_a_window_can_be_asked_for_by_the_models_name(kind: type[Client]) -> None:
    api = Api(other={"id": "other", "max_model_len": 4_096})
    assert api.window(kind, "other") == 4_096
    assert api.paths == ["/v1/models/other"]


@ON_EVERY_WIRE
@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_server_that_knows_only_the_list_is_asked_for_the_list(kind: type[Client], status: int) -> None:
    api = Api(model=(status, {"error": {"message": "no"}}), models={"object": "list", "data": [LLAMA]})
    assert api.window(kind) == 2_048
    assert api.paths == ["/v1/models/house%2Fmodel", "/v1/models"]


@ON_EVERY_WIRE
@pytest.mark.parametrize("answer", [b"<html>", None, {"object": "list", "data": [LLAMA]}, [LLAMA], 3])
def test_an_answer_that_is_no_model_leaves_the_list_to_be_asked(kind: type[Client], answer: object) -> None:
    api = Api(model=answer, models=[{"id": MODEL, "context_length": 5_000}])
    assert api.window(kind) == 5_000


@ON_EVERY_WIRE
def test_an_api_that_says_nothing_of_windows_is_asked_once(kind: type[Client]) -> None:
    api = Api(model={"id": MODEL, "object": "model", "created": 1, "owned_by": "openai"}, models={"data": [LLAMA]})
    assert api.window(kind) is None
    assert api.paths == ["/v1/models/house%2Fmodel"]


@ON_EVERY_WIRE
def test_a_model_that_is_not_in_the_list_has_no_window(kind: type[Client]) -> None:
    assert Api(models={"data": [{"id": "other", "context_length": 1}]}).window(kind) is None


@ON_EVERY_WIRE
@pytest.mark.parametrize(
    ("status", "error"), [(401, AuthenticationError), (404, RequestRefusedError), (500, ServerError)]
)
def test_what_goes_wrong_is_the_error_that_fits(kind: type[Client], status: int, error: type[ProviderError]) -> None:
    said = (status, {"error": {"message": "secret", "type": "t"}})
    with pytest.raises(error) as caught:
        Api(model=said, models=said).window(kind)
    assert (type(caught.value), caught.value.status) == (error, status)
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value.__cause__, openai.OpenAIError | anthropic.AnthropicError)


@ON_EVERY_WIRE
@pytest.mark.server
def test_a_mock_of_the_official_apis_tells_no_window(kind: type[Client], server: MockServer) -> None:
    url = server.anthropic_url if kind is AnthropicChatClient else server.openai_url

    async def asked() -> tuple[int | None, int | None]:
        async with kind("gpt-4o", api_key="k", base_url=url, max_retries=0) as client:
            return await client.window_tokens(), await Windows().of(client)

    assert asyncio.run(asked()) == (None, 128_000)


@ON_EVERY_WIRE
@pytest.mark.server
def test_a_server_that_does_not_answer_costs_the_asker_only_patience(kind: type[Client]) -> None:
    async def asked(url: str) -> int | None:
        async with kind("gpt-4o", api_key="k", base_url=url, max_retries=0, timeout_seconds=0.1) as client:
            with pytest.raises(ProviderTimeoutError):
                await client.window_tokens()
            found = await Windows(ask_seconds=0.05).of(client)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return found

    with silent_server() as url:
        assert asyncio.run(asked(url)) == 128_000


@COUNTING
def test_the_count_is_what_the_count_endpoint_says(kind: type[Client]) -> None:
    api = Api(count_tokens={"input_tokens": 31}, input_tokens={"input_tokens": 31, "object": "response.input_tokens"})
    assert api.count(kind) == 31
    is_anthropic = kind is AnthropicChatClient
    assert api.paths == ["/v1/messages/count_tokens" if is_anthropic else "/v1/responses/input_tokens"]


@COUNTING
def test_what_is_counted_is_what_would_be_sent(kind: type[Client]) -> None:
    """All that takes room, and nothing that the count endpoint refuses."""
    options: dict[str, object] = {
        "instructions": "Answer in English.",
        "tools": (WEATHER,),
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "max_tokens": 50,
        "temperature": 0.5,
        "top_p": 0.5,
        "reasoning_effort": "low",
        "output_schema": OutputSchema("answer", '{"type":"object"}'),
        "extra": {"metadata": {"user_id": "u"}, "service_tier": "auto"},
    }
    api = Api(count_tokens={"input_tokens": 1}, input_tokens={"input_tokens": 1})
    api.count(kind, **options)
    counted = api.body
    with pytest.raises(ProviderError):
        api.ask(kind, lambda client: client.send(ChatRequest(TALK, ChatOptions().but(**options))))
    sent = api.body
    assert counted == {name: sent[name] for name in counted}
    assert (
        sent.keys() - counted.keys()
        == {
            OpenAIResponsesClient: {"max_output_tokens", "temperature", "top_p", "metadata", "service_tier"},
            AnthropicChatClient: {"max_tokens", "temperature", "top_p", "metadata", "service_tier", "stream"},
        }[kind]
    )


@COUNTING
def test_the_model_of_the_options_counts(kind: type[Client]) -> None:
    api = Api(count_tokens={"input_tokens": 1}, input_tokens={"input_tokens": 1})
    api.count(kind)
    assert api.body["model"] == MODEL
    api.count(kind, model="other")
    assert api.body["model"] == "other"


def test_betas_are_counted_with() -> None:
    management = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    api = Api(count_tokens={"input_tokens": 1})
    api.count(AnthropicChatClient, extra={"betas": ["context-management-2025-06-27"], "context_management": management})
    assert api.requests[-1].headers["anthropic-beta"] == "context-management-2025-06-27"
    assert api.body["context_management"] == management
    api.count(AnthropicChatClient, extra={"context_management": management})
    assert "context_management" not in api.body
    assert "anthropic-beta" not in api.requests[-1].headers


def test_the_fields_that_are_counted_are_those_that_the_sdk_knows() -> None:
    """A new SDK that knows more fails here."""
    beside = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    messages = anthropic.resources.messages.AsyncMessages.count_tokens
    betas = anthropic.resources.beta.messages.AsyncMessages.count_tokens
    assert names_of(messages) - beside - COUNTED == {"output_format", "workspace_id"}
    assert names_of(messages) >= COUNTED
    assert names_of(betas) >= COUNTED | COUNTED_WITH_BETAS


@COUNTING
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (NOT_FOUND, RequestRefusedError),
        ((401, {"error": {"message": "secret"}}), AuthenticationError),
        ((400, {"error": {"message": "secret"}}), RequestRefusedError),
        ({"hello": "world"}, ServerError),
        ({"input_tokens": "31"}, ServerError),
        ({"input_tokens": -1}, ServerError),
        ([1], ServerError),
        (b"<html>", ServerError),
    ],
)
def test_what_cannot_be_counted_is_the_error_that_fits(
    kind: type[Client], answer: object, error: type[ProviderError]
) -> None:
    with pytest.raises(error) as caught:
        Api(count_tokens=answer, input_tokens=answer).count(kind)
    assert type(caught.value) is error
    assert "secret" not in str(caught.value)


@COUNTING
def test_what_cannot_be_sent_cannot_be_counted(kind: type[Client]) -> None:
    api = Api()
    with pytest.raises(InputError, match=r"options\.extra"):
        api.count(kind, extra={"user": object()})
    assert api.requests == []


def test_chat_completions_do_not_count() -> None:
    api = Api()
    assert api.count(OpenAIChatClient) is None
    assert api.requests == []


def test_a_cloud_of_which_the_sdk_says_that_it_cannot_count_does_not() -> None:
    """Nor does it tell windows."""

    async def refusing(**given: object) -> object:
        raise anthropic.AnthropicError("Token counting is not supported in Bedrock yet")

    cloud = SimpleNamespace(base_url="https://cloud.test", messages=SimpleNamespace(count_tokens=refusing))
    client = AnthropicChatClient(MODEL, client=cloud)
    request = ChatRequest((Message.user("hi"),))
    assert asyncio.run(client.count_tokens(request)) is None
    assert asyncio.run(client.window_tokens()) is None
    del cloud.messages.count_tokens
    assert asyncio.run(client.count_tokens(request)) is None


def test_a_client_of_yours_without_these_endpoints_tells_nothing() -> None:
    yours = SimpleNamespace(
        base_url="https://house.test",
        chat=SimpleNamespace(completions=SimpleNamespace(create=print)),
        responses=SimpleNamespace(create=print),
    )
    request = ChatRequest((Message.user("hi"),))
    assert asyncio.run(OpenAIChatClient(MODEL, client=yours).window_tokens()) is None
    assert asyncio.run(OpenAIResponsesClient(MODEL, client=yours).window_tokens()) is None
    assert asyncio.run(OpenAIResponsesClient(MODEL, client=yours).count_tokens(request)) is None


@ON_EVERY_WIRE
def test_what_a_client_can_be_asked_shows_in_its_type(kind: type[Client]) -> None:
    client = kind(MODEL, api_key="k")
    assert isinstance(client, TellsWindow)
    assert isinstance(client, CountsTokens)
    asyncio.run(client.aclose())


def names_of(function: Any) -> set[str]:
    code = function.__code__
    return set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
