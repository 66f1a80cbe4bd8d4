"""Limits of a context: in tokens, in items, or in both."""

from __future__ import annotations

import msgspec

from chatstack.context.edits.context import Context
from chatstack.errors import WiringError
from chatstack.tokens.counter import TokenCounter


class Limits(msgspec.Struct, frozen=True):
    """The limits of a context: ``max_tokens`` of input (messages, instructions, tool schemas), plus the room for the
    answer if ``with_reserve``; ``max_items``, counting messages, tool calls and tool results. None is no limit."""

    max_tokens: int | None = None
    max_items: int | None = None
    with_reserve: bool = False

    def tokens(self, context: Context) -> int:
        """Return the size that the limit in tokens applies to."""
        return context.tokens if self.with_reserve else context.tokens - context.reserved_tokens

    def excess(self, context: Context) -> str:
        """Return in words by which limits the context is too large; "" if it is within them."""
        found: list[str] = []
        if self.max_tokens is not None and self.tokens(context) > self.max_tokens:
            size = context.size_told if self.with_reserve else f"{self.tokens(context):,} tokens"
            found.append(f"{size}, more than {self.max_tokens:,}")
        if self.max_items is not None and context.items > self.max_items:
            found.append(f"{context.items:,} items, more than {self.max_items:,}")
        return " and ".join(found)

    def times(self, share: float) -> Limits:
        """Return that share of the limits."""
        tokens, items = self.max_tokens, self.max_items
        return Limits(
            None if tokens is None else max(1, int(tokens * share)),
            None if items is None else max(1, int(items * share)),
            self.with_reserve,
        )

    def allow(self, tokens: float, items: int, share: float = 1.0) -> bool:
        """Return True if these sizes are within the limits, or within a share of them."""
        return (self.max_tokens is None or tokens <= self.max_tokens * share) and (
            self.max_items is None or items <= self.max_items * share
        )


def check_counter(layer: str, counter: object) -> None:
    """Refuse anything but a hashable ``TokenCounter``, as sizes are kept by counter. Raises ``WiringError``."""
    kind = type(counter).__name__
    if not isinstance(counter, TokenCounter):  # pyright: ignore[reportUnnecessaryIsInstance]
        told = f"counter={kind!r} must be a TokenCounter: derive your own from it"
        if isinstance(counter, type):  # pyright: ignore[reportUnnecessaryIsInstance]
            told = f"counter is the class {counter.__name__} itself; pass an instance: {counter.__name__}(...)"
        raise WiringError(f"{layer}: {told}", layer=layer, parameter="counter")
    if type(counter).__hash__ is None:
        raise WiringError(
            f"{layer}: counter {kind} cannot be hashed, and sizes are kept by counter: a dataclass needs "
            "eq=False, or frozen=True",
            layer=layer,
            parameter="counter",
        )
