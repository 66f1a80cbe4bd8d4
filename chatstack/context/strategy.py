"""A strategy: a pure function from what would be sent to a plan."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import ClassVar

from chatstack.client.wiring import Layer
from chatstack.context.context import Context
from chatstack.context.plans import Plan


class Strategy(ABC):
    """Decides what to edit. Subclass it, write ``plan``, and hand it to a layer that applies strategies.

    A strategy is a value: it keeps nothing between calls, its repr names all its options, and for the same context
    it makes the same plan. What it plans is verified before it is sent.
    """

    __slots__ = ()

    name: ClassVar[str] = "custom"

    @abstractmethod
    def plan(self, context: Context) -> Plan | None:
        """The edit to make, or None for none."""

    def as_layer(self) -> Layer:
        """The layer that applies it: what ``ChatStack.use(strategy)`` puts into the stack."""
        from chatstack.context.applier import StrategyApplier  # it knows strategies, so not above

        return functools.partial(StrategyApplier, strategy=self)
