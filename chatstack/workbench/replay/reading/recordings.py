"""Reads recorded conversations: JSON, or JSONL line by line, plain or gzipped, in bounded memory.

A conversation is the bare list of messages or items, in one of the forms that ``signs`` tells apart; an object like the
body of the request, with ``messages`` or ``input``, and ``id``, ``model``, ``tools``, ``system``, ``instructions``
where known; or a row that logs a request beside its response (``exchanges``); or a trajectory (``atif``). A JSON file
holds one conversation or a list of them, a JSONL file one a line. Session files, whose conversations stand over many
lines (``sessions``), are read to their end first. What cannot be read is reported with file and line, and the rest goes
on.
"""

from __future__ import annotations

import codecs
import io
import itertools
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TypeAlias, cast

import msgspec

from chatstack.errors import InputError
from chatstack.providers.converters import Form
from chatstack.providers.extras import WireObject, text_in
from chatstack.workbench.replay.reading.atif import is_trajectory, trajectories
from chatstack.workbench.replay.reading.contexts import Context, Notes, SessionTooLongError, note
from chatstack.workbench.replay.reading.exchanges import unwrapped
from chatstack.workbench.replay.reading.lines import (
    LINE_LIMIT_BYTES,
    MOST_VALUES,
    decoded,
    has_too_many_values,
    is_whole,
    lines,
    rest,
    unreadable,
    unzipped,
)
from chatstack.workbench.replay.reading.sessions import Sessions
from chatstack.workbench.replay.reading.signs import FORMS_TOLD, form_of, is_item, kind_of
from chatstack.workbench.replay.reading.sources import Source
from chatstack.workbench.replay.reading.usages import RecordedCall, recorded_call

_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_LINES_TRIED = 1_000
_OBJECT_LINES = re.compile(rb"\n(\{[^\n]*\}[ \t\r]*)(?=\n|\Z)")
_LINES = frozenset({".jsonl", ".ndjson"})

_MOST_BLANK = 100_000
"""Maximum number of empty lines in a row: more is no recording, and a small file can unpack to billions."""
_MOST_BROKEN = 100_000
"""Maximum number of lines in a row that hold no conversation, for the same reason."""
_BESIDE = ("system", "instructions", "tools", "functions")
_NAMES_TOLD = 5
_NAME_CHARS = 40

Advance: TypeAlias = Callable[[int], None]
"""A callback with the number of bytes read from the input files, compressed ones as they are."""


class Recording(msgspec.Struct, frozen=True):
    """One recorded conversation, and the place where it was read.

    ``body`` is as recorded, without the fields that a replay does not need: ``messages``, or ``input`` of Responses,
    and ``system``, ``instructions``, ``tools`` and ``functions`` if they were beside. ``model`` is "" if unknown.
    ``nth`` counts the conversations of one line from 1; 0 if it holds only one.
    """

    body: WireObject
    form: Form
    id: str
    model: str
    file: str
    line: int
    nth: int = 0
    size_bytes: int = 0
    """Approximate size of its JSON, in bytes."""
    calls: tuple[RecordedCall | None, ...] | None = None
    """The call of each assistant message, None for one that is copied from another conversation; None if all of them
    are calls, of which no usage is known."""
    last_call: RecordedCall | None = None
    """The call of the last message, where a request is logged beside its response."""

    def broken(self, error: BaseException) -> BrokenLine:
        """Return the broken line of a recording that cannot be replayed, with the reason."""
        return _broken(self.file, self.line, self.nth, error)


class BrokenLine(msgspec.Struct, frozen=True):
    """A line that could not be read. ``line`` counts from 1."""

    file: str
    line: int
    error: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.error}"


def read_recordings(
    sources: Sequence[Source],
    *,
    advance: Advance | None = None,
    limit_bytes: int = LINE_LIMIT_BYTES,
    notes: Notes | None = None,
) -> Iterator[Recording | BrokenLine]:
    """Yield every conversation of the sources in order, and every line that holds none.

    ``notes`` is told what was left out of conversations that were read.
    """
    notes = Notes() if notes is None else notes
    behind = 0
    for source in sources:
        try:
            raw = source.open()
        except OSError as error:  # the file was there when the sources were listed
            yield BrokenLine(source.name, 1, f"cannot be read: {error.strerror or error}")
            continue
        with raw, unzipped(raw) as opened:
            if why := unreadable(raw):
                yield BrokenLine(source.name, 1, why)
                continue
            broken = 0
            for item in _read(opened, source, limit_bytes, notes):
                if advance is not None:
                    advance(behind + min(raw.tell(), source.size_bytes))
                broken = broken + 1 if isinstance(item, BrokenLine) else 0
                if broken > _MOST_BROKEN:
                    why = f"reading stopped here: more than {_MOST_BROKEN:,} lines hold no conversation"
                    yield BrokenLine(item.file, item.line, why)
                    break
                yield item
        behind += source.size_bytes
    if advance is not None:
        advance(behind)


def _read(opened: IO[bytes], source: Source, limit_bytes: int, notes: Notes) -> Iterator[Recording | BrokenLine]:
    file = source.name
    sessions = Sessions(notes)
    seen = 0
    try:
        for item in _read_lines(opened, source, limit_bytes, sessions):
            seen += 1
            yield item
    except SessionTooLongError as error:
        yield BrokenLine(file, sessions.line, f"reading stopped here: {error}")
    if not sessions.line:
        return
    for context in sessions.contexts():
        seen += 1
        yield BrokenLine(file, *context) if isinstance(context, tuple) else _of_context(context, file)
    if not seen:
        note(notes, "session files without an answer")


def _read_lines(
    opened: IO[bytes], source: Source, limit_bytes: int, sessions: Sessions
) -> Iterator[Recording | BrokenLine]:
    file = source.name
    number, empty = 0, True
    try:
        blank = 0
        for number, line in lines(opened, limit_bytes):
            if line is not None and not line.strip():
                blank += 1
                if blank > _MOST_BLANK:
                    yield BrokenLine(file, number, f"reading stopped here: more than {_MOST_BLANK:,} empty lines")
                    return
                continue
            blank = 0
            if empty and line is not None and not _LINES.intersection(source.suffixes) and not is_whole(line):
                yield from _document(rest(line, opened, limit_bytes), file, number, limit_bytes, sessions)
                return
            empty = False
            yield from _conversations(line, file, number, limit_bytes, sessions)
    except (OSError, EOFError, zlib.error) as error:
        yield BrokenLine(file, number + 1, f"reading stopped here: {_one_line(error)}")
        return
    if empty:
        yield BrokenLine(file, 1, "holds nothing")


def _document(
    document: io.BytesIO, file: str, number: int, limit_bytes: int, sessions: Sessions
) -> Iterator[Recording | BrokenLine]:
    """Yield one JSON value over many lines; or, if the first line is broken, the values of the lines."""
    if document.tell() > limit_bytes:
        yield from _conversations(None, file, number, limit_bytes, sessions)
        return
    text = document.getvalue()
    if is_whole(text) or not _has_whole_line(text):
        yield from _conversations(text, file, number, limit_bytes, sessions)
        return
    document.seek(0)
    for place, line in enumerate(document, number):
        if line.strip():
            yield from _conversations(line, file, place, limit_bytes, sessions)


def _has_whole_line(text: bytes) -> bool:
    """Return True if a line behind the first is an object by itself.

    The lines are looked at in place, and not all of them: a document can have millions, and a list of them would take
    twenty times its own memory.
    """
    candidates = itertools.islice(_OBJECT_LINES.finditer(text), _LINES_TRIED)
    return any(is_whole(each.group(1)) for each in candidates)


def _conversations(
    line: bytes | None, file: str, number: int, limit_bytes: int, sessions: Sessions
) -> Iterator[Recording | BrokenLine]:
    """Yield the conversations of a line, or of a whole document."""
    if line is None:
        yield BrokenLine(file, number, f"longer than {limit_bytes:,} bytes")
        return
    if has_too_many_values(line):
        yield BrokenLine(file, number, f"holds more than {MOST_VALUES:,} values")
        return
    try:
        value = decoded(line)
    except (ValueError, RecursionError) as error:
        is_wide = line.startswith(_UTF16_MARKS)
        why = "text in UTF-16; write it as UTF-8" if is_wide else f"not valid JSON: {_one_line(error)}"
        yield BrokenLine(file, number, why)
        return
    try:
        if sessions.take(value, number):
            return
    except InputError as error:
        yield BrokenLine(file, number, str(error))
        return
    conversations = _listed(value)
    if not conversations:
        yield BrokenLine(file, number, "an empty list, where a conversation is expected")
    for position, each in enumerate(conversations):
        nth = position + 1 if len(conversations) > 1 else 0
        size_bytes = len(line) // len(conversations)
        try:
            if is_trajectory(each):
                told = trajectories(cast("WireObject", each), number, size_bytes)
                yield from [_of_context(context, file, nth) for context in told]
            else:
                yield _recording(each, file, number, nth, size_bytes)
        except InputError as error:
            yield _broken(file, number, nth, error)


def _broken(file: str, line: int, nth: int, error: BaseException) -> BrokenLine:
    return BrokenLine(file, line, f"conversation {nth}: {error}" if nth else str(error))


def _listed(value: object) -> list[object]:
    """Return a list of conversations, from that list, from one conversation, or from a bare list of messages."""
    if isinstance(value, list):
        items = cast("list[object]", value)
        if not (items and is_item(items[0])):
            return items
    return [value]


def _recording(value: object, file: str, line: int, nth: int, size_bytes: int) -> Recording:
    """Return the recording. Raises ``InputError`` for a value that is no conversation."""
    items, beside = _items_of(value)
    form = form_of(items, beside)
    body: WireObject = {"input" if form == "responses" else "messages": items}
    body.update((name, beside[name]) for name in _BESIDE if beside.get(name))
    called, model = beside.get("id"), beside.get("model")
    return Recording(
        body,
        form,
        str(called) if isinstance(called, (str, int)) else f"{Path(file).name}:{line}:{nth}",
        model if isinstance(model, str) else "",
        file,
        line,
        nth,
        size_bytes,
        last_call=_last_call(beside),
    )


def _last_call(beside: WireObject) -> RecordedCall | None:
    """Return the call of the last message; None where no log tells that it is one."""
    call = recorded_call(beside.get("usage"), tier=text_in(beside, "answer_tier"))
    called = beside.get("answer_id")
    if "answer_id" not in beside:
        return call
    return msgspec.structs.replace(call or RecordedCall(), id=called if isinstance(called, str) else "")


def _of_context(context: Context, file: str, nth: int = 0) -> Recording:
    called = context.id or f"{Path(file).name}:{context.line}:{nth}"
    place = (file, context.line, nth, context.size_bytes)
    return Recording(context.body, context.form, called, context.model, *place, calls=context.calls)


def _items_of(value: object) -> tuple[object, WireObject]:
    """Return the messages or items, and the object that they are in; an empty one around a bare list."""
    if isinstance(value, list):
        return cast("list[object]", value), {}
    found = kind_of(value)
    if isinstance(value, dict):
        beside = cast("WireObject", value)
        for name in ("messages", "input"):
            if name in beside:
                return beside[name], beside
        logged = unwrapped(beside)
        if logged is not None:
            return _items_of(logged)
        names = ", ".join(repr(name[:_NAME_CHARS]) for name in list(beside)[:_NAMES_TOLD])
        found = f"an object with {names}{', ...' if len(beside) > _NAMES_TOLD else ''}" if names else "an empty object"
    raise InputError(
        f"not a conversation: found {found}; expected a list of messages, or an object with 'messages' or 'input': "
        f"{FORMS_TOLD}"
    )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
