"""Two common ways of shortening a conversation, for comparison with ours.

They are no features: they forget everything from one call to the next, so each call may be cut another way, and that is
what is compared.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import msgspec

from chatstack.client.protocol import ChatClient
from chatstack.client.stream import ChatStream
from chatstack.context.context import Context
from chatstack.context.handles import PLACEHOLDER
from chatstack.context.memory import ContextMemory
from chatstack.context.plans import Plan
from chatstack.context.strategy import AppliesStrategy, Strategy
from chatstack.telemetry.emission import Telemetry
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message
from chatstack.values.parts import Part, ToolResult
from chatstack.values.requests import ChatRequest
from chatstack.workbench.replay.measures.measuring import WireCounter


class Anew:
    """Applies a strategy to each request by itself. The memory keeps sizes of messages, and nothing else.

    Plans are not verified, and earlier decisions are not kept: the wrapped strategy makes none of our promises.
    """

    def __init__(
        self,
        inner: ChatClient,
        *,
        strategy: Strategy,
        memory: ContextMemory,
        telemetry: Telemetry,
        counter: TokenCounter | None = None,
    ) -> None:
        self.inner = inner
        self.strategy = strategy
        self._memory = memory
        self._telemetry = telemetry
        self._counter = counter or WireCounter.best()

    async def send(self, request: ChatRequest, /) -> ChatStream:
        """Plan, apply the plan, pass the request on."""
        context = Context.of(
            request,
            fixed_tokens=self._memory.options_size(request.options, self._counter),
            size_of=self._memory.sizes_by(self._counter),
        )
        plan = self.strategy.plan(context)
        if plan is None:
            return await self.inner.send(request)
        after = context.after(plan)
        self._telemetry.edit(plan.strategy, plan.reason, {}, tokens_before=context.tokens, tokens_after=after.tokens)
        return await self.inner.send(after.to_send())


class Comparison(Strategy):
    """A strategy that is applied anew on each call."""

    __slots__ = ()

    def as_layer(self) -> AppliesStrategy:
        return functools.partial(Anew, strategy=self)


@dataclass(frozen=True, slots=True)
class SlidingWindow(Comparison):
    """Sends the system messages, the first user message, and as many of the newest whole units as fit."""

    max_tokens: int
    name = "sliding-window"
    quotes_nothing = True

    def plan(self, context: Context) -> Plan | None:
        kept = {at for at, message in enumerate(context.messages) if message.role == "system"}
        if context.first_user is not None:
            kept.add(context.first_user)
        room = self.max_tokens - context.fixed_tokens - sum(context.sizes[at] for at in kept)
        for unit in reversed(context.units):
            room -= sum(context.sizes[at] for at in unit.positions if at not in kept)
            if room < 0:
                break
            kept.update(unit.positions)
        drop = tuple(at for at in range(len(context.messages)) if at not in kept)
        reason = f"more than {self.max_tokens:,} tokens"
        return Plan(strategy=self.name, reason=reason, drop=drop) if drop else None


@dataclass(frozen=True, slots=True)
class RollingMasking(Comparison):
    """Replaces all tool results but the newest ``keep`` by a placeholder, however much room there is."""

    keep: int = 10
    name = "rolling-masking"

    def plan(self, context: Context) -> Plan | None:
        places = [
            (at, index)
            for at, message in enumerate(context.messages)
            for index, part in enumerate(message.parts)
            if isinstance(part, ToolResult)
        ]
        old: dict[int, set[int]] = {}
        for at, index in places[: max(0, len(places) - self.keep)]:
            old.setdefault(at, set()).add(index)
        replace = tuple((at, _masked(context.messages[at], indexes)) for at, indexes in old.items())
        reason = f"more than {self.keep} tool results"
        return Plan(strategy=self.name, reason=reason, replace=replace) if replace else None


def _masked(message: Message, indexes: set[int]) -> Message:
    """Return the message with the outputs of these results replaced."""
    parts = tuple(_cleared(part) if index in indexes else part for index, part in enumerate(message.parts))
    return message.edited(parts=parts)


def _cleared(part: Part) -> Part:
    return msgspec.structs.replace(part, output=PLACEHOLDER) if isinstance(part, ToolResult) else part
