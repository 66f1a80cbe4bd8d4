"""What is PostgreSQL's own about the store: its table, how long records stay, and how few statements it takes."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psycopg
import pytest
from chatstack.errors import WiringError
from postgres_server import PASSWORD, PostgresServer, free_port
from psycopg import sql

from chatstack_postgres import PostgresStore
from chatstack_postgres import store as store_module
from chatstack_postgres import table as table_module

T = TypeVar("T")

DAY = 86_400


def done(work: Callable[[PostgresStore], Awaitable[T]], conninfo: str, **options: Any) -> T:
    """Do it with a store of its own, in an event loop of its own, and close both."""

    async def bounded() -> T:
        store = PostgresStore(conninfo, **options)
        try:
            async with asyncio.timeout(60):
                return await work(store)
        finally:
            await store.aclose()

    return asyncio.run(bounded())


def link(number: int) -> bytes:
    return number.to_bytes(16, "big")


def rows(server: PostgresServer, table: str, columns: str = "link") -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = server.asked(named(f"SELECT {columns} FROM {{}} ORDER BY link", table))
    return found


def named(statement: str, table: str) -> sql.Composed:
    """The statement about that table."""
    return sql.SQL(statement).format(sql.Identifier(*table.split(".")))  # type: ignore[arg-type, unused-ignore]


def aged(server: PostgresServer, table: str, days: float) -> None:
    """As if everything had been used that much earlier."""
    server.asked(named("UPDATE {} SET used = used - make_interval(secs => %s)", table), days * DAY)


# Making one


def test_making_one_connects_to_nothing() -> None:
    store = PostgresStore(f"postgresql://me:hunter2@127.0.0.1:{(port := free_port())}/mine", table="a.b")
    assert repr(store) == f"PostgresStore('127.0.0.1:{port}/mine', table='a.b', ttl_seconds=2.592e+06)"
    asyncio.run(store.aclose())


@pytest.mark.parametrize(
    ("conninfo", "where"),
    [
        ("", "the default server"),
        ("dbname=mine password=hunter2", "the default server/mine"),
        ("host=/var/run/postgresql user=me", "/var/run/postgresql"),
        ("postgresql://me:hunter2@a,b:2/mine?sslmode=require", "a,b:,2/mine"),
    ],
)
def test_its_repr_says_what_is_said_of_the_place_and_no_more(conninfo: str, where: str) -> None:
    assert repr(PostgresStore(conninfo)).startswith(f"PostgresStore({where!r}, ")


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"ttl_seconds": 0}, "ttl_seconds"),
        ({"ttl_seconds": "30"}, "ttl_seconds"),
        ({"timeout_seconds": None}, "timeout_seconds"),
        ({"timeout_seconds": True}, "timeout_seconds"),
        ({"ttl_seconds": float("nan")}, "ttl_seconds"),
        ({"timeout_seconds": float("inf")}, "timeout_seconds"),
        ({"max_connections": 0}, "max_connections"),
        ({"max_connections": True}, "max_connections"),
        *(
            ({"table": table}, "table")
            for table in ("", "a-b", 'a"b', "a b", "1a", "a.b.c", ".a", "a.", "a;--", "é", "a\n", "a" * 64, b"a")
        ),
    ],
)
def test_an_option_that_cannot_be_is_told_at_once(options: dict[str, Any], parameter: str) -> None:
    with pytest.raises(WiringError, match=f"PostgresStore: {parameter}=") as caught:
        PostgresStore("", **options)
    assert caught.value.parameter == parameter


@pytest.mark.parametrize("conninfo", ["hunter2", "password=hunter2 hunter2", "postgresql://me:hunter2@[::1/x", 7])
def test_a_conninfo_that_cannot_be_is_told_at_once_without_its_password(conninfo: Any) -> None:
    with pytest.raises(WiringError, match="PostgresStore: conninfo must") as caught:
        PostgresStore(conninfo)
    assert caught.value.parameter == "conninfo"
    assert caught.value.__suppress_context__
    assert "hunter2" not in str(caught.value)


# The table


@pytest.mark.parametrize("name", ["select", "Decisions", "order_of_things", "strict.Table", "x" * 63])
def test_a_name_is_taken_as_it_is(server: PostgresServer, name: str) -> None:
    server.asked("CREATE SCHEMA IF NOT EXISTS strict")
    done(lambda store: store.put("o", link(1), b"record"), server.conninfo, table=name)
    assert rows(server, name, "link, owner, record") == [(link(1), b"o", b"record")]
    assert done(lambda store: store.find("o", [link(1)]), server.conninfo, table=name) == (link(1), b"record")


def test_stores_that_make_the_table_at_the_same_time_all_go_on(server: PostgresServer, table: str) -> None:
    for attempt in range(5):
        name = f"{table}_{attempt}"
        barrier = threading.Barrier(8)
        told: list[bytes] = []

        async def put(name: str = name, barrier: threading.Barrier = barrier, told: list[bytes] = told) -> None:
            store = PostgresStore(server.conninfo, table=name, max_connections=1)
            await asyncio.to_thread(barrier.wait, 20)
            told.append(await store.put("o", link(1), b"record"))
            await store.aclose()

        threads = [threading.Thread(target=lambda: asyncio.run(put())) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        assert told == [b"record"] * 8


@pytest.mark.parametrize("first", ["find", "put", "forget"])
def test_a_table_that_was_removed_is_made_again(server: PostgresServer, table: str, first: str) -> None:
    async def work(store: PostgresStore) -> Any:
        await store.put("o", link(1), b"record")
        server.asked(named("DROP TABLE {}", table))
        if first == "find":
            assert await store.find("o", [link(1)]) is None
        elif first == "forget":
            await store.forget()
        return await store.put("o", link(1), b"other")

    assert done(work, server.conninfo, table=table) == b"other"
    assert rows(server, table) == [(link(1),)]


def test_tables_are_apart(server: PostgresServer, table: str) -> None:
    done(lambda store: store.put("o", link(1), b"record"), server.conninfo, table=table)
    done(lambda store: store.forget(), server.conninfo, table=f"{table}x")
    assert done(lambda store: store.find("o", [link(1)]), server.conninfo, table=f"{table}x") is None
    assert done(lambda store: store.find("o", [link(1)]), server.conninfo, table=table) == (link(1), b"record")


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is executed from here on."""
    made: list[str] = []
    execute = psycopg.Connection.execute

    def noted(connection: Any, query: Any, *given: Any, **options: Any) -> Any:
        made.append(query.as_string(connection) if isinstance(query, sql.Composable) else str(query))
        return execute(connection, query, *given, **options)

    monkeypatch.setattr(psycopg.Connection, "execute", noted)
    return made


@pytest.mark.parametrize(("known", "count"), [(4_999, 1), (4_000, 1), (3_999, 2), (0, 5), (None, 5)])
def test_thousands_of_links_are_asked_for_in_few_statements(
    server: PostgresServer, table: str, known: int | None, count: int, statements: list[str]
) -> None:
    async def work(store: PostgresStore) -> Any:
        await store.put("o", link(9_999 if known is None else known), b"record")
        statements.clear()
        return await store.find("o", [link(number) for number in range(5_000)])

    assert done(work, server.conninfo, table=table) == (None if known is None else (link(known), b"record"))
    assert sum("unnest" in each for each in statements) == count


def test_a_put_is_one_statement(server: PostgresServer, table: str, statements: list[str]) -> None:
    async def work(store: PostgresStore) -> None:
        await store.put("o", link(1), b"first")
        statements.clear()
        await store.put("o", link(1), b"second")
        await store.put("o", link(1), b"second", replaces=b"first")
        await store.put("o", link(2), b"third")

    done(work, server.conninfo, table=table)
    others = ("SET SESSION", "SKIP LOCKED")  # for another connection, and of what is purged the first time
    assert [each.split()[0] for each in statements if not any(other in each for other in others)] == ["INSERT"] * 3


# How long records stay


def test_what_was_not_used_for_its_time_is_found_no_more_and_replaced_by_anybody(
    server: PostgresServer, table: str
) -> None:
    options: dict[str, Any] = {"table": table, "ttl_seconds": 2 * DAY}
    done(lambda store: store.put("o", link(1), b"record"), server.conninfo, **options)
    aged(server, table, 1.9)
    assert done(lambda store: store.find("o", [link(1)]), server.conninfo, **options) == (link(1), b"record")
    aged(server, table, 2.1)
    assert done(lambda store: store.find("o", [link(1)]), server.conninfo, **options) is None
    assert rows(server, table) == [(link(1),)]
    assert done(lambda store: store.put("o", link(1), b"other"), server.conninfo, **options) == b"other"
    assert done(lambda store: store.find("o", [link(1)]), server.conninfo, **options) == (link(1), b"other")


@pytest.mark.parametrize("use", ["find", "lose", "replace", "repeat"])
def test_what_is_used_again_gets_its_whole_time_again(server: PostgresServer, table: str, use: str) -> None:
    async def work(store: PostgresStore) -> None:
        await store.put("o", link(1), b"record")
        aged(server, table, 1)
        if use == "find":
            await store.find("o", [link(0), link(1), link(2)])
        else:
            record = b"record" if use == "repeat" else b"other"
            await store.put("o", link(1), record, replaces=b"record" if use == "replace" else None)

    done(work, server.conninfo, table=table, ttl_seconds=2 * DAY)
    assert rows(server, table, "used > now() - interval '1 hour'") == [(True,)]


def test_what_is_used_often_is_hardly_ever_written_to(server: PostgresServer, table: str) -> None:
    async def work(store: PostgresStore) -> None:
        await store.put("o", link(1), b"record")
        aged(server, table, 0.1)
        await store.find("o", [link(1)])

    done(work, server.conninfo, table=table, ttl_seconds=2 * DAY)
    assert rows(server, table, "used > now() - interval '1 hour'") == [(False,)]


def test_what_is_too_old_is_deleted_by_whoever_puts_something(server: PostgresServer, table: str) -> None:
    async def fill(store: PostgresStore) -> None:
        for number in range(5):
            await store.put("o", link(number), b"record")

    async def put(store: PostgresStore) -> None:
        await store.put("o", link(9), b"record")

    done(fill, server.conninfo, table=table, ttl_seconds=2 * DAY)
    aged(server, table, 1.5)
    done(lambda store: store.find("o", [link(3)]), server.conninfo, table=table, ttl_seconds=2 * DAY)
    aged(server, table, 1)
    done(put, server.conninfo, table=table, ttl_seconds=2 * DAY)
    assert rows(server, table) == [(link(3),), (link(9),)]


def test_what_is_too_old_is_looked_for_now_and_then_and_in_portions(
    server: PostgresServer, table: str, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_module, "ROWS_AT_ONCE", 3)

    async def fill(store: PostgresStore) -> None:
        for number in range(8):
            await store.put("o", link(number), b"record")

    async def work(store: PostgresStore) -> None:
        for number, left in ((10, 6), (11, 7), (12, 5), (13, 4), (14, 5)):
            if number == 12:
                monkeypatch.setattr(store_module, "PURGE_SECONDS", 0.0)
            await store.put("o", link(number), b"record")
            while len(rows(server, table)) != left:  # noqa: ASYNC110 - nobody says when
                await asyncio.sleep(0.01)

    done(fill, server.conninfo, table=table)
    aged(server, table, 31)
    statements.clear()
    done(work, server.conninfo, table=table)
    assert sum("SKIP LOCKED" in each for each in statements) == 4


def test_everything_is_forgotten_in_portions(
    server: PostgresServer, table: str, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_module, "ROWS_AT_ONCE", 3)

    async def work(store: PostgresStore) -> None:
        for number in range(7):
            await store.put("o", link(number), b"record")
        statements.clear()
        await store.forget()

    done(work, server.conninfo, table=table)
    assert rows(server, table) == []
    assert sum("AS few" in each for each in statements) == 4


def test_it_takes_no_more_connections_than_it_may(server: PostgresServer, table: str) -> None:
    before = len(server.stores())

    async def work(store: PostgresStore) -> int:
        await asyncio.gather(*(store.put("o", link(number), b"record") for number in range(200)))
        return len(server.stores()) - before

    assert done(work, server.conninfo, table=table, max_connections=2) in (1, 2)
    assert len(rows(server, table)) == 200


def test_whoever_comes_second_gets_an_answer_in_a_database_that_serializes(server: PostgresServer, table: str) -> None:
    async def work(store: PostgresStore) -> set[bytes]:
        told: set[bytes] = set()
        for number in range(10):
            puts = [store.put("o", link(number), b"%d by %d" % (number, who)) for who in range(24)]
            told.update(await asyncio.gather(*puts))
        return told

    strict = server.conninfo_of("tester", PASSWORD, options="-c default_transaction_isolation=serializable")
    assert len(done(work, strict, table=table)) == 10


# Forks


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_process_that_forks_and_its_child_go_on(server: PostgresServer, table: str) -> None:
    store = PostgresStore(server.conninfo, table=table)
    asyncio.run(store.put("o", link(0), b"parent"))
    asyncio.run(asyncio.sleep(0.1))  # until the thread is idle, which a child must not count on
    child = os.fork()
    if not child:
        try:
            found = asyncio.run(asyncio.wait_for(store.find("o", [link(0)]), 20))
            kept = asyncio.run(asyncio.wait_for(store.put("o", link(1), b"child"), 20))
            asyncio.run(store.aclose())
            os._exit(0 if (found, kept) == ((link(0), b"parent"), b"child") else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert asyncio.run(store.find("o", [link(0), link(1)])) == (link(1), b"child")
    asyncio.run(store.aclose())
