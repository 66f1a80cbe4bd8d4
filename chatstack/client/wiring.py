"""Wiring: filling in a layer's constructor parameters, the pure part of building a stack."""

from __future__ import annotations

import difflib
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from chatstack.client.checks import why_no_client
from chatstack.client.hints import hints_of, kinds
from chatstack.client.protocol import ChatClient
from chatstack.errors import WiringError

Resolver: TypeAlias = Callable[[type[Any]], object]
"""A function from a type to an instance: the whole interface to a container. For a missing type it returns None, or
raises a ``LookupError`` whose argument is the type itself, as ``{...}.__getitem__`` does; other errors surface."""

Layer: TypeAlias = Callable[..., ChatClient]
"""The type of layers: a callable ``(inner, **services) -> ChatClient``. Most are classes."""


class _FromContainer:
    """A placeholder for a container's instance. If a layer made by hand keeps it, its first use raises an error that
    says so."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise WiringError(
            f"a layer was made without what its container supplies ({name!r} is asked of it); give it, or build the "
            "stack with a resolver"
        )

    def __repr__(self) -> str:
        return "FROM_CONTAINER"


FROM_CONTAINER: Final[Any] = _FromContainer()
"""The default of a layer's parameter that a container supplies by its type hint: ``forecasts: Forecasts =
FROM_CONTAINER``. So a type checker accepts ``.use(Layer)`` without it, while ``build`` refuses a stack for which there
is none."""


@dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    kind: type | None
    """The class that a container is asked for."""
    takes_resolver: bool
    has_default: bool


@dataclass(frozen=True, slots=True)
class _Blueprint:
    parameters: tuple[_Parameter, ...]
    open_ended: bool


@functools.lru_cache(maxsize=512)
def _blueprint(factory: Layer) -> _Blueprint:
    """Return the parameters of a factory after ``inner``, with their hints; computed once."""
    parameters = list(inspect.signature(factory).parameters.values())
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise WiringError(
            f"{name_of(factory)}: takes no inner client; a layer's first parameter is what it wraps",
            layer=name_of(factory),
        )
    bound: Mapping[str, object] = factory.keywords if isinstance(factory, functools.partial) else {}
    hints, rest = hints_of(cast("object", factory)), parameters[1:]
    return _Blueprint(
        tuple(
            _Parameter(each.name, service_type(hint), _is_resolver(hint), not _is_missing(each.default))
            for each, hint in ((each, hints.get(each.name)) for each in rest)
            if each.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            and each.name not in bound
        ),
        any(each.kind is inspect.Parameter.VAR_KEYWORD for each in rest),
    )


def _is_missing(default: object) -> bool:
    return default is inspect.Parameter.empty or default is FROM_CONTAINER


def wire(
    factory: Layer,
    inner: ChatClient,
    options: Mapping[str, object],
    *,
    name: str,
    resolve: Resolver,
    has_resolver: bool = True,
) -> ChatClient:
    """Make one layer: ``inner``, then options by name, then services by type hint, then defaults."""
    blueprint = _blueprint(factory)
    if not blueprint.open_ended:
        check_options(options, option_names(factory), name, factory=factory)
    given = dict(options)
    for parameter in blueprint.parameters:
        kind = parameter.kind
        if parameter.name in given:
            _check_instance(name, parameter.name, given[parameter.name], kind)
            continue
        if parameter.takes_resolver:
            if has_resolver or not parameter.has_default:  # without a container, a layer should know that there is none
                given[parameter.name] = resolve
        elif kind is not None and (found := ask(resolve, kind)) is not _UNBOUND:
            given[parameter.name] = found
        elif not parameter.has_default:
            raise _nothing_for(name, parameter, has_resolver)
    try:
        made = cast("object", factory(inner, **given))
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise
        raise WiringError(f"layer {name!r}: {error}", layer=name) from error
    if inspect.iscoroutine(made):  # of an async factory; it has a send() of its own
        made.close()
    told = why_no_client(made)
    if told:
        raise WiringError(f"layer {name!r}: what its factory returned is {told}", layer=name)
    return cast("ChatClient", made)


def _check_instance(name: str, parameter: str, given: object, kind: type | None) -> None:
    """Refuse a class where an instance of it is wanted: some would be accepted, and fail at the first call."""
    if isinstance(given, type) and isinstance(kind, type) and kind in given.__mro__:
        kind_name = given.__name__
        raise WiringError(
            f"layer {name!r}: {parameter} is the class {kind_name} itself; pass an instance: {kind_name}(...)",
            layer=name,
            parameter=parameter,
        )


def service_type(hint: object) -> type | None:
    """Return the class that a hint asks a container for; None for plain values such as ``int`` or ``Literal``."""
    choices = [kind for kind in kinds(hint) if kind is not types.NoneType]
    kind = choices[0] if len(choices) == 1 else None
    return kind if isinstance(kind, type) and kind.__module__ != "builtins" else None


_UNBOUND = object()
_MOST_NAMES = 40
"""Maximum number of names listed in an error."""


def ask(resolve: Resolver, kind: type) -> object:
    """Return the resolver's instance of that type, or ``_UNBOUND``. Errors from inside a service are not swallowed.

    Raises ``WiringError`` for the class itself: some classes would pass for an instance, until their first use.
    """
    try:
        found = resolve(kind)
    except LookupError as error:
        if error.args == (kind,):
            return _UNBOUND
        raise
    if isinstance(found, type) and kind in found.__mro__:
        told = f"the container gave the class {found.__name__} itself; bind an instance of {kind.__name__}"
        raise WiringError(f"build: resolve: {told}", parameter="resolve")
    return _UNBOUND if found is None else found  # as the ``get`` of a mapping has it


def is_bound(found: object) -> bool:
    """Return True if ``ask`` returned an instance."""
    return found is not _UNBOUND


def name_of(factory: object) -> str:
    """Return the default name of a layer: its class or function name."""
    if isinstance(factory, functools.partial):
        return name_of(factory.func)
    name = getattr(factory, "__name__", None)
    return name if isinstance(name, str) else type(factory).__name__


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for a misspelt name: the nearest one, or the list, cut where it is long."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    more = len(names) - _MOST_NAMES
    told = ", ".join(names[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")
    return f"known: {told}" if names else "there are none"


def _is_resolver(hint: object) -> bool:
    return any(kind == Resolver for kind in kinds(hint))


def option_names(factory: Layer) -> list[str]:
    """Return the options of a layer: its parameters without the inner client."""
    return [parameter.name for parameter in _blueprint(factory).parameters]


def check_options(
    options: Iterable[str], known: list[str], name: str, *, also: Iterable[str] = (), factory: Layer | None = None
) -> None:
    """Refuse an unknown option, with the nearest name that the layer, or its strategy, knows."""
    for option in options:
        if option not in known:
            part = None if factory is None else part_of_services(factory, option)
            hint = nearest(option, [*known, *also]) if part is None else part
            raise WiringError(f"layer {name!r}: unknown option {option!r}; {hint}", layer=name, parameter=option)


def part_of_services(factory: Layer, option: str) -> str | None:
    """Return the remedy for an option that is a part of a layer's services; None if it is not."""
    for parameter in _blueprint(factory).parameters:
        services = parameter.kind
        if services is not None and hasattr(services, "from_parts"):
            part = service_type(hints_of(services).get(option))
            if part is not None:
                return (
                    f"all layers of a stack share one {part.__name__}: bind it in the container that builds the stack, "
                    f"or give {parameter.name}={services.__name__}({option}=...)"
                )
    return None


def _nothing_for(name: str, parameter: _Parameter, has_resolver: bool) -> WiringError:
    remedy, kind, wanted = f"pass {parameter.name}=... to .use()", parameter.kind, ""
    if kind is not None:
        where = "bind it in the container" if has_resolver else "build with a resolver that has it"
        remedy, wanted = f"{remedy}, or {where}", f" ({kind.__name__})"
    return WiringError(
        f"layer {name!r}: {parameter.name}{wanted} is required; {remedy}",
        layer=name,
        parameter=parameter.name,
    )


def as_types(value: object) -> tuple[type, ...]:
    """Return the classes that an instance can stand for, its own first."""
    return type(value).__mro__[:-1]


def wrong(owner: str, parameter: str, value: object, wanted: str) -> WiringError:
    """Return the error for an invalid option: it names the owner, the value, and the expected kind."""
    return WiringError(f"{owner}: {parameter}={value!r} must be {wanted}", layer=owner, parameter=parameter)
