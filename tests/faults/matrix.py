"""The fault matrix: every subject under every fault that concerns it. ``python -m tests.faults.matrix`` writes the
outcomes down, for a reader to look at."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from chatstack import ChatRequest, ChatResponse, Message
from chatstack.testing.leftovers import LeftoverWatch, complaints
from tests.context.strictness import refusals
from tests.faults.faults import FAULTS, Fault
from tests.faults.subjects import SUBJECTS, Ask, Subject, history
from tests.faults.virtual_time import VIRTUALLY, Running, VirtualLoop
from tests.faults.world import World

FILE = Path(__file__).with_name("outcomes.toml")
_MOST_STEPS = 600
_UNSTEADY = frozenset({"progress_dropped"})
"""Warnings of threads, which come with this call or the next."""


class Case(NamedTuple):
    """One cell of the matrix."""

    subject: Subject
    fault: Fault

    @property
    def name(self) -> str:
        return f"{self.fault.name} / {self.subject.name}"

    def is_in(self, share: float) -> bool:
        """Return True for so large a share of all cases, always the same ones."""
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4]) < share * 2**32


def cases() -> Iterator[Case]:
    """Yield every subject with every fault that concerns it."""
    for fault in (NO_FAULT, *FAULTS):
        for subject in SUBJECTS:
            if not fault.needs or fault.needs in subject.has:
                yield Case(subject, fault)


class Exchange:
    """One faulty call and the one after it, in a world of their own."""

    def __init__(self, case: Case, *, stream: bool) -> None:
        self.world = World()
        case.fault.arm(self.world)
        self._case = case
        self._stream = stream
        self.watch = LeftoverWatch(self.world.model, self.world.capture)
        self.mistakes: list[str] = []
        self.heard: list[str] = []
        self.warned: set[str] = set()
        self.summaries = 0

    async def outcome(self) -> str:
        """Make the call, then another one without the fault; return what became of the first."""
        with complaints() as complained:
            async with AsyncExitStack() as opened:
                try:
                    ask = await opened.enter_async_context(self._case.subject.open(self.world))
                except Exception as error:  # noqa: BLE001 - a stack that cannot be made
                    told = f"no stack: {type(error).__name__}"
                else:
                    told = await self._told(ask)
                    await self.goes_on(ask)
            await self.look_through()
        if not self.world.at_end:  # the exporters of others do complain
            self.mistakes += complained
        return told

    async def _told(self, ask: Ask) -> str:
        try:
            with self.watch.step("the call"):
                answer = await self.call(ask)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever comes is the outcome
            told = type(error).__name__
        else:
            told = _ended(answer)
        heard = "".join(self.heard)
        if heard and not told.startswith("answer"):
            told += f" after {heard!r}"
        self.warned = set(self.world.capture.warnings) - _UNSTEADY
        beside = sum(map(_is_for_a_summary, self.world.model.requests))
        self.summaries = len(self.world.writer.requests) + beside
        requests = len(self.world.model.requests) + len(self.world.other.requests) - beside
        return f"{told}, {requests} request{'' if requests == 1 else 's'}"

    async def call(self, ask: Ask) -> object:
        """Ask with the history, and note where it was changed or something unsendable was sent."""
        messages = history()
        before, written = tuple(messages), msgspec.json.encode(messages)
        try:
            return await ask(messages, self._stream, self.heard)
        finally:
            if tuple(map(id, messages)) != tuple(map(id, before)) or msgspec.json.encode(messages) != written:
                self.mistakes.append("the caller's history has changed")
            self._check_requests()

    def _check_requests(self) -> None:
        """Note requests that a strict server refuses."""
        for model in (self.world.model, self.world.other):
            for request in model.requests:
                self.mistakes += refusals(request.messages)
                if not _is_for_a_summary(request) and not any(
                    each.role == "user" and each.text == "and now?" for each in request.messages
                ):
                    self.mistakes.append("the latest user message is gone")

    async def goes_on(self, ask: Ask) -> None:
        """Call again, without the fault."""
        self.world.heal()
        answer = await ask([*history(), Message.assistant("well"), Message.user("and now?")], self._stream, [])
        if _ended(answer) != "answers":
            self.mistakes.append(f"the next call: {_ended(answer)}")

    async def look_through(self) -> None:
        """Note what is left of it."""
        self.world.close()
        left = await self.watch.found()
        if "a cancellation of its own" in self._case.fault.name:  # nobody stopped it: that is an error
            left = [each for each in left if not each.endswith("says error, but was stopped")]
        self.mistakes += left
        for model in (self.world.other, self.world.writer):
            if model.open_streams:
                self.mistakes.append("a stream of another client is open")
        if isinstance(self.world.loop, VirtualLoop):
            self.mistakes += [f"a timer is left: {each}" for each in self.world.loop.timers()]
            self.mistakes += [f"a generator is left: {each}" for each in self.world.loop.generators()]


def _ended(answer: object) -> str:
    if isinstance(answer, ChatResponse):
        return "answers" if answer.finish_reason == "stop" else f"answers, {answer.finish_reason}"
    reason, error = getattr(answer, "reason", ""), getattr(answer, "error", None)
    if reason in ("answered", "completed"):
        return "answers"
    return f"ends: {reason}" + (f" ({type(error).__name__})" if error is not None else "")


def _is_for_a_summary(request: ChatRequest) -> bool:
    """Return True for a request of a summarizer without a client of its own."""
    return any(" end]" in message.text for message in request.messages)


async def _exchanged(case: Case, stream: bool) -> tuple[str, Exchange]:
    exchange = Exchange(case, stream=stream)
    return await exchange.outcome(), exchange


NO_FAULT = Fault("no fault", "", lambda world: None)


@functools.cache
def _usual(subject: Subject, stream: bool, running: Running) -> Exchange:
    """Return the exchange of a subject without a fault."""
    return running.run(_exchanged(Case(subject, NO_FAULT), stream))[1]


def _told(case: Case, stream: bool, running: Running) -> tuple[str, list[str]]:
    """Return the outcome, with the warnings and the summaries that are there because of the fault."""
    told, exchange = running.run(_exchanged(case, stream))
    usual = _usual(case.subject, stream, running)
    if told.startswith("no stack"):
        return told, exchange.mistakes
    if case.fault is NO_FAULT or exchange.summaries != usual.summaries:
        told += f", {exchange.summaries} for summaries" if exchange.summaries or usual.summaries else ""
    warned = sorted(exchange.warned if case.fault is NO_FAULT else exchange.warned - usual.warned)
    return told + (f", warns {' '.join(warned)}" if warned else ""), exchange.mistakes


def outcome_of(case: Case, running: Running = VIRTUALLY) -> tuple[str, list[str]]:
    """Return what becomes of a call, streamed and not, and what is wrong about it."""
    (plain, mistakes), (streamed, others) = (_told(case, stream, running) for stream in (False, True))
    told = plain if _unheard(streamed) == plain else f"{plain} | streamed: {streamed}"
    return told, [*mistakes, *(f"streamed: {each}" for each in others)]


def _unheard(told: str) -> str:
    head, after, rest = told.partition(" after ")
    return head + (rest[rest.index("',") + 1 :] if after else "")


async def _cancelled(case: Case, step: int, stream: bool) -> tuple[bool, list[str]]:
    """Cancel the call after so many steps. Return True if it had ended by then, and what is wrong."""
    exchange = Exchange(case, stream=stream)
    is_over = False
    with complaints() as complained:
        async with case.subject.open(exchange.world) as ask:
            task = asyncio.ensure_future(exchange.call(ask))
            await _steps(step)
            is_over = task.done()
            task.cancel()
            try:
                await task
                if not is_over:
                    exchange.mistakes.append("it went on")
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - its kind is looked at
                if not is_over and not isinstance(error, asyncio.CancelledError):
                    exchange.mistakes.append(f"cancelled, it raised {type(error).__name__}")
            await exchange.goes_on(ask)
        await exchange.look_through()
    if not exchange.world.at_end:
        exchange.mistakes += complained
    return is_over, [f"cancelled at step {step}: {each}" for each in exchange.mistakes]


async def _steps(count: int) -> None:
    """Let others run for so many rounds of the loop; where nothing can run, the time passes until something can."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        if isinstance(loop, VirtualLoop) and loop.is_idle():
            await loop.until_next_timer()
        else:
            await asyncio.sleep(0)


def mistakes_when_cancelled(case: Case, running: Running = VIRTUALLY, *, stream: bool) -> list[str]:
    """Cancel a call at each of its steps, and return what is wrong."""
    found: list[str] = []
    for step in range(_MOST_STEPS):
        is_over, mistakes = running.run(_cancelled(case, step, stream))
        found += mistakes
        if is_over:
            return found
    return [*found, f"it did not end within {_MOST_STEPS} steps"]


def can_begin(case: Case) -> bool:
    """Return True unless the fault keeps the stack from being made."""
    return not case.fault.name.startswith("container ")


def waits(case: Case) -> bool:
    """Return True if something waits in it, which takes as long as it takes on a loop without virtual time."""
    return any(word in case.fault.name for word in ("slow", "hang", "clock", "block"))


def written() -> dict[str, str]:
    """Return the outcomes that are written down, by the names of cases."""
    found: dict[str, dict[str, list[str]]] = tomllib.loads(FILE.read_text())
    return {
        f"{fault} / {subject}": outcome
        for fault, outcomes in found.items()
        for outcome, subjects in outcomes.items()
        for subject in subjects
    }


def text_of(outcomes: Mapping[Case, str]) -> str:
    """Return the outcomes as the text of the file: for each fault, the subjects by outcome."""
    lines = ["# The outcome of a call under each fault, by layer: uv run python -m tests.faults.matrix writes it anew."]
    by_fault: dict[str, dict[str, list[str]]] = {}
    for case, outcome in outcomes.items():
        by_fault.setdefault(case.fault.name, {}).setdefault(outcome, []).append(case.subject.name)
    for fault, outcomes_of in by_fault.items():
        lines += ["", f"[{_quoted(fault)}]"]
        for outcome, subjects in outcomes_of.items():
            lines += [f"{_quoted(outcome)} = [", *_wrapped(subjects), "]"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _wrapped(names: Iterable[str]) -> Iterator[str]:
    line = "   "
    for name in names:
        if len(line) + len(name) > 110:
            yield line
            line = "   "
        line += f" {_quoted(name)},"
    yield line


if __name__ == "__main__":
    logging.getLogger("chatstack").addHandler(logging.NullHandler())
    found: dict[Case, str] = {}
    for each in cases():
        found[each], wrong = outcome_of(each)
        for mistake in dict.fromkeys(wrong):
            print(f"{each.name}: {mistake}")
    FILE.write_text(text_of(found))
    print(f"{len(found)} outcomes, {len(set(found.values()))} different ones, in {FILE}")
