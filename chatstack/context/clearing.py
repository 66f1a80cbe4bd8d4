"""Clearing: old tool results give their content back, once, in batches; calls and results stay."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from chatstack.context.break_even import waited_for
from chatstack.context.clearing_options import ClearingOptions
from chatstack.context.context import Context
from chatstack.context.growth import Growth
from chatstack.context.handles import filled, handle_of
from chatstack.context.pairing import Answered, Place, alone, answered_at, as_it_came, in_full, places_of
from chatstack.context.plans import Plan
from chatstack.context.recalling import recalled_lately
from chatstack.context.strategy import Strategy
from chatstack.tokens.caching import CACHE_READ, CACHE_WRITE
from chatstack.values.messages import Annotation, Message
from chatstack.values.parts import Part, ToolCall, ToolResult

_BATCH = 4
"""The next batch is due, where clearing cannot get below the trigger, when it saves a quarter of what is left; several
results, that save no less than what has to be read anew behind them: or an edit would follow on every call."""
_SURE = 2
"""An edit that nothing forces waits until re-reading has cost that many times what it will cost. Once would be enough
never to pay more than double; but some conversations end just then, and over recorded sets it cost up to 0.3 % more."""
_NO_ARGUMENTS = "{}"


class Clearable(NamedTuple):
    """A call and its result, one of them or both cleared, and what that saves in tokens, as counted."""

    answered: Answered
    result: ToolResult
    call: ToolCall
    saves: int
    since: int
    """The position of the message by which it was among the newest no more."""

    @property
    def first_position(self) -> int:
        """The first message that it changes."""
        return self.answered.position if self.call is self.answered.call else self.answered.call_position


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
        saves = sum(each.saves for each in batch)
        if saves * context.scale < 1 or not self._is_worth_it(context, batch, saves):
            return None
        size = f"{context.tokens - context.reserved_tokens:,} tokens"  # the trigger is of the input alone
        why = f"; {waited_for(context, self.is_forced(context))}" if self.clear_at_least == "pays" else ""
        reason = f"{size} in {len(context.messages)} messages, the trigger is {self._told(context)}{why}"
        return Plan(strategy=self.name, reason=reason, replace=tuple(self._edits(context, batch)))

    def is_due(self, context: Context) -> bool:
        """Tell whether the trigger is reached; or, where no edit can be kept, whether the window is full."""
        kind, value = self._when
        if context.is_unstable and context.window_tokens is not None:  # else the trigger is all the limit there is
            return context.tokens >= context.window_tokens
        if kind == "messages":
            return len(context.messages) - len(context.left_out) >= value
        wanted = self._tokens(context, kind, value)
        return wanted is not None and context.tokens - context.reserved_tokens >= wanted

    def is_forced(self, context: Context) -> bool:
        """Tell whether something has to go: the window is full, as far as it is known."""
        return context.window_tokens is not None and context.tokens > context.window_tokens

    def _tokens(self, context: Context, kind: str, value: float) -> float | None:
        if kind == "tokens":
            return value
        return None if context.window_tokens is None else value * context.window_tokens

    def _told(self, context: Context) -> str:
        kind, value = self._when
        if kind == "messages":
            return f"{value:,} messages"
        return f"{self._tokens(context, kind, value) or 0:,.0f}"

    def batch(self, context: Context) -> list[Clearable]:
        """Return what may go now, oldest first: all results but the newest, which are kept; those recalled lately only
        if the rest is not enough."""
        found = self._found(context)
        recalled = recalled_lately(context)
        others = [each for each in found if each.answered.position not in recalled]
        return others if len(others) == len(found) or self._suffices(context, others) else found

    def _suffices(self, context: Context, batch: Sequence[Clearable]) -> bool:
        """Tell whether clearing these gets below the trigger. Of messages, clearing takes none away."""
        kind, value = self._when
        wanted = None if kind == "messages" else self._tokens(context, kind, value)
        left = context.tokens - sum(each.saves for each in batch) * context.scale
        is_forced = context.window_tokens is not None and left > context.window_tokens
        return not is_forced and (wanted is None or left - context.reserved_tokens < wanted)

    def _found(self, context: Context) -> list[Clearable]:
        """Return all results but the newest that may be cleared."""
        results = self._results(context)
        messages, left_out, found = context.messages, context.left_out, results.places
        first, end = results.settled, bisect_left(found, (len(messages),))
        if left_out:
            found = [place for place in found[:end] if place[0] not in left_out]
            first, end = 0, len(found)
        kept = self._kept(context, found, end)
        open_calls = _of_open_units(context, results)
        batch: list[Clearable] = []
        for number in range(first, end - kept):
            place = found[number]
            position = place[0]
            if position > context.latest_assistant or position in open_calls:
                continue
            if messages[position].role == "user" and position == context.latest_user:
                continue
            since = found[number + kept][0]
            clearable = results.clearable(place, messages) or self._clearable(context, place, since)
            if clearable is not None:
                clearable = clearable if clearable.since == since else clearable._replace(since=since)
                results.known[place] = clearable
                batch.append(clearable)
            elif number == results.settled and not left_out:
                results.settled += 1
        return batch

    def _results(self, context: Context) -> _Results:
        """The results of a context, and of the longer ones that it is the beginning of."""
        growth = Growth.of(context)
        known = growth.kept
        if not isinstance(known, _Results) or known.strategy is not self:
            known = growth.kept = _Results(self, growth.messages)
        return known

    def _kept(self, context: Context, found: Sequence[Place], end: int) -> int:
        """Return how many of the newest results stay."""
        kind, value = self._stays
        if kind == "messages":
            return min(int(value), end)
        budget = self._tokens(context, kind, value)
        if budget is None:  # nobody knows the window, so nothing is known to be too much
            return end
        kept = 0
        for number in range(end - 1, -1, -1):
            budget -= _size(context, answered_at(context.messages, found[number])) * context.scale
            if budget < 0:
                break
            kept += 1
        return kept

    def _clearable(self, context: Context, place: Place, since: int) -> Clearable | None:
        """Return what may be cleared of a result and its call; None if nothing ever may, however long it grows."""
        each = answered_at(context.messages, place)
        if context.messages[each.position].pinned or each.result.is_error:
            return None
        result, saves = self._cleared_result(context, each)
        call, saves_too = self._cleared_call(context, each)
        return Clearable(each, result, call, saves + saves_too, since) if saves + saves_too > 0 else None

    def _cleared_result(self, context: Context, each: Answered) -> tuple[ToolResult, int]:
        """The result without its content, if that makes it smaller, and by how much it does."""
        result, message = each.result, context.messages[each.position]
        if result != as_it_came(message, each.part):
            return result, 0  # an edited one has given back what it had
        before = _size(context, each)
        placeholder = filled(
            self.placeholder, result.name or each.call.name, before, lambda: handle_of(in_full(message, each.part))
        )
        cleared = ToolResult(result.call_id, result.name, placeholder, result.is_error, result.extra_json)
        is_alone = len(message.parts) == 1
        after = context.size_of(replace(message, parts=(cleared,)) if is_alone else alone(cleared))
        return (cleared, before - after) if after < before else (result, 0)

    def _cleared_call(self, context: Context, each: Answered) -> tuple[ToolCall, int]:
        """The call without its arguments, if they are to go and that makes it smaller, and by how much it does."""
        call, wanted = each.call, self.clear_tool_inputs
        is_wanted = wanted if isinstance(wanted, bool) else call.name in wanted
        if not is_wanted or len(call.arguments) <= len(_NO_ARGUMENTS) or context.messages[each.call_position].pinned:
            return call, 0
        cleared = ToolCall(call.id, call.name, _NO_ARGUMENTS, call.extra_json)
        saves = context.size_of(Message("assistant", (call,))) - context.size_of(Message("assistant", (cleared,)))
        return (cleared, saves) if saves > 0 else (call, 0)

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
        wanted = self._tokens(context, kind, value) or 0
        # What stays above the trigger is above it on every call: then only a good part of it is worth an edit.
        return after - context.reserved_tokens < wanted or saves * context.scale * _BATCH >= after

    def _has_cleared_before(self, context: Context) -> bool:
        return any(
            message.annotation is not None and message.annotation.strategy == self.name and at not in context.left_out
            for at, message in enumerate(context.messages)
        )

    def _pays(self, context: Context, batch: Sequence[Clearable], saves: int) -> bool:
        """Tell whether reading the batch again, since it could have gone, has cost what rewriting all behind it will.

        Each call up to now has an assistant message in the history, and had read all that stands before it. So the
        history alone tells, and every process comes to the same.
        """
        backwards = (message.role == "assistant" for message in reversed(context.messages))
        calls_since = list(itertools.accumulate(backwards, initial=0))
        end, due, read_again = len(context.messages) - 1, self._due_at(context), 0
        for each in batch:
            calls = calls_since[end - each.answered.position] - 1  # the first one took it into the cache
            read_again += each.saves * max(0, min(calls, calls_since[end - max(each.since, due)]))
        return CACHE_READ * read_again >= _SURE * (CACHE_WRITE - CACHE_READ) * self._behind(context, batch, saves)

    def _due_at(self, context: Context) -> int:
        """The position by which the trigger was reached."""
        kind, value = self._when
        last = len(context.messages) - 1
        if kind == "messages":
            return min(int(value), last)
        wanted = (self._tokens(context, kind, value) or 0) / context.scale - context.fixed_tokens
        left_out = context.left_out
        sums = itertools.accumulate(0 if at in left_out else size for at, size in enumerate(context.sizes))
        return next((at for at, tokens in enumerate(sums) if tokens >= wanted), last)

    def _behind(self, context: Context, batch: Sequence[Clearable], saves: int) -> int:
        """Return the tokens that the provider has in its cache, and reads anew once the batch is cleared."""
        first = min(each.first_position for each in batch)
        return sum(map(context.size_of, context.messages[first : context.latest_assistant])) - saves

    def _edits(self, context: Context, batch: Sequence[Clearable]) -> list[tuple[int, Message]]:
        """The messages without what is cleared, each with its place."""
        changed: dict[int, dict[int, Part]] = {}
        for each in batch:
            at = each.answered
            if each.result is not at.result:
                changed.setdefault(at.position, {})[at.part] = each.result
            if each.call is not at.call:
                changed.setdefault(at.call_position, {})[at.call_part] = each.call
        return [(position, self._edited(context, position, parts)) for position, parts in sorted(changed.items())]

    def _edited(self, context: Context, position: int, parts: Mapping[int, Part]) -> Message:
        message = context.messages[position]
        before = message.annotation
        handles = [handle_of(in_full(message, at)) for at in parts if type(message.parts[at]) is ToolResult]
        call_ids = [part.id for at in parts if type(part := message.parts[at]) is ToolCall]
        return message.edited(
            parts=tuple(parts.get(at, part) for at, part in enumerate(message.parts)),
            annotation=Annotation(
                self.name,
                context.size_of(message.original),
                tuple(dict.fromkeys((*(before.handles if before is not None else ()), *handles))),
                (*(before.call_ids if before is not None else ()), *call_ids),
            ),
        )


class _Results:
    """The results in messages, in order, without those of tools that a strategy excludes: their places.

    The first ``settled`` ones are never cleared any more, in this context or a longer one. ``known`` is what may be
    cleared of others."""

    __slots__ = ("_answers", "_calls", "known", "places", "settled", "strategy")

    def __init__(self, strategy: ClearToolResults, messages: Sequence[Message]) -> None:
        pairs, places = places_of(messages)
        self._answers = [place[0] for place in places]
        self._calls = sorted([*[place[2] for place in places], *[position for position, _, _ in pairs.open_calls()]])
        self.places = places
        if strategy.exclude_tools:
            answered = [answered_at(messages, place) for place in places]
            names = [each.result.name or each.call.name for each in answered]
            self.places = [
                place for place, name in zip(places, names, strict=True) if name not in strategy.exclude_tools
            ]
        self.strategy = strategy
        self.settled = 0
        self.known: dict[Place, Clearable] = {}

    def clearable(self, place: Place, messages: Sequence[Message]) -> Clearable | None:
        """Return what is known to be clearable in that place, unless it has been edited since."""
        known = self.known.get(place)
        if known is None or known.answered.result is not messages[place[0]].parts[place[1]]:
            return None
        return known if known.answered.call is messages[place[2]].parts[place[3]] else None

    def has_open_calls(self, length: int) -> bool:
        """Return True if a call among that many messages has no result among them."""
        return bisect_left(self._calls, length) != bisect_left(self._answers, length)


def _of_open_units(context: Context, results: _Results) -> frozenset[int]:
    """The positions of messages in units with a call that waits."""
    if not results.has_open_calls(len(context.messages)):
        return frozenset()
    return frozenset(position for unit in context.units if unit.is_open for position in unit.positions)


def _size(context: Context, each: Answered) -> int:
    """The size of a result; of its message, where that holds nothing else."""
    message = context.messages[each.position]
    return context.size_of(message if len(message.parts) == 1 else alone(each.result))
