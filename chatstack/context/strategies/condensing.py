"""Condensing: at the limit, or once it pays, clear what is old, drop what tells least, and leave the words in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from chatstack.context.edits.context import Context
from chatstack.context.edits.limits import Limits
from chatstack.context.edits.plans import Plan
from chatstack.context.strategies.break_even import (
    FORGETTING,
    MOST_LEFT,
    SHARED_FROM,
    SHARED_OF,
    may_forget,
    may_pay,
    why_now,
)
from chatstack.context.strategies.condensing_options import CondensingOptions
from chatstack.context.strategies.drafting import Draft, last_list
from chatstack.context.strategy import Strategy
from chatstack.tokens.caching import CACHED_FROM


@dataclass(frozen=True, repr=False)
class ClearThenDrop(CondensingOptions, Strategy):
    """Above ``max_tokens``, and before that where it pays, clears all tool results but the newest, drops units if that
    is not enough, and leaves a list of the names and words that were in them in the place of one cleared result.

    Before a unit goes, what was said beside old calls does: what later calls use stands mostly in arguments of earlier
    ones. Units go first whose words stand in newer ones, too. In the list, both stand by the calls that held them.
    The list stays in later edits, and what stands before it, so that they write less of the cache anew: they touch what
    came since, and leave a list of half the size, as long as that makes half the room that an edit of everything makes.
    All in one edit, and deep, so that the next is far off: ``target``, ``keep_recent`` (what stays untouched of
    the newest units) and ``mentions`` (the list) are shares of ``max_tokens``; without a number, it is the model's
    window. Below it an edit pays once reading what would go has cost twice what the edit costs, with a price for
    forgetting (``context/strategies/break_even.py``); shares are of that size then. That adds at most half to the
    cost of sending everything, however the conversation goes on; ``before_limit="never"`` waits for the limit.
    A result that the model has not seen yet is not cleared; but where one that is larger than the share
    ``newest_result`` comes when the limit is exceeded, it loses its middle, or it would push out all the rest; that is
    warned of as ``tool_result_shortened``. Never touched: system and pinned messages, the first user message, the
    latest one, and calls that wait for results; a summary only where the limit needs it. ``placeholder`` may name
    ``{tool}``, ``{tokens}`` and ``{handle}``.
    """

    name = "clear_then_drop"
    quotes_nothing = True
    aside_from = 64  # an edit with its list of names takes 0.1 ms for each message

    @property
    def needs_window(self) -> bool:
        return self.max_tokens is None

    def is_due(self, context: Context) -> bool:
        is_early = self.before_limit == "pays" and context.tokens - context.reserved_tokens > CACHED_FROM
        return is_early or bool(self.excess(context))

    def waits_on(self, context: Context) -> tuple[int, ...] | None:
        """Return size and number of messages: the rent grows with both."""
        return None if self.excess(context) or context.is_cold else (context.tokens, len(context.messages))

    def excess(self, context: Context) -> str:
        return Limits(self.max_tokens or context.window_tokens, with_reserve=True).excess(context)

    def plan(self, context: Context) -> Plan | None:
        limit = self.max_tokens or context.window_tokens
        if limit is None or context.tokens <= limit:
            return self._early_plan(context, limit)
        for draft in self._drafts(context, limit, context.tokens):
            draft.shorten_new()
            draft.take_out()
            if draft.behind is None or draft.is_deep:
                draft.list_mentions()
                draft.make_fit()
                return draft.plan(f"forced ({context.size_told}, more than {limit:,})")
        return None

    def _early_plan(self, context: Context, limit: int | None) -> Plan | None:
        """Plan an edit that nothing forces, if it pays."""
        if self.before_limit == "never" or context.is_unstable or not may_forget(context):
            return None
        tokens = context.tokens - context.reserved_tokens
        most = max(int(SHARED_OF * tokens), min(SHARED_FROM, limit or SHARED_FROM))
        plans = (_if_it_pays(draft, tokens) for draft in self._drafts(context, most, tokens))
        return next((plan for plan in plans if plan is not None), None)

    def _drafts(self, context: Context, most: int, tokens: int) -> Iterator[Draft]:
        """Yield drafts of one edit, the cheapest first: what stands up to the last list stays in the cache if only what
        came since is touched."""
        behind = last_list(context)
        if behind is not None:
            yield Draft(context, self.name, self, most, tokens, behind)
        yield Draft(context, self.name, self, most, tokens, None)


def _if_it_pays(draft: Draft, tokens: int) -> Plan | None:
    context = draft.context
    going = [at for unit in draft.removable for at in unit.positions]
    first, goes = draft.bounds()
    room = draft.list_tokens / context.scale
    if not may_pay(context, going, goes, first, put_in=room, forgetting=FORGETTING):
        return None
    draft.take_out()
    # Where results are cleared, a list is paid for even if all that could carry it was dropped: as in the bound.
    put_in = room if first is not None or draft.carrier is not None else 0.0
    if draft.tokens + put_in * context.scale > MOST_LEFT * tokens:
        return None
    why = why_now(context, draft.left(), put_in=put_in, forgetting=FORGETTING)
    if why:
        draft.list_mentions()
    return draft.plan(why) if why else None
