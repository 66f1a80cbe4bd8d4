"""What streams read from, beside the generators of providers: one that is not open yet, and one that is watched."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from chatstack.errors import ChatStackError, StreamBusyError, StreamClosedError, TurnTimeoutError
from chatstack.values.responses import ChatResponse, ChatUpdate

T = TypeVar("T")


class UpdateSource(Protocol):
    """What a stream reads from: any async generator of updates is one."""

    def __anext__(self) -> Awaitable[ChatUpdate]: ...

    def aclose(self) -> Awaitable[object]: ...


class WholeSource(UpdateSource, Protocol):
    """A source that can also be read at once: a stream is one."""

    @property
    def so_far(self) -> ChatResponse | None: ...

    def response(self) -> Awaitable[ChatResponse]: ...


class WholeReader(Protocol):
    """Reads all of an answer at once, where nobody wants its updates; ``so_far`` is what of it has arrived."""

    @property
    def so_far(self) -> ChatResponse | None: ...

    def whole(self) -> Awaitable[ChatResponse]: ...


class StreamWatch(Protocol):
    """Looks on while a stream is read: ``enter`` and ``leave`` around every step, ``ended`` exactly once.

    One that has a method ``saw`` too is told of every update; where the whole answer is awaited, nobody sees any.

    ``ended`` gets what had arrived in whole messages, and what ended it: None for the regular end, GeneratorExit
    for a stream that was closed or dropped early.
    """

    def enter(self) -> object: ...

    def leave(self, token: object, /) -> None: ...

    def ended(self, answer: ChatResponse | None, error: BaseException | None, /) -> None: ...


def closes_this(error: BaseException | None) -> bool:
    """Whether an error closes the very coroutine that has caught it, as the collector does: maybe from another context,
    where there is nothing to leave. A ``GeneratorExit`` that code below has raised has been through a frame there."""
    if not isinstance(error, GeneratorExit):
        return False
    return error.__traceback__ is None or error.__traceback__.tb_next is None


class OpeningSource:
    """The source of a stream that has not been sent yet: what the fronts give to people.

    One task reads it at a time. Closing it from another task stops the one that reads, which then gets a
    ``StreamClosedError``.
    """

    __slots__ = ("_deadline", "_opener", "_reader", "_stopped", "_stream", "_timeout_seconds")

    def __init__(self, opener: Callable[[], Awaitable[UpdateSource]], timeout_seconds: float | None) -> None:
        self._opener = opener
        self._stream: UpdateSource | None = None
        self._timeout_seconds = timeout_seconds
        self._deadline: float | None = None
        self._reader: asyncio.Task[object] | None = None
        self._stopped: asyncio.Future[None] | None = None

    async def open(self) -> None:
        if self._stream is None:
            self._enter()
            try:
                await self._open()
            except asyncio.CancelledError:
                self._raise_if_closed()
                raise
            finally:
                self._leave()

    async def __anext__(self) -> ChatUpdate:
        self._enter()
        try:
            if self._stream is None or self._deadline is not None:
                stream = self._stream or await self._open()
                return await self._in_time(stream.__anext__)
            return await self._stream.__anext__()
        except asyncio.CancelledError:
            self._raise_if_closed()
            raise
        finally:
            self._leave()

    async def aclose(self) -> None:
        reader = self._reader
        if reader is not None and reader is not asyncio.current_task():
            if self._stopped is None:
                self._stopped = asyncio.get_running_loop().create_future()
                reader.cancel()
            await asyncio.shield(self._stopped)  # several may wait, and one that gives up stops none of them
        if self._stream is not None:
            await self._stream.aclose()

    async def _open(self) -> UpdateSource:
        if self._timeout_seconds is not None:
            self._deadline = asyncio.get_running_loop().time() + self._timeout_seconds
        self._stream = await self._in_time(self._opener)
        return self._stream

    def _enter(self) -> None:
        if self._reader is not None:
            raise StreamBusyError("another task is reading this stream; one at a time")
        self._reader = asyncio.current_task()

    def _leave(self) -> None:
        self._reader = None
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)

    def _raise_if_closed(self) -> None:
        """For the reader the stream was closed, if it was aclose() that cancelled it, and nobody else."""
        if self._stopped is not None and self._reader is not None and self._reader.uncancel() == 0:
            raise StreamClosedError("this stream was closed by another task while it was being read") from None

    async def _in_time(self, step: Callable[[], Awaitable[T]]) -> T:
        if self._deadline is None:
            return await step()
        limit = asyncio.timeout_at(self._deadline)
        try:
            async with limit:
                return await step()
        except TimeoutError as error:
            if limit.expired() and not isinstance(error, ChatStackError):
                if self._stream is not None:
                    await self._stream.aclose()
                raise TurnTimeoutError(
                    f"the turn took longer than timeout_seconds={self._timeout_seconds:g}"
                ) from error
            raise


class WatchedSource:
    """The source of a stream that somebody looks on at.

    A class, not a generator: each step enters and leaves the watch within one coroutine, so nothing is held across a
    yield, and what runs lazily below (later rounds, tools) still runs inside it.
    """

    __slots__ = ("_inner", "_is_over", "_saw", "_watch")

    def __init__(self, inner: WholeSource, watch: StreamWatch) -> None:
        self._inner = inner
        self._watch = watch
        self._saw: Callable[[ChatUpdate], None] | None = getattr(watch, "saw", None)
        self._is_over = False

    async def __anext__(self) -> ChatUpdate:
        update = await self._step(self._inner.__anext__, False)
        if self._saw is not None:
            self._saw(update)
        return update

    @property
    def so_far(self) -> ChatResponse | None:
        return self._inner.so_far

    async def whole(self) -> ChatResponse:
        """Read all of it at once, in one step."""
        return await self._step(self._inner.response, True)

    async def _step(self, step: Callable[[], Awaitable[T]], is_last: bool) -> T:
        token = self._watch.enter()
        is_collected = False
        try:
            done = await step()
            if is_last:
                self._end(None)
            return done
        except StopAsyncIteration:
            self._end(None)
            raise
        except BaseException as error:
            is_collected = closes_this(error)
            self._end(error)
            raise
        finally:
            if not is_collected:
                self._watch.leave(token)

    async def aclose(self) -> None:
        token = self._watch.enter()
        try:
            await self._inner.aclose()
        finally:
            try:
                self._end(GeneratorExit())
            finally:
                self._watch.leave(token)

    def __del__(self) -> None:
        if not self._is_over:
            self._is_over = True
            # The collector may run while a context variable is being set: never set one of the same context in here.
            contextvars.copy_context().run(self._watch.ended, None, GeneratorExit())

    def _end(self, error: BaseException | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._watch.ended(self._inner.so_far, error)
