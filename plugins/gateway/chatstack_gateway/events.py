"""The copy of an answer: its bytes decoded, split into events, and read, while the caller gets them as they came."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator

import msgspec

_END_OF_CHAT = b"[DONE]"


class EventSplitter:
    """Splits server-sent events, in whatever pieces they come, and yields the data of each."""

    def __init__(self) -> None:
        self.is_done = False
        """True once the mark has come that ends a stream of chat completions."""
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the data of each event that is whole now."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                data, self._data = b"\n".join(self._data), []
                if data == _END_OF_CHAT:
                    self.is_done = True
                else:
                    yield data

    def end(self) -> Iterator[bytes]:
        """Yield the event that was not ended by an empty line."""
        yield from self.feed(b"\n\n")


class Inflater:
    """Undoes the encoding of an answer. Raises ``ValueError`` for one that is not known, and for broken data."""

    def __init__(self, encoding: str) -> None:
        named = encoding.strip().lower()
        if named not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise ValueError("an encoding that is not known")
        self._inflate = None if named in ("", "identity") else zlib.decompressobj(wbits=47)

    def feed(self, chunk: bytes) -> bytes:
        """Return what that piece holds."""
        if self._inflate is None:
            return chunk
        try:
            return self._inflate.decompress(chunk)
        except zlib.error:
            raise ValueError("the compressed answer is broken") from None


def decoded(data: bytes) -> object:
    """Return the JSON value in an event's data. Raises ``ValueError``."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        try:
            return json.loads(data)  # takes lone surrogates, which msgspec refuses
        except RecursionError:
            raise ValueError("nested too deeply") from None
