"""Runs recordings through policies: each recorded answer is asked for again, with everything before it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from opentelemetry.trace import Span

from chatstack.client.protocol import ProviderInfo
from chatstack.client.stack import BuiltClient
from chatstack.client.stream import ChatStream
from chatstack.errors import ChatStackError, InputError
from chatstack.providers.openai.chat_wire import messages_from_wire
from chatstack.replay.figures import PolicyFigures
from chatstack.replay.grounding import Evidence
from chatstack.replay.measuring import Gauge, WireCounter
from chatstack.replay.policies import Policy
from chatstack.replay.recordings import BrokenLine, Recording
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.spans import Attributes
from chatstack.tokens.prices import Price, price_of
from chatstack.values.messages import Message
from chatstack.values.parts import Text
from chatstack.values.requests import ChatOptions, ChatRequest, DeclaredTool
from chatstack.values.responses import ChatUpdate

_ERRORS_KEPT = 1_000
"""How many broken lines are kept with their reason; beyond that they are counted."""
_PRICES_KEPT = 100
"""How many recorded models are told with their prices."""


class Recorder:
    """Stands for the model: answers with the recorded message, and keeps what it was sent."""

    def __init__(self, window: int) -> None:
        self.info = ProviderInfo(name="recording", window_tokens=window)
        self.requests: list[ChatRequest] = []
        self.cpu_seconds = 0.0
        self._answer = Message.assistant("")

    def expect(self, answer: Message) -> None:
        """Answer with that message from now on, whatever is asked."""
        self._answer = answer
        self.requests.clear()
        self.cpu_seconds = 0.0

    async def send(self, request: ChatRequest, /) -> ChatStream:
        started = time.process_time()
        self.requests.append(request)
        stream = await ChatStream.primed(_Playback(self._answer))
        self.cpu_seconds += time.process_time() - started
        return stream

    def __repr__(self) -> str:
        return "Recorder()"


class _Playback:
    """The source of a stream that says one message."""

    def __init__(self, message: Message) -> None:
        self._updates = iter(
            [
                *(
                    ChatUpdate(text=part.text) if isinstance(part, Text) else ChatUpdate(part=part)
                    for part in message.parts
                ),
                ChatUpdate(message_done=message, finish_reason="tool_calls" if message.calls else "stop"),
            ]
        )

    async def __anext__(self) -> ChatUpdate:
        for update in self._updates:
            return update
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._updates = iter(())


class EditCount(Telemetry):
    """The telemetry of a replayed stack: it counts the edits that the layers report."""

    def __init__(self) -> None:
        super().__init__()
        self.edits = 0

    def edit(
        self,
        strategy: str,
        message: str,
        attributes: Attributes,
        *,
        tokens_before: int,
        tokens_after: int,
        span: Span | None = None,
    ) -> None:
        self.edits += 1
        super().edit(strategy, message, attributes, tokens_before=tokens_before, tokens_after=tokens_after, span=span)


class _Talk:
    """One conversation, as every policy gets it."""

    def __init__(self, messages: tuple[Message, ...], options: ChatOptions, called: str, price: Price | None) -> None:
        self.messages = messages
        self.price = price
        self.evidence = Evidence(messages, options.instructions)
        self._options = options
        self._called = called
        self._first_user = next((at for at, each in enumerate(messages) if each.role == "user"), len(messages))

    def calls(self) -> Iterator[tuple[int, ChatRequest]]:
        """The position of each recorded answer, and the request for it: all that came before."""
        for position, message in enumerate(self.messages):
            if position and message.role == "assistant":
                yield position, ChatRequest(self.messages[:position], self._options, self._called)

    def needs_user_at(self, position: int) -> bool:
        """Whether there is a user message before that position."""
        return self._first_user < position


class _Run:
    """One policy: its stack, built once, and its figures."""

    def __init__(self, policy: Policy, window: int) -> None:
        self.figures = PolicyFigures(policy.name)
        self.window = window
        self.recorder = Recorder(window)
        # Given as a service, not listened for in a turn: a reporter among the layers opens a turn of its own.
        self.telemetry = EditCount()
        services: dict[type, object] = {Telemetry: self.telemetry}
        self.client: BuiltClient = policy.stack(window, self.recorder).build(services.__getitem__)

    async def replay(self, talk: _Talk, gauge: Gauge) -> None:
        """All calls of one conversation."""
        self.figures.conversations += 1
        self.figures.spending.begin(talk.price)
        for position, request in talk.calls():
            await self._call(request, talk.messages[position])
            self._add(position, talk, gauge)

    async def _call(self, request: ChatRequest, answer: Message) -> None:
        figures = self.figures
        self.recorder.expect(answer)
        started = time.process_time()
        try:
            stream = await self.client.send(request)
            await stream.response()
        except ChatStackError as error:
            figures.refused += 1
            figures.note(type(error).__name__)
        figures.cpu_seconds += time.process_time() - started - self.recorder.cpu_seconds

    def _add(self, position: int, talk: _Talk, gauge: Gauge) -> None:
        figures = self.figures
        sent = self.recorder.requests
        needs_user = talk.needs_user_at(position)
        figures.add([gauge.measure(each, needs_user=needs_user) for each in sent], self.window)
        figures.edits = self.telemetry.edits
        # Of several requests for one call the last is the one whose answer went back.
        talk.evidence.weigh(position, sent[-1] if sent else None, figures.grounding)


class Replay:
    """Recordings through policies, one conversation after the other, each through every policy.

    Raises ``WiringError`` when a policy's stack cannot be built.
    """

    def __init__(
        self, policies: Sequence[Policy], *, window: int, counter: WireCounter, tools: tuple[DeclaredTool, ...] = ()
    ) -> None:
        self.window = window
        self.counter = counter
        self.tools = tools
        self.tools_tokens = counter.count_options(ChatOptions(tools=tools)) if tools else 0
        self.broken: list[BrokenLine] = []
        self.broken_count = 0
        self.conversations = 0
        # Every request as it is recorded, whichever policies run: what these are compared with.
        self.everything = PolicyFigures("everything")
        self.prices: dict[str, Price] = {}
        self._runs = [_Run(policy, window) for policy in policies]

    @property
    def figures(self) -> list[PolicyFigures]:
        """What each policy did so far."""
        return [run.figures for run in self._runs]

    async def run(
        self, recordings: Iterable[Recording | BrokenLine], on_conversation: Callable[[int], None] | None = None
    ) -> None:
        """Replay them all. ``on_conversation`` is told how many are done, after each."""
        gauge = Gauge(self.counter)
        options = ChatOptions(tools=self.tools)
        try:
            for item in recordings:
                if isinstance(item, Recording):
                    await self._replay(item, options, gauge)
                else:
                    self._note(item)
                if on_conversation is not None:
                    on_conversation(self.conversations)
        finally:
            for run in self._runs:
                await run.client.aclose()

    async def _replay(self, recording: Recording, options: ChatOptions, gauge: Gauge) -> None:
        try:
            messages = tuple(messages_from_wire(list(recording.messages)))
        except (InputError, RecursionError) as error:
            self._note(BrokenLine(recording.file, recording.line, str(error)))
            return
        self.conversations += 1
        talk = _Talk(messages, options, f"{self.conversations}:{recording.id}", self._price_of(recording.model))
        self.everything.spending.begin(talk.price)
        for position, request in talk.calls():
            self.everything.add([gauge.measure(request, needs_user=talk.needs_user_at(position))], self.window)
        for run in self._runs:
            await run.replay(talk, gauge)
        gauge.forget()

    def _price_of(self, model: str) -> Price | None:
        price = price_of(model)
        if price is not None and len(self.prices) < _PRICES_KEPT:
            self.prices[model] = price
        return price

    def _note(self, broken: BrokenLine) -> None:
        self.broken_count += 1
        if len(self.broken) < _ERRORS_KEPT:
            self.broken.append(broken)
