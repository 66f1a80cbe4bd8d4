"""Drafting: a plan that clears what is old, drops what tells least, and leaves the words that were in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property

from msgspec.structs import replace

from chatstack.context.edits.context import Context
from chatstack.context.edits.handles import filled, handle_of, recall_name
from chatstack.context.edits.pairing import alone, answered_calls, as_it_came, in_full
from chatstack.context.edits.plans import Plan
from chatstack.context.edits.shortening import (
    annotation_of,
    fitted,
    never_whole,
    saved_by,
    shortened_to,
    unseen_results,
)
from chatstack.context.edits.units import Unit
from chatstack.context.strategies.condensing_options import CondensingOptions
from chatstack.context.strategies.dropping import least_telling_first, newest, to_carry, without_words
from chatstack.context.strategies.labels import Labels
from chatstack.context.strategies.mentions import words_gone, words_said
from chatstack.context.strategies.name_lists import Names, list_text, without_lists
from chatstack.context.strategies.pruning import removable
from chatstack.context.strategies.recalling import recalled_lately
from chatstack.values.messages import Message
from chatstack.values.parts import ToolResult

_LEAST = 64
"""Tokens of a new result that are left in any case."""
_LABELLED_FROM = 256
"""Tokens of a list from which on words stand by their calls: in a shorter one, labels would take most of the room."""


class Draft:
    """A plan in the making. Sizes are in tokens as they will be, corrected by what was reported.

    With ``behind``, the position of a list that an earlier edit left, nothing up to it is touched: it stays beside a
    list of half its size.
    """

    def __init__(
        self, context: Context, strategy: str, options: CondensingOptions, limit: int, tokens: int, behind: int | None
    ) -> None:
        self.context = context
        self.strategy = strategy
        self.options = options
        self.limit = limit
        self.tokens = float(tokens)
        self.behind = behind
        self.list_tokens = options.mentions * limit / (1 if behind is None else 2)
        self.target_tokens = (options.target + (0 if behind is None else options.mentions)) * limit
        self.dropped: set[int] = set()
        self.replaced: dict[int, Message] = {}
        self.removable = [unit for unit in removable(context) if behind is None or unit.positions[0] > behind]
        self.recent = newest(context.units, options.keep_recent * limit, self.size_of_unit)
        self.carrier: tuple[int, int] | None = None
        """The place of the result that is to carry the list: its message's position, and its part's."""
        self.labels: Labels | None = None
        self.spared: Unit | None = None
        """The unit of the carrier, where it would be left out if it did not carry anything."""

    @cached_property
    def _tools(self) -> Mapping[tuple[int, int], str]:
        """The tool of each result, by position and part."""
        return {(each.position, each.part): each.call.name for each in answered_calls(self.context.messages)}

    @property
    def is_too_large(self) -> bool:
        return self.leaves > self.target_tokens

    @property
    def leaves(self) -> float:
        """The tokens that are left, with the list."""
        return self.tokens + self.list_tokens

    @property
    def is_deep(self) -> bool:
        """True if it makes at least half the room that an edit of everything makes."""
        return self.limit - self.leaves >= (1 - self.options.target) * self.limit / 2

    def bounds(self) -> tuple[int | None, float]:
        """Return the position at or before which it begins, None if any is possible, and how many tokens will go at
        most, as counted; before it takes out anything."""
        messages, sizes = self.context.messages, self.context.sizes
        results = sum(sizes[at] for unit in self.removable for at in unit.positions if messages[at].role == "tool")
        # What is large after all results went goes until it is not: one unit may be more than enough.
        down_to = self.target_tokens - self.list_tokens
        over = self.tokens - down_to + max(map(self.size_of_unit, self.removable), default=0)
        first = next((at for at, _ in self._old_results()), None)
        return first, max(results, over / self.context.scale)

    def take_out(self) -> None:
        """Clear old results; if that is not enough, what was said beside old calls; and then drop units."""
        for at, cleared in self._old_results():
            self._replace(at, self._edited(at, cleared))
            self.carrier = at, max(cleared)
        for unit in self.removable:
            if not self.is_too_large:
                return
            if unit not in self.recent:
                self._leave_calls(unit)
        if self.is_too_large:
            self._drop_units()

    def _old_results(self) -> Iterator[tuple[int, dict[int, ToolResult]]]:
        """Yield the position of each message with results that are to be cleared, those not recent and not recalled
        lately, and what becomes of them, by part."""
        recalled = recalled_lately(self.context)
        for unit in self.removable:
            if unit in self.recent or not recalled.isdisjoint(unit.positions):
                continue
            for position in unit.positions:
                if cleared := self._cleared(position):
                    yield position, cleared

    def _leave_calls(self, unit: Unit) -> None:
        """Take out the texts of an assistant message with calls."""
        for at in unit.positions:
            message = self.context.messages[at]
            parts = without_words(message)
            if len(parts) < len(message.parts):
                annotation = annotation_of(self.context, message, self.strategy)
                self._replace(at, message.edited(parts=parts, annotation=annotation))

    def _drop_units(self) -> None:
        """Leave out units until the target is reached, those first that tell least; the recent ones last, and only
        where the limit needs it."""
        tokens = self.tokens
        going: list[Unit] = []
        old = [unit for unit in self.removable if unit not in self.recent]
        recent = [unit for unit in self.removable if unit in self.recent]
        others = {*range(len(self.context.messages))}.difference(*(unit.positions for unit in old))
        for unit in (*least_telling_first(old, self._words_at, others, self.size_of_unit), *recent):
            wanted = self.limit if unit in self.recent else self.target_tokens
            if tokens <= wanted - self.list_tokens:
                break
            going.append(unit)
            tokens -= self.size_of_unit(unit)
        if self.carrier is not None and any(self.carrier[0] in unit.positions for unit in going):
            self.carrier = None
        if self.carrier is None and self.list_tokens:
            self.spared = to_carry(going, self.context.messages, self._size_at)
            if self.spared is not None:
                going.remove(self.spared)
                at = self.spared.positions[-1]
                self.carrier = at, 0
                if cleared := self._cleared(at):
                    self._replace(at, self._edited(at, cleared))
        for unit in going:
            self._drop(unit)

    def _words_at(self, position: int) -> Set[str]:
        message = self.replaced.get(position, self.context.messages[position])
        return frozenset[str]().union(*words_said(self.context, message))

    def list_mentions(self) -> None:
        """Put the names and words of all that is gone, now or earlier, in the place of one cleared result."""
        carrier = self.carrier
        if carrier is None or not self.list_tokens:
            return
        position, came = carrier[0], self.context.request.messages
        left = {
            at: self.replaced.get(at, message)
            for at, message in enumerate(self.context.messages)
            if at != position and at not in self.dropped
        }
        stands = {self.context.origins[at]: message for at, message in left.items()}
        room = self.list_tokens / self.context.scale + self.context.size_of(self._listing(carrier, ()))
        room = min(room, (self.limit - self.tokens + self._size_at(position)) / self.context.scale)
        gone = [at for at in range(len(came)) if stands.get(at) is not came[at]]
        words = words_gone(self.context, gone)
        # A word is a token at least.
        names = words.mentions(left.values(), most=int(room))
        if room >= _LABELLED_FROM:
            can_recall = bool(recall_name(self.context.request.options.tools))
            self.labels = Labels(came, words.last_position, with_handles=can_recall)
            names = self.labels.sorted(names, words.is_told)
        low, high = 0, len(names)
        while low < high:  # the longest list that fits: a few counts, not one for each name
            middle = (low + high + 1) // 2
            if self.context.size_of(self._listing(carrier, names[:middle])) <= room:
                low = middle
            else:
                high = middle - 1
        if low:
            self._replace(position, self._listing(carrier, names[:low]))
        elif self.spared is not None:
            self._drop(self.spared)

    def shorten_new(self) -> None:
        """Take the middle out of each result that the model has not seen yet, and that is larger than its share; and of
        those that it cannot have seen whole."""
        most = self._share_of_new * self.limit
        new = sorted({*unseen_results(self.context), *never_whole(self.context, self.strategy, self.limit)})
        for at, shortened in shortened_to(self.context, new, self.strategy, most).items():
            self._replace(at, shortened)

    def make_fit(self) -> None:
        """Shorten what is new further, and drop what may go at all, where it is still too much."""
        self._shorten_further()
        for unit in self.removable:
            if self.tokens <= self.limit:
                return
            if not self.dropped.intersection(unit.positions):
                self._drop(unit)
        self._shorten_further()

    @property
    def _share_of_new(self) -> float:
        return max(self.options.newest_result, _LEAST / self.limit)

    def _shorten_further(self) -> None:
        if self.tokens <= self.limit:
            return
        new = {at: self.replaced[at] for at in unseen_results(self.context) if at in self.replaced}
        over = self.tokens + saved_by(self.context, new) - self.limit
        for at, shortened in fitted(self.context, self.strategy, self.limit, over, most=self._share_of_new).items():
            self._replace(at, shortened)

    def plan(self, reason: str) -> Plan | None:
        """Return the plan that was put together; None if it changes nothing."""
        if not self.dropped and not self.replaced:
            return None
        left = tuple(sorted((at, each) for at, each in self.replaced.items() if at not in self.dropped))
        return Plan(strategy=self.strategy, reason=reason, drop=tuple(sorted(self.dropped)), replace=left)

    def left(self) -> dict[int, int]:
        """Return what is left of each message that is touched, in counted tokens, by position."""
        sizes = {at: self.context.size_of(message) for at, message in self.replaced.items()}
        return sizes | dict.fromkeys(self.dropped, 0)

    def size_of_unit(self, unit: Unit) -> float:
        return sum(self._size_at(position) for position in unit.positions)

    def _size_at(self, position: int) -> float:
        message = self.replaced.get(position)
        size = self.context.sizes[position] if message is None else self.context.size_of(message)
        return size * self.context.scale

    def _cleared(self, position: int) -> dict[int, ToolResult]:
        """Return the results of a message that the model has seen without their content, by part, where that makes
        them smaller; not errors, and not what has been cleared already."""
        message, size_of = self.context.messages[position], self.context.size_of
        cleared: dict[int, ToolResult] = {}
        if self.context.has_new(position):
            return cleared
        for at, part in enumerate(message.parts):
            if isinstance(part, ToolResult) and not part.is_error and part == as_it_came(message, at):
                shorter = replace(part, output=self._placeholder(position, at))
                if size_of(alone(shorter)) < size_of(alone(part)):
                    cleared[at] = shorter
        return cleared

    def _placeholder(self, position: int, at: int) -> str:
        message = self.context.messages[position]
        came = as_it_came(message, at)
        tool = came.name or self._tools.get((position, at), "")
        size = self.context.size_of(alone(came))
        return filled(self.options.placeholder, tool, size, lambda: handle_of(in_full(message, at)))

    def _listing(self, carrier: tuple[int, int], names: Sequence[str]) -> Message:
        """The message with the names in the place of the result that carries them."""
        position, at = carrier
        text = self._placeholder(position, at)
        text += list_text([Names(tuple(names))] if self.labels is None else self.labels.grouped(names))
        came = as_it_came(self.context.messages[position], at)
        return self._edited(position, {at: replace(came, output=text, is_error=False)})

    def _edited(self, position: int, results: Mapping[int, ToolResult]) -> Message:
        before = self.context.messages[position]
        message, handles = self.replaced.get(position, before), [handle_of(in_full(before, at)) for at in results]
        parts = tuple(results.get(at, part) for at, part in enumerate(message.parts))
        return message.edited(parts=parts, annotation=annotation_of(self.context, message, self.strategy, handles))

    def _replace(self, position: int, message: Message) -> None:
        self.tokens -= self._size_at(position)
        self.replaced[position] = message
        self.tokens += self._size_at(position)

    def _drop(self, unit: Unit) -> None:
        self.tokens -= self.size_of_unit(unit)
        self.dropped.update(unit.positions)


def last_list(context: Context) -> int | None:
    """Return the position of the last list of names that an edit left; None if there is none."""
    positions = range(len(context.messages) - 1, -1, -1)
    return next((at for at in positions if without_lists(context.messages[at])[1]), None)
