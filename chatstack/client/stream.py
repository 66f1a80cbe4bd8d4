"""The one stream class: an answer on its way.

``ChatStream`` is an async iterator of updates, an async context manager, and folds what goes by into the whole
answer, so that a layer that only looks at the request hands its inner stream on untouched.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol, Self, TypeVar

from chatstack.errors import ChatStackError, StreamClosedError, TurnTimeoutError
from chatstack.values.messages import Message
from chatstack.values.responses import ChatResponse, ChatUpdate, FinishReason, Usage

T = TypeVar("T")


_NO_USAGE = Usage()


class UpdateSource(Protocol):
    """What a stream reads from: any async generator of updates is one."""

    def __anext__(self) -> Awaitable[ChatUpdate]: ...

    def aclose(self) -> Awaitable[object]: ...


class StreamWatch(Protocol):
    """Looks on while a stream is read: ``enter`` and ``leave`` around every step, ``ended`` exactly once.

    ``ended`` gets what had arrived in whole messages, and what ended it: None for the regular end, GeneratorExit
    for a stream that was closed or dropped early.
    """

    def enter(self) -> object: ...

    def leave(self, token: object, /) -> None: ...

    def ended(self, answer: ChatResponse | None, error: BaseException | None, /) -> None: ...


class ChatStream:
    """An answer on its way: iterate it, ``await response()`` for the whole, and close it (or use ``async with``)."""

    __slots__ = ("__weakref__", "_closed", "_ended", "_failure", "_fold", "_head", "_owned", "_source", "_started")

    def __init__(self, source: UpdateSource, *, owns: ChatStream | None = None) -> None:
        """A stream over a source; ``owns`` is closed with it, also when the source never got to run."""
        self._source = source
        self._owned = owns
        self._head: deque[ChatUpdate] | None = None
        self._fold: _Fold | None = None
        self._failure: BaseException | None = None
        self._started = self._ended = self._closed = False

    @classmethod
    async def primed(cls, source: UpdateSource) -> ChatStream:
        """For providers: read until the model has begun to answer; what it raises before that is raised here."""
        stream = cls(source)
        stream._head = head = deque[ChatUpdate]()
        try:
            while True:
                update = await source.__anext__()
                head.append(update)
                if update.has_content or update.message_done is not None:
                    break
        except StopAsyncIteration:
            pass
        except BaseException:
            await source.aclose()
            raise
        return stream

    @classmethod
    def opening(
        cls, opener: Callable[[], Awaitable[ChatStream]], *, timeout_seconds: float | None = None
    ) -> ChatStream:
        """A stream that sends nothing until it is entered or iterated. The time limit is for all of it."""
        return cls(_Opening(opener, timeout_seconds))

    @classmethod
    def watched(cls, inner: ChatStream, watch: StreamWatch) -> ChatStream:
        """The same stream with somebody looking on, who is told of its end even if it is dropped."""
        return cls(_Watched(inner, watch))

    @property
    def so_far(self) -> ChatResponse:
        """What has arrived in whole messages up to now."""
        return (self._fold or _Fold()).response()

    async def __aenter__(self) -> Self:
        if isinstance(self._source, _Opening) and self._failure is None and not self._closed:
            try:
                await self._source.open()
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
                self._ended = True
                if self._owned is not None:  # a source may end before what it reads from does
                    await self._owned.aclose()
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
            self._fold.add(update)
        return update

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
        if not self._started and isinstance(self._source, _Watched) and not self._closed:
            await self._read_below(self._source)
        async for _ in self:
            pass
        await self.aclose()
        return self.so_far

    async def _read_below(self, source: _Watched) -> None:
        """Nobody looks at the updates, so they need not come up here one by one."""
        self._started = True
        try:
            self._fold = _Fold.of(await source.whole())
        except BaseException as error:
            self._fail(error)
            raise
        self._ended = True

    async def aclose(self) -> None:
        """Stop, and free what is below. May be called again and again."""
        if self._closed:
            return
        self._closed = True
        if self._ended:
            return
        try:
            await self._source.aclose()
        finally:
            if self._owned is not None:
                await self._owned.aclose()


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


class _Opening:
    """The source of a stream that has not been sent yet."""

    __slots__ = ("_deadline", "_opener", "_stream", "_timeout_seconds")

    def __init__(self, opener: Callable[[], Awaitable[ChatStream]], timeout_seconds: float | None) -> None:
        self._opener = opener
        self._stream: ChatStream | None = None
        self._timeout_seconds = timeout_seconds
        self._deadline: float | None = None

    async def open(self) -> ChatStream:
        if self._stream is None:
            if self._timeout_seconds is not None:
                self._deadline = asyncio.get_running_loop().time() + self._timeout_seconds
            self._stream = await self._in_time(self._opener)
        return self._stream

    async def __anext__(self) -> ChatUpdate:
        stream = self._stream or await self.open()
        if self._deadline is None:
            return await stream.__anext__()
        return await self._in_time(stream.__anext__)

    async def aclose(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()

    async def _in_time(self, step: Callable[[], Awaitable[T]]) -> T:
        limit = asyncio.timeout_at(self._deadline)
        try:
            async with limit:
                return await step()
        except TimeoutError as error:
            if limit.expired() and not isinstance(error, ChatStackError):
                await self.aclose()
                raise TurnTimeoutError(
                    f"the turn took longer than timeout_seconds={self._timeout_seconds:g}"
                ) from error
            raise


class _Watched:
    """The source of a stream that somebody looks on at.

    A class, not a generator: each step enters and leaves the watch within one coroutine, so nothing is held across a
    yield, and what runs lazily below (later rounds, tools) still runs inside it.
    """

    __slots__ = ("_inner", "_is_over", "_watch")

    def __init__(self, inner: ChatStream, watch: StreamWatch) -> None:
        self._inner = inner
        self._watch = watch
        self._is_over = False

    async def __anext__(self) -> ChatUpdate:
        return await self._step(self._inner.__anext__, False)

    async def whole(self) -> ChatResponse:
        """Read all of it at once, in one step."""
        return await self._step(self._inner.response, True)

    async def _step(self, step: Callable[[], Awaitable[T]], is_last: bool) -> T:
        token = self._watch.enter()
        try:
            done = await step()
        except StopAsyncIteration:
            self._end(None)
            self._watch.leave(token)
            raise
        except GeneratorExit as error:
            # Thrown in by the collector, maybe from another context: there is nothing to leave.
            self._end(error)
            raise
        except BaseException as error:
            self._end(error)
            self._watch.leave(token)
            raise
        if is_last:
            self._end(None)
        self._watch.leave(token)
        return done

    async def aclose(self) -> None:
        token = self._watch.enter()
        try:
            await self._inner.aclose()
        finally:
            self._end(GeneratorExit())
            self._watch.leave(token)

    def __del__(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._watch.ended(None, GeneratorExit())

    def _end(self, error: BaseException | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._watch.ended(self._inner.so_far, error)
