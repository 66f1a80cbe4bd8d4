"""Request logs: each line holds all messages so far, so one line that is the beginning of another is the same
conversation, and only the longest is replayed.

A line is known by digests of its beginnings. Messages are compared softly, as the answer of one line comes back in the
next by way of the caller: white space folded, arguments as JSON values, without reasoning and what is for one wire
alone. Neither model nor tools count; instructions do. Lines may come in any order, from any file.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from chatstack.errors import InputError
from chatstack.values.messages import Message
from chatstack.values.parts import Part, ProviderItem, Reasoning, Text, ToolCall, ToolResult
from chatstack.workbench.replay.reading.forms import Conversation, conversation_of
from chatstack.workbench.replay.reading.recordings import Advance, BrokenLine, Recording, read_recordings
from chatstack.workbench.replay.reading.sources import Source

_DIGEST_BYTES = 8


class JoinedRecordings:
    """The recordings of some sources, less those that are the beginning of another. They can be read again and again;
    the first time, all are read once more before."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.size_bytes = sum(source.size_bytes for source in sources)
        self._joined: frozenset[int] | None = None

    @property
    def joined(self) -> int:
        """How many are left out, once they have been read."""
        return len(self._joined or ())

    def read(self, *, advance: Advance | None = None) -> Iterator[Recording | BrokenLine]:
        """Yield the others in order, and every line that holds none. ``advance`` hears of both passes as of one."""
        joined = self._joined
        if joined is None:
            first = advance and partial(_first_half, advance)
            joined = self._joined = beginnings(read_recordings(self.sources, advance=first))
            advance = advance and partial(_second_half, advance, self.size_bytes)
        items = read_recordings(self.sources, advance=advance)
        yield from (item for number, item in enumerate(items, 1) if number not in joined)


def _first_half(advance: Advance, position: int) -> None:
    advance(position // 2)


def _second_half(advance: Advance, size_bytes: int, position: int) -> None:
    advance(size_bytes - (size_bytes - position) // 2)


def beginnings(items: Iterable[Recording | BrokenLine]) -> frozenset[int]:
    """Return the numbers, from 1, of the items that are the beginning of another, or repeat an earlier one.

    Holds eight bytes for each message that is read, and about a hundred for each line. What cannot be read as a
    conversation is the beginning of none.
    """
    whole: dict[int, int] = {}
    shorter_ones = array("Q")
    joined: set[int] = set()
    for number, item in enumerate(items, 1):
        if isinstance(item, BrokenLine):
            continue
        try:
            *shorter, last = _links(conversation_of(item))
        except InputError:
            continue
        shorter_ones.extend(shorter)
        if whole.setdefault(last, number) != number:
            joined.add(number)
    joined.update(whole[link] for link in shorter_ones if link in whole)
    return frozenset(joined)


def _links(conversation: Conversation) -> Iterator[int]:
    """Yield a digest of the instructions, then one of each beginning, the whole last. Messages that say nothing, such
    as those of reasoning alone, are passed over: not every caller sends them back."""
    chain = hashlib.blake2b(_folded(conversation.options.instructions), digest_size=_DIGEST_BYTES)
    yield int.from_bytes(chain.digest())
    for message in conversation.messages:
        told = _told(message)
        if told:
            chain.update(told)
            yield int.from_bytes(chain.digest())


def _told(message: Message) -> bytes:
    """Return what the message says as a JSON list, by which a chain of them is not ambiguous; b"" for nothing."""
    parts = [told for part in message.parts if (told := _told_part(part))]
    return json.dumps([message.role, parts]).encode() if parts else b""


def _told_part(part: Part) -> object:
    if isinstance(part, Text):
        return " ".join(part.text.split())
    if isinstance(part, ToolCall):
        return [part.id, part.name, _as_json(part.arguments)]
    if isinstance(part, ToolResult):
        output = (Text(part.output),) if isinstance(part.output, str) else part.output
        return [part.call_id, list(map(_told_part, output))]
    if isinstance(part, Reasoning):
        return None
    if isinstance(part, ProviderItem):
        return [part.provider, part.json]
    return [getattr(part, name) for name in part.__struct_fields__ if name != "extra_json"]


def _as_json(text: str) -> object:
    """The value of JSON text, whichever way it is written; the text where it is none."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _folded(text: str) -> bytes:
    return json.dumps(" ".join(text.split())).encode()
