"""Values of a config: checking them against type hints, and showing them in errors."""

from __future__ import annotations

import re
import reprlib
import sys
import typing
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import PurePath
from typing import Any, TypeAlias, cast

import msgspec

from chatstack.client.hints import as_data, is_plain, kinds, takes_none
from chatstack.client.options import OneOf, one_of
from chatstack.client.wiring import nearest
from chatstack.errors import WiringError
from chatstack.values.surrogates import lone_surrogate_in

LARGEST = 2**63 - 1
"""The largest absolute value of an integer option."""

Config: TypeAlias = Mapping[str, object]

_VALUE_CHARS = 80
"""Maximum length, in characters, of a value shown in an error."""
MESSAGE_CHARS = 400
"""Maximum length, in characters, of a message from a layer, a reader or a plugin quoted in an error."""
_DATA = (bool, int, float, str, type(None))


def converted(
    value: object, hint: object, here: str, *, layer: str = "", parameter: str = "", is_hidden: bool = False
) -> object:
    """Convert the value to a type hint: lists become tuples where it says so; text is not taken for a number.

    Raises ``WiringError`` with the place of the wrong value, also for data where an object is wanted. A value that
    ``is_hidden`` is not quoted.
    """

    def wrong(told: str, place: str = here) -> WiringError:
        return WiringError(f"{place}: {told}", layer=layer, parameter=parameter)

    no_data = f"wants an object that no config can hold, got {kind_of(value) if is_hidden else shown(value)}"
    if not is_plain(hint) and _is_data(value) and not (value is None and takes_none(hint)):
        raise wrong(f"{no_data}; give it in code: stack.override({layer!r}, {parameter}=...)" if layer else no_data)
    value = _number(value, hint)
    if isinstance(value, Decimal) and Decimal in kinds(hint):
        return value
    if isinstance(value, int) and abs(value) > LARGEST:
        raise wrong(f"a number of {value.bit_length():,} bits is too large")
    if isinstance(value, str) and lone_surrogate_in(value) is not None:
        raise wrong("holds half a character, which cannot be sent")
    if (choice := one_of(hint)) is not None and isinstance(value, Mapping):
        return _chosen(cast("Config", value), choice, here, layer=layer, parameter=parameter)
    try:
        return cast("object", msgspec.convert(value, type=as_data(hint), dec_hook=_made))
    except msgspec.ValidationError as error:
        inside = _value_hint(hint)
        if isinstance(value, Mapping) and inside is not None:
            for name, each in cast("Mapping[object, object]", value).items():
                place = f"{here}.{key_shown(str(name))}"
                converted(each, inside, place, layer=layer, parameter=parameter, is_hidden=is_hidden)
        text, at, path = str(error).replace("`", "").partition(" - at $")  # it quotes text, however long
        if (index := re.fullmatch(r"\[(\d+)\]", path)) and isinstance(value, list | tuple):
            here, value = f"{here}{path}", cast("Sequence[object]", value)[int(index[1])]
        elif at:
            text = f"{text}{at}{path}"
        elif text.startswith("Invalid enum value") and (choices := _choices(hint)):
            text = f"expected {choices}, got {type(cast('Any', value)).__name__}"
        text = re.sub(r"int (?=[<>])", "an integer ", re.sub(r"float (?=[<>])", "a number ", text))
        said = text.partition(" '")[0] if is_hidden else f"{cut(text)}: {shown(cast('Any', value))}"
        raise wrong(f"{said[:1].lower()}{said[1:]}", here) from error
    except NotImplementedError as error:
        raise wrong(no_data) from error
    except TypeError:  # a hint that msgspec has no rule for: the layer itself checks such a value
        return value


def _chosen(given: Config, choice: OneOf, here: str, *, layer: str, parameter: str) -> dict[str, object]:
    """Convert a table of which a layer takes one entry, each entry to its own hint."""
    found: dict[str, object] = {}
    for key, each in table(given, here).items():
        place, called = f"{here}.{key_shown(key)}", f"{parameter}.{key}"
        if key not in choice.choices:
            raise WiringError(f"{place}: unknown key; {nearest_to(key, choice.choices)}", parameter=called)
        found[key] = converted(each, choice.choices[key], place, layer=layer, parameter=called)
    return found


def _number(value: object, hint: object) -> object:
    """Convert a whole number between int and float as the hint wants it, as JSON does not distinguish 5.0 and 5."""
    wanted = kinds(hint)
    if isinstance(value, float) and value.is_integer() and int in wanted and float not in wanted:
        return int(value)
    if type(value) is int and float in wanted and int not in wanted and abs(value) < sys.float_info.max:
        return float(value)
    return value


def struct_in(hint: object) -> type[msgspec.Struct] | None:
    """Return the struct type that the hint names; None if it names none."""
    structs = [each for each in kinds(hint) if isinstance(each, type) and issubclass(each, msgspec.Struct)]
    return structs[0] if structs else None


def _choices(hint: object) -> str:
    """Return what a hint of names, and of others beside them, leaves to choose from; "" if it has no names."""
    names = [
        repr(name)
        for each in kinds(hint)
        if typing.get_origin(each) is typing.Literal
        for name in typing.get_args(each)
    ]
    others = [each.__name__ for each in kinds(hint) if isinstance(each, type) and each is not type(None)]
    return " | ".join([*others, *names, *(["null"] if takes_none(hint) else [])]) if names else ""


def _made(kind: type, value: object) -> object:
    """Convert to a type that msgspec does not know: text to a path; an instance is returned as it is."""
    if issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    if isinstance(value, kind):
        return value
    raise NotImplementedError


def _value_hint(hint: object) -> object:
    """Return the hint for the values of a mapping; None if the hint is not a mapping."""
    found = [typing.get_args(each) for each in kinds(hint) if typing.get_origin(each) in (Mapping, dict)]
    return found[0][1] if len(found) == 1 and len(found[0]) == 2 else None


def _is_data(value: object) -> bool:
    """Return True if a file can hold the value, an empty list apart."""
    if isinstance(value, Mapping):
        return True
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        return bool(items) and all(isinstance(each, (*_DATA, list, tuple, Mapping)) for each in items)
    return isinstance(value, _DATA)


def table(value: object, where: str) -> Config:
    """Return the value if it is a table whose keys are text. Raises ``WiringError``."""
    if not isinstance(value, Mapping):
        raise WiringError(f"{where}: expected a table of names and values, got {kind_of(value)}")
    for key in cast("Mapping[object, object]", value):
        if not isinstance(key, str):
            raise WiringError(f"{where}: {shown(key)} is not a name; keys are text")
    return cast("Config", value)


def check_keys(content: Config, known: Sequence[str], where: str) -> None:
    """Refuse an unknown key and suggest the nearest known one. Raises ``WiringError``."""
    for key in content:
        if key not in known:
            raise WiringError(f"{where}: unknown key {shown(key)}; {nearest_to(key, known)}", parameter=str(key))


def kind_of(value: object) -> str:
    """Return the type of a value in words."""
    name = type(value).__name__
    return "nothing" if value is None else f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"


class _Shortened(reprlib.Repr):
    """A repr whose time and length are bounded, however large the value is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = _VALUE_CHARS

    def repr_int(self, x: int, level: int) -> str:
        """Return a number in full, unless it has so many digits that Python might refuse to write it."""
        return repr(x) if x.bit_length() <= 8 * _VALUE_CHARS else f"a number of {x.bit_length():,} bits"


def shown(value: object) -> str:
    """Return a value as errors show it: its repr, in at most 80 characters."""
    return cut(_Shortened().repr(value))


def key_shown(name: str) -> str:
    """Return a key for the place of an error: as it is, unless it is not printable or too long."""
    return cut(name) if name.isprintable() else shown(name)


def nearest_to(name: object, known: Iterable[str]) -> str:
    """Return a hint for a misspelt name; anything but text of up to 80 characters is not compared."""
    return nearest(name if isinstance(name, str) and len(name) <= _VALUE_CHARS else "", known)


def cut(text: str, characters: int = _VALUE_CHARS) -> str:
    """Cut the text to that many characters."""
    return text if len(text) <= characters else f"{text[: characters - 3]}..."


def first_twice(names: Iterable[str]) -> str:
    """Return an error text for the first duplicate name; "" if there is none."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return f"{cut(name)!r} is there twice"
        seen.add(name)
    return ""
