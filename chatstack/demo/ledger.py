"""What was sent, against what would have been: requests are weighed before the guard and behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field

from chatstack.client.fronts import ChatFronts
from chatstack.client.protocol import ChatClient
from chatstack.client.stream import ChatStream
from chatstack.tokens.counter import TokenCounter
from chatstack.values.requests import ChatRequest


@dataclass(slots=True)
class Call:
    """One model call: its ``turn`` (from 0), and tokens and user messages, whole and as they were sent."""

    turn: int
    whole_tokens: int
    whole_questions: int
    sent_tokens: int = 0
    sent_questions: int = 0

    @property
    def was_pruned(self) -> bool:
        """Whether less was sent than would have been."""
        return self.sent_tokens < self.whole_tokens


class Ledger:
    """All model calls of a conversation, one after the other, weighed by one and the same counter."""

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter
        self.calls: list[Call] = []

    def before(self, request: ChatRequest) -> None:
        """Book what would be sent if there were no guard."""
        questions = _questions(request)
        self.calls.append(Call(questions - 1, self._weigh(request), questions))

    def behind(self, request: ChatRequest) -> None:
        """Book what is sent; of several attempts the last one counts."""
        call = self.calls[-1]
        call.sent_tokens, call.sent_questions = self._weigh(request), _questions(request)

    def turns(self) -> Sequence[Sequence[Call]]:
        """The calls, turn by turn."""
        last = max((call.turn for call in self.calls), default=-1)
        return [[call for call in self.calls if call.turn == turn] for turn in range(last + 1)]

    def _weigh(self, request: ChatRequest) -> int:
        messages = sum(self._counter.count_message(message) for message in request.messages)
        return messages + self._counter.count_options(request.options)

    @property
    def sent_tokens(self) -> int:
        """The tokens of all calls as they were sent."""
        return sum(call.sent_tokens for call in self.calls)

    @property
    def whole_tokens(self) -> int:
        """The tokens of all calls as they would have been."""
        return sum(call.whole_tokens for call in self.calls)


@dataclass(frozen=True, slots=True, eq=False)
class RequestScale(ChatFronts):
    """Tells ``weigh`` of every request and passes it on untouched. Goes anywhere in a stack."""

    inner: ChatClient
    _: KW_ONLY
    weigh: Callable[[ChatRequest], None] = field(repr=False)

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.weigh(request)
        return await self.inner.send(request)


def _questions(request: ChatRequest) -> int:
    return sum(message.role == "user" for message in request.messages)
