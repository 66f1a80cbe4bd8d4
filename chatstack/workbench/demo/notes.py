"""The stand-in's notes about a conversation, and the summaries that it writes from them.

A request for a summary is known by its instructions, which speak of a record and of the line that ends it. The record
is read entry by entry, as any model would have to; nothing is known here that is not in the request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from chatstack.providers.extras import WireObject, object_or_empty

Entries: TypeAlias = Sequence[tuple[str, str]]
"""Pairs of a speaker, as records name it ("user", "result of get_weather"), and the text."""

_ENDS_WITH = re.compile(r"the record ends with the line \[(\S+) end\]")
_MOST_WORDS = re.compile(r"in at most (\d+) words")
_JOINING = frozenset({"de", "do", "da", "of", "the"})
_HEADING = "Cities that the user asked about, with the weather and what I advised to wear:"
_LINE = re.compile(r"^- ([^:\n]+)(?:: (\S+) degrees(?:, ([^;\n]+))?(?:; wear (.+))?)?$", re.MULTILINE)
_SENTENCES = re.compile(r"^(.+?) has (\S+) degrees(?: and (.+?))? today\. I would wear (.+)\.$", re.MULTILINE)


class Note(NamedTuple):
    """The facts known about a city; "" for unknown ones."""

    temperature: str = ""
    sky: str = ""
    advice: str = ""

    def merged(self, later: Note) -> Note:
        """Return the note updated by a later one."""
        return Note(*(new or old for old, new in zip(self, later, strict=True)))


def record_in(instructions: str, last_message: str) -> Entries | None:
    """Return the entries of the record to summarize; None if the request asks for something else."""
    found = _ENDS_WITH.search(instructions)
    if found is None or not last_message.endswith(f"[{found[1]} end]"):
        return None
    pieces = re.split(rf"^\[{re.escape(found[1])} (.+)\]$", last_message, flags=re.MULTILINE)[1:-2]
    return [(who, text.strip("\n")) for who, text in zip(pieces[::2], pieces[1::2], strict=True)]


def summary_of(record: Entries, instructions: str) -> str:
    """Return a line for each city of a record. Over the allowed words, the lines of the oldest cities are shortened."""
    found = _MOST_WORDS.search(instructions)
    most = int(found[1]) if found is not None else 1_000
    notes = notes_of(record)
    lines = {city: _line(city, note) for city, note in notes.items()}
    for kept in (2, 1):  # without the advice, then with the temperature alone
        for city, note in notes.items():
            if len(" ".join([_HEADING, *lines.values()]).split()) <= most:
                break
            lines[city] = _line(city, Note(*note[:kept]))
    return "\n".join([_HEADING, *lines.values()])


def notes_of(entries: Iterable[tuple[str, str]]) -> dict[str, Note]:
    """Return the notes on each city, in the order in which they came up."""
    notes: dict[str, Note] = {}
    city = ""

    def note(of: str, found: Note) -> None:
        notes[of] = notes.get(of, Note()).merged(found)

    for who, text in entries:
        if who.startswith("user"):
            city = city_in(text)
            if city:
                note(city, Note())
        elif who.startswith("result of "):
            told = _plain(text)
            city = told.get("city", city)
            if city:
                note(city, Note(told.get("temperature", ""), told.get("sky", ""), told.get("clothing_advice", "")))
        elif who in ("assistant", "summary so far"):
            for pattern in (_LINE, _SENTENCES):
                for of, *found in pattern.findall(text):
                    note(of, Note(*found))
    return notes


def city_in(text: str) -> str:
    """Return the name that follows "in" or "for", its words capitalized; "" if there is none."""
    words = text.replace(",", " , ").replace("?", " ? ").replace(".", " . ").split()
    for position, word in enumerate(words):
        if word not in ("in", "for"):
            continue
        name: list[str] = []
        for each in words[position + 1 :]:
            if not (each[0].isupper() or (name and each in _JOINING)):
                break
            name.append(each)
        if name:
            return " ".join(name)
    return ""


def _line(city: str, note: Note) -> str:
    if not note.temperature:
        return f"- {city}"
    sky, advice = note.sky and f", {note.sky}", note.advice and f"; wear {note.advice}"
    return f"- {city}: {note.temperature} degrees{sky}{advice}"


def object_in(text: str) -> WireObject:
    """Return the JSON object in a text; an empty one if there is none."""
    try:
        return object_or_empty(json.loads(text))
    except ValueError:
        return {}


def _plain(text: str) -> dict[str, str]:
    """Return the plain values of a JSON object, each as one line of text: no tool may write lines of the summary."""
    fields = object_in(text).items()
    return {name: " ".join(str(value).split()) for name, value in fields if isinstance(value, (str, int, float))}
