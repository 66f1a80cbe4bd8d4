"""Conversations that go on through stacks: a model whose answers depend on what was said last, and callers that keep
their histories as callers do."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from chatstack import (
    CharCounter,
    ChatOptions,
    ChatRequest,
    ChatStack,
    ClearThenDrop,
    ContextMemory,
    ContextWindow,
    ContextWindowGuard,
    Message,
    Reasoning,
    Summarizer,
    Text,
    ToolCall,
    ToolResultClearer,
    ToolResultShaper,
    Truncate,
    Usage,
)
from chatstack.client.stream import ChatStream
from chatstack.context.edits.units import is_users
from chatstack.stack.recipe import BuiltClient
from chatstack.telemetry.emission import Telemetry
from chatstack.testing import ScriptedClient
from chatstack.workbench.replay.recorder import EditLog
from tests.histories import decoded_again

MOST_CALLS = 16
LOOK = "look "
"""What a user says who wants something looked up: so many rounds, and how long the results are."""


class Model(ScriptedClient):
    """Answers what the user said last, whatever else it was sent; ``reports`` so many times the size, or nothing."""

    def __init__(self, reports: float | None = 1.0) -> None:
        super().__init__()
        self.reports = reports

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.answers = [_answer_to(request)]
        return await super().send(request)

    def _usage(self, request: ChatRequest, answer: Message) -> Usage:
        usage = super()._usage(request, answer)
        return Usage() if self.reports is None else replace_input(usage, self.reports)


def replace_input(usage: Usage, factor: float) -> Usage:
    return Usage(int(usage.input_tokens * factor), usage.output_tokens)


def _answer_to(request: ChatRequest) -> Message:
    at = max((at for at, each in enumerate(request.messages) if is_users(each)), default=0)
    said = request.messages[at].text
    if said.startswith(LOOK):
        rounds, size = map(int, said[len(LOOK) :].split(" "))
        last = request.messages[-1]
        done = 1 + int(last.results[-1].call_id[1:]) if last.results else 0  # whatever was left out in between
        if done < rounds:
            arguments = json.dumps({"at": done, "size": size})
            return Message(
                "assistant", (Reasoning("where?"), Text(" I look. "), ToolCall(f"c{done}", "look", arguments))
            )
    return Message.assistant(f"  You said {len(said)} letters.\n")


_DELIMITER = re.compile(r"\b[0-9a-f]{16}\b")
"""A transcript is fenced by another one each time."""


class Writer(ScriptedClient):
    """Writes summaries that differ as soon as anything differs in what they are about."""

    async def send(self, request: ChatRequest, /) -> ChatStream:
        text = _DELIMITER.sub("", "\n".join(each.text for each in request.messages))
        self.answers = [f"In short: {hashlib.sha256(text.encode()).hexdigest()}"]
        return await super().send(request)


def _guard(stack: ChatStack) -> ChatStack:
    return stack.use(ContextWindowGuard, max_context_tokens=300, prune_on_overflow=True)


RECIPES: dict[str, Callable[[ChatStack, Writer], ChatStack]] = {
    "guard": lambda stack, _: _guard(stack),
    "clearer": lambda stack, _: stack.use(ToolResultClearer, trigger={"tokens": 200}, keep={"messages": 1}),
    "clearer by messages": lambda stack, _: stack.use(
        ToolResultClearer, trigger={"messages": 6}, keep={"messages": 1}, clear_tool_inputs=True
    ),
    "pays": lambda stack, _: stack.use(
        ToolResultClearer, trigger={"tokens": 150}, keep={"messages": 1}, clear_at_least="pays", max_context_tokens=600
    ),
    "condensing": lambda stack, _: stack.use(ClearThenDrop, max_tokens=250),
    "truncate": lambda stack, _: stack.use(Truncate, max_tokens=250, max_context_items=14),
    "clearer, truncate, guard": lambda stack, _: _guard(
        stack.use(ToolResultClearer, trigger={"tokens": 200}, keep={"messages": 1}).use(Truncate, max_tokens=280)
    ),
    "shaper": lambda stack, _: stack.use(ToolResultShaper, max_bytes=300),
    "shaper, clearer, guard": lambda stack, _: _guard(
        stack.use(ToolResultShaper, max_bytes=300).use(ToolResultClearer, trigger={"tokens": 200}, keep={"messages": 1})
    ),
    "shaper, condensing": lambda stack, _: stack.use(ToolResultShaper, max_bytes=300).use(
        ClearThenDrop, max_tokens=250
    ),
    "shaper, clearer, summarizer, guard": lambda stack, writer: _guard(
        stack.use(ToolResultShaper, max_bytes=300)
        .use(ToolResultClearer, trigger={"tokens": 200}, keep={"messages": 1})
        .use(Summarizer, max_tokens=250, keep_recent_turns=1, max_summary_tokens=60, summary_client=writer)
    ),
    "summarizer": lambda stack, writer: stack.use(
        Summarizer, max_tokens=250, keep_recent_turns=1, max_summary_tokens=60, summary_client=writer
    ),
    "window": lambda stack, writer: stack.use(
        ContextWindow, max_tokens=250, keep_recent_turns=1, max_summary_tokens=60, summary_client=writer
    ),
    "clearer, summarizer, guard": lambda stack, writer: _guard(
        stack.use(ToolResultClearer, trigger={"tokens": 200}, keep={"messages": 1}).use(
            Summarizer, max_tokens=250, keep_recent_turns=1, max_summary_tokens=60, summary_client=writer
        )
    ),
}
PURE = (
    *("guard", "clearer", "clearer by messages", "pays", "condensing", "truncate", "clearer, truncate, guard"),
    *("shaper", "shaper, clearer, guard", "shaper, condensing"),
)
SUMMARIZING = tuple(name for name in RECIPES if name not in PURE)


class _Log(EditLog):
    """Keeps what layers tell, and how many conversations were let go of."""

    conversations = 0

    def evicted(self, conversations: int) -> None:
        self.conversations += conversations


class Process:
    """A stack with a memory of its own, over a model of its own."""

    def __init__(
        self, recipe: str, *, memory: ContextMemory | None = None, reports: float | None = 1.0, **more: object
    ) -> None:
        self.model, self.writer = Model(reports), Writer()
        self.memory = memory or ContextMemory(clock=lambda: 0.0)
        stack = ChatStack(self.model, memory=self.memory, trace_model_calls=False)
        self._log = _Log()
        services: dict[type, object] = {Telemetry: self._log, ContextMemory: self.memory}
        self.client: BuiltClient = RECIPES[recipe](stack, self.writer).build(services.__getitem__)

    @property
    def edits(self) -> int:
        """How many it has told of."""
        return len(self._log.edits)

    @property
    def evicted(self) -> int:
        """How many conversations its memory has let go of."""
        return self._log.conversations

    def forget_requests(self) -> None:
        """Let go of what the models were sent, and of what was told."""
        self.model.requests.clear()
        self.writer.requests.clear()
        self._log.edits.clear()

    async def ask(
        self, messages: Sequence[Message], conversation_id: str | None, options: ChatOptions | None = None
    ) -> tuple[tuple[Message, ...], Message]:
        """What was sent, and the answer."""
        response = await self.client.get_response(messages, conversation_id=conversation_id, options=options)
        return self.model.requests[-1].messages, response.messages[-1]


@dataclass
class Talk:
    """One conversation, as its caller keeps it. ``kept`` is what the caller makes of an answer."""

    head: tuple[Message, ...]
    says: Sequence[str]
    conversation_id: str | None = None
    options: ChatOptions | None = None
    is_fresh: bool = False
    kept: Callable[[Message], Message] = lambda message: message
    sent: list[tuple[Message, ...]] = field(default_factory=list)
    given: list[tuple[Message, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.messages = list(self.head)
        self._waiting = list(self.says)

    def again(self) -> Talk:
        """The same from the beginning."""
        return replace(self, sent=[], given=[])

    @property
    def goes_on(self) -> bool:
        """Never for long: a model whose results are left out asks again and again."""
        is_called = bool(self.messages and self.messages[-1].calls)
        return len(self.sent) < MOST_CALLS and (bool(self._waiting) or is_called)

    async def step(self, process: Process, *, reminder: str = "", options: ChatOptions | None = None) -> None:
        """One call."""
        if self.messages and self.messages[-1].calls:
            self.messages += [result_of(call) for call in self.messages[-1].calls]
        else:
            self.messages.append(Message.user(self._waiting.pop(0)))
        given = decoded_again(self.messages) if self.is_fresh else list(self.messages)
        if reminder:
            given.append(Message.user(reminder))
        sent, answer = await process.ask(given, self.conversation_id, options or self.options)
        self.given.append(tuple(given))
        self.sent.append(sent)
        self.messages.append(self.kept(answer))


def result_of(call: ToolCall) -> Message:
    size = json.loads(call.arguments)["size"]
    return Message.tool(call.id, f"{call.arguments} shows " + "grey " * size, name=call.name)


async def to_the_end(talk: Talk, process: Process) -> Talk:
    while talk.goes_on:
        await talk.step(process)
    return talk


async def in_turns(talks: Sequence[Talk], order: Iterable[int], process: Process) -> None:
    """All conversations through one process, in that order; what is left goes on in turn."""
    for number in itertools.chain(order, itertools.count()):
        going = [each for each in talks if each.goes_on]
        if not going:
            return
        await going[number % len(going)].step(process)


def size_of(messages: Sequence[Message]) -> int:
    return sum(map(CharCounter().count_message, messages))
