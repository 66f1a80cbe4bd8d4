"""Pruning: the oldest units go first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from chatstack.context.context import Context
from chatstack.context.plans import Plan
from chatstack.context.strategy import Strategy
from chatstack.context.units import Unit
from chatstack.errors import WiringError


@dataclass(frozen=True, slots=True)
class OldestFirst(Strategy):
    """Above ``max_tokens``, removes the oldest units, whole ones only, down to ``target_tokens``.

    Never touched: system, pinned and summary messages, the first user message (the task), the latest one, and calls
    that still wait for results. The newest unit goes only if the limit cannot be kept otherwise.
    Source: seed ``needlr-context-window-guard``, and what its original removed that it should not.
    """

    max_tokens: int
    target_tokens: int
    name = "truncate"

    def __post_init__(self) -> None:
        if not 0 < self.target_tokens <= self.max_tokens:
            raise WiringError(
                f"OldestFirst: target_tokens={self.target_tokens} must be between 1 and max_tokens={self.max_tokens}",
                parameter="target_tokens",
            )

    def plan(self, context: Context) -> Plan | None:
        tokens = context.tokens
        if tokens <= self.max_tokens:
            return None
        newest = context.units[-1] if context.units else None
        drop: list[int] = []
        for unit in self.removable(context):
            goal = self.max_tokens if unit is newest else self.target_tokens
            if tokens <= goal:
                break
            drop.extend(unit.positions)
            tokens -= sum(context.sizes[position] for position in unit.positions)
        if not drop:
            return None
        return Plan(
            strategy=self.name,
            reason=f"{context.tokens:,} tokens, more than {self.max_tokens:,}",
            drop=tuple(sorted(drop)),
        )

    def removable(self, context: Context) -> Iterator[Unit]:
        """The units that may go, oldest first."""
        kept = {context.first_user, context.latest_user}
        for unit in context.units:
            protected = any(
                position in kept
                or context.messages[position].role == "system"
                or context.messages[position].pinned
                or context.messages[position].mark == "summary"
                for position in unit.positions
            )
            if not protected and not unit.is_open:
                yield unit
