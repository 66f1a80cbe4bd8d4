"""The services shared by the layers of one stack: made once, on demand, they outlive a built client."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Concatenate, ParamSpec, Protocol, cast

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
    """The shared services of a stack and of every recipe derived from it."""

    def __init__(self) -> None:
        self._made: dict[type, object] = {}

    def add(self, service: object) -> None:
        """Share this instance, for its class and every class that it derives from."""
        for kind in as_types(service):
            self._made[kind] = service

    def behind(self, resolve: Resolver | None) -> Resolver:
        """Return a resolver that asks the container first, then returns the services of the stack.

        Services that have ``from_parts`` are made of others, each of which the container may have.
        """
        made_of_parts: dict[type, object] = {}

        def resolved(kind: type) -> object:
            if resolve is not None and is_bound(found := ask(resolve, kind)):
                return _checked(found, kind)
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
