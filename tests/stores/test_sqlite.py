"""Decisions in one SQLite file: found again by every process, and nothing that is wrong with the file hurts anybody."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest

from chatstack import ChatStackError, WiringError
from chatstack.context.memory.sharing import DecisionStore, Found, Kept, SharedDecisions
from chatstack.errors import StoreError
from chatstack.loop.folder import FolderWorkspace
from chatstack.stores import sqlite, sqlite_file, table
from chatstack.stores.sqlite import SQLiteStore
from chatstack.stores.sqlite_journal import SQLiteJournal
from tests.context.test_sharing import FIRST, HISTORY, LINKS, SECOND

T = TypeVar("T")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "decisions.db"


def done(work: Callable[[SQLiteStore], Awaitable[T]], path: Path, **options: Any) -> T:
    """Do it with a store of its own, in an event loop of its own, and close both."""

    async def bounded() -> T:
        store = SQLiteStore(path, **options)
        try:
            async with asyncio.timeout(300):
                return await work(store)
        finally:
            await store.aclose()

    return asyncio.run(bounded())


def rows(path: Path, columns: str = "*") -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(f"SELECT {columns} FROM decisions").fetchall()
    finally:
        connection.close()


def link(number: int) -> bytes:
    return number.to_bytes(16, "big")


def _is_a_store(store: DecisionStore) -> DecisionStore:
    return store


# What is kept


def test_what_was_put_is_found_after_closing_and_opening(path: Path) -> None:
    assert done(lambda store: store.put("o", link(1), b"record"), path) == b"record"
    assert done(lambda store: store.find("o", [link(1)]), path) == (link(1), b"record")


def test_the_last_link_that_has_a_record_counts(path: Path) -> None:
    async def work(store: SQLiteStore) -> list[Any]:
        for number in (2, 5, 7):
            await store.put("o", link(number), b"%d" % number)
        asked = [link(number) for number in range(10)]
        return [
            await store.find("o", asked),
            await store.find("o", asked[:7]),
            await store.find("o", asked[:2]),
            await store.find("o", []),
            await store.find("another", asked),
        ]

    assert done(work, path) == [(link(7), b"7"), (link(5), b"5"), None, None, None]


@pytest.mark.parametrize("known", [0, 499, 500, 501, 1_200, 1_999])
def test_thousands_of_links_are_asked_for_in_few_statements(
    path: Path, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    connect = sqlite3.connect

    def traced(*given: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*given, **options)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)

    async def work(store: SQLiteStore) -> Any:
        await store.put("o", link(known), b"record")
        statements.clear()
        return await store.find("o", [link(number) for number in range(2_000)])

    assert done(work, path) == (link(known), b"record")
    asked = [each for each in statements if " IN (" in each]
    assert len(asked) == (1_999 - known) // table.LINKS_AT_ONCE + 1


def test_the_first_one_stays_unless_it_is_the_one_that_is_replaced(path: Path) -> None:
    async def work(store: SQLiteStore) -> list[bytes]:
        return [
            await store.put("o", link(1), b"first"),
            await store.put("o", link(1), b"second"),
            await store.put("o", link(1), b"second", replaces=b"other"),
            await store.put("o", link(1), b"second", replaces=b"first"),
            await store.put("o", link(1), b"third", replaces=b"first"),
            await store.put("o", link(1), b"second"),
            await store.put("o", link(2), b"fourth", replaces=b"gone"),
        ]

    assert done(work, path) == [b"first", b"first", b"first", b"second", b"second", b"second", b"fourth"]


def test_what_comes_in_is_never_read_as_a_statement(path: Path) -> None:
    evil = "o'); DROP TABLE decisions; --"

    async def work(store: SQLiteStore) -> Any:
        await store.put(evil, evil.encode(), evil.encode())
        return await store.find(evil, [evil.encode()])

    assert done(work, path) == (evil.encode(), evil.encode())


def test_links_are_forgotten_for_every_owner_and_without_links_everything_is(path: Path) -> None:
    async def work(store: SQLiteStore) -> list[int]:
        counts: list[int] = []
        for number in range(1_200):
            await store.put("ab"[number % 2], link(number // 2), b"record")
        await store.forget([link(number) for number in range(590)])
        counts.append(len(rows(path)))
        await store.forget([])
        counts.append(len(rows(path)))
        await store.forget()
        counts.append(len(rows(path)))
        return counts

    assert done(work, path) == [20, 20, 0]


def test_what_was_forgotten_is_in_no_file_any_more(path: Path) -> None:
    async def work(store: SQLiteStore) -> list[bool]:
        await store.put("o", link(1), b"a summary of what they said")
        before = any(b"a summary" in each.read_bytes() for each in path.parent.iterdir())
        await store.forget([link(1)])
        return [before, any(b"a summary" in each.read_bytes() for each in path.parent.iterdir())]

    assert done(work, path) == [True, False]


@pytest.mark.slow
def test_nothing_is_left_of_it_where_sqlite_has_moved_rows_between_pages(path: Path) -> None:
    """Copies of rows stay in such pages, which ``secure_delete`` does not overwrite."""
    chance, talks = random.Random(2), range(400)
    links = {talk: [chance.randbytes(16) for _ in range(10)] for talk in talks}
    connection = sqlite_file.connected(path, table.FORM)
    with closing(connection), sqlite_file.Transaction(connection):
        for at in range(10):
            for talk in talks:
                record = secret_of(talk) + b"x" * chance.randrange(100, 900)
                connection.execute("INSERT INTO decisions VALUES ('me', ?, ?, 0)", (links[talk][at], record))
        for talk in talks:
            record = secret_of(talk) + b"y" * chance.randrange(100, 900)
            connection.execute("UPDATE decisions SET record = ? WHERE link = ?", (record, chance.choice(links[talk])))

    async def forget() -> None:
        store = SQLiteStore(path)
        await asyncio.gather(*(store.forget(links[talk]) for talk in talks[::2]))
        await store.aclose()

    asyncio.run(forget())
    left = path.read_bytes()
    assert [talk for talk in talks[::2] if secret_of(talk) in left] == []
    assert [talk for talk in talks[1::2] if secret_of(talk) not in left] == []


def secret_of(talk: int) -> bytes:
    return f"secret of {talk:05d} ".encode()


def test_forgetting_waits_for_others_that_read_or_says_that_the_log_still_holds_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(store: SQLiteStore) -> list[bool]:
        await store.put("o", link(1), b"a summary of what they said")
        reader = sqlite3.connect(path, isolation_level=None)
        try:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM decisions").fetchone()
            monkeypatch.setattr(sqlite_file, "ERASING_SECONDS", 0.1)
            with pytest.raises(StoreError, match="still in the file or its log"):
                await store.forget([link(1)])
            told = [any(b"a summary" in each.read_bytes() for each in path.parent.iterdir())]
            monkeypatch.setattr(sqlite_file, "ERASING_SECONDS", 300)  # a slow machine is no defect
            again = asyncio.create_task(store.forget([link(1)]))
            await asyncio.sleep(0.05)
            told.append(again.done())
            reader.execute("COMMIT")
            await again
        finally:
            reader.close()
        return [*told, any(b"a summary" in each.read_bytes() for each in path.parent.iterdir())]

    assert done(work, path) == [True, False, False]


# How much is kept


def test_the_oldest_go_when_there_are_too_many(path: Path) -> None:
    async def work(store: SQLiteStore) -> None:
        for number in range(8):
            await store.put("o", link(number), b"record")

    done(work, path, max_records=5)
    assert rows(path, "link") == [(link(number),) for number in range(3, 8)]


def test_what_was_used_again_stays(path: Path) -> None:
    clock = Clock()

    async def work(store: SQLiteStore) -> None:
        for number in range(5):
            await store.put("o", link(number), b"record")
        clock.now += sqlite.FRESH_SECONDS
        await store.find("o", [link(0)])
        await store.put("o", link(1), b"another", replaces=b"record")
        for number in range(5, 8):
            await store.put("o", link(number), b"record")

    done(work, path, max_records=5, clock=clock)
    assert {each for (each,) in rows(path, "link")} == {link(number) for number in (0, 1, 5, 6, 7)}


def test_what_a_clock_that_was_ahead_has_written_goes_first(path: Path) -> None:
    clock = Clock()
    clock.now += 10_000_000

    async def work(store: SQLiteStore) -> None:
        for number in range(5):
            await store.put("o", link(number), b"record")
        clock.now -= 10_000_000
        for number in range(5, 9):
            await store.put("o", link(number), b"record")

    done(work, path, max_records=5, clock=clock)
    assert {each for (each,) in rows(path, "link")} == {link(number) for number in (4, 5, 6, 7, 8)}


def test_whoever_changes_the_folder_keeps_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)

    async def work(store: SQLiteStore) -> tuple[bytes, bytes] | None:
        await store.put("o", link(1), b"record")
        monkeypatch.chdir(tmp_path / "below")
        return await store.find("o", [link(1)])

    assert done(work, Path("decisions.db")) == (link(1), b"record")
    assert [each.name for each in (tmp_path / "below").iterdir()] == []


@pytest.mark.parametrize(
    ("make", "option"), [(SQLiteStore, "path"), (SQLiteJournal, "path"), (FolderWorkspace, "root")]
)
def test_a_relative_path_in_a_folder_that_is_gone_says_what_to_give(
    make: Callable[[str], object], option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(WiringError, match=f": {option}='here' is relative .* absolute path") as caught:
        make("here")
    assert caught.value.parameter == option
    make(str(tmp_path / "here"))


@pytest.mark.parametrize("path", ["a\0b", "a\ud800b"])
@pytest.mark.parametrize(
    ("make", "option"), [(SQLiteStore, "path"), (SQLiteJournal, "path"), (FolderWorkspace, "root")]
)
def test_what_no_file_can_be_called_is_refused_at_once(make: Callable[[str], object], option: str, path: str) -> None:
    with pytest.raises(WiringError, match=f": {option}='a.*b' can name no file: leave out") as caught:
        make(path)
    assert caught.value.parameter == option


def test_a_record_that_is_used_often_is_written_to_once_an_hour(path: Path) -> None:
    clock = Clock()

    async def work(store: SQLiteStore) -> list[int]:
        used: list[int] = []
        await store.put("o", link(1), b"record")
        for _ in range(4):
            await store.find("o", [link(1)])
            await store.find("o", [])  # the thread has come to everything before
            used.append(rows(path, "used")[0][0])
            clock.now += 1_801
        return used

    start = int(clock.now)
    assert done(work, path, clock=clock) == [start, start, start + 3_602, start + 3_602]


def test_counting_is_not_done_for_every_record(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[int] = []
    monkeypatch.setattr(table, "trim", lambda _, max_records, ahead: trims.append(max_records))

    async def work(store: SQLiteStore) -> None:
        for number in range(101):
            await store.put("o", link(number), b"record")

    done(work, path, max_records=5_000)
    assert trims == [5_000] * 3


# What may be wrong


def wrong(path: Path, work: Callable[[SQLiteStore], Awaitable[Any]] | None = None) -> str:
    """What a store says of that file."""
    with pytest.raises(StoreError) as caught:
        done(work or (lambda store: store.put("o", link(1), b"record")), path)
    assert isinstance(caught.value, ChatStackError)
    return str(caught.value)


def test_a_folder_that_is_not_there_is_told_and_not_made(tmp_path: Path) -> None:
    assert wrong(tmp_path / "none" / "a.db").endswith("its folder does not exist")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_place_of_the_file_is_told(tmp_path: Path) -> None:
    assert wrong(tmp_path).endswith("it cannot be opened")


@pytest.mark.parametrize("content", [b"this is a text, and not a short one. " * 100, b"\x00" * 4_096, b"SQLite"])
def test_a_file_that_is_no_database_is_told_and_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert wrong(path).endswith("it is not a SQLite database")
    assert path.read_bytes() == content
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_damaged_database_is_told_and_left_as_it_is(path: Path) -> None:
    async def fill(store: SQLiteStore) -> None:
        for number in range(300):
            await store.put("o", link(number), b"record" * 20)

    done(fill, path)
    content = path.read_bytes()
    damaged = content[:4_096] + b"\xff" * (len(content) - 4_096)
    path.write_bytes(damaged)
    assert wrong(path, lambda store: store.find("o", [link(1)])).endswith("it is damaged; it is left as it is")
    assert wrong(path).endswith("it is damaged; it is left as it is")
    assert path.read_bytes() == damaged


def test_a_damaged_schema_is_told_although_python_cannot_read_what_sqlite_says_of_it(path: Path) -> None:
    done(lambda store: store.put("o", link(1), b"record"), path)
    damaged = path.read_bytes().replace(b"CREATE TABLE", b"CRE\x80TE TABLE")
    path.write_bytes(damaged)
    assert wrong(path).endswith("it is damaged; it is left as it is")
    assert path.read_bytes() == damaged


def test_another_programs_database_is_told_and_left_as_it_is(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE bills (amount)")
    connection.close()
    content = path.read_bytes()
    assert wrong(path).endswith("it is another program's database")
    assert path.read_bytes() == content


@pytest.mark.parametrize("value", ["'text'", "CAST(x'ff' AS TEXT)", "7", "1.5"])
def test_a_row_of_another_type_is_as_if_it_were_not_there(path: Path, value: str) -> None:
    async def work(store: SQLiteStore) -> list[Any]:
        shared = SharedDecisions(store, timeout_seconds=20)
        await shared.put("guard", LINKS[1], FIRST, HISTORY[:2])
        await shared.put("guard", LINKS[3], SECOND, HISTORY)
        connection = sqlite3.connect(path)
        connection.execute(f"UPDATE decisions SET record = {value}, used = 'never' WHERE link = ?", (LINKS[3],))
        connection.commit()
        connection.close()
        found = [await shared.find("guard", LINKS, HISTORY) for _ in range(2)]
        return [*found, await shared.put("guard", LINKS[3], SECOND, HISTORY)]

    first, *rest = done(work, path)
    assert (first.record, first.covers) == (FIRST, 2)
    assert first.problem == "a stored decision cannot be used: it is of another type than records are"
    assert rest == [Found(FIRST, 2), Kept(SECOND)]


def test_a_schema_of_another_version_is_told_and_left_as_it_is(path: Path) -> None:
    done(lambda store: store.put("o", link(1), b"record"), path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    assert wrong(path).endswith("its schema has version 7, this release knows version 2")
    assert rows(path, "record") == [(b"record",)]


def test_a_file_of_version_1_stays_byte_for_byte_as_it_was(path: Path) -> None:
    """Its records cannot be read any more; an older release may still use it."""
    done(lambda store: store.put("o", link(1), b"record"), path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    content = path.read_bytes()
    for ask in (
        lambda store: store.find("o", [link(1)]),
        lambda store: store.put("o", link(2), b"new"),
        lambda store: store.forget(),
    ):
        assert wrong(path, ask).endswith("its schema has version 1, this release knows version 2")
    assert path.read_bytes() == content


READ_ONLY = """
    import asyncio, os, sys
    from chatstack.errors import StoreError
    from chatstack.stores.sqlite import SQLiteStore

    if os.geteuid() == 0:  # root may write to everything
        os.setegid(65534), os.seteuid(65534)
    try:
        asyncio.run(SQLiteStore(sys.argv[1]).put("o", b"link", b"record"))
    except StoreError as error:
        print(error)
"""


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs the permissions of POSIX")
def test_a_file_that_may_not_be_written_to_is_told() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        path = folder / "decisions.db"
        done(lambda store: store.put("o", link(1), b"record"), path)
        folder.chmod(0o777)
        path.chmod(0o444)
        assert ran(READ_ONLY, path).strip().endswith("it may not be written to")
        assert len(rows(path)) == 1
    finally:
        shutil.rmtree(folder)


def limited_to(pages: int, connect: Callable[..., sqlite3.Connection]) -> Callable[..., sqlite3.Connection]:
    def connect_limited(*given: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*given, **options)
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    return connect_limited


def test_a_full_disk_is_told_and_what_was_there_is_still_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "connect", limited_to(20, sqlite3.connect))

    async def work(store: SQLiteStore) -> list[Any]:
        await store.put("o", link(1), b"record")
        with pytest.raises(StoreError, match="the disk is full"):
            await store.put("o", link(2), b"a" * 200_000)
        return [
            await store.find("o", [link(1), link(2)]),
            await store.put("o", link(3), b"small"),
            await store.put("o", link(1), b"other", replaces=b"record"),
        ]

    assert done(work, path) == [(link(1), b"record"), b"small", b"other"]


def test_a_disk_that_is_full_from_the_start_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "connect", limited_to(1, sqlite3.connect))
    assert wrong(path).endswith("the disk is full")


HOLDER = """
    import sqlite3, sys

    connection = sqlite3.connect(sys.argv[1], isolation_level=None)
    for statement in sys.argv[2:]:
        connection.execute(statement)
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def hold() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a process that does that in a file, and keeps it open until its input is closed."""
    held: list[subprocess.Popen[str]] = []

    def start(path: Path, *statements: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", textwrap.dedent(HOLDER), str(path), *statements]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        held.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for each in held:
        each.communicate(timeout=300)


def test_a_lock_of_another_process_is_told_reading_goes_on_and_after_it_so_does_writing(
    path: Path, hold: Callable[..., subprocess.Popen[str]]
) -> None:
    async def work(store: SQLiteStore) -> list[Any]:
        await store.put("o", link(1), b"record")
        holder = hold(path, "BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="it is locked by another process"):
            await store.put("o", link(2), b"record")
        found = await store.find("o", [link(1), link(2)])
        await asyncio.to_thread(holder.communicate)
        return [found, await store.put("o", link(2), b"record")]

    assert done(work, path) == [(link(1), b"record"), b"record"]


def test_a_lock_of_another_process_does_not_keep_a_new_one_from_reading(
    path: Path, hold: Callable[..., subprocess.Popen[str]]
) -> None:
    done(lambda store: store.put("o", link(1), b"record"), path)
    hold(path, "BEGIN EXCLUSIVE")
    assert done(lambda store: store.find("o", [link(1)]), path) == (link(1), b"record")


def test_a_write_that_fails_halfway_leaves_nothing_open(path: Path) -> None:
    async def work(store: SQLiteStore) -> bytes:
        with pytest.raises(UnicodeEncodeError):
            await store.put("\ud800", link(1), b"record")
        return await store.put("o", link(1), b"record")

    assert done(work, path) == b"record"


def test_a_file_that_another_process_has_for_itself_is_told(
    path: Path, hold: Callable[..., subprocess.Popen[str]]
) -> None:
    done(lambda store: store.put("o", link(1), b"record"), path)
    hold(path, "PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE")
    assert wrong(path, lambda store: store.find("o", [link(1)])).endswith("it is locked by another process")


def test_what_was_wrong_and_is_put_right_works_without_a_new_store(tmp_path: Path) -> None:
    folder = tmp_path / "later"

    async def work(store: SQLiteStore) -> Any:
        with pytest.raises(StoreError, match="folder does not exist"):
            await store.find("o", [link(1)])
        folder.mkdir()
        (folder / "a.db").write_bytes(b"this is a text, and not a short one. " * 100)
        with pytest.raises(StoreError, match="not a SQLite database"):
            await store.find("o", [link(1)])
        (folder / "a.db").unlink()
        return await store.find("o", [link(1)])

    assert done(work, folder / "a.db") is None


def test_after_an_error_the_file_is_opened_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    connect, find = sqlite3.connect, table.find

    def counted(*given: Any, **options: Any) -> sqlite3.Connection:
        opened.append(given)
        connection: sqlite3.Connection = connect(*given, **options)
        return connection

    def fails(*_: Any) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(sqlite3, "connect", counted)

    async def work(store: SQLiteStore) -> None:
        await store.find("o", [link(1)])
        monkeypatch.setattr(table, "find", fails)
        with pytest.raises(StoreError, match="SQLite says OperationalError"):
            await store.find("o", [link(1)])
        monkeypatch.setattr(table, "find", find)
        await store.find("o", [link(1)])
        await store.find("o", [link(1)])

    done(work, path)
    assert len(opened) == 2


# Threads, loops, and the end


def store_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("chatstack-sqlite")]


def test_a_thread_that_cannot_be_started_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        assert wrong(path).endswith("its thread takes no work: can't start new thread")


def test_nothing_is_opened_before_it_is_needed_and_closing_ends_the_thread(path: Path) -> None:
    before = set(store_threads())

    async def work(store: SQLiteStore) -> None:
        assert list(path.parent.iterdir()) == []
        assert set(store_threads()) <= before
        await asyncio.gather(*(store.put("o", link(number), b"record") for number in range(50)))
        (thread,) = set(store_threads()) - before
        await store.aclose()
        await store.aclose()
        thread.join(300)
        assert not thread.is_alive()
        with pytest.raises(StoreError, match="has been closed"):
            await store.find("o", [link(1)])

    done(work, path)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_closing_what_was_never_used_opens_nothing(path: Path) -> None:
    asyncio.run(SQLiteStore(path).aclose())
    assert not path.exists()


def test_the_event_loop_goes_on_while_the_file_is_waited_for(
    path: Path, hold: Callable[..., subprocess.Popen[str]]
) -> None:
    async def work(store: SQLiteStore) -> int:
        await store.put("o", link(1), b"record")
        hold(path, "BEGIN EXCLUSIVE")
        waiting = asyncio.create_task(store.put("o", link(2), b"record"))
        turns = 0
        while not waiting.done():
            await asyncio.sleep(0.001)
            turns += 1
        with pytest.raises(StoreError):
            await waiting
        return turns

    assert done(work, path) >= 2


def test_whoever_is_cancelled_before_its_turn_takes_it_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, begun = threading.Event(), threading.Event()
    done_for: list[str] = []
    find = table.find

    def slow(connection: sqlite3.Connection, owner: str, links: Any) -> Any:
        done_for.append(owner)
        begun.set()
        gate.wait(300)
        return find(connection, owner, links)

    monkeypatch.setattr(table, "find", slow)

    async def work(store: SQLiteStore) -> None:
        first = asyncio.create_task(store.find("first", [link(1)]))
        await asyncio.to_thread(begun.wait, 20)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await store.find("cancelled", [link(1)])
        gate.set()
        await first
        await store.find("next", [link(1)])

    done(work, path)
    assert done_for == ["first", "next"]


def test_several_event_loops_in_several_threads_use_one_store(path: Path) -> None:
    store = SQLiteStore(path)
    kept: list[bytes] = []

    def work(number: int) -> None:
        async def put() -> None:
            kept.extend([await store.put("o", link(each), b"%d" % number) for each in range(20)])

        asyncio.run(put())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(300)
    asyncio.run(store.aclose())
    assert len(kept) == 80
    assert len(rows(path)) == 20


def ran(script: str, *arguments: object) -> str:
    """What a process of its own prints."""
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


FORKED = """
    import asyncio, os, sys, threading, warnings
    from chatstack.stores.sqlite import SQLiteStore

    warnings.simplefilter("ignore")  # of forking with threads, which is what is tried here
    store = SQLiteStore(sys.argv[1])
    asyncio.run(store.put("o", b"0", b"parent"))
    children = []
    for number in range(10):
        # While it is being written to: SQLite would leave its locks to the child, where nobody could open them.
        writing = threading.Thread(target=lambda: asyncio.run(store.put("busy", b"%d" % number, b"parent")))
        writing.start()
        child = os.fork()
        if not child:
            try:
                found = asyncio.run(asyncio.wait_for(store.find("o", [b"0"]), 300))
                link = f"child {number}".encode()
                kept = asyncio.run(asyncio.wait_for(store.put("o", link, b"child"), 300))
                asyncio.run(store.aclose())
                os._exit(0 if (found, kept) == ((b"0", b"parent"), b"child") else 1)
            finally:
                os._exit(2)
        writing.join()
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(ended, asyncio.run(store.find("o", [f"child {number}".encode()])))
    asyncio.run(store.aclose())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_forks_in_the_midst_of_it_and_its_children_go_on(path: Path) -> None:
    expected = [f"0 ({f'child {number}'.encode()!r}, b'child')" for number in range(10)]
    assert ran(FORKED, path).splitlines() == expected
    assert len(rows(path)) == 21


def test_a_process_that_does_not_close_it_ends_all_the_same(path: Path) -> None:
    script = """
        import asyncio, sys
        from chatstack.stores.sqlite import SQLiteStore

        store = SQLiteStore(sys.argv[1])
        print(asyncio.run(store.put("o", b"1", b"record")))
    """
    assert ran(script, path) == "b'record'\n"
    assert rows(path, "record") == [(b"record",)]


# Several processes


RACER = """
    import asyncio, dataclasses, sys
    from chatstack.stores import table
    from chatstack.stores.sqlite import SQLiteStore

    table.FORM = dataclasses.replace(table.FORM, busy_seconds=300)  # a slow machine is no defect

    async def race(path, name):
        store = SQLiteStore(path)
        sys.stdin.readline()
        kept = [await store.put("o", b"%d" % number, name.encode()) for number in range(100)]
        await store.aclose()
        print(*(each.decode() for each in kept))

    print("ready", flush=True)
    asyncio.run(race(*sys.argv[1:]))
"""


def test_of_processes_that_decide_at_the_same_time_one_wins_each_time_and_all_know_who(path: Path) -> None:
    """The file is made in the race, too."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(RACER), str(path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two", "three")
    ]
    for each in started:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in started:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    heard = [each.communicate(timeout=300)[0].split() for each in started]
    assert len(heard[0]) == 100
    assert heard[0] == heard[1] == heard[2]


OTHER = """
    import asyncio, sys
    from chatstack.context.memory.sharing import SharedDecisions
    from chatstack.stores.sqlite import SQLiteStore
    from tests.context.test_sharing import FIRST, HISTORY, LINKS, SECOND

    async def decide(path):
        shared = SharedDecisions(SQLiteStore(path), timeout_seconds=300)
        found = await shared.find("guard", LINKS, HISTORY)
        there = await shared.put("guard", LINKS[3], SECOND, HISTORY)
        kept = await shared.put("guard", LINKS[2], SECOND, HISTORY[:3])
        await shared.aclose()
        problem = found.problem or there.problem or kept.problem or "fine"
        print(found.record == there.record == FIRST, found.covers, kept.record is SECOND, problem)

    asyncio.run(decide(sys.argv[1]))
"""


def test_what_one_process_decided_another_finds_and_does_not_overwrite(path: Path) -> None:
    def shared(store: SQLiteStore) -> SharedDecisions:
        return SharedDecisions(store, timeout_seconds=300)

    assert done(lambda store: shared(store).put("guard", LINKS[3], FIRST, HISTORY), path) == (FIRST, "")
    command = [sys.executable, "-c", textwrap.dedent(OTHER), str(path)]
    root = Path(__file__).parents[2]
    other = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, cwd=root)
    assert other.stdout == "True 4 True fine\n"
    assert done(lambda store: shared(store).find("guard", LINKS, HISTORY), path) == Found(FIRST, 4)
    assert done(lambda store: shared(store).find("guard", LINKS[:3], HISTORY), path) == Found(SECOND, 3)


def test_a_lock_of_another_process_fits_into_the_time_that_a_call_has(
    path: Path, hold: Callable[..., subprocess.Popen[str]]
) -> None:
    """The store says itself what is the matter, before the call's patience ends."""
    assert table.FORM.busy_seconds < 0.25

    async def work(store: SQLiteStore) -> list[str]:
        shared = SharedDecisions(store, timeout_seconds=300)
        await shared.put("guard", LINKS[3], FIRST, HISTORY)
        hold(path, "BEGIN EXCLUSIVE")
        locked = await shared.put("guard", LINKS[1], SECOND, HISTORY[:2])
        resting = await shared.put("guard", LINKS[1], SECOND, HISTORY[:2])
        assert locked.record is resting.record is SECOND
        return [locked.problem, resting.problem]

    first, second = done(work, path)
    assert "it is locked by another process" in first
    assert second == ""


# How it is made


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"path": None}, "path"),
        ({"path": 7}, "path"),
        ({"path": ""}, "path"),
        ({"path": ":memory:"}, "path"),
        ({"path": "a.db", "max_records": 0}, "max_records"),
        ({"path": "a.db", "max_records": "many"}, "max_records"),
    ],
    ids=str,
)
def test_options_are_checked(options: dict[str, Any], parameter: str) -> None:
    with pytest.raises(WiringError, match="SQLiteStore: ") as caught:
        SQLiteStore(**options)
    assert caught.value.parameter == parameter


def test_it_is_a_store_and_its_repr_says_where(path: Path) -> None:
    store = SQLiteStore(str(path), max_records=7)
    assert _is_a_store(store) is store
    assert repr(store) == f"SQLiteStore({str(path)!r}, max_records=7)"
