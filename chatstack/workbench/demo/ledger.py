"""The ledger of the demo: requests are counted in front of the context layers and behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

from chatstack.client.checks import send_to
from chatstack.client.fronts import ChatFronts
from chatstack.client.protocol import ChatClient, LayerKind
from chatstack.client.stream import ChatStream
from chatstack.tokens.counter import TokenCounter
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatResponse, Usage


@dataclass(slots=True)
class Call:
    """One model call: its ``turn`` (from 0), and tokens and user messages, in full and as they were sent."""

    turn: int
    whole_tokens: int
    whole_questions: int
    sent_tokens: int = 0
    sent_questions: int = 0

    @property
    def was_edited(self) -> bool:
        """True if less was sent than the full request."""
        return self.sent_tokens < self.whole_tokens


class Ledger:
    """All model calls of a conversation in order, measured by one and the same counter.

    ``summaries`` holds the summaries that were sent, each once, and ``summary_calls`` is how often one was asked for;
    ``overhead`` is their cost, as reported in the responses.
    """

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter
        self._instructions: str | None = None
        self.calls: list[Call] = []
        self.summaries: list[str] = []
        self.summary_calls = 0
        self.overhead = Usage()

    def before(self, request: ChatRequest) -> None:
        """Book the request in front of the context layers."""
        questions = _questions(request)
        self._instructions = request.options.instructions
        self.calls.append(Call(questions - 1, self._weigh(request), questions))

    def behind(self, request: ChatRequest) -> None:
        """Book the request behind the context layers; of several attempts the last one counts.

        A request with instructions of its own is not the user's: it asks for a summary.
        """
        if request.options.instructions != self._instructions:
            self.summary_calls += 1
            return
        call = self.calls[-1]
        call.sent_tokens, call.sent_questions = self._weigh(request), _questions(request)
        sent = (message.text for message in request.messages if message.mark == "summary")
        self.summaries += (text for text in sent if text not in self.summaries)

    def answered(self, response: ChatResponse) -> None:
        """Book the cost of a turn's summaries."""
        self.overhead += response.overhead_usage

    def turns(self) -> Sequence[Sequence[Call]]:
        """The calls, grouped by turn."""
        last = max((call.turn for call in self.calls), default=-1)
        return [[call for call in self.calls if call.turn == turn] for turn in range(last + 1)]

    def _weigh(self, request: ChatRequest) -> int:
        messages = sum(self._counter.count_message(message) for message in request.messages)
        return messages + self._counter.count_options(request.options)

    @property
    def sent_tokens(self) -> int:
        """Tokens of all calls, as they were sent."""
        return sum(call.sent_tokens for call in self.calls)

    @property
    def whole_tokens(self) -> int:
        """Tokens of all calls, in full."""
        return sum(call.whole_tokens for call in self.calls)


@dataclass(frozen=True, slots=True, eq=False)
class RequestScale(ChatFronts):
    """Calls ``weigh`` with every request and passes it on unchanged. Goes anywhere in a stack."""

    inner: ChatClient
    _: KW_ONLY
    weigh: Callable[[ChatRequest], None] = field(repr=False)

    kind: ClassVar[LayerKind] = "plain"

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.weigh(request)
        return await send_to(self.inner, request)


def _questions(request: ChatRequest) -> int:
    return sum(message.role == "user" for message in request.messages)
