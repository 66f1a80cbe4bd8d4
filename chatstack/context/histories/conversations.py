"""Conversations: the state of one, kept with the history that it has so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec

from chatstack.context.edits.records import Made, Record
from chatstack.context.histories.last_reports import NOTHING_REPORTED, LastReport, reports_as_of, with_report

K = TypeVar("K")
V = TypeVar("V")
Terms: TypeAlias = tuple[tuple[K, V], ...]
"""Entries by what they depend on. There are mostly none or one: a dict takes 64 bytes for none, and 230 for one."""

_PATIENCE = 32
_MOST_TERMS = 64
"""A conversation keeps its state for that many layers, models and sets of options; else it is worked out again."""


class LastAnswer(msgspec.Struct, frozen=True, gc=False):
    """The time of the last answer to a conversation, what was reported for it, and the edits that it was given under
    (their fingerprint, 0 for none). ``length``: how many messages the request had.

    ``missed_cache``: hardly anything came from the provider's cache, though it had seen all of the request before.
    ``cleared_tokens``: the part of the request that the provider itself had cleared.
    """

    at: float
    input_tokens: int
    missed_cache: bool
    record: int
    length: int
    cleared_tokens: int = 0


class Chosen(msgspec.Struct, frozen=True, gc=False):
    """The cached result of a search for a history's choice.

    ``covers`` is the number of messages up to the answer that the choice is bound to, inclusive; 0 if there is no
    choice. ``length`` is that of the history at the search, ``edition`` the memory's: a newer one means that such a
    history has got a choice since.
    """

    record: Record | None
    covers: int
    length: int
    edition: int

    def until(self, length: int) -> Chosen:
        """Return the same for the first messages, among which are all that it is about."""
        return Chosen(self.record, min(self.covers, length), min(self.length, length), self.edition)


NOTHING_CHOSEN = Chosen(None, 0, 0, -1)


class Carried(NamedTuple):
    """A record as it was carried out last, with its edited messages, and the counted tokens that it saves."""

    made: Made
    saved: int

    @property
    def record(self) -> Record:
        return self.made.record


class Wait(NamedTuple):
    """A search for an edit that found none: the position of the user message that its turn began with, and the sizes of
    the context."""

    asked_at: int
    sizes: tuple[int, ...]

    def goes_on(self, asked_at: int, sizes: tuple[int, ...]) -> bool:
        """Return True if the layer need not search again: there is no new turn, and no size has grown by more than a
        32nd, or shrunk."""
        return asked_at == self.asked_at and all(
            before <= now <= before + before // _PATIENCE for before, now in zip(self.sizes, sizes, strict=True)
        )

    @property
    def until(self) -> int:
        """The most that the first of the sizes may come to."""
        return self.sizes[0] + self.sizes[0] // _PATIENCE


class Planned(NamedTuple):
    """The next summary of a history, planned before it is due: all edits in force once it is, with a placeholder for
    its text, and its subject (the key of the artifact)."""

    record: Record
    subject: tuple[str, bytes]
    is_written: bool = False
    """True if the record holds the summary itself."""


class Form(NamedTuple):
    """An edited form of a conversation's history: behind the layer at that place, by the fingerprint of the edits.

    Where it is ``by_original``, edits that only replace messages make no other form of it. Where it ``is_shaped``, each
    message stands for the one in its place, so that it is the same conversation.
    """

    who: str
    behind: int
    by_original: bool
    edits: int
    is_shaped: bool = False


class Reached(msgspec.Struct, frozen=True, gc=False):
    """The progress of a pure strategy over a history: the length up to which it was run, the resulting edits, and its
    wait, so that nothing is run twice. ``scale`` is that of the context then. ``ahead`` is what is planned before it is
    due; a ``Wait`` if there was nothing to plan. ``of`` is a hash of the strategy, the model and the limit. ``sent`` is
    how many tokens that request was sent with, 0 if that is not known."""

    length: int
    record: Record | None
    wait: Wait | None = None
    scale: float = 1.0
    ahead: Planned | Wait | None = None
    of: int = 0
    sent: int = 0

    @property
    def reach(self) -> int:
        """The number of messages that its edits, those that are planned included, depend on."""
        planned = self.ahead.record.reach if isinstance(self.ahead, Planned) else 0
        return max(planned, 0 if self.record is None else self.record.reach)

    def until(self, length: int) -> Reached:
        """Return the same for the first messages, among which are all that its edits depend on."""
        return self if self.length <= length else msgspec.structs.replace(self, length=length)


NOTHING_KNOWN = Reached(0, None)


class Conversation:
    """The state of one conversation, told by its id or head from others with the same history so far."""

    __slots__ = (
        "__weakref__",
        "answered",
        "answered_before",
        "asked",
        "bound",
        "carried",
        "choices",
        "has_less",
        "left_out",
        "levels",
        "past",
        "reached",
        "reports",
        "who",
    )

    def __init__(self, who: str = "") -> None:
        self.who = who
        """Its name; kept as a key, so that it is to be one object for all that do."""
        self.levels: dict[str, int] = {}
        self.choices: Terms[str, Chosen] = ()
        self.bound: Terms[str, Record] = ()
        """The edits last bound to an answer, by layer."""
        self.carried: Terms[tuple[str, int], Carried] = ()
        """The records carried out last, by layer and by the edits of layers outside."""
        self.reached: Terms[int, Reached] = ()
        self.reports = NOTHING_REPORTED
        """The last reports of the provider. See ``last_reports.py``."""
        self.answered: LastAnswer | None = None
        self.answered_before: LastAnswer | None = None
        self.has_less = False
        """True if a caller has changed what was answered: not all edits may be needed any more."""
        self.left_out: tuple[Record, Record | None, int] | None = None
        """The record of a layer further in that leaves messages out, the outer edits that it is combined with, and the
        tokens that it saves."""
        self.past: list[int] = []
        """The keys of its entries in ``OwnPast``, the oldest first."""
        self.asked: Terms[str, int] = ()
        """Number of its messages that were looked up in the store, by layer."""

    def go_on_from(self, before: Conversation, length: int, changed: Sequence[int]) -> None:
        """Take over the state of a conversation that goes on from its first ``length`` messages, of which some have
        ``changed``: all but edits that are about these, or about what it had more."""

        def holds(record: Record | None) -> bool:
            return record is None or (record.reach <= length and not any(map(record.touches, changed)))

        self.has_less = bool(changed)
        self.levels.update(before.levels)
        self.choices = tuple([(place, each.until(length)) for place, each in before.choices if holds(each.record)])
        self.carried = before.carried
        self.reached = tuple([
            (terms, each.until(length))
            for terms, each in before.reached
            if each.reach <= length and holds(each.record)
        ])  # fmt: skip
        self.reports = reports_as_of(before.reports, length)
        self.answered, self.answered_before = _until(before.answered, length), _until(before.answered_before, length)
        self.left_out = before.left_out if before.left_out is not None and holds(before.left_out[0]) else None
        self.past = [*before.past]  # it may go on from another answer of that request, too
        self.asked = tuple([(place, min(asked, length)) for place, asked in before.asked])

    def last_answer(self, length: int) -> LastAnswer | None:
        """Return the last known answer to a request of fewer messages.

        The answer to the very same request is skipped, as another conversation may have made that request.
        """
        for known in (self.answered, self.answered_before):
            if known is not None and known.length < length:
                return known
        return None

    def keep_answer(self, answer: LastAnswer) -> None:
        """Keep an answer, unless one to a longer request is known: answers may come out of order."""
        known = self.answered
        if known is not None and known.length > answer.length:
            return
        if known is not None and known.length < answer.length:
            self.answered_before = known
        self.answered = answer

    def keep_report(self, terms: int, report: LastReport) -> None:
        """Keep a report, unless one of a longer request is known."""
        self.reports = with_report(self.reports, terms, report)

    def keep_reached(self, terms: int, reached: Reached) -> None:
        """Keep the progress of a strategy, unless it is known to be further."""
        known = term_in(self.reached, terms)
        if known is None or known.length <= reached.length:
            self.reached = with_term(self.reached, terms, reached)


def _until(answer: LastAnswer | None, length: int) -> LastAnswer | None:
    if answer is None or answer.length <= length:
        return answer
    return msgspec.structs.replace(answer, length=length)


def term_in(entries: Terms[K, V], term: K) -> V | None:
    """Return the entry under what it depends on; None if there is none."""
    for known, value in entries:
        if known == term:
            return value
    return None


def with_term(entries: Terms[K, V], term: K, value: V) -> Terms[K, V]:
    """Return the entries of a conversation with one under what it depends on; where there are too many of others, these
    go."""
    new = ((term, value),)
    if not entries or (len(entries) == 1 and entries[0][0] == term):
        return new
    for at, (known, _) in enumerate(entries):
        if known == term:
            return entries[:at] + entries[at + 1 :] + new
    return entries + new if len(entries) < _MOST_TERMS else new
