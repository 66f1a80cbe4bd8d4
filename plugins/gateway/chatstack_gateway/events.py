"""The copy of an answer: its bytes decoded, split into events, and read, while the caller gets them as they came."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator

import msgspec

_END_OF_CHAT = b"[DONE]"
_MOST_EVENT_BYTES = 2**26
_MOST_PLAIN_BYTES = 2**28


class EventSplitter:
    """Splits server-sent events, in whatever pieces they come, and yields the data of each. Raises ``ValueError`` for
    an event that is larger than any answer. ``keeps_raw`` is for whoever wants the bytes, too."""

    def __init__(self, *, keeps_raw: bool = False) -> None:
        self._raw: list[bytes] | None = [] if keeps_raw else None
        self.is_done = False
        """True once the mark has come that ends a stream of chat completions."""
        self._rest: list[bytes] = []
        self._data: list[bytes] = []
        self._held = 0
        """Bytes of the event that is not whole yet."""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the data of each event that is whole now."""
        self._held += len(chunk)
        if self._held > _MOST_EVENT_BYTES:
            raise ValueError("an event of the answer is too large")
        head, ends_line, tail = chunk.rpartition(b"\n")
        if not ends_line:  # joined only once its end is there: a long line may come in many pieces
            self._rest.append(chunk)
            return
        lines = b"".join((*self._rest, head)).split(b"\n")
        self._rest = [tail]
        for line in lines:
            if self._raw is not None:
                self._raw += (line, b"\n")
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line:
                self._held = 0
                if not self._data:
                    continue
                data, self._data = b"\n".join(self._data), []
                if data == _END_OF_CHAT:
                    self.is_done = True
                else:
                    yield data

    def end(self) -> Iterator[bytes]:
        """Yield the event that was not ended by an empty line."""
        if self._data or any(self._rest):
            yield from self.feed(b"\n\n")

    def taken(self) -> bytes:
        """Return the bytes up to the end of the event that was yielded last, from where the last call ended."""
        raw, self._raw = b"".join(self._raw or ()), []
        return raw


def is_readable(encoding: str) -> bool:
    """Return True for an encoding that a copy can be read in."""
    return encoding.strip().lower() in ("", "identity", "gzip", "x-gzip", "deflate")


class Inflater:
    """Undoes the encoding of an answer. Raises ``ValueError`` for one that is not known, for broken data, and for data
    that becomes larger than any answer, as a few kilobytes of a compressed one can."""

    def __init__(self, encoding: str) -> None:
        if not is_readable(encoding):
            raise ValueError("an encoding that is not known")
        is_plain = encoding.strip().lower() in ("", "identity")
        self._inflate = None if is_plain else zlib.decompressobj(wbits=47)
        self._left = _MOST_PLAIN_BYTES

    def feed(self, chunk: bytes) -> bytes:
        """Return what that piece holds."""
        if self._inflate is None:
            return chunk
        try:
            plain = self._inflate.decompress(chunk, self._left + 1)
        except zlib.error:
            raise ValueError("the compressed answer is broken") from None
        self._left -= len(plain)
        if self._left < 0:
            raise ValueError("the compressed answer is too large")
        return plain


def decoded(data: bytes) -> object:
    """Return the JSON value in an event's data. Raises ``ValueError``."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        try:
            return json.loads(data)  # takes lone surrogates, which msgspec refuses
        except RecursionError:
            raise ValueError("nested too deeply") from None
