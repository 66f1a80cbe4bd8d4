"""One lock for a memory and all of its histories, so that there is no order to keep; no counter is called under it."""

from __future__ import annotations

import asyncio
import random
import sys
import threading

import pytest

from chatstack import (
    CharCounter,
    ChatStack,
    ContextMemory,
    ContextWindowGuard,
    Message,
    Summarizer,
    Text,
    ToolResultClearer,
)
from chatstack.context.edits.records import Record
from chatstack.context.histories.recognised import Recognised
from chatstack.testing import ScriptedClient
from tests.histories import decoded_again

LONG = [Message.user("task"), *(Message.assistant(f"{number} " + "word " * 20) for number in range(30))]


class Dear(CharCounter):
    """A counter that costs more than a digest, so that sizes are kept in the memory."""

    is_cheap = False


class Meanwhile(Dear):
    """Has another thread use the memory while it counts, and gives it ten seconds."""

    def __init__(self, memory: ContextMemory) -> None:
        super().__init__()
        self.memory = memory
        self.seen: Recognised | None = None
        self.times = 0

    def count_message(self, message: Message) -> int:
        if self.seen is not None:
            done = threading.Thread(target=self.use, args=(self.seen,), daemon=True)
            done.start()
            done.join(10)
            if done.is_alive():
                raise TimeoutError("the counter was called under a lock that others wait for")
            self.times += 1
        return super().count_message(message)

    def use(self, seen: Recognised) -> None:
        self.memory.chosen("guard", self.memory.recognise(decoded_again(LONG), "another"))
        self.memory.choose("guard", seen, Record(drop=(1,)), Message.assistant("said"), [seen.who])
        self.memory.set_level("guard", seen, 1)
        self.memory.past.entry(seen, Message.assistant("said"))
        seen.history.sums(seen.length, CharCounter(), CharCounter().count_message)
        self.memory.forget(conversation_id="a third")


def test_nothing_is_locked_while_a_counter_counts() -> None:
    memory = ContextMemory()
    counter = Meanwhile(memory)
    seen = memory.recognise(LONG, "c")
    memory.choose("guard", seen, Record(drop=(1,)), Message.assistant("said"), [seen.who])
    counter.seen = seen
    sums = seen.history.sums(5, counter, memory.sizes_by(counter))
    assert list(sums[:6]) == [sum(map(CharCounter().count_message, LONG[:at])) for at in range(6)]
    assert counter.times == 5


def test_sizes_that_two_threads_count_at_once_are_added_once() -> None:
    memory = ContextMemory()
    seen, counter, start = memory.recognise(LONG), Dear(), threading.Barrier(8)

    def count(length: int) -> None:
        start.wait()
        seen.history.sums(length, counter, memory.sizes_by(counter))

    threads = [threading.Thread(target=count, args=(length,)) for length in (3, 9, 20, 31, 31, 20, 9, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sums = seen.history.sums(31, counter, memory.sizes_by(counter))
    assert list(sums) == [sum(map(CharCounter().count_message, LONG[:at])) for at in range(32)]


@pytest.mark.timeout(300)
def test_threads_that_hammer_one_memory_all_come_to_an_end() -> None:
    memory = ContextMemory(max_megabytes=0.3)
    writer = ScriptedClient(["in short"])

    async def talk(seed: int) -> int:
        rng, counter = random.Random(seed), Dear()
        model = ScriptedClient(["fine"])
        client = (
            ChatStack(model, memory=memory)
            .use(ToolResultClearer, trigger={"tokens": 200}, keep={"messages": 1}, counter=counter)
            .use(Summarizer, max_tokens=400, max_summary_tokens=50, summary_client=writer, counter=counter)
            .use(ContextWindowGuard, max_context_tokens=500, prune_on_overflow=True, counter=counter)
            .build()
        )
        for _ in range(25):
            messages = LONG[: rng.randrange(2, len(LONG))]
            messages = decoded_again(messages) if rng.random() < 0.5 else messages
            await client.get_response([*messages, Message.user("go on")], conversation_id=f"c{rng.randrange(4)}")
            if rng.random() < 0.1:
                memory.forget(conversation_id=f"c{rng.randrange(4)}")
            if rng.random() < 0.1:
                memory.forget(messages=messages)
        return len(model.requests)

    made: list[int] = []
    threads = [
        threading.Thread(target=lambda seed=seed: made.append(asyncio.run(talk(seed))), daemon=True)
        for seed in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert made == [25] * 6
    assert 0 < memory.held_bytes <= 300_000


def test_a_summary_is_kept_and_found_from_several_threads() -> None:
    memory, summary = ContextMemory(), Message("assistant", (Text("short"),), mark="summary")
    seen = memory.recognise(LONG)
    found: list[Message | None] = []

    def keep() -> None:
        memory.keep_artifact("summary", seen.links[1], summary, seen)
        found.append(memory.artifact("summary", seen.links[1]))

    threads = [threading.Thread(target=keep) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [summary] * 8


def test_levels_are_looked_up_while_other_threads_keep_some() -> None:
    memory, talk, failed = ContextMemory(), [Message.user(f"{number}") for number in range(4_000)], list[Exception]()
    for length in range(1, 3_000):
        memory.set_level("guard", memory.recognise(talk[:length]), 1)

    def keep() -> None:
        for length in range(3_000, 4_000):
            memory.set_level("guard", memory.recognise(talk[:length]), 1)

    def look() -> None:
        try:
            seen, number = memory.recognise([Message.user("another"), *talk]), 0
            while keeping.is_alive():
                number += 1
                memory.level(f"layer {number}", seen)
        except RuntimeError as error:
            failed.append(error)

    keeping, looking = threading.Thread(target=keep), threading.Thread(target=look)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        keeping.start()
        looking.start()
        keeping.join()
        looking.join()
    finally:
        sys.setswitchinterval(before)
    assert failed == []
