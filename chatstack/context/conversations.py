"""Conversations: the state of one, kept with the history that it has so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from chatstack.context.records import Record
from chatstack.tokens.calibration import Anchor
from chatstack.values.messages import Message

K = TypeVar("K")
V = TypeVar("V")

_PATIENCE = 32
_MOST_TERMS = 64
"""A conversation keeps its state for that many layers, models and sets of options; else it is worked out again."""


class LastAnswer(NamedTuple):
    """The time of the last answer to a conversation, what was reported for it, and the edits that it was given under
    (their fingerprint, 0 for none). ``length``: how many messages the request had.

    ``missed_cache``: hardly anything came from the provider's cache, though it had seen all of the request before.
    """

    at: float
    input_tokens: int
    missed_cache: bool
    record: int
    length: int


class LastReport(NamedTuple):
    """The size that was reported for a request of that many messages."""

    length: int
    anchor: Anchor


class Chosen:
    """A choice as found for a history, kept with it so that the next call need not look for it again."""

    __slots__ = ("covers", "edition", "length", "record")

    def __init__(self, record: Record | None, covers: int, length: int, edition: int) -> None:
        self.record = record
        self.covers = covers
        """The choice is bound to the answer that is the last of that many messages; 0 if there is none."""
        self.length = length
        """The length of the history when it was looked for."""
        self.edition = edition
        """The memory's edition at that time; another one means that such a history has got a choice since."""


NOTHING_CHOSEN = Chosen(None, 0, 0, -1)


class Carried(NamedTuple):
    """A record as it was carried out last: the edited messages by position, and by how many tokens, as counted, it
    makes the history smaller."""

    record: Record
    edited: Mapping[int, Message]
    saved: int


class Wait(NamedTuple):
    """A look in vain: where the user's latest word stood, and the sizes of the context then."""

    latest_user: int
    sizes: tuple[int, ...]

    def goes_on(self, latest_user: int, sizes: tuple[int, ...]) -> bool:
        """The layer need not look again: the user has not spoken, and none of the sizes has grown by a 32nd. A context
        that has shrunk is another."""
        return latest_user == self.latest_user and all(
            before <= now <= before + before // _PATIENCE for before, now in zip(self.sizes, sizes, strict=True)
        )


class Reached(NamedTuple):
    """How far a pure strategy has been run over a history, the edits that it came to, and what it waits on: nothing
    need be run twice. ``scale`` is that of the context then."""

    length: int
    record: Record | None
    wait: Wait | None = None
    scale: float = 1.0


NOTHING_KNOWN = Reached(0, None)


class Conversation:
    """The state of one conversation: of those that have the same history so far, the one of that id, or that head."""

    __slots__ = (
        "answered",
        "answered_before",
        "asked",
        "bound",
        "carried",
        "choices",
        "left_out",
        "levels",
        "reached",
        "reports",
        "reports_before",
    )

    def __init__(self) -> None:
        self.levels: dict[str, int] = {}
        self.choices: dict[str, Chosen] = {}
        self.bound: dict[str, Record] = {}
        """The edits last bound to an answer, by layer."""
        self.carried: dict[str, Carried] = {}
        self.reached: dict[int, Reached] = {}
        self.reports: dict[int, LastReport] = {}
        self.reports_before: dict[int, LastReport] = {}
        """The latest reports of the provider, by what they belong to beside the history, and those before them."""
        self.answered: LastAnswer | None = None
        self.answered_before: LastAnswer | None = None
        self.left_out: tuple[Record, Record | None, int] | None = None
        """What a layer further in has left out, on top of which edits further out, and how many tokens less that is."""
        self.asked: dict[str, int] = {}
        """For how many of its messages a store has been asked, by layer."""

    def last_answer(self, length: int) -> LastAnswer | None:
        """Return what is known of the last answer to a request of fewer messages.

        The very same request tells nothing: another conversation may have made it. So it is with a report.
        """
        found = (self.answered, self.answered_before)
        return next((each for each in found if each is not None and each.length < length), None)

    def last_report(self, terms: int, length: int) -> LastReport | None:
        """Return the last size reported for a request of fewer messages under these terms: a hash of what it depends on
        beside the messages."""
        found = (self.reports.get(terms), self.reports_before.get(terms))
        return next((each for each in found if each is not None and each.length < length), None)

    def keep_answer(self, answer: LastAnswer) -> None:
        """Keep what is known of an answer; one that comes late does not take the place of a later one."""
        known = self.answered
        if known is not None and known.length > answer.length:
            return
        if known is not None and known.length < answer.length:
            self.answered_before = known
        self.answered = answer

    def keep_report(self, terms: int, report: LastReport) -> None:
        """Keep a report; one that comes late does not take the place of a later request's."""
        known = self.reports.get(terms)
        if known is not None and known.length > report.length:
            return
        if known is not None and known.length < report.length:
            put_term(self.reports_before, terms, known)
        put_term(self.reports, terms, report)

    def keep_reached(self, terms: int, reached: Reached) -> None:
        """Keep how far a strategy has been run; what comes late does not take the place of what is later."""
        known = self.reached.get(terms)
        if known is None or known.length <= reached.length:
            put_term(self.reached, terms, reached)


def put_term(entries: dict[K, V], term: K, value: V) -> None:
    """Put an entry of a conversation under what it depends on; where there are too many of others, these go."""
    if term not in entries and len(entries) >= _MOST_TERMS:
        entries.clear()
    entries[term] = value
