"""One server for all tests that do it no harm, and a prefix for each of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from redis_server import RedisServer, redis_server

sys.path.append(str(Path(__file__).resolve().parents[3]))  # for the tests of every store in tests/sharing


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server that the test may stop, freeze, or fill."""
    with redis_server() as running:
        yield running


@pytest.fixture
def prefix() -> str:
    return f"test:{uuid4().hex}"
