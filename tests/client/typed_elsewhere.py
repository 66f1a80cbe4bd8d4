"""Layers whose hints name what is there for type checkers alone, as ruff's rules on imports leave them."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from chatstack import FROM_CONTAINER, ChatFronts, ContextWindowGuard, TokenCounter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal

    from chatstack import ChatClient, ChatRequest, ChatStream


class Hands(ChatFronts):
    """Hands requests on."""

    inner: ChatClient

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request)


@dataclass(frozen=True, slots=True, eq=False)
class Labelled(ContextWindowGuard):
    """A guard with an option of plain values, whose type is not there."""

    labels: Sequence[str] = ()


@dataclass(eq=False)
class Weighing(Hands):
    """Only its first hint, and one of a plain value, are not there."""

    inner: ChatClient
    _: KW_ONLY
    labels: Sequence[str] = ()
    counter: TokenCounter = FROM_CONTAINER


class Priced(Hands):
    """Nobody knows whether a ``Decimal`` is a service."""

    def __init__(self, inner: ChatClient, *, price: Decimal | None = None, counter: TokenCounter | None = None) -> None:
        self.inner, self.price, self.counter = inner, price, counter


class Costly(Hands):
    """The same without a default."""

    def __init__(self, inner: ChatClient, *, price: Decimal, **_others: Any) -> None:
        self.inner, self.price = inner, price
