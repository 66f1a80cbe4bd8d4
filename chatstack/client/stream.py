"""The one stream class: an answer on its way.

``ChatStream`` is an async iterator of updates, an async context manager, and folds what goes by into the whole
answer, so that a layer that only looks at the request hands its inner stream on untouched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

from chatstack.client.sources import OpeningSource, StreamWatch, UpdateSource, WatchedSource
from chatstack.errors import BrokenStreamError, StreamBusyError, StreamClosedError
from chatstack.values.messages import Message
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatResponse, ChatUpdate, FinishReason, Usage
from chatstack.values.usage import credible, with_usage

UsageCheck: TypeAlias = Callable[[ChatUpdate, ChatResponse], ChatUpdate]

_NO_USAGE = Usage()


class ChatStream:
    """An answer on its way: iterate it, ``await response()`` for the whole, and close it (or use ``async with``).

    One task reads it. What the fronts give may also be closed by another task, which stops the reader with a
    ``StreamClosedError``; a second reader gets a ``StreamBusyError``. A stream from ``send`` belongs to its one layer.

    Whatever client it comes from: one that ends in the middle of a message, or without any, raises
    ``BrokenStreamError`` there, and is never a short answer. A message may be empty.
    """

    __slots__ = (
        "__weakref__",
        "_closed",
        "_ended",
        "_failure",
        "_fold",
        "_head",
        "_in_message",
        "_listeners",
        "_owned",
        "_parsed",
        "_read",
        "_released",
        "_source",
        "_started",
        "sent",
        "usage_check",
    )

    def __init__(self, source: UpdateSource, *, owns: ChatStream | None = None) -> None:
        """A stream over a source; ``owns`` is closed with it, also when the source never got to run."""
        self._source = source
        self._owned = owns
        self._head: deque[ChatUpdate] | None = None
        self._fold: _Fold | None = None
        self._failure: BaseException | None = None
        self._listeners: list[Callable[[ChatResponse], None]] | None = None
        self._parsed: ChatResponse | None = None
        self._read: Callable[[ChatResponse], ChatResponse] | None = None
        self.sent: ChatRequest | None = None
        """The request as it reached the provider, where it, or the model tracer around it, has said so."""
        self.usage_check: UsageCheck = _credible
        """Takes out what an update reports that cannot be true; gets the update, and the answer before it."""
        self._started = self._ended = self._closed = self._released = self._in_message = False

    if not TYPE_CHECKING:  # a type checker knows by itself

        def __getattr__(self, name: str) -> object:
            told = f"'ChatStream' object has no attribute {name!r}"
            if name in ("text", "messages", "usage", "parsed"):
                told += f"; read it first: (await stream.response()).{name}"
            raise AttributeError(told, name=name, obj=self)

    @classmethod
    async def primed(cls, source: UpdateSource) -> ChatStream:
        """For providers: read until the model has begun to answer; what it raises before that is raised here.

        So is an answer of nothing, as a ``BrokenStreamError``: the next client of a fallback may have one.
        """
        stream = cls(source)
        stream._head = head = deque[ChatUpdate]()
        try:
            while True:
                update = await source.__anext__()
                head.append(update)
                if update.has_content or update.message_done is not None:
                    break
        except StopAsyncIteration:
            raise _broken(in_message=False) from None
        except GeneratorExit:  # thrown in by the collector, which ends the source as well
            raise
        except BaseException:
            await source.aclose()
            raise
        return stream

    @classmethod
    def opening(
        cls,
        opener: Callable[[], Awaitable[ChatStream]],
        *,
        timeout_seconds: float | None = None,
        read: Callable[[ChatResponse], ChatResponse] | None = None,
    ) -> ChatStream:
        """A stream that sends nothing until it is entered or iterated. The time limit is for all of it. ``read`` makes
        of the whole answer what ``response()`` gives."""
        stream = cls(OpeningSource(opener, timeout_seconds))
        stream._read = read
        return stream

    @classmethod
    def watched(cls, inner: ChatStream, watch: StreamWatch) -> ChatStream:
        """The same stream with somebody looking on, who is told of its end even if it is dropped."""
        stream = cls(WatchedSource(inner, watch))
        stream.sent = inner.sent
        return stream

    @property
    def so_far(self) -> ChatResponse:
        """What has arrived in whole messages up to now."""
        return (self._fold or _Fold()).response()

    def when_answered(self, listener: Callable[[ChatResponse], None]) -> None:
        """Tell that one the whole answer, once it has all been read; it must not raise. Costs nothing on the way."""
        if self._ended:
            listener(self.so_far)
            return
        if self._listeners is None:
            self._listeners = []
        self._listeners.append(listener)

    def _finish(self) -> None:
        self._ended = True
        listeners, self._listeners = self._listeners, None
        for listener in listeners or ():
            listener(self.so_far)

    async def __aenter__(self) -> Self:
        if isinstance(self._source, OpeningSource) and self._failure is None and not self._closed:
            try:
                await self._source.open()
            except StreamBusyError:
                raise
            except BaseException as error:
                self._fail(error)
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChatUpdate:
        if self._head and not self._closed:
            update = self._head.popleft()
        elif self._ended or self._closed or self._failure is not None:
            raise self._over()
        else:
            self._started = True
            try:
                update = await self._source.__anext__()
            except StopAsyncIteration:
                await self._end()
                raise
            except StreamBusyError:  # the other task's reading goes on
                raise
            except BaseException as error:
                self._fail(error)
                raise
        if (
            update.message_done is not None
            or update.usage is not None
            or update.finish_reason is not None
            or update.overhead_usage is not None
        ):
            if self._fold is None:
                self._fold = _Fold()
            if update.usage is not None or update.overhead_usage is not None:
                update = self.usage_check(update, self.so_far)
            self._fold.add(update)
        if update.message_done is not None:
            self._in_message = False
        elif not self._in_message:
            self._in_message = update.has_content
        return update

    async def _end(self) -> None:
        """Take the source's end for what it is: that of the answer, or of a connection."""
        is_whole = not self._in_message and self._fold is not None and self._fold.messages
        if not is_whole:
            self._failure = _broken(in_message=self._in_message)
        self._ended = self._failure is None
        if self._owned is not None:  # a source may end before what it reads from does
            await self._owned.aclose()
        if self._failure is not None:
            raise self._failure from None
        self._finish()

    def _over(self) -> BaseException:
        """What to raise when there is nothing more to read."""
        if self._ended:
            return StopAsyncIteration()
        if self._failure is not None:
            return self._failure
        return StreamClosedError("this stream was closed before its end: its answer is not complete")

    def _fail(self, error: BaseException) -> None:
        # A cancelled source is exhausted: to read on would look like a regular end, and give half an answer.
        if isinstance(error, Exception):
            self._failure = error
        else:
            self._failure = StreamClosedError("reading this stream was cancelled: its answer is not complete")

    async def response(self) -> ChatResponse:
        """Read what is left, and return the whole answer. May be asked again."""
        if not self._started and isinstance(self._source, WatchedSource) and not self._closed:
            await self._read_below(self._source)
        async for _ in self:
            pass
        await self.aclose()
        if self._read is None:
            return self.so_far
        if self._parsed is None:
            self._parsed = self._read(self.so_far)
        return self._parsed

    async def _read_below(self, source: WatchedSource) -> None:
        """Nobody looks at the updates, so they need not come up here one by one."""
        self._started = True
        try:
            self._fold = _Fold.of(await source.whole())
        except BaseException as error:
            self._fail(error)
            raise
        self._finish()

    async def aclose(self) -> None:
        """Stop, and free what is below. May be called again and again."""
        if self._released:
            return
        self._closed = True
        if not self._ended:
            try:
                await self._source.aclose()
            finally:
                if self._owned is not None:
                    await self._owned.aclose()
        self._released = True


def _credible(update: ChatUpdate, so_far: ChatResponse) -> ChatUpdate:
    return with_usage(update, credible)


def _broken(*, in_message: bool) -> BrokenStreamError:
    told = "in the middle of a message" if in_message else "without a message"
    return BrokenStreamError(f"the stream ended {told}: the answer is not complete")


class _Fold:
    """Adds up updates to the whole answer."""

    __slots__ = ("answer", "finish", "id", "messages", "model", "overhead", "raw", "rounds", "usage")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.usage = self.overhead = _NO_USAGE
        self.answer: ChatResponse | None = None
        self.finish: FinishReason | None = None
        self.id = self.model = ""
        self.rounds = 0
        self.raw: object = None

    @classmethod
    def of(cls, answer: ChatResponse) -> _Fold:
        """What adds up to that answer."""
        fold = cls()
        fold.answer = answer
        return fold

    def add(self, update: ChatUpdate) -> None:
        if update.message_done is not None:
            self.messages.append(update.message_done)
            self.rounds = update.round
        if update.usage is not None:
            self.usage = update.usage if self.usage is _NO_USAGE else self.usage + update.usage
        if update.overhead_usage is not None:
            self.overhead = self.overhead + update.overhead_usage
        if update.finish_reason is not None:
            self.finish = update.finish_reason
            self.id, self.model, self.raw = update.response_id, update.model, update.raw
        self.answer = None

    def response(self) -> ChatResponse:
        if self.answer is None:
            self.answer = ChatResponse(
                messages=tuple(self.messages),
                usage=self.usage,
                overhead_usage=self.overhead,
                finish_reason=self.finish,
                id=self.id,
                model=self.model,
                rounds=self.rounds + 1,
                raw=self.raw,
            )
        return self.answer
