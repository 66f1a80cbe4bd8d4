"""What is Redis' own about the store: keys and their time, round trips, connections, and forks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from chatstack.errors import WiringError
from redis_server import RedisServer, free_port

from chatstack_redis import RedisStore

T = TypeVar("T")

DAY = 86_400


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


# Making one


def test_making_one_connects_to_nothing() -> None:
    store = RedisStore(f"redis://:hunter2@127.0.0.1:{free_port()}/3", prefix="p", ttl_seconds=DAY)
    assert repr(store).startswith("RedisStore('127.0.0.1:")
    assert repr(store).endswith("/3', prefix='p', ttl_seconds=86400)")
    asyncio.run(store.aclose())


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"prefix": ""}, "prefix"),
        ({"prefix": b"bytes"}, "prefix"),
        ({"prefix": "\ud800"}, "prefix"),
        ({"ttl_seconds": 0}, "ttl_seconds"),
        ({"ttl_seconds": "30"}, "ttl_seconds"),
        ({"timeout_seconds": None}, "timeout_seconds"),
        ({"timeout_seconds": True}, "timeout_seconds"),
        ({"ttl_seconds": float("nan")}, "ttl_seconds"),
        ({"ttl_seconds": float("inf")}, "ttl_seconds"),
        ({"timeout_seconds": -1}, "timeout_seconds"),
        ({"max_connections": 0}, "max_connections"),
        ({"max_connections": 1.5}, "max_connections"),
    ],
)
def test_an_option_that_cannot_be_is_told_at_once(options: dict[str, Any], parameter: str) -> None:
    with pytest.raises(WiringError, match=f"RedisStore: {parameter}=") as caught:
        RedisStore("redis://localhost", **options)
    assert caught.value.parameter == parameter


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "http://:hunter2@localhost",
        "redis://:hunter2@localhost:port",
        "redis://:hunter2@localhost:99999999",
        "redis://:hunter2@[localhost",
        "redis://:hunter2@localhost?socket_timeout=soon",
        "redis://:hunter2@localhost?no_such_option=1",
        "redis://:hunter2@localhost?decode_responses=yes",
        7,
    ],
)
def test_a_url_that_cannot_be_is_told_at_once_without_its_password(url: Any) -> None:
    with pytest.raises(WiringError, match="RedisStore: url must") as caught:
        RedisStore(url)
    assert caught.value.parameter == "url"
    told = caught.value.__cause__ or ("" if caught.value.__suppress_context__ else caught.value.__context__)
    assert "hunter2" not in f"{caught.value} {told}"


# Keys, and how long they stay


def test_a_decision_is_a_field_of_a_key_with_a_time(server: RedisServer, prefix: str) -> None:
    done(lambda store: store.put("o", link(1), b"record"), server.url, prefix=prefix)
    assert server.asked("HGETALL", key(prefix, 1)) == {b"o": b"record"}
    assert 29.9 * DAY < server.asked("TTL", key(prefix, 1)) <= 30 * DAY


def test_what_is_not_used_for_its_time_is_gone(server: RedisServer, prefix: str) -> None:
    async def work(store: RedisStore) -> list[Any]:
        await store.put("o", link(1), b"record")
        before = await store.find("o", [link(1)])
        await asyncio.sleep(0.7)
        return [before, await store.find("o", [link(1)]), await store.put("o", link(1), b"other")]

    assert done(work, server.url, prefix=prefix, ttl_seconds=0.5) == [(link(1), b"record"), None, b"other"]


@pytest.mark.parametrize("use", ["find", "lose", "replace", "repeat"])
def test_what_is_used_again_gets_its_whole_time_again(server: RedisServer, prefix: str, use: str) -> None:
    async def work(store: RedisStore) -> int:
        await store.put("o", link(1), b"record")
        server.asked("EXPIRE", key(prefix, 1), DAY)
        if use == "find":
            await store.find("o", [link(0), link(1), link(2)])
        elif use == "replace":
            await store.put("o", link(1), b"other", replaces=b"record")
        elif use == "repeat":
            await store.put("o", link(1), b"record")
        else:
            await store.put("o", link(1), b"other")
            await store.find("o", [link(1)])
        return int(server.asked("TTL", key(prefix, 1)))

    assert done(work, server.url, prefix=prefix, ttl_seconds=2 * DAY) > 1.9 * DAY


def test_what_is_used_often_is_hardly_ever_written_to(server: RedisServer, prefix: str) -> None:
    async def work(store: RedisStore) -> int:
        await store.put("o", link(1), b"record")
        server.asked("EXPIRE", key(prefix, 1), round(1.9 * DAY))
        await store.find("o", [link(1)])
        return int(server.asked("TTL", key(prefix, 1)))

    assert done(work, server.url, prefix=prefix, ttl_seconds=2 * DAY) <= 1.9 * DAY


@pytest.mark.parametrize("odd", ["", "*", "?", "[a-z]", "\\", "^$.", "é ", "a\nb"])
def test_forgetting_everything_leaves_other_prefixes_alone(server: RedisServer, prefix: str, odd: str) -> None:
    mine = prefix + odd
    others = [f"{mine}:more", f"{mine}x", prefix + "a" + odd, "x" + mine, mine[:-1]]

    async def put(store: RedisStore) -> bytes:
        return await store.put("o", link(1), b"record")

    for each in [mine, *others]:
        assert done(put, server.url, prefix=each) == b"record"
    server.asked("SET", f"{mine}:settings", "not ours")
    done(lambda store: store.forget(), server.url, prefix=mine)
    assert done(lambda store: store.find("o", [link(1)]), server.url, prefix=mine) is None
    for each in others:
        assert done(lambda store: store.find("o", [link(1)]), server.url, prefix=each) == (link(1), b"record")
    assert server.asked("GET", f"{mine}:settings") == b"not ours"


def test_databases_are_apart(server: RedisServer, prefix: str) -> None:
    done(lambda store: store.put("o", link(1), b"record"), f"{server.url}/1", prefix=prefix)
    assert done(lambda store: store.find("o", [link(1)]), f"{server.url}/2", prefix=prefix) is None
    assert done(lambda store: store.find("o", [link(1)]), f"{server.url}/1", prefix=prefix) == (link(1), b"record")


# Round trips


def scripts_run(server: RedisServer) -> int:
    found: dict[str, dict[str, int]] = server.asked("INFO", "commandstats")
    return sum(each["calls"] - each.get("failed_calls", 0) for name, each in found.items() if "eval" in name)


@pytest.mark.parametrize(("known", "trips"), [(4_999, 1), (4_000, 1), (3_999, 2), (0, 5), (None, 5)])
def test_thousands_of_links_are_asked_for_in_few_round_trips(
    server: RedisServer, prefix: str, known: int | None, trips: int
) -> None:
    async def work(store: RedisStore) -> Any:
        if known is not None:
            await store.put("o", link(known), b"record")
        before = scripts_run(server)
        found = await store.find("o", [link(number) for number in range(5_000)])
        return found, scripts_run(server) - before

    assert done(work, server.url, prefix=prefix) == (None if known is None else (link(known), b"record"), trips)


def test_it_goes_on_after_the_server_has_forgotten_its_scripts(server: RedisServer, prefix: str) -> None:
    async def work(store: RedisStore) -> Any:
        await store.put("o", link(1), b"record")
        server.asked("SCRIPT FLUSH")
        assert await store.put("o", link(1), b"other") == b"record"
        server.asked("SCRIPT FLUSH")
        return await store.find("o", [link(1)])

    assert done(work, server.url, prefix=prefix) == (link(1), b"record")


def test_it_takes_no_more_connections_than_it_may(own_server: RedisServer) -> None:
    async def work(store: RedisStore) -> int:
        await asyncio.gather(*(store.put("o", link(number), b"record") for number in range(200)))
        return len(own_server.asked("CLIENT LIST"))

    assert done(work, own_server.url, max_connections=2) in (2, 3)  # one of them is the one that asks
    assert len(own_server.asked("CLIENT LIST")) == 1


# Forks


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_process_that_forks_and_its_child_go_on(server: RedisServer, prefix: str) -> None:
    store = RedisStore(server.url, prefix=prefix)
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
