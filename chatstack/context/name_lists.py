"""Lists of names that an edit leaves in the place of a cleared tool result: their text, written and read here alone.

Without labels a list is one line, ``[cleared] Names in what was left out: setup.py B1234``. With labels each has a line
of its own, which ends with the names that the labelled call or its result held::

    [cleared] Names in what was left out:
    - bash cat setup.py: src/a.py B1234
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from chatstack.context.pairing import as_it_came
from chatstack.values.messages import Message, was_edited
from chatstack.values.parts import Part, ToolResult

_HEADING = " Names in what was left out:"
_ROW = re.compile(r"\n- ([^\n]*): ([^\n]*)")


class Names(msgspec.Struct, frozen=True):
    """Names under one label: a text that leads to the call that held them, or "" for none."""

    names: tuple[str, ...]
    label: str = ""


def list_text(rows: Sequence[Names]) -> str:
    """Return the text of a list, to be appended to a placeholder; "" if it has no names.

    Names hold no white space, and end with no colon. White space in labels is folded: a label stands in one line.
    """
    rows = [row for row in rows if row.names]
    if not any(row.label for row in rows):
        names = [name for row in rows for name in row.names]
        return f"{_HEADING} {' '.join(names)}" if names else ""
    return _HEADING + "".join(f"\n- {' '.join(row.label.split())}: {' '.join(row.names)}" for row in rows)


def without_list(text: str) -> tuple[str, tuple[Names, ...]]:
    """Split a text that ends with a list: what stands before the list, and its rows. Any other text has no rows."""
    rest, heading, names = text.rpartition(_HEADING)
    if not heading:
        return text, ()
    if names.startswith(" ") and "\n" not in names:
        return rest, (Names(tuple(names.split())),)
    rows = [*_ROW.finditer(names)]
    if not rows or "".join(row[0] for row in rows) != names:
        return text, ()
    return rest, tuple(Names(tuple(row[2].split()), row[1]) for row in rows)


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
