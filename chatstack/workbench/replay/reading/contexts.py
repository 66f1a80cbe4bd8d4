"""Contexts: the conversations that stand over many lines of a file, as their readers give them.

A context is what a model was shown, and which of its answers are calls of this context. The others are copied from
another one, where they are calls: what a session was forked from, or what stands before a branch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias, cast

import msgspec

from chatstack.errors import InputError
from chatstack.providers.converters import Form, naming_faults
from chatstack.providers.extras import WireObject
from chatstack.values.surrogates import without_lone_surrogates
from chatstack.workbench.replay.reading.lines import SESSION_LIMIT_BYTES, decoded
from chatstack.workbench.replay.reading.usages import RecordedCall

Notes: TypeAlias = Counter[str]
"""Kinds of data that were left out of recordings, in words, and how often."""

MISSING = "The recording holds no result of this call."
"""Stands for the result of a call that was interrupted, without which a server would refuse the request behind it."""
_MOST_NOTES = 20
_NAME_CHARS = 40


class Context(msgspec.Struct, frozen=True):
    """One context. ``body`` is like that of a request; ``calls`` has an entry for each assistant message in it, None
    for one that is no call of this context. ``line`` is where its own part begins."""

    body: WireObject
    form: Form
    id: str
    model: str
    line: int
    calls: tuple[RecordedCall | None, ...]
    size_bytes: int


class SessionReader(Protocol):
    """A reader of one form of session files: it takes lines, and gives the contexts once all are there."""

    def take(self, row: WireObject, line: int) -> bool:
        """Take a line; False for one that is not of this form. Raises ``InputError`` for one that cannot be read."""
        ...

    def contexts(self) -> Iterator[Context | tuple[int, str]]:
        """Yield the contexts, and a line with the reason where one could not be put together."""
        ...


class Kept:
    """The bytes that are kept of one file, which are bounded."""

    def __init__(self, limit_bytes: int = SESSION_LIMIT_BYTES) -> None:
        self._limit = self._left = limit_bytes

    def json_of(self, value: object) -> bytes:
        """Return the value as JSON, and count it. Raises ``InputError`` if it nests too deeply."""
        text = naming_faults(lambda: json.dumps(value).encode("ascii"))  # lone surrogates stay escapes
        self.count(len(text))
        return text

    def count(self, size_bytes: int) -> None:
        """Count bytes. Raises ``SessionTooLongError`` beyond the limit."""
        self._left -= size_bytes
        if self._left < 0:
            raise SessionTooLongError(f"its conversations hold more than {self._limit:,} bytes")


class SessionTooLongError(Exception):
    """More of a file would be kept in memory than any recording needs."""


def mended(value: object, check: Callable[[object], object]) -> object:
    """Return the value if it passes the check; else, if that was for lone surrogates alone, with U+FFFD in their place.

    Programs that cut texts by UTF-16 leave such halves behind, which no provider would have taken. Raises what the
    check raises.
    """
    try:
        check(value)
    except InputError as fault:
        try:
            whole = _without_lone_surrogates(value)
        except RecursionError:  # the fault is then in how deep it is
            raise fault from None
        if whole == value:
            raise
        check(whole)
        return whole
    return value


def _without_lone_surrogates(value: object) -> object:
    if isinstance(value, str):
        return without_lone_surrogates(value)
    if isinstance(value, list):
        return [_without_lone_surrogates(each) for each in cast("list[object]", value)]
    if isinstance(value, dict):
        fields = cast("WireObject", value)
        return {without_lone_surrogates(name): _without_lone_surrogates(each) for name, each in fields.items()}
    return value


def values_of(texts: Sequence[bytes]) -> list[object]:
    """Return the values of JSON texts."""
    return [decoded(text) for text in texts]


def model_of(calls: Sequence[RecordedCall | None]) -> str:
    """Return the model that most of the calls name; "" if none does."""
    models = Counter(call.model for call in calls if call is not None and call.model)
    return models.most_common(1)[0][0] if models else ""


def tier_of(calls: Sequence[RecordedCall | None]) -> str:
    """Return the service tier of most of the calls; "" if most tell none."""
    tiers = Counter(call.tier for call in calls if call is not None)
    return tiers.most_common(1)[0][0] if tiers else ""


def note(notes: Notes, what: str, times: int = 1) -> None:
    """Count something that was left out. Only the first kinds of it are named."""
    notes[what if what in notes or len(notes) < _MOST_NOTES else "others"] += times


def named(value: object) -> str:
    """Return a name from a recording, short enough to be told."""
    return repr(value[:_NAME_CHARS]) if isinstance(value, str) else "no name"


def object_in(fields: Mapping[str, object], name: str, where: str) -> WireObject:
    """Return the object of a field. Raises ``InputError`` if it is none."""
    value = fields.get(name)
    if not isinstance(value, dict):
        raise InputError(f"{where}{name}: expected an object, got {'null' if value is None else type(value).__name__}")
    return cast("WireObject", value)
