"""Services that the layers of a stack share: the ones that were given, or those of the outermost layer."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
L = TypeVar("L", bound="DataclassInstance")

SERVICES = ("memory", "calibration", "windows", "attempts", "telemetry")
"""The fields of context layers that hold them."""

_not_given: weakref.WeakSet[object] = weakref.WeakSet()


def unless_given(service: type[T]) -> Callable[[], T]:
    """Return the default factory of a layer's service: if it was not given, that of a neighbour may take its place."""

    def made() -> T:
        own = service()
        _not_given.add(own)
        return own

    return made


def was_given(service: object) -> bool:
    """Return True unless a layer made this service for want of one."""
    return service not in _not_given


def in_common(layers: Sequence[object]) -> Mapping[str, object]:
    """Return the services of adjacent layers, by field: the first that was given, else that of the outermost layer."""
    found: dict[str, object] = {}
    for name in SERVICES:
        services = [each for layer in layers if (each := getattr(layer, name, None)) is not None]
        if services:
            found[name] = next(filter(was_given, services), services[0])
    return found


def with_services(layer: L, services: Mapping[str, object]) -> L:
    """Return the layer with these services in the place of those that it was not given; itself if there are none."""
    changes: dict[str, Any] = {
        name: services[name]
        for name in SERVICES
        if (own := getattr(layer, name, None)) is not None and own is not services[name] and not was_given(own)
    }
    return dataclasses.replace(layer, **changes) if changes else layer
