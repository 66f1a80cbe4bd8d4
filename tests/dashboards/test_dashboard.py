"""The dashboard is one that Grafana knows how to read, and its panels lie side by side."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import product, zip_longest
from typing import Any, cast, get_args

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from chatstack import semconv
from tests.dashboards.shipped import dashboard


def read(given: dict[str, Any]) -> object:
    """A dashboard as Grafana's own model of it understands and writes it. What the model does not know is gone."""
    register_default_plugins()
    return json.loads(json.dumps(Dashboard.from_json(given), cls=JSONEncoder))


def unknown(given: object, known: object, path: str = "dashboard") -> Iterator[str]:
    """Where what was given is not in what was read."""
    if isinstance(given, dict) and isinstance(known, dict):
        for name, value in cast("dict[str, object]", given).items():
            yield from unknown(value, cast("dict[str, object]", known).get(name), f"{path}.{name}")
    elif isinstance(given, list) and isinstance(known, list):
        pairs = zip_longest(cast("list[object]", given), cast("list[object]", known))
        for position, (one, other) in enumerate(pairs):
            yield from unknown(one, other, f"{path}[{position}]")
    elif given != known:
        yield path


def test_grafana_knows_every_field() -> None:
    assert list(unknown(dashboard(), read(dashboard()))) == []


def test_a_field_that_grafana_does_not_know_is_noticed() -> None:
    wrong = dashboard()
    wrong["panels"][4]["fieldConfig"]["defaults"]["custom"]["drawStile"] = "bars"
    wrong["panels"][4]["targets"][0]["legend"] = "{{job}}"
    assert list(unknown(wrong, read(wrong))) == [
        "dashboard.panels[4].targets[0].legend",
        "dashboard.panels[4].fieldConfig.defaults.custom.drawStile",
    ]


def test_panels_fill_the_width_and_do_not_overlap() -> None:
    taken: Counter[tuple[int, int]] = Counter()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        taken.update(product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
    assert set(taken.values()) == {1}
    height = max(y for _, y in taken) + 1
    assert taken.keys() == set(product(range(24), range(height)))


def test_every_panel_says_what_it_shows_and_asks_the_chosen_data_source() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)


def test_warnings_that_a_panel_explains_are_some_that_there_are() -> None:
    (panel,) = [panel for panel in dashboard()["panels"] if "by code" in panel["title"]]
    explained = re.findall(r"(\w+_\w+):", panel["description"])
    assert explained
    assert set(explained) <= set(get_args(semconv.WarningCode))
