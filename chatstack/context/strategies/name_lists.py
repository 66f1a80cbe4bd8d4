"""Lists of names that an edit leaves in the place of a cleared tool result: their text, written and read here alone.

Where there is room, other words stand behind the names, and count as names here. Each label has a line of its own,
which ends with the names that the labelled call or its result held. Names without a label stand in the first line::

    [cleared] Words in what was left out: tomorrow
    - bash cat setup.py: src/a.py B1234
    - bash ls src:
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from chatstack.context.edits.pairing import as_it_came
from chatstack.values.messages import Message, was_edited
from chatstack.values.parts import Part, ToolResult

_HEADING = " Words in what was left out:"
_ROW = re.compile(r"- (.+):((?: [^\s]*[^\s:])*)")


class Names(msgspec.Struct, frozen=True):
    """Names under one label: a text that leads to the call that held them, or "" for none."""

    names: tuple[str, ...]
    label: str = ""


def list_text(rows: Sequence[Names]) -> str:
    """Return the text of a list, to be appended to a placeholder; "" if it is empty.

    Names hold no white space, and end with no colon. White space in labels is folded: a label stands in one line.
    """
    loose = [name for row in rows if not row.label for name in row.names]
    labelled = [f"- {' '.join(row.label.split())}:{_told(row.names)}" for row in rows if row.label]
    return _HEADING + "\n".join([_told(loose), *labelled]) if loose or labelled else ""


def _told(names: Sequence[str]) -> str:
    return "".join([f" {name}" for name in names])


def without_list(text: str) -> tuple[str, tuple[Names, ...]]:
    """Split a text that ends with a list: what stands before the list, and its rows. Any other text has no rows."""
    rest, heading, names = text.rpartition(_HEADING)
    loose, *lines = names.split("\n")
    rows = [_ROW.fullmatch(line) for line in lines]
    if not heading or not names or (loose and not loose.startswith(" ")) or None in rows:
        return text, ()
    found = [Names(tuple(loose.split()))] if loose.strip() else []
    return rest, (*found, *(Names(tuple(row[2].split()), row[1]) for row in rows if row))


def without_lists(message: Message) -> tuple[Message, tuple[Names, ...]]:
    """Return a message without the lists that edits put into it, and their rows.

    A list that was there before any edit is the tool's own text, and stays.
    """
    if not was_edited(message):
        return message, ()
    found: list[Names] = []
    parts = tuple(_without(message, at, part, found) for at, part in enumerate(message.parts))
    return (message.edited(parts=parts), tuple(found)) if found else (message, ())


def _without(message: Message, at: int, part: Part, found: list[Names]) -> Part:
    if not isinstance(part, ToolResult) or not isinstance(part.output, str):
        return part
    rest, rows = without_list(part.output)
    if not rows or part.output[len(rest) :] in as_it_came(message, at).text:
        return part
    found += rows
    return msgspec.structs.replace(part, output=rest)
