"""PostgreSQL servers for the tests that want one, and a database for each of them."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote_plus
from uuid import uuid4

import psycopg
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from postgres_server import PASSWORD, PostgresServer, postgres_server


@dataclass
class OwnDatabase:
    """A database that a test may take away from its workers for a while."""

    address: str
    interrupt: Callable[[], None]

    @property
    def kind(self) -> str:
        return self.address.partition(":")[0]


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database: a file, or one of the server's."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/runs.db"
    return new_database(request.getfixturevalue("server"))


@pytest.fixture
def postgres(server: PostgresServer) -> str:
    """The address of an empty database of the server's, for what need not be seen on SQLite, too."""
    return new_database(server)


@pytest.fixture(params=["sqlite", "postgresql"])
def own_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OwnDatabase]:
    """One that can be interrupted: PostgreSQL is stopped and started again, SQLite's file is locked."""
    if request.param == "sqlite":
        path = tmp_path / "runs.db"
        yield OwnDatabase(f"sqlite:///{path}", lambda: _locked(path))
        return
    with postgres_server() as server:

        def restart() -> None:
            server.stop()
            server.start()

        yield OwnDatabase(new_database(server), restart)


def new_database(server: PostgresServer) -> str:
    name = f"runs_{uuid4().hex}"
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"postgresql://tester:{quote_plus(PASSWORD)}@127.0.0.1:{server.port}/{name}"


def _locked(path: Path) -> None:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    time.sleep(1)
    connection.execute("ROLLBACK")
    connection.close()
