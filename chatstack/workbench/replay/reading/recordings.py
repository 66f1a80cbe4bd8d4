"""Reads recorded conversations: JSON, or JSONL line by line, plain or gzipped, in bounded memory.

A conversation is the bare list of messages or items, in one of the forms that ``signs`` tells apart; an object like the
body of the request, with ``messages`` or ``input``, and ``id``, ``model``, ``tools``, ``system``, ``instructions``
where known; or a row that logs a request beside its response (``exchanges``). A JSON file holds one conversation or a
list of them, a JSONL file one a line. What cannot be read is reported with file and line, and the rest goes on.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TypeAlias, cast

import msgspec

from chatstack.errors import InputError
from chatstack.providers.converters import Form
from chatstack.providers.extras import WireObject
from chatstack.workbench.replay.reading.exchanges import unwrapped
from chatstack.workbench.replay.reading.signs import FORMS_TOLD, form_of, is_item, kind_of
from chatstack.workbench.replay.reading.sources import Source

LINE_LIMIT_BYTES = 64 * 1024 * 1024
"""The longest line, or JSON document, that is read, in bytes after decompression."""
_MOST_VALUES = 3_000_000
"""Maximum number of values in one line or document.

Small values take twenty times their text once they are decoded; those of real conversations, a text each, are far
fewer.
"""

_PIECE_BYTES = 1024 * 1024
_LINES_TRIED = 1_000
_OPENING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|([\[{,])', re.DOTALL)
_OBJECT_LINES = re.compile(rb"\n(\{[^\n]*\}[ \t\r]*)(?=\n|\Z)")
_GZIP = b"\x1f\x8b"
_HALF = b"\\ud"
"""Beginning of an escaped surrogate, lone or one of a pair."""
_BOM = b"\xef\xbb\xbf"
_LINES = frozenset({".jsonl", ".ndjson"})

_MOST_BLANK = 100_000
"""Maximum number of empty lines in a row: more is no recording, and a small file can unpack to billions."""
_MOST_BROKEN = 100_000
"""Maximum number of lines in a row that hold no conversation, for the same reason."""
_MOST_SKIPPED_BYTES = 4 * LINE_LIMIT_BYTES
"""Maximum number of bytes of one file in lines that are too long to be read."""
_MOST_RATIO = 250
_ANY_RATIO_BYTES = 4 * LINE_LIMIT_BYTES
"""Decompressed bytes from which the compression ratio is limited: that of recordings is some tens."""
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
    sources: Sequence[Source], *, advance: Advance | None = None, limit_bytes: int = LINE_LIMIT_BYTES
) -> Iterator[Recording | BrokenLine]:
    """Yield every conversation of the sources in order, and every line that holds none."""
    behind = 0
    for source in sources:
        try:
            raw = source.open()
        except OSError as error:  # the file was there when the sources were listed
            yield BrokenLine(source.name, 1, f"cannot be read: {error.strerror or error}")
            continue
        with raw, _unzipped(raw) as opened:
            broken = 0
            for item in _read(opened, source, limit_bytes):
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


def _unzipped(raw: IO[bytes]) -> IO[bytes]:
    zipped = raw.read(len(_GZIP)) == _GZIP
    raw.seek(0)
    return cast("IO[bytes]", _Unpacked(fileobj=raw, mode="rb")) if zipped else raw


class _Unpacked(gzip.GzipFile):
    """A gzip file with a limited compression ratio. Raises ``EOFError`` beyond it."""

    def read(self, size: int | None = -1) -> bytes:
        return self._checked(super().read(size))

    def readline(self, size: int | None = -1) -> bytes:
        return self._checked(super().readline(-1 if size is None else size))

    def _checked(self, piece: bytes) -> bytes:
        unpacked, packed = self.tell(), cast("IO[bytes]", self.fileobj).tell()
        if unpacked > max(_ANY_RATIO_BYTES, packed * _MOST_RATIO):
            raise EOFError(f"it unpacks to more than {_MOST_RATIO} times its size")
        return piece


def _read(opened: IO[bytes], source: Source, limit_bytes: int) -> Iterator[Recording | BrokenLine]:
    file = source.name
    number, empty = 0, True
    try:
        blank = 0
        for number, line in _lines(opened, limit_bytes):
            if line is not None and not line.strip():
                blank += 1
                if blank > _MOST_BLANK:
                    yield BrokenLine(file, number, f"reading stopped here: more than {_MOST_BLANK:,} empty lines")
                    return
                continue
            blank = 0
            if empty and line is not None and not _LINES.intersection(source.suffixes) and not _is_whole(line):
                yield from _document(_rest(line, opened, limit_bytes), file, number, limit_bytes)
                return
            empty = False
            yield from _conversations(line, file, number, limit_bytes)
    except (OSError, EOFError, zlib.error) as error:
        yield BrokenLine(file, number + 1, f"reading stopped here: {_one_line(error)}")
        return
    if empty:
        yield BrokenLine(file, 1, "holds nothing")


def _rest(line: bytes, opened: IO[bytes], limit_bytes: int) -> io.BytesIO:
    """Return that line and all that follows, reading only just over the limit."""
    document = io.BytesIO()
    document.write(line)
    while document.tell() <= limit_bytes and (piece := opened.read(_PIECE_BYTES)):
        document.write(piece)
    return document


def _document(document: io.BytesIO, file: str, number: int, limit_bytes: int) -> Iterator[Recording | BrokenLine]:
    """Yield one JSON value over many lines; or, if the first line is broken, the values of the lines."""
    if document.tell() > limit_bytes:
        yield from _conversations(None, file, number, limit_bytes)
        return
    text = document.getvalue()
    if _is_whole(text) or not _has_whole_line(text):
        yield from _conversations(text, file, number, limit_bytes)
        return
    document.seek(0)
    for place, line in enumerate(document, number):
        if line.strip():
            yield from _conversations(line, file, place, limit_bytes)


def _has_whole_line(text: bytes) -> bool:
    """Return True if a line behind the first is an object by itself.

    The lines are looked at in place, and not all of them: a document can have millions, and a list of them would take
    twenty times its own memory.
    """
    candidates = itertools.islice(_OBJECT_LINES.finditer(text), _LINES_TRIED)
    return any(_is_whole(each.group(1)) for each in candidates)


def _lines(opened: IO[bytes], limit_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield the lines with their numbers; None for one that is too long, which is skipped piece by piece.

    Raises ``EOFError`` if more would be skipped than any recording has.
    """
    number = skipped = 0
    while line := opened.readline(limit_bytes + 1):
        number += 1
        if number == 1:
            line = line.removeprefix(_BOM)
        if len(line) <= limit_bytes:
            yield number, line
            continue
        del line
        while (piece := opened.readline(_PIECE_BYTES)) and not piece.endswith(b"\n"):
            skipped += len(piece)
            if skipped > _MOST_SKIPPED_BYTES:
                raise EOFError(f"more than {_MOST_SKIPPED_BYTES:,} bytes are in lines that are too long")
        yield number, None


def _is_whole(text: bytes) -> bool:
    """Return True if the text is one JSON value."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _has_too_many_values(text: bytes) -> bool:
    """Return True if there are too many values. Only text with many commas and brackets is scanned for strings."""
    if sum(map(text.count, (b",", b"[", b"{"))) <= _MOST_VALUES:
        return False
    opening = (each for each in _OPENING.finditer(text) if each.group(1))
    return next(itertools.islice(opening, _MOST_VALUES, None), None) is not None


def _conversations(line: bytes | None, file: str, number: int, limit_bytes: int) -> Iterator[Recording | BrokenLine]:
    """Yield the conversations of a line, or of a whole document."""
    if line is None:
        yield BrokenLine(file, number, f"longer than {limit_bytes:,} bytes")
        return
    if _has_too_many_values(line):
        yield BrokenLine(file, number, f"holds more than {_MOST_VALUES:,} values")
        return
    try:
        value = _decoded(line)
    except (ValueError, RecursionError) as error:
        yield BrokenLine(file, number, f"not valid JSON: {_one_line(error)}")
        return
    conversations = _listed(value)
    if not conversations:
        yield BrokenLine(file, number, "an empty list, where a conversation is expected")
    for position, each in enumerate(conversations):
        nth = position + 1 if len(conversations) > 1 else 0
        try:
            yield _recording(each, file, number, nth, len(line) // len(conversations))
        except InputError as error:
            yield _broken(file, number, nth, error)


def _broken(file: str, line: int, nth: int, error: BaseException) -> BrokenLine:
    return BrokenLine(file, line, f"conversation {nth}: {error}" if nth else str(error))


def _decoded(line: bytes) -> object:
    """Return the JSON value. Lone surrogates, as in a text that was cut within an emoji, are left in it."""
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        if _HALF not in line.lower():
            raise
        return json.loads(line, parse_constant=_refuse)


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


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
    )


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
