"""Four processes over one server, with conversations that move between them on every call, whatever happens to it.

``CHATSTACK_SHARED_TALKS=2000`` and ``-s`` for the long form, with the measured shares.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from chatstack.context.memory.notes import OWNER
from postgres_server import PASSWORD, PostgresServer, postgres_server
from psycopg.conninfo import make_conninfo
from tests.sharing.fleet import DRIVER_SECONDS, Fleet, checked
from tests.sharing.proxy import Proxy
from tests.sharing.talks import SECRET

pytestmark = pytest.mark.timeout(3_600)

_FULL = """
    CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = '53100'; END $$;
    CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON chatstack_decisions EXECUTE FUNCTION full_disk()
"""


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that loses nothing when it is killed."""
    with postgres_server("synchronous_commit=on") as running:
        yield running


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[Proxy]:
    running = Proxy(server.port)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def fleet(proxy: Proxy) -> Iterator[Fleet]:
    given = make_conninfo(host="127.0.0.1", port=proxy.port, user="tester", password=PASSWORD, dbname="postgres")
    running = Fleet(
        {"make": "chatstack_postgres:PostgresStore", "given": [given], "options": {"timeout_seconds": DRIVER_SECONDS}}
    )
    try:
        yield running
    finally:
        running.close()


def test_whatever_happens_to_the_server_no_call_fails_and_what_was_decided_holds(
    fleet: Fleet, server: PostgresServer, proxy: Proxy
) -> None:
    fleet.play_until_settled()
    fleet.play("the server is killed", halfway=server.kill)
    server.start()
    fleet.rest()
    put_other_versions(fleet, server)
    fleet.play("records are of other versions")
    fleet.play_until_edited()
    server.asked(_FULL)
    fleet.play("its disk is full")
    fleet.play("while it is full, in the same processes", moves=False)
    server.asked("DROP FUNCTION full_disk CASCADE")
    fleet.rest()
    fleet.play("in others, after that")
    fleet.play_until_edited()
    only_reading(server, "on")
    fleet.play("it takes no writes")
    fleet.play("while it takes none, in the same processes", moves=False)
    only_reading(server, "off")
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


def put_other_versions(fleet: Fleet, server: PostgresServer) -> None:
    for which in (0, 1):
        server.asked(
            "UPDATE chatstack_decisions SET record = %b WHERE owner <> %b AND get_byte(link, 0) %% 2 = %s",
            fleet.other_version(which),
            OWNER.encode(),
            which,
        )


def only_reading(server: PostgresServer, setting: str) -> None:
    """As a standby, or a database whose administrator has set it so; sessions that there are go by it, too."""
    writing = server.conninfo_of("tester", PASSWORD, options="-c default_transaction_read_only=off")
    with psycopg.connect(writing, autocommit=True) as connection:
        connection.execute(f"ALTER ROLE tester SET default_transaction_read_only = {setting}".encode())
    for each in server.stores():
        server.asked("SELECT pg_terminate_backend(%s)", each[0])


def forget_all(fleet: Fleet, server: PostgresServer) -> None:
    """What is forgotten is in no dump from then on, and in no file of the table once that was vacuumed; the write-ahead
    log keeps it until its files are recycled."""
    assert SECRET.encode() in server.dumped()
    fleet.forget(fleet.talks)
    server.asked("DELETE FROM chatstack_decisions WHERE link = %b", b"nothing")  # by which the fleet has tried
    assert server.asked("SELECT count(*) FROM chatstack_decisions") == [(0,)]
    assert SECRET.encode() not in server.dumped()
    server.asked("CHECKPOINT")
    assert any(SECRET.encode() in each for each in server.files("base"))
    server.asked("VACUUM FULL chatstack_decisions")
    server.asked("CHECKPOINT")
    assert not any(SECRET.encode() in each for each in server.files("base"))
    assert any(SECRET.encode() in each for each in server.files("pg_wal"))
