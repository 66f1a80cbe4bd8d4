"""The openai SDK, as far as both of its APIs are used alike: making a client, calling it, and what its errors mean.

Works with openai 2 (from 2.54) and 3. The SDK is imported when a client is made, and no HTTP library is.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast
from urllib.parse import urlsplit

from chatstack.client.protocol import ProviderInfo
from chatstack.errors import (
    BrokenStreamError,
    ChatStackError,
    ProviderConnectionError,
    ProviderTimeoutError,
    ServerError,
    WiringError,
)
from chatstack.providers.asking import told_window
from chatstack.providers.assembly import StallGuard
from chatstack.providers.extras import WireObject
from chatstack.providers.failures import failure, misshapen, transport_failure
from chatstack.providers.openai.chat_parts import PROVIDER
from chatstack.providers.received import readable
from chatstack.providers.settings import check_base_url, check_key
from chatstack.telemetry.propagation import trace_headers

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Create: TypeAlias = Callable[..., Awaitable[object]]
"""The ``create`` of one of the SDK's resources."""

_DEFAULT_URL = "https://api.openai.com/v1"
_NOT_BODY = frozenset({"self", "extra_headers", "extra_query", "extra_body", "timeout"})


class _SdkStream(Protocol):
    async def __anext__(self) -> object: ...

    def __aiter__(self) -> AsyncIterator[object]: ...

    async def close(self) -> None: ...


class _Counted(Protocol):
    num_bytes_downloaded: int


class _SdkModel(Protocol):
    def to_dict(self, *, warnings: bool) -> dict[str, object]: ...


def sdk_client(
    owner: str,
    client: object | None,
    *,
    api_key: str | None,
    base_url: str | None,
    timeout_seconds: float | None,
    max_retries: int | None,
    http_client: object | None,
) -> AsyncOpenAI:
    """The client that was given, or a new one. Raises ``WiringError``, naming ``owner`` and the remedy."""
    try:
        import openai
    except ModuleNotFoundError as error:
        if error.name != "openai":
            raise
        raise WiringError(f"{owner}: the openai SDK is missing; pip install 'chatstack-core[openai]'") from error
    asked = {
        "api_key": api_key,
        "base_url": base_url,
        "timeout": timeout_seconds,
        "max_retries": max_retries,
        "http_client": http_client,
    }
    options = {name: value for name, value in asked.items() if value is not None}
    check_key(owner, api_key)
    if client is not None:
        if options:
            raise WiringError(f"{owner}: pass client, or {', '.join(options)}, not both", parameter="client")
        if isinstance(client, openai.OpenAI):
            raise WiringError(f"{owner}: client is synchronous; pass openai.AsyncOpenAI(...)", parameter="client")
        if not isinstance(client, openai.AsyncOpenAI) and not (hasattr(client, "base_url") and hasattr(client, "chat")):
            kind = type(client).__name__
            raise WiringError(f"{owner}: client must be an openai.AsyncOpenAI(...), not {kind}", parameter="client")
        return _with_key(owner, cast("AsyncOpenAI", client))
    check_base_url(owner, base_url or os.environ.get("OPENAI_BASE_URL") or _DEFAULT_URL)
    try:
        made = openai.AsyncOpenAI(**options)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    except openai.OpenAIError as error:
        raise WiringError(
            f"{owner}: no API key; set OPENAI_API_KEY or pass api_key='...' (any text for a server that needs none)",
            parameter="api_key",
        ) from error
    return _with_key(owner, made)


def _with_key(owner: str, client: AsyncOpenAI) -> AsyncOpenAI:
    """The client, if its key, which may come from the environment, can go into a header."""
    for name in ("api_key", "admin_api_key"):
        check_key(owner, getattr(client, name, None) or None)
    return client


def sdk_info(client: AsyncOpenAI, model: str, window_tokens: int | None) -> ProviderInfo:
    """Who answers: name, model, and the server from the client's ``base_url``."""
    address = urlsplit(str(client.base_url))
    port = address.port or {"https": 443, "http": 80}.get(address.scheme)
    return ProviderInfo(
        name=PROVIDER,
        model=model,
        server_address=address.hostname or "",
        server_port=port,
        window_tokens=window_tokens,
    )


async def window_told(client: AsyncOpenAI, model: str) -> int | None:
    """What the server's models endpoint says of that model; None where it says nothing, as OpenAI's own does."""
    models = getattr(client, "models", None)
    if models is None:
        return None
    return await told_window(
        lambda: models.retrieve(model, extra_headers=trace_headers() or None),
        lambda: client.get("/models", cast_to=object, options={"headers": trace_headers()}),
        model,
        lambda error: translated(error, streaming=False),
    )


def body_fields(create: Create) -> frozenset[str] | None:
    """The fields that ``create`` takes by name; None when it takes any. The others go by ``extra_body``."""
    parameters = inspect.signature(create).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return None
    return frozenset(each.name for each in parameters) - _NOT_BODY


async def exchange(
    create: Create, body: Mapping[str, object], fields: frozenset[str] | None, *, stall_seconds: float | None
) -> AsyncGenerator[tuple[WireObject, object], None]:
    """One call: the whole answer, or every event of the stream, each with the SDK's object.

    What the SDK raises comes out as the error of the tree, with the SDK's as its cause. The stream is closed at the
    end, whatever the end is.
    """
    known = {name: value for name, value in body.items() if fields is None or name in fields}
    others = {name: value for name, value in body.items() if name not in known}
    beside = {"extra_body": others, "extra_headers": trace_headers()}
    streaming = bool(body.get("stream"))
    stream: _SdkStream | None = None
    try:
        answer = await create(**known, **{name: value for name, value in beside.items() if value})
        if not streaming:
            yield _fields_of(answer, streaming=False), answer
            return
        stream = cast("_SdkStream", answer)
        async for event in _guarded(stream, stall_seconds):
            yield _fields_of(event, streaming=True), event
    except Exception as error:
        found = translated(error, streaming=stream is not None)
        if found is None or found is error:
            raise
        raise found from error
    finally:
        if stream is not None:
            await stream.close()


def _guarded(stream: _SdkStream, stall_seconds: float | None) -> StallGuard[object]:
    response = getattr(stream, "response", None)
    counts_bytes = isinstance(getattr(response, "num_bytes_downloaded", None), int)
    return StallGuard(
        stream,
        stall_seconds=stall_seconds,
        provider=PROVIDER,
        # Routers send comments while a model thinks; the SDK hides them, the number of bytes does not.
        received=(lambda: cast("_Counted", response).num_bytes_downloaded) if counts_bytes else None,
    )


def translated(error: Exception, *, streaming: bool) -> ChatStackError | None:
    """The error of the tree for what the SDK, or what is below it, raised; None for anything else."""
    import openai

    if isinstance(error, ChatStackError):
        return error
    if isinstance(error, openai.APIStatusError):
        return failure(
            PROVIDER,
            status=error.status_code,
            body=error.body,
            code=error.code or "",
            text=error.message,
            headers=dict(error.response.headers),
        )
    if isinstance(error, openai.APIConnectionError):
        if streaming:
            return BrokenStreamError(
                f"{PROVIDER}: the stream was cut before the answer was complete", provider=PROVIDER
            )
        if isinstance(error, openai.APITimeoutError):
            return ProviderTimeoutError(f"{PROVIDER}: no answer in time: raise timeout_seconds", provider=PROVIDER)
        return ProviderConnectionError(f"{PROVIDER}: no connection: check base_url and the network", provider=PROVIDER)
    if isinstance(error, openai.APIResponseValidationError):
        return ServerError(f"{PROVIDER}: the answer is not what the API promises: check base_url", provider=PROVIDER)
    if isinstance(error, openai.APIError):
        return failure(PROVIDER, body=error.body, code=error.code or "", text=error.message, streaming=streaming)
    return transport_failure(PROVIDER, error, streaming=streaming)


def _fields_of(event: object, *, streaming: bool) -> WireObject:
    if isinstance(event, Mapping):
        return readable(dict(cast("Mapping[str, object]", event)))
    if hasattr(event, "to_dict"):
        with misshapen(PROVIDER, streaming=streaming):
            return readable(cast("_SdkModel", event).to_dict(warnings=False))
    if streaming:
        raise BrokenStreamError(f"{PROVIDER}: an event of the stream is not a JSON object", provider=PROVIDER)
    # The SDK hands on as text whatever was not sent as JSON.
    raise ServerError(f"{PROVIDER}: the answer is not a JSON object: check base_url", provider=PROVIDER)
