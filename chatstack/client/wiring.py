"""Wiring: filling in a layer's constructor parameters, the pure part of building a stack."""

from __future__ import annotations

import difflib
import functools
import inspect
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from chatstack.client.checks import why_no_client
from chatstack.client.hints import hints_of, kinds, options_in, unknown_hints
from chatstack.client.protocol import ChatClient, chain
from chatstack.errors import WiringError

Resolver: TypeAlias = Callable[[type[Any]], object]
"""A function from a type to an instance: the whole interface to a container. For a missing type it returns None, or
raises a ``LookupError`` whose argument is the type itself, as ``{...}.__getitem__`` does; other errors surface."""

Layer: TypeAlias = Callable[..., ChatClient]
"""The type of layers: a callable ``(inner, **services) -> ChatClient``. Most are classes."""


class _FromContainer:
    """A placeholder for a container's instance. If a layer made by hand keeps it, its first use raises an error that
    says so. It merely lacks private names: inspection of a module asks every object in it for some."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
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
    default: object
    unknown: str = ""
    """The hint as it is written, with the reason, if it cannot be evaluated."""

    @property
    def has_default(self) -> bool:
        return self.default is not inspect.Parameter.empty and self.default is not FROM_CONTAINER

    @property
    def may_be_service(self) -> bool:
        """True if the hint is unknown, and the default is no plain value, which a service would hardly have."""
        is_plain = type(self.default).__module__ == "builtins" and self.default is not None
        return bool(self.unknown) and not (self.has_default and is_plain)


@dataclass(frozen=True, slots=True)
class _Blueprint:
    parameters: tuple[_Parameter, ...]
    open_ended: bool


def _blueprint(factory: Layer) -> _Blueprint:
    """Return the parameters of a factory after ``inner``, with their hints; computed once if it can be hashed."""
    try:
        hash(factory)
    except TypeError:
        return _new_blueprint(factory)
    return _kept_blueprint(factory)


def _new_blueprint(factory: Layer) -> _Blueprint:
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except ValueError:  # of a class such as int
        parameters = []
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise WiringError(
            f"{name_of(factory)}: takes no inner client; a layer's first parameter is what it wraps",
            layer=name_of(factory),
        )
    bound: Mapping[str, object] = factory.keywords if isinstance(factory, functools.partial) else {}
    source = cast("object", factory)
    hints, unknown = hints_of(source), unknown_hints(source)
    return _Blueprint(
        tuple(
            _Parameter(name, None, takes_resolver=False, default=None)
            if is_given_inside
            else _Parameter(
                name,
                service_type(hints.get(name)),
                takes_resolver=_is_resolver(hints.get(name)),
                default=each.default,
                unknown=unknown.get(name, ""),
            )
            for name, (each, is_given_inside) in options_in(source).items()
            if name not in bound
        ),
        any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters[1:]),
    )


_kept_blueprint = functools.lru_cache(maxsize=512)(_new_blueprint)


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
        if parameter.may_be_service and (has_resolver or not parameter.has_default):
            _refuse_unknown(name, parameter)
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
    _check_made(name, made, inner)
    return cast("ChatClient", made)


def _refuse_unknown(name: str, parameter: _Parameter) -> None:
    """Raise, or where there is a default warn, that a container cannot be asked for what may be a service."""
    told = (
        f"layer {name!r}: {parameter.name} has a type hint that cannot be evaluated ({parameter.unknown}), so no "
        "container is asked for it; import its names at run time, not under TYPE_CHECKING, define them at the top of a "
        f"module, or pass {parameter.name}=... to .use()"
    )
    if not parameter.has_default:
        raise WiringError(told, layer=name, parameter=parameter.name)
    warnings.warn(told, UserWarning, stacklevel=4)


def _check_made(name: str, made: object, inner: ChatClient) -> None:
    """Refuse a layer that lacks a service, and warn of one through which nobody gets to what it wraps."""
    for layer in chain(made):
        if layer is inner:
            return
        for attribute in _attributes(layer):
            if getattr(layer, attribute, None) is FROM_CONTAINER:
                raise WiringError(
                    f"layer {name!r}: {attribute} was not given, and its factory does not name it, so no container is "
                    f"asked for it; write a parameter {attribute} with a type hint, and pass it on",
                    layer=name,
                    parameter=attribute,
                )
    warnings.warn(
        f"layer {name!r}: the client that it was given is not its inner, nor further inside, so find(), limits of "
        "'auto' and layers outside see nothing behind it; keep that client in an attribute named inner",
        UserWarning,
        stacklevel=4,
    )


def _attributes(layer: object) -> Iterator[str]:
    """Yield the names of a layer's own attributes, whether they are in slots or not."""
    yield from getattr(layer, "__dict__", ())
    for each in type(layer).__mro__:
        yield from (name for name, value in vars(each).items() if inspect.ismemberdescriptor(value))


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
    """Return the resolver's instance of that type, or ``_UNBOUND``. Errors from inside a service are not swallowed."""
    try:
        found = resolve(kind)
    except LookupError as error:
        if error.args == (kind,):
            return _UNBOUND
        raise
    return instance_in(found, kind)


def instance_in(found: object, kind: type) -> object:
    """Return what a resolver, or its asynchronous provider, gave for that type; ``_UNBOUND`` for None.

    Raises ``WiringError`` for the class itself: some classes would pass for an instance, until their first use.
    """
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


def shown(value: object) -> str:
    """Return the repr of an option, for reprs and errors; a bound function in it by its name, as what it is bound to
    may hold a key."""
    return repr(_without_bound(value))


class _Named(str):
    __slots__ = ()
    __repr__ = str.__str__


def _without_bound(value: object) -> object:
    if isinstance(value, functools.partial):
        return _Named(f"partial({name_of(cast('object', value))}, ...)")
    if inspect.ismethod(value):
        return _Named(value.__qualname__)
    if type(value) in (list, tuple):
        items = map(_without_bound, cast("Iterable[object]", value))
        return list(items) if isinstance(value, list) else tuple(items)
    return value


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
    return WiringError(f"{owner}: {parameter}={shown(value)} must be {wanted}", layer=owner, parameter=parameter)
