"""Limits of a context: in tokens, in items, or in both."""

from __future__ import annotations

import msgspec

from chatstack.client.wiring import wrong
from chatstack.context.context import Context


class Limits(msgspec.Struct, frozen=True):
    """What a context is to stay within: ``max_tokens`` of input (messages, instructions, tool schemas) and, where
    ``with_reserve`` says so, room for the answer; ``max_items``, which are messages, tool calls and tool results.
    None is no limit."""

    max_tokens: int | None = None
    max_items: int | None = None
    with_reserve: bool = False

    def tokens(self, context: Context) -> int:
        """What the limit in tokens is about."""
        return context.tokens if self.with_reserve else context.tokens - context.reserved_tokens

    def excess(self, context: Context) -> str:
        """What is too much of it, in words; "" if it is within the limits."""
        found: list[str] = []
        if self.max_tokens is not None and self.tokens(context) > self.max_tokens:
            found.append(f"{self.tokens(context):,} tokens, more than {self.max_tokens:,}")
        if self.max_items is not None and context.items > self.max_items:
            found.append(f"{context.items:,} items, more than {self.max_items:,}")
        return " and ".join(found)

    def allow(self, tokens: float, items: int, share: float = 1.0) -> bool:
        """Whether that much is within the limits, or within a share of them."""
        return (self.max_tokens is None or tokens <= self.max_tokens * share) and (
            self.max_items is None or items <= self.max_items * share
        )


def check_share(owner: str, name: str, value: object, of: str) -> None:
    """Refuse what is no share of that. Raises ``WiringError``."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise wrong(owner, name, value, f"a share of {of}: greater than 0, at most 1")


def check_window(owner: str, value: object) -> None:
    """Refuse what is neither a number of tokens nor "auto", the model's own window. Raises ``WiringError``."""
    if value != "auto" and (type(value) is not int or value <= 0):
        raise wrong(owner, "max_context_tokens", value, 'a whole number of tokens greater than 0, or "auto"')


def check_limit(owner: str, name: str, value: object) -> None:
    """Refuse what is no limit. Raises ``WiringError``."""
    if value is not None and (type(value) is not int or value < 1):
        raise wrong(owner, name, value, "a whole number, at least 1, or None")
