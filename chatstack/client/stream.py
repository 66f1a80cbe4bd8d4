"""The one stream class: an answer on its way.

``ChatStream`` is an async iterator of updates and an async context manager. It folds the updates into the whole answer,
so a layer that only changes the request returns its inner stream as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Never, Self, TypeAlias

from chatstack.client.closing import close
from chatstack.client.folding import Fold
from chatstack.client.sources import (
    OpeningSource,
    StreamWatch,
    UpdateSource,
    WatchedSource,
    WholeReader,
    check_source,
    mistake_in,
)
from chatstack.errors import BrokenStreamError, StreamBusyError, StreamClosedError
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatResponse, ChatUpdate, Response_co
from chatstack.values.usage import credible, is_modest, with_usage

UsageCheck: TypeAlias = Callable[[ChatUpdate, Callable[[], ChatResponse]], ChatUpdate]


class ReadItFirst:
    """An attribute of the response that a stream does not have; reading it raises an error that says so."""

    def __init__(self, name: str, response: str = "(await stream.response())") -> None:
        self.name = name
        self.response = response

    def __get__(self, stream: object, owner: type) -> Never:
        kind, name = owner.__name__, self.name
        told = f"{kind!r} object has no attribute {name!r}; read it first: {self.response}.{name}"
        raise AttributeError(told, name=self.name, obj=stream)


class ChatStream(Generic[Response_co]):
    """An answer on its way: iterate it, ``await response()`` for the whole, and close it (or use ``async with``).

    One task reads it. A stream from a front may also be closed by another task, which stops the reader with a
    ``StreamClosedError``; a second reader gets a ``StreamBusyError``. A stream from ``send`` belongs to its one layer.

    A stream that ends within a message, or without any, raises ``BrokenStreamError``, whatever client it comes from; it
    never becomes a short answer. A message may be empty.
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
        "_whole",
        "sent",
        "usage_check",
    )

    def __init__(
        self, source: UpdateSource, *, owns: ChatStream | None = None, whole: WholeReader | None = None
    ) -> None:
        """Make a stream over a source. ``owns`` is closed with it, even if the source never ran; ``whole`` reads the
        same answer at once, for ``response()``. Raises ``TypeError`` for what is no source."""
        check_source(source)
        self._source = source
        self._whole = whole
        self._owned = owns
        self._head: deque[ChatUpdate] | None = None
        self._fold: Fold | None = None
        self._failure: BaseException | None = None
        self._listeners: list[Callable[[ChatResponse], object]] | None = None
        self._parsed: Any = None
        self._read: Callable[[ChatResponse], ChatResponse] | None = None
        self.sent: ChatRequest | None = None
        """The request as it reached the provider, if the provider or the model tracer around it has set it."""
        self.usage_check: UsageCheck | None = None
        """A check that removes implausible usage from an update, given the answer before it."""
        self._started = self._ended = self._closed = self._released = self._in_message = False

    if not TYPE_CHECKING:  # a type checker knows by itself
        # No __getattr__: it would slow down the reading of every attribute.
        text = ReadItFirst("text")
        messages = ReadItFirst("messages")
        usage = ReadItFirst("usage")
        parsed = ReadItFirst("parsed")

        def __await__(self) -> Never:
            raise TypeError(
                "a ChatStream is not awaited: write 'async with client.get_streaming_response(...) as stream'"
            )

    @classmethod
    async def primed(cls, source: UpdateSource) -> ChatStream:
        """For providers: read until the model has begun to answer; errors before that are raised here.

        An empty answer raises ``BrokenStreamError`` here, too, so that a fallback can ask its next client.
        """
        stream = cls(source)
        head: deque[ChatUpdate] = deque()  # deque[ChatUpdate]() takes 0.7 µs more, for each answer
        stream._head = head
        try:
            while True:
                update = await source.__anext__()
                mistake = mistake_in(update, source)
                if mistake is not None:
                    raise mistake
                head.append(update)
                if update.has_content or update.message_done is not None:
                    break
        except StopAsyncIteration:
            raise _broken(in_message=False) from None
        except GeneratorExit:  # thrown in by the collector, which ends the source as well
            raise
        except BaseException:
            await close(source)
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
        """Return a stream that sends nothing until it is entered or iterated. The time limit is for the whole stream.
        ``read`` turns the whole answer into the result of ``response()``."""
        stream = cls(OpeningSource(opener, timeout_seconds))
        stream._read = read
        return stream

    @classmethod
    def watched(cls, inner: ChatStream, watch: StreamWatch) -> ChatStream:
        """Return the same stream with a watch, which is told of its end even if the stream is dropped."""
        source = WatchedSource(inner, watch)
        stream = cls(source, whole=source)
        stream.sent = inner.sent
        return stream

    @property
    def so_far(self) -> ChatResponse:
        """The response up to now, of the messages that have arrived whole."""
        fold = self._fold or Fold()
        return fold.answer or fold.response()

    def when_answered(self, listener: Callable[[ChatResponse], object]) -> None:
        """Call the listener with the whole answer, once it has all been read. The listener must not raise. No cost per
        update."""
        if self._ended:
            listener(self.so_far)
            return
        if self._listeners is None:
            self._listeners = []
        self._listeners.append(listener)

    def _finish(self) -> None:
        self._ended = True
        listeners, self._listeners = self._listeners, None
        if listeners:
            answer = self.so_far
            for listener in listeners:
                listener(answer)

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
            return self._taken(self._head.popleft())
        if self._ended or self._closed or self._failure is not None:
            raise self._over()
        self._started = True
        try:
            update = await self._source.__anext__()
        except StopAsyncIteration:
            await self._end()
            raise
        except BaseException as error:
            self._fail(error)
            raise
        return self._taken(update)

    async def _read_all(self) -> None:
        """Read the rest, without a step for each update."""
        while self._head and not self._closed:
            self._taken(self._head.popleft())
        if self._ended:
            return
        if self._closed or self._failure is not None:
            raise self._over()
        self._started = True
        try:
            while not self._closed:
                self._taken(await self._source.__anext__())
        except StopAsyncIteration:
            await self._end()
        except BaseException as error:
            self._fail(error)
            raise
        else:
            raise self._over()

    async def _end(self) -> None:
        """Decide whether the source's end is the answer's end, or a broken connection."""
        if self._owned is not None:  # a source may end before what it reads from does
            await self._owned.aclose()
        if self._in_message or self._fold is None or not self._fold.messages:
            self._failure = _broken(in_message=self._in_message)
            raise self._failure from None
        self._finish()

    def _taken(self, update: ChatUpdate) -> ChatUpdate:
        """Add an update to the answer, and return it without implausible usage."""
        try:
            if (
                update.message_done is None
                and update.usage is None
                and update.finish_reason is None
                and update.overhead_usage is None
            ):  # nearly all of them
                if not self._in_message:
                    self._in_message = update.has_content
                return update
        except AttributeError:  # no update; to look for that at each one would cost
            self._refuse(update)
            raise
        self._refuse(update)
        self._fold = self._fold or Fold()
        update = self._checked(update)
        self._fold.add(update)
        if update.message_done is not None:
            self._in_message = False
        elif not self._in_message:
            self._in_message = update.has_content
        return update

    def _refuse(self, update: ChatUpdate) -> None:
        """Raise ``TypeError``, from now on, for what no source of updates may give."""
        mistake = mistake_in(update, self._source)
        if mistake is not None:
            self._failure = mistake
            raise mistake from None

    def _checked(self, update: ChatUpdate) -> ChatUpdate:
        """Return the update without implausible usage."""
        if is_modest(update.usage) and (update.overhead_usage is None or is_modest(update.overhead_usage)):
            return update
        if self.usage_check is None:
            return with_usage(update, credible)
        return self.usage_check(update, lambda: self.so_far)

    def _over(self) -> BaseException:
        """Return the exception to raise when there is nothing more to read."""
        if self._ended:
            return StopAsyncIteration()
        if self._failure is not None:
            return self._failure
        return StreamClosedError("this stream was closed before its end: its answer is not complete")

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, StreamBusyError):  # the other task's reading goes on
            return
        # A cancelled source is exhausted: reading on would look like a regular end, and give half an answer.
        if isinstance(error, Exception):
            self._failure = error
        else:
            self._failure = StreamClosedError("reading this stream was cancelled: its answer is not complete")

    async def response(self) -> Response_co:
        """Read the rest, and return the whole answer. May be called again."""
        if self._whole is not None and not self._started and not self._closed and self._failure is None:
            await self._read_below(self._whole)
        elif not self._ended:
            await self._read_all()
        await self.aclose()
        if self._parsed is None:
            self._parsed = self.so_far if self._read is None else self._read(self.so_far)
        return self._parsed  # type: ignore[no-any-return]

    async def _read_below(self, reader: WholeReader) -> None:
        """Read the whole answer from below: no caller wants the updates, so they are not passed up one by one."""
        self._started = True
        try:
            self._fold = Fold.of(await reader.whole())
        except BaseException as error:
            self._add_unread()
            self._fail(error)
            raise
        self._finish()

    async def aclose(self) -> None:
        """Stop, and close the streams below. May be called again and again."""
        if self._released:
            return
        self._closed = True
        if not self._ended:
            try:
                await close(self._source)
            finally:
                if self._owned is not None:
                    await self._owned.aclose()
            self._add_unread()
        self._released = True

    def _add_unread(self) -> None:
        """Add what has arrived, to ``so_far`` alone: it is paid for."""
        while self._head:
            self._taken(self._head.popleft())
        below = self._whole or self._owned
        if below is not None and self._fold is None:
            self._fold = Fold.of(below.so_far)


def _broken(*, in_message: bool) -> BrokenStreamError:
    told = "in the middle of a message" if in_message else "without a message"
    return BrokenStreamError(f"the stream ended {told}: the answer is not complete")
