"""One answer for two readers: its bytes for the caller, as they come, and a copy of them for the layers."""

from __future__ import annotations

import asyncio
from collections import deque

from chatstack import ChatUpdate, Message, ProviderError
from chatstack.errors import BrokenStreamError
from chatstack.providers.failures import transport_failure
from chatstack.providers.wires import PROVIDERS, AnswerReader, Form
from chatstack_gateway.events import EventSplitter, Inflater, decoded
from chatstack_gateway.upstream import Answer

_MOST_COPIED = 256 * 1024 * 1024


class Tee:
    """The caller's side takes pieces by ``next``; the copy's side gets the same by ``copied``, whenever it is ready."""

    __slots__ = ("_copies", "_error", "_first", "_is_over", "_is_read", "_size", "_waiting", "answer", "said")

    def __init__(self, answer: Answer, first: bytes = b"") -> None:
        self.answer = answer
        self.said: Message | None = None
        """The message that the copy was read as, once it has come to its end."""
        self._first = first
        self._copies: deque[bytes] = deque()
        self._error: BaseException | None = None
        self._is_over = False
        self._is_read = True
        self._size = 0
        self._waiting: asyncio.Future[None] | None = None

    async def next(self) -> bytes:
        """Return the next piece for the caller; b"" at the end. Raises what the connection does."""
        try:
            piece, self._first = self._first, b""
            piece = piece or await self.answer.next()
        except BaseException as error:
            self.end(error)
            raise
        if not piece:
            self.end()
        elif self._is_read:
            self._size += len(piece)
            self._copies.append(piece)
            if self._size > _MOST_COPIED:
                self.end(ValueError("the answer is too large to be read along"))
            self._wake()
        return piece

    def end(self, error: BaseException | None = None) -> None:
        """Tell the copy's side that nothing more comes."""
        if not self._is_over:
            self._is_over, self._error = True, error
            self._wake()

    async def copied(self) -> bytes:
        """Return the next piece of the copy; b"" at the end. Raises what the caller's side has met."""
        while not self._copies:
            if self._error is not None:
                raise self._error
            if self._is_over:
                return b""
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._copies.popleft()

    def stop_copying(self) -> None:
        """Keep no more copies: nobody reads them."""
        self._is_read = False
        self._copies.clear()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


class CopySource:
    """The source of a ``ChatStream`` over the copy of an answer."""

    def __init__(self, form: Form, tee: Tee, *, streaming: bool) -> None:
        self._tee = tee
        self._reader = AnswerReader(form, streaming=streaming)
        self._provider = PROVIDERS[form]
        self._ends_itself = form != "chat"  # there the usage follows what ends the answer
        self._split = EventSplitter()
        self._updates: deque[ChatUpdate] = deque()
        self._whole: list[bytes] = []
        self._inflate: Inflater | None = None
        self._is_over = False

    async def __anext__(self) -> ChatUpdate:
        while not self._updates:
            if self._is_over:
                raise StopAsyncIteration
            try:
                piece = await self._tee.copied()
                self._take(piece)
            except ProviderError:
                raise
            except Exception as error:
                raise self._failed(error) from error
        return self._updates.popleft()

    async def aclose(self) -> None:
        self._tee.stop_copying()

    def _take(self, piece: bytes) -> None:
        if self._inflate is None:
            self._inflate = Inflater(self._tee.answer.encoding)
        plain = self._inflate.feed(piece) if piece else b""
        if not self._reader.streaming:
            self._whole.append(plain)
            if not piece:
                self._updates.extend(self._reader.add(decoded(b"".join(self._whole))))
        else:
            for data in self._split.feed(plain) if piece else self._split.end():
                self._updates.extend(self._reader.add(decoded(data)))
        if not piece or self._is_told:
            self._is_over = True
            self._tee.stop_copying()
            self._updates.extend(self._reader.finish())
            self._tee.said = self._updates[-1].message_done

    @property
    def _is_told(self) -> bool:
        """True once a stream has told all of its answer, whatever else may follow."""
        return self._reader.streaming and (self._split.is_done or (self._ends_itself and self._reader.is_complete))

    def _failed(self, error: Exception) -> Exception:
        failed = transport_failure(self._provider, error, streaming=True)
        return failed or BrokenStreamError(
            f"{self._provider}: the copy of the answer could not be read ({type(error).__name__})",
            provider=self._provider,
        )
