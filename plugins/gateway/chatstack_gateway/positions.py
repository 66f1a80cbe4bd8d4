"""A scan of JSON text that keeps the position of each value, and edits that leave all other text as it is.

    body = scan('{"model": "m", "messages": []}')
    body.fields["model"].span                   # where its text begins and ends
    patched(body.text, body.fields["model"], "m", "n")

Objects with a name twice, and what is no JSON by RFC 8259 (NaN), cannot be edited without choosing what they mean:
``UneditableError``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final, NamedTuple, cast

_SPACE = re.compile(r"[ \t\n\r]*")
_ABSENT: Final = object()


class UneditableError(Exception):
    """A request that cannot be edited in place; it goes on as it came. The text quotes nothing."""


class Spot(NamedTuple):
    """A value, and where its text begins and ends."""

    start: int
    end: int
    value: object


class Member(NamedTuple):
    """A member of an object: where its name begins, and its value."""

    start: int
    spot: Spot


class Body(NamedTuple):
    """The text of a request, the object that it is, and the places of its members."""

    text: str
    value: dict[str, object]
    fields: dict[str, Spot]


def scan(text: str) -> Body:
    """Return the JSON object in that text. Raises ``UneditableError``."""
    start = _after_space(text, 0)
    members, end = _members(text, start)
    if _after_space(text, end) != len(text):
        raise UneditableError("something follows the object")
    return Body(text, {name: each.spot.value for name, each in members.items()}, _spots(members))


def members(text: str, spot: Spot) -> dict[str, Member]:
    """Return the members of the object at that place."""
    return _members(text, spot.start)[0]


def elements(text: str, spot: Spot) -> list[Spot]:
    """Return the elements of the list at that place."""
    found: list[Spot] = []
    at = _after_space(text, spot.start + 1)
    while text[at] != "]":
        found.append(_value(text, at))
        at = _after_space(text, found[-1].end)
        if text[at] == ",":
            at = _after_space(text, at + 1)
    return found


def patched(text: str, spot: Spot, before: object, after: object, /) -> str:
    """Return the text of the value at that place with the change from ``before`` to ``after`` made in it.

    ``before`` may spell the value in another way than the text does; what did not change keeps its text.
    """
    if alike(before, after):
        return text[spot.start : spot.end]
    value = spot.value
    if all(isinstance(each, dict) for each in (value, before, after)):
        return _patched_object(text, spot, cast("Mapping[str, object]", before), cast("Mapping[str, object]", after))
    if all(isinstance(each, list) for each in (value, before, after)):
        old, new = cast("list[object]", before), cast("list[object]", after)
        if len(cast("list[object]", value)) == len(old) == len(new):
            spots = elements(text, spot)
            changes = [
                (each.start, each.end, patched(text, each, one, other))
                for each, one, other in zip(spots, old, new, strict=True)
                if not alike(one, other)
            ]
            return replaced(text, spot, changes)
    return written(after)


def replaced(text: str, spot: Spot, changes: list[tuple[int, int, str]]) -> str:
    """Return the text at that place with parts of it replaced; the parts are in order, and do not overlap."""
    pieces: list[str] = []
    at = spot.start
    for start, end, instead in changes:
        pieces += (text[at:start], instead)
        at = end
    return "".join((*pieces, text[at : spot.end]))


def alike(one: object, other: object) -> bool:
    """Return True if both are the same JSON value; to Python 1 and True are equal, too."""
    if one != other:
        return False
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True) if one is not other else True


def written(value: object) -> str:
    """Return the JSON text of a value."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _patched_object(text: str, spot: Spot, before: Mapping[str, object], after: Mapping[str, object]) -> str:
    known = members(text, spot)
    dropped = {name for name in known if name in before and name not in after}
    added = [
        f"{written(name)}:{written(value)}"
        for name, value in after.items()
        if name not in known and not alike(before.get(name, _ABSENT), value)
    ]
    changed = {
        name: patched(text, member.spot, before.get(name, _ABSENT), after[name])
        for name, member in known.items()
        if name in after and not alike(before.get(name, _ABSENT), after[name])
    }
    if dropped:  # the commas go with what goes, so the object is put together anew, from the texts of its members
        kept = [
            text[member.start : member.spot.start] + changed.get(name, text[member.spot.start : member.spot.end])
            for name, member in known.items()
            if name not in dropped
        ]
        return "{" + ",".join((*kept, *added)) + "}"
    changes = [(known[name].spot.start, known[name].spot.end, instead) for name, instead in changed.items()]
    if added:
        end = max((each.spot.end for each in known.values()), default=spot.end - 1)
        changes.append((end, end, ("," if known else "") + ",".join(added)))
    return replaced(text, spot, changes)


def _spots(found: Mapping[str, Member]) -> dict[str, Spot]:
    return {name: each.spot for name, each in found.items()}


def _members(text: str, start: int) -> tuple[dict[str, Member], int]:
    """Return the members of the object that begins there, and where it ends."""
    if text[start : start + 1] != "{":
        raise UneditableError("the body is no JSON object")
    found: dict[str, Member] = {}
    at = _after_space(text, start + 1)
    try:
        while text[at] != "}":
            name, colon = _name(text, at)
            if name in found:
                raise UneditableError("a name stands twice in an object")
            spot = _value(text, _after_space(text, colon + 1))
            found[name] = Member(at, spot)
            at = _after_space(text, spot.end)
            if text[at] == ",":
                at = _after_space(text, at + 1)
                if text[at] == "}":
                    raise UneditableError("the body is no JSON")
            elif text[at] != "}":
                raise UneditableError("the body is no JSON")
    except IndexError:
        raise UneditableError("the body is no JSON") from None
    return found, at + 1


def _name(text: str, at: int) -> tuple[str, int]:
    """Return the name that begins there, and where the colon behind it stands."""
    name = _value(text, at)
    colon = _after_space(text, name.end)
    if not isinstance(name.value, str) or text[colon] != ":":
        raise UneditableError("the body is no JSON")
    return name.value, colon


def _value(text: str, at: int) -> Spot:
    try:
        value, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        raise UneditableError("the body is no JSON") from None  # the exception would quote the text
    return Spot(at, end, value)


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise UneditableError("a name stands twice in an object")
    return found


def _no_constant(name: str) -> object:
    raise UneditableError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
