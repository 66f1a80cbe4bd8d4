"""The layer that applies one strategy."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

from chatstack.client.fronts import ChatFronts
from chatstack.client.protocol import ChatClient
from chatstack.client.stream import ChatStream
from chatstack.context.editing import ContextEditing
from chatstack.context.memory import ContextMemory
from chatstack.context.strategy import Strategy
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.turns import attached, compacted
from chatstack.tokens.counter import TokenCounter, char_counter
from chatstack.values.requests import ChatRequest


@dataclass(frozen=True, slots=True, eq=False)
class StrategyApplier(ChatFronts):
    """Applies one strategy to every request: repaired first, earlier decisions replayed, its plan verified.

    Goes inside the tool loop, outside the guard. ``.use(strategy)`` makes it.
    """

    inner: ChatClient
    _: KW_ONLY
    strategy: Strategy
    counter: TokenCounter | None = None
    memory: ContextMemory = field(default_factory=ContextMemory, repr=False)
    telemetry: Telemetry = field(default_factory=Telemetry, repr=False)
    _editing: ContextEditing = field(init=False, repr=False)

    kind: ClassVar[str] = "context"

    def __post_init__(self) -> None:
        counter = self.counter or char_counter(4)
        owner = f"{self.strategy!r},{counter!r}"
        object.__setattr__(self, "_editing", ContextEditing(self.memory, self.telemetry, counter, owner))

    async def send(self, request: ChatRequest, /) -> ChatStream:
        if self._editing.stands_aside(request):
            return await self.inner.send(request)
        opened = self._editing.open(request)
        context = self._editing.replay(opened)
        context = self._editing.apply(self.strategy, context, opened) or context
        if not context.is_edited:
            return await self.inner.send(context.to_send())
        with attached(compacted()):
            return await self.inner.send(context.to_send())
