"""Services that the context layers of a stack share."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, TypeVar

from chatstack.client.checks import OwnCopy
from chatstack.client.options import check_options
from chatstack.context.memory.memory import ContextMemory
from chatstack.context.requests.attempts import SummaryAttempts
from chatstack.telemetry.emission import Telemetry
from chatstack.tokens.calibration import Calibration
from chatstack.tokens.windows import Windows

T = TypeVar("T")

_not_given: weakref.WeakSet[object] = weakref.WeakSet()


def _unless_given(service: type[T]) -> Callable[[], T]:
    """Return the default factory of a service: if it was not given, that of a neighbour may take its place."""

    def made() -> T:
        own = service()
        _not_given.add(own)
        return own

    return made


@dataclass(frozen=True, slots=True, eq=False)
class ContextServices(OwnCopy):
    """All that the context layers of a stack share: decisions, corrections of sizes, windows, attempts at summaries,
    and telemetry.

    A stack makes one, of what its container has bound: this type, or the types of its parts. Layers made by hand share
    what one of them was given: a part that was named here counts as given, one made for want of it does not. A layer
    that adopts a neighbour's part still shows its own.
    """

    _: KW_ONLY
    memory: ContextMemory = field(default_factory=_unless_given(ContextMemory))
    calibration: Calibration = field(default_factory=_unless_given(Calibration))
    windows: Windows = field(default_factory=_unless_given(Windows))
    attempts: SummaryAttempts = field(default_factory=_unless_given(SummaryAttempts))
    telemetry: Telemetry = field(default_factory=_unless_given(Telemetry))

    shared_by_stack: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_options(self)

    @classmethod
    def from_parts(cls, part: Callable[[type[Any]], Any]) -> ContextServices:
        """Make them of a container's parts; ``part`` returns the instance of a type."""
        return cls(
            memory=part(ContextMemory),
            calibration=part(Calibration),
            windows=part(Windows),
            attempts=part(SummaryAttempts),
            telemetry=part(Telemetry),
        )


_PARTS = tuple(each.name for each in dataclasses.fields(ContextServices))


def in_common(services: Sequence[ContextServices]) -> list[ContextServices]:
    """Return the services of adjacent layers, each with those of its neighbours in the place of what it was not given:
    the first that was given, else that of the outermost layer."""
    shared = {name: _first_given([getattr(each, name) for each in services]) for name in _PARTS}
    return [_with_shared(each, shared) for each in services]


def memories_given(services: Sequence[ContextServices]) -> int:
    """Return how many different memories these layers were given."""
    return len({id(each.memory) for each in services if each.memory not in _not_given})


def _first_given(services: Sequence[object]) -> object:
    return next((each for each in services if each not in _not_given), services[0])


def _with_shared(own: ContextServices, shared: dict[str, object]) -> ContextServices:
    changes: dict[str, Any] = {
        name: shared[name]
        for name in _PARTS
        if getattr(own, name) is not shared[name] and getattr(own, name) in _not_given
    }
    return dataclasses.replace(own, **changes) if changes else own
