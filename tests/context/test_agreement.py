"""Processes that share a store send the same requests; a store that fails costs a warning, and never a call."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from chatstack import (
    CharCounter,
    ChatStack,
    ContextMemory,
    ContextWindowGuard,
    Message,
    ToolCall,
    ToolResultClearer,
    WiringError,
)
from chatstack.stores.sqlite import SQLiteStore
from chatstack.testing import ScriptedClient, TelemetryCapture
from tests.histories import decoded_again

SCOPE = "tenant-7"


def talk(rounds: int, *, start: str = "") -> list[Message]:
    """A task and so many rounds of a call and its result; ids are used again."""
    messages = [Message.system("be brief"), Message.user(f"{start}look at everything")]
    for number in range(rounds):
        call = ToolCall(f"c{number % 3}", "look", f'{{"at": {number}}}')
        messages += [Message.assistant("looking", call), Message.tool(call.id, f"{start}{number} " * 60, name="look")]
    return messages


class Process:
    """What one process has: a stack with a clearer and a guard, and a memory of its own over the shared file."""

    def __init__(self, store: object, **memory: object) -> None:
        self.memory = ContextMemory(store=store, scope=SCOPE, **memory)  # type: ignore[arg-type]
        self.provider, self.capture = ScriptedClient(["ok"]), TelemetryCapture()
        stack = ChatStack(self.provider, memory=self.memory)
        stack = stack.use(ToolResultClearer, trigger={"tokens": 900}, keep={"messages": 2})
        stack = stack.use(ContextWindowGuard, max_context_tokens=1_300, prune_on_overflow=True)
        self.client = stack.build(self.capture.resolve)

    async def ask(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        await self.client.get_response(decoded_again(list(messages)))
        return self.provider.requests[-1].messages

    @property
    def edits(self) -> int:
        return sum(span.attributes.get("chatstack.severity") == "INFO" for span in self.capture.spans)


def ends(messages: Sequence[Message]) -> list[int]:
    return list(range(4, len(messages) + 1, 2))


def test_processes_that_take_turns_send_what_one_alone_would_send(tmp_path: Path) -> None:
    async def run() -> None:
        path, messages = tmp_path / "decisions.sqlite", talk(40)
        alone = Process(SQLiteStore(tmp_path / "alone.sqlite"))
        both = [Process(SQLiteStore(path)), Process(SQLiteStore(path))]
        for number, end in enumerate(ends(messages)):
            assert await both[number % 2].ask(messages[:end]) == await alone.ask(messages[:end])
        assert alone.edits > 3
        assert sum(each.edits for each in both) == alone.edits
        assert not any("store_unavailable" in each.capture.warnings for each in both)
        for each in (alone, *both):
            await each.memory.aclose()

    asyncio.run(run())


def test_a_process_that_starts_later_goes_on_with_what_was_decided(tmp_path: Path) -> None:
    async def run() -> None:
        messages = talk(40)
        first = Process(SQLiteStore(tmp_path / "decisions.sqlite"))
        sent = [await first.ask(messages[:end]) for end in ends(messages)]
        await first.memory.aclose()
        second = Process(SQLiteStore(tmp_path / "decisions.sqlite"))
        assert await second.ask(messages) == sent[-1]
        assert second.edits == 0
        cleared = [message for message in second.provider.requests[-1].messages if message.annotation is not None]
        assert cleared
        assert all(message.annotation.handles for message in cleared if message.annotation is not None)
        assert all(message.original is not message for message in cleared)
        await second.memory.aclose()

    asyncio.run(run())


def one_process(path: str, start: str, connection: object) -> None:
    """What the other process does: the whole conversation, one call after the other."""

    async def run() -> list[object]:
        process, messages = Process(SQLiteStore(path), store_timeout_seconds=20.0), talk(30, start=start)
        sent = [[repr(message) for message in await process.ask(messages[:end])] for end in ends(messages)]
        await process.memory.aclose()
        return [sent, list(process.capture.warnings)]

    connection.send(json.dumps(asyncio.run(run())))  # type: ignore[attr-defined]


def test_two_real_processes_at_the_same_time_send_the_same_requests(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for _ in range(2):
        here, there = context.Pipe()
        process = context.Process(target=one_process, args=(str(tmp_path / "d.sqlite"), "same ", there))
        process.start()
        pipes.append(here)
        processes.append(process)
    try:
        answers = [json.loads(here.recv()) for here in pipes]
    finally:
        for process in processes:
            process.join(30)
    assert [process.exitcode for process in processes] == [0, 0]
    assert answers[0][0] == answers[1][0]
    assert not any("store_unavailable" in warnings for _, warnings in answers)


class Slow:
    """A store that never answers in time."""

    def __init__(self) -> None:
        self.asked = 0

    async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        self.asked += 1
        await asyncio.sleep(60)
        return None

    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        self.asked += 1
        await asyncio.sleep(60)
        return record

    async def forget(self, links: Sequence[bytes] | None = None) -> None: ...

    async def aclose(self) -> None: ...


def test_a_slow_store_costs_one_warning_and_one_timeout(tmp_path: Path) -> None:
    async def run() -> None:
        store, messages = Slow(), talk(20)
        process = Process(store, store_timeout_seconds=0.05)
        started = time.monotonic()
        sent = [await process.ask(messages[:end]) for end in ends(messages)]
        assert time.monotonic() - started < 4
        assert store.asked == 1
        assert process.capture.warnings == ("store_unavailable",)
        alone = Process(SQLiteStore(tmp_path / "alone.sqlite"))
        assert sent == [await alone.ask(messages[:end]) for end in ends(messages)]
        await alone.memory.aclose()

    asyncio.run(run())


def locked(path: Path) -> sqlite3.Connection:
    held = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    held.execute("PRAGMA locking_mode = EXCLUSIVE")
    held.execute("CREATE TABLE IF NOT EXISTS held (x)")
    held.execute("BEGIN EXCLUSIVE")
    held.execute("INSERT INTO held VALUES (1)")
    return held


def corrupted(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\x00" + b"\xff" * 5_000)


@pytest.mark.parametrize("spoil", [locked, corrupted], ids=lambda each: each.__name__)
def test_a_store_that_cannot_be_used_costs_a_warning_and_no_call(tmp_path: Path, spoil: object) -> None:
    assert callable(spoil)
    path = tmp_path / "decisions.sqlite"
    held = spoil(path)

    async def run() -> None:
        process, messages = Process(SQLiteStore(path)), talk(40)
        for end in ends(messages):
            assert len(await process.ask(messages[:end])) > 0
        assert process.capture.warnings.count("store_unavailable") == 1
        assert process.edits > 1
        await process.memory.aclose()

    asyncio.run(run())
    if isinstance(held, sqlite3.Connection):
        held.close()


def test_what_is_read_is_verified_like_a_plan(tmp_path: Path) -> None:
    """A record whose bytes are fine, but which drops what must stay."""
    from chatstack.context.records import Record
    from chatstack.context.stored import stored

    class Forger(Slow):
        async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
            conversation = tuple(message for message in messages if message.role != "system")
            return links[-1], stored(Record(drop=(0,)), conversation[:3])

        async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
            return record

    messages = talk(1)

    async def run() -> None:
        process = Process(Forger())
        assert await process.ask(messages) == tuple(messages)
        assert set(process.capture.warnings) == {"plan_rejected"}
        assert any("latest user message" in str(span.attributes) for span in process.capture.spans)

    asyncio.run(run())


def test_tenants_do_not_meet_in_a_store(tmp_path: Path) -> None:
    path = tmp_path / "decisions.sqlite"

    async def run() -> None:
        messages = talk(40)
        ours = Process(SQLiteStore(path))
        for end in ends(messages):
            await ours.ask(messages[:end])
        theirs = ContextMemory(store=SQLiteStore(path), scope="tenant-8")
        provider, capture = ScriptedClient(["ok"]), TelemetryCapture()
        stack = ChatStack(provider, memory=theirs).use(ToolResultClearer, trigger={"tokens": 900}, keep={"messages": 2})
        await stack.build(capture.resolve).get_response(messages)
        made = [span for span in capture.spans if span.attributes.get("chatstack.severity") == "INFO"]
        assert len(made) == 1  # decided anew
        await ours.memory.aclose()
        await theirs.aclose()

    asyncio.run(run())


def test_messages_can_be_forgotten_in_the_store_too(tmp_path: Path) -> None:
    async def run() -> None:
        messages = talk(40)
        first = Process(SQLiteStore(tmp_path / "decisions.sqlite"))
        await first.ask(messages)
        assert first.edits
        await first.memory.forget_stored(messages)
        await first.memory.aclose()
        second = Process(SQLiteStore(tmp_path / "decisions.sqlite"))
        await second.ask(messages)
        assert second.edits == first.edits
        await second.memory.aclose()

    asyncio.run(run())


def remove(folder: Path) -> None:
    for each in folder.glob("decisions.sqlite*"):
        each.unlink()


def test_a_file_that_is_removed_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "decisions.sqlite"

    async def run() -> None:
        messages = talk(40)
        first = Process(SQLiteStore(path))
        await first.ask(messages[:20])
        remove(tmp_path)
        await first.ask(messages)
        assert first.edits
        second = Process(SQLiteStore(path))
        assert await second.ask(messages) == first.provider.requests[-1].messages
        assert second.edits == 0
        await first.memory.aclose()
        await second.memory.aclose()

    asyncio.run(run())


class Nameless(CharCounter):
    __repr__ = object.__repr__


def test_a_counter_that_says_nothing_of_itself_cannot_share(tmp_path: Path) -> None:
    memory = ContextMemory(store=SQLiteStore(tmp_path / "d.sqlite"), scope=SCOPE)
    stack = ChatStack(ScriptedClient(["ok"]), memory=memory).use(
        ContextWindowGuard, max_context_tokens=900, counter=Nameless()
    )
    with pytest.raises(WiringError, match="ContextWindowGuard: counter Nameless has no repr"):
        stack.build()


@pytest.mark.parametrize("given", [{"store": Slow()}, {"scope": "tenant"}])
def test_a_store_needs_a_scope_and_a_scope_a_store(given: dict[str, object]) -> None:
    with pytest.raises(WiringError, match="scope="):
        ContextMemory(**given)  # type: ignore[arg-type]


def test_a_store_is_not_asked_twice_for_the_same_messages(tmp_path: Path) -> None:
    asked: list[int] = []

    class Counting(Slow):
        async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
            asked.append(len(links))
            return None

    async def run() -> None:
        process, messages = Process(Counting()), talk(6)
        for end in ends(messages):
            await process.ask(messages[:end])

    asyncio.run(run())
    # By two layers, in six calls each; of what was asked for, only what may yet be decided about is asked for again.
    assert len(asked) == 12
    assert max(asked) <= 4
