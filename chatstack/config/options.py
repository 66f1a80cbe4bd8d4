"""What can be set on a layer, by its signature: which of it a config can hold, and what it is if nobody says."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, cast

from chatstack.client.protocol import ChatClient
from chatstack.client.services import SupportsLayer
from chatstack.client.stack import LayerSource
from chatstack.client.wiring import Layer, Resolver, option_names, service_type
from chatstack.config.values import is_plain
from chatstack.context.strategy import StrategyApplier
from chatstack.tokens.counter import TokenCounter

REQUIRED = inspect.Parameter.empty
"""The default of an option that has none."""


class Option(NamedTuple):
    """An option of a layer, a strategy or a service.

    ``form`` is how a config says it: as plain data, as a counter, as a client; or not at all, because it is code, or a
    service, which comes from the stack or a container.
    """

    name: str
    hint: object
    default: object
    form: Literal["plain", "counter", "client", "code", "service"]
    is_secret: bool = False


def options_of(source: object) -> tuple[Option, ...]:
    """What can be set on a layer (without the client that it wraps), or on whatever else that callable makes.

    Of a strategy also the options of the layer that applies it.
    """
    if isinstance(source, type) and hasattr(source, "as_layer"):
        own = _options(source, list(inspect.signature(source).parameters))
        applying = applying_layer(cast("type[SupportsLayer]", source), {})
        names = {each.name for each in own}
        others = (each for each in _options(applying, option_names(applying)) if each.name not in names)
        return own + tuple(each for each in others if each.form in ("plain", "counter", "client"))
    return _options(source, names_of(source))


def names_of(source: object) -> list[str]:
    """The names of what can be set on a layer, without the client that it wraps; of a strategy, its own."""
    if hasattr(source, "as_layer"):
        return list(inspect.signature(source).parameters) if callable(source) else []
    return option_names(cast("Layer", source))


def service_options(make: object) -> tuple[Option, ...]:
    """What can be set on what is no layer: a counter, a store, the memory."""
    return _options(make, [each.name for each in _parameters(make) if each.kind is not each.VAR_KEYWORD])


def takes_any(source: LayerSource) -> bool:
    """Whether it takes options of any name."""
    return callable(source) and any(each.kind is each.VAR_KEYWORD for each in _parameters(source))


def hints_of(source: object) -> dict[str, object]:
    """The type hints of what a callable takes; none if they cannot be evaluated."""
    made_by: object = source.func if isinstance(source, functools.partial) else source
    try:
        return typing.get_type_hints(made_by.__init__ if isinstance(made_by, type) else made_by)  # type: ignore[misc]
    except (NameError, TypeError):
        return {}


def applying_layer(strategy: type[SupportsLayer], options: Mapping[str, object]) -> Layer:
    """The layer that applies a strategy with these options; the usual one, if none can be made of them."""
    try:
        layer = strategy(**options).as_layer()
        option_names(layer)
    except Exception:  # noqa: BLE001 - it will be made again, and then what is wrong is told
        return StrategyApplier
    return layer


def _options(source: object, names: list[str]) -> tuple[Option, ...]:
    if not names:
        return ()
    hints, parameters = hints_of(source), {each.name: each for each in _parameters(source)}
    fields = {each.name: each for each in _fields(source)}
    found: list[Option] = []
    for name in names:
        hint, default, field = hints.get(name, typing.Any), parameters[name].default, fields.get(name)
        form = _form(hint)
        if field is not None and field.default_factory is not dataclasses.MISSING and form == "plain":
            default = field.default_factory()
        found.append(Option(name, hint, default, form, field is not None and not field.repr))
    return tuple(found)


def _form(hint: object) -> Literal["plain", "counter", "client", "code", "service"]:
    if any(each == Resolver for each in (hint, *typing.get_args(hint))):
        return "service"
    if is_plain(hint):
        return "plain"
    kind = service_type(hint)
    if kind is None or kind.__module__ in ("collections.abc", "typing"):
        return "code"
    if issubclass(kind, TokenCounter):
        return "counter"
    return "client" if ChatClient in kind.__mro__ else "service"


def _parameters(source: object) -> list[inspect.Parameter]:
    return list(inspect.signature(cast("Callable[..., object]", source)).parameters.values())


def _fields(source: object) -> tuple[dataclasses.Field[object], ...]:
    made_by: object = source.func if isinstance(source, functools.partial) else source
    if isinstance(made_by, type) and dataclasses.is_dataclass(made_by):
        return cast("tuple[dataclasses.Field[object], ...]", dataclasses.fields(made_by))
    return ()
