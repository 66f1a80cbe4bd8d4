"""Routes around the three where upstream speaks another wire: its models in the caller's form, and counts of tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias, cast
from urllib.parse import parse_qs, quote

from starlette.types import Receive, Scope, Send

from chatstack.client.protocol import ProviderInfo
from chatstack.errors import ChatStackError, InputError, ServerError
from chatstack.providers.asking import window_on
from chatstack.providers.extras import object_or_empty
from chatstack.providers.wires import PROVIDERS, Form, read_request
from chatstack.tokens.default import estimating_counter
from chatstack_gateway.admission import refused, with_key
from chatstack_gateway.converted import ConvertingProvider
from chatstack_gateway.converting import UnsayableError, convertible
from chatstack_gateway.forwarding import ForwardedRoute
from chatstack_gateway.gateway import Gateway
from chatstack_gateway.handing_on import refusal_for
from chatstack_gateway.headers import is_compressed, value_of
from chatstack_gateway.positions import UneditableError, scan, written
from chatstack_gateway.receiving import RefusedError, body_of
from chatstack_gateway.refusals import Refusal
from chatstack_gateway.sending import refusals_sent, send_whole
from chatstack_gateway.settings import Settings
from chatstack_gateway.spans import server_span

Fields: TypeAlias = Mapping[str, object]

_JSON = [(b"content-type", b"application/json")]
_MOST_MODELS = 1_000
_PAGE = 20
"""Models on a page of Anthropic's, unless a caller asks for more."""
_FIRST_DAY = "1970-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class _Answered:
    """An ASGI application for a route that the gateway answers itself, in the caller's form."""

    gateway: Gateway
    form: Form
    route: str
    answer: Callable[[Gateway, Form, Scope, Receive], Awaitable[Fields]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with server_span(scope["method"], scope["path"], self.route, scope["headers"]) as span:
            async with refusals_sent(send, span, self.form):
                refusal = refused(self.gateway.settings, scope["headers"])
                if refusal is not None:
                    raise RefusedError(refusal)
                try:
                    told = await self.answer(self.gateway, self.form, scope, receive)
                except (UnsayableError, ChatStackError, ValueError) as error:
                    raise RefusedError(refusal_for(error)) from error
                span.tell(200, None)
                await send_whole(send, 200, _JSON, written(told).encode())


@dataclass(frozen=True, slots=True)
class ModelsRoute:
    """An ASGI application for the list of models, and for one: forwarded to a provider that is the caller's own, and
    told in the caller's form before another one."""

    gateway: Gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        form: Form = "messages" if value_of(scope["headers"], b"anthropic-version") else "chat"
        api = self.gateway.settings.api
        if api is None or PROVIDERS[api] == PROVIDERS[form]:
            await ForwardedRoute(self.gateway)(scope, receive, send)
        else:
            await _Answered(self.gateway, form, "/v1/models", _models)(scope, receive, send)


def counting(gateway: Gateway, form: Form) -> _Answered:
    """Return the route that counts the tokens of a request, by the estimate that layers go by."""
    path = "/v1/messages/count_tokens" if form == "messages" else "/v1/responses/input_tokens"
    return _Answered(gateway, form, path, _counted)


async def _models(gateway: Gateway, form: Form, scope: Scope, _: Receive) -> Fields:
    settings = gateway.settings
    api = cast("Form", settings.api)
    provider = ConvertingProvider(form, api, settings, gateway.connections, window_tokens=None)
    headers = with_key(settings, scope["headers"], is_anthropic=form == "messages")
    one = scope["path_params"].get("model")
    if one:
        return _model(form, object_or_empty(await provider.fetched(f"/v1/models/{quote(one, safe='')}", headers)))
    query = f"limit={_MOST_MODELS}" if api == "messages" else ""
    listing = object_or_empty(await provider.fetched("/v1/models", headers, query)).get("data")
    rows = cast("list[object]", listing) if isinstance(listing, list) else []
    models = [_model(form, object_or_empty(row)) for row in rows]
    if form != "messages":
        return {"object": "list", "data": models}
    return _page(models, scope["query_string"].decode("latin-1"))


def _model(form: Form, card: Fields) -> Fields:
    """Return a model's card in that form. Raises ``ServerError`` for what is none."""
    name = card.get("id")
    if not isinstance(name, str):
        raise ServerError("upstream's answer is no model", provider=PROVIDERS[form])
    window = window_on(card)
    if form != "messages":
        size = {} if window is None else {"context_length": window}  # as OpenRouter and many others say it
        told = {"id": name, "object": "model", "created": _seconds(card.get("created_at")), "owned_by": "anthropic"}
        return {**told, **size}
    size = {} if window is None else {"max_input_tokens": window}
    created = card.get("created")
    told = {"type": "model", "id": name, "display_name": name, "lifecycle": "active", "created_at": _FIRST_DAY}
    if isinstance(created, int) and 0 < created < 2**35:
        told["created_at"] = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**told, **size}


def _seconds(day: object) -> int:
    try:
        return int(datetime.fromisoformat(str(day)).timestamp())
    except ValueError:
        return 0


def _page(models: Sequence[Fields], query: str) -> Fields:
    """Return the page of Anthropic's list that a query asks for."""
    asked = parse_qs(query)
    limit = asked.get("limit", [""])[0]
    size = max(1, int(limit)) if limit.isdecimal() else _PAGE
    names = [str(each["id"]) for each in models]
    after, before = asked.get("after_id", [""])[0], asked.get("before_id", [""])[0]
    if before in names:
        end = names.index(before)
        first = max(0, end - size)
        has_more = first > 0
    else:
        first = names.index(after) + 1 if after in names else 0
        end = min(len(names), first + size)
        has_more = end < len(names)
    page = list(models[first:end])
    ends = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return {"data": page, "has_more": has_more, "first_id": ends[0], "last_id": ends[1]}


async def _counted(gateway: Gateway, form: Form, scope: Scope, receive: Receive) -> Fields:
    raw = await body_of(receive, scope["headers"], gateway.settings.limits)
    tokens = await asyncio.to_thread(_count, gateway.settings, form, raw, is_plain=not is_compressed(scope["headers"]))
    return {"input_tokens": tokens, **({} if form == "messages" else {"object": "response.input_tokens"})}


def _count(settings: Settings, form: Form, raw: bytes, *, is_plain: bool) -> int:
    """Return the tokens of a request as the other API would be asked it. Raises ``UnsayableError``."""
    api = cast("Form", settings.api)
    try:
        if not is_plain:
            raise UneditableError("its body is compressed")
        body = scan(raw.decode())
        request = convertible(form, api, read_request(form, body.value), body.value, model=settings.model)
    except (UneditableError, UnicodeDecodeError, InputError) as error:
        why = str(error) if isinstance(error, UneditableError) else "its body cannot be read"
        raise RefusedError(Refusal(400, f"cannot be counted: {why}", is_final=True)) from None
    model, host = request.options.model or "", settings.upstream.host
    counter = estimating_counter(ProviderInfo(name=PROVIDERS[api], model=model, server_address=host))
    return counter.count_options(request.options) + sum(map(counter.count_message, request.messages))
