"""The three routes that ask a model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from starlette.types import Message, Receive, Scope, Send

from chatstack import ChatResponse
from chatstack.errors import InputError
from chatstack.providers.wires import Form, read_request
from chatstack_gateway.admission import refused, with_key
from chatstack_gateway.converted import PATHS
from chatstack_gateway.converting import UnsayableError, convertible
from chatstack_gateway.exchange import CURRENT, Exchange
from chatstack_gateway.forwarding import forward
from chatstack_gateway.gateway import Gateway
from chatstack_gateway.handing_on import HandingOn
from chatstack_gateway.headers import CONVERSATION, Headers, is_compressed, is_signed, path_of, value_of
from chatstack_gateway.positions import UneditableError, scan
from chatstack_gateway.receiving import GoneError, RefusedError, body_of
from chatstack_gateway.refusals import Refusal, refusal_of
from chatstack_gateway.running import answered
from chatstack_gateway.sending import refusals_sent, send_head, send_piece, send_refusal, send_whole
from chatstack_gateway.settings import LARGE_BYTES
from chatstack_gateway.spans import ServerSpan, server_span
from chatstack_gateway.tee import Tee
from chatstack_gateway.upstream import UpstreamRefusalError

logger = logging.getLogger("chatstack.gateway")

_ENDS: Mapping[Form, tuple[bytes, ...]] = {
    "chat": (b"[DONE]",),
    "messages": (b"message_stop",),
    "responses": (b"response.completed", b"response.incomplete"),
}
_LONGEST_MODEL = 256
_COPY_SECONDS = 5.0
"""Time that the copy's reader gets after the answer's end."""
_STORED_SECONDS = 30.0
"""Time that the end of an edited answer is held back for at most, until what was decided is in the store. A store that
is slow or gone has its own, shorter limit (``store_timeout_seconds``)."""


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """An ASGI application for one of the three routes."""

    gateway: Gateway
    form: Form
    route: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Headers = scope["headers"]
        with server_span("POST", scope["path"], self.route, headers) as span:
            async with refusals_sent(send, span, self.form):
                await self._handle(scope, receive, send, span)

    async def _handle(self, scope: Scope, receive: Receive, send: Send, span: ServerSpan) -> None:
        gateway, headers = self.gateway, scope["headers"]
        refusal = refused(gateway.settings, headers)
        if refusal is not None:
            raise RefusedError(refusal)
        if gateway.open_requests >= gateway.settings.limits.open_requests:
            raise RefusedError(Refusal(503, "the gateway has as many open requests as it takes", "", 1))
        gateway.open_requests += 1
        try:
            raw = await body_of(receive, headers, gateway.settings.limits)
            if len(raw) > LARGE_BYTES:
                exchange = await asyncio.to_thread(self._exchange, scope, raw)
            else:
                exchange = self._exchange(scope, raw)
            if not isinstance(exchange, str):
                exchange.tee = asyncio.get_running_loop().create_future()
            async with _while_there(receive, send) as send:
                if isinstance(exchange, str) and gateway.settings.api not in (None, self.form):
                    raise RefusedError(Refusal(400, f"cannot be converted: {exchange}", is_final=True))
                if isinstance(exchange, str):
                    logger.info("forwarded unread: %s", exchange)
                    await forward(gateway, scope, send, raw, span, is_anthropic=self.form == "messages")
                elif exchange.is_rewritten:
                    await HandingOn(gateway, exchange, send, span).run()
                else:
                    await _Answering(gateway, exchange, send, span).run()
        finally:
            gateway.open_requests -= 1

    def _exchange(self, scope: Scope, raw: bytes) -> Exchange | str:
        """Return the exchange, or why nothing can be made of the request here: then it is upstream's to judge."""
        gateway, headers = self.gateway, scope["headers"]
        if is_compressed(headers):
            return "its body is compressed"
        try:
            body = scan(raw.decode())
            request = read_request(self.form, body.value)
        except UneditableError as error:
            return str(error)
        except (UnicodeDecodeError, InputError):
            return "its body cannot be read"
        if len(request.options.model or "") > _LONGEST_MODEL:
            return "the name of its model is too long"  # it would stand in spans, metrics and the page
        conversation = value_of(headers, CONVERSATION)
        if conversation:
            request = request.but(conversation_id=conversation)
        api, path, query = None, path_of(scope), scope["query_string"].decode("latin-1")
        if gateway.settings.api not in (None, self.form):
            api, path, query = gateway.settings.api, PATHS[gateway.settings.api], ""
            try:
                request = convertible(self.form, api, request, body.value, model=gateway.settings.model)
            except UnsayableError as error:
                raise RefusedError(error.refusal) from None
        exchange = Exchange(
            self.form,
            path,
            query,
            with_key(gateway.settings, headers, is_anthropic=self.form == "messages"),
            raw,
            body,
            request,
            api,
            gateway.settings.rewrite_answers or api is not None,
        )
        if gateway.settings.observe:
            exchange.is_bypassed = True
        elif is_signed(headers):
            exchange.is_bypassed, exchange.outcome, exchange.reason = True, "not editable", "its body is signed"
        elif gateway.switch.is_off:
            exchange.is_bypassed, exchange.outcome = True, "switched off"
        elif gateway.refused_edits.knows(exchange):
            exchange.is_bypassed, exchange.outcome = True, "undone"
            exchange.reason = "upstream has refused an edited request of this conversation before"
        if exchange.is_bypassed and api is None:
            exchange.is_rewritten = False
        return exchange


class _Answering:
    """One exchange on its way to its answer."""

    def __init__(self, gateway: Gateway, exchange: Exchange, send: Send, span: ServerSpan) -> None:
        self._gateway = gateway
        self._exchange = exchange
        self._send = send
        self._span = span

    async def run(self) -> None:
        """Answer the caller. Cancelled, it ends all that it began."""
        exchange = self._exchange
        token = CURRENT.set(exchange)
        try:
            reading = asyncio.create_task(answered(self._gateway, exchange))
        finally:
            CURRENT.reset(token)
        status, response = 499, None
        try:
            first: set[asyncio.Future[Any]] = {exchange.tee, reading}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if exchange.tee.done():
                tee = exchange.tee.result()
                status = tee.answer.status
                try:
                    await self._pumped(tee, reading)
                finally:
                    tee.end()
                    tee.answer.close()
                response = await _settled(reading)
                if response is not None and tee.said is not None and response.messages != (tee.said,):
                    exchange.answer_changed = True
            else:
                status = await self._refused(reading)
        finally:
            reading.cancel()
            await asyncio.wait({reading})
            if not reading.cancelled():
                reading.exception()  # retrieved, or asyncio would report it
            self._span.tell(status, exchange)
            self._gateway.tell(exchange, response, status)

    async def _pumped(self, tee: Tee, reading: asyncio.Task[ChatResponse]) -> None:
        """Hand the answer on, piece by piece, as it comes."""
        form, answer = self._exchange.form, tee.answer
        await send_head(self._send, answer.status, answer.headers)
        # What was decided is in the store before the caller can ask on, maybe another process: so the end is held back.
        shares = self._exchange.is_edited and self._gateway.is_shared
        held = b""
        try:
            while piece := await tee.next():
                if shares and not answer.is_stream:
                    held, piece = piece, held
                elif shares and any(end in piece for end in _ENDS[form]):
                    await asyncio.wait({reading}, timeout=_STORED_SECONDS)
                if piece:
                    await send_piece(self._send, piece)
            if held:
                await asyncio.wait({reading}, timeout=_STORED_SECONDS)
                await send_piece(self._send, held)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            await self._broken(tee, error)
        else:
            await send_piece(self._send, b"")

    async def _broken(self, tee: Tee, error: Exception) -> None:
        """Tell the caller that the answer broke off, in the wire's own form where that can be. The answer is not ended:
        the server closes its connection then, so that nobody takes it for whole."""
        logger.warning("upstream broke off (%s)", type(error).__name__)
        if tee.answer.is_stream and not tee.answer.encoding and not tee.answer.has_length:
            refusal = Refusal(502, "upstream broke off before the answer was complete")
            await send_piece(self._send, b"\n\n" + refusal.event(self._exchange.form))

    async def _refused(self, reading: asyncio.Task[ChatResponse]) -> int:
        """Answer in the place of the model, and return the status."""
        error = reading.exception()
        refusal = None if error is None else UpstreamRefusalError.of(error)
        if refusal is not None:
            await send_whole(self._send, refusal.status, refusal.headers, refusal.body)
            return refusal.status
        self._exchange.outcome = "refused"
        ours = Refusal(502, "a layer has answered in upstream's place, which this gateway cannot hand on")
        if error is not None:
            self._exchange.reason = type(error).__name__
            ours = refusal_of(error)
        logger.warning("refused: %s", ours.message)
        await send_refusal(self._send, ours, self._exchange.form)
        return ours.status


async def _settled(reading: asyncio.Task[ChatResponse]) -> ChatResponse | None:
    """Return the answer as it was read; None if it could not be."""
    await asyncio.wait({reading}, timeout=_COPY_SECONDS)
    if not reading.done() or reading.cancelled():
        return None
    error = reading.exception()
    if error is not None:
        logger.warning("the copy of an answer was not read to its end: %s", error)
        return None
    return reading.result()


@asynccontextmanager
async def _while_there(receive: Receive, send: Send) -> AsyncGenerator[Send]:
    """Run the block until its answer has been sent; if the caller goes away before, it is cancelled: ``GoneError``."""
    task = asyncio.current_task()
    is_gone = False

    async def watched() -> None:
        nonlocal is_gone
        while (await receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        if task is not None:
            task.cancel()

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            watching.cancel()  # the server tells a disconnect after the end, too
        await send(message)

    watching = asyncio.create_task(watched())
    try:
        yield sent
    except asyncio.CancelledError:
        if is_gone and task is not None and task.uncancel() == 0:
            raise GoneError from None
        raise
    finally:
        watching.cancel()
