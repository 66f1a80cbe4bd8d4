"""How much a memory holds of many conversations, every one edited: no more than its bound, and all of it given back."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import NamedTuple

import pytest

from chatstack import ContextMemory, Message
from tests.context.conversing import Process, Talk, to_the_end

RECIPES = ("guard", "clearer", "condensing", "shaper", "shaper, clearer, guard")


class Held(NamedTuple):
    traced: int
    told: int


def talk(number: int, *, has_id: bool) -> Talk:
    """One that is long when it is first seen, and edited in its first call."""
    head = [Message.user(f"task {number} " + "word " * 20)]
    for _ in range(4):
        head.append(Message.assistant(f"I look into {number}."))
        head.append(Message.user("and then? " + f"word{number} " * 40))
    return Talk(tuple(head), ["look 1 80", "look 1 40"], f"c{number}" if has_id else None, is_fresh=True)


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize(
    ("conversations", "megabytes"), [(100, 0.5), pytest.param(400, 2, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize("recipe", ["guard", *(pytest.param(each, marks=pytest.mark.slow) for each in RECIPES[1:])])
def test_what_is_held_of_many_edited_conversations_stays_within_the_bound_and_is_given_back(
    recipe: str, conversations: int, megabytes: float
) -> None:
    """Every other one has an id, and all come in fresh objects."""
    memory = ContextMemory(clock=lambda: 0.0, max_megabytes=megabytes, max_messages=1_000_000)
    process = Process(recipe, memory=memory)
    held: list[Held] = []

    async def many(numbers: range) -> None:
        for number in numbers:
            edits = process.edits
            await to_the_end(talk(number, has_id=number % 2 == 0), process)
            assert process.edits > edits
            process.forget_requests()

    asyncio.run(many(range(-3, 0)))
    memory.forget()
    tracemalloc.start()
    try:
        nothing = traced()
        for quarter in range(4):
            asyncio.run(many(range(quarter * conversations // 4, (quarter + 1) * conversations // 4)))
            held.append(Held(traced() - nothing, memory.held_bytes))
        memory.forget()
        left = traced() - nothing
    finally:
        tracemalloc.stop()
    assert process.evicted > conversations // 4
    assert all(each.told <= megabytes * 1_000_000 for each in held)
    assert all(1 / 1.5 < each.told / each.traced < 1.5 for each in held), held
    assert held[-1].traced < held[1].traced * 1.1, held  # full by then: no slope
    assert left < held[-1].traced / 10
    assert memory.held_bytes == 0


@pytest.mark.parametrize("has_id", [True, False])
@pytest.mark.parametrize("recipe", RECIPES)
def test_an_edited_conversation_that_was_let_go_of_is_sent_the_same_way_when_it_comes_back(
    recipe: str, has_id: bool
) -> None:
    kept, small = (
        Process(recipe, memory=ContextMemory(clock=lambda: 0.0, max_messages=most), reports=None) for most in (9_999, 1)
    )

    async def sent_with(process: Process) -> list[tuple[Message, ...]]:
        one, other = talk(1, has_id=has_id), talk(2, has_id=has_id)
        while one.goes_on:
            await one.step(process)
            await other.step(process)
        assert process.edits
        return one.sent

    assert asyncio.run(sent_with(small)) == asyncio.run(sent_with(kept))
    assert (small.evicted > 4, kept.evicted) == (True, 0)
