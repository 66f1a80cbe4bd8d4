"""Real conversations in random order through one memory, or with a memory that is lost now and then: the same requests
as each alone in one that is fresh, and kept.

By default some conversations of each set are looked at; with CHATSTACK_ALL_DATA=1 all of them, which takes 15 minutes
more.
"""

from __future__ import annotations

import asyncio
import math
import random

import pytest

from chatstack import ChatClient, ChatStack, Message, ToolResultClearer
from chatstack.workbench.replay.measures.measuring import WireCounter
from tests.workbench.replay.on_data import (
    ALL_DATA,
    KEPT_RESULTS,
    KINDS,
    SWE,
    TAU,
    TAU2,
    Kind,
    Line,
    Talk,
    counter,
    talks_of,
)

pytestmark = [pytest.mark.data, pytest.mark.timeout(1_200)]

MOST = {TAU: 100, TAU2: 16, SWE: 255} if ALL_DATA else {TAU: 25, TAU2: 8, SWE: 10}
"""Conversations of a set."""
WINDOW = {TAU: 4_000, TAU2: 4_000, SWE: 8_000}


def some_of(name: str) -> list[Talk]:
    """Return conversations from all over a set, ``MOST`` at most."""
    talks = talks_of(name)
    return talks[:: math.ceil(len(talks) / MOST[name])]


@pytest.mark.slow
@pytest.mark.parametrize("has_id", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", WINDOW)
def test_conversations_in_random_order_through_one_memory_are_sent_as_each_alone(
    name: str, kind: Kind, has_id: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WireCounter, "best", classmethod(lambda _: counter()))
    talks = some_of(name)
    order = [at for at, talk in enumerate(talks) for _ in talk.calls]
    random.Random(name).shuffle(order)

    async def sent(talk: Talk, line: Line, end: int) -> tuple[Message, ...]:
        answer = talk.messages[end]
        return (await line.send(talk.messages[:end], talk.id if has_id else None, answer)).messages

    async def check() -> None:
        together = Line(kind, WINDOW[name])
        waiting = [iter(talk.calls) for talk in talks]
        found: list[list[tuple[Message, ...]]] = [[] for _ in talks]
        for at in order:
            found[at].append(await sent(talks[at], together, next(waiting[at])))
        for at, talk in enumerate(talks):
            alone = Line(kind, WINDOW[name])
            assert found[at] == [await sent(talk, alone, end) for end in talk.calls], talk.id
        assert together.edits > 0

    asyncio.run(check())


def _batch(window: int, model: ChatClient) -> ChatStack:
    return ChatStack(model).use(
        ToolResultClearer, trigger={"tokens": window}, keep={"messages": KEPT_RESULTS}, counter=counter()
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, Kind("batch", 1.0, False, _batch)], ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", WINDOW)
def test_a_memory_that_is_lost_every_few_calls_changes_no_request(
    name: str, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also not those that follow, where a layer waits for more after a look in vain."""
    monkeypatch.setattr(WireCounter, "best", classmethod(lambda _: counter()))

    async def check() -> None:
        edits = 0
        for number, talk in enumerate(some_of(name)):
            kept = lost = Line(kind, WINDOW[name])
            for at, end in enumerate(talk.calls):
                if at % 5 == number % 5:
                    lost = Line(kind, WINDOW[name])
                given, answer = talk.messages[:end], talk.messages[end]
                one = await kept.send(given, talk.id, answer)
                other = await lost.send(given, talk.id, answer)
                assert one.messages == other.messages, (talk.id, end)
            edits += kept.edits
        assert edits > 0

    asyncio.run(check())
