"""One answer for two readers: its bytes for the caller, as they come, and a copy of them for the layers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing

from chatstack import ChatUpdate, Message, ProviderError
from chatstack.errors import BrokenStreamError
from chatstack.providers.failures import transport_failure
from chatstack.providers.wires import PROVIDERS, Form
from chatstack_gateway.reading import updates_of
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


async def copied_updates(form: Form, tee: Tee, *, streaming: bool) -> AsyncGenerator[ChatUpdate, None]:
    """Yield the updates of the copy of an answer."""
    provider = PROVIDERS[form]
    try:
        updates = updates_of(form, tee.copied, streaming=streaming, encoding=tee.answer.encoding)
        async with aclosing(updates):
            async for update in updates:
                tee.said = update.message_done or tee.said
                yield update
    except ProviderError:
        raise
    except Exception as error:
        failed = transport_failure(provider, error, streaming=True)
        told = f"{provider}: the copy of the answer could not be read ({type(error).__name__})"
        raise failed or BrokenStreamError(told, provider=provider) from error
    finally:
        tee.stop_copying()
