"""Overhead: the usage of summaries, told once, as the first update of the next answer that is read."""

from __future__ import annotations

from collections.abc import Callable

from chatstack.client.collecting import outside_collector
from chatstack.client.stream import ChatStream
from chatstack.values.responses import ChatUpdate, Usage


class ToldFirst:
    """The same stream, preceded by the usage of summaries, and the model that wrote them; ``owe`` is called if nobody
    reads it."""

    def __init__(self, stream: ChatStream, usage: Usage, model: str, owe: Callable[[], None]) -> None:
        self._stream = stream
        self._usage: Usage | None = usage
        self._model = model
        self._owe = owe

    async def __anext__(self) -> ChatUpdate:
        if self._usage is not None:
            usage, self._usage = self._usage, None
            return ChatUpdate(overhead_usage=usage, model=self._model)
        return await self._stream.__anext__()

    async def aclose(self) -> None:
        self._give_back()
        await self._stream.aclose()

    def __del__(self) -> None:
        self._give_back()

    def _give_back(self) -> None:
        usage, self._usage = self._usage, None
        if usage is not None:
            outside_collector(self._owe)
