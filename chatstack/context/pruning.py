"""Pruning: the oldest units go first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chatstack.context.context import Context
from chatstack.context.limits import Limits
from chatstack.context.plans import Plan
from chatstack.context.strategy import Strategy
from chatstack.context.units import Unit, items_in
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
    quotes_nothing = True

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

    def excess(self, context: Context) -> str:
        return Limits(self.max_tokens, with_reserve=True).excess(context)

    def plan(self, context: Context) -> Plan | None:
        limits = Limits(self.max_tokens, with_reserve=True)
        return without_oldest(context, self.name, limits, Limits(self.target_tokens, with_reserve=True))


def without_oldest(context: Context, strategy: str, limits: Limits, target: Limits) -> Plan | None:
    """Where the context exceeds the limits: the plan without its oldest units, down to the target, as far as they may
    go. What the model has not seen yet goes only as far as the limits need it."""
    reason = limits.excess(context)
    if not reason:
        return None
    drop: list[int] = []
    tokens, items = float(limits.tokens(context)), context.items if limits.max_items is not None else 0
    for unit in removable(context):
        is_new = unit.positions[-1] > context.latest_assistant
        if (limits if is_new else target).allow(tokens, items):
            break
        if is_new and UNSEEN not in reason:
            reason += UNSEEN
        drop.extend(unit.positions)
        tokens -= sum(context.sizes[position] for position in unit.positions) * context.scale
        items -= sum(items_in(context.messages[position]) for position in unit.positions)
    return Plan(strategy=strategy, reason=reason, drop=tuple(sorted(drop))) if drop else None


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
