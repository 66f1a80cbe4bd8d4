"""The services shared by the layers of one stack: made once, on demand, they outlive a built client."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Concatenate, ParamSpec, Protocol, cast

from chatstack.client.hints import hints_of
from chatstack.client.protocol import ChatClient
from chatstack.client.wiring import Resolver, as_types, ask, is_bound
from chatstack.errors import WiringError

P = ParamSpec("P")


class StackService(Protocol):
    """A class with ``shared_by_stack = True`` that can be made without arguments: one instance serves a stack."""

    shared_by_stack: ClassVar[bool]


class SupportsLayer(Protocol[P]):
    """A strategy, which can be used as a layer: it gives the layer that applies it, with the options ``P``."""

    def as_layer(self) -> Callable[Concatenate[ChatClient, P], ChatClient]: ...


class SharedServices:
    """The services that a stack has made, shared by every recipe derived from it."""

    def __init__(self) -> None:
        self._made: dict[type, object] = {}

    def behind(self, resolve: Resolver | None, *given: object) -> Resolver:
        """Return a resolver that has what a recipe was given, for its class and every class that this derives from;
        then asks the container; then returns the services of the stack.

        Services that have ``from_parts`` are made of others, each of which may have been given, or the container have.
        """
        named: Mapping[object, object] = {kind: each for each in given for kind in as_types(each)}
        made_of_parts: dict[type, object] = {}

        def resolved(kind: type) -> object:
            if kind in named:
                return named[kind]
            if resolve is not None and is_bound(found := ask(resolve, kind)):
                return _with_given(_checked(found, kind), named)
            if kind in self._made:
                return self._made[kind]
            from_parts = getattr(kind, "from_parts", None)
            if from_parts is not None:
                return made_of_parts.get(kind) or made_of_parts.setdefault(kind, from_parts(resolved))
            if getattr(kind, "shared_by_stack", False):
                return self._made.setdefault(kind, cast("type[object]", kind)())
            raise LookupError(kind)

        return resolved

    def __repr__(self) -> str:
        return f"SharedServices({', '.join(sorted({type(each).__name__ for each in self._made.values()}))})"


def _checked(found: object, kind: type) -> object:
    """Refuse something else in the place of a shared service: it would fail only at the first call."""
    if getattr(kind, "shared_by_stack", False) and not isinstance(found, kind):
        told = f"the container gave a {type(found).__name__} for {kind.__name__}; bind an instance of {kind.__name__}"
        raise WiringError(f"build: resolve: {told}", parameter="resolve")
    return found


def _with_given(found: object, named: Mapping[object, object]) -> object:
    """Return a container's services with what the recipe was given in the place of such parts."""
    if not hasattr(found, "from_parts"):
        return found
    parts = {name: named[hint] for name, hint in hints_of(type(found)).items() if hint in named}
    return dataclasses.replace(cast("Any", found), **parts) if parts else found
