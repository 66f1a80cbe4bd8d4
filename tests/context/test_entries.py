"""Choices and artifacts of histories: what they count for, whose they are, and what makes room for whom."""

from __future__ import annotations

import asyncio
import gc
import itertools
import tracemalloc

import pytest

from chatstack import ContextMemory, Message, Text, ToolResult
from chatstack.context.decisions.agreement import Agreement
from chatstack.context.edits.records import Edit, Insertion, Record
from chatstack.context.requests.opened import Opened
from chatstack.context.summaries.kept_summaries import KeptSummaries
from chatstack.telemetry.emission import Telemetry
from tests.context.conversing import Process, Talk
from tests.context.strictness import context_of

PROMPT = (Message.user("task " + "word " * 50), Message.assistant("go on"), Message.user("more"))
SAID = Message.assistant("said")


def edit(position: int, text: str) -> Edit:
    return Edit(position, (ToolResult("c", "look", text),), None, None, None)


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("megabytes", [0.25, pytest.param(1, marks=pytest.mark.slow)])
def test_one_prompt_of_thousands_of_conversations_stays_within_the_bound(megabytes: float) -> None:
    """All of them share one history, which is the most recently used one."""
    memory, record = ContextMemory(max_megabytes=megabytes), Record(drop=(0,))
    tracemalloc.start()
    try:
        before = traced()
        for number in range(3_000):
            seen = memory.recognise(PROMPT, f"c{number}")
            memory.choose("guard", seen, Record(drop=record.drop), SAID, [seen.who])
            assert memory.held_bytes <= megabytes * 1_000_000
        held = traced() - before
    finally:
        tracemalloc.stop()
    assert held < megabytes * 1_500_000
    assert memory.chosen("guard", memory.recognise((*PROMPT, SAID), "c2999")).record == record
    assert memory.chosen("guard", memory.recognise((*PROMPT, SAID), "c0")).record is None


def test_the_conversation_in_flight_keeps_all_of_its_choices() -> None:
    memory, mine = ContextMemory(max_megabytes=0.1), Record(drop=(1,))
    for number in range(100):
        seen = memory.recognise(PROMPT, f"c{number}")
        memory.choose("guard", seen, Record(drop=(0,)), SAID, [seen.who])
    answers = [Message.assistant(f"answer {number}") for number in range(40)]
    for answer in answers:
        seen = memory.recognise(PROMPT, "mine")
        memory.choose("guard", seen, Record(drop=mine.drop), answer, [seen.who])
    found = [memory.chosen("guard", memory.recognise((*PROMPT, each), "mine")).record for each in answers[::20]]
    assert found == [mine, mine]


def test_a_conversation_that_lost_its_choices_is_sent_the_same_way() -> None:
    """Pure strategies decide alike when they are run again over the history's own requests."""
    sent: list[list[tuple[Message, ...]]] = []
    for megabytes in (256, 0.05):
        memory = ContextMemory(clock=lambda: 0.0, max_megabytes=megabytes)
        process = Process("guard", memory=memory, reports=None)
        head = tuple(
            make(f"{number} " + "word " * 40) for number, make in enumerate([Message.user, Message.assistant] * 4)
        )
        talks = [Talk(head, ["one", "two", "three"], f"c{number}") for number in range(60)]

        async def all_in_turn(talks: list[Talk] = talks, process: Process = process) -> None:
            while any(each.goes_on for each in talks):
                for each in talks:
                    if each.goes_on:
                        await each.step(process)

        asyncio.run(all_in_turn())
        assert process.edits
        sent.append([messages for talk in talks for messages in talk.sent])
    assert sent[0] == sent[1]


def test_edits_that_records_share_count_once() -> None:
    memory = ContextMemory()
    seen = memory.recognise(PROMPT, "c")
    edits: tuple[Edit, ...] = ()
    held: list[int] = []
    for number in range(20):
        edits = (*edits, edit(1, f"{number} " + "x" * 5_000))
        memory.choose("guard", seen, Record(replace=edits), Message.assistant(f"{number}"), [seen.who])
        held.append(memory.held_bytes)
    steps = [after - before for before, after in itertools.pairwise(held)]
    assert min(steps) > 5_000
    assert max(steps) < 8_000


@pytest.mark.parametrize("size", [100, 50_000])
def test_what_a_record_puts_in_counts_with_its_text(size: int) -> None:
    ours = Message("assistant", (Text("x" * size),), mark="summary")
    for record in (Record(insert=(Insertion(1, ours, None),)), Record(replace=(edit(1, "x" * size),))):
        memory = ContextMemory()
        seen = memory.recognise(PROMPT, "c")
        before = memory.held_bytes
        memory.choose("guard", seen, record, SAID, [seen.who])
        assert size < memory.held_bytes - before < size + 4_000


def test_a_kept_cut_counts_with_its_record() -> None:
    """It is a record of its own, until the answer is bound to it."""
    memory, folded = ContextMemory(), 2_000
    messages = tuple(Message.user(f"{number}") for number in range(folded + 2))
    seen = memory.recognise(messages, "c")
    summary = Message("assistant", (Text("x" * 10_000),), mark="summary")
    record = Record(drop=tuple(range(folded)), insert=(Insertion(folded, summary, None),))
    kept = KeptSummaries(Agreement(memory, Telemetry()), "1")
    before = memory.held_bytes
    asyncio.run(kept.keep_cut(Opened(context_of(messages), seen, "m"), record, "m", folded))
    once = memory.held_bytes - before
    assert 10_000 + 8 * folded < once < 10_000 + 50 * folded
    memory.choose("summarizer", seen, record, SAID, [seen.who])
    assert memory.held_bytes - before < once + 5_000


def test_what_is_kept_again_counts_once() -> None:
    memory, summary = ContextMemory(), Message("assistant", (Text("x" * 1_000),), mark="summary")
    seen = memory.recognise(PROMPT, "c")
    memory.keep_artifact("summary", seen.links[1], summary, seen)
    held = memory.held_bytes
    memory.keep_artifact("summary", seen.links[1], summary, seen)
    assert memory.held_bytes == held


def test_a_forgotten_conversation_gives_its_bytes_back_though_others_have_its_history() -> None:
    memory = ContextMemory()
    held: list[int] = []
    for name in ("mine", "yours"):
        seen = memory.recognise(PROMPT, name)
        memory.choose("guard", seen, Record(drop=(0,)), SAID, [seen.who])
        held.append(memory.held_bytes)
    memory.forget(conversation_id="yours")
    assert memory.held_bytes < held[1]
    assert memory.chosen("guard", memory.recognise((*PROMPT, SAID), "mine")).record == Record(drop=(0,))
