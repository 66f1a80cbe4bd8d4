"""A synchronous front for any chat client: for scripts, Django, notebooks."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Never, Self, TypeVar, overload

from chatstack.client.checks import OwnCopy, check_client, send_to
from chatstack.client.fronts import ChatFronts
from chatstack.client.portal import Hold, Portal
from chatstack.client.protocol import ChatClient
from chatstack.client.stream import ChatStream, ReadItFirst
from chatstack.errors import StreamBusyError, StreamClosedError
from chatstack.values.messages import Message
from chatstack.values.requests import ChatOptions, ChatRequest
from chatstack.values.responses import ChatResponse, ChatUpdate, ParsedResponse, Response_co

T = TypeVar("T")


class SyncClient(OwnCopy):
    """A chat client without ``await``, around any chat client; ``stack.build_sync()`` makes one of a whole stack::

        with stack.build_sync() as client:
            print(client.get_response("Plan a day in Dubai").text)

    The calls run on one event loop, in a thread that all synchronous clients of the process share. It starts with the
    first call, and ends when all of them, and their streams, are closed, or with the process. Any number of threads may
    call, also one in which an event loop runs (a notebook); it waits meanwhile. Context variables and the current span
    are those of the caller, so there is one trace. Functions that are tools run in threads of their own, as always;
    callbacks and async tools run on that event loop, where this client cannot be called (``WiringError``).

    An interrupted call (Ctrl-C) is cancelled. A forked child starts a loop of its own. ``close`` ends background work
    as the async client's ``aclose`` does, never the provider; a later call begins anew. ``inner`` is the async client.
    It is its own copy, and cannot be pickled.
    """

    __slots__ = ("__weakref__", "_fronts", "_hold", "inner")

    def __init__(self, inner: ChatClient) -> None:
        check_client(inner, "SyncClient", "inner")
        self.inner = inner
        self._fronts: ChatFronts = inner if isinstance(inner, ChatFronts) else _Fronts(inner)
        self._hold = Hold(inner)
        weakref.finalize(self, self._hold.drop).atexit = False

    @overload
    def get_response(
        self,
        messages: str | Message | Sequence[Message],
        *,
        options: ChatOptions | None = None,
        conversation_id: str | None = None,
        output_type: type[T],
        timeout_seconds: float | None = None,
    ) -> ParsedResponse[T]: ...
    @overload
    def get_response(
        self,
        messages: str | Message | Sequence[Message],
        *,
        options: ChatOptions | None = None,
        conversation_id: str | None = None,
        output_type: object = None,
        timeout_seconds: float | None = None,
    ) -> ChatResponse: ...
    def get_response(
        self,
        messages: str | Message | Sequence[Message],
        *,
        options: ChatOptions | None = None,
        conversation_id: str | None = None,
        output_type: object = None,
        timeout_seconds: float | None = None,
        **unknown: Never,
    ) -> ChatResponse:
        """Answer the conversation; returns when the turn is over, tool calls included. Takes and raises what the async
        client's ``get_response`` does."""
        return self._begin().call(
            lambda: self._fronts.get_response(
                messages,
                options=options,
                conversation_id=conversation_id,
                output_type=output_type,
                timeout_seconds=timeout_seconds,
                **unknown,
            )
        )

    @overload
    def get_streaming_response(
        self,
        messages: str | Message | Sequence[Message],
        *,
        options: ChatOptions | None = None,
        conversation_id: str | None = None,
        output_type: type[T],
        timeout_seconds: float | None = None,
    ) -> SyncStream[ParsedResponse[T]]: ...
    @overload
    def get_streaming_response(
        self,
        messages: str | Message | Sequence[Message],
        *,
        options: ChatOptions | None = None,
        conversation_id: str | None = None,
        output_type: object = None,
        timeout_seconds: float | None = None,
    ) -> SyncStream: ...
    def get_streaming_response(
        self,
        messages: str | Message | Sequence[Message],
        *,
        options: ChatOptions | None = None,
        conversation_id: str | None = None,
        output_type: object = None,
        timeout_seconds: float | None = None,
        **unknown: Never,
    ) -> SyncStream:
        """Return the same answer as a stream: a plain iterator. Nothing is sent until it is entered or iterated."""
        stream = self._fronts.get_streaming_response(
            messages,
            options=options,
            conversation_id=conversation_id,
            output_type=output_type,
            timeout_seconds=timeout_seconds,
            **unknown,
        )
        return SyncStream(stream, self._begin)

    def _begin(self) -> Portal:
        return self._hold.portal()

    def close(self) -> None:
        """End the background work of the layers, as the async client's ``aclose`` does. May be called again."""
        self._hold.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SyncClient({self.inner!r})"


class SyncStream(Generic[Response_co]):
    """An answer on its way: iterate it, ``response()`` for the whole, and close it (or use ``with``).

    Each step runs on the event loop while the caller waits. One thread reads it; any thread may close it, which stops
    the reader with a ``StreamClosedError``, and cancels everything below. A second reader gets a ``StreamBusyError``.
    """

    __slots__ = ("__weakref__", "_begin", "_dropped", "_hold", "_is_over", "_portal", "_stream")

    if not TYPE_CHECKING:  # a type checker knows by itself
        text = ReadItFirst("text", "stream.response()")
        messages = ReadItFirst("messages", "stream.response()")
        usage = ReadItFirst("usage", "stream.response()")
        parsed = ReadItFirst("parsed", "stream.response()")

    def __init__(self, stream: ChatStream[Response_co], begin: Callable[[], Portal]) -> None:
        self._stream = stream
        self._begin = begin
        self._portal: Portal | None = None
        self._is_over = False
        self._hold = Hold(stream, is_stream=True)
        self._dropped = weakref.finalize(self, self._hold.drop)
        self._dropped.atexit = False

    def _step(self, step: Callable[[], Awaitable[T]]) -> T:
        """Run a step on the loop. A stream that fails is closed: its error holds the frames of its reader."""
        try:
            return self._begun().call(step)
        except (StopAsyncIteration, StreamBusyError):
            raise
        except BaseException:
            self.close()
            raise

    def _begun(self) -> Portal:
        """Return the portal on which the stream began: it cannot go on upon another."""
        if self._portal is None:
            if self._is_over:
                raise StreamClosedError("this stream was closed before it was read")
            self._begin()  # or the loop would end with each stream, and begin anew with the next
            self._portal = self._hold.portal()
        return self._portal

    def _release(self) -> None:
        self._is_over = True
        self._dropped.detach()
        self._hold.release()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ChatUpdate:
        try:
            return self._step(self._stream.__anext__)
        except StopAsyncIteration:
            self._release()
            raise StopIteration from None

    def response(self) -> Response_co:
        """Read the rest, and return the whole answer. May be called again."""
        portal = self._begun()
        if self._is_over and portal.is_over:  # there is nothing more to read: any loop will do
            portal = self._hold.portal()
        try:
            answer = portal.call(self._stream.response)
        except StreamBusyError:
            raise
        except BaseException:
            self.close()
            raise
        self._release()
        return answer

    @property
    def so_far(self) -> ChatResponse:
        """The response up to now, of the messages that have arrived whole."""
        return self._stream.so_far

    def close(self) -> None:
        """Stop, and cancel everything below. May be called again."""
        try:
            self._hold.close()
        finally:
            self._release()

    def __enter__(self) -> Self:
        self._step(self._stream.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Fronts(ChatFronts):
    """Adds the fronts to a client that has only ``send``."""

    __slots__ = ("inner",)

    def __init__(self, inner: ChatClient) -> None:
        self.inner = inner

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await send_to(self.inner, request)
