"""Options, declared once: a field with ``Annotated[type, Meta(...)]`` is checked, shown and made a key of from that.

    @dataclass(frozen=True)
    class Newest(Strategy):
        most: PositiveInt = 20

        def __post_init__(self) -> None:
            check_options(self)

The same hints are what a config is checked against, and what its JSON schema is made of.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, cast

import msgspec
from msgspec import Meta

from chatstack.client.hints import as_data, bare, hints_of, is_plain, kinds, members
from chatstack.client.wiring import service_type, wrong
from chatstack.errors import WiringError

NonNegativeInt: TypeAlias = Annotated[int, Meta(ge=0)]
PositiveInt: TypeAlias = Annotated[int, Meta(ge=1)]
PositiveFloat: TypeAlias = Annotated[float, Meta(gt=0)]
Share: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
ShareOrZero: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
"""A share that may be 0."""


class OneOf:
    """Metadata of an option that is a table of exactly one of these names, each with a type hint of its own."""

    def __init__(self, **choices: object) -> None:
        self.choices: Mapping[str, object] = choices

    def __repr__(self) -> str:
        entries = [f'{{"{name}": {"n" if int in kinds(hint) else "x"}}}' for name, hint in self.choices.items()]
        return f"exactly one of {', '.join(entries[:-1])} and {entries[-1]}"


def one_of(hint: object) -> OneOf | None:
    """Return the names of which such a table has one; None if the hint is of another kind."""
    return next((each for each in typing.get_args(hint) if isinstance(each, OneOf)), None)


def needs_one_of(kind: object) -> tuple[str, ...]:
    """Return the options of which a layer needs one at least: those in ``needs_one_of`` of its class."""
    return getattr(kind, "needs_one_of", ())


class _Field(NamedTuple):
    name: str
    hint: object
    """None where it cannot be evaluated."""
    data: object
    """The type that data is converted to; None where there is more to it than msgspec can check at once."""
    is_plain: bool
    service: type | None
    """The class of a service."""
    is_float: bool
    is_shown: bool
    default: object
    default_factory: Callable[[], object] | None

    def or_default(self) -> object:
        return self.default if self.default_factory is None else self.default_factory()


def _fields_of(options: object) -> tuple[_Field, ...]:
    """The options of a dataclass: what its constructor takes, without the client that a layer wraps."""
    return _fields_of_class(cast("Any", type(options)))


@functools.lru_cache(maxsize=512)
def _fields_of_class(kind: type) -> tuple[_Field, ...]:
    hints, found = hints_of(kind), list[_Field]()
    for each in dataclasses.fields(cast("Any", kind)) if dataclasses.is_dataclass(kind) else ():
        if each.init and each.name != "inner":
            hint, factory = hints.get(each.name), each.default_factory
            made = None if factory is dataclasses.MISSING else factory
            is_data, wanted_kinds = each.name in hints and is_plain(hint), kinds(hint)
            service = None if is_data else _service(hint, is_made=made is not None)
            is_float = float in wanted_kinds and int not in wanted_kinds
            data = as_data(hint) if is_data and one_of(hint) is None else None
            found.append(_Field(each.name, hint, data, is_data, service, is_float, each.repr, each.default, made))
    return tuple(found)


def _service(hint: object, *, is_made: bool) -> type | None:
    """Return the class of a service: one that is made where none is given, or that a stack shares. Others are checked
    by whoever uses them."""
    kind = service_type(hint)
    is_class = kind is not None and not getattr(kind, "_is_protocol", False)
    return kind if is_class and (is_made or hasattr(kind, "shared_by_stack")) else None


def check_options(options: object, owner: str = "") -> None:
    """Check every option that could stand in a file against its type hint, and that services are what they should be.
    For ``__post_init__``.

    Raises ``WiringError`` that names the layer, the option, its value and what is wanted. ``owner`` is what to call the
    layer; its class, if nothing is said.
    """
    kind = type(options)
    for field in _fields_of(options):
        value: object = getattr(options, field.name)
        if field.is_plain and value is not field.default and not (field.data and _is_data(value, field.data)):
            check_value(owner or kind.__name__, field.name, value, field.hint, is_shown=field.is_shown)
        elif field.service is not None and value is not field.default and not isinstance(value, field.service):
            raise wrong(owner or kind.__name__, field.name, type(value), wanted(field.hint))
    needed = needs_one_of(kind)
    if needed and all(getattr(options, name) is None for name in needed):
        called = owner or kind.__name__
        raise WiringError(f"{called}: give {' or '.join(needed)}", layer=called, parameter=needed[0])


def check_arguments(made_by: Callable[..., object], **given: object) -> None:
    """Check what a function, or the constructor of a class without fields, was given, by its type hints. Raises
    ``WiringError``."""
    hints = _as_data(made_by)
    for name, value in given.items():
        if not _is_data(value, hints[name]):
            check_value(made_by.__name__, name, value, hints_of(made_by)[name])


@functools.lru_cache(maxsize=512)
def _as_data(made_by: Callable[..., object]) -> Mapping[str, object]:
    return {name: as_data(hint) for name, hint in hints_of(made_by).items()}


def check_value(owner: str, name: str, value: object, hint: object, *, is_shown: bool = True) -> None:
    """Check one value. Raises ``WiringError``; only where it ``is_shown``, the value is quoted."""
    choice = one_of(hint)
    if choice is not None:
        table = _as_table(value)
        if table is None or len(table) != 1 or not table.keys() <= choice.choices.keys():
            raise wrong(owner, name, value if table is None else table, repr(choice))
        for key, inside in table.items():
            check_value(owner, f"{name}.{key}", inside, choice.choices[key])
    elif not _fits(value, hint):
        raise wrong(owner, name, value if is_shown else type(value), wanted(hint))


def _as_table(value: object) -> dict[str, object] | None:
    return dict(cast("Mapping[str, object]", value)) if isinstance(value, Mapping) else None


def _fits(value: object, hint: object) -> bool:
    try:
        return _is_data(float(value) if isinstance(value, Decimal) and Decimal in kinds(hint) else value, as_data(hint))
    except ValueError:  # a signalling NaN
        return False


def _is_data(value: object, hint: object) -> bool:
    try:
        msgspec.convert(value, hint)
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter for half a character
        return False
    except (TypeError, NotImplementedError):  # a hint that msgspec has no rule for
        return True
    return not isinstance(value, float) or math.isfinite(value)


def wanted(hint: object) -> str:
    """Return in words what a hint wants: ``a whole number, at least 1, or None``."""
    found = [_told(each) for each in members(hint)]
    comma = "," if any("," in each for each in found) or len(found) > 2 else ""
    return f"{', '.join(found[:-1])}{comma} or {found[-1]}" if len(found) > 1 else found[0]


def _told(hint: object) -> str:
    kind, metas = bare(hint), [each for each in typing.get_args(hint) if isinstance(each, Meta)]
    described = next((each.description for each in metas if each.description), None)
    if described is not None:
        return described
    if typing.get_origin(kind) is Literal:
        names = [repr(each) for each in typing.get_args(kind)]
        return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
    plain: dict[object, str] = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}
    plain |= {types.NoneType: "None", Callable: "a function"}
    told = plain.get(typing.get_origin(kind) or kind) or f"a {getattr(kind, '__name__', kind)}"
    return told + "".join(map(_bounds, metas))


def _bounds(meta: Meta) -> str:
    if meta.ge is not None and meta.le is not None:
        return f" from {meta.ge:g} to {meta.le:g}"
    words = ((meta.gt, "greater than"), (meta.ge, "at least"), (meta.lt, "less than"), (meta.le, "at most"))
    told = ", ".join(f"{word} {bound:g}" for bound, word in words if bound is not None)
    told += "that is not empty" if meta.min_length else ""
    return f"{', ' if told.startswith('at ') else ' ' if told else ''}{told}"


def changed_options(options: object) -> dict[str, object]:
    """Return the options of a dataclass that differ from their defaults, without those that its repr leaves out."""
    shown = [(each, getattr(options, each.name)) for each in _fields_of(options) if each.is_shown]
    return {field.name: value for field, value in shown if value != field.or_default()}


def short_repr(options: object) -> str:
    """Return the repr that names what differs from the defaults."""
    changed = ", ".join(f"{name}={value!r}" for name, value in changed_options(options).items())
    return f"{type(options).__name__}({changed})"


def versioned(options: object) -> str:
    """Return the name of a layer, or a strategy, with its version: ``ClearThenDrop/1``."""
    return f"{type(options).__name__}/{getattr(options, 'version', 1)}"


def options_key(options: object) -> str:
    """Return the name, the ``version`` and the options that differ from their defaults, in the one form that equal
    options have: ``ClearThenDrop/1:{"max_tokens":8000}``. A new option with a default does not change it.

    Of a layer, what comes from elsewhere (clients, counters, services) is left out. A value that no file could
    hold, a function or an object, counts by its repr, and so does whatever is no dataclass: such a key holds in its
    process.
    """
    kind, name = type(options), versioned(options)
    if not dataclasses.is_dataclass(kind):
        return f"{name}:{options!r}"
    is_layer = any(each.name == "inner" for each in dataclasses.fields(kind))
    found: dict[str, msgspec.Raw] = {}
    for field in _fields_of(options):
        if is_layer and not field.is_plain:
            continue
        value = getattr(options, field.name)
        if value is field.default:
            continue
        said = _canonical(value, field)
        if said != _canonical(field.or_default(), field):
            found[field.name] = msgspec.Raw(said)
    return f"{name}:{msgspec.json.encode(found, order='deterministic').decode()}"


def _canonical(value: object, field: _Field) -> bytes:
    """A value as JSON: sorted, and a number as its hint has it."""
    if field.hint is not None and not field.is_plain:  # an object, whatever is in it
        value = repr(value)
    try:
        value = float(value) if field.is_float and type(value) is int else value
        return msgspec.json.encode(value, order="deterministic", enc_hook=repr)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return msgspec.json.encode(ascii(value))
