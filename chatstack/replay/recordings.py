"""Reads recorded conversations: JSON, or JSONL line by line, plain or gzipped, in bounded memory.

A conversation is an object with ``messages`` (OpenAI chat-completions messages), and ``id`` and ``model`` where known;
or the bare list of messages. A JSON file holds one conversation or a list of them, a JSONL file one a line. What
cannot be read is reported with file and line, and the rest goes on.
"""

from __future__ import annotations

import gzip
import io
import itertools
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TypeAlias, cast

import msgspec

from chatstack.errors import InputError

LINE_LIMIT_BYTES = 64 * 1024 * 1024
"""The longest line, or JSON document, that is read; decompressed."""
_MOST_VALUES = 3_000_000
"""In one line or document. Small values take twenty times their text once they are read; those of real conversations,
a text each, are far fewer."""

_PIECE_BYTES = 1024 * 1024
_LINES_TRIED = 1_000
_OPENING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|([\[{,])', re.DOTALL)
_OBJECT_LINES = re.compile(rb"\n(\{[^\n]*\}[ \t\r]*)(?=\n|\Z)")
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_LINES = frozenset({".jsonl", ".ndjson"})

WireMessage: TypeAlias = dict[str, object]
Advance: TypeAlias = Callable[[int], None]
"""Told how many bytes of the input files have been read, compressed ones as they are."""


class Recording(msgspec.Struct, frozen=True):
    """One recorded conversation, and where it was read."""

    messages: tuple[WireMessage, ...]
    id: str
    model: str
    file: str
    line: int


class BrokenLine(msgspec.Struct, frozen=True):
    """What could not be read. ``line`` counts from 1."""

    file: str
    line: int
    error: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.error}"


class _Broken(Exception):
    """Why a line is not a conversation."""


def check_readable(files: Sequence[Path]) -> int:
    """The size of all files together in bytes. Raises ``InputError`` for the first that is no readable file."""
    total = 0
    for path in files:
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise InputError(f"{path}: not a file")
            path.open("rb").close()
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
        total += status.st_size
    return total


def read_recordings(
    files: Sequence[Path], *, advance: Advance | None = None, limit_bytes: int = LINE_LIMIT_BYTES
) -> Iterator[Recording | BrokenLine]:
    """Every conversation of the files in order, and every line that holds none."""
    behind = 0
    for path in files:
        with path.open("rb") as raw, _unzipped(raw) as opened:
            for item in _read(opened, path, limit_bytes):
                if advance is not None:
                    advance(behind + raw.tell())
                yield item
            behind += os.fstat(raw.fileno()).st_size
    if advance is not None:
        advance(behind)


def _unzipped(raw: IO[bytes]) -> IO[bytes]:
    zipped = raw.read(len(_GZIP)) == _GZIP
    raw.seek(0)
    return cast("IO[bytes]", gzip.open(raw, "rb")) if zipped else raw


def _read(opened: IO[bytes], path: Path, limit_bytes: int) -> Iterator[Recording | BrokenLine]:
    file = str(path)
    suffixes = {suffix.lower() for suffix in path.suffixes[-2:]}
    number, empty = 0, True
    try:
        for number, line in _lines(opened, limit_bytes):
            if line is not None and not line.strip():
                continue
            if empty and line is not None and not suffixes & _LINES and not _is_whole(line):
                yield from _document(_rest(line, opened, limit_bytes), file, number, limit_bytes)
                return
            empty = False
            yield from _conversations(line, file, number, limit_bytes)
    except (OSError, EOFError, zlib.error) as error:
        yield BrokenLine(file, number + 1, f"reading stopped here: {_one_line(error)}")
        return
    if empty:
        yield BrokenLine(file, 1, "the file holds nothing")


def _rest(line: bytes, opened: IO[bytes], limit_bytes: int) -> io.BytesIO:
    """That line and all that follows, read no further than just over the limit."""
    document = io.BytesIO()
    document.write(line)
    while document.tell() <= limit_bytes and (piece := opened.read(_PIECE_BYTES)):
        document.write(piece)
    return document


def _document(document: io.BytesIO, file: str, number: int, limit_bytes: int) -> Iterator[Recording | BrokenLine]:
    """One JSON value over many lines; or, after all, lines of which the first is broken."""
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
    """Whether a line behind the first is an object by itself. The lines are looked at in place, and not all of them:
    a document can be made of millions, and a list of them would take twenty times its own memory."""
    candidates = itertools.islice(_OBJECT_LINES.finditer(text), _LINES_TRIED)
    return any(_is_whole(each.group(1)) for each in candidates)


def _lines(opened: IO[bytes], limit_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """The lines with their numbers; None for one that is too long, which is passed over piece by piece."""
    number = 0
    while line := opened.readline(limit_bytes + 1):
        number += 1
        if number == 1:
            line = line.removeprefix(_BOM)
        if len(line) <= limit_bytes:
            yield number, line
            continue
        del line
        while (piece := opened.readline(_PIECE_BYTES)) and not piece.endswith(b"\n"):
            pass
        yield number, None


def _is_whole(text: bytes) -> bool:
    """Whether it is a JSON value by itself."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _has_too_many_values(text: bytes) -> bool:
    """By what opens a value or parts it from the next, outside strings; looked at closely only where it might be."""
    if sum(map(text.count, (b",", b"[", b"{"))) <= _MOST_VALUES:
        return False
    opening = (each for each in _OPENING.finditer(text) if each.group(1))
    return next(itertools.islice(opening, _MOST_VALUES, None), None) is not None


def _conversations(line: bytes | None, file: str, number: int, limit_bytes: int) -> Iterator[Recording | BrokenLine]:
    """What a line, or a whole document, holds."""
    if line is None:
        yield BrokenLine(file, number, f"longer than {limit_bytes:,} bytes")
        return
    if _has_too_many_values(line):
        yield BrokenLine(file, number, f"holds more than {_MOST_VALUES:,} values")
        return
    try:
        value: object = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        yield BrokenLine(file, number, f"not valid JSON: {_one_line(error)}")
        return
    for position, each in enumerate(_listed(value)):
        try:
            yield _recording(each, file, number, position)
        except _Broken as error:
            yield BrokenLine(file, number, str(error))


def _listed(value: object) -> list[object]:
    """A list of conversations, from that list, from one conversation, or from one that is a bare list of messages."""
    if isinstance(value, list):
        items = cast("list[object]", value)
        if not (items and isinstance(items[0], dict) and "role" in items[0]):
            return items
    return [value]


def _recording(value: object, file: str, line: int, position: int) -> Recording:
    known: dict[str, object] = {}
    messages = value
    if isinstance(value, dict):
        known = cast("dict[str, object]", value)
        if "messages" not in known:
            raise _Broken("not a conversation: it has no 'messages'")
        messages = known["messages"]
    if not isinstance(messages, list):
        raise _Broken(f"not a conversation: expected a list of messages, got {_kind(messages)}")
    checked: list[WireMessage] = []
    for index, message in enumerate(cast("list[object]", messages)):
        if not isinstance(message, dict):
            raise _Broken(f"messages[{index}]: expected an object, got {_kind(message)}")
        fields = cast("WireMessage", message)
        if not isinstance(fields.get("role"), str):
            raise _Broken(f"messages[{index}].role: expected text, got {_kind(fields.get('role'))}")
        checked.append(fields)
    if not checked:
        raise _Broken("the conversation has no messages")
    called, model = known.get("id"), known.get("model")
    return Recording(
        tuple(checked),
        str(called) if isinstance(called, (str, int)) else f"{Path(file).name}:{line}:{position}",
        model if isinstance(model, str) else "",
        file,
        line,
    )


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
