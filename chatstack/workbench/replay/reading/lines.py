"""Lines of a recording: plain or gzipped, bounded in length, number and compression ratio."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import re
from collections.abc import Iterator
from typing import IO, cast

import msgspec

LINE_LIMIT_BYTES = 64 * 1024 * 1024
"""The longest line, or JSON document, that is read, in bytes after decompression."""
SESSION_LIMIT_BYTES = 4 * LINE_LIMIT_BYTES
"""The most bytes that are kept of one file whose conversations stand over many lines."""
MOST_VALUES = 3_000_000
"""Maximum number of values in one line or document.

Small values take twenty times their text once they are decoded; those of real conversations, a text each, are far
fewer.
"""
PIECE_BYTES = 1024 * 1024

_OPENING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|([\[{,])', re.DOTALL)
_GZIP = b"\x1f\x8b"
_OTHERS = {
    b"\x28\xb5\x2f\xfd": "compressed by zstd; decompress it, or use gzip",
    b"BZh": "compressed by bzip2; decompress it, or use gzip",
    b"\xfd7zXZ\x00": "compressed by xz; decompress it, or use gzip",
    b"PK\x03\x04": "a zip archive; unpack it, or use gzip",
    b"PAR1": "a Parquet file; write it as JSONL",
}
"""Kinds of files that cannot be read, by the bytes that they begin with, as no JSON does."""
_HALF = b"\\ud"
"""Beginning of an escaped surrogate, lone or one of a pair."""
_BOM = b"\xef\xbb\xbf"
_MOST_SKIPPED_BYTES = 4 * LINE_LIMIT_BYTES
"""Maximum number of bytes of one file in lines that are too long to be read."""
_MOST_RATIO = 250
_ANY_RATIO_BYTES = 4 * LINE_LIMIT_BYTES
"""Decompressed bytes from which the compression ratio is limited: that of recordings is some tens."""


def unzipped(raw: IO[bytes]) -> IO[bytes]:
    """Return the file, decompressed if it is gzip. It raises ``EOFError`` beyond the limit of the ratio."""
    zipped = raw.read(len(_GZIP)) == _GZIP
    raw.seek(0)
    return cast("IO[bytes]", _Unpacked(fileobj=raw, mode="rb")) if zipped else raw


def unreadable(raw: IO[bytes]) -> str:
    """Return what a file is that is neither JSON nor gzip, and what to do about it; "" if that is not known."""
    beginning = raw.read(max(map(len, _OTHERS)))
    raw.seek(0)
    return next((told for magic, told in _OTHERS.items() if beginning.startswith(magic)), "")


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


def lines(opened: IO[bytes], limit_bytes: int) -> Iterator[tuple[int, bytes | None]]:
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
        while (piece := opened.readline(PIECE_BYTES)) and not piece.endswith(b"\n"):
            skipped += len(piece)
            if skipped > _MOST_SKIPPED_BYTES:
                raise EOFError(f"more than {_MOST_SKIPPED_BYTES:,} bytes are in lines that are too long")
        yield number, None


def rest(line: bytes, opened: IO[bytes], limit_bytes: int) -> io.BytesIO:
    """Return that line and all that follows, reading only just over the limit."""
    document = io.BytesIO()
    document.write(line)
    while document.tell() <= limit_bytes and (piece := opened.read(PIECE_BYTES)):
        document.write(piece)
    return document


def is_whole(text: bytes) -> bool:
    """Return True if the text is one JSON value."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def has_too_many_values(text: bytes) -> bool:
    """Return True if there are too many values. Only text with many commas and brackets is scanned for strings."""
    if sum(map(text.count, (b",", b"[", b"{"))) <= MOST_VALUES:
        return False
    opening = (each for each in _OPENING.finditer(text) if each.group(1))
    return next(itertools.islice(opening, MOST_VALUES, None), None) is not None


def decoded(line: bytes) -> object:
    """Return the JSON value. Lone surrogates, as in a text that was cut within an emoji, are left in it."""
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        if _HALF not in line.lower():
            raise
        return json.loads(line, parse_constant=_refuse)


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no JSON")
