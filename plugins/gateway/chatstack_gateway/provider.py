"""The innermost client here: upstream's API by raw HTTP, with the caller's own bytes where no layer edited them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing, suppress
from typing import cast
from urllib.parse import quote

import aiohttp
from msgspec.structs import replace

from chatstack import ChatRequest, ChatStream, ChatUpdate
from chatstack.client.protocol import ProviderInfo
from chatstack.errors import ProviderError, ServerError
from chatstack.providers.asking import told_window
from chatstack.providers.error_bodies import ErrorBody
from chatstack.providers.extras import object_or_empty
from chatstack.providers.failures import failure, transport_failure
from chatstack.providers.wires import PROVIDERS, Form, write_request
from chatstack_gateway.came_answers import CameAnswer
from chatstack_gateway.events import EventSplitter, Inflater, decoded, is_readable
from chatstack_gateway.exchange import CURRENT, Exchange, is_about
from chatstack_gateway.headers import Headers, as_mapping, downward, readable
from chatstack_gateway.positions import written
from chatstack_gateway.reading import updates_of
from chatstack_gateway.settings import LARGE_BYTES, Settings
from chatstack_gateway.tee import Tee, copied_updates
from chatstack_gateway.upstream import Answer, Connections, UpstreamRefusalError, header_bytes, within_trace

_PRELUDE = frozenset({"response.created", "response.queued", "response.in_progress"})
"""Events of Responses behind which a refusal may still come."""
_PRELUDE_SECONDS = 2.0
"""Time that a stream's start is held back for, so that an edited request that is refused in it can be sent again."""
_REST_SECONDS = 0.5
"""Time for what follows an event that tells an error."""
OF_THE_CALL = frozenset(
    {b"accept", b"accept-encoding", b"content-type", b"content-encoding", b"idempotency-key"}
    | {b"x-stainless-retry-count", b"x-stainless-helper-method"}
)
"""Headers of the caller's that are about its very request, and not about others that are sent with its key."""
_MOST_CARDS = 2**23
ACCEPTS = [("accept", "application/json"), ("accept-encoding", "identity"), ("content-type", "application/json")]


class WireProvider:
    """Sends the exchange that the running task works on, and requests of the layers' own with its caller's key."""

    def __init__(self, form: Form, settings: Settings, connections: Connections, *, window_tokens: int | None) -> None:
        self.form: Form = form
        self._info = ProviderInfo(
            name=PROVIDERS[form],
            server_address=settings.upstream.host,
            server_port=settings.upstream.port,
            window_tokens=window_tokens,
            reads_compactions=form != "chat",
        )
        self._settings = settings
        self._connections = connections

    @property
    def info(self) -> ProviderInfo:
        """The description of upstream, for the caller of the running task."""
        exchange = CURRENT.get()
        return self._info if exchange is None else replace(self._info, scope=exchange.caller)

    async def send(self, request: ChatRequest, /) -> ChatStream:
        exchange = CURRENT.get()
        if exchange is None or exchange.form != self.form:
            raise ServerError("the gateway's provider was asked outside of a request")
        if is_about(exchange.request, request):
            return await self._exchanged(exchange, request)
        return await ChatStream.primed(self._aside(exchange, request))

    async def _exchanged(self, exchange: Exchange, request: ChatRequest) -> ChatStream:
        if exchange.is_answering:
            raise ServerError("a layer asks again although the answer is already on its way to the caller")
        is_large = len(exchange.raw) > LARGE_BYTES
        body = await asyncio.to_thread(exchange.sendable, request) if is_large else exchange.sendable(request)
        exchange.attempts += 1
        exchange.sent_bytes = len(body)
        answer = await self._opened(readable(exchange.headers), body, exchange.path, exchange.query)
        if exchange.is_rewritten:
            exchange.answer_headers = [each for each in downward(answer.headers) if not each[0].startswith(b"content-")]
            exchange.came = CameAnswer(answer.is_stream)
            return await ChatStream.primed(self._updates(answer, self.form, exchange.came))
        try:
            first = await self._accepted(answer, may_ask_again=not exchange.is_bypassed)
        except BaseException as error:
            answer.close()
            failed = _transported(self._provider, error)
            if failed is None:
                raise
            raise failed from error
        tee = Tee(answer, first)
        exchange.tee.set_result(tee)
        return await ChatStream.primed(copied_updates(self.form, tee, streaming=answer.is_stream))

    async def window_tokens(self, model: str = "") -> int | None:
        """Ask upstream for the window of that model, with the key of the exchange that wants it."""
        exchange = CURRENT.get()
        if exchange is None or not model:
            return None
        path, headers = f"/v1/models/{quote(model, safe='')}", exchange.headers
        return await told_window(
            lambda: self.fetched(path, headers), lambda: self.fetched("/v1/models", headers), model, lambda _: None
        )

    async def fetched(self, path: str, headers: Headers, query: str = "") -> object:
        """Return the JSON value at that path of upstream, asked for with the key in a caller's headers. Raises
        ``ProviderError``, and ``ValueError`` for an answer that is none."""
        answer = await self._opened(self._headers_for(headers)[:-1], b"", path, query, method="GET")
        try:
            if answer.status >= 400:
                raise await self._refused(answer)
            return decoded(Inflater(answer.encoding).feed(await answer.whole(_MOST_CARDS)))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _transported(self._provider, error) or error from error
        finally:
            answer.close()

    def _headers_for(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Return the headers for a request of the gateway's own, with the key in a caller's. The last one is the type
        of the body."""
        return [*(each for each in headers if each[0] not in OF_THE_CALL), *header_bytes(ACCEPTS)]

    @property
    def _provider(self) -> str:
        return self._info.name

    async def _opened(
        self, headers: Headers, body: bytes, path: str, query: str = "", *, method: str = "POST"
    ) -> Answer:
        """Send a request, within the trace that is current."""
        try:
            return await self._connections.open(method, path, query, within_trace(headers), body)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _transported(self._provider, error) or error from error

    async def _accepted(self, answer: Answer, *, may_ask_again: bool) -> bytes:
        """Return what was read of an answer to tell that it is one. Raises the error for a refusal."""
        if answer.status >= 400:
            raise await self._refused(answer)
        first = b""
        if not (answer.is_stream and may_ask_again and is_readable(answer.encoding)):
            return first
        split, inflate = EventSplitter(), Inflater(answer.encoding)
        limit = asyncio.timeout(_PRELUDE_SECONDS)
        try:
            async with limit:
                while piece := await answer.next():
                    first += piece
                    told = self._told_in(_events(split, inflate, piece))
                    if told is not None:
                        break
                    if len(first) > self._settings.limits.error_bytes:
                        return first
                else:
                    told = self._told_in(split.end())
        except TimeoutError:
            if not limit.expired():  # upstream's silence, not ours
                raise
            return first
        if told:
            raise await self._refused(answer, first, told)
        return first

    def _told_in(self, events: Iterable[bytes]) -> Mapping[str, object] | None:
        """Return the error that is told by the first event that is more than a prelude, nothing for an event that is
        none, and None if there is no such event."""
        for data in events:
            told = _error_in(data)
            if told or self.form != "responses" or _kind_of(data) not in _PRELUDE:
                return told
        return None

    async def _refused(self, answer: Answer, first: bytes = b"", told: object = None) -> ProviderError:
        """Return the error for a refusal; its cause holds upstream's own answer. A stream that has begun with ``first``
        has ``told`` it in an event."""
        status = answer.status
        if told is None:
            body = await answer.whole(self._settings.limits.error_bytes)
            told = _plain(answer, body)
        else:
            body = await self._with_rest(answer, first)
        cause = UpstreamRefusalError(status, answer.headers, body, ErrorBody.read(told).text)
        headers = as_mapping(cause.headers)
        error = failure(self._provider, status=status, body=told, headers=headers, streaming=status < 400)
        error.__cause__ = cause
        answer.close()
        return error

    async def _with_rest(self, answer: Answer, first: bytes) -> bytes:
        """Return a stream that has told an error, with what follows soon: it may be left open."""
        with suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with asyncio.timeout(_REST_SECONDS):
                while len(first) <= self._settings.limits.error_bytes and (piece := await answer.next()):
                    first += piece
        return first

    async def _aside(self, exchange: Exchange, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        """Ask a question of a layer's own, such as for a summary: not streamed, with the key of the exchange."""
        body = write_request(self.form, request.but(stream=False))
        if not body.get("model"):
            body["model"] = exchange.body.value.get("model")
        sent = written(body).encode()
        answer = await self._opened(self._headers_for(exchange.headers), sent, exchange.path, exchange.query)
        async with aclosing(self._updates(answer, self.form)) as updates:
            async for update in updates:
                yield update

    async def _updates(
        self, answer: Answer, form: Form, came: CameAnswer | None = None
    ) -> AsyncGenerator[ChatUpdate, None]:
        """Yield the updates of an answer, and close it. What they are read from is noted in ``came``."""
        try:
            if answer.status >= 400:
                raise await self._refused(answer)
            updates = updates_of(form, answer.next, streaming=answer.is_stream, encoding=answer.encoding, came=came)
            async with aclosing(updates):
                async for update in updates:
                    yield update
        except (aiohttp.ClientError, OSError, ValueError) as error:
            unread = ServerError(f"{self._provider}: the answer cannot be read", provider=self._provider)
            raise _transported(self._provider, error) or unread from error
        finally:
            answer.close()

    def __repr__(self) -> str:
        return f"WireProvider({self.form!r}, {self._info.server_address!r})"


def _transported(provider: str, error: BaseException) -> ProviderError | None:
    return None if isinstance(error, ProviderError) else transport_failure(provider, error)


def _plain(answer: Answer, body: bytes) -> str:
    """Return an error's body as text, for what is read in it; "" if it cannot be read."""
    try:
        return Inflater(answer.encoding).feed(body).decode()
    except ValueError:
        return ""


def _events(split: EventSplitter, inflate: Inflater, piece: bytes) -> Iterator[bytes]:
    """Yield the data of the events in a piece; what cannot be read is an event without data."""
    try:
        yield from split.feed(inflate.feed(piece))
    except ValueError:
        yield b""


def _error_in(data: bytes) -> Mapping[str, object]:
    """Return the object in an event's data if it tells an error, else an empty one."""
    if b"error" not in data and b"failed" not in data:
        return {}
    event = _object_in(data)
    response = event.get("response")
    if event.get("type") == "response.failed" and isinstance(response, dict):
        return {"error": cast("dict[str, object]", response).get("error") or {}}
    if event.get("type") == "error" or (event.get("error") and "choices" not in event and "type" not in event):
        return event
    return {}


def _kind_of(data: bytes) -> object:
    return _object_in(data).get("type")


def _object_in(data: bytes) -> dict[str, object]:
    """Return the object in an event's data; an empty one if it holds none."""
    try:
        return object_or_empty(decoded(data))
    except ValueError:
        return {}
