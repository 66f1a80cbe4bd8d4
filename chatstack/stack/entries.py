"""The entries of a recipe: a layer's source, name and options."""

from __future__ import annotations

import copy
import inspect
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, is_dataclass
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeAlias, cast, overload

from chatstack.client.hints import hints_of, is_union, kinds
from chatstack.client.options import changed_options, check_value
from chatstack.client.protocol import ChatClient, is_client
from chatstack.client.wiring import Layer, check_options, name_of, option_names, shown
from chatstack.errors import WiringError
from chatstack.stack.services import SupportsLayer

P = ParamSpec("P")

_MUTABLE: tuple[object, ...] = (dict, list, set)
_READ: tuple[object, ...] = (Mapping, Sequence, Collection, Iterable, Set)

LayerSource: TypeAlias = Layer | SupportsLayer[...] | type[SupportsLayer[...]]
"""The source of a layer, as ``use`` takes it: a layer's class or factory, a strategy, or a strategy's class."""


@dataclass(frozen=True, slots=True)
class Named:
    """A layer's source with a name of its own, made by ``named``."""

    name: str
    source: LayerSource

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Make the layer, or the strategy, as its class or factory would."""
        return cast("Callable[..., object]", self.source)(*args, **options)


@overload
def named(
    name: str, layer: Callable[Concatenate[ChatClient, P], ChatClient], /
) -> Callable[Concatenate[ChatClient, P], ChatClient]: ...


@overload
def named(name: str, strategy: Callable[P, SupportsLayer[...]], /) -> Callable[P, SupportsLayer[...]]: ...


@overload
def named(name: str, strategy: SupportsLayer[P], /) -> Callable[Concatenate[ChatClient, P], ChatClient]: ...


def named(name: str, source: Any, /) -> Any:
    """Give a layer a name, to tell two of a kind apart or to find it again.

    ``.use(named("early", ContextWindowGuard), max_context_tokens=100)``
    """
    if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise WiringError(f"named: {name!r} is no name; pass text", parameter="name")
    return Named(name, source.source if isinstance(source, Named) else source)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One entry of a recipe: a layer's name, source and options."""

    name: str
    source: LayerSource
    options: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        check_value("LayerSpec", "name", self.name, str)
        check_value("LayerSpec", "options", self.options, Mapping[str, object], is_shown=False)
        object.__setattr__(self, "options", MappingProxyType(_own(self.source, self.options)))

    def __reduce__(self) -> tuple[object, ...]:
        return LayerSpec, (self.name, self.source, dict(self.options))

    def __repr__(self) -> str:
        options = "".join(f", {name}={self._shown(name, value)}" for name, value in self.options.items())
        source = name_of(self.source)
        called = source if self.name == source else f"named({self.name!r}, {source})"
        return f"use({called}{options})"

    def _shown(self, name: str, value: object) -> str:
        """Return the repr of an option; "..." for a possible secret: a field hidden in the layer's repr, or a factory's
        option that is neither a number, a boolean nor None."""
        fields = getattr(self.source, "__dataclass_fields__", None)
        if fields is None:
            return repr(value) if value is None or isinstance(value, bool | int | float) else "..."
        return shown(value) if name not in fields or fields[name].repr else "..."

    def factory(self) -> tuple[Layer, Mapping[str, object]]:
        """Return the layer's factory and the options for it."""
        source = self.source
        if isinstance(source, type) and hasattr(source, "as_layer"):
            return self._of_strategy(cast("type[SupportsLayer[...]]", source))
        if not isinstance(source, type) and hasattr(source, "as_layer"):
            return cast("SupportsLayer[...]", source).as_layer(), self.options
        return cast("Layer", source), self.options

    def _of_strategy(self, strategy: type[SupportsLayer[...]]) -> tuple[Layer, Mapping[str, object]]:
        """Make a strategy with the options that it knows; return the layer that applies it and the other options."""
        known = list(inspect.signature(strategy).parameters)
        own = {name: value for name, value in self.options.items() if name in known}
        left = {name: value for name, value in self.options.items() if name not in known}
        try:
            layer = strategy(**own).as_layer()
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise
            check_options(left, [], self.name, also=known)  # what is missing may have been misspelt
            raise WiringError(f"layer {self.name!r}: {error}", layer=self.name) from error
        check_options(left, option_names(layer), self.name, also=known, factory=layer)
        return layer, left


def _own(source: LayerSource, options: Mapping[str, object]) -> dict[str, object]:
    """Return the options with copies of dicts, lists and sets that a layer says it only reads, as their owner may
    change them later. Any other stays the same, for it may be there to write to."""
    if not callable(source) or not any(type(each) in _MUTABLE for each in options.values()):
        return dict(options)
    hints = hints_of(source)
    return {
        name: copy.copy(value) if type(value) in _MUTABLE and _is_read_only(hints.get(name)) else value
        for name, value in options.items()
    }


def _is_read_only(hint: object) -> bool:
    """Return True if a hint names a collection that is read, and none that may be written to."""
    origins = {typing.get_origin(each) or each for each in kinds(hint)}
    return not origins.isdisjoint(_READ) and origins.isdisjoint(_MUTABLE)


def _options_given(layer: object) -> list[str]:
    """Return the names of the options with which a layer was made; none for a class of another make."""
    return list(changed_options(layer)) if is_dataclass(layer) else []


def check_source(verb: str, source: object) -> None:
    makes = isinstance(source, type) or (callable(source) and not is_client(source)) or hasattr(source, "as_layer")
    if makes and not is_union(source):
        return
    kind = type(source).__name__
    if is_client(source):
        options = "".join(f", {name}=..." for name in _options_given(source)) or ", ..."
        called = "name, " if verb == "override" else ""
        told = f"{verb}: pass the class, not an instance: .{verb}({called}{kind}{options})"
        raise WiringError(told, layer=kind)
    raise WiringError(f"{verb}: {source!r} is not a layer: pass its class, a factory, or a strategy")
