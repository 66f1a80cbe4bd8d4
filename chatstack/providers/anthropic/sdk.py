"""The anthropic SDK: its request fields, its models endpoint and its count endpoint."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import msgspec

from chatstack.errors import InputError, ServerError
from chatstack.providers.anthropic.blocks import PROVIDER
from chatstack.providers.anthropic.events import events_of
from chatstack.providers.anthropic.wire import DEFAULT_MAX_TOKENS
from chatstack.providers.asking import counted, fields_of, told_window, translating
from chatstack.providers.extras import WireObject, as_list
from chatstack.providers.failures import failure
from chatstack.providers.sdk import Sdk
from chatstack.telemetry.nested import is_suppressed
from chatstack.telemetry.propagation import trace_headers

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

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
"""Fields of a request that the count endpoint takes."""
COUNTED_WITH_BETAS = frozenset({"context_management", "mcp_servers"})
"""Fields that it also takes if betas are named."""


AnthropicCloud: TypeAlias = Literal["bedrock", "bedrock-mantle", "foundry", "vertex"]


class AnthropicSdk(Sdk["AsyncAnthropic"]):
    """The anthropic SDK."""

    name = PROVIDER
    client_name = "Anthropic"
    key_error = "CredentialsError"
    keys = ("api_key", "auth_token")
    resource = "messages"
    default_url = "https://api.anthropic.com"
    default_max_tokens = DEFAULT_MAX_TOKENS
    clouds = MappingProxyType({
        "bedrock": "AsyncAnthropicBedrock",
        "bedrock-mantle": "AsyncAnthropicBedrockMantle",
        "foundry": "AsyncAnthropicFoundry",
        "vertex": "AsyncAnthropicVertex",
    })  # fmt: skip
    dict_options = MappingProxyType({"mode": "json", "warnings": False})

    def has_key(self, client: AsyncAnthropic) -> bool:
        """Return True if a client has a key: the SDK also knows profiles, and headers by environment."""
        sent = {name.lower() for name in client.default_headers}
        return client.credentials is not None or bool(sent & {"authorization", "x-api-key"})

    def whole(self, answer: object) -> Iterable[WireObject]:
        """Return the events for a whole answer, as if it had been streamed."""
        return events_of(_checked(self.fields_of(answer, streaming=False)))

    def is_last(self, event: Mapping[str, object]) -> bool:
        """Return True for the event that ends a message."""
        return event.get("type") == "message_stop"


ANTHROPIC = AnthropicSdk()


def traced_once(client: AsyncAnthropic) -> AsyncAnthropic:
    """Return the client without spans of its own if the call has one already. Copied anew each time, in 30 µs: the
    owner of the client may set another key. A client that is a subclass, or patched, stays as it is: a copy might be
    made wrongly, or lack the wrapper around its ``create``; one span too many does less harm."""
    if not is_suppressed() or not hasattr(client, "open_telemetry") or not client.open_telemetry["traces"]["enabled"]:
        return client
    if not type(client).__module__.startswith("anthropic") or "create" in vars(client.messages):
        return client
    return client.with_options(open_telemetry={**client.open_telemetry, "traces": False})


async def window_told(client: AsyncAnthropic, model: str) -> int | None:
    """Return the window of that model from the models endpoint; None if the cloud or server has none, or it reports
    none."""
    models = getattr(client, "models", None)
    if models is None:
        return None
    return await told_window(
        lambda: models.retrieve(model, extra_headers=_headers(client, "")),
        lambda: client.get("/v1/models", cast_to=object, options={"headers": _headers(client, "") or {}}),
        model,
        ANTHROPIC.translated,
    )


async def card_told(client: AsyncAnthropic, model: str) -> Mapping[str, object]:
    """Return the model's card from the models endpoint; empty for a cloud that has none."""
    models = getattr(client, "models", None)
    if models is None:
        return {}
    with translating(ANTHROPIC.translated):
        return fields_of(await models.retrieve(model, extra_headers=_headers(client, "")))


async def input_tokens(client: AsyncAnthropic, body: Mapping[str, object]) -> int | None:
    """Return the tokens of that body from the count endpoint; None for a cloud where the SDK cannot count."""
    import anthropic

    count: Any = getattr(client.messages, "count_tokens", None)
    if count is None:
        return None
    names = _beta_names(body.get("betas") or ())
    taken = COUNTED | COUNTED_WITH_BETAS if names else COUNTED
    rest = {name: value for name, value in body.items() if name in taken}
    with translating(ANTHROPIC.translated):
        try:
            found: object = await count(
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


async def created(client: AsyncAnthropic, body: Mapping[str, object]) -> object:
    # Only fields that every SDK demands are passed by name; clients for other clouds move the model into the address.
    rest = dict(body)
    names = _beta_names(rest.pop("betas", None) or ())
    create = cast("Callable[..., Awaitable[object]]", client.messages.create)
    answer: Any = await create(
        model=rest.pop("model"),
        max_tokens=rest.pop("max_tokens"),
        messages=rest.pop("messages"),
        stream=rest.pop("stream", False),
        extra_headers=_headers(client, names),
        extra_body=rest or None,
    )
    decoder: Any = getattr(answer, "_decoder", None)
    if hasattr(decoder, "decode"):  # that of Bedrock's binary streams has none
        answer._decoder = _naming(decoder.__class__)()
    return answer


@functools.cache
def _naming(kind: Any) -> type[Any]:
    """Return the SDK's decoder with a name for the events that come without an ``event`` line, as LiteLLM's errors do
    and all events of some proxies: the SDK passes over those."""

    def decode(self: Any, line: str) -> object:
        event = kind.decode(self, line)
        return event if event is None or event.event else type(event)(event=_name_in(event.data), data=event.data)

    return type(kind.__name__, (kind,), {"decode": decode})


def _name_in(data: str) -> str | None:
    try:
        fields = msgspec.json.decode(data, type=_Named)
    except (msgspec.DecodeError, RecursionError):
        return None
    return fields.type or ("error" if fields.error else None)


class _Named(msgspec.Struct):
    type: str = ""
    error: Any = None


def _headers(client: AsyncAnthropic, betas: str) -> dict[str, str] | None:
    """Return headers for the betas, and for the trace unless the client disables that (``open_telemetry={"propagation":
    False}``). If the SDK has a span of its own, it replaces our trace header by its own."""
    settings = cast("Mapping[str, object]", getattr(client, "open_telemetry", None) or {})
    headers = trace_headers() if settings.get("propagation", True) else {}
    return {**headers, **({"anthropic-beta": betas} if betas else {})} or None


def _beta_names(betas: object) -> str:
    each = [betas] if isinstance(betas, str) else as_list(betas, "options.extra['betas']")
    if not all(isinstance(name, str) and name.isascii() and name.isprintable() for name in each):
        raise InputError("options.extra['betas']: expected names that a header can hold")
    return ",".join(cast("list[str]", each))


def _checked(found: WireObject) -> WireObject:
    """Return a whole answer. Raises the error if the answer is one, which some proxies send with status 200."""
    if found.get("type") == "error":
        raise failure(PROVIDER, body=found)
    content = found.get("content")
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in cast("list[object]", content)):
        raise ServerError(f"{PROVIDER}: the answer is not a message: check base_url", provider=PROVIDER)
    if not found.get("stop_reason"):
        raise ServerError(f"{PROVIDER}: the answer has no stop_reason: it is not complete", provider=PROVIDER)
    return found
