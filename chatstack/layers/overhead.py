"""Overhead: the usage of summaries, reported with the next answer that reaches its end."""

from __future__ import annotations

from collections.abc import Callable

from chatstack.client.stream import ChatStream
from chatstack.values.responses import ChatUpdate, Usage


class ToldFirst:
    """The same stream, preceded by the usage of summaries; ``owe`` is called if it does not reach its end."""

    def __init__(self, stream: ChatStream, usage: Usage, owe: Callable[[], None]) -> None:
        self._stream = stream
        self._usage: Usage | None = usage
        self._owe: Callable[[], None] | None = owe

    async def __anext__(self) -> ChatUpdate:
        if self._usage is not None:
            usage, self._usage = self._usage, None
            return ChatUpdate(overhead_usage=usage)
        try:
            return await self._stream.__anext__()
        except StopAsyncIteration:
            self._owe = None
            raise

    async def aclose(self) -> None:
        self._give_back()
        await self._stream.aclose()

    def __del__(self) -> None:
        self._give_back()

    def _give_back(self) -> None:
        owe, self._owe = self._owe, None
        if owe is not None:
            owe()
