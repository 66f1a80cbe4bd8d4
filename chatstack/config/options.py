"""The options of layers, strategies and services, read from their signatures: type, default, and form in a config."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Literal, NamedTuple, TypeAlias, cast

from chatstack.client.hints import bare, hints_of, is_plain, kinds, options_in
from chatstack.client.protocol import ChatClient
from chatstack.client.wiring import Layer, Resolver, option_names, service_type
from chatstack.context.strategy import StrategyApplier
from chatstack.stack.services import SupportsLayer
from chatstack.tokens.counter import TokenCounter
from chatstack.tools.tool import Tool

PROVIDER_OPTIONS = (
    "base_url",
    "timeout_seconds",
    "max_retries",
    "stall_seconds",
    "window_tokens",
    "max_tokens_field",
    "cache",
    "cloud",
)
"""The options that a config can set on a provider, where the provider takes them."""

Form: TypeAlias = Literal["plain", "counter", "client", "clients", "code", "service"]

REQUIRED = inspect.Parameter.empty
"""The sentinel for the default of an option without one."""


class Option(NamedTuple):
    """An option of a layer, a strategy or a service.

    ``form`` is how a config expresses it: as plain data, a counter, a client or several clients; or not at all, because
    it is code, or a service from the stack or a container. ``secret`` is which values may be secrets: any, where a
    layer keeps the option out of its repr; free text, where there is no dataclass field that tells.
    """

    name: str
    hint: object
    default: object
    form: Form
    secret: Literal["", "text", "any"] = ""

    def hides(self, value: object) -> bool:
        """Return True if this value may be a secret: errors do not quote it and ``chatstack inspect`` hides it."""
        if self.secret == "text":
            return value is not None and not isinstance(value, bool | int | float)
        return self.secret == "any"


def options_of(source: object) -> tuple[Option, ...]:
    """Return the options of a layer; for a strategy, also those of the layer that applies it."""
    own = own_options(source)
    if not is_strategy(source):
        return own
    names = {each.name for each in own}
    others = own_options(applying_layer(cast("type[SupportsLayer[...]]", source), {}))
    return own + tuple(each for each in others if each.name not in names and each.form not in ("code", "service"))


def own_options(source: object) -> tuple[Option, ...]:
    """Return the options of a layer, without the client that it wraps; for a strategy, only its own options."""
    if not hasattr(source, "as_layer"):
        return _options(source, option_names(cast("Layer", source)))
    return service_options(source) if callable(source) else ()


def service_options(make: object) -> tuple[Option, ...]:
    """Return the options of something that is not a layer: a counter, a store, the memory."""
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return _options(make, [each.name for each in _parameters(make) if each.kind in by_name])


def provider_options(make: object) -> tuple[Option, ...]:
    """Return the options that a config can set on a provider, beside its model: never a key, nor an object."""
    return tuple(each for each in service_options(make) if each.name in PROVIDER_OPTIONS)


def takes_tools(option: Option) -> bool:
    """Return True if an option is a list of tools, which a config names by their import paths."""
    inside = [kind for each in typing.get_args(bare(option.hint)) for kind in (each, *typing.get_args(each))]
    return option.form == "code" and any((typing.get_origin(kind) or kind) is Tool for kind in inside)


def unhinted(name: str) -> Option:
    """Return an option without a type hint, as one passed by ``**options``."""
    return Option(name, typing.Any, REQUIRED, "plain", "text")


def is_strategy(source: object) -> bool:
    """Return True for the class of a strategy: its options are its own and those of the layer that applies it."""
    return isinstance(source, type) and hasattr(source, "as_layer")


def takes_any(source: object) -> bool:
    """Return True if it takes options of any name (``**options``)."""
    return callable(source) and any(each.kind is each.VAR_KEYWORD for each in _parameters(source))


def applying_layer(strategy: type[SupportsLayer[...]], options: Mapping[str, object]) -> Layer:
    """Return the layer that applies a strategy with these options; the default one if they are invalid."""
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
    parameters = {name: each for name, (each, _) in options_in(source).items()} | parameters
    fields = {each.name: each for each in _fields(source)}
    found: list[Option] = []
    for name in names:
        hint, default, field = hints.get(name, typing.Any), parameters[name].default, fields.get(name)
        form = _form(hint)
        secret: Literal["", "text", "any"] = (
            "" if form in ("counter", "client", "clients", "service") or _is_closed(hint) else "text"
        )
        if fields:
            secret = "" if field is not None and field.repr else "any"
        if field is not None and field.default_factory is not dataclasses.MISSING and form == "plain":
            default = field.default_factory()
        found.append(Option(name, hint, default, form, secret))
    return tuple(found)


def _is_closed(hint: object) -> bool:
    """Return True if the hint allows only numbers, booleans, enums and literals, which cannot hold a secret."""
    found = [typing.get_origin(each) or each for each in kinds(hint)]
    closed = (int, float, Enum, types.NoneType)
    return all(kind is typing.Literal or (isinstance(kind, type) and issubclass(kind, closed)) for kind in found)


def _form(hint: object) -> Form:
    if any(each == Resolver for each in kinds(hint)):
        return "service"
    if is_plain(hint):
        return "plain"
    if typing.get_origin(bare(hint)) is Sequence and typing.get_args(bare(hint)) == (ChatClient,):
        return "clients"
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
