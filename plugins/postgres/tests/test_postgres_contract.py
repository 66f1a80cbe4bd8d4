"""The Postgres store keeps the contract of stores, and is found by its entry point."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import ClassVar

import pytest
from chatstack.context.memory.sharing import DecisionStore
from chatstack.testing import StoreContract
from postgres_server import PASSWORD, PostgresServer

from chatstack_postgres import PostgresStore


class TestPostgresStore(StoreContract):
    secrets: ClassVar[tuple[str, ...]] = (PASSWORD, "hunter2")

    @pytest.fixture(autouse=True)
    def place(self, server: PostgresServer, table: str) -> None:
        self.conninfo, self.table = server.conninfo, table

    def make(self) -> DecisionStore:
        return PostgresStore(self.conninfo, table=self.table)


class TestPostgresStoreInAStrictDatabase(StoreContract):
    """Where whoever comes second would get an error, if the store did not say how it wants to be isolated."""

    @pytest.fixture(autouse=True)
    def place(self, server: PostgresServer, table: str) -> None:
        options = "-c default_transaction_isolation=serializable"
        self.conninfo, self.table = server.conninfo_of("tester", PASSWORD, options=options), table

    def make(self) -> DecisionStore:
        return PostgresStore(self.conninfo, table=self.table)


def test_it_is_found_by_its_entry_point() -> None:
    (found,) = entry_points(group="chatstack.stores", name="postgres")
    assert found.load() is PostgresStore


def test_the_code_in_the_readme_runs() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    names: dict[str, object] = {}
    exec(compile(readme.split("```python\n")[1].split("```")[0], "README.md", "exec"), names)
    assert "secret" not in repr(names["memory"])
    assert "Store('" in repr(names["memory"])
