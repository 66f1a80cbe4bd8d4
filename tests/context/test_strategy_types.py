"""A strategy of somebody's own passes the strictest type checks, however its name is written down."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.type_checkers import CHECKERS, lines_with_errors

SOURCE = """
from __future__ import annotations
from dataclasses import dataclass
from chatstack import ChatNode, ChatStack, Context, Layer, Plan, Strategy, StrategyContextManager
from chatstack.testing import ScriptedClient

@dataclass(frozen=True)
class AsField(Strategy):
    name: str = "as_field"
    most: int = 3
    quotes_nothing: bool = True

    def plan(self, context: Context) -> Plan | None:
        return Plan(strategy=self.name, reason="why not", drop=(self.most,))

@dataclass(frozen=True, slots=True)
class OfTheClass(Strategy):
    most: int
    name = "of_the_class"
    quotes_nothing = True

    def plan(self, context: Context) -> Plan | None:
        return None

@dataclass
class Unnamed(Strategy):
    def plan(self, context: Context) -> Plan | None:
        return None

many: list[Strategy] = [AsField(), OfTheClass(most=3), Unnamed()]
layer: Layer = AsField().as_layer()
client = ScriptedClient()
stack = ChatStack(client).use(AsField, most=4).use(OfTheClass(3)).use(Unnamed).override("AsField", OfTheClass, most=2)
node = ChatNode(client, context_manager=AsField())
manager = StrategyContextManager(OfTheClass(3))
"""


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_strategy_as_a_dataclass_passes_strict_type_checks(checker: str, tmp_path: Path) -> None:
    assert lines_with_errors(checker, SOURCE, tmp_path) == set()
