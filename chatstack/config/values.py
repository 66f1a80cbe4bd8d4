"""Values of a config: how one is checked against a type hint, and how one is shown in an error."""

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
"""The largest whole number that an option can be, and the smallest without its sign."""

Config: TypeAlias = Mapping[str, object]

_VALUE_CHARS = 80
"""How much of a value an error shows."""
MESSAGE_CHARS = 400
"""How much of what somebody else says about it: a layer, a reader."""
_DATA = (bool, int, float, str, type(None))


def converted(
    value: object, hint: object, here: str, *, layer: str = "", parameter: str = "", is_hidden: bool = False
) -> object:
    """The value as a type hint wants it: lists as tuples where it says so, and no text for a number.

    Raises ``WiringError``, with the place of the very value that is wrong, and for text where code is wanted. One that
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
    """A table of which a layer takes one entry, each entry as its own hint wants it."""
    found: dict[str, object] = {}
    for key, each in table(given, here).items():
        place, called = f"{here}.{key_shown(key)}", f"{parameter}.{key}"
        if key not in choice.choices:
            raise WiringError(f"{place}: unknown key; {nearest_to(key, choice.choices)}", parameter=called)
        found[key] = converted(each, choice.choices[key], place, layer=layer, parameter=called)
    return found


def _number(value: object, hint: object) -> object:
    """A number as the hint has it: 5.0 where a whole one is wanted, for JSON does not tell it from 5."""
    wanted = kinds(hint)
    if isinstance(value, float) and value.is_integer() and int in wanted and float not in wanted:
        return int(value)
    if type(value) is int and float in wanted and int not in wanted and abs(value) < sys.float_info.max:
        return float(value)
    return value


def struct_in(hint: object) -> type[msgspec.Struct] | None:
    """The kind of table that the hint names, if it names one."""
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
    """For types that msgspec does not know: a path of text, and objects that are one already."""
    if issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    if isinstance(value, kind):
        return value
    raise NotImplementedError


def _value_hint(hint: object) -> object:
    """What the values of a mapping are to be; None if the hint is no mapping's."""
    found = [typing.get_args(each) for each in kinds(hint) if typing.get_origin(each) in (Mapping, dict)]
    return found[0][1] if len(found) == 1 and len(found[0]) == 2 else None


def _is_data(value: object) -> bool:
    """Whether it is what a file can hold, and says anything."""
    if isinstance(value, Mapping):
        return True
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        return bool(items) and all(isinstance(each, (*_DATA, list, tuple, Mapping)) for each in items)
    return isinstance(value, _DATA)


def table(value: object, where: str) -> Config:
    """The value, if it is a table whose keys are text. Raises ``WiringError``."""
    if not isinstance(value, Mapping):
        raise WiringError(f"{where}: expected a table of names and values, got {kind_of(value)}")
    for key in cast("Mapping[object, object]", value):
        if not isinstance(key, str):
            raise WiringError(f"{where}: {shown(key)} is not a name; keys are text")
    return cast("Config", value)


def check_keys(content: Config, known: Sequence[str], where: str) -> None:
    """Refuse a key that is not among the known ones, with the nearest of them. Raises ``WiringError``."""
    for key in content:
        if key not in known:
            raise WiringError(f"{where}: unknown key {shown(key)}; {nearest_to(key, known)}", parameter=str(key))


def kind_of(value: object) -> str:
    """The type of a value, in words."""
    name = type(value).__name__
    return "nothing" if value is None else f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"


class _Shortened(reprlib.Repr):
    """A repr that looks only at what it shows, however large the value is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = _VALUE_CHARS

    def repr_int(self, x: int, level: int) -> str:
        """A number as it is, unless it is one that Python would refuse to write."""
        return repr(x) if x.bit_length() <= 8 * _VALUE_CHARS else f"a number of {x.bit_length():,} bits"


def shown(value: object) -> str:
    """A value as an error shows it: its repr, in at most 80 characters."""
    return cut(_Shortened().repr(value))


def key_shown(name: str) -> str:
    """A key as it stands in the place of an error: as it is, unless a line could not hold it."""
    return cut(name) if name.isprintable() else shown(name)


def nearest_to(name: object, known: Iterable[str]) -> str:
    """A hint for a misspelt name; what is no name, or far too long for one, is not compared."""
    return nearest(name if isinstance(name, str) and len(name) <= _VALUE_CHARS else "", known)


def cut(text: str, characters: int = _VALUE_CHARS) -> str:
    """The text, or its beginning."""
    return text if len(text) <= characters else f"{text[: characters - 3]}..."


def first_twice(names: Iterable[str]) -> str:
    """What to say of the first name that comes twice; "" if none does."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return f"{cut(name)!r} is there twice"
        seen.add(name)
    return ""
