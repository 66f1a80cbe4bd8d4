"""Type hints: what they leave to choose from, and whether a file could hold it."""

from __future__ import annotations

import dataclasses
import functools
import os
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Annotated, Any
from uuid import UUID

import msgspec

_SIMPLE: tuple[type, ...] = (
    *(bool, int, float, str, types.NoneType, PurePath, Enum, msgspec.Struct),
    *(date, time, timedelta, Decimal, UUID),
)
_CONTAINERS: tuple[object, ...] = (Mapping, Sequence, Collection, Iterable, dict, list, tuple, set, frozenset)


def hints_of(source: object) -> Mapping[str, object]:
    """Return the type hints of what a callable takes, ``Annotated`` kept; none if they cannot be evaluated."""
    made_by: object = source.func if isinstance(source, functools.partial) else source
    return _hints_of_class(made_by) if isinstance(made_by, type) else _evaluated(made_by)


@functools.lru_cache(maxsize=512)
def _hints_of_class(kind: type) -> Mapping[str, object]:
    of_fields = _evaluated(kind) if dataclasses.is_dataclass(kind) else dict[str, object]()
    return {**of_fields, **_evaluated(kind.__init__)}  # type: ignore[misc]


def _evaluated(made_by: Any) -> Mapping[str, object]:
    try:
        return typing.get_type_hints(made_by, include_extras=True)
    except (NameError, TypeError):
        return {}


def bare(hint: object) -> object:
    """Return a hint without what ``Annotated`` adds to it."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def members(hint: object) -> tuple[object, ...]:
    """Return the hints between which a union leaves the choice, each as it is annotated."""
    return typing.get_args(bare(hint)) if is_union(bare(hint)) else (hint,)


def is_union(hint: object) -> bool:
    """Return True for a union, however it is spelt."""
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def kinds(hint: object) -> tuple[object, ...]:
    """Return the types between which a hint leaves the choice."""
    return tuple(map(bare, members(hint)))


def takes_none(hint: object) -> bool:
    """True where the hint names None beside others."""
    return types.NoneType in kinds(hint)


def is_plain(hint: object) -> bool:
    """True where values of that type can be written in a file: text, numbers, switches, lists and tables of those."""
    if len(choices := kinds(hint)) > 1:
        return any(is_plain(each) for each in choices if each is not types.NoneType)
    arguments = typing.get_args(bare(hint))
    kind: object = typing.get_origin(bare(hint)) or bare(hint)
    if kind is typing.Literal or kind is typing.Any:
        return True
    if kind in _CONTAINERS:
        return all(each is ... or is_plain(each) for each in arguments)
    if typing.is_typeddict(kind) or not isinstance(kind, type):
        return True  # a new type, a variable: nothing speaks against it
    return kind is object or issubclass(kind, _SIMPLE)


def as_data(hint: object) -> object:
    """Return the hint without ``os.PathLike``, which msgspec does not know beside text, and without ``Decimal`` beside
    ``float``, which text would do for: no file holds either."""
    left_out = (os.PathLike, *((Decimal,) if float in kinds(hint) else ()))
    kept = [each for each in members(hint) if (typing.get_origin(bare(each)) or bare(each)) not in left_out]
    return typing.Union[tuple(kept)] if kept and len(kept) < len(members(hint)) else hint  # noqa: UP007 - made from a list
