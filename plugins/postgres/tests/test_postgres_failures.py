"""What may be wrong with a server, or with the way to it: told in time, without secrets, and got over."""

from __future__ import annotations

import asyncio
import pickle
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import psycopg
import pytest
from chatstack.errors import StoreError
from postgres_server import PASSWORD, PostgresServer, free_port
from psycopg import sql

from chatstack_postgres import PostgresStore
from chatstack_postgres.table import reason

T = TypeVar("T")


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


def wrong(conninfo: str, work: Callable[[PostgresStore], Awaitable[Any]] | None = None, **options: Any) -> str:
    """What a store says of that server; no word of it, nor of what it was caused by, is a secret."""
    with pytest.raises(StoreError) as caught:
        done(work or (lambda store: store.put("o", link(1), b"a secret record")), conninfo, **options)
    told = "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in told
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return str(caught.value)


# Refusals


def test_a_server_that_is_not_there_is_told() -> None:
    port = free_port()
    told = wrong(f"postgresql://me:hunter2@127.0.0.1:{port}/mine")
    assert told == f"PostgreSQL at 127.0.0.1:{port}/mine: it cannot be reached, or the connection was lost"


def test_a_user_or_password_that_is_wrong_is_told(server: PostgresServer) -> None:
    for user in ("tester", "nobody_known"):
        assert wrong(server.conninfo_of(user, "hunter2")).endswith("it refuses the user or the password")


def test_a_database_that_is_not_there_is_told(server: PostgresServer) -> None:
    assert wrong(server.conninfo_of("tester", PASSWORD, "none")).endswith("the database does not exist")


def test_a_schema_that_is_not_there_is_told(server: PostgresServer) -> None:
    assert wrong(server.conninfo, table="none.such").endswith("the schema of table none.such does not exist")


def test_a_user_who_may_not_do_this_is_told_and_needs_no_right_to_make_what_is_there(
    server: PostgresServer, table: str
) -> None:
    server.asked(sql.SQL("CREATE USER {} PASSWORD 'hunter2'").format(sql.Identifier(table)))
    mine = server.conninfo_of(table, "hunter2")
    assert wrong(mine, table=table).endswith(f"its user may not do this with table {table}")
    done(lambda store: store.put("o", link(1), b"record"), server.conninfo, table=table)
    assert wrong(mine, table=table).endswith(f"its user may not do this with table {table}")
    names = sql.Identifier(table)
    server.asked(sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {}").format(names, names))
    assert done(lambda store: store.put("o", link(1), b"other"), mine, table=table) == b"record"


@pytest.mark.parametrize(
    "columns", ["amount integer", "link text, owner text, record text, used timestamptz", "link bytea, owner bytea"]
)
def test_another_programs_table_is_told_and_left_as_it_is(server: PostgresServer, table: str, columns: str) -> None:
    server.asked(sql.SQL("CREATE TABLE {} (" + columns + ")").format(sql.Identifier(table)))  # type: ignore[operator]
    for work in (None, lambda store: store.find("o", [link(1)])):
        assert wrong(server.conninfo, work, table=table).endswith(
            f"table {table} is another program's; choose another name"
        )
    assert server.asked(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))) == [(0,)]


def test_a_session_that_may_only_read_finds_and_says_that_it_takes_no_writes(
    server: PostgresServer, table: str
) -> None:
    done(lambda store: store.put("o", link(1), b"record"), server.conninfo, table=table)
    server.asked(sql.SQL("UPDATE {} SET used = used - interval '10 days'").format(sql.Identifier(table)))
    reading = server.conninfo_of("tester", PASSWORD, options="-c default_transaction_read_only=on")
    assert wrong(reading, table=table).endswith("it takes no writes: a standby, or a read-only session")
    assert done(lambda store: store.find("o", [link(1)]), reading, table=table) == (link(1), b"record")


def test_what_the_server_would_not_wait_for_is_told(server: PostgresServer, table: str) -> None:
    done(lambda store: store.find("o", [link(1)]), server.conninfo, table=table)
    impatient = server.conninfo_of("tester", PASSWORD, options="-c statement_timeout=50ms")
    with locked(server, table):
        assert wrong(impatient, table=table).endswith("it took longer than the server allows")


def test_a_record_is_in_no_error_that_is_told(server: PostgresServer, table: str) -> None:
    done(lambda store: store.find("o", [link(1)]), server.conninfo, table=table)
    server.asked(sql.SQL("ALTER TABLE {} ADD CHECK (length(record) < 5)").format(sql.Identifier(table)))
    assert wrong(server.conninfo, table=table).endswith("PostgreSQL says CheckViolation (23514)")


def test_what_no_table_of_reasons_knows_is_told_by_its_kind_alone() -> None:
    assert reason(psycopg.DataError("hunter2"), "t") == "the driver says DataError"
    assert reason(psycopg.OperationalError("FATAL: too many clients"), "t") == "it has too many connections"


# Waiting


def locked(server: PostgresServer, table: str) -> ExitStack:
    """As long as it is entered, nobody else gets at the table."""
    holding = ExitStack()
    connection = holding.enter_context(psycopg.connect(server.conninfo))
    connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.Identifier(table)))
    return holding


def test_a_lock_is_not_waited_for_longer_than_it_may_take(server: PostgresServer, table: str) -> None:
    async def work(store: PostgresStore) -> Any:
        await store.put("o", link(1), b"first")
        with locked(server, table):
            begun = time.monotonic()
            with pytest.raises(StoreError, match=r"no answer in 0\.3 seconds"):
                await store.put("o", link(1), b"second", replaces=b"first")
            assert 0.25 < time.monotonic() - begun < 3
        return await store.find("o", [link(1)])

    assert done(work, server.conninfo, table=table, timeout_seconds=0.3) in ((link(1), b"first"), (link(1), b"second"))


def test_whoever_is_cancelled_gives_its_thread_back(server: PostgresServer, table: str) -> None:
    """Or four calls that were given up would keep all the others waiting, and the store from being closed."""

    async def work(store: PostgresStore) -> float:
        with locked(server, table):
            begun = time.monotonic()
            for _ in range(8):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await store.find("o", [link(1)])
            await store.aclose()
            return time.monotonic() - begun

    done(lambda store: store.find("o", [link(1)]), server.conninfo, table=table)
    assert done(work, server.conninfo, table=table, timeout_seconds=30.0) < 10


def test_closing_does_not_wait_long_for_what_nobody_waits_for(server: PostgresServer, table: str) -> None:
    async def work(store: PostgresStore) -> float:
        with psycopg.connect(server.conninfo) as other:
            # Readers get through, whoever would touch what was found waits.
            other.execute(sql.SQL("LOCK TABLE {} IN EXCLUSIVE MODE").format(sql.Identifier(table)))
            assert await store.find("o", [link(1)]) == (link(1), b"record")
            begun = time.monotonic()
            await store.aclose()
            return time.monotonic() - begun

    done(lambda store: store.put("o", link(1), b"record"), server.conninfo, table=table)
    server.asked(sql.SQL("UPDATE {} SET used = used - interval '10 days'").format(sql.Identifier(table)))
    assert 0.5 < done(work, server.conninfo, table=table, timeout_seconds=30.0) < 10


def test_a_server_that_hangs_is_told_in_time_and_used_when_it_answers_again(own_server: PostgresServer) -> None:
    async def work(store: PostgresStore) -> list[bytes]:
        kept = [await store.put("o", link(1), b"first")]
        own_server.freeze()
        begun = time.monotonic()
        for _ in range(2):  # by a connection that there was, and by a new one
            with pytest.raises(StoreError, match=r"no answer in 0\.3 seconds"):
                await store.put("o", link(1), b"second")
        assert 0.5 < time.monotonic() - begun < 5
        own_server.thaw()
        return [*kept, await store.put("o", link(1), b"third")]

    assert done(work, own_server.conninfo, table="hanging", timeout_seconds=0.3) == [b"first", b"first"]


def test_a_process_with_a_server_that_hangs_can_close_its_store(own_server: PostgresServer) -> None:
    async def work(store: PostgresStore) -> float:
        await store.put("o", link(1), b"first")
        own_server.freeze()
        waiting = [asyncio.create_task(store.find("o", [link(1)])) for _ in range(10)]
        await asyncio.sleep(0.05)
        begun = time.monotonic()
        await store.aclose()
        took = time.monotonic() - begun
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        own_server.thaw()
        assert {type(each) for each in outcomes} == {StoreError}
        return took

    assert done(work, own_server.conninfo, table="closing", timeout_seconds=0.5) < 10


# Coming back


def test_a_server_that_comes_back_is_used_without_a_new_store(own_server: PostgresServer) -> None:
    async def work(store: PostgresStore) -> list[bytes]:
        kept = [await store.put("o", link(1), b"first")]
        own_server.stop()
        with pytest.raises(StoreError, match=r"cannot be reached|shut down"):
            await store.put("o", link(1), b"second")
        await asyncio.to_thread(own_server.start)
        kept.append(await store.put("o", link(1), b"third"))
        own_server.stop()
        await asyncio.to_thread(own_server.start)
        return [*kept, await store.put("o", link(1), b"fourth")]  # by a connection that was lost meanwhile

    assert done(work, own_server.conninfo, table="coming_back") == [b"first"] * 3


def test_a_connection_that_the_server_has_ended_costs_no_call(server: PostgresServer, table: str) -> None:
    async def work(store: PostgresStore) -> Any:
        await store.put("o", link(1), b"first")
        await asyncio.gather(*(store.find("o", [link(1)]) for _ in range(20)))  # some idle ones
        for (pid,) in server.stores():
            server.asked("SELECT pg_terminate_backend(%s)", pid)
        return await asyncio.gather(*(store.find("o", [link(1)]) for _ in range(20)))

    assert done(work, server.conninfo, table=table) == [(link(1), b"first")] * 20
