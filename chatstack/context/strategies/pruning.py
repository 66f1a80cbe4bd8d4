"""Pruning: the oldest units go first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chatstack.client.options import PositiveInt, check_options
from chatstack.client.wiring import wrong
from chatstack.context.edits.context import Context
from chatstack.context.edits.limits import Limits
from chatstack.context.edits.plans import Plan
from chatstack.context.edits.shortening import fitted, never_whole, saved_by
from chatstack.context.edits.units import Unit, items_in
from chatstack.context.strategy import Strategy
from chatstack.values.messages import Message
from chatstack.values.parts import ProviderItem

_UNSEEN = ", even what the model has not seen yet"


@dataclass(frozen=True, slots=True, repr=False)
class OldestFirst(Strategy):
    """Above ``max_tokens``, removes the oldest units, whole ones only, down to ``target_tokens``.

    Never touched: system, pinned and summary messages, the first user message (the task), the latest one, and calls
    that still wait for results. What the model has not seen yet goes only if the limit cannot be kept otherwise, and
    the plan's reason says so; new tool results never go with their calls: where all that may go is not enough, they are
    shortened, and where they take an eighth of the limit at most, a summary is, too.
    Source: Needlr's context window guard, and what its original removed that it should not.
    """

    max_tokens: PositiveInt
    target_tokens: PositiveInt
    name = "truncate"
    quotes_nothing = True

    def __post_init__(self) -> None:
        check_options(self)
        if self.target_tokens > self.max_tokens:
            raise wrong("OldestFirst", "target_tokens", self.target_tokens, f"at most max_tokens={self.max_tokens}")

    def is_due(self, context: Context) -> bool:
        return bool(self.excess(context))

    def excess(self, context: Context) -> str:
        return Limits(self.max_tokens, with_reserve=True).excess(context)

    def plan(self, context: Context) -> Plan | None:
        limits = Limits(self.max_tokens, with_reserve=True)
        return without_oldest(context, self.name, limits, Limits(self.target_tokens, with_reserve=True))


def without_oldest(context: Context, strategy: str, limits: Limits, target: Limits) -> Plan | None:
    """Plan the removal of the oldest units down to the target, as far as they may be removed; None if the context is
    within the limits. Units that the model has not seen yet are removed only as far as the limits require. If all of
    that is not enough, new tool results are shortened first, and then only as many units go as the limits require."""
    reason = limits.excess(context)
    if not reason:
        return None
    replace: dict[int, Message] = {}
    if limits.max_tokens is not None and limits.tokens(context) > limits.max_tokens:
        replace = never_whole(context, strategy, limits.max_tokens)
        for at, message in _shortened(context, replace, strategy, limits).items():
            if at not in replace or context.size_of(message) < context.size_of(replace[at]):
                replace[at] = message
    draft = _Draft(context, replace, limits)
    within = limits if replace and limits.allow(draft.tokens, draft.items) else target
    for unit in removable(context):
        is_new = draft.is_new(unit)
        if (limits if is_new else within).allow(draft.tokens, draft.items):
            break
        if is_new and _UNSEEN not in reason:
            reason += _UNSEEN
        draft.drop(unit)
    replace = {at: message for at, message in replace.items() if at not in draft.dropped}
    if replace:
        reason += f"; {len(replace)} messages shortened"
    if not draft.dropped and not replace:
        return None
    dropped = tuple(sorted(draft.dropped))
    return Plan(strategy=strategy, reason=reason, drop=dropped, replace=tuple(sorted(replace.items())))


class _Draft:
    """The rest of a context after replacing and dropping messages: its scaled tokens, and its items."""

    def __init__(self, context: Context, replace: Mapping[int, Message], limits: Limits) -> None:
        self.context = context
        self.replace = replace
        self.dropped: set[int] = set()
        self.tokens = limits.tokens(context) - saved_by(context, replace)
        self.items = context.items if limits.max_items is not None else 0

    def is_new(self, unit: Unit) -> bool:
        """Return True if the model has not seen all of the unit."""
        return self.context.has_new(*unit.positions)

    def drop(self, unit: Unit) -> None:
        """Drop a unit."""
        context = self.context
        self.dropped.update(unit.positions)
        for at in unit.positions:
            size = context.size_of(self.replace[at]) if at in self.replace else context.sizes[at]
            self.tokens -= size * context.scale
            self.items -= items_in(context.messages[at])


def _shortened(context: Context, replaced: Mapping[int, Message], strategy: str, limits: Limits) -> dict[int, Message]:
    """Shorten new tool results, and a summary, if the context is too large even without all removable units."""
    found: dict[int, Message] = {}
    most = limits.max_tokens
    assert most is not None
    unseen = saved_by(context, {at: message for at, message in replaced.items() if context.has_new(at)})
    for going in (False, True):
        draft = _Draft(context, replaced, limits)
        for unit in removable(context):
            if going or not draft.is_new(unit):
                draft.drop(unit)
        if draft.tokens <= most:
            return {}
        over = draft.tokens + unseen - most
        found = fitted(context, strategy, most, over)
        if saved_by(context, found) >= over:
            break
    return found


def removable(context: Context) -> Sequence[Unit]:
    """Return the units that may be removed, oldest first: never the first user message (the task) or the latest one,
    and never all.

    Nor a provider's compaction, or calls whose results the model has not seen yet, as it would only call again.
    """
    kept = {context.first_user, context.latest_user, context.latest_compaction}

    def may_go(at: int) -> bool:
        message = context.messages[at]
        if at in kept or message.pinned or message.role == "system" or message.mark == "summary":
            return False
        if not context.has_new(at):
            return True
        items = message.role == "tool" and any([type(part) is ProviderItem for part in message.parts])
        return not (items or message.results)

    found = [unit for unit in context.units if not unit.is_open and all(map(may_go, unit.positions))]
    return found if len(found) < len(context.units) else found[:-1]
