"""Constraints of pydantic's: those that msgspec has too are said as it says them, the others are found."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, cast

import msgspec

from chatstack.client.hints import bare, is_union

_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")
"""Bounds that ``annotated_types`` and msgspec call alike."""

_MODEL = "use a pydantic model"


def as_msgspec_says(hint: Any) -> Any:
    """Return the hint with descriptions and bounds as ``msgspec.Meta``: those of texts in ``Annotated``, of pydantic's
    ``Field``, and of ``annotated_types``.

    Raises ``TypeError`` with a remedy for what only pydantic could check, which would be left out without a word, and
    ``ValueError`` or ``re.error`` for bounds that msgspec does not take.
    """
    if typing.get_origin(hint) is Annotated:
        kind, *metadata = typing.get_args(hint)
        return _annotated(as_msgspec_says(kind), metadata)
    named = _named_by(hint)
    if named is not None:
        return as_msgspec_says(_filled(hint, named)) if is_pydantics(hint) else hint
    structure = _structure_of(hint)
    if structure is not None and is_pydantics(structure):
        raise TypeError(f"is, or holds, {structure.__name__}, which pydantic alone can check; {_MODEL}")
    given = typing.get_args(hint)
    members: tuple[Any, ...] = tuple(map(as_msgspec_says, given))
    if all(each is other for each, other in zip(given, members, strict=True)):
        return hint
    if is_union(hint):
        return typing.Union[members]  # noqa: UP007
    origin: Any = typing.get_origin(hint)
    return origin[members] if len(members) > 1 else origin[next(iter(members))]


def _annotated(kind: Any, metadata: list[object]) -> Any:
    """Return the type with what ``Annotated`` says of it. Bounds are of its values, not of a None beside them."""
    about: list[object] = []
    bounds: list[msgspec.Meta] = []
    for each in metadata:
        if _is_of_pydantic(each):
            about += _description(each)
            bounds += _bounds(each)
        elif not isinstance(each, str):
            about.append(each)
    texts = [each for each in metadata if isinstance(each, str)]
    if texts:  # last, as it wins
        about.append(msgspec.Meta(description=texts[0]))
    if bounds and is_union(kind):
        unbound = (types.NoneType, msgspec.UnsetType)
        members = [each if each in unbound else Annotated[(each, *bounds)] for each in typing.get_args(kind)]
        kind, bounds = typing.Union[tuple(members)], []  # noqa: UP007
    added = (*bounds, *about)
    return Annotated[(kind, *added)] if added else kind


def _description(metadata: Any) -> Iterator[msgspec.Meta]:
    if type(metadata).__name__ != "FieldInfo":
        return
    if metadata.alias is not None or metadata.validation_alias is not None or not metadata.is_required():
        raise TypeError("has a Field with an alias or a default; a parameter has a name and a default of its own")
    extra = metadata.json_schema_extra
    yield msgspec.Meta(
        title=metadata.title,
        description=metadata.description,
        examples=metadata.examples,
        extra_json_schema=dict(cast("Mapping[str, Any]", extra)) if isinstance(extra, Mapping) else None,
    )


def _bounds(metadata: Any) -> Iterator[msgspec.Meta]:
    if type(metadata).__name__ == "FieldInfo":
        parts: Iterable[Any] = metadata.metadata
    elif hasattr(metadata, "__iter__"):  # a group of them, as ``Interval`` is
        parts = metadata
    else:
        is_plain = dataclasses.is_dataclass(metadata) and not isinstance(metadata, type)
        fields = [each.name for each in dataclasses.fields(metadata)] if is_plain else vars(metadata)
        said = {name: found for name in fields if (found := getattr(metadata, name)) is not None}
        if not said or not said.keys() <= set(_BOUNDS):
            raise TypeError(f"has {metadata!r}, which pydantic alone can check; {_MODEL}")
        yield msgspec.Meta(**said)
        return
    for each in parts:
        yield from _bounds(each)


def is_pydantics(hint: object) -> bool:
    """Return True for a type in which pydantic reads more than msgspec would see: its dataclasses, and constraints of
    its own, at whatever depth."""
    return any(
        any(map(_is_of_pydantic, _metadata(each))) or hasattr(_structure_of(each), "__pydantic_core_schema__")
        for each in _hints_in(hint)
    )


def is_bounded_by_msgspec(hint: object) -> bool:
    """Return True for a type with bounds of ``msgspec.Meta``, at whatever depth, which pydantic would not see."""
    return any(
        isinstance(said, msgspec.Meta) and any(getattr(said, name) is not None for name in (*_BOUNDS, "tz"))
        for each in _hints_in(hint, with_models=True)
        for said in _metadata(each)
    )


def check_models(hint: object) -> None:
    """Raise ``TypeError`` with a remedy for a pydantic model, at whatever depth, with bounds of ``msgspec.Meta``."""
    for each in _hints_in(hint):
        if _is_model(each) and is_bounded_by_msgspec(each):
            name = cast("type", each).__name__
            raise TypeError(f"is, or holds, {name}, in which pydantic sees no msgspec.Meta; use a Field of pydantic's")


def _hints_in(hint: object, *, with_models: bool = False) -> Iterator[object]:
    """Yield a hint, and each one in it; ``with_models``, also those of the fields of pydantic's models. Raises
    ``TypeError`` for a ``type`` statement that names nothing but itself: msgspec would look for what it names
    forever."""
    left, seen = [hint], dict[int, object]()  # by identity, as hints need not be hashable; they stay alive
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        _check_that_it_ends(each)
        yield each
        left += [*typing.get_args(each), _named_by(each)]
        structure = _structure_of(each)
        if structure is not None:
            left += _hints_of(structure) if typing.get_origin(each) is None else [structure]
        elif with_models and _is_model(each):
            left += _hints_of_model(each)


def _check_that_it_ends(hint: object) -> None:
    passed: list[int] = []
    named = hint
    while (named := _named_by(bare(named))) is not None:
        if id(named) in passed:
            raise TypeError(f"is, or holds, {hint}, which names nothing but itself")
        passed.append(id(named))


def _metadata(hint: object) -> tuple[object, ...]:
    return cast("tuple[object, ...]", getattr(hint, "__metadata__", ()))


def _is_of_pydantic(metadata: object) -> bool:
    return type(metadata).__module__.partition(".")[0] in ("pydantic", "annotated_types")


def _named_by(hint: object) -> Any:
    """Return the type that a ``NewType`` or a ``type`` statement names; None for all else."""
    return getattr(hint, "__supertype__", None) or getattr(hint, "__value__", None)


def _filled(hint: object, named: Any) -> Any:
    """Return the type that a generic ``type`` statement names, with the arguments that it is given here."""
    given = dict(zip(getattr(hint, "__type_params__", ()), typing.get_args(hint), strict=False))
    wanted = tuple(given[each] for each in getattr(named, "__parameters__", ()) if each in given)
    return named[wanted] if wanted else named


def _structure_of(hint: Any) -> type | None:
    """Return the class of a hint whose fields msgspec reads by itself; None for all others, models of pydantic's among
    them."""
    kind: Any = typing.get_origin(hint) or hint
    if not inspect.isclass(kind):
        return None
    names = ("__dataclass_fields__", "__struct_fields__", "__total__", "_fields")  # of a TypedDict, of a NamedTuple
    return kind if any(hasattr(kind, name) for name in names) else None


def _hints_of_model(kind: Any) -> Iterator[object]:
    for field in kind.model_fields.values():
        yield Annotated[(field.annotation, *field.metadata, "")]


def _is_model(hint: object) -> bool:
    return inspect.isclass(hint) and hasattr(hint, "model_fields") and hasattr(hint, "model_json_schema")


def _hints_of(kind: type) -> Iterable[object]:
    try:
        return typing.get_type_hints(kind, include_extras=True).values()
    except Exception:  # noqa: BLE001 - an annotation is code; msgspec says what is wrong with it
        return ()
