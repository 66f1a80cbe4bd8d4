"""Type hints: what they leave to choose from, and whether a file could hold it."""

from __future__ import annotations

import dataclasses
import dis
import functools
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Annotated, Any, cast
from uuid import UUID

import msgspec

_SIMPLE: tuple[type, ...] = (
    *(bool, int, float, str, types.NoneType, PurePath, Enum, msgspec.Struct),
    *(date, time, timedelta, Decimal, UUID),
)
_CONTAINERS: tuple[object, ...] = (Mapping, Sequence, Collection, Iterable, dict, list, tuple, set, frozenset)


_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclasses.dataclass(frozen=True, slots=True)
class _Unknown:
    text: str


def hints_of(source: object) -> Mapping[str, object]:
    """Return the type hints of what a callable takes, ``Annotated`` kept, without those that cannot be evaluated."""
    return {name: hint for name, hint in _read(source).items() if not isinstance(hint, _Unknown)}


def unknown_hints(source: object) -> Mapping[str, str]:
    """Return the type hints that cannot be evaluated, each as it is written, with the reason."""
    return {name: hint.text for name, hint in _read(source).items() if isinstance(hint, _Unknown)}


def written(function: object) -> Callable[..., object]:
    """Return the function with the hints and the docstring: the one in a partial, or the ``__call__`` of an object."""
    if isinstance(function, functools.partial):
        return written(cast("object", function.func))
    return cast("Callable[..., object]", function) if inspect.isroutine(function) else type(function).__call__


def bound_names(function: object) -> set[str]:
    """Return the names of the parameters that a partial has bound by name."""
    if not isinstance(function, functools.partial):
        return set()
    return {*bound_names(cast("object", function.func)), *function.keywords}


def options_in(source: object) -> Mapping[str, tuple[inspect.Parameter, bool]]:
    """Return the parameters of a callable that can be given by name, behind the first.

    Where the constructor of a class passes its ``**options`` on, those of the constructor behind it are among them:
    with True if one on the way names it, and so may give it itself.
    """
    own = list(inspect.signature(cast("Callable[..., object]", source)).parameters.values())[1:]
    found = {each.name: (each, False) for each in own if each.kind in _BY_NAME}
    kind: object = source.func if isinstance(source, functools.partial) else source
    named = set[object]()
    for at, made in enumerate(_constructors(kind) if isinstance(kind, type) else ()):
        for each in list(inspect.signature(made).parameters.values())[2:] if at else ():
            if each.kind in _BY_NAME:
                found.setdefault(each.name, (each, each.name in named))
        for const in _code(made).co_consts:  # the names of arguments in its calls among them
            named.update(cast("tuple[object, ...]", const) if isinstance(const, tuple) else (const,))
    return found


def _code(function: types.FunctionType) -> types.CodeType:
    """Return the code of a function, or of the one that it wraps."""
    return cast("types.CodeType", getattr(inspect.unwrap(function), "__code__", function.__code__))


def _read(source: object) -> Mapping[str, object]:
    made_by: object = source.func if isinstance(source, functools.partial) else source
    return _read_class(made_by) if isinstance(made_by, type) else _evaluated(written(made_by))


@functools.lru_cache(maxsize=512)
def _read_class(kind: type) -> Mapping[str, object]:
    made_by = [each for each in (kind.__new__, *reversed(_constructors(kind))) if inspect.isfunction(each)]
    has_fields: bool = dataclasses.is_dataclass(kind)
    found = dict(_evaluated(kind)) if has_fields or not made_by else {}
    for made in made_by:
        if not has_fields or _code(made).co_filename != "<string>":
            found |= _evaluated(made)  # of the one that a dataclass makes, the fields tell as much
    return found


def _constructors(kind: type) -> list[types.FunctionType]:
    """Return the class's ``__init__``, and each further one that is called with the ``**options`` of the one before."""
    found: list[types.FunctionType] = []
    for made in (vars(each).get("__init__") for each in kind.__mro__):
        made = made if made is None or inspect.isfunction(made) else inspect.unwrap(made)
        if inspect.isfunction(made):
            found.append(made)
            if not _passes_options_on(made):
                break
    return found


def _passes_options_on(made: types.FunctionType) -> bool:
    """Return True if the first call behind ``__init__`` in its code has its ``**options``: as in a plain
    ``super().__init__(inner, **options)``. They may be for something else."""
    open_ones = [each.name for each in inspect.signature(made).parameters.values() if each.kind is each.VAR_KEYWORD]
    is_behind, has_them = False, False
    for step in dis.get_instructions(_code(made)) if open_ones else ():
        loaded: object = step.argval
        if loaded == "__init__":
            is_behind, has_them = True, False
        elif is_behind and step.opname.startswith("LOAD_FAST"):
            has_them |= open_ones[0] in (cast("tuple[object, ...]", loaded) if isinstance(loaded, tuple) else (loaded,))
        elif is_behind and step.opname.startswith("CALL"):
            if step.opname == "CALL_FUNCTION_EX" and has_them:
                return True
            is_behind = False
    return False


def _evaluated(made_by: Any) -> Mapping[str, object]:
    """Return the type hints of a class or a function. One that cannot be evaluated leaves the others known."""
    try:
        return typing.get_type_hints(made_by, include_extras=True)
    except (NameError, AttributeError, TypeError):
        found: dict[str, object] = {}
        for each in reversed(made_by.__mro__) if isinstance(made_by, type) else [made_by]:
            for name, hint in _annotations(each).items():
                found[name] = _evaluated_alone(each, name, hint)
        return found


def _annotations(made_by: Any) -> Mapping[str, object]:
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        return get_annotations(made_by, format=Format.FORWARDREF)
    return inspect.get_annotations(made_by)


def _evaluated_alone(made_by: Any, name: str, hint: object) -> object:
    alone = type("Alone", (), {"__annotations__": {name: hint}, "__module__": made_by.__module__})
    own = {each.__name__: each for each in getattr(made_by, "__type_params__", ())}
    names: dict[str, Any] | None = getattr(inspect.unwrap(made_by), "__globals__", None)
    try:
        return typing.get_type_hints(alone, names, own, include_extras=True)[name]
    except (NameError, AttributeError, TypeError) as error:
        return _Unknown(f"{getattr(hint, '__forward_arg__', hint)}: {error}")


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
