"""JSON as small models write it: in a fence, numbers and lists in quotes. Accepted only if the type leaves no doubt."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import inspect

from chatstack.client.json_schemas import types_in

_FENCE = "```"
_WRITTEN_TWICE = re.compile(
    r"Expected `(?:array|object)(?: \| (?:array|object|null))*`, got `str`(?: - at `\$\.([^.\[`]+)`)?"
)
_NUMBER = re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?")


def decoded_as(
    kind: Any,
    text: str,
    *,
    dec_hook: Callable[[Any, Any], Any] | None = None,
    enc_hook: Callable[[Any], Any] | None = None,
) -> Any:
    """Decode a JSON text as a value of that type.

    If it does not fit as it is, a code fence around it is removed, and text is read as the number, boolean or null that
    the type asks for, if the type allows no text; so is the whole text, or a field's, as a list or an object. Raises
    the ``msgspec.DecodeError`` of the plain reading.
    """
    try:
        return msgspec.json.decode(text, type=kind, dec_hook=dec_hook)
    except msgspec.ValidationError as error:
        failure: msgspec.DecodeError = error
    except msgspec.DecodeError:
        inner = unfenced(text)
        if inner is None:
            raise
        text = inner
        try:
            return msgspec.json.decode(text, type=kind, dec_hook=dec_hook)
        except msgspec.DecodeError as error:
            failure = error
    try:
        read = msgspec.json.decode(text, type=kind, strict=False, dec_hook=dec_hook)
        if _leaves_doubt(kind, text, read, enc_hook):
            raise failure
        return read  # as it is: decoded from its own JSON, it could be another value
    except (msgspec.DecodeError, TypeError, ValueError, RecursionError) as error:
        opened = _opened(text, str(error))
        if opened is None:
            raise failure from None
        try:
            return decoded_as(kind, opened, dec_hook=dec_hook, enc_hook=enc_hook)
        except msgspec.DecodeError:
            raise failure from None


def _leaves_doubt(kind: Any, text: str, read: object, enc_hook: Callable[[Any], Any] | None) -> bool:
    """Return True if what was read of a JSON text holds a number that is none, or a time that was a number."""
    given, taken = msgspec.json.decode(text), msgspec.to_builtins(read, enc_hook=enc_hook)
    if _holds_no_number(taken) and any(map(_says_no_number, _values(given))):
        return True
    if not _has_times(kind):
        return False
    named = msgspec.to_builtins(read, enc_hook=enc_hook, str_keys=True)
    return any(_is_time_of_number(each, made) for each, made in _leaves(given, named))


def _opened(text: str, told: str) -> str | None:
    """Return the list or object that a text holds, ``"[1]"``, or an object with the one that a field of it has as text,
    ``{"tags": "[1]"}``; None where that is not what was told."""
    found = _WRITTEN_TWICE.fullmatch(told)
    if found is None:
        return None
    name = found[1]
    try:
        fields = {} if name is None else msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        inner = msgspec.json.decode(text if name is None else fields[name], type=str)
        msgspec.json.decode(inner, type=list[msgspec.Raw] | dict[str, msgspec.Raw])
    except (msgspec.DecodeError, KeyError, RecursionError):  # the second, as a class may say anything
        return None
    return inner if name is None else msgspec.json.encode({**fields, name: msgspec.Raw(inner)}).decode()


def _leaves(given: object, taken: object) -> Iterator[tuple[object, object]]:
    """Yield each value of the JSON beside what was made of it, where its place is still found."""
    if isinstance(given, Mapping) and isinstance(taken, Mapping):
        after = cast("Mapping[str, object]", taken)
        for name, each in cast("Mapping[str, object]", given).items():
            if name in after:
                yield from _leaves(each, after[name])
    elif isinstance(given, list) and isinstance(taken, list | tuple):
        for each, other in zip(cast("list[object]", given), cast("Sequence[object]", taken), strict=False):
            yield from _leaves(each, other)
    else:
        yield given, taken


def _values(plain: object) -> Iterator[object]:
    """Yield the texts and numbers of plain values, keys among them."""
    if isinstance(plain, Mapping):
        for name, each in cast("Mapping[object, object]", plain).items():
            yield name
            yield from _values(each)
    elif isinstance(plain, list | tuple | set | frozenset):
        for each in cast("Iterable[object]", plain):
            yield from _values(each)
    else:
        yield plain


def _holds_no_number(plain: object) -> bool:
    """Return True for plain values with a float that JSON does not have, and that a tool does not expect."""
    return any(isinstance(each, float) and not math.isfinite(each) for each in _values(plain))


def _says_no_number(value: object) -> bool:
    """Return True for "nan" in quotes, or a number that is too large."""
    try:
        return isinstance(value, str) and not math.isfinite(float(value))
    except ValueError:
        return False


def _is_time_of_number(given: object, taken: object) -> bool:
    """Return True if a number has become a time, which leaves doubt: seconds or milliseconds. As JSON, it is text that
    was a number, or a number in quotes."""
    if not isinstance(taken, str) or given == taken:
        return False
    return not isinstance(given, str) or _NUMBER.fullmatch(given.strip()) is not None


@functools.lru_cache(maxsize=256)
def _has_times(kind: Any) -> bool:
    """True for a type with a date and time, or a duration, somewhere in it."""
    return any(isinstance(each, inspect.DateTimeType | inspect.TimeDeltaType) for each in types_in(kind))


def unfenced(text: str) -> str | None:
    """Return the text between the first fence and the last one, ``json`` or unnamed; None without such fences."""
    start, end = text.find(_FENCE), text.rfind(_FENCE)
    if start < 0 or end <= start:
        return None
    name, _, inner = text[start + len(_FENCE) : end].partition("\n")
    return inner if name.strip().lower() in ("", "json") else None
