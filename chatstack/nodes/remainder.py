"""The part of a value that a conversion would lose: taken as a difference, and put back where it still fits.

A value is converted plainly, and back; what that round trip loses is the remainder. So no fields have to be listed, and
fields of later versions of a library ride along as well. A remainder is JSON data.

Inside lists, and where a value replaces another one, a remainder names the digest of the plain value that it belongs
to. A message that was changed meanwhile keeps the change: the remainder of the old one is dropped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, TypeAlias, cast

from chatstack.errors import InputError

Json: TypeAlias = Any
"""Any JSON value."""


def remainder(wanted: Json, plain: Json) -> dict[str, Json]:
    """Return the changes that turn ``plain`` into ``wanted``; empty if they are the same."""
    if same(wanted, plain):
        return {}
    named, others_named = as_object(wanted), as_object(plain)
    if named is not None and others_named is not None:
        return _fields(named, others_named)
    items, others = as_list(wanted), as_list(plain)
    if items is not None and others is not None and len(items) == len(others):
        pairs = enumerate(zip(items, others, strict=True))
        return {"at": {str(place): _placed(one, other) for place, (one, other) in pairs if not same(one, other)}}
    return {"is": wanted, "of": digest(plain)}


def completed(plain: Json, rest: Json) -> Json:
    """Return ``plain`` with the remainder applied, where it still fits. A remainder of another form is ignored."""
    known = as_object(rest)
    if not known:
        return plain
    if "of" in known and known["of"] != digest(plain):
        return plain
    if "is" in known:
        return known["is"]
    fields, items = as_object(plain), as_list(plain)
    if fields is not None:
        return _completed_fields(fields, known)
    if items is not None:
        places = as_object(known.get("at")) or {}
        return [completed(each, places.get(str(place))) for place, each in enumerate(items)]
    return plain


def same(one: Json, other: Json) -> bool:
    """Return True if both are equal, and of the same types all through: 1, 1.0 and True are three values."""
    return type(one) is type(other) and one == other and (type(one) in _PLAIN or _written(one) == _written(other))


def digest(value: Json) -> str:
    """Return a short digest of a JSON value."""
    return hashlib.blake2b(_written(value).encode(), digest_size=6).hexdigest()


def json_text(value: Json, where: str) -> str:
    """Return JSON text that decodes to the same value. Raises ``InputError`` naming the place if there is none."""
    with told_at(where, "; convert it with keep_rest=False"):
        text = json.dumps(value, separators=(",", ":"))
        if not same(json.loads(text), value):
            raise InputError(f"{where}: holds what JSON does not give back as it was; convert it with keep_rest=False")
        return text


@contextmanager
def told_at(where: str, remedy: str = "") -> Generator[None]:
    """Raise an ``InputError`` naming the place for what JSON cannot hold: an object, a cycle, too deep a value."""
    try:
        yield
    except InputError:
        raise  # this one names a place inside
    except RecursionError as error:
        raise InputError(f"{where}: lists and objects stand in one another too deep for JSON{remedy}") from error
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: holds what JSON cannot say ({error}){remedy}") from error


def object_in(text: str) -> dict[str, Json]:
    """Return the object that the JSON text holds; an empty one if it holds none."""
    try:
        return as_object(json.loads(text)) or {}
    except (ValueError, RecursionError):
        return {}


def is_deep(value: Json) -> bool:
    """Return True if lists and objects are nested deeper than checkpoints can store."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
        ]
        if not level:
            return False
    return True


_DEEPEST = 100
_PLAIN = (str, int, bool, type(None))


def _written(value: Json) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def as_object(value: object) -> dict[str, Json] | None:
    """Return the value if it is an object, its names taken to be text."""
    return cast("dict[str, Json]", cast("object", value)) if isinstance(value, dict) else None


def as_list(value: object) -> list[Json] | None:
    """Return the value if it is a list."""
    return cast("list[Json]", cast("object", value)) if isinstance(value, list) else None


def _placed(wanted: Json, plain: Json) -> dict[str, Json]:
    """Return the remainder of one item of a list, with the digest of the item that it belongs to."""
    return {**remainder(wanted, plain), "of": digest(plain)}


def _fields(wanted: dict[str, Json], plain: dict[str, Json]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    put = {
        name: value
        for name, value in wanted.items()
        if name not in plain or not (same(value, plain[name]) or _can_be_told_inside(value, plain[name]))
    }
    inside = {
        name: remainder(value, plain[name])
        for name, value in wanted.items()
        if name in plain and name not in put and not same(value, plain[name])
    }
    gone = [name for name in plain if name not in wanted]
    for key, value in (("set", put), ("in", inside), ("drop", gone)):
        if value:
            found[key] = value
    return found


def _can_be_told_inside(one: Json, other: Json) -> bool:
    """Return True if the difference is recorded part by part: for objects and lists, where most of it is the same."""
    return (isinstance(one, dict) and isinstance(other, dict)) or isinstance(one, list) or isinstance(other, list)


def _completed_fields(plain: dict[str, Json], rest: dict[str, Json]) -> dict[str, Json]:
    gone = as_list(rest.get("drop")) or ()
    whole = {name: value for name, value in plain.items() if name not in gone}
    for name, inner in (as_object(rest.get("in")) or {}).items():
        if name in whole:
            whole[name] = completed(whole[name], inner)
    return whole | (as_object(rest.get("set")) or {})
