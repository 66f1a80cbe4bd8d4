"""All recorded conversations through several stacks at once, and what was found on the way: one pass, many checks.

What a request must hold is worked out here from the messages that were given, without the library's own units, pairs
and plans. Sizes are o200k of the wire text; each message is counted once for all stacks.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from chatstack import (
    ChatClient,
    ChatRequest,
    ChatStack,
    ClearThenDrop,
    ContextMemory,
    ContextWindowGuard,
    Message,
    ToolResultClearer,
)
from chatstack.providers.openai.chat_wire import messages_from_wire
from chatstack.stack.recipe import BuiltClient
from chatstack.telemetry.emission import Telemetry
from chatstack.tokens.counter import TokenizerCounter
from chatstack.values.parts import Text
from chatstack.workbench.replay.measures.figures import PolicyFigures
from chatstack.workbench.replay.measures.grounding import Evidence
from chatstack.workbench.replay.measures.measuring import Gauge, Measured, WireCounter
from chatstack.workbench.replay.policies import policies_for
from chatstack.workbench.replay.reading.recordings import Recording
from chatstack.workbench.replay.recorder import EditLog, Recorder
from tests.workbench.replay.conversations import data_file, recordings_in

ALL_DATA = os.environ.get("CHATSTACK_ALL_DATA") == "1"
WINDOWS = (2_000, 4_000, 8_000, 16_000)
TRIGGERS = (2_000, 8_000)
"""Where nothing forces an edit, so that no window matters."""
LARGE = 10_000_000
TAU, TAU2, SWE = "tau_airline_gpt4o", "tau2_activegraph", "swe_gemini3_mini"
STEPS = {TAU: 1, TAU2: 1, SWE: 1 if ALL_DATA else 15}
"""Every how many of a set's conversations are looked at: the large set takes 23 minutes."""
KEPT_RESULTS = 3
PLACEHOLDER = "[cleared]"
_KNOWN = 5_000
"""Messages, and decisions, that a memory holds on to: more than all of tau's, and not all of the large set."""
ROLLING = 10
"""The newest results that rolling masking keeps; one more, and it edits."""


class OnceCounter(WireCounter):
    """Counts each distinct message once: to another memory, and in fresh objects, each would be new."""

    is_cheap = True

    def __init__(self) -> None:
        super().__init__(TokenizerCounter(), "o200k")
        self._known: dict[Message, int] = {}

    def count_message(self, message: Message) -> int:
        known = self._known.get(message)
        if known is None:
            known = self._known[message] = super().count_message(message)
        return known


@functools.cache
def counter() -> OnceCounter:
    """The one that everything here is counted by."""
    return OnceCounter()


@dataclass(frozen=True)
class Kind:
    """A kind of stack. ``trigger`` is the share of the window below which nothing may happen; ``fits`` says that what
    it sends fits into the window, as far as anything may be dropped at all."""

    name: str
    trigger: float
    fits: bool
    recipe: Callable[[int, ChatClient], ChatStack]


def _guard(window: int, model: ChatClient) -> ChatStack:
    return ChatStack(model).use(
        ContextWindowGuard, max_context_tokens=window, prune_on_overflow=True, counter=counter()
    )


def _clearer(window: int, model: ChatClient) -> ChatStack:
    return (
        ChatStack(model)
        .use(ToolResultClearer, trigger={"fraction": 0.5}, keep={"messages": KEPT_RESULTS}, counter=counter())
        .use(ContextWindowGuard, max_context_tokens=window, prune_on_overflow=True, counter=counter())
    )


def _recommended(window: int, model: ChatClient) -> ChatStack:
    (policy,) = policies_for([], ["recommended"])
    return policy.stack(window, model)


def _at_the_limit(window: int, model: ChatClient) -> ChatStack:
    return (
        ChatStack(model)
        .use(ClearThenDrop(window, before_limit="never"), counter=counter())
        .use(ContextWindowGuard, max_context_tokens=window, prune_on_overflow=True, counter=counter())
    )


def _pays(window: int, model: ChatClient) -> ChatStack:
    return ChatStack(model).use(
        ToolResultClearer, trigger={"tokens": window // 2}, clear_at_least="pays", counter=counter()
    )


def _pays_unforced(trigger: int, model: ChatClient) -> ChatStack:
    return ChatStack(model).use(
        ToolResultClearer,
        trigger={"tokens": trigger},
        clear_at_least="pays",
        max_context_tokens=LARGE,
        counter=counter(),
    )


KINDS = (
    Kind("guard", 1.0, True, _guard),
    Kind("clearer", 0.5, True, _clearer),
    Kind("recommended", 0.0, True, _recommended),  # it shapes what is new, and edits once it pays
    Kind("at the limit", 1.0, True, _at_the_limit),
    Kind("pays", 0.5, False, _pays),
)
UNFORCED = Kind("pays unforced", 1.0, False, _pays_unforced)
"""With a window that nothing reaches; what is called its window here is its trigger."""


@dataclass
class Talk:
    """One conversation: as it is recorded, and in the objects that a caller would keep."""

    recording: Recording
    messages: tuple[Message, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.messages = self.anew(None)
        self.units = _units(self.messages)
        self.calls = [at for at, each in enumerate(self.messages) if at and each.role == "assistant"]

    @property
    def id(self) -> str:
        return self.recording.id

    def anew(self, end: int | None) -> tuple[Message, ...]:
        """The messages up to there, or all, in objects that nobody has seen."""
        return messages_from_wire(cast("list[object]", self.recording.body["messages"])[:end])

    def unseen(self, end: int) -> set[int]:
        """The positions of results that no answer follows yet, and of their calls."""
        seen = max((at for at in range(end) if self.messages[at].role == "assistant"), default=-1)
        results = {at for at in range(seen + 1, end) if self.messages[at].role == "tool"}
        return results | {self.units[at] for at in results}

    def protected(self, end: int) -> set[int]:
        """The positions that no edit may touch: system messages, the task, and what the user said last."""
        before = self.messages[:end]
        users = [at for at, each in enumerate(before) if each.role == "user"]
        return {at for at, each in enumerate(before) if each.role == "system"} | set(users[:1] + users[-1:])


def _units(messages: Sequence[Message]) -> list[int]:
    """For each message the position at which its unit begins: results stand directly behind their calls here."""
    homes: list[int] = []
    for at, message in enumerate(messages):
        homes.append(homes[-1] if message.role == "tool" else at)
    return homes


def recordings_of(name: str) -> list[Recording]:
    """The conversations of a data set; every so manieth of the large one."""
    items = recordings_in(data_file(f"{name}.dev.jsonl.gz"))[:: STEPS[name]]
    recordings = [item for item in items if isinstance(item, Recording)]
    assert len(recordings) == len(items) > 0
    return recordings


def talks_of(name: str) -> list[Talk]:
    """The same, to be replayed."""
    return [Talk(each) for each in recordings_of(name)]


class Line:
    """One built stack, and what it was last seen to send."""

    def __init__(self, kind: Kind, window: int) -> None:
        self.kind = kind
        self.window = window
        self._telemetry = EditLog()
        self._model = Recorder(window)
        # A clock that stands still: else a slow machine would make a provider's cache look cold.
        self._services: dict[type, object] = {
            Telemetry: self._telemetry,
            ContextMemory: ContextMemory(clock=lambda: 0.0, max_messages=_KNOWN, max_entries=_KNOWN),
        }
        self.client: BuiltClient = kind.recipe(window, self._model).build(self._services.__getitem__)

    @property
    def edits(self) -> int:
        """How many it has reported."""
        return len(self._telemetry.edits)

    async def send(self, messages: Sequence[Message], conversation_id: str | None, answer: Message) -> ChatRequest:
        """The request that comes out at the end of the stack."""
        self._model.expect(answer)
        await self.client.get_response(messages, conversation_id=conversation_id)
        (request,) = self._model.requests
        return request


class Found:
    """What one stack did with a data set. ``wrong`` holds, for each promise, the places where it was broken."""

    def __init__(self, kind: Kind, window: int) -> None:
        self.kind = kind
        self.window = window
        self.figures = PolicyFigures(f"{kind.name} at {window:,}")
        self.wrong: dict[str, list[str]] = {}
        self.kept_whole = 0
        """Conversations that never came to the trigger."""
        self.over = 0
        self.due_calls = 0
        """Above the trigger as they came: on each of these, one that remembers nothing edits."""
        self.edited_calls = 0
        self.dearest = 0.0
        """What the conversation that was dearest beside sending everything cost, as a share of that."""

    def note(self, promise: str, talk: Talk, position: int, more: object = "") -> None:
        self.wrong.setdefault(promise, []).append(f"{self.figures.name}: {talk.id} at {position} {more}".rstrip())


class Pass:
    """All conversations of a set, through each stack twice: with the same objects on every call and the
    conversation's id, and in fresh objects without it, by a stack that shares nothing with the first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.talks = talks_of(name)
        self.everything = PolicyFigures("everything")
        self.found: dict[tuple[str, int], Found] = {}
        self.rolling = 0
        """How many edits rolling masking makes: one whenever there is one more result than it keeps."""
        self.reused_ids = 0
        self.changed: list[str] = []
        """Conversations whose messages are not what they were."""
        self._sides: list[_Side] = []
        for kind, window in (*itertools.product(KINDS, WINDOWS), *((UNFORCED, each) for each in TRIGGERS)):
            found = self.found[kind.name, window] = Found(kind, window)
            self._sides.append(_Side(found))
        self._gauge = Gauge(counter())

    async def run(self) -> Pass:
        for talk in self.talks:
            await self._replay(talk)
        for side in self._sides:
            side.found.figures.edits = side.same.edits
        return self

    def of(self, *names: str) -> list[Found]:
        """What these kinds of stacks did, at every window."""
        return [found for found in self.found.values() if found.kind.name in names]

    def wrong(self, promise: str) -> list[str]:
        """Where it was broken, by whichever stack; the first places of each."""
        return [place for found in self.found.values() for place in found.wrong.get(promise, [])[:3]]

    async def _replay(self, talk: Talk) -> None:
        self._begin(talk)
        results, evidence = 0, Evidence(talk.messages)
        wire = talk.anew(None)
        for at, end in enumerate(talk.calls):
            given = talk.messages[:end]
            fresh = talk.anew(end)
            needs_user = any(each.role == "user" for each in given)
            whole = self._gauge.measure(ChatRequest(given), needs_user=needs_user)
            self.everything.add([whole], LARGE, at)
            masked = max(0, sum(each.role == "tool" for each in given) - ROLLING)
            self.rolling += masked > results
            results = masked
            for side in self._sides:
                request = await side.call(talk, at, given, fresh, whole, self._gauge)
                if side.found.kind.name == "recommended":
                    evidence.weigh(end, request, side.found.figures.grounding)
        for side in self._sides:
            side.end(talk, self.everything)
        # Immutable, but their fields can be forced.
        if talk.messages != wire or any(each.original is not each or each.annotation for each in talk.messages):
            self.changed.append(talk.id)
        self._gauge.forget()

    def _begin(self, talk: Talk) -> None:
        ids = Counter(call.id for each in talk.messages for call in each.calls)
        self.reused_ids += sum(count - 1 for count in ids.values())
        self.everything.spending.begin(None)
        for side in self._sides:
            side.begin(self.everything)


class _Side:
    """A stack in a pass, and where it is in the conversation."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.same = Line(found.kind, found.window)
        self._fresh = Line(found.kind, found.window)
        self._sent: tuple[Message, ...] = ()
        self._shortened: set[int] = set()
        """The positions of results that were cut when they were new."""
        self._triggered = False
        self._costs = (0, 0)

    def begin(self, everything: PolicyFigures) -> None:
        self._sent, self._triggered = (), False
        self._shortened.clear()
        self._costs = (self.found.figures.spending.cost, everything.spending.cost)
        self.found.figures.conversations += 1
        self.found.figures.spending.begin(None)

    def end(self, talk: Talk, everything: PolicyFigures) -> None:
        found = self.found
        found.kept_whole += not self._triggered
        mine = found.figures.spending.cost - self._costs[0]
        found.dearest = max(found.dearest, mine / (everything.spending.cost - self._costs[1]))

    async def call(
        self,
        talk: Talk,
        at: int,
        given: tuple[Message, ...],
        fresh: tuple[Message, ...],
        whole: Measured,
        gauge: Gauge,
    ) -> ChatRequest:
        found, end = self.found, len(given)
        edits = self.same.edits
        answer = talk.messages[end]
        request = await self.same.send(given, talk.id, answer)
        if found.kind is not UNFORCED:  # it differs from another kind in nothing but the window
            again = await self._fresh.send(fresh, None, answer)
            if again.messages != request.messages:
                found.note("fresh", talk, end)
        sent, before, self._sent = request.messages, self._sent, request.messages
        found.edited_calls += self.same.edits > edits
        if self.same.edits == edits and sent[: len(before)] != before:
            found.note("prefix", talk, end)
        trigger = found.kind.trigger * found.window
        found.due_calls += whole.tokens > trigger
        self._triggered |= whole.tokens >= trigger
        if not self._triggered and (sent is not given or self.same.edits != edits):
            found.note("below", talk, end)
        if sent is given:
            measured = whole
        else:
            needs_user = any(each.role == "user" for each in given)
            measured = gauge.measure(request, needs_user=needs_user)
            self._check(talk, given, sent)
        if measured.fault:
            found.note("invalid", talk, end, measured.fault)
        if measured.tokens > found.window and found.kind is not UNFORCED:
            found.over += 1
            self._check_over(talk, end, sent, measured.tokens)
        found.figures.add([measured], found.window, at)
        return request

    def _check(self, talk: Talk, given: tuple[Message, ...], sent: tuple[Message, ...]) -> None:
        """Messages of the caller in their order, whole units, the protected ones untouched, the others untouched,
        results that say less, or calls without the words beside them; where only old results are cleared, not the
        newest."""
        found, end = self.found, len(given)
        places = {id(each): at for at, each in enumerate(given)}
        positions = [places.get(id(each.original), -1) for each in sent]
        if -1 in positions or any(one >= other for one, other in itertools.pairwise(positions)):
            found.note("order", talk, end)
            return
        for at, message in zip(positions, sent, strict=True):
            if message is given[at] or (message.role == "tool" and message != given[at]):
                continue
            if not _is_without_words(message, given[at]):
                found.note("untouched", talk, end, at)
        left = {at for at, message in zip(positions, sent, strict=True) if message is given[at]}
        edited = set(positions) - left
        results = [at for at, each in enumerate(given) if each.role == "tool"]
        if found.kind.fits:
            unseen = talk.unseen(end)
            if self._size(given, talk.protected(end) | unseen) > found.window:
                self._shortened |= {
                    at
                    for at, message in zip(positions, sent, strict=True)
                    if at in unseen & edited and _is_cut(message, given[at])
                }
        newest = edited.intersection(results[-KEPT_RESULTS:]) - self._shortened
        if found.kind.name not in ("recommended", "at the limit") and newest:
            found.note("newest", talk, end, sorted(newest))
        lost = talk.protected(end) - left
        if lost:
            found.note("lost", talk, end, sorted(lost))
        kept = set(positions)
        homes = {talk.units[at] for at in positions}
        if any(talk.units[at] in homes and at not in kept for at in range(end)):
            found.note("split", talk, end)

    @staticmethod
    def _size(given: tuple[Message, ...], positions: set[int]) -> int:
        return sum(counter().count_message(given[at]) for at in positions)

    def _check_over(self, talk: Talk, end: int, sent: tuple[Message, ...], tokens: int) -> None:
        """What is over the limit must have nothing more to give. New results are never left out with their calls, and
        an edit that only pays is not forced by a window that it does not get below."""
        places = {id(each): at for at, each in enumerate(talk.messages[:end])}
        left = {places.get(id(each.original), -1) for each in sent}
        if self.found.kind.fits:
            too_many = left - talk.protected(end) - talk.unseen(end)
            if too_many:
                self.found.note("over", talk, end, sorted(too_many))
            return
        seen = max((at for at, each in enumerate(sent) if each.role == "assistant"), default=-1)
        results = [at for at, each in enumerate(sent) if each.role == "tool"]
        may_go = [at for at in results[: max(0, len(results) - KEPT_RESULTS)] if at < seen]
        saves = sum(max(0, _saved_by_clearing(sent[at])) for at in may_go)
        if saves and tokens - saves <= self.found.window:
            self.found.note("over", talk, end, saves)


def _is_without_words(message: Message, came: Message) -> bool:
    """Return True if all that an assistant message with calls has lost are its texts."""
    left = tuple(part for part in came.parts if not isinstance(part, Text))
    return bool(came.role == "assistant" and came.calls and left == message.parts != came.parts)


def _is_cut(sent: Message, given: Message) -> bool:
    """Head and tail of it, and what was left out between them is told."""
    (now,), (came,) = sent.results, given.results
    if not isinstance(now.output, str) or not isinstance(came.output, str):
        return False
    cut = re.search(r"\n?\[[^\[\]]*left out[^\[\]]*\]\n?", now.output)
    if cut is None or now.call_id != came.call_id:
        return False
    return came.output.startswith(now.output[: cut.start()]) and came.output.endswith(now.output[cut.end() :])


def _saved_by_clearing(message: Message) -> int:
    (result,) = message.results
    cleared = Message.tool(result.call_id, PLACEHOLDER, name=result.name)
    return counter().count_message(message) - counter().count_message(cleared)
