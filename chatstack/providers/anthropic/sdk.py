"""The anthropic SDK: making a client, calling it, and what its errors mean.

The SDK is imported when a client is made, and no HTTP library is.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast
from urllib.parse import urlsplit

from chatstack.client.protocol import ProviderInfo
from chatstack.errors import ChatStackError, InputError, ServerError, WiringError
from chatstack.providers.anthropic.blocks import PROVIDER
from chatstack.providers.anthropic.events import events_of
from chatstack.providers.anthropic.wire import DEFAULT_MAX_TOKENS
from chatstack.providers.asking import counted, told_window, translating
from chatstack.providers.assembly import StallGuard
from chatstack.providers.extras import WireObject, as_list
from chatstack.providers.failures import failure, misshapen, transport_failure
from chatstack.providers.received import readable
from chatstack.providers.settings import check_base_url, check_key
from chatstack.telemetry.nested import is_suppressed
from chatstack.telemetry.propagation import trace_headers

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic, AsyncStream
    from anthropic.types import RawMessageStreamEvent

    SdkStream: TypeAlias = AsyncStream[RawMessageStreamEvent]

_DEFAULT_URL = "https://api.anthropic.com"
COUNTED = frozenset({
    "cache_control",
    "messages",
    "model",
    "output_config",
    "speed",
    "system",
    "thinking",
    "tool_choice",
    "tools",
    "user_profile_id",
})  # fmt: skip
"""The fields of a request that the count endpoint takes."""
COUNTED_WITH_BETAS = frozenset({"context_management", "mcp_servers"})
"""What it takes beside them, where betas are named."""
_ANYONE = "no API key; set ANTHROPIC_API_KEY or pass api_key='...' (any text for a server that needs none)"


class _Create(Protocol):
    async def __call__(self, **given: object) -> object: ...


class _SdkModel(Protocol):
    def to_dict(self, *, mode: str, warnings: bool) -> WireObject: ...


def sdk_client(
    owner: str,
    client: object | None,
    *,
    api_key: str | None,
    base_url: str | None,
    timeout_seconds: float | None,
    max_retries: int | None,
    http_client: object | None,
) -> AsyncAnthropic:
    """The client that was given, or a new one. Raises ``WiringError``, naming ``owner`` and the remedy."""
    try:
        import anthropic
    except ModuleNotFoundError as error:
        if error.name != "anthropic":
            raise
        raise WiringError(f"{owner}: the anthropic SDK is missing; pip install 'chatstack-core[anthropic]'") from error
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
        if isinstance(client, anthropic.Anthropic):
            raise WiringError(f"{owner}: client is synchronous; pass anthropic.AsyncAnthropic(...)", parameter="client")
        if not isinstance(client, anthropic.AsyncAnthropic) and not (
            hasattr(client, "base_url") and hasattr(client, "messages")
        ):
            kind = type(client).__name__
            raise WiringError(
                f"{owner}: client must be an anthropic.AsyncAnthropic(...), not {kind}", parameter="client"
            )
        return _with_key(owner, cast("AsyncAnthropic", client))
    check_base_url(owner, base_url or os.environ.get("ANTHROPIC_BASE_URL") or _DEFAULT_URL)
    try:
        made = anthropic.AsyncAnthropic(**options)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    except anthropic.CredentialsError as error:
        raise WiringError(f"{owner}: {_ANYONE}", parameter="api_key") from error
    _with_key(owner, made)
    # The SDK itself would say so only with the first request. It also knows profiles, and headers by environment.
    sent = {name.lower() for name in made.default_headers}
    if made.credentials is None and not sent & {"authorization", "x-api-key"}:
        raise WiringError(f"{owner}: {_ANYONE}", parameter="api_key")
    return made


def _with_key(owner: str, client: AsyncAnthropic) -> AsyncAnthropic:
    """The client, if its key, which may come from the environment, can go into a header."""
    for name in ("api_key", "auth_token"):
        check_key(owner, getattr(client, name, None) or None)
    return client


def traced_once(client: AsyncAnthropic) -> AsyncAnthropic:
    """The client, without spans of its own where the call has one already. Made anew each time, in 30 µs: whose client
    it is may set another key. A client that is not wholly the SDK's own stays as it is: a copy would not be made as its
    class wants it, or lack what was put around its ``create``; a span too many does less harm."""
    if not is_suppressed() or not hasattr(client, "open_telemetry") or not client.open_telemetry["traces"]["enabled"]:
        return client
    if not type(client).__module__.startswith("anthropic") or "create" in vars(client.messages):
        return client
    return client.with_options(open_telemetry={**client.open_telemetry, "traces": False})


def sdk_info(client: AsyncAnthropic, model: str, window_tokens: int | None) -> ProviderInfo:
    """Who answers: name, model, and the server from the client's ``base_url``."""
    address = urlsplit(str(client.base_url))
    port = address.port or {"https": 443, "http": 80}.get(address.scheme)
    return ProviderInfo(
        name=PROVIDER,
        model=model,
        server_address=address.hostname or "",
        server_port=port,
        window_tokens=window_tokens,
        default_max_tokens=DEFAULT_MAX_TOKENS,
    )


async def exchange(
    client: AsyncAnthropic, body: WireObject, *, stall_seconds: float | None
) -> AsyncGenerator[tuple[WireObject, object], None]:
    """One call: the events of the answer, each with the SDK's object that it came in.

    ``betas`` in the body goes as the header ``anthropic-beta``. What the SDK raises comes out as the error of the
    tree, with the SDK's as its cause. The stream is closed at the end, whatever the end is.
    """
    stream: SdkStream | None = None
    try:
        answer = await _created(client, body)
        if not body.get("stream"):
            for event in events_of(_whole(answer)):
                yield event, answer
            return
        stream = cast("SdkStream", answer)
        async for each in _guarded(stream, stall_seconds):
            yield _fields_of(each, streaming=True), each
    except Exception as error:
        found = translated(error, streaming=stream is not None)
        if found is None or found is error:
            raise
        raise found from error
    finally:
        if stream is not None:
            await _close(stream)


async def window_told(client: AsyncAnthropic, model: str) -> int | None:
    """What the models endpoint says of that model; None where the cloud or the server has none, or it says nothing."""
    models = getattr(client, "models", None)
    if models is None:
        return None
    return await told_window(
        lambda: models.retrieve(model, extra_headers=_headers(client, "")),
        lambda: client.get("/v1/models", cast_to=object, options={"headers": _headers(client, "") or {}}),
        model,
        lambda error: translated(error, streaming=False),
    )


async def input_tokens(client: AsyncAnthropic, body: Mapping[str, object]) -> int | None:
    """What the count endpoint says of that body; None for a cloud of which the SDK says that it cannot count."""
    import anthropic

    count = getattr(client.messages, "count_tokens", None)
    if count is None:
        return None
    names = _beta_names(body.get("betas") or ())
    taken = COUNTED | COUNTED_WITH_BETAS if names else COUNTED
    rest = {name: value for name, value in body.items() if name in taken}
    with translating(lambda error: translated(error, streaming=False)):
        try:
            found: object = await cast("_Create", count)(
                model=rest.pop("model"),
                messages=rest.pop("messages"),
                extra_headers=_headers(client, names),
                extra_body=rest or None,
            )
        except anthropic.AnthropicError as error:
            if type(error) is anthropic.AnthropicError:
                return None
            raise
    return counted(getattr(found, "input_tokens", None), PROVIDER)


async def _created(client: AsyncAnthropic, body: Mapping[str, object]) -> object:
    # By name goes only what every SDK demands; its kin for other clouds move the model into the address.
    rest = dict(body)
    names = _beta_names(rest.pop("betas", None) or ())
    return await cast("_Create", client.messages.create)(
        model=rest.pop("model"),
        max_tokens=rest.pop("max_tokens"),
        messages=rest.pop("messages"),
        stream=rest.pop("stream", False),
        extra_headers=_headers(client, names),
        extra_body=rest or None,
    )


def _headers(client: AsyncAnthropic, betas: str) -> dict[str, str] | None:
    """The betas, and the trace, unless the client is told not to send it (``open_telemetry={"propagation": False}``).
    Where the SDK has a span of its own, it puts that in the place of ours."""
    settings = cast("Mapping[str, object]", getattr(client, "open_telemetry", None) or {})
    headers = trace_headers() if settings.get("propagation", True) else {}
    return {**headers, **({"anthropic-beta": betas} if betas else {})} or None


def _beta_names(betas: object) -> str:
    each = [betas] if isinstance(betas, str) else as_list(betas, "options.extra['betas']")
    if not all(isinstance(name, str) and name.isascii() and name.isprintable() for name in each):
        raise InputError("options.extra['betas']: expected names that a header can hold")
    return ",".join(cast("list[str]", each))


def _guarded(stream: SdkStream, stall_seconds: float | None) -> StallGuard[RawMessageStreamEvent]:
    response = stream.response
    return StallGuard(
        stream, stall_seconds=stall_seconds, provider=PROVIDER, received=lambda: response.num_bytes_downloaded
    )


async def _close(stream: SdkStream) -> None:
    # The SDK closes the response but leaves its generator to the collector, which would end it in a task of its own.
    iterator = getattr(stream, "_iterator", None)
    if inspect.isasyncgen(iterator):
        await iterator.aclose()
    await stream.close()


def _whole(answer: object) -> WireObject:
    """A whole answer. Raises what it says if that is an error, which some proxies send with status 200."""
    found = _fields_of(answer, streaming=False)
    if found.get("type") == "error":
        raise failure(PROVIDER, body=found)
    content = found.get("content")
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in cast("list[object]", content)):
        raise ServerError(f"{PROVIDER}: the answer is not a message: check base_url", provider=PROVIDER)
    if not found.get("stop_reason"):
        raise ServerError(f"{PROVIDER}: the answer has no stop_reason: it is not complete", provider=PROVIDER)
    return found


def _fields_of(event: object, *, streaming: bool) -> WireObject:
    if not hasattr(event, "to_dict"):  # the SDK hands on as text whatever was not sent as JSON
        raise ServerError(f"{PROVIDER}: the answer is not JSON: check base_url", provider=PROVIDER)
    with misshapen(PROVIDER, streaming=streaming):
        return readable(cast("_SdkModel", event).to_dict(mode="json", warnings=False))


def translated(error: Exception, *, streaming: bool) -> ChatStackError | None:
    """The error of the tree for what the SDK, or what is below it, raised; None for anything else."""
    import anthropic

    if isinstance(error, ChatStackError):
        return error
    if isinstance(error, anthropic.APIStatusError):  # an error event in a stream comes as one with status 200
        return failure(
            PROVIDER,
            status=error.status_code,
            body=error.body,
            headers=dict(error.response.headers),
            streaming=error.status_code < 400,
        )
    if isinstance(error, anthropic.APIConnectionError):
        return transport_failure(PROVIDER, error.__cause__ or ConnectionError(), streaming=streaming)
    if isinstance(error, anthropic.APIResponseValidationError):
        return ServerError(f"{PROVIDER}: the answer is not what the API promises: check base_url", provider=PROVIDER)
    return transport_failure(PROVIDER, error, streaming=streaming)
