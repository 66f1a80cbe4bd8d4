"""What the layers of one stack share: things that outlive a built client, made once and on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Concatenate, ParamSpec, Protocol, cast

from chatstack.client.protocol import ChatClient
from chatstack.client.wiring import Resolver, as_types, ask, is_bound

P = ParamSpec("P")


class StackService(Protocol):
    """A class that says ``shared_by_stack = True`` and can be made without arguments: one instance serves a stack."""

    shared_by_stack: ClassVar[bool]


class SupportsLayer(Protocol[P]):
    """A value that can be used as a layer: a strategy gives the layer that applies it, whose options ``P`` are."""

    def as_layer(self) -> Callable[Concatenate[ChatClient, P], ChatClient]: ...


class SharedServices:
    """The shared services of a stack and of every recipe derived from it."""

    def __init__(self) -> None:
        self._made: dict[type, object] = {}

    def add(self, service: object) -> None:
        """Share this one, for its class and for every class that it derives from."""
        for kind in as_types(service):
            self._made[kind] = service

    def behind(self, resolve: Resolver | None) -> Resolver:
        """A resolver that asks the container first, then hands out what the stack shares."""

        def resolved(kind: type) -> object:
            if resolve is not None and is_bound(found := ask(resolve, kind)):
                return found
            if kind in self._made:
                return self._made[kind]
            if getattr(kind, "shared_by_stack", False):
                return self._made.setdefault(kind, cast("type[object]", kind)())
            raise LookupError(kind)

        return resolved

    def __repr__(self) -> str:
        return f"SharedServices({', '.join(sorted({type(each).__name__ for each in self._made.values()}))})"
