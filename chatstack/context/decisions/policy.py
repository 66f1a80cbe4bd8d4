"""Policies: strategies with their layers' rules for when to plan, and where."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from chatstack.context.edits.context import Context
from chatstack.context.edits.plans import Plan
from chatstack.context.histories.conversations import Wait
from chatstack.context.histories.recognised import Recognised


class Policy(NamedTuple):
    """A strategy with its layer's rules for when to plan.

    ``is_due`` is cheap, and once true it stays true as a context grows. ``waits_on`` gives the sizes that the layer
    waits on after a search that found no edit (see ``Wait``); None if it searches again on each call. A new user
    message ends the wait, unless it ``waits_over_turns``. Where both go ``by_size`` alone, they may be asked about a
    context of that size without messages. From ``aside_from`` messages on (256, if it
    does not say) ``plan`` is called in a thread.
    """

    plan: Callable[[Context], Plan | None]
    is_due: Callable[[Context], bool]
    waits_on: Callable[[Context], tuple[int, ...] | None] = lambda _: None
    waits_over_turns: bool = False
    by_size: bool = False
    aside_from: int | None = None

    def wait(self, context: Context, seen: Recognised) -> Wait | None:
        """Return what its layer waits on after a search that found no edit; None if it does not wait."""
        sizes = self.waits_on(context)
        return None if sizes is None else Wait(self._asked_at(seen), sizes)

    def is_waiting(self, wait: Wait | None, context: Context, seen: Recognised) -> bool:
        """Return True if its layer need not search again: little has changed since it began to wait."""
        if wait is None:
            return False
        sizes = self.waits_on(context)
        return sizes is not None and wait.goes_on(self._asked_at(seen), sizes)

    def _asked_at(self, seen: Recognised) -> int:
        """Return the position of the user message that a wait began under; -1 if it does not depend on that."""
        return -1 if self.waits_over_turns else seen.asked_at(seen.length)
