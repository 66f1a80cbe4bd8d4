"""Tool results that may be cleared: where they stand, and what clearing them saves."""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple

import msgspec

from chatstack.context.edits.context import Context
from chatstack.context.edits.handles import filled, handle_of
from chatstack.context.edits.pairing import Place, Places, alone, answered_at, as_it_came, in_full
from chatstack.context.histories.growth import Growth
from chatstack.context.strategies.clearing_options import ClearingOptions
from chatstack.values.messages import Annotation, Message, last_edit_of
from chatstack.values.parts import Part, ToolCall, ToolResult

_NO_ARGUMENTS = "{}"
_POSITION: Callable[[Place], int] = itemgetter(0)
_CALL_POSITION: Callable[[Place], int] = itemgetter(2)


class Clearable(msgspec.Struct, frozen=True, gc=False):
    """A result and its call that may be cleared, one of them or both, and what that saves in tokens, as counted."""

    number: int
    """Its number among the results."""
    place: Place
    result: ToolResult | Message | None
    """The result without its content; its message, where that holds nothing else. None if it stays."""
    call: ToolCall | None
    """The call without its arguments; None if it stays."""
    saves: int
    message: Message
    """The message of the result, as it was."""
    asked: Message
    """The message of the call, as it was."""

    @property
    def first_position(self) -> int:
        """The first message that it changes."""
        return self.place[0] if self.call is None else self.place[2]


class Results:
    """The results in messages, in order, without those of tools that a strategy excludes: their places.

    Of the first ``decided`` ones it is known what may be cleared, in this context and in longer ones, until the next
    edit: it is ``clearable``. ``known`` is what may be cleared of any."""

    def __init__(self, strategy: ClearingOptions, growth: Growth) -> None:
        self._places, self._unanswered = growth.places, growth.unanswered
        self.places = places = self._places
        if strategy.exclude_tools:
            answered = ((place, answered_at(growth.messages, place)) for place in places)
            excluded = strategy.exclude_tools
            self.places = Places(
                place for place, each in answered if (each.result.name or each.call.name) not in excluded
            )
        self.positions = [*map(_POSITION, self.places)]
        self.strategy = strategy
        self.clearable: list[Clearable] = []
        self.decided = 0
        self.known: dict[int, Clearable] = {}
        self._settled = 0
        """The first ones, that many, are never cleared any more."""
        self._about = (growth.edits, 0)

    def look_at(self, context: Context, growth: Growth) -> None:
        """Go on with a context; after an edit, and with a shorter context, what may be cleared is open again."""
        edits, length = self._about
        self._about = (growth.edits, len(context.messages))
        if edits != growth.edits or length > len(context.messages):
            self.clearable, self.decided = [], self._settled

    def decide(self, count: int, clearable: list[Clearable]) -> None:
        """Note what may be cleared of the first ones, that many."""
        if count > self.decided:
            self.decided, self.clearable = count, clearable
            self._settled = clearable[0].number if clearable else count

    def of_open_units(self, length: int) -> set[int]:
        """Return the positions of messages in units with a call that waits, among that many messages.

        Only results behind the first such call are looked at: making all units took a third of a clearing.
        """
        found, known = self._open_calls(length), 0
        while known < len(found):  # a tool message that answers calls of two messages joins their units
            known = len(found)
            behind, end = bisect_right(self._answers, min(found)), bisect_left(self._answers, length)
            for place in self._places.between(behind, end):
                if place[0] in found or place[2] in found:
                    found.update((place[0], place[2]))
        return found

    @cached_property
    def _answers(self) -> list[int]:
        return self.positions if self.places is self._places else [*map(_POSITION, self._places)]

    @cached_property
    def _calls(self) -> list[int]:
        return sorted([*map(_CALL_POSITION, self._places), *self._unanswered])

    def _open_calls(self, length: int) -> set[int]:
        """Return the positions of calls among that many messages that no result among them answers."""
        found = [position for position in self._unanswered if position < length]
        answered = bisect_left(self._answers, length)
        number = bisect_left(self._calls, length) - answered
        for behind in range(answered, len(self._places)):
            if len(found) == number:
                break
            call = self._places[behind][2]
            if call < length:
                found.append(call)
        return set(found)


class Clearer(NamedTuple):
    """Clears tool results, and their calls, under these options. ``strategy`` names the edits; ``size_of`` counts."""

    strategy: str
    options: ClearingOptions
    size_of: Callable[[Message], int]

    def clearable(self, messages: Sequence[Message], place: Place, number: int) -> Clearable | None:
        """Return what may be cleared of a result and its call; None if nothing ever may, however long it grows."""
        message, asked = messages[place[0]], messages[place[2]]
        last_edit = last_edit_of(message)
        is_done = last_edit is not None and last_edit.strategy == self.strategy and len(message.parts) == 1
        if is_done and not self.options.clear_tool_inputs:  # most of those that were edited
            return None
        result, call = message.parts[place[1]], asked.parts[place[3]]
        if type(result) is not ToolResult or type(call) is not ToolCall or message.pinned or result.is_error:
            return None
        is_new = last_edit is None and message.original is message
        cleared, saves = (None, 0) if is_done else self._result(message, place[1], result, call.name, is_new=is_new)
        without: ToolCall | None = None
        if self.options.clear_tool_inputs and not asked.pinned:
            without, saves_too = self._call(call)
            saves += saves_too
        return Clearable(number, place, cleared, without, saves, message, asked) if saves > 0 else None

    def _result(
        self, message: Message, at: int, result: ToolResult, tool: str, *, is_new: bool
    ) -> tuple[ToolResult | Message | None, int]:
        """The result without its content, if that makes it smaller, and by how much it does; its message, where that
        holds nothing else, so that it is made and counted once. ``is_new``: nobody has edited it."""
        is_alone, size_of = len(message.parts) == 1, self.size_of
        if not is_new and message.original is not message and result != as_it_came(message, at):
            return None, 0  # an edited one has given back what it had
        before = size_of(message if is_alone else alone(result))
        placeholder = self.options.placeholder
        if "{" in placeholder:
            placeholder = filled(placeholder, result.name or tool, before, lambda: handle_of(in_full(message, at)))
        cleared = ToolResult(result.call_id, result.name, placeholder, result.is_error, result.extra_json)
        if not is_alone:
            saves = before - size_of(alone(cleared))
            return (cleared, saves) if saves > 0 else (None, 0)
        annotation = cleared_by(self.strategy, before) if is_new else self._annotation(message, (0,))
        made = message.edited(parts=(cleared,), annotation=annotation)
        saves = before - size_of(made)
        return (made, saves) if saves > 0 else (None, 0)

    def _call(self, call: ToolCall) -> tuple[ToolCall | None, int]:
        """The call without its arguments, if they are to go and that makes it smaller, and by how much it does."""
        wanted, size_of = self.options.clear_tool_inputs, self.size_of
        is_wanted = wanted if isinstance(wanted, bool) else call.name in wanted
        if not is_wanted or len(call.arguments) <= len(_NO_ARGUMENTS):
            return None, 0
        cleared = ToolCall(call.id, call.name, _NO_ARGUMENTS, call.extra_json)
        saves = size_of(Message("assistant", (call,))) - size_of(Message("assistant", (cleared,)))
        return (cleared, saves) if saves > 0 else (None, 0)

    def edited(self, message: Message, parts: Mapping[int, Part]) -> Message:
        """Return the message with these parts in their places."""
        return message.edited(
            parts=tuple([parts.get(at, part) for at, part in enumerate(message.parts)]),
            annotation=self._annotation(message, parts),
        )

    def _annotation(self, message: Message, parts: Iterable[int]) -> Annotation:
        """The annotation of a message that is edited in these places."""
        before, found = last_edit_of(message), cleared_by(self.strategy, self.size_of(message.original))
        if before is None or not (before.handles or before.call_ids):
            return found  # completed when it is asked for
        handles = [handle_of(in_full(message, at)) for at in parts if type(message.parts[at]) is ToolResult]
        call_ids = [part.id for at in parts if type(part := message.parts[at]) is ToolCall]
        return msgspec.structs.replace(
            found,
            handles=tuple(dict.fromkeys((*before.handles, *handles))),
            call_ids=(*before.call_ids, *call_ids),
        )


@functools.lru_cache(maxsize=4_096)
def cleared_by(strategy: str, tokens_before: int) -> Annotation:
    """Return the annotation of an edit, one for all messages of that size."""
    return Annotation(strategy, tokens_before)
