"""Pruning: the oldest units go first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chatstack.context.context import Context
from chatstack.context.plans import Plan
from chatstack.context.strategy import Strategy
from chatstack.context.units import Unit
from chatstack.errors import WiringError

UNSEEN = ", even what the model has not seen yet"


@dataclass(frozen=True, slots=True)
class OldestFirst(Strategy):
    """Above ``max_tokens``, removes the oldest units, whole ones only, down to ``target_tokens``.

    Never touched: system, pinned and summary messages, the first user message (the task), the latest one, and calls
    that still wait for results. What the model has not seen yet goes only if the limit cannot be kept
    otherwise, and the plan's reason says so.
    Source: seed ``needlr-context-window-guard``, and what its original removed that it should not.
    """

    max_tokens: int
    target_tokens: int
    name = "truncate"

    def __post_init__(self) -> None:
        for name in ("max_tokens", "target_tokens"):
            if type(getattr(self, name)) is not int:
                raise WiringError(
                    f"OldestFirst: {name}={getattr(self, name)!r} must be a whole number of tokens",
                    layer="OldestFirst",
                    parameter=name,
                )
        if not 0 < self.target_tokens <= self.max_tokens:
            raise WiringError(
                f"OldestFirst: target_tokens={self.target_tokens} must be between 1 and max_tokens={self.max_tokens}",
                layer="OldestFirst",
                parameter="target_tokens",
            )

    def wanted_tokens(self, context: Context) -> int | None:
        return self.max_tokens

    def plan(self, context: Context) -> Plan | None:
        if context.tokens <= self.max_tokens:
            return None
        drop: list[int] = []
        gone = 0
        reason = f"{context.tokens:,} tokens, more than {self.max_tokens:,}"
        for unit in removable(context):
            is_new = unit.positions[-1] > context.latest_assistant
            if context.tokens - gone * context.scale <= (self.max_tokens if is_new else self.target_tokens):
                break
            if is_new and UNSEEN not in reason:
                reason += UNSEEN
            drop.extend(unit.positions)
            gone += sum(context.sizes[position] for position in unit.positions)
        return Plan(strategy=self.name, reason=reason, drop=tuple(sorted(drop))) if drop else None


def removable(context: Context) -> Sequence[Unit]:
    """The units that may go, oldest first: never the first user message (the task) or the latest one, and never all."""
    kept = {context.first_user, context.latest_user}
    found: list[Unit] = []
    for unit in context.units:
        protected = any(
            position in kept
            or context.messages[position].role == "system"
            or context.messages[position].pinned
            or context.messages[position].mark == "summary"
            for position in unit.positions
        )
        if not protected and not unit.is_open:
            found.append(unit)
    return found if len(found) < len(context.units) else found[:-1]
