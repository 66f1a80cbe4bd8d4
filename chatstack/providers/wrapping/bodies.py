"""Bodies on the wire: one patched where it was edited, and the events of a stream. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from typing import cast

from chatstack.providers.extras import WireObject, encoded

_ABSENT = object()
_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")


def patched(given: Mapping[str, object], before: Mapping[str, object], after: Mapping[str, object]) -> WireObject:
    """Return ``given`` with the fields that differ between ``before`` and ``after``, both in our spelling.

    So everything that no layer has edited stays in the caller's spelling, and a prompt cache finds it again.
    """
    names = [*given, *(name for name in after if name not in given)]
    found = {
        name: _value(given.get(name, _ABSENT), before.get(name, _ABSENT), after.get(name, _ABSENT)) for name in names
    }
    return {name: value for name, value in found.items() if value is not _ABSENT}


def _value(given: object, before: object, after: object) -> object:
    if after is before or after == before:
        return given
    if not (isinstance(given, list) and isinstance(before, list) and isinstance(after, list)):
        return after
    old, canonical, new = cast("list[list[object]]", [given, before, after])
    if len(old) != len(canonical):
        return new
    places = {encoded(each): old[at] for at, each in enumerate(canonical)}
    return [places.get(encoded(each), each) for each in new]


async def events_in(chunks: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events as they come, and what follows the last one. Not a byte is lost."""
    rest, searched = bytearray(), 0
    async for chunk in chunks:
        rest += chunk
        # From where the search ended: an event may be megabytes long, and come in thousands of chunks.
        ends = [found.end() for found in _END.finditer(rest, max(0, searched - 3))]
        start = 0
        for end in ends:
            yield bytes(rest[start:end])
            start = end
        del rest[:start]
        searched = len(rest)
    if rest:
        yield bytes(rest)


def object_in(event: bytes) -> WireObject | None:
    """Return the object in an event; None for a comment, or the mark of the end. Raises ``ValueError`` for noise."""
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    data = b"\n".join(lines)
    if not data.strip() or data.startswith(b"[DONE]"):
        return None
    found = json.loads(data)
    return cast("WireObject", found) if isinstance(found, dict) else None


def json_bytes(body: Mapping[str, object]) -> bytes:
    """Return a body as the SDKs write it."""
    return _json(body).encode()


def event_bytes(event: Mapping[str, object], *, named: bool) -> bytes:
    """Return an event as it goes over the wire."""
    head = f"event: {event.get('type')}\n" if named else ""
    return f"{head}data: {_json(event)}\n\n".encode(errors="replace")


def _json(fields: Mapping[str, object]) -> str:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
