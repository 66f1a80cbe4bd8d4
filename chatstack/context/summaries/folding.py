"""Folding: choosing the messages that go into a summary, and the plan that replaces them by it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from chatstack.context.edits.context import Context
from chatstack.context.edits.limits import Limits
from chatstack.context.edits.plans import Plan
from chatstack.context.edits.records import Record
from chatstack.context.edits.summaries import without_opening
from chatstack.context.edits.transcripts import Entry, entries_of
from chatstack.context.edits.units import Unit, is_users, items_in
from chatstack.context.requests.opened import Opened
from chatstack.values.messages import Message

_ROOMY = 0.8
"""Share of a limit up to which recent turns stay whole; with more left, the next edit would be due at once."""
_WORTH_IT = 0.1
"""Minimum share of a limit that a summary must newly fold; with less, there would be one on nearly every call."""
_WORTH_IT_ANYWAY = 0.5
"""The same, if what is left stays over the limit, so that the next summary is due at once."""
_SHRINKS_TO = 5
"""Estimated compression: new messages add this fraction of their size to the summary, as 1/n."""
_LEAST_SUMMARY = 32
_LONGEST_REFERENCE = 2_000
"""Maximum length, in characters, of a message that stays when it is shown to the summarizing model for reference."""


class Cut(NamedTuple):
    """The messages that go into a summary: those at ``folded``. It will stand before the one at ``border``."""

    border: int
    folded: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OldestIntoSummary:
    """Above ``limits``, folds the oldest messages, the existing summary included, into one summary.

    The newest ``keep_recent_turns`` turns stay, if there are more than one beside them, and if what is left is well
    within the limits. Else the rounds within them are folded too, oldest first and those of the running turn last, down
    to ``compress_to`` of the limits; user messages there only if that is not enough. Never folded: system and pinned
    messages, the first user message (the task), the latest one, calls that wait for results, and what the model has not
    seen yet.
    Source: VideoSDK's context window.
    """

    limits: Limits
    keep_recent_turns: int
    compress_to: float
    max_summary_tokens: int
    name = "summarize"

    def is_due(self, context: Context) -> bool:
        """Return True if the context exceeds the limits."""
        return bool(self.limits.excess(context))

    def cut(self, context: Context) -> Cut | None:
        """Return what to fold; None if it would not be worth a call."""
        found = next(self._choices(_Layout(context, self)), None)
        if found is None:
            return None
        cut, is_enough = found
        return cut if self._is_worth_it(context, cut, _WORTH_IT if is_enough else _WORTH_IT_ANYWAY) else None

    def entries(self, context: Context, cut: Cut) -> Iterator[Entry]:
        """Yield the transcript of the folded messages, from their originals, with the user's messages that stay, marked
        as staying."""
        folded, tools = frozenset(cut.folded), dict[str, str]()
        for position in range(cut.border):
            message = context.messages[position]
            if position in folded:
                if message.mark != "summary":
                    yield from entries_of([message.original], tools=tools)
            elif is_users(message) and not message.pinned:
                yield from map(_shortened, entries_of([message.original], note=" (stays)"))

    def previous(self, context: Context, cut: Cut) -> str:
        """Return the existing summary that is folded, without its opening line; "" if there is none."""
        before = (context.messages[position] for position in cut.folded)
        return "\n".join(without_opening(each.text) for each in before if each.mark == "summary")

    def plan(self, context: Context, cut: Cut, summary: Message) -> Plan:
        """Return the plan that replaces the folded messages by a summary."""
        reason = f"{self.limits.excess(context)}; {len(cut.folded)} messages into one summary"
        return Plan(strategy=self.name, reason=reason, drop=cut.folded, insert=((cut.border, summary),))

    def expected_tokens(self, context: Context, cut: Cut) -> int:
        """Estimate the length of the summary of these messages, in tokens."""
        earlier = sum(context.sizes[at] for at in cut.folded if context.messages[at].mark == "summary")
        new = sum(context.sizes[at] for at in cut.folded) - earlier
        return self.summary_tokens(earlier, new)

    def summary_tokens(self, earlier: int, new: int) -> int:
        """Estimate the length of a summary, in tokens, of an earlier one and new messages of these sizes."""
        return min(self.max_summary_tokens, earlier + max(_LEAST_SUMMARY, new // _SHRINKS_TO))

    def _choices(self, layout: _Layout) -> Iterator[tuple[Cut, bool]]:
        """Yield possible cuts, from the smallest to the largest, each with True if it gets below the limits."""
        keep = self.keep_recent_turns
        start = 0
        if len(layout.users) > keep + 1:
            start = layout.users[-keep]
            if start in layout.borders and self._fits(layout, start, _ROOMY):
                yield layout.cut(start), True
        running = layout.users[-1] if layout.users else 0
        shares = [(border, self.compress_to) for border in layout.borders if border >= start]
        if running in layout.borders:  # the turn that runs stays whole if the others make room
            shares.insert(sum(border <= running for border, _ in shares), (running, _ROOMY))
        for words_too in (False, True):
            for border, share in shares:
                if self._fits(layout, border, share, words_too=words_too):
                    yield layout.cut(border, words_too=words_too), True
        if layout.borders:  # no cut reaches the target: take the deepest
            deepest = layout.borders[-1]
            words_too = not self._fits(layout, deepest, 1.0)
            yield layout.cut(deepest, words_too=words_too), self._fits(layout, deepest, 1.0, words_too=words_too)

    def _fits(self, layout: _Layout, border: int, share: float, *, words_too: bool = False) -> bool:
        tokens, items = layout.left(border, words_too=words_too)
        return self.limits.allow(tokens, items, share)

    def _is_worth_it(self, context: Context, cut: Cut, share: float) -> bool:
        new = [position for position in cut.folded if context.messages[position].mark != "summary"]
        limits = self.limits
        if limits.max_tokens is not None and limits.tokens(context) > limits.max_tokens:
            tokens = sum(context.sizes[position] for position in new) * context.scale
            if tokens >= limits.max_tokens * share:
                return True
        if limits.max_items is not None and context.items > limits.max_items:
            items = sum(items_in(context.messages[position]) for position in new)
            return items >= max(2, limits.max_items * share)
        return False


def cut_in(context: Context, opened: Opened, record: Record) -> Cut:
    """Return the cut that leads to these edits, in a context that may have a summary of the beginning already."""
    positions, origins = opened.seen.positions, context.origins
    gone = {positions[at] for at in record.drop}
    border = place_in(context, opened, record.insert[-1].position)
    folded = tuple(
        at
        for at, origin in enumerate(origins)
        if (origin in gone if origin is not None else context.messages[at].mark == "summary")
    )
    return Cut(border, folded)


def place_in(context: Context, opened: Opened, length: int) -> int:
    """Return the number of messages of a context that stand for the first ``length`` messages of its history."""
    positions, origins = opened.seen.positions, context.origins
    end = positions[length] if length < len(positions) else len(opened.context.messages)
    return next((at for at, origin in enumerate(origins) if origin is not None and origin >= end), len(origins))


class _Layout:
    """A context with its possible borders, and the sums of what can be folded before each."""

    def __init__(self, context: Context, strategy: OldestIntoSummary) -> None:
        self.context = context
        self.strategy = strategy
        self.tokens = strategy.limits.tokens(context)
        self.users = [at for at, message in enumerate(context.messages) if is_users(message)]
        recent = frozenset(self.users[-strategy.keep_recent_turns :])
        earlier = {at for at, message in enumerate(context.messages) if message.mark == "summary"}
        # An existing summary goes into the next one, so the border must be behind it.
        self.borders = [border for border in _borders(context) if border > max(earlier, default=-1)]
        going = [unit for unit in context.units if _may_go(unit, context)]
        self._words = [unit for unit in going if not recent.isdisjoint(unit.positions)]
        """The units with user messages of the turns that are to stay."""
        self._others = [unit for unit in going if recent.isdisjoint(unit.positions)]
        others = {at for unit in self._others for at in unit.positions}
        self._sums_of_words = self._sums(at for unit in self._words for at in unit.positions)
        self._sums_of_new = self._sums(others - earlier)
        self._sums_of_earlier = self._sums(others & earlier)

    def left(self, border: int, *, words_too: bool) -> tuple[float, int]:
        """Return the size left after folding up to a border, in tokens and items, with the summary."""
        (earlier, items), (new, new_items) = self._sums_of_earlier[border], self._sums_of_new[border]
        items += new_items
        if words_too:
            words, word_items = self._sums_of_words[border]
            new, items = new + words, items + word_items
        summary = self.strategy.summary_tokens(earlier, new)
        return self.tokens - (new + earlier - summary) * self.context.scale, self.context.items - items + 1

    def cut(self, border: int, *, words_too: bool = False) -> Cut:
        """Return the cut at that border."""
        units = self._others + (self._words if words_too else [])
        folded = (unit.positions for unit in units if unit.positions[-1] < border)
        return Cut(border, tuple(sorted(itertools.chain.from_iterable(folded))))

    def _sums(self, positions: Iterable[int]) -> list[tuple[int, int]]:
        """Return, for each border, the sums of these messages before it: counted tokens, and items."""
        tokens, items = [0] * len(self.context.messages), [0] * len(self.context.messages)
        for at in positions:
            tokens[at], items[at] = self.context.sizes[at], items_in(self.context.messages[at])
        sums = itertools.accumulate(tokens, initial=0), itertools.accumulate(items, initial=0)
        return list(zip(*sums, strict=True))


def _borders(context: Context) -> Iterator[int]:
    """Yield the positions before which the context can be cut without splitting a unit, and with a message other than a
    system message after them.

    There is none behind what the model has not seen yet: a summary there would look like the answer to it.
    """
    messages = context.messages
    last = max((at for at, message in enumerate(messages) if message.role != "system"), default=0)
    reach = -1
    for unit in context.units:
        if unit.positions[0] > last:
            return
        if unit.positions[0] and reach < unit.positions[0]:
            yield unit.positions[0]
        reach = max(reach, unit.positions[-1])
        if context.has_new(*unit.positions):
            return


def _may_go(unit: Unit, context: Context) -> bool:
    if unit.is_open or context.has_new(*unit.positions):
        return False
    kept = (context.first_user, context.latest_user, context.latest_compaction)
    return not any(
        position in kept or context.messages[position].role == "system" or context.messages[position].pinned
        for position in unit.positions
    )


def _shortened(entry: Entry) -> Entry:
    if len(entry.text) <= _LONGEST_REFERENCE:
        return entry
    return Entry(entry.who, f"{entry.text[:_LONGEST_REFERENCE]}\n[{len(entry.text) - _LONGEST_REFERENCE:,} more]")
