"""Truncating: the oldest units go until limits in tokens and in items both hold."""

from __future__ import annotations

from dataclasses import dataclass

from chatstack.client.options import PositiveInt, Share, check_options
from chatstack.context.edits.context import Context
from chatstack.context.edits.limits import Limits
from chatstack.context.edits.plans import Plan
from chatstack.context.strategies.pruning import without_oldest
from chatstack.context.strategy import Strategy


@dataclass(frozen=True, slots=True, repr=False)
class Truncate(Strategy):
    """Above ``max_tokens`` of input or ``max_context_items``, removes the oldest units, whole ones only, down to
    ``truncate_to`` of both.

    Never touched: system, pinned and summary messages, the first user message (the task), the latest one, and calls
    that wait for results; what the model has not seen yet only where a limit cannot be kept otherwise. New tool results
    never go with their calls: they are shortened where they are too large, and so is, at last, a summary.
    Source: VideoSDK's context window.
    """

    max_tokens: PositiveInt | None = None
    max_context_items: PositiveInt | None = None
    truncate_to: Share = 0.7
    name = "truncate"
    quotes_nothing = True

    def __post_init__(self) -> None:
        check_options(self)

    def is_due(self, context: Context) -> bool:
        return bool(self.excess(context))

    def excess(self, context: Context) -> str:
        return self._limits(1.0).excess(context)

    def plan(self, context: Context) -> Plan | None:
        return without_oldest(context, self.name, self._limits(1.0), self._limits(self.truncate_to))

    def _limits(self, share: float) -> Limits:
        return Limits(self.max_tokens, self.max_context_items).times(share)
