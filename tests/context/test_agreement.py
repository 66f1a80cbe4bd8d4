"""Processes that share a store send the same requests; a store that fails costs a warning, and never a call."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import multiprocessing
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from chatstack import (
    ChatStack,
    ContextMemory,
    ContextWindowGuard,
    Message,
    Plan,
    Text,
    ToolCall,
    ToolResult,
    ToolResultClearer,
    WiringError,
)
from chatstack.context.decisions.agreement import Agreement
from chatstack.context.edits.records import Insertion, Record
from chatstack.context.edits.summaries import OPENING
from chatstack.context.memory.stored import stored
from chatstack.context.requests.left_out import without_left_out
from chatstack.context.requests.opened import Opened
from chatstack.stores import table
from chatstack.stores.sqlite import SQLiteStore
from chatstack.telemetry.emission import Telemetry
from chatstack.testing import ScriptedClient, TelemetryCapture
from tests.context.strictness import context_of
from tests.context.test_sharing import DictStore
from tests.histories import decoded_again

SCOPE = "tenant-7"
ANSWERED = [Message.assistant("ok"), Message.user("and?")]


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
        memory.setdefault("store_timeout_seconds", 300)  # a slow machine is no defect
        self.memory = ContextMemory(store=store, scope=SCOPE, **memory)  # type: ignore[arg-type]
        self.provider, self.capture = ScriptedClient(["ok"]), TelemetryCapture()
        stack = ChatStack(self.provider, memory=self.memory)
        stack = stack.use(ToolResultClearer, trigger={"tokens": 900}, keep={"messages": 2})
        stack = stack.use(ContextWindowGuard, max_context_tokens=1_300, prune_on_overflow=True)
        self.client = stack.build(self.capture.resolve)

    async def ask(
        self, messages: Sequence[Message], answer: Message | str = "ok", conversation_id: str | None = None
    ) -> tuple[Message, ...]:
        self.provider.answers = [answer]
        await self.client.get_response(decoded_again(list(messages)), conversation_id=conversation_id)
        return self.provider.requests[-1].messages

    @property
    def edits(self) -> int:
        return sum(span.attributes.get("chatstack.severity") == "INFO" for span in self.capture.spans)

    async def goes_through(self, messages: Sequence[Message], *, until: int | None = None) -> list[tuple[Message, ...]]:
        """The requests of the whole conversation, each answered as the conversation tells."""
        return [await self.ask(messages[:end], answer_in(messages, end)) for end in ends(messages[:until])]


def ends(messages: Sequence[Message]) -> list[int]:
    return list(range(4, len(messages) + 1, 2))


def answer_in(messages: Sequence[Message], end: int) -> Message | str:
    return messages[end] if end < len(messages) else "ok"


def test_processes_that_take_turns_send_what_one_alone_would_send(tmp_path: Path) -> None:
    async def run() -> None:
        path, messages = tmp_path / "decisions.sqlite", talk(40)
        alone = Process(SQLiteStore(tmp_path / "alone.sqlite"))
        both = [Process(SQLiteStore(path)), Process(SQLiteStore(path))]
        for number, end in enumerate(ends(messages)):
            answer = answer_in(messages, end)
            assert await both[number % 2].ask(messages[:end], answer) == await alone.ask(messages[:end], answer)
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
        sent = await first.goes_through(messages)
        assert first.edits > 3
        await first.memory.aclose()
        second = Process(SQLiteStore(tmp_path / "decisions.sqlite"))
        assert await second.ask([*messages, *ANSWERED]) == (*sent[-1], *ANSWERED)
        assert second.edits == 0
        cleared = [message for message in second.provider.requests[-1].messages if message.annotation is not None]
        assert cleared
        assert all(message.annotation.handles for message in cleared if message.annotation is not None)
        assert all(message.original is not message for message in cleared)
        await second.memory.aclose()

    asyncio.run(run())


def one_process(path: str, start: str, connection: object) -> None:
    """What the other process does: the whole conversation, one call after the other."""
    table.FORM = dataclasses.replace(table.FORM, busy_seconds=300)  # a slow machine is no defect

    async def run() -> list[object]:
        process, messages = Process(SQLiteStore(path), store_timeout_seconds=300), talk(30, start=start)
        sent = [[repr(message) for message in request] for request in await process.goes_through(messages)]
        await process.memory.aclose()
        return [sent, list(process.capture.warnings)]

    connection.send(json.dumps(asyncio.run(run())))  # type: ignore[attr-defined]


@pytest.mark.slow
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
            process.join(300)
    assert [process.exitcode for process in processes] == [0, 0]
    assert answers[0][0] == answers[1][0]
    assert not any("store_unavailable" in warnings for _, warnings in answers)


class Slow:
    """A store that never answers in time."""

    def __init__(self) -> None:
        self.asked = 0

    async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        self.asked += 1
        await asyncio.sleep(3_600)
        return None

    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        self.asked += 1
        await asyncio.sleep(3_600)
        return record

    async def forget(self, links: Sequence[bytes] | None = None) -> None: ...

    async def aclose(self) -> None: ...


def test_a_slow_store_costs_one_warning_and_one_timeout(tmp_path: Path) -> None:
    async def run() -> None:
        store, messages = Slow(), talk(20)
        process = Process(store, store_timeout_seconds=0.05)
        sent = [await process.ask(messages[:end]) for end in ends(messages)]
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
        await ours.goes_through(messages)
        theirs = ContextMemory(store=SQLiteStore(path), scope="tenant-8")
        provider, capture = ScriptedClient(["ok"]), TelemetryCapture()
        stack = ChatStack(provider, memory=theirs).use(ToolResultClearer, trigger={"tokens": 900}, keep={"messages": 2})
        await stack.build(capture.resolve).get_response(messages)
        made = [span for span in capture.spans if span.attributes.get("chatstack.severity") == "INFO"]
        assert len(made) == 1  # decided anew
        await ours.memory.aclose()
        await theirs.aclose()

    asyncio.run(run())


def records_in(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        (count,) = connection.execute("SELECT count(*) FROM decisions").fetchone()
    finally:
        connection.close()
    return int(count)


@pytest.mark.parametrize("answers", [0, 1], ids=["as they were sent", "with the last answer"])
def test_messages_can_be_forgotten_in_the_store_too(tmp_path: Path, answers: int) -> None:
    async def run() -> None:
        path, messages = tmp_path / "decisions.sqlite", talk(40)
        first = Process(SQLiteStore(path))
        await first.goes_through(messages)
        assert records_in(path) > 3
        await first.memory.forget_stored([*messages, *ANSWERED[:answers]])
        await first.memory.aclose()
        assert records_in(path) == 0
        second = Process(SQLiteStore(path))
        await second.ask([*messages, *ANSWERED])
        assert second.edits > 0
        await second.memory.aclose()

    asyncio.run(run())


def test_a_choice_that_somebody_else_has_put_first_under_the_same_answer_is_adopted() -> None:
    """Both have sent what they chose; from then on all go by the one that holds."""

    async def run() -> None:
        store, messages, first = DictStore(), talk(3), Record(drop=(1, 2))
        here, there = (ContextMemory(store=store, scope=SCOPE) for _ in range(2))
        for memory, record in ((here, first), (there, Record(drop=(1, 2, 3, 4)))):
            seen = memory.recognise(messages)
            for bound in memory.choose("guard", seen, record, Message.assistant("ok"), [seen.who]):
                await Agreement(memory, Telemetry()).share(bound, seen, context_of(messages))
        for memory in (here, there):
            seen = memory.recognise(decoded_again([*messages, *ANSWERED]))
            assert memory.chosen("guard", seen).record == first

    asyncio.run(run())


LIES = {
    "half a pair": Record(drop=(2,)),
    "the task": Record(drop=(0,)),
    "the answer": Record(drop=(7,)),
    "no result": Record(insert=(Insertion(1, Message("tool", (ToolResult("x", "", "1"),), mark="repair"), None),)),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_what_a_store_says_was_put_first_is_verified_like_a_plan(lie: Record) -> None:
    async def run() -> None:
        memory, messages, mine = ContextMemory(store=DictStore(), scope=SCOPE), talk(3), Record(drop=(1, 2))
        seen = memory.recognise(messages)
        assert memory.shared is not None
        for bound in memory.choose("guard", seen, mine, Message.assistant("ok"), [seen.who]):
            await memory.shared.put(f"choice:guard:{seen.who}", bound.link, lie, bound.messages)
            await Agreement(memory, Telemetry()).share(bound, seen, context_of(messages))
        assert memory.chosen("guard", memory.recognise([*messages, *ANSWERED])).record == mine

    asyncio.run(run())


def test_what_is_no_summary_is_not_taken_for_one() -> None:
    async def run() -> None:
        store, messages = DictStore(), talk(2)
        orphan = Message("tool", (ToolResult("x", "", "1"),), mark="repair")
        summary = Message("assistant", (Text(f"{OPENING}\nmine"),), mark="summary")
        held: list[Message | None] = []
        for given in (orphan, summary):
            memory = ContextMemory(store=store, scope=SCOPE)
            seen = memory.recognise(messages)
            agreement = Agreement(memory, Telemetry())
            held.append(await agreement.artifact("summary:1", seen.links[2], seen))
            held.append(await agreement.keep_artifact("summary:1", seen.links[2], given, seen))
        assert held == [None, orphan, None, summary]

    asyncio.run(run())


def test_of_two_summaries_of_the_same_the_first_holds_for_both() -> None:
    async def run() -> None:
        store, messages = DictStore(), talk(2)
        held: list[Message] = []
        for text in ("first", "second"):
            memory = ContextMemory(store=store, scope=SCOPE)
            seen = memory.recognise(messages)
            summary = Message("assistant", (Text(f"{OPENING}\n{text}"),), mark="summary")
            agreement = Agreement(memory, Telemetry())
            held.append(await agreement.keep_artifact("summary:1", seen.links[2], summary, seen))
            held += [each for each in (memory.artifact("summary:1", seen.links[2]),) if each is not None]
        assert [each.text.splitlines()[-1] for each in held] == ["first"] * 4

    asyncio.run(run())


def test_a_call_that_is_made_again_after_somebody_chose_plans_the_same() -> None:
    """Nothing binds it: it holds no answer yet. A pure strategy comes to the same edits."""

    async def run() -> None:
        store, messages = DictStore(), talk(40)
        first, second = Process(store), Process(store)
        assert await first.ask(messages) == await second.ask(messages)
        assert first.edits == second.edits > 0

    asyncio.run(run())


@pytest.mark.parametrize(("before", "then"), [(None, "c-1"), ("c-1", None), ("c-1", "c-2")])
def test_an_id_does_not_hide_what_was_chosen_before_the_conversation_had_it(
    before: str | None, then: str | None
) -> None:
    async def run() -> None:
        store, messages = DictStore(), talk(40)
        first, second = Process(store), Process(store)
        sent = [
            await first.ask(messages[:end], answer_in(messages, end), conversation_id=before) for end in ends(messages)
        ]
        assert await second.ask([*messages, *ANSWERED], conversation_id=then) == (*sent[-1], *ANSWERED)
        assert second.edits == 0

    asyncio.run(run())


def left_by_an_older_release(path: Path) -> None:
    """A file as an older release has left it."""

    async def make() -> None:
        store = SQLiteStore(path)
        await store.put("owner", b"link", b"record")
        await store.aclose()

    asyncio.run(make())
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 1")
    connection.close()


def test_a_file_of_an_older_version_costs_a_warning_and_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "decisions.sqlite"
    left_by_an_older_release(path)
    content = path.read_bytes()

    async def run() -> None:
        process, messages = Process(SQLiteStore(path), store_timeout_seconds=300.0), talk(40)
        await process.goes_through(messages)
        assert process.capture.warnings.count("store_unavailable") == 1
        assert any("this release knows version 2" in str(span.attributes) for span in process.capture.spans)
        assert process.edits > 1
        await process.memory.aclose()

    asyncio.run(run())
    assert path.read_bytes() == content


@pytest.mark.parametrize("version", [1, 3], ids=["older", "newer"])
def test_a_record_of_another_version_costs_a_warning_and_stays_as_it_was(version: int) -> None:
    async def run() -> None:
        store, messages = DictStore(), talk(40)
        first = Process(store)
        sent = await first.goes_through(messages)
        for key, data in store.kept.items():
            store.kept[key] = data.replace(b"\x95\x02", bytes([0x95, version]), 1)
        before, second = dict(store.kept), Process(store)
        assert await second.ask(messages) == sent[-1]
        assert "store_unavailable" in second.capture.warnings
        assert any(
            f"of version {version} of the format, and this release knows version 2" in str(span.attributes)
            for span in second.capture.spans
        )
        assert {key: store.kept[key] for key in before} == before

    asyncio.run(run())


def remove(folder: Path) -> None:
    for each in folder.glob("decisions.sqlite*"):
        each.unlink()


def test_a_file_that_is_removed_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "decisions.sqlite"

    async def run() -> None:
        messages = talk(40)
        first = Process(SQLiteStore(path))
        await first.goes_through(messages, until=20)
        remove(tmp_path)
        sent = await first.ask(messages)
        assert first.edits
        second = Process(SQLiteStore(path))
        assert await second.ask([*messages, *ANSWERED]) == (*sent, *ANSWERED)
        assert second.edits == 0
        await first.memory.aclose()
        await second.memory.aclose()

    asyncio.run(run())


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


def test_what_is_folded_further_in_is_not_looked_for_in_a_context_without_it() -> None:
    messages = talk(3)[1:]
    opened = Opened(context_of(messages), ContextMemory().recognise(messages), "m")
    shorter = opened.context.after(Plan(strategy="x", reason="a store said so", drop=(3, 4, 5, 6)))
    folded = Record(drop=(2, 3, 4, 5))
    assert without_left_out(shorter, opened, folded) is shorter
    assert without_left_out(opened.context, opened, folded).tokens < opened.context.tokens
