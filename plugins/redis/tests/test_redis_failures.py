"""What may be wrong with a server, or with the way to it: told in time, without secrets, and got over."""

from __future__ import annotations

import asyncio
import pickle
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from chatstack import Message
from chatstack.context.edits.records import Record
from chatstack.context.memory.sharing import Found, Kept, SharedDecisions
from chatstack.errors import StoreError
from redis_server import RedisServer, free_port, redis_server

from chatstack_redis import RedisStore, keys

T = TypeVar("T")


def done(work: Callable[[RedisStore], Awaitable[T]], url: str, **options: Any) -> T:
    """Do it with a store of its own, in an event loop of its own, and close both."""

    async def bounded() -> T:
        store = RedisStore(url, **options)
        try:
            async with asyncio.timeout(60):
                return await work(store)
        finally:
            await store.aclose()

    return asyncio.run(bounded())


def link(number: int) -> bytes:
    return number.to_bytes(16, "big")


def key(prefix: str, number: int) -> str:
    return f"{prefix}:{link(number).hex()}"


def wrong(url: str, work: Callable[[RedisStore], Awaitable[Any]] | None = None, **options: Any) -> str:
    """What a store says of that server; no word of it, nor of what it was caused by, is a secret."""
    with pytest.raises(StoreError) as caught:
        done(work or (lambda store: store.put("o", link(1), b"record")), url, **options)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return str(caught.value)


def test_a_server_that_is_not_there_is_told() -> None:
    port = free_port()
    told = wrong(f"redis://me:hunter2@127.0.0.1:{port}")
    assert told == f"Redis at 127.0.0.1:{port}/0: it cannot be reached, or the connection was lost"


def test_a_socket_that_is_not_there_is_told(tmp_path: Any) -> None:
    told = wrong(f"unix://me:hunter2@{tmp_path}/none.sock?db=2")
    assert told == f"Redis at {tmp_path}/none.sock/2: it cannot be reached, or the connection was lost"


def test_a_password_that_is_wrong_or_missing_is_told() -> None:
    with redis_server("--requirepass", "right", password="right") as server:
        for url in (server.url, server.url.replace("//", "//:hunter2@"), server.url.replace("//", "//me:hunter2@")):
            assert wrong(url).endswith("it refuses the user or the password")
        right = server.url.replace("//", "//:right@")
        assert done(lambda store: store.put("o", link(1), b"record"), right) == b"record"


def test_a_user_who_may_not_do_this_is_told(server: RedisServer, prefix: str) -> None:
    server.asked("ACL SETUSER", "reader", "on", ">hunter2", "~*", "+ping")
    assert wrong(server.url.replace("//", "//reader:hunter2@"), prefix=prefix).endswith("its user may not do this")


def test_a_full_memory_is_told_and_what_was_there_is_still_found(own_server: RedisServer) -> None:
    async def work(store: RedisStore) -> Any:
        await store.put("o", link(1), b"record")
        own_server.asked("CONFIG SET", "maxmemory", "1")
        with pytest.raises(StoreError, match="its memory is full"):
            await store.put("o", link(2), b"record")
        found = await store.find("o", [link(1), link(2)])
        own_server.asked("CONFIG SET", "maxmemory", "0")
        return found, await store.put("o", link(2), b"record")

    assert done(work, own_server.url) == ((link(1), b"record"), b"record")


def test_a_replica_finds_and_says_that_it_takes_no_writes(own_server: RedisServer) -> None:
    async def work(store: RedisStore) -> Any:
        await store.put("o", link(1), b"record")
        own_server.asked("EXPIRE", key(store.prefix, 1), 60)  # it would get its time again
        own_server.asked("REPLICAOF", "127.0.0.1", str(free_port()))
        with pytest.raises(StoreError, match="it is a read-only replica"):
            await store.put("o", link(2), b"record")
        return await store.find("o", [link(1), link(2)])

    assert done(work, own_server.url) == (link(1), b"record")


def test_another_programs_value_is_told_and_left_as_it_is(server: RedisServer, prefix: str) -> None:
    server.asked("SET", key(prefix, 1), "not ours")
    for work in (None, lambda store: store.find("o", [link(1)])):
        assert wrong(server.url, work, prefix=prefix).endswith(
            "another program's value lies under one of the keys; choose another prefix"
        )
    assert server.asked("GET", key(prefix, 1)) == b"not ours"


def test_another_programs_value_does_not_keep_the_other_records_from_being_used(
    server: RedisServer, prefix: str
) -> None:
    messages = tuple(Message.user(str(number)) for number in range(4))
    links = [link(number) for number in range(4)]
    record = Record(drop=(0,))

    async def work(store: RedisStore) -> list[Any]:
        shared = SharedDecisions(store, timeout_seconds=20)
        await shared.put("o", links[1], record, messages[:2])
        server.asked("SET", key(prefix, 3), "not ours")
        found = [await shared.find("o", links, messages) for _ in range(2)]
        kept = await shared.put("o", links[3], record, messages)
        return [*found, kept, await shared.put("o", links[2], record, messages[:3])]

    first, *rest = done(work, server.url, prefix=prefix)
    assert (first.record, first.covers) == (record, 2)
    assert first.problem.endswith("another program's value lies under one of the keys; choose another prefix")
    assert rest == [Found(record, 2), Kept(record), Kept(record)]


def test_a_server_that_comes_back_is_used_without_a_new_store(own_server: RedisServer) -> None:
    async def work(store: RedisStore) -> list[bytes]:
        kept = [await store.put("o", link(1), b"first")]
        own_server.stop()
        with pytest.raises(StoreError, match="cannot be reached"):
            await store.put("o", link(1), b"second")
        await asyncio.to_thread(own_server.start)
        kept.append(await store.put("o", link(1), b"third"))
        own_server.stop()
        await asyncio.to_thread(own_server.start)
        return [*kept, await store.put("o", link(1), b"fourth")]  # by a connection that was lost meanwhile

    assert done(work, own_server.url) == [b"first", b"third", b"fourth"]


def test_a_server_that_hangs_is_told_in_time_and_used_when_it_answers_again(own_server: RedisServer) -> None:
    async def work(store: RedisStore) -> bytes:
        await store.put("o", link(1), b"first")
        own_server.freeze()
        begun = time.monotonic()
        with pytest.raises(StoreError, match="no answer in time"):
            await store.put("o", link(1), b"second")
        assert 0.25 < time.monotonic() - begun < 5
        own_server.thaw()
        return await store.put("o", link(1), b"third")

    assert done(work, own_server.url, timeout_seconds=0.3) == b"first"


def test_whoever_is_cancelled_does_not_wait_for_a_server_that_hangs(own_server: RedisServer) -> None:
    async def work(store: RedisStore) -> Any:
        await store.put("o", link(1), b"first")
        own_server.freeze()
        begun = time.monotonic()
        for _ in range(20):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await store.find("o", [link(1)])
        took = time.monotonic() - begun
        own_server.thaw()
        assert took < 2
        return await store.find("o", [link(1)])

    assert done(work, own_server.url) == (link(1), b"first")


def test_closing_does_not_wait_for_what_has_not_begun(own_server: RedisServer) -> None:
    async def work(store: RedisStore) -> float:
        await store.put("o", link(1), b"first")
        own_server.freeze()
        waiting = [asyncio.create_task(store.find("o", [link(1)])) for _ in range(20)]
        await asyncio.sleep(0.05)
        begun = time.monotonic()
        await store.aclose()
        took = time.monotonic() - begun
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        own_server.thaw()
        assert {type(each) for each in outcomes} == {StoreError}
        return took

    assert done(work, own_server.url, timeout_seconds=0.5, max_connections=1) < 4


def test_closing_cuts_what_a_server_that_hangs_would_hold_for_an_hour(own_server: RedisServer) -> None:
    async def work(store: RedisStore) -> set[type[object]]:
        await store.put("o", link(1), b"first")
        own_server.freeze()
        waiting = [asyncio.create_task(store.find("o", [link(number)])) for number in range(20)]
        await asyncio.sleep(0.05)
        try:
            async with asyncio.timeout(50):
                await store.aclose()
        finally:
            own_server.thaw()
        return {type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)}

    assert done(work, own_server.url, timeout_seconds=3_600) == {StoreError}


def test_what_no_table_of_reasons_knows_is_told_by_its_kind_alone() -> None:
    assert keys.reason(keys.exceptions.DataError("hunter2")) == "the driver says DataError"
    assert keys.reason(keys.exceptions.ResponseError("MISCONF hunter2")).startswith("it cannot save to its disk")
