"""A strategy of somebody's own passes the strictest type checks, however its name is written down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_strategy_as_a_dataclass_passes_strict_type_checks(checker: str, tmp_path: Path) -> None:
    pytest.importorskip(checker)
    module = tmp_path / "strategies.py"
    module.write_text(SOURCE)
    if checker == "mypy":
        command = ["mypy", "--strict", "--no-error-summary", str(module)]
    else:
        (tmp_path / "pyrightconfig.json").write_text('{"include": ["."], "typeCheckingMode": "strict"}')
        command = ["pyright", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    root = Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, cwd=root, timeout=110)
    assert "error:" not in ran.stdout, ran.stdout
    assert ran.returncode == 0, ran.stdout + ran.stderr
