"""Four processes over one server, with conversations that move between them on every call, whatever happens to it.

``CHATSTACK_SHARED_TALKS=2000`` and ``-s`` for the long form, with the measured shares.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from chatstack.context.memory.notes import OWNER
from redis_server import RedisServer, free_port, redis_server
from tests.sharing.fleet import DRIVER_SECONDS, Fleet, checked
from tests.sharing.proxy import Proxy
from tests.sharing.talks import SECRET

pytestmark = pytest.mark.timeout(3_600)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server that loses nothing when it is killed."""
    with redis_server("--appendonly", "yes", "--appendfsync", "always", "--rdbcompression", "no") as running:
        yield running


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    running = Proxy(server.port)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def fleet(proxy: Proxy) -> Iterator[Fleet]:
    options = {"timeout_seconds": DRIVER_SECONDS}
    running = Fleet(
        {"make": "chatstack_redis:RedisStore", "given": [f"redis://127.0.0.1:{proxy.port}"], "options": options}
    )
    try:
        yield running
    finally:
        running.close()


def test_whatever_happens_to_the_server_no_call_fails_and_what_was_decided_holds(
    fleet: Fleet, server: RedisServer, proxy: Proxy
) -> None:
    fleet.play_until_settled()
    fleet.play("the server is killed", halfway=server.kill)
    server.start()
    fleet.rest()
    put_other_versions(fleet, server)
    fleet.play("records are of other versions")
    fleet.play_until_edited()
    server.asked("CONFIG SET", "maxmemory", "1")
    fleet.play("its memory is full")
    fleet.play("while it is full, in the same processes", moves=False)
    server.asked("CONFIG SET", "maxmemory", "0")
    fleet.rest()
    fleet.play("in others, after that")
    fleet.play_until_edited()
    server.asked("REPLICAOF", "127.0.0.1", str(free_port()))
    fleet.play("it is a read-only replica")
    fleet.play("while it is read-only, in the same processes", moves=False)
    server.asked("REPLICAOF", "NO", "ONE")
    fleet.rest()
    fleet.play("in others, after that")
    fleet.play_until_edited()
    fleet.play_until_settled()
    fleet.play("the server is stopped", halfway=server.freeze, hangs=True)
    server.thaw()
    fleet.rest()
    fleet.play("after it was woken")
    fleet.play_until_settled()
    fleet.play("the network is cut", halfway=proxy.cut, hangs=True)
    proxy.heal()
    fleet.rest()
    fleet.play("after it was mended")
    fleet.play("nothing is wrong, at the end")
    assert not fleet.goes_on
    disturbed = ["the server is stopped", "after it was woken", "the network is cut", "after it was mended"]
    checked(fleet, but=["the server is killed", *disturbed, "nothing is wrong, at the end"])
    forget_all(fleet, server)


def put_other_versions(fleet: Fleet, server: RedisServer) -> None:
    for number, key in enumerate(sorted(server.asked("KEYS", "*"))):
        for field in server.asked("HKEYS", key):
            if field != OWNER.encode():
                server.asked("HSET", key, field, fleet.other_version(number))


def forget_all(fleet: Fleet, server: RedisServer) -> None:
    """What is forgotten is in no snapshot from then on, nor in the append-only file once it is rewritten."""
    server.asked("SAVE")
    assert any(SECRET.encode() in content for content in files(server))
    fleet.forget(fleet.talks)
    server.asked("DEL", "chatstack:decisions:" + b"nothing".hex())  # by which the fleet tried whether it works
    assert server.asked("DBSIZE") == 0
    server.asked("SAVE")
    server.asked("BGREWRITEAOF")
    while any(SECRET.encode() in content for content in files(server)):
        assert "aof_last_bgrewrite_status:err" not in str(server.asked("INFO", "persistence"))
        time.sleep(0.05)


def files(server: RedisServer) -> list[bytes]:
    """The content of all files of the server; one that it is writing anew may go meanwhile."""
    found: list[bytes] = []
    for each in Path(server.folder).rglob("*"):
        with suppress(FileNotFoundError):
            found += [each.read_bytes()] if each.is_file() else []
    return found
