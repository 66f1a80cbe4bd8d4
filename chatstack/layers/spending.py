"""What turns, conversations and runs have used, and what of it their budgets allow."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from msgspec.structs import replace

from chatstack.client.options import PositiveFloat, PositiveInt, check_arguments, check_options
from chatstack.client.protocol import ChatClient, provider_info
from chatstack.errors import WiringError
from chatstack.lru import Lru
from chatstack.tokens.prices import Price, price_of
from chatstack.values.responses import Usage


class Account:
    """What one turn or conversation has used: tokens, those of summaries beside them, and dollars."""

    __slots__ = ("_lock", "cost", "overhead", "usage")

    def __init__(self) -> None:
        self.usage = Usage()
        self.overhead = Usage()
        self.cost: Decimal = Decimal(0)
        self._lock = threading.Lock()

    @property
    def tokens(self) -> int:
        """All of them: input and output, summaries included."""
        return self.usage.total_tokens + self.overhead.total_tokens

    def add(self, usage: Usage, price: Price | None, *, is_overhead: bool = False) -> None:
        """Take in what a call has used, at that price if there is one."""
        cost = (_dollars(usage, price) if price is not None else None) or Decimal(0)
        with self._lock:  # turns of one conversation may run in several threads
            if is_overhead:
                self.overhead = self.overhead + usage
            else:
                self.usage = self.usage + usage
            self.cost += cost

    def __repr__(self) -> str:
        return f"Account({self.tokens:,} tokens, {self.cost:f} dollars)"


@dataclass(frozen=True, slots=True)
class Allowance:
    """How many tokens may be used, and how many dollars. ``owner`` is whose parameters these are, for errors."""

    owner: str
    max_tokens: PositiveInt | None = None
    max_cost: PositiveFloat | Decimal | None = None
    price: Price | None = None

    def __post_init__(self) -> None:
        check_options(self, self.owner)

    @property
    def is_limited(self) -> bool:
        """Whether anything is bounded at all."""
        return self.max_tokens is not None or self.max_cost is not None

    @property
    def looks_up(self) -> bool:
        """True where the published price is needed."""
        return self.max_cost is not None and self.price is None

    def used(self, account: Account) -> float:
        """The share that is used up, of tokens or of dollars, whichever is larger; 1.0 is all of it."""
        tokens = account.tokens / self.max_tokens if self.max_tokens is not None else 0.0
        dollars = float(account.cost / Decimal(str(self.max_cost))) if self.max_cost is not None else 0.0
        return max(tokens, dollars)

    def excess(self, account: Account, period: str) -> str:
        """What is used up of it, or ""."""
        if self.max_tokens is not None and account.tokens >= self.max_tokens:
            return f"{self.owner}: {account.tokens:,} tokens used in this {period}, max_tokens={self.max_tokens:,}"
        if self.max_cost is not None and account.cost >= Decimal(str(self.max_cost)):
            return f"{self.owner}: {account.cost:.4f} dollars used in this {period}, max_cost={self.max_cost}"
        return ""

    def price_of(self, client: ChatClient, model: str | None) -> Price | None:
        """The price of what that client is asked; None where no cost is bounded. Raises ``WiringError`` if nobody knows
        it: an unknown cost cannot be kept within anything."""
        if self.max_cost is None:
            return None
        info = provider_info(client)
        asked = model or (info.model if info is not None else "")
        price = self.price or price_of(asked)
        if price is None or _dollars(Usage(1, 1), price) is None:
            raise WiringError(
                f"{self.owner}: the price of {asked!r} is not known, so max_cost cannot be kept; give "
                "price=Price(...), or install the tables: pip install 'chatstack-core[prices]'",
                layer=self.owner,
                parameter="price",
            )
        return price

    def price_of_answer(self, model: str, asked: Price | None) -> Price | None:
        """The price of the model that says it has answered, who may be another one; ``asked`` where it is not known."""
        if asked is None or self.price is not None or not model:
            return asked
        answered = price_of(model)
        return asked if answered is None or _dollars(Usage(1, 1), answered) is None else answered


def _dollars(usage: Usage, price: Price) -> Decimal | None:
    """What that has cost; writing to the cache as much as input, where nobody says what it costs."""
    found = price.of_usage(usage)
    return found if found is not None else price.of_usage(replace(usage, cache_write_tokens=0))


class Spending:
    """The accounts of conversations, in this process. Of a stack and all that is derived from it there is one.

    Bounded: of ``max_conversations`` the one that was not heard of for longest is forgotten, and would start anew.
    """

    shared_by_stack: ClassVar[bool] = True

    def __init__(self, *, max_conversations: PositiveInt = 100_000) -> None:
        check_arguments(Spending, max_conversations=max_conversations)
        self._accounts: Lru[str, Account] = Lru(max_conversations)
        self._lock = threading.Lock()

    def of(self, conversation_id: str) -> Account:
        """What that conversation has used up to now."""
        with self._lock:
            account = self._accounts.get(conversation_id)
            if account is None:
                account = Account()
                self._accounts.put(conversation_id, account)
            return account

    def forget(self, conversation_id: str) -> None:
        """Let that conversation start anew."""
        with self._lock:
            self._accounts.pop(conversation_id, None)

    def __repr__(self) -> str:
        return f"Spending({len(self._accounts):,} conversations)"
