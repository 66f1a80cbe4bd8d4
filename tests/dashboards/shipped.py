"""The dashboard and the alerts that are shipped, read from their files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_FOLDER = Path(__file__).parents[2] / "examples" / "dashboards"
ALERTS = _FOLDER / "alerts.yml"
README = _FOLDER / "README.md"
_VARIABLES = {"$__rate_interval_ms": "600000", "$__rate_interval": "10m", "$__range": "10m", "$job": ".*"}


@dataclass(frozen=True)
class Query:
    """A query of a panel, with the variables filled in as Grafana does."""

    panel: str
    expression: str
    legend: str


def dashboard() -> dict[str, Any]:
    """The whole dashboard."""
    found: dict[str, Any] = json.loads((_FOLDER / "grafana.json").read_text(encoding="utf-8"))
    return found


def _filled_in(expression: str) -> str:
    for name, value in _VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return expression


QUERIES = [
    Query(panel["title"], _filled_in(target["expr"]), target.get("legendFormat", ""))
    for panel in dashboard()["panels"]
    for target in panel["targets"]
]
RULES: list[Any] = [
    rule for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]
]
