"""Joining of request logs: each line holds all messages so far, so only the longest of a conversation is replayed.

A line that is the beginning of another one is the same conversation. It is found by a prefix hash. Messages are
compared loosely, because the answer of one line comes back in the next through the caller: white space is folded,
arguments are compared as JSON values, reasoning and data for one wire alone are ignored. Neither model nor tools count;
instructions do. Lines may come in any order, from any file. Usage that was recorded with a line goes to its answer in
the conversation that it is joined with.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from chatstack.errors import InputError
from chatstack.values.messages import Message
from chatstack.values.parts import Part, ProviderItem, Reasoning, Text, ToolCall, ToolResult
from chatstack.workbench.replay.reading.contexts import Notes
from chatstack.workbench.replay.reading.forms import Conversation, conversation_of
from chatstack.workbench.replay.reading.recordings import Advance, BrokenLine, Recording, read_recordings
from chatstack.workbench.replay.reading.sources import Source
from chatstack.workbench.replay.reading.usages import CallIndex

_DIGEST_BYTES = 8


class JoinedRecordings:
    """The recordings of some sources, without those that are the beginning of another.

    They can be read again and again; the first time takes an additional pass over all.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.size_bytes = sum(source.size_bytes for source in sources)
        self.notes = Notes()
        """Kinds of data that were left out of the recordings, once all have been read."""
        self._joined: frozenset[int] | None = None
        self._calls = CallIndex()

    @property
    def joined(self) -> int:
        """Number of recordings left out, once all have been read."""
        return len(self._joined or ())

    def read(self, *, advance: Advance | None = None) -> Iterator[Recording | BrokenLine]:
        """Yield the others in order, and every line without a recording. ``advance`` counts both passes as one."""
        joined = self._joined
        if joined is None:
            first = advance and partial(_first_half, advance)
            notes = Notes()
            items = read_recordings(self.sources, advance=first, notes=notes)
            joined = self._joined = beginnings(items, self._calls)
            self.notes = notes
            advance = advance and partial(_second_half, advance, self.size_bytes)
        items = read_recordings(self.sources, advance=advance)
        for number, item in enumerate(items, 1):
            if number not in joined:
                yield self._with_calls(number, item, joined)
        equal, tokens = self._calls.equal_lines()
        if equal:
            self.notes[f"calls of lines that equal others, {tokens:,} tokens of recorded input"] = equal

    def _with_calls(self, number: int, item: Recording | BrokenLine, joined: frozenset[int]) -> Recording | BrokenLine:
        """Return a recording with the usage of those that are joined with it."""
        if isinstance(item, BrokenLine) or not (self._calls or joined):
            return item
        try:
            conversation = conversation_of(item)
        except InputError:
            return item
        answers = _answers(conversation, list(_links(conversation)))
        calls = self._calls.of(number, item.calls, answers, joined)
        return item if calls is None else replace(item, calls=calls)


def _first_half(advance: Advance, position: int) -> None:
    advance(position // 2)


def _second_half(advance: Advance, size_bytes: int, position: int) -> None:
    advance(size_bytes - (size_bytes - position) // 2)


def beginnings(items: Iterable[Recording | BrokenLine], calls: CallIndex | None = None) -> frozenset[int]:
    """Return the numbers, from 1, of the items that are the beginning of another, or repeat an earlier one.

    Holds eight bytes for each message that is read, and some hundreds for each line. What cannot be read as a
    conversation is the beginning of none. ``calls`` is told of the recorded calls.
    """
    whole: dict[int, int] = {}
    shorter_ones = array("Q")
    joined: set[int] = set()
    for number, item in enumerate(items, 1):
        if isinstance(item, BrokenLine):
            continue
        try:
            conversation = conversation_of(item)
        except InputError:
            continue
        links = list(_links(conversation))
        *shorter, last = [link for _, link in links]
        if calls is not None:
            _note_calls(calls, number, item, conversation, links)
        shorter_ones.extend(shorter)
        if whole.setdefault(last, number) != number:
            joined.add(number)
    joined.update(whole[link] for link in shorter_ones if link in whole)
    return frozenset(joined)


def _note_calls(
    calls: CallIndex, number: int, recording: Recording, conversation: Conversation, links: Sequence[tuple[int, int]]
) -> None:
    answers = _answers(conversation, links)
    if recording.calls is not None:
        calls.note(number, recording.calls, [link for _, link in answers])
        return
    is_answered = bool(conversation.messages) and conversation.messages[-1].role == "assistant"
    _, request = links[-1]
    if is_answered:
        if recording.last_call is None:
            return  # a whole conversation, which tells nothing of requests
        request, answer = answers.pop()
        calls.note_line(number, recording.last_call, answer)
    calls.note_request(request, answers[-1] if answers else None, is_answered=is_answered)


def _answers(conversation: Conversation, links: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the prefix hashes before each assistant message, and up to it."""
    by_position = dict(links)
    reached, found = by_position[-1], list[tuple[int, int]]()
    for position, message in enumerate(conversation.messages):
        before, reached = reached, by_position.get(position, reached)
        if message.role == "assistant":
            found.append((before, reached))
    return found


def _links(conversation: Conversation) -> Iterator[tuple[int, int]]:
    """Yield prefix hashes, each with the position it goes up to: of the instructions (-1), then of each beginning, the
    whole conversation last.

    Messages without content, such as those of reasoning alone, are skipped: not every caller sends them back.
    """
    chain = hashlib.blake2b(_folded(conversation.options.instructions), digest_size=_DIGEST_BYTES)
    yield -1, int.from_bytes(chain.digest())
    for position, message in enumerate(conversation.messages):
        told = _told(message)
        if told:
            chain.update(told)
            yield position, int.from_bytes(chain.digest())


def _told(message: Message) -> bytes:
    """Return the content of the message as a JSON list, so that concatenations are unambiguous; b"" for none."""
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
    """Return the value of JSON text, however it is formatted; the text itself if it is no JSON."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _folded(text: str) -> bytes:
    return json.dumps(" ".join(text.split())).encode()
