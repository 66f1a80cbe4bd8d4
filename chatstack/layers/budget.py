"""The layer that stops what has become too expensive."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from decimal import Decimal
from typing import ClassVar, Literal, TypeAlias, get_args

from chatstack.client.fronts import ChatFronts
from chatstack.client.protocol import ChatClient, chain
from chatstack.client.stream import ChatStream
from chatstack.errors import BudgetExceeded, InputError, WiringError
from chatstack.layers.spending import Account, Allowance, Spending
from chatstack.tokens.prices import Price
from chatstack.tools.turn import NOT_RUN
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate, FinishReason

BudgetPeriod: TypeAlias = Literal["turn", "conversation"]


@dataclass(frozen=True, slots=True, eq=False)
class Budget(ChatFronts):
    """Stops a turn, or a conversation, that has used up its tokens or its money: ``BudgetExceeded``.

    Goes outside the tool loop, where it sees the rounds of a turn and what summaries cost. What a call will use is
    known only afterwards, so the last call may exceed the budget; none is begun when it is used up. Tool calls that
    the last answer asked for are run, so that calls and results stay together, and the turn ends behind them; a
    turn that ends by itself is not disturbed.

    ``max_tokens`` counts input and output as the provider reports them: what it does not report is not counted.
    ``max_cost`` is in dollars, at the prices of ``price``, else at those that ``genai-prices`` has (the extra
    ``prices``) for the model that answered, or, where that is not known, for the one that was asked. A budget of a
    conversation is kept in this process, by ``conversation_id``, in the stack's ``Spending``. Raises ``InputError`` for
    a conversation without an id, and ``WiringError`` where the price of the model that is asked is not known, before
    anything is sent.
    """

    inner: ChatClient
    _: KW_ONLY
    max_tokens: int | None = None
    max_cost: float | Decimal | None = None
    per: BudgetPeriod = "turn"
    price: Price | None = None
    spending: Spending = field(default_factory=Spending, repr=False)
    _allowance: Allowance = field(init=False, repr=False)
    _is_around_tools: bool = field(init=False, repr=False)

    kind: ClassVar[str] = "budget"

    def __post_init__(self) -> None:
        allowance = Allowance("Budget", self.max_tokens, self.max_cost, self.price)
        if not allowance.is_limited:
            raise _wrong("max_tokens", None, "given, or max_cost: a budget without either bounds nothing")
        if self.per not in get_args(BudgetPeriod):
            raise _wrong("per", self.per, "'turn' or 'conversation'")
        object.__setattr__(self, "_allowance", allowance)
        is_around = any(getattr(each, "kind", "") == "tool_loop" for each in chain(self.inner))
        object.__setattr__(self, "_is_around_tools", is_around)

    async def send(self, request: ChatRequest, /) -> ChatStream:
        price = self._allowance.price_of(self.inner, request.options.model)
        account = self._account(request)
        over = self.excess(account)
        if over:
            raise BudgetExceeded(over, usage=account.usage, overhead_usage=account.overhead, cost=self._cost(account))
        stream = await self.inner.send(request)
        return ChatStream(_Metered(stream, self, account, price), owns=stream)

    def goes_on(self, finish: FinishReason) -> bool:
        """Whether the model is asked again behind an answer without calls: a tool loop does so after a pause."""
        return finish == "paused" and self._is_around_tools

    def price_of_answer(self, model: str, asked: Price | None) -> Price | None:
        """What the model that answered costs; the ``asked`` price where that is not known."""
        return self._allowance.price_of_answer(model, asked)

    def excess(self, account: Account) -> str:
        """What is used up of the budget, or ""."""
        return self._allowance.excess(account, self.per)

    def exceeded(self, stream: ChatStream, account: Account) -> BudgetExceeded:
        """What to raise in the middle of a turn."""
        answer = stream.so_far
        return BudgetExceeded(
            self.excess(account),
            usage=account.usage,
            overhead_usage=account.overhead,
            cost=self._cost(account),
            messages=answer.messages,
        )

    def _cost(self, account: Account) -> Decimal | None:
        return account.cost if self.max_cost is not None else None

    def _account(self, request: ChatRequest) -> Account:
        if self.per == "turn":
            return Account()
        if request.conversation_id is None:
            raise InputError("Budget: per='conversation' needs the call's conversation_id")
        return self.spending.of(request.conversation_id)


class _Metered:
    """The source of a stream whose usage is counted, and which ends between two rounds when too much is used."""

    __slots__ = ("_account", "_budget", "_goes_on", "_has_run", "_open", "_price", "_stream")

    def __init__(self, stream: ChatStream, budget: Budget, account: Account, price: Price | None) -> None:
        self._stream = stream
        self._budget = budget
        self._account = account
        self._price = price
        self._open: list[str] = []
        self._has_run = self._goes_on = False

    async def __anext__(self) -> ChatUpdate:
        if self._goes_on and self._budget.excess(self._account):
            await self._stream.aclose()
            raise self._budget.exceeded(self._stream, self._account)
        update = await self._stream.__anext__()
        if update.usage is not None:
            self._account.add(update.usage, self._budget.price_of_answer(update.model, self._price))
        if update.overhead_usage is not None:
            self._account.add(update.overhead_usage, self._price, is_overhead=True)
        self._note(update)
        return update

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _note(self, update: ChatUpdate) -> None:
        """Whether another call to the model comes next: behind the last result that this round asked for, unless all of
        them say that nothing was run."""
        message = update.message_done
        if message is not None:
            self._open += [call.id for call in message.calls]
            for result in message.results:
                if result.call_id in self._open:  # ids may be used again, within a round too
                    self._open.remove(result.call_id)
            if message.role == "tool":
                self._has_run |= any(result.output not in NOT_RUN for result in message.results)
                self._goes_on = self._has_run and not self._open
        if update.finish_reason is not None:
            self._has_run = False
            self._goes_on = self._budget.goes_on(update.finish_reason)


def _wrong(parameter: str, value: object, wanted: str) -> WiringError:
    return WiringError(f"Budget: {parameter}={value!r} must be {wanted}", layer="Budget", parameter=parameter)
