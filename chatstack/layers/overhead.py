"""Overhead: the usage of summaries, told once, as the first update of the next answer that is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chatstack.client.collecting import outside_collector
from chatstack.client.stream import ChatStream
from chatstack.values.responses import ChatUpdate, Usage


@dataclass(slots=True, repr=False, eq=False)
class ToldFirst:
    """The same stream, preceded by the usage of summaries, and the model that wrote them; ``owe`` is called if nobody
    reads it."""

    stream: ChatStream
    usage: Usage | None
    model: str
    owe: Callable[[], None]

    async def __anext__(self) -> ChatUpdate:
        if self.usage is not None:
            usage, self.usage = self.usage, None
            return ChatUpdate(overhead_usage=usage, model=self.model)
        return await self.stream.__anext__()

    async def aclose(self) -> None:
        self._give_back()
        await self.stream.aclose()

    def __del__(self) -> None:
        self._give_back()

    def _give_back(self) -> None:
        usage, self.usage = self.usage, None
        if usage is not None:
            outside_collector(self.owe)
