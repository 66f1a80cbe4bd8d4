"""The Redis store keeps the contract of stores, and is found by its entry point."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import pytest
from chatstack.context.memory.sharing import DecisionStore
from chatstack.testing import StoreContract
from redis_server import RedisServer, redis_server

from chatstack_redis import RedisStore

PASSWORD = "hunter2/of:the@store"


class TestRedisStore(StoreContract):
    @pytest.fixture(autouse=True)
    def place(self, server: RedisServer, prefix: str) -> None:
        self.url, self.prefix = server.url, prefix

    def make(self) -> DecisionStore:
        return RedisStore(self.url, prefix=self.prefix)


@pytest.fixture(scope="module")
def locked_server() -> Iterator[RedisServer]:
    with redis_server("--requirepass", PASSWORD, password=PASSWORD) as running:
        yield running


class TestRedisStoreWithAPassword(StoreContract):
    secrets: ClassVar[tuple[str, ...]] = (PASSWORD, "hunter2")

    @pytest.fixture(autouse=True)
    def place(self, locked_server: RedisServer, prefix: str) -> None:
        self.port, self.prefix = locked_server.port, prefix

    def make(self) -> DecisionStore:
        return RedisStore(f"redis://:{quote(PASSWORD, safe='')}@127.0.0.1:{self.port}", prefix=self.prefix)


def test_it_is_found_by_its_entry_point() -> None:
    (found,) = entry_points(group="chatstack.stores", name="redis")
    assert found.load() is RedisStore


def test_the_code_in_the_readme_runs() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    names: dict[str, object] = {}
    exec(compile(readme.split("```python\n")[1].split("```")[0], "README.md", "exec"), names)
    assert "secret" not in repr(names["memory"])
    assert "Store('" in repr(names["memory"])
