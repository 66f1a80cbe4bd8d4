"""Constraints of pydantic's: those that msgspec has too are said as it says them, the others are found."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, cast

import msgspec

_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")
"""Bounds that ``annotated_types`` and msgspec call alike."""

_MODEL = "use a pydantic model"


def as_msgspec_says(hint: Any) -> Any:
    """Return the hint with descriptions and bounds as ``msgspec.Meta``: those of texts in ``Annotated``, of pydantic's
    ``Field``, and of ``annotated_types``.

    Raises ``TypeError`` with a remedy for what only pydantic could check, which would be left out without a word.
    """
    if typing.get_origin(hint) is Annotated:
        kind, *metadata = typing.get_args(hint)
        return Annotated[(as_msgspec_says(kind), *_metas(metadata))]
    if isinstance(hint, type) and is_pydantics(hint):
        raise TypeError(f"is, or holds, {hint.__name__}, which pydantic alone can check; {_MODEL}")
    given = typing.get_args(hint)
    said = tuple(map(as_msgspec_says, given))
    if all(each is other for each, other in zip(given, said, strict=True)):
        return hint
    origin: Any = typing.get_origin(hint)
    return typing.Union[said] if origin in (typing.Union, types.UnionType) else origin[said]  # noqa: UP007


def _metas(metadata: list[object]) -> Iterator[object]:
    is_described = False
    for each in metadata:
        if not isinstance(each, str):
            yield from _of_pydantic(each) if _is_of_pydantic(each) else (each,)
        elif not is_described:
            is_described = True
            yield msgspec.Meta(description=each)


def _of_pydantic(metadata: Any) -> Iterator[msgspec.Meta]:
    if type(metadata).__name__ != "FieldInfo":
        bounds = {name: found for name in _BOUNDS if (found := getattr(metadata, name, None)) is not None}
        if not bounds:
            raise TypeError(f"has {metadata!r}, which pydantic alone can check; {_MODEL}")
        yield msgspec.Meta(**bounds)
        return
    if metadata.alias is not None or not metadata.is_required():
        raise TypeError("has a Field with an alias or a default; a parameter has a name and a default of its own")
    extra = metadata.json_schema_extra
    yield msgspec.Meta(
        title=metadata.title,
        description=metadata.description,
        examples=metadata.examples,
        extra_json_schema=dict(cast("Mapping[str, Any]", extra)) if isinstance(extra, Mapping) else None,
    )
    for each in metadata.metadata:
        yield from _of_pydantic(each)


def is_pydantics(hint: object) -> bool:
    """Return True for a type in which pydantic reads more than msgspec would see: its dataclasses, and constraints of
    its own, at whatever depth."""
    return _is_pydantics(hint, ())


def _is_pydantics(hint: object, inside: tuple[object, ...]) -> bool:
    if any(map(_is_of_pydantic, cast("tuple[object, ...]", getattr(hint, "__metadata__", ())))):
        return True
    if isinstance(hint, type) and hint not in inside and _is_structure(hint):
        return hasattr(hint, "__pydantic_core_schema__") or _is_any_pydantics(_hints_of(hint), (*inside, hint))
    return _is_any_pydantics(typing.get_args(hint), inside)


def _is_any_pydantics(hints: Iterable[object], inside: tuple[object, ...]) -> bool:
    return any(_is_pydantics(each, inside) for each in hints)


def _is_of_pydantic(metadata: object) -> bool:
    return type(metadata).__module__.partition(".")[0] in ("pydantic", "annotated_types")


def _is_structure(kind: Any) -> bool:
    return is_dataclass(kind) or typing.is_typeddict(kind) or hasattr(kind, "__struct_fields__")


def _hints_of(kind: type) -> Iterable[object]:
    try:
        return typing.get_type_hints(kind, include_extras=True).values()
    except (NameError, TypeError):  # msgspec says what is wrong with it
        return ()
