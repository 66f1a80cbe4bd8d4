"""Binding: the edits in force for a history, found by its own past, and bound to the answer given under them."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from chatstack.context.decisions.agreement import Agreement
from chatstack.context.edits.context import Context
from chatstack.context.edits.records import Record
from chatstack.context.histories.choices import Bound
from chatstack.context.histories.conversations import (
    NOTHING_KNOWN,
    Chosen,
    Planned,
    Reached,
    term_in,
    with_term,
)
from chatstack.context.histories.own_past import Entry
from chatstack.context.memory.memory import ContextMemory
from chatstack.context.requests.asking import Asking, call
from chatstack.context.requests.opened import Opened
from chatstack.values.messages import Message

_AHEAD = "ahead:"
_TURN = "turn:"


@dataclass(frozen=True, slots=True)
class Binding:
    """The own past of conversations, as one context layer knows it. ``owner`` names the layer's options, ``place`` its
    place in the recipe: choices are kept under the place, independently of the options."""

    memory: ContextMemory
    agreement: Agreement
    owner: str
    place: str

    def in_force(self, opened: Opened) -> Asking[Reached]:
        """Return the edits in force for this history, and up to how many messages they are known to be complete."""
        if self.memory.shared is None:
            return self.in_force_here(opened)
        others = functools.partial(self._other_names, opened)
        chosen = yield from call(self.agreement.recalled, self._place_of(opened), opened.seen, opened.context, others)
        return self._newest(chosen, self._reached(opened))

    def in_force_here(self, opened: Opened) -> Reached:
        """Return the same, where there is no store: a generator less for each layer and call."""
        reached, deciders = self._reached(opened), self.memory.deciders
        place = self._place_of(opened) if deciders else ""
        if place not in deciders:
            return NOTHING_KNOWN if reached is None else reached
        others = functools.partial(self._other_names, opened)
        beyond = 0 if reached is None else reached.length
        return self._newest(self.memory.chosen(place, opened.seen, others, beyond=beyond), reached)

    def _reached(self, opened: Opened) -> Reached | None:
        """Return how far the strategy is known to have come over this history.

        The last answer may be to a request with other instructions, tools or ``max_tokens``: then that is what counts,
        as it was sent, unless several such requests were, with other edits.
        """
        known, answered = opened.seen.conversation.reached, opened.seen.history.latest_assistant
        reached = term_in(known, self._terms(opened))
        if known and (reached is None or reached.length < answered):
            of = self._strategy(opened)
            others = [each for _, each in known if each.length == answered and each.of == of]
            if others and all(each.record is others[0].record for each in others):
                reached = others[0]
        return None if reached is None or reached.length > opened.seen.length else reached

    def _newest(self, chosen: Chosen, reached: Reached | None) -> Reached:
        """Return what is known of the edits in force, by a choice or by the strategy itself, whichever is newer."""
        if reached is not None:
            # A choice bound by the answer to that very request is no news: then the wait that was kept still holds.
            is_its_own = chosen.record is reached.record and chosen.covers == reached.length + 1
            if chosen.covers <= reached.length or is_its_own:
                return reached
        return Reached(max(0, chosen.covers - 1), chosen.record)

    def reach(self, opened: Opened, context: Context) -> None:
        """Remember how far this history has been processed, the resulting edits, and the sizes after them."""
        if opened.seen.length and not opened.is_pending:
            length, of = opened.seen.length, self._strategy(opened)
            scale, sent = context.scale, context.messages_tokens
            reached = Reached(length, opened.replayed, opened.wait, scale, opened.ahead, of, sent)
            opened.reached = (self._terms(opened), reached)
            opened.seen.conversation.keep_reached(*opened.reached)

    def bind(self, opened: Opened, said: Message, entry: Entry, sent: Context) -> list[Bound]:
        """Bind the edits in force to this answer, unless they are bound to an earlier one of this conversation; return
        the new choices. Edits that are planned before they are due are bound, too, in this process alone. At the end of
        a turn, they are also bound to its question and answer alone, as callers may keep no more of it."""
        seen, record = opened.seen, opened.replayed
        if not seen.length:
            return []
        if opened.reached is not None:
            entry.keep_reached(*opened.reached)
        if isinstance(opened.ahead, Planned):
            self._bound(_AHEAD + self._place_of(opened), opened.ahead.record, opened, said)
        if record is None:
            return []
        place, conversation = self._place_of(opened), seen.conversation
        chosen = term_in(conversation.choices, place)
        found = [] if chosen and chosen.record is record else self._bound(place, record, opened, said)
        if said.calls or term_in(conversation.bound, _TURN + place) is record:
            return found
        asked = _length_without_rounds(record, opened, sent)
        if asked:
            conversation.bound = with_term(conversation.bound, _TURN + place, record)
            found += self.memory.choose(place, seen, record, said, (seen.who,), (asked,))
        return found

    def _bound(self, place: str, record: Record, opened: Opened, said: Message) -> list[Bound]:
        conversation = opened.seen.conversation
        if term_in(conversation.bound, place) is record:
            return []
        conversation.bound = with_term(conversation.bound, place, record)
        names = (opened.seen.who, *self._other_names(opened))
        return self.memory.choose(place, opened.seen, record, said, names)

    def planned(self, opened: Opened) -> Record | None:
        """Return the edits that were planned, before they were due, with an answer in this history."""
        place = _AHEAD + self._place_of(opened)
        return self.memory.chosen(place, opened.seen, lambda: self._other_names(opened)).record

    def _place_of(self, opened: Opened) -> str:
        """Return the key of choices beside the conversation: the layer's place and the model."""
        return _place(self.place, opened.model)

    def _terms(self, opened: Opened) -> int:
        """Return a hash of everything that a plan depends on, beside the history."""
        context = opened.context
        sizes = (opened.limit, context.reserved_tokens, context.fixed_tokens)
        return hash((self.owner, opened.outer, opened.model, sizes))

    def _strategy(self, opened: Opened) -> int:
        """Return a hash of the same, without what may differ from one request of a conversation to the next."""
        return hash((self.owner, opened.outer, opened.model, opened.limit))

    def _other_names(self, opened: Opened) -> tuple[str, ...]:
        """Return further names of a conversation that has an id: a branch may go on without one, or with another."""
        request = opened.context.request
        if request.conversation_id is None:
            return ()
        return (self.memory.names.by_head(opened.seen.head_of(request.messages), request.options.instructions),)


def is_needed_still(record: Record, *, sent: int, whole: int, left: int) -> bool:
    """Return True if edits are to hold where not all that was ``sent`` under them comes again: ``whole`` is the size of
    what comes, ``left`` is that with the edits.

    Not if it would fit without them. Nor if what is gone was most of what was sent, and no summary stands for what that
    had displaced: the model would have forgotten it for nothing.
    """
    return whole > sent and (bool(record.insert) or 2 * left >= sent)


def _length_without_rounds(record: Record, opened: Opened, sent: Context) -> int:
    """Return the length of a request without the rounds of its turn, if its edits hold for that; else 0."""
    seen = opened.seen
    asked = seen.without_rounds(seen.length)
    if not record.reach <= asked < seen.length:
        return 0
    rounds = sum(map(sent.size_of, seen.history.messages[asked : seen.length]))
    tokens, whole = sent.messages_tokens, opened.context.messages_tokens - rounds
    return asked if is_needed_still(record, sent=tokens, whole=whole, left=tokens - rounds) else 0


@functools.lru_cache(maxsize=256)
def _place(place: str, model: str) -> str:
    """Return one string for all conversations, which hold it as a key."""
    return f"{place}:{model}"
