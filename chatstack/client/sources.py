"""Sources for streams, beside the generators of providers: a request not sent yet, and a stream with a watch."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar, cast

from chatstack.client.closing import closes_this
from chatstack.client.collecting import outside_collector
from chatstack.client.time_limits import expire_at, told_as
from chatstack.client.what_was_done import tell_what_was_done
from chatstack.errors import ChatStackError, StreamBusyError, StreamClosedError, TurnTimeoutError
from chatstack.values.messages import Message
from chatstack.values.responses import ChatResponse, ChatUpdate

T = TypeVar("T")


class UpdateSource(Protocol):
    """The source of a stream: every async iterator of updates is one. Its ``aclose``, if it has one, closes it."""

    def __anext__(self) -> Awaitable[ChatUpdate]: ...


class WholeSource(UpdateSource, Protocol):
    """A source that can also be read as a whole: a stream is one."""

    @property
    def so_far(self) -> ChatResponse: ...

    def response(self) -> Awaitable[ChatResponse]: ...

    def aclose(self) -> Awaitable[object]: ...


class WholeReader(Protocol):
    """A reader for the whole answer if no updates are wanted; ``so_far`` is the part that has arrived."""

    @property
    def so_far(self) -> ChatResponse: ...

    def whole(self) -> Awaitable[ChatResponse]: ...


class StreamWatch(Protocol):
    """An observer of a stream: ``enter`` and ``leave`` run around every step, ``ended`` exactly once.

    If it also has a method ``saw``, that gets every update; there are none if the whole answer is awaited.

    ``ended`` gets the whole messages that had arrived, and the cause of the end: None for the regular end,
    GeneratorExit for a stream that was closed or dropped early.
    """

    def enter(self) -> object: ...

    def leave(self, token: object, /) -> None: ...

    def ended(self, answer: ChatResponse | None, error: BaseException | None, /) -> None: ...


def check_source(source: object) -> None:
    """Raise ``TypeError`` for what cannot be the source of a stream."""
    if hasattr(source, "__anext__"):
        return
    if inspect.iscoroutine(source):
        source.close()  # else Python warns that it was never awaited
    name = _name_of(source)
    given = name if name == type(source).__name__ else f"{name} (a {type(source).__name__})"
    raise TypeError(f"ChatStream: {given} is no source of updates: write an async generator, and call it")


def mistake_in(update: object, source: object) -> TypeError | None:
    """Return the error, which names the source, for what is no update, or finishes what is no message of an answer."""
    if not isinstance(update, ChatUpdate):
        told = f"gave a {type(update).__name__}, not a ChatUpdate: yield ChatUpdate(text=...)"
        return TypeError(f"{_name_of(source)} {told}")
    done: Any = update.message_done
    if done is None or (isinstance(done, Message) and done.role in ("assistant", "tool")):
        return None
    given = f"a {done.role} message" if isinstance(done, Message) else f"a {type(done).__name__}"
    told = f"gave {given} as message_done, not a Message of the assistant or of a tool"
    return TypeError(f"{_name_of(source)} {told}")


def _name_of(source: object) -> str:
    """Return the name of the function that a generator is of; of anything else, that of its class."""
    return cast("str", getattr(source, "__qualname__", type(source).__name__))


class OpeningSource:
    """The source of a stream that has not been sent yet, as the fronts return it.

    One task reads it at a time. Closing it from another task stops the reader, which then gets a ``StreamClosedError``.
    """

    __slots__ = ("_deadline", "_opener", "_reader", "_stopped", "_stream", "_timeout_seconds")

    def __init__(self, opener: Callable[[], Awaitable[WholeSource]], timeout_seconds: float | None) -> None:
        self._opener = opener
        self._stream: WholeSource | None = None
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
            except Exception as error:
                self._tell(error)
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
        except StopAsyncIteration:
            raise
        except Exception as error:
            self._tell(error)
            raise
        finally:
            self._leave()

    async def aclose(self) -> None:
        reader = self._reader
        if reader is not None and reader is not asyncio.current_task():
            if self._stopped is None:
                self._stopped = asyncio.get_running_loop().create_future()
                reader.cancel()
            await asyncio.shield(self._stopped)  # several tasks may wait; cancelling one must not cancel the others
        if self._stream is not None:
            await self._stream.aclose()

    async def _open(self) -> WholeSource:
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
        """Raise ``StreamClosedError`` for the reader if ``aclose()`` cancelled it, and not somebody else."""
        if self._stopped is not None and self._reader is not None and self._reader.uncancel() == 0:
            closed = StreamClosedError("this stream was closed by another task while it was being read")
            self._tell(closed)
            raise closed from None

    def _tell(self, error: Exception) -> None:
        tell_what_was_done(error, None if self._stream is None else self._stream.so_far)

    async def _in_time(self, step: Callable[[], Awaitable[T]]) -> T:
        if self._deadline is None:
            return await step()
        limit = asyncio.timeout(None)
        try:
            async with limit:
                expire_at(limit, self._deadline)
                with told_as(TurnTimeoutError.__name__, limit):
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
    """The source of a stream with a watch.

    A class, not a generator: each step enters and leaves the watch within one coroutine, so nothing is held across a
    yield, and code that runs lazily below (later rounds, tools) still runs inside the watch.
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
    def so_far(self) -> ChatResponse:
        return self._inner.so_far

    async def whole(self) -> ChatResponse:
        """Read the whole answer in one step."""
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
            # It may be dropped while a context variable is being set: never set one of the same context here.
            contextvars.copy_context().run(outside_collector, self._watch.ended, None, GeneratorExit())

    def _end(self, error: BaseException | None) -> None:
        if not self._is_over:
            self._is_over = True
            outside_collector(self._watch.ended, self._inner.so_far, error)
