"""Accounts of the tokens and dollars used by turns, conversations and runs, and their budgets."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from decimal import Decimal
from typing import ClassVar

from chatstack.client.checks import OwnCopy
from chatstack.client.options import PositiveFloat, PositiveInt, check_arguments, check_options, check_value
from chatstack.client.protocol import ChatClient, provider_info
from chatstack.errors import WiringError
from chatstack.lru import Lru
from chatstack.tokens.prices import Price, dollars_for, price_of
from chatstack.tokens.published import provider_at
from chatstack.values.responses import ChatUpdate, Usage

_NOTHING_USED = Usage()
_FREE = Decimal(0)


class Account:
    """The account of one turn or conversation: its usage, that of its summaries, and the cost in dollars."""

    __slots__ = ("_lock", "cost", "overhead", "usage")

    def __init__(self) -> None:
        self.usage = self.overhead = _NOTHING_USED
        self.cost = _FREE
        self._lock = threading.Lock()

    @property
    def tokens(self) -> int:
        """All tokens used: input and output, summaries included."""
        return self.usage.total_tokens + self.overhead.total_tokens

    def add(
        self, usage: Usage, price: Price | None, *, is_overhead: bool = False, before: Usage = _NOTHING_USED
    ) -> None:
        """Add the usage of a call, and its cost if the price is known. ``before`` is what was added of that call
        already: the price may depend on the size of the whole."""
        cost = dollars_for(before + usage, price) if price is not None else None
        if cost and price is not None and before != _NOTHING_USED:
            cost -= dollars_for(before, price) or 0
        with self._lock:  # turns of one conversation may run in several threads
            if is_overhead:
                self.overhead = self.overhead + usage
            else:
                self.usage = self.usage + usage
            if cost:
                self.cost += cost

    def include(self, usage: Usage, overhead: Usage, cost: Decimal) -> None:
        """Add what was counted and priced elsewhere."""
        with self._lock:
            self.usage, self.overhead, self.cost = self.usage + usage, self.overhead + overhead, self.cost + cost

    def __repr__(self) -> str:
        return f"Account({self.tokens:,} tokens, {self.cost:f} dollars)"


@dataclass(frozen=True, slots=True)
class Allowance:
    """A budget: maximum tokens, and maximum cost in dollars. ``owner`` names whose options these are, for errors."""

    owner: str
    max_tokens: PositiveInt | None = None
    max_cost: PositiveFloat | Decimal | None = None
    price: Price | None = None

    def __post_init__(self) -> None:
        check_options(self, self.owner)

    @property
    def looks_up(self) -> bool:
        """True if the published price is needed."""
        return self.max_cost is not None and self.price is None

    def used(self, account: Account) -> float:
        """Return the share that is used up, of tokens or of dollars, whichever is larger; 1.0 is all of it."""
        tokens = account.tokens / self.max_tokens if self.max_tokens is not None else 0.0
        dollars = float(account.cost / Decimal(str(self.max_cost))) if self.max_cost is not None else 0.0
        return max(tokens, dollars)

    def excess(self, account: Account, period: str) -> str:
        """Return a message naming the bound that is used up; "" if none is."""
        if self.max_tokens is not None and account.tokens >= self.max_tokens:
            return f"{self.owner}: {account.tokens:,} tokens used in this {period}, max_tokens={self.max_tokens:,}"
        if self.max_cost is not None and account.cost >= Decimal(str(self.max_cost)):
            return f"{self.owner}: {account.cost:.4f} dollars used in this {period}, max_cost={self.max_cost}"
        return ""

    def price_of(self, client: ChatClient, model: str | None) -> Price | None:
        """Return the price of the requested model, the provider's by default; None without a bound on the cost. Raises
        ``WiringError`` if the price is not known, as the bound could not be kept."""
        if self.max_cost is None:
            return None
        info = provider_info(client)
        asked = model or (info.model if info is not None else "")
        price = self.price or price_of(asked, provider_at(info.server_address if info is not None else ""))
        if price is None or dollars_for(Usage(1, 1), price) is None:
            raise WiringError(
                f"{self.owner}: the price of {asked!r} is not known, so max_cost cannot be kept; give "
                "price=Price.per_million(input=..., output=...), or install the tables: "
                "pip install 'chatstack-core[prices]'",
                layer=self.owner,
                parameter="price",
            )
        return price

    def price_of_answer(self, model: str, asked: Price | None, tier: str = "") -> Price | None:
        """Return the price of the model that answered, in the service tier that did; both may differ from what was
        asked for. ``asked``, the price of that, if it is not known."""
        if asked is None or self.price is not None or not (model or tier):
            return asked
        answered = price_of(model or asked.model, asked.provider, tier)
        return asked if answered is None or dollars_for(Usage(1, 1), answered) is None else answered


@dataclass(slots=True, eq=False)
class Meter:
    """Counts the updates of answers in an account, each usage at the price of the model that it is told with."""

    account: Account
    allowance: Allowance
    asked: Price | None
    _told: Usage = field(default=_NOTHING_USED, init=False)

    def count(self, update: ChatUpdate) -> None:
        """Add the usage that the update tells, if any."""
        if update.usage is not None or update.overhead_usage is not None:
            price = self.allowance.price_of_answer(update.model, self.asked, update.service_tier)
            if update.usage is not None:
                self.account.add(update.usage, price, before=self._told)
                self._told += update.usage
            if update.overhead_usage is not None:
                self.account.add(update.overhead_usage, price, is_overhead=True)
        if update.message_done is not None:
            self._told = _NOTHING_USED


class Spending(OwnCopy):
    """The accounts of conversations, in this process. A stack and all stacks derived from it share one.

    Bounded: beyond ``max_conversations``, the least recently used account is forgotten, and would start anew.
    """

    shared_by_stack: ClassVar[bool] = True

    def __init__(self, *, max_conversations: PositiveInt = 100_000) -> None:
        check_arguments(Spending, max_conversations=max_conversations)
        self._accounts: Lru[str, Account] = Lru(max_conversations)
        self._lock = threading.Lock()

    def of(self, conversation_id: str) -> Account:
        """Return the account of that conversation, a new one if it has none."""
        if not isinstance(conversation_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            check_value("Spending.of", "conversation_id", conversation_id, str)
        with self._lock:
            account = self._accounts.get(conversation_id)
            if account is None:
                account = Account()
                self._accounts.put(conversation_id, account)
            return account

    def forget(self, conversation_id: str) -> None:
        """Forget the account of that conversation, which then starts anew."""
        check_value("Spending.forget", "conversation_id", conversation_id, str)
        with self._lock:
            self._accounts.pop(conversation_id, None)

    def __repr__(self) -> str:
        return f"Spending({len(self._accounts):,} conversations)"
