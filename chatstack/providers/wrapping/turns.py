"""One call of the SDK's as one turn of the stack: what it asked, what was sent, and what came back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from chatstack.errors import BrokenStreamError, ChatStackError, ServerError
from chatstack.providers.extras import WireObject, text_in
from chatstack.providers.failures import failure
from chatstack.providers.sdk import Sdk
from chatstack.providers.sending import sendable
from chatstack.providers.wires import AnswerReader
from chatstack.providers.wrapping.bodies import events_in, json_bytes, object_in, patched
from chatstack.providers.wrapping.http import HttpRequest, HttpResponse, request_like
from chatstack.providers.wrapping.wires import Wire
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate

_TAIL_SECONDS = 1.0

Send = Callable[[HttpRequest], Awaitable[HttpResponse]]
"""Sends a request, prepared anew if it is not the one that the SDK has built."""
Post = Callable[[HttpRequest, WireObject], Awaitable[HttpResponse]]
"""Sends a body in the place of the request's own, and retries by itself."""


@dataclass(slots=True, eq=False)
class Reply:
    """One response of the server's. ``pending`` are events that no update stands for yet, ``events`` those to come,
    ``cause`` the error that came instead."""

    response: HttpResponse
    pending: list[bytes] = field(default_factory=list[bytes])
    events: AsyncGenerator[bytes, None] | None = None
    cause: Exception | None = None

    async def aclose(self) -> None:
        """Close it."""
        if self.events is not None:
            await self.events.aclose()
        await self.response.aclose()

    async def finish(self) -> None:
        """Read what may come behind the end, so that the connection can be used again, and close it."""
        with suppress(Exception):
            async with asyncio.timeout(_TAIL_SECONDS):
                while self.events is not None and await anext(self.events, None) is not None:
                    pass
        await self.aclose()


class Piece(NamedTuple):
    """A piece of a reply, as it rides on an update in ``raw``: its events with the objects in them."""

    reply: Reply
    events: list[tuple[bytes, WireObject | None]]


class Failure(NamedTuple):
    """A failed exchange: our error, and what the SDK gets instead, a reply, else the exception."""

    error: BaseException
    reply: Reply | None
    cause: Exception | None


_current: ContextVar[Turn | None] = ContextVar("chatstack_wrapped_turn", default=None)


def current_turn() -> Turn | None:
    """Return the turn that this code is run for."""
    return _current.get()


class Turn:
    """One call of the SDK's."""

    __slots__ = ("_ended", "_post", "_sdk", "_send", "asked", "body", "failures", "has_answer", "request", "wire")

    def __init__(
        self, request: HttpRequest, wire: Wire, body: Mapping[str, object], sdk: Sdk[Any], send: Send, post: Post
    ) -> None:
        """Read the request. Raises ``InputError`` for one that is malformed."""
        self.request = request
        self.wire = wire
        self.body = body
        self.asked = wire.read(body)
        self.failures: list[Failure] = []
        self._sdk = sdk
        self._send = send
        self._post = post
        self.has_answer = False
        self._ended: list[Reply] | None = []
        """The replies that were read up to their end, the last of which the SDK reads on; None if it reads none."""

    def beside(self) -> Turn:
        """Return the turn for a request that is sent in the background of this one, which may be over before it: what
        they are answered is not mixed up, and no reply of it is left open."""
        beside = Turn(self.request, self.wire, self.body, self._sdk, self._send, self._post)
        beside._ended = None
        return beside

    @contextmanager
    def entered(self) -> Generator[None]:
        """Make it the current one for a step."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def failed(self, error: BaseException) -> Failure | None:
        """Return the failed exchange that an error is about; None if a layer raised it."""
        return next((each for each in self.failures if error in (each.error, each.cause)), None)

    async def updates(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        """Send a request, and yield the updates of its answer."""
        while self._ended:  # rounds before: of the last one, the SDK reads the end
            await self._ended.pop().finish()
        with self._noting(None):
            response = await self._sent(request)
            if response.status_code >= 400:
                await response.aread()
        reply = Reply(response)
        with self._noting(reply):
            self._refuse(response)
        reading = AnswerReader(self.wire.form, streaming=request.stream)
        parts = self._streamed(reply, reading) if request.stream else self._whole(reply, reading)
        try:
            async for update in parts:
                yield update
        finally:
            await parts.aclose()
        self.has_answer = True

    async def _sent(self, request: ChatRequest) -> HttpResponse:
        if request == self.asked:
            return await self._send(self.request)
        name = text_in(self.body, "model")
        after = sendable(request, lambda: self.wire.write(request, name))
        body = patched(self.body, self.wire.write(self.asked, name), after)
        # The SDK retries the call as a whole, until something has been answered, and tools may have run.
        if self.has_answer:
            return await self._post(self.request, body)
        return await self._send(request_like(self.request, json_bytes(body)))

    def _refuse(self, response: HttpResponse) -> None:
        if response.status_code >= 400:
            body, headers = response.content.decode(errors="replace"), dict(response.headers.items())
            raise failure(self.wire.provider, status=response.status_code, body=body, headers=headers)

    async def _whole(self, reply: Reply, reading: AnswerReader) -> AsyncGenerator[ChatUpdate, None]:
        with self._noting(reply, reading=True):
            await reply.response.aread()
        with self._noting(reply):
            try:
                answer = json.loads(reply.response.content)
            except ValueError as error:
                raise ServerError(
                    f"{self.wire.provider}: the answer is not JSON", provider=self.wire.provider
                ) from error
            if not isinstance(answer, dict):
                raise ServerError(f"{self.wire.provider}: the answer is no object", provider=self.wire.provider)
            *updates, last = [*reading.add(cast("WireObject", answer)), *reading.finish()]
        for update in updates:
            yield update
        yield replace(last, raw=Piece(reply, []))

    async def _streamed(self, reply: Reply, reading: AnswerReader) -> AsyncGenerator[ChatUpdate, None]:
        reply.events = events_in(reply.response.aiter_bytes())
        read: list[tuple[bytes, WireObject | None]] = []
        try:
            while True:
                with self._noting(reply, streaming=True, reading=True):
                    event = await anext(reply.events, None)
                if event is None:
                    break
                reply.pending.append(event)
                with self._noting(reply, streaming=True):
                    found = object_in(event)
                    updates = [] if found is None else reading.add(found)
                read.append((event, found))
                if updates:
                    updates[0] = replace(updates[0], raw=Piece(reply, read))
                    read, reply.pending = [], []
                for update in updates:
                    yield update
                if self.wire.is_end(event, found):
                    break
            with self._noting(reply, streaming=True):
                *updates, last = reading.finish()
        except BaseException as error:
            failed = self.failed(error)
            if failed is None or failed.reply is None or self._ended is None:  # else the SDK may read on
                await reply.aclose()
            raise
        if self._ended is None:
            await reply.finish()
        else:
            self._ended.append(reply)
        for update in updates:
            yield update
        yield replace(last, raw=Piece(reply, read))

    async def close_others(self, kept: Reply | None) -> None:
        """Close the replies that nobody reads on."""
        for each in self.failures:
            if each.reply is not None and each.reply is not kept:
                await each.reply.aclose()
        for reply in self._ended or ():
            if reply is not kept:
                await reply.aclose()

    @contextmanager
    def _noting(self, reply: Reply | None, *, streaming: bool = False, reading: bool = False) -> Generator[None]:
        """Turn what is raised into our error, and note what the SDK is to be told of it: of what came, the bytes; of
        what could not be read, the exception behind them."""
        try:
            yield
        except ChatStackError as error:
            self.failures.append(Failure(error, reply, None))
            raise
        except Exception as error:
            answered = getattr(error, "response", None)  # of an error that the SDK raised for a status
            ours = self._sdk.translated(error, streaming=streaming)
            if ours is None and reply is not None:
                ours = BrokenStreamError(
                    f"{self.wire.provider}: the answer cannot be read", provider=self.wire.provider
                )
            if ours is None:  # not of the transport's making: the SDK gets it as it is
                self.failures.append(Failure(error, None, error))
                raise
            told = reply or (Reply(cast("HttpResponse", answered)) if answered is not None else None)
            if reply is not None and reading:
                reply.cause = error
            self.failures.append(Failure(ours, told, error))
            raise ours from error
