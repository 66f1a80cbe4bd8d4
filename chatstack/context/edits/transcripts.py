"""Transcripts: messages as readable text, each entry with its speaker."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from chatstack.values.messages import Message
from chatstack.values.parts import File, Image, Part, ProviderItem, Reasoning, Text, ToolCall, ToolResult

_NOT_IN_A_NAME = re.compile(r"[^\w.:-]+")
_LONGEST_NAME = 64


class Entry(NamedTuple):
    """One utterance, call or result: ``who`` is made here and trusted, ``text`` comes from the conversation."""

    who: str
    text: str


def entries_of(messages: Iterable[Message], *, note: str = "", tools: dict[str, str] | None = None) -> Iterator[Entry]:
    """Yield the entries of the messages, in order. Reasoning is left out; pictures and files are named. ``note`` is
    appended to each speaker.

    ``tools`` collects the names of called tools by call id; pass it on to the next part of a conversation.
    """
    tools = {} if tools is None else tools
    for message in messages:
        who = f"{message.role}{note}"
        said: list[str] = []
        for part in message.parts:
            kind = type(part)
            if kind is Reasoning:
                continue
            if kind is not ToolCall and kind is not ToolResult:
                said.append(_shown(part))
                continue
            if any(said):
                yield Entry(who, "\n".join(filter(None, said)))
            said.clear()
            if isinstance(part, ToolCall):
                tools[part.id] = part.name
                yield Entry(f"assistant calls {_name(part.name)}{note}", part.arguments)
            elif isinstance(part, ToolResult):
                what = "error from" if part.is_error else "result of"
                yield Entry(f"{what} {_name(part.name or tools.get(part.call_id, ''))}{note}", _output(part))
        if any(said):
            yield Entry(who, "\n".join(filter(None, said)))


def framed(entries: Sequence[Entry], delimiter: str) -> str:
    """Join the entries to one text. Without knowing the delimiter, no text in it can fake an entry, or end it."""
    lines = [f"[{delimiter} {who}]\n{text}" for who, text in entries]
    return "\n".join([*lines, f"[{delimiter} end]"])


def _shown(part: Part) -> str:
    if isinstance(part, Text):
        return part.text
    if isinstance(part, Image):
        return f"[a picture: {_name(part.media_type) if part.media_type else 'of no stated type'}]"
    if isinstance(part, File):
        named = f"[a file: {_name(part.name or part.media_type)}]"
        return f"{named}\n{part.text}" if part.text else named
    if isinstance(part, ProviderItem):
        return f"[an item that only {_name(part.provider)} can read]"
    return ""


def _output(result: ToolResult) -> str:
    if isinstance(result.output, str):
        return result.output
    return "\n".join(map(_shown, result.output))


def _name(name: str) -> str:
    """Sanitize a name for a speaker line: it may come from anywhere, and must not look like more than a name."""
    return _NOT_IN_A_NAME.sub("_", name)[:_LONGEST_NAME] or "unnamed"
