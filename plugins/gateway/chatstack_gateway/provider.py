"""The innermost client here: upstream's API by raw HTTP, with the caller's own bytes where no layer edited them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import cast

import aiohttp

from chatstack import ChatRequest, ChatStream, ChatUpdate
from chatstack.client.protocol import ProviderInfo
from chatstack.errors import ProviderError, ServerError
from chatstack.providers.failures import failure, transport_failure
from chatstack.providers.wires import PROVIDERS, AnswerReader, Form, write_request
from chatstack.telemetry.propagation import trace_headers
from chatstack_gateway.events import EventSplitter, Inflater, decoded
from chatstack_gateway.exchange import CURRENT, Exchange
from chatstack_gateway.headers import readable, upward
from chatstack_gateway.positions import written
from chatstack_gateway.settings import LARGE_BYTES, Settings
from chatstack_gateway.tee import CopySource, Tee
from chatstack_gateway.upstream import Answer, Connections, UpstreamRefusalError, header_bytes

_PRELUDE = frozenset({"response.created", "response.queued", "response.in_progress"})
"""Events of Responses behind which a refusal may still come."""
_PRELUDE_SECONDS = 2.0
"""Time that these are held back for, so that a request that is refused right after them can be sent with less."""
_OF_THE_CALL = frozenset(
    {b"accept", b"accept-encoding", b"content-type", b"content-encoding", b"idempotency-key"}
    | {b"x-stainless-retry-count", b"x-stainless-helper-method"}
)
"""Headers of the caller's that are about its very request, and not about others that are sent with its key."""
_ASIDE_ACCEPTS = [("content-type", "application/json"), ("accept", "application/json"), ("accept-encoding", "identity")]


class WireProvider:
    """Sends the exchange that the running task works on, and requests of the layers' own with its caller's key."""

    def __init__(self, form: Form, settings: Settings, connections: Connections, *, window_tokens: int | None) -> None:
        self.form: Form = form
        self.info = ProviderInfo(
            name=PROVIDERS[form],
            server_address=settings.upstream.host,
            server_port=settings.upstream.port,
            window_tokens=window_tokens,
            reads_compactions=form != "chat",
        )
        self._settings = settings
        self._connections = connections

    async def send(self, request: ChatRequest, /) -> ChatStream:
        exchange = CURRENT.get()
        if exchange is None or exchange.form != self.form:
            raise ServerError("the gateway's provider was asked outside of a request")
        if exchange.is_about(request):
            return await self._exchanged(exchange, request)
        return await ChatStream.primed(self._aside(exchange, request))

    async def _exchanged(self, exchange: Exchange, request: ChatRequest) -> ChatStream:
        if exchange.is_answering:
            raise ServerError("a layer asks again although the answer is already on its way to the caller")
        is_large = len(exchange.raw) > LARGE_BYTES
        body = await asyncio.to_thread(exchange.sendable, request) if is_large else exchange.sendable(request)
        exchange.attempts += 1
        exchange.sent_bytes = len(body)
        answer = await self._opened(exchange, readable(exchange.headers), body)
        try:
            first = await self._accepted(answer)
        except BaseException as error:
            answer.close()
            failed = _transported(self._provider, error)
            if failed is None:
                raise
            raise failed from error
        tee = Tee(answer, first)
        exchange.tee.set_result(tee)
        return await ChatStream.primed(CopySource(self.form, tee, streaming=answer.is_stream))

    @property
    def _provider(self) -> str:
        return self.info.name

    async def _opened(self, exchange: Exchange, headers: list[tuple[bytes, bytes]], body: bytes) -> Answer:
        trace = header_bytes(list(trace_headers().items()))
        names = {name for name, _ in trace}
        sent = [each for each in upward(headers) if each[0] not in names]
        try:
            return await self._connections.open("POST", exchange.path, exchange.query, [*sent, *trace], body)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _transported(self._provider, error) or error from error

    async def _accepted(self, answer: Answer) -> bytes:
        """Return what was read of an answer to tell that it is one. Raises the error for a refusal."""
        if answer.status >= 400:
            raise await self._refused(answer, answer.status, b"")
        first = b""
        if not answer.is_stream:
            return first
        split, inflate = EventSplitter(), Inflater(answer.encoding)
        until: float | None = None
        while True:
            try:
                async with asyncio.timeout_at(until):
                    piece = await answer.next()
            except TimeoutError:
                if until is None:  # upstream's silence, not ours
                    raise
                return first
            first += piece
            for data in split.feed(inflate.feed(piece)) if piece else split.end():
                told = _error_in(data)
                if told is not None:
                    raise await self._refused(answer, answer.status, first, told)
                if self.form != "responses" or _kind_of(data) not in _PRELUDE:
                    return first
                until = until or asyncio.get_running_loop().time() + _PRELUDE_SECONDS
            if not piece or len(first) > self._settings.limits.error_bytes:
                return first

    async def _refused(self, answer: Answer, status: int, first: bytes, told: object = None) -> ProviderError:
        """Return the error for a refusal; its cause holds upstream's own answer."""
        body = await answer.whole(self._settings.limits.error_bytes, first)
        cause = UpstreamRefusalError(status, answer.headers, body)
        if told is None:
            told = _plain(answer, body)
        error = failure(self._provider, status=status, body=told, headers=cause.told, streaming=status < 400)
        error.__cause__ = cause
        answer.close()
        return error

    async def _aside(self, exchange: Exchange, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        """Ask a question of a layer's own, such as for a summary: not streamed, with the key of the exchange."""
        body = write_request(self.form, request.but(stream=False))
        if not body.get("model"):
            body["model"] = exchange.body.value.get("model")
        kept = [each for each in exchange.headers if each[0] not in _OF_THE_CALL]
        answer = await self._opened(exchange, [*kept, *header_bytes(_ASIDE_ACCEPTS)], written(body).encode())
        try:
            if answer.status >= 400:
                raise await self._refused(answer, answer.status, b"")
            reader = AnswerReader(self.form, streaming=False)
            try:
                for update in reader.add(decoded(Inflater(answer.encoding).feed(await answer.whole(2**28)))):
                    yield update
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise _transported(self._provider, error) or error from error
            for update in reader.finish():
                yield update
        finally:
            answer.close()

    def __repr__(self) -> str:
        return f"WireProvider({self.form!r}, {self.info.server_address!r})"


def _transported(provider: str, error: BaseException) -> ProviderError | None:
    return None if isinstance(error, ProviderError) else transport_failure(provider, error)


def _plain(answer: Answer, body: bytes) -> str:
    """Return an error's body as text, for what is read in it; "" if it cannot be read."""
    try:
        return Inflater(answer.encoding).feed(body).decode()
    except ValueError:
        return ""


def _error_in(data: bytes) -> object:
    """Return the object in an event's data if it tells an error, else None."""
    if b"error" not in data and b"failed" not in data:
        return None
    event = _object_in(data)
    response = event.get("response")
    if event.get("type") == "response.failed" and isinstance(response, dict):
        return {"error": cast("dict[str, object]", response).get("error") or {}}
    if event.get("type") == "error" or (event.get("error") and "choices" not in event and "type" not in event):
        return event
    return None


def _kind_of(data: bytes) -> object:
    return _object_in(data).get("type")


def _object_in(data: bytes) -> dict[str, object]:
    """Return the object in an event's data; an empty one if it holds none."""
    try:
        event = decoded(data)
    except ValueError:
        return {}
    return cast("dict[str, object]", event) if isinstance(event, dict) else {}
