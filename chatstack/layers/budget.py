"""The layer that stops a turn or a conversation that has used up its budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from decimal import Decimal
from typing import ClassVar, Literal, TypeAlias, cast

from chatstack.client.checks import send_to, wraps_a_client
from chatstack.client.fronts import ChatFronts
from chatstack.client.options import PositiveFloat, PositiveInt, check_options
from chatstack.client.protocol import ChatClient, LayerKind, chain, layer_kind, own_attribute
from chatstack.client.stream import ChatStream
from chatstack.errors import BudgetExceeded, InputError, WiringError
from chatstack.layers.spending import Account, Allowance, Meter, Spending
from chatstack.tokens.prices import Price
from chatstack.tokens.published import tables_loaded
from chatstack.tools.turn import NOT_RUN
from chatstack.values.messages import Message
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate

BudgetPeriod: TypeAlias = Literal["turn", "conversation"]


@wraps_a_client
@dataclass(frozen=True, slots=True, eq=False)
class Budget(ChatFronts):
    """Stops a turn, or a conversation, that has used up its tokens or its money: ``BudgetExceeded``.

    Goes outside the tool loop, where it sees the rounds of a turn and the cost of summaries. The usage of a call is
    known only afterwards, so the last call may exceed the budget; no call begins once it is used up. Tool calls of the
    last answer are still run, so that calls and results stay together, and the turn ends after them; a turn that ends
    by itself is not disturbed.

    ``max_tokens`` counts input and output as the provider reports them: what it does not report is not counted; of an
    answer that is closed before its end, Anthropic reports the input, OpenAI nothing. ``max_cost`` is in dollars, at
    the prices of ``price``, else at those of ``genai-prices`` (the extra ``prices``) for the model that answered, in
    its service tier, or that of the ``summary_client``; for the requested one, if their price is not known. The budget
    of a conversation is kept in this process, by ``conversation_id``, in the stack's ``Spending``. Raises
    ``InputError`` for a conversation without an id, and ``WiringError`` if the price of the requested model is not
    known, before anything is sent; also, when it is made, for another budget of conversations inside it that counts in
    the same ``Spending``.
    """

    inner: ChatClient
    _: KW_ONLY
    max_tokens: PositiveInt | None = None
    max_cost: PositiveFloat | Decimal | None = None
    per: BudgetPeriod = "turn"
    price: Price | None = None
    spending: Spending = field(default_factory=Spending, repr=False)
    _allowance: Allowance = field(init=False, repr=False)
    _is_around_tools: bool = field(init=False, repr=False)

    kind: ClassVar[LayerKind] = "budget"
    needs_one_of: ClassVar[tuple[str, ...]] = ("max_tokens", "max_cost")

    def __post_init__(self) -> None:
        check_options(self)
        object.__setattr__(self, "_allowance", Allowance("Budget", self.max_tokens, self.max_cost, self.price))
        is_around = any(layer_kind(each) == "tool_loop" for each in chain(self.inner))
        object.__setattr__(self, "_is_around_tools", is_around)
        if self.per == "conversation" and any(map(self._counts_the_same, answering(self.inner))):
            raise WiringError(
                "Budget: another one of conversations is inside it, and both would count each answer in one account: "
                "give one Budget both bounds, or give one of them spending=Spending()",
                layer="Budget",
                parameter="spending",
            )

    def _counts_the_same(self, other: object) -> bool:
        return isinstance(other, Budget) and other.per == "conversation" and other.spending is self.spending

    async def send(self, request: ChatRequest, /) -> ChatStream:
        if self._allowance.looks_up:
            await tables_loaded()
        price = self._allowance.price_of(self.inner, request.options.model)
        account = self._account(request)
        _check(self._allowance, self.per, account)
        stream = await send_to(self.inner, request)
        meter = Meter(account, self._allowance, price)
        return ChatStream(_Metered(stream, meter, self.per, self._is_around_tools), owns=stream)

    def _account(self, request: ChatRequest) -> Account:
        if self.per == "turn":
            return Account()
        if request.conversation_id is None:
            raise InputError("Budget: per='conversation' needs the call's conversation_id")
        return self.spending.of(request.conversation_id)


def answering(client: object) -> Iterator[object]:
    """Yield each client inside, and those that a fallback asks."""
    for layer in chain(client):
        yield layer
        others = own_attribute(layer, "clients") if layer_kind(layer) == "fallback" else None
        for other in cast("Sequence[object]", others) if isinstance(others, list | tuple) else ():
            yield from answering(other)


@dataclass(slots=True, eq=False)
class _Metered:
    """The source of a stream that counts usage, and ends between two rounds once the budget is used up."""

    stream: ChatStream
    meter: Meter
    per: BudgetPeriod
    is_around_tools: bool
    is_unread: bool = True
    open: list[str] = field(default_factory=list[str])
    has_run: bool = False
    goes_on: bool = False

    async def __anext__(self) -> ChatUpdate:
        if self.goes_on:
            try:
                _check(self.meter.allowance, self.per, self.meter.account, self.stream.so_far.messages)
            except BudgetExceeded:
                await self.stream.aclose()
                raise
        update = await self.stream.__anext__()
        self.is_unread = False
        self.meter.count(update)
        self._note(update)
        return update

    async def aclose(self) -> None:
        await self.stream.aclose()
        if self.is_unread:
            arrived = self.stream.so_far
            self.meter.count(ChatUpdate(usage=arrived.usage, overhead_usage=arrived.overhead_usage))

    def _note(self, update: ChatUpdate) -> None:
        """Update ``goes_on``: True if a call to the model comes next. One follows the last result of a round, unless
        all results say that nothing was run."""
        if update.has_content or update.usage is not None or update.overhead_usage is not None:
            self.goes_on = False  # an answer that has begun, or that a summary was written for, is read to its end
        message = update.message_done
        if message is not None:
            self.open += [call.id for call in message.calls]
            for result in message.results:
                if result.call_id in self.open:  # ids may be used again, within a round too
                    self.open.remove(result.call_id)
            if message.role == "tool":
                self.has_run |= not all(any(result.output is each for each in NOT_RUN) for result in message.results)
                self.goes_on = self.has_run and not self.open
        if update.finish_reason is not None:
            self.has_run = False
            # A tool loop calls the model again after a "paused" answer without calls.
            self.goes_on = update.finish_reason == "paused" and self.is_around_tools


def _check(allowance: Allowance, per: BudgetPeriod, account: Account, added: tuple[Message, ...] = ()) -> None:
    """Raise ``BudgetExceeded``, with the messages that the turn has added, if the budget is used up."""
    over = allowance.excess(account, per)
    if over:
        cost = account.cost if allowance.max_cost is not None else None
        raise BudgetExceeded(over, usage=account.usage, overhead_usage=account.overhead, cost=cost, messages=added)
