"""Runs recordings through policies: each recorded answer is asked for again, with everything before it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from chatstack.client.protocol import ProviderInfo
from chatstack.client.stack import BuiltClient
from chatstack.client.stream import ChatStream
from chatstack.errors import ChatStackError, InputError
from chatstack.providers.openai.chat_wire import messages_from_wire
from chatstack.replay.measuring import Gauge, WireCounter
from chatstack.replay.policies import Policy
from chatstack.replay.recordings import BrokenLine, Recording
from chatstack.telemetry.emission import Attributes, Telemetry
from chatstack.values.messages import Message
from chatstack.values.parts import Text
from chatstack.values.requests import ChatOptions, ChatRequest, DeclaredTool
from chatstack.values.responses import ChatUpdate

_ERRORS_KEPT = 1_000
"""How many broken lines are kept with their reason; beyond that they are counted."""


@dataclass(slots=True)
class PolicyFigures:
    """What one policy did. ``peak_tokens`` is its largest request; ``over_limit`` counts the calls that were larger
    than the window, ``refused`` those for which the stack itself raised instead of sending."""

    name: str
    conversations: int = 0
    calls: int = 0
    tokens_sent: int = 0
    peak_tokens: int = 0
    over_limit: int = 0
    invalid_requests: int = 0
    edits: int = 0
    refused: int = 0
    cpu_seconds: float = 0.0
    faults: dict[str, int] = field(default_factory=dict[str, int])
    """Why requests were invalid, or calls refused, and how often."""

    @property
    def cpu_ms_per_call(self) -> float:
        """CPU time of the stack per call, in milliseconds, without that of the recording that answers."""
        return 1_000 * self.cpu_seconds / self.calls if self.calls else 0.0


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
        self, strategy: str, message: str, attributes: Attributes, *, tokens_before: int, tokens_after: int
    ) -> None:
        self.edits += 1
        super().edit(strategy, message, attributes, tokens_before=tokens_before, tokens_after=tokens_after)


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

    async def replay(self, messages: tuple[Message, ...], options: ChatOptions, gauge: Gauge, called: str) -> None:
        """All calls of one conversation."""
        self.figures.conversations += 1
        for position, message in enumerate(messages):
            if position and message.role == "assistant":
                request = ChatRequest(messages[:position], options, called)
                await self._call(request, message)
                self._add(request, gauge)

    async def _call(self, request: ChatRequest, answer: Message) -> None:
        figures = self.figures
        self.recorder.expect(answer)
        started = time.process_time()
        try:
            stream = await self.client.send(request)
            await stream.response()
        except ChatStackError as error:
            figures.refused += 1
            _count(figures.faults, type(error).__name__)
        figures.cpu_seconds += time.process_time() - started - self.recorder.cpu_seconds

    def _add(self, request: ChatRequest, gauge: Gauge) -> None:
        figures = self.figures
        figures.calls += 1
        figures.edits = self.telemetry.edits
        needs_user = any(message.role == "user" for message in request.messages)
        largest = 0
        for sent in self.recorder.requests:
            measured = gauge.measure(sent, needs_user=needs_user)
            figures.tokens_sent += measured.tokens
            largest = max(largest, measured.tokens)
            if measured.fault:
                figures.invalid_requests += 1
                _count(figures.faults, measured.fault)
        figures.peak_tokens = max(figures.peak_tokens, largest)
        figures.over_limit += largest > self.window


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
        called = f"{self.conversations}:{recording.id}"
        for run in self._runs:
            await run.replay(messages, options, gauge, called)
        gauge.forget()

    def _note(self, broken: BrokenLine) -> None:
        self.broken_count += 1
        if len(self.broken) < _ERRORS_KEPT:
            self.broken.append(broken)


def _count(counts: dict[str, int], reason: str) -> None:
    counts[reason] = counts.get(reason, 0) + 1
