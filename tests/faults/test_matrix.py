"""Whatever fails around a call, its outcome is the one that is written down, and nothing is left of it."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest

from chatstack import ChatResponse, Message
from tests.faults.faults import Fault
from tests.faults.matrix import (
    FILE,
    Case,
    can_begin,
    cases,
    mistakes_when_cancelled,
    outcome_of,
    text_of,
    waits,
    written,
)
from tests.faults.subjects import SUBJECTS, Ask, Subject
from tests.faults.virtual_time import VIRTUALLY, Running
from tests.faults.world import World

CONTEXT = contextvars.ContextVar("CONTEXT", default="")
ALL = list(cases())
EVERYTHING = os.environ.get("CHATSTACK_ALL_FAULTS") == "1"
"""Set by ``.ci/full``."""
SAMPLE, MORE = 0.15, 0.02
"""The shares of all cases whose outcomes are looked at in a plain run, and which are cancelled at every step."""
CHANGED = "If that is meant: uv run python -m tests.faults.matrix, and look at what has changed in outcomes.toml."


def wrong_outcomes(chosen: list[Case], running: Running = VIRTUALLY) -> list[str]:
    """Say which outcomes are not those that are written down, and what they left behind."""
    known = written()
    wrong: list[str] = []
    for case in chosen:
        outcome, mistakes = outcome_of(case, running)
        if outcome != known.get(case.name):
            wrong.append(f"{case.name}: {outcome}; written down: {known.get(case.name)}. {CHANGED}")
        wrong += [f"{case.name}: {each}" for each in dict.fromkeys(mistakes)]
    return wrong


def wrong_when_cancelled(chosen: list[Case], running: Running = VIRTUALLY) -> list[str]:
    """Say what is wrong where calls are cancelled, at each of their steps."""
    return [
        f"{case.name}{', streamed' * stream}: {each}"
        for case in chosen
        for stream in (False, True)
        for each in mistakes_when_cancelled(case, running, stream=stream)
    ]


def sample(share: float) -> list[Case]:
    """Return a part of the cases, spread over faults and subjects, always the same."""
    return [case for case in ALL if case.is_in(share)]


def cancellable(share: float) -> list[Case]:
    """Return a part of the cases in which there is a call to cancel."""
    return [case for case in sample(share) if can_begin(case)]


def test_every_case_is_written_down() -> None:
    known, there = set(written()), {case.name for case in ALL}
    assert (sorted(there - known), sorted(known - there)) == ([], []), CHANGED


def test_the_file_is_as_the_command_writes_it() -> None:
    known = written()
    assert text_of({case: known[case.name] for case in ALL}) == FILE.read_text()


def test_the_sample_has_every_subject() -> None:
    assert {case.subject.name for case in sample(SAMPLE)} == {subject.name for subject in SUBJECTS}


def test_what_is_left_behind_is_noticed() -> None:
    async def ask(messages: Sequence[Message], stream: bool, heard: list[str]) -> ChatResponse:
        loop = asyncio.get_running_loop()
        loop.call_later(5, print)
        left.append(loop.create_task(asyncio.sleep(1)))
        CONTEXT.set("leaked")
        cast("list[Message]", messages).append(Message.user("more"))
        return ChatResponse(messages=(Message.assistant("fine"),), finish_reason="length")

    @asynccontextmanager
    async def opened(world: World) -> AsyncGenerator[Ask]:
        yield ask

    left: list[asyncio.Task[None]] = []
    outcome, mistakes = outcome_of(
        Case(Subject("a leaking layer", frozenset(), opened), Fault("none", "", lambda world: None))
    )
    assert outcome == "answers, length, 0 requests"
    told = "\n".join(mistakes)
    for each in (
        "history has changed",
        "next call: answers, length",
        "leaks a context variable",
        "task is left",
        "timer is left",
    ):
        assert each in told


@pytest.mark.slow
def test_a_sample_of_the_outcomes_is_as_written_down() -> None:
    assert wrong_outcomes(sample(SAMPLE)) == []


@pytest.mark.slow
def test_a_sample_is_cancelled_at_every_step() -> None:
    assert wrong_when_cancelled(cancellable(MORE)) == []


@pytest.mark.slow
def test_all_outcomes_are_as_written_down() -> None:
    assert wrong_outcomes([case for case in ALL if not case.is_in(SAMPLE)]) == []


@pytest.mark.slow
def test_more_is_cancelled_at_every_step() -> None:
    assert wrong_when_cancelled(cancellable(1 if EVERYTHING else 0.08)) == []


@pytest.mark.slow
def test_in_debug_mode_of_asyncio_it_is_the_same() -> None:
    """It notices what is called from another thread, and coroutines that are never awaited."""
    debugging = Running(debug=True)
    assert wrong_outcomes(sample(1 if EVERYTHING else 0.05), debugging) == []
    assert wrong_when_cancelled(cancellable(0.1 if EVERYTHING else 0.01), debugging) == []


@pytest.mark.slow
def test_on_uvloop_it_is_the_same() -> None:
    """Its time cannot be moved, so without the cases in which something waits."""
    on_uvloop = Running(pytest.importorskip("uvloop").new_event_loop)
    share = 1 if EVERYTHING else 0.15
    assert wrong_outcomes([case for case in sample(share) if not waits(case)], on_uvloop) == []
    quick = [case for case in cancellable(share / 10) if not waits(case)]
    assert wrong_when_cancelled(quick, on_uvloop) == []
