"""Clearing: old tool results give their content back, once, in batches; calls and results stay."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter

from chatstack.context.edits.context import Context
from chatstack.context.edits.pairing import Place, alone, answered_at
from chatstack.context.edits.plans import Plan
from chatstack.context.histories.growth import Growth
from chatstack.context.strategies.clearable import Clearable, Clearer, Results
from chatstack.context.strategies.clearing_options import ClearingOptions
from chatstack.context.strategies.recalling import recalled_lately
from chatstack.context.strategy import Strategy
from chatstack.tokens.caching import CACHE_READ, CACHE_WRITE
from chatstack.values.messages import Message, annotated_by
from chatstack.values.parts import Part, ToolResult

_BATCH = 4
"""The next batch is due, where clearing cannot get below the trigger, when it saves a quarter of what is left; several
results, that save no less than what has to be read anew behind them: or an edit would follow on every call."""
_SURE = 2
"""An edit that nothing forces waits until re-reading has cost that many times what it will cost. Once would be enough
never to pay more than double; but some conversations end just then, and over recorded sets it cost up to 0.3 % more."""


@dataclass(frozen=True, repr=False, eq=False)
class ClearToolResults(ClearingOptions, Strategy):
    """From ``trigger`` on, replaces the content of old tool results by a placeholder: all but the newest, at once.

    It is what ``ToolResultClearer`` applies, whose options it has; see there. Never cleared: what the model has not
    seen yet, errors, pinned messages, the latest user message, open units, and what is smaller than its placeholder.
    Source: Xpert's context editing; Anthropic's ``clear_tool_uses``.
    """

    name = "clear_tool_results"
    quotes_nothing = True

    @property
    def needs_window(self) -> bool:
        return "fraction" in (*self.trigger, *self.keep) or self.clear_at_least == "pays"

    def plan(self, context: Context) -> Plan | None:
        if not self.is_due(context):
            return None
        batch = self.batch(context)
        saves = sum([each.saves for each in batch])
        if saves * context.scale < 1 or not self._is_worth_it(context, batch, saves):
            return None
        size = f"{context.tokens - context.reserved_tokens:,} tokens"  # the trigger is of the input alone
        reason = f"{size} in {len(context.messages)} messages, the trigger is {self._told(context)}"
        if self.clear_at_least == "pays":
            reason += "; forced" if self.is_forced(context) else "; cold cache" if context.is_cold else "; pays"
        return Plan(strategy=self.name, reason=reason, replace=tuple(self._edits(context, batch)))

    def is_due(self, context: Context) -> bool:
        """Tell whether the trigger is reached; or, where no edit can be kept, whether the window is full."""
        kind, value = self._when
        if context.is_unstable and context.window_tokens is not None:  # else the trigger is all the limit there is
            return context.tokens >= context.window_tokens
        if kind == "messages":
            return len(context.messages) - len(context.left_out) >= value
        wanted = _in_tokens(self._when, context)
        return wanted is not None and context.tokens - context.reserved_tokens >= wanted

    def is_forced(self, context: Context) -> bool:
        """Tell whether something has to go: the window is full, as far as it is known."""
        return context.window_tokens is not None and context.tokens > context.window_tokens

    def _told(self, context: Context) -> str:
        kind, value = self._when
        return f"{value:,} messages" if kind == "messages" else f"{_in_tokens(self._when, context) or 0:,.0f}"

    def batch(self, context: Context) -> list[Clearable]:
        """Return what may go now, oldest first: all results but the newest, which are kept; those recalled lately only
        if the rest is not enough."""
        found = self._found(context)
        recalled = recalled_lately(context)
        if not recalled:
            return found
        others = [each for each in found if each.place[0] not in recalled]
        return others if len(others) == len(found) or self._suffices(context, others) else found

    def _suffices(self, context: Context, batch: Sequence[Clearable]) -> bool:
        """Tell whether clearing these gets below the trigger. Of messages, clearing takes none away."""
        wanted = _in_tokens(self._when, context)
        left = context.tokens - sum(each.saves for each in batch) * context.scale
        is_forced = context.window_tokens is not None and left > context.window_tokens
        return not is_forced and (wanted is None or left - context.reserved_tokens < wanted)

    def _found(self, context: Context) -> list[Clearable]:
        """Return all results but the newest that may be cleared."""
        results = self._results(context)
        messages, user, known = context.messages, context.latest_user, results.known
        found, kept = self._kept(context, results)
        seen = bisect_left(found, bisect_right(results.positions, context.latest_assistant))
        found = found[: min(len(found) - kept, seen)]
        open_units = results.of_open_units(len(messages))
        clearer = Clearer(self.name, self, context.size_of)
        batch, first = ([], 0) if context.left_out else _decided(results, len(found))
        decided: tuple[int, int] | None = None
        for number, place in zip(found[first:], _places(results, found[first:]), strict=True):
            position = place[0]
            if position == user or position in open_units or (context.late and context.has_new(position)):
                decided = decided or (number, len(batch))
                continue
            clearable = known.get(number)
            if (
                clearable is None
                or clearable.message is not messages[position]  # it has been edited since
                or clearable.asked is not messages[place[2]]
            ):
                clearable = clearer.clearable(messages, place, number)
            if clearable is not None:
                known[number] = clearable
                batch.append(clearable)
        if not context.left_out:
            count, may_go = decided or (len(found), len(batch))
            results.decide(count, batch[:may_go])
        return batch

    def _results(self, context: Context) -> Results:
        """The results of a context, and of the longer ones that it is the beginning of."""
        growth = Growth.of(context)
        known = growth.kept
        if not isinstance(known, Results) or known.strategy is not self:
            known = growth.kept = Results(self, growth)
        known.look_at(context, growth)
        return known

    def _kept(self, context: Context, results: Results) -> tuple[Sequence[int], int]:
        """Return the numbers of the results in a context, and how many of them, the newest ones, stay."""
        positions, left_out = results.positions, context.left_out
        found: Sequence[int] = range(bisect_left(positions, len(context.messages)))
        if left_out:
            found = [number for number in found if positions[number] not in left_out]
        kind, value = self._stays
        if kind == "messages":
            return found, min(int(value), len(found))
        budget = _in_tokens(self._stays, context)
        if budget is None:  # nobody knows the window, so nothing is known to be too much
            return found, len(found)
        kept = 0
        for number in reversed(found):
            budget -= _size(context, results.places[number]) * context.scale
            if budget < 0:
                break
            kept += 1
        return found, kept

    def _is_worth_it(self, context: Context, batch: Sequence[Clearable], saves: int) -> bool:
        after = context.tokens - saves * context.scale
        if self.is_forced(context) and after <= (context.window_tokens or 0):
            return True  # an edit that leaves too much all the same has to be worth it, as any other
        if self.clear_at_least == "pays":
            return context.is_cold or self._pays(context, batch, saves)
        if saves * context.scale < self.clear_at_least:
            return False
        if not self._has_cleared_before(context):
            return True
        if len(batch) < 2 or saves < self._behind(context, batch, saves):
            return False
        kind, value = self._when
        if kind == "messages":
            return len(batch) * _BATCH >= value
        wanted = _in_tokens(self._when, context) or 0
        # What stays above the trigger is above it on every call: then only a good part of it is worth an edit.
        return after - context.reserved_tokens < wanted or saves * context.scale * _BATCH >= after

    def _has_cleared_before(self, context: Context) -> bool:
        return any(at not in context.left_out for at in annotated_by(self.name, context.messages))

    def _pays(self, context: Context, batch: Sequence[Clearable], saves: int) -> bool:
        """Tell whether reading the batch again, since it could have gone, has cost what rewriting all behind it will.

        Each call up to now has an assistant message in the history, and had read all that stands before it. So the
        history alone tells, and every process comes to the same.
        """
        backwards = (message.role == "assistant" for message in reversed(context.messages))
        calls_since = list(itertools.accumulate(backwards, initial=0))
        end, due, read_again = len(context.messages) - 1, self._due_at(context), 0
        results = self._results(context)
        found, kept = self._kept(context, results)
        for each in batch:
            since = results.positions[found[bisect_left(found, each.number) + kept]]  # among the newest no more
            calls = calls_since[end - each.place[0]] - 1  # the first one took it into the cache
            read_again += each.saves * max(0, min(calls, calls_since[end - max(since, due)]))
        return CACHE_READ * read_again >= _SURE * (CACHE_WRITE - CACHE_READ) * self._behind(context, batch, saves)

    def _due_at(self, context: Context) -> int:
        """The position by which the trigger was reached."""
        kind, value = self._when
        last = len(context.messages) - 1
        if kind == "messages":
            return min(int(value), last)
        wanted = (_in_tokens(self._when, context) or 0) / context.scale - context.fixed_tokens
        left_out = context.left_out
        sums = itertools.accumulate(0 if at in left_out else size for at, size in enumerate(context.sizes))
        return next((at for at, tokens in enumerate(sums) if tokens >= wanted), last)

    def _behind(self, context: Context, batch: Sequence[Clearable], saves: int) -> int:
        """Return the tokens that the provider has in its cache, and reads anew once the batch is cleared."""
        first = min([each.first_position for each in batch])
        return Growth.of(context).tokens_between(context, first, context.latest_assistant) - saves

    def _edits(self, context: Context, batch: Sequence[Clearable]) -> list[tuple[int, Message]]:
        """The messages without what is cleared, each with its place."""
        edited: dict[int, Message] = {}
        changed: dict[int, dict[int, Part]] = {}
        for each in batch:
            place, result, call = each.place, each.result, each.call
            if type(result) is Message:
                edited[place[0]] = result
            elif type(result) is ToolResult:
                changed.setdefault(place[0], {})[place[1]] = result
            if call is not None:
                changed.setdefault(place[2], {})[place[3]] = call
        clearer = Clearer(self.name, self, context.size_of)
        for position, parts in changed.items():
            edited[position] = clearer.edited(context.messages[position], parts)
        return sorted(edited.items(), key=itemgetter(0))


def _decided(results: Results, end: int) -> tuple[list[Clearable], int]:
    """Return what may be cleared of the results that are decided, among the first ``end`` ones, and how many these
    are."""
    if end >= results.decided:
        return [*results.clearable], results.decided
    return results.clearable[: bisect_left(results.clearable, end, key=attrgetter("number"))], end


def _places(results: Results, numbers: Sequence[int]) -> Iterator[Place]:
    """Return the places of these results."""
    if isinstance(numbers, range):
        return results.places.between(numbers.start, numbers.stop)
    return map(results.places.__getitem__, numbers)


def _in_tokens(size: tuple[str, float], context: Context) -> float | None:
    """Return a size in tokens; None if it is of messages, or of a window that nobody knows."""
    kind, value = size
    if kind == "fraction":
        return None if context.window_tokens is None else value * context.window_tokens
    return value if kind == "tokens" else None


def _size(context: Context, place: Place) -> int:
    """The size of a result; of its message, where that holds nothing else."""
    message = context.messages[place[0]]
    return context.size_of(message if len(message.parts) == 1 else alone(answered_at(context.messages, place).result))
