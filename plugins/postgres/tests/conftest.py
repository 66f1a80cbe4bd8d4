"""One server for all tests that do it no harm, and a table for each of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from postgres_server import PostgresServer, postgres_server

sys.path.append(str(Path(__file__).resolve().parents[3]))  # for the tests of every store in tests/sharing


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server that tests may stop and freeze, as long as it runs again afterwards."""
    with postgres_server() as running:
        yield running


@pytest.fixture
def table() -> str:
    return f"test_{uuid4().hex}"
