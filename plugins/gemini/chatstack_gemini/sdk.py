"""The google-genai SDK: making its client, and calling it.

A body goes out as it is, by the ``extra_body`` of a call, which the SDK merges over its own. Its own would take making
its models of the whole history with every call.
"""

from __future__ import annotations

import asyncio
import base64
import enum
import math
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

import msgspec

from chatstack.client.protocol import ProviderInfo
from chatstack.errors import ChatStackError, ServerError, WiringError
from chatstack.providers.asking import counted, translating
from chatstack.providers.extras import WireObject, encoded
from chatstack.providers.failures import misshapen
from chatstack.providers.received import readable
from chatstack.providers.sdk import Sdk
from chatstack.providers.settings import check_base_url, check_key
from chatstack.telemetry.propagation import trace_headers
from chatstack_gemini.failing import translated
from chatstack_gemini.parts import PROVIDER

if TYPE_CHECKING:
    from google.genai import Client
    from google.genai.client import AsyncClient
    from google.genai.types import (
        CountTokensConfig,
        CountTokensResponse,
        GenerateContentConfig,
        GenerateContentResponse,
        GetModelConfig,
        HttpOptions,
        Model,
    )

DEFAULT_URL = "https://generativelanguage.googleapis.com/"
_LEAST_SERVER_SECONDS = 10
"""The API refuses a shorter deadline, and the SDK would send the timeout as one."""
_NO_CONTENTS = "."
"""Contents that the SDK demands; those of the body replace them."""


class _Models(Protocol):
    """The SDK's methods for models, so far as they are used here: its own hints name types that may be missing."""

    async def generate_content(
        self, *, model: str, contents: str, config: GenerateContentConfig
    ) -> GenerateContentResponse: ...

    async def generate_content_stream(
        self, *, model: str, contents: str, config: GenerateContentConfig
    ) -> AsyncIterator[GenerateContentResponse]: ...

    async def count_tokens(self, *, model: str, contents: str, config: CountTokensConfig) -> CountTokensResponse: ...

    async def get(self, *, model: str, config: GetModelConfig) -> Model: ...


class _Told(msgspec.Struct):
    error: dict[str, Any]


class _Api:
    """The SDK's own client of the API. Raises its error for one that came with status 200: the SDK does so for streams
    alone, and of a whole answer it leaves out what it does not know."""

    def __init__(self, api: Any) -> None:
        self._api = api

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def async_request(self, *args: object, **options: object) -> object:
        """Return the answer of the API."""
        from google.genai.errors import APIError

        response = await self._api.async_request(*args, **options)
        try:
            told = msgspec.json.decode(response.body, type=_Told | list[_Told])
        except (msgspec.DecodeError, RecursionError):  # an answer, or the SDK's to refuse
            return response
        raise APIError(0, msgspec.to_builtins(told), response)


class Connection:
    """The SDK's client, and what is known of it: the address of its server, and whether that is Google Cloud's."""

    def __init__(self, client: AsyncClient, owner: Client | None = None) -> None:
        self._client = client
        self._owner = owner
        api = getattr(client, "_api_client", None)  # the SDK has no public name for the address
        models: Any = client.models
        self.models = cast("_Models", models if api is None else type(models)(_Api(api)))
        self.base_url = str(getattr(getattr(api, "_http_options", None), "base_url", None) or DEFAULT_URL)
        self.is_cloud = bool(getattr(api, "vertexai", False))

    async def close(self) -> None:
        """Close the SDK's client, and that for synchronous calls, which it always has."""
        await self._client.aclose()
        if self._owner is not None:
            self._owner.close()


class GeminiSdk(Sdk[Connection]):
    """The google-genai SDK."""

    name = PROVIDER

    def client(
        self, owner: str, client: object | None, asked: Mapping[str, object], cloud: str | None = None
    ) -> Connection:
        """Return the connection of a given client, or of a new one. On Google Cloud only a given one can be."""
        from google.genai import Client
        from google.genai.client import AsyncClient

        if cloud is not None:
            told = f"cloud={cloud!r}: pass client=google.genai.Client(vertexai=True, ...)"
            raise WiringError(f"{owner}: {told}", parameter="cloud")
        if client is None:
            made = _made(owner, asked)
            return Connection(made.aio, made)
        given = [name for name, value in asked.items() if value is not None]
        if given:
            raise WiringError(f"{owner}: pass client, or {', '.join(given)}, not both", parameter="client")
        if not isinstance(client, (Client, AsyncClient)):
            told = f"client must be a google.genai.Client(...), not {type(client).__name__}"
            raise WiringError(f"{owner}: {told}", parameter="client")
        return Connection(client.aio, client) if isinstance(client, Client) else Connection(client)

    def info(self, client: Connection, model: str, window_tokens: int | None) -> ProviderInfo:
        """Return the provider's info."""
        address = urlsplit(client.base_url)
        return ProviderInfo(
            name="gcp.vertex_ai" if client.is_cloud else PROVIDER,
            model=model,
            server_address=address.hostname or "",
            server_port=address.port or {"https": 443, "http": 80}.get(address.scheme),
            window_tokens=window_tokens,
        )

    def fields_of(self, event: object, *, streaming: bool) -> WireObject:
        """Return the JSON object of an answer or a chunk, bytes in base64."""
        with misshapen(self.name, streaming=streaming):
            dumped = cast("GenerateContentResponse", event).model_dump(by_alias=True, exclude_none=True, warnings=False)
            dumped.pop("sdkHttpResponse", None)
            return readable(cast("WireObject", _plain(dumped)))

    def whole_answer(self, fields: WireObject) -> GenerateContentResponse:
        """Return a streamed answer as the SDK's object for the same answer unstreamed."""
        from google.genai.types import GenerateContentResponse

        return GenerateContentResponse.model_validate_json(encoded(fields))

    def translated(self, error: Exception, *, streaming: bool = False) -> ChatStackError | None:
        """Return our error for an exception of the SDK."""
        return translated(error, streaming=streaming)


GEMINI = GeminiSdk()


class Chunks:
    """A stream that has begun: its first chunk has come."""

    def __init__(self, first: GenerateContentResponse, rest: AsyncIterator[GenerateContentResponse]) -> None:
        self._first: GenerateContentResponse | None = first
        self._rest = rest

    def __aiter__(self) -> Chunks:
        return self

    async def __anext__(self) -> object:
        first, self._first = self._first, None
        return await anext(self._rest) if first is None else first

    async def close(self) -> None:
        """Close the stream by a read that is cancelled: that ends each of the SDK's generators, the innermost first.
        Closed while they wait for their reader, they would leave the connection open."""
        is_open = True
        while is_open:  # a chunk that has come already is read at once, and dropped
            reading = asyncio.ensure_future(anext(self._rest, None))
            await asyncio.sleep(0)
            reading.cancel()
            (found,) = await asyncio.gather(reading, return_exceptions=True)
            is_open = found is not None and not isinstance(found, BaseException)


async def created(connection: Connection, model: str, body: WireObject, *, stream: bool) -> object:
    """Send a request; return the SDK's answer, or a stream whose first chunk has come."""
    from google.genai.types import AutomaticFunctionCallingConfig, GenerateContentConfig

    config = GenerateContentConfig(
        http_options=_options(body),
        automatic_function_calling=AutomaticFunctionCallingConfig(disable=True),
    )
    if not stream:
        return await connection.models.generate_content(model=model, contents=_NO_CONTENTS, config=config)
    chunks = await connection.models.generate_content_stream(model=model, contents=_NO_CONTENTS, config=config)
    try:
        return Chunks(await anext(chunks), chunks)
    except StopAsyncIteration:
        raise ServerError(f"{PROVIDER}: the stream is empty: check base_url", provider=PROVIDER) from None


async def input_tokens(connection: Connection, model: str, body: WireObject) -> int | None:
    """Return the tokens of that body from the count endpoint."""
    from google.genai.types import CountTokensConfig

    asked: WireObject
    if connection.is_cloud:
        asked = {
            name: body[name] for name in ("contents", "systemInstruction", "tools", "generationConfig") if name in body
        }
    else:
        name = model if "/" in model else f"models/{model}"
        asked = {"contents": [], "generateContentRequest": {"model": name, **body}}
    with translating(GEMINI.translated):
        found = await connection.models.count_tokens(
            model=model, contents=_NO_CONTENTS, config=CountTokensConfig(http_options=_options(asked))
        )
    return counted(found.total_tokens, PROVIDER)


async def window_told(connection: Connection, model: str) -> int | None:
    """Return the input limit on the model's card; None if it has none."""
    from google.genai.types import GetModelConfig

    with translating(GEMINI.translated):
        found = await connection.models.get(model=model, config=GetModelConfig(http_options=_options()))
    return found.input_token_limit or None


def _options(body: WireObject | None = None) -> HttpOptions:
    from google.genai.types import HttpOptions

    return HttpOptions(extra_body=body, headers=trace_headers())


def _made(owner: str, asked: Mapping[str, object]) -> Client:
    from google.genai import Client
    from google.genai.types import HttpOptions, HttpRetryOptions

    check_key(owner, asked["api_key"])
    base_url, timeout, retries = asked["base_url"], asked["timeout"], asked["max_retries"]
    if base_url is not None:
        check_base_url(owner, base_url)
    seconds = cast("float | None", timeout)
    options = HttpOptions(
        base_url=cast("str | None", base_url),
        timeout=None if seconds is None else max(1, round(seconds * 1000)),
        headers=None if seconds is None else {"X-Server-Timeout": str(max(_LEAST_SERVER_SECONDS, math.ceil(seconds)))},
        retry_options=None if retries is None else HttpRetryOptions(attempts=cast("int", retries) + 1),
        httpx_async_client=cast("None", asked["http_client"]),
    )
    try:
        return Client(api_key=cast("str | None", asked["api_key"]), http_options=options)
    except ValueError as error:
        told = f"{owner}: no API key; set GEMINI_API_KEY or pass api_key='...'"
        raise WiringError(told, parameter="api_key") from error


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [_plain(each) for each in cast("list[object]", value)]
    return value
