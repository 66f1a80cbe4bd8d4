"""Answers written anew for the caller: of an upstream that speaks another wire, or as layers have changed them."""

from __future__ import annotations

import logging
from dataclasses import replace

from starlette.types import Send

from chatstack import ChatResponse, ChatStream
from chatstack.providers.extras import object_or_empty
from chatstack.providers.retry_after import retry_after_seconds
from chatstack_gateway.answer_events import AnswerWriter
from chatstack_gateway.answer_forms import writer_for
from chatstack_gateway.converting import UnsayableError
from chatstack_gateway.exchange import CURRENT, Exchange
from chatstack_gateway.gateway import Gateway
from chatstack_gateway.headers import as_mapping
from chatstack_gateway.kept_answers import kept_writer
from chatstack_gateway.positions import written
from chatstack_gateway.refusals import Refusal, refusal_of
from chatstack_gateway.running import opened
from chatstack_gateway.sending import send_head, send_piece, send_refusal, send_whole
from chatstack_gateway.spans import ServerSpan
from chatstack_gateway.upstream import UpstreamRefusalError

logger = logging.getLogger("chatstack.gateway")

_EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_JSON = [(b"content-type", b"application/json")]


class HandingOn:
    """One exchange on its way to an answer that is written anew."""

    def __init__(self, gateway: Gateway, exchange: Exchange, send: Send, span: ServerSpan) -> None:
        self._gateway = gateway
        self._exchange = exchange
        self._send = send
        self._span = span
        self._status = 499
        self._has_begun = False

    async def run(self) -> None:
        """Answer the caller. Cancelled, it closes upstream's answer."""
        response: ChatResponse | None = None
        token = CURRENT.set(self._exchange)
        try:
            response = await self._answered()
        except Exception as error:  # noqa: BLE001 - the caller is told of every one
            await self._failed(error)
        finally:
            CURRENT.reset(token)
            self._span.tell(self._status, self._exchange)
            self._gateway.tell(self._exchange, response, self._status)

    async def _answered(self) -> ChatResponse:
        exchange = self._exchange
        async with await opened(self._gateway, exchange) as stream:
            self._status = 200
            came = exchange.came
            if exchange.request.stream if came is None else came.is_stream:
                writer = self._writer() if came is None else kept_writer(exchange.form, came, self._model)
                return await self._streamed(stream, writer)
            response = await stream.response()
            if came is None:
                body = written(self._writer().whole(response)).encode()
            else:
                body = came.rewritten(exchange.form, response)
            self._has_begun = True
            await send_whole(self._send, 200, [*_JSON, *self._kept], body)
            return response

    async def _streamed(self, stream: ChatStream, writer: AnswerWriter) -> ChatResponse:
        self._has_begun = True
        await send_head(self._send, 200, [*_EVENTS, *self._kept])
        async for update in stream:
            piece = writer.add(update)
            if piece:
                await send_piece(self._send, piece)
        response = await stream.response()
        await send_piece(self._send, writer.finish(response))
        await send_piece(self._send, b"")
        return response

    @property
    def _model(self) -> str:
        return self._exchange.request.options.model or ""

    @property
    def _kept(self) -> list[tuple[bytes, bytes]]:
        return [each for each in self._exchange.answer_headers if each[0] != b"cache-control"]

    def _writer(self) -> AnswerWriter:
        body = self._exchange.body.value
        thinking, options = object_or_empty(body.get("thinking")), object_or_empty(body.get("stream_options"))
        return writer_for(
            self._exchange.form,
            self._model,
            says_reasoning=self._exchange.form != "messages" or thinking.get("type") in ("enabled", "adaptive"),
            tells_usage=options.get("include_usage") is True,
        )

    async def _failed(self, error: Exception) -> None:
        """Tell the caller, in the place of the answer or within it."""
        refusal, form = refusal_for(error), self._exchange.form
        if self._has_begun:
            logger.warning("upstream broke off (%s)", type(error).__name__)
            if self._exchange.request.stream:  # not ended, so that nobody takes it for whole
                await send_piece(self._send, b"\n\n" + refusal.event(form))
            return
        self._status = refusal.status
        told = UpstreamRefusalError.of(error)
        if told is not None and self._exchange.api is None:
            self._status = told.status
            await send_whole(self._send, told.status, told.headers, told.body)
            return
        if told is None:
            self._exchange.outcome, self._exchange.reason = "refused", type(error).__name__
            logger.warning("refused: %s", type(error).__name__)
        await send_refusal(self._send, refusal, form)


def refusal_for(error: Exception) -> Refusal:
    """Return the answer for an error, with the status and the words of upstream's own, if it is upstream's, and what
    that says about trying again."""
    if isinstance(error, UnsayableError):
        return error.refusal
    found = refusal_of(error)
    told = UpstreamRefusalError.of(error)
    if told is None:
        return found
    status = told.status if told.status >= 400 else found.status
    message = found.message if found.code == "context_length_exceeded" else told.reason or found.message
    headers = as_mapping(told.headers)
    seconds = retry_after_seconds(headers)
    return replace(
        found,
        status=status,
        message=message,
        retry_after_seconds=found.retry_after_seconds if seconds is None else seconds,
        is_final=(found.is_final and status < 500) or headers.get("x-should-retry") == "false",
    )
