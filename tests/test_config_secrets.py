"""One rule for what nobody is shown: no error quotes what ``chatstack inspect`` hides, and both tell the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chatstack import WiringError, from_config
from chatstack.cli import main
from chatstack.testing import ScriptedClient
from tests.plugin_fixtures import Shop
from tests.plugin_fixtures import shop as shop  # a fixture

SECRET = "hunter2hunter2"
SEALED = """
from dataclasses import KW_ONLY, InitVar, dataclass, field


@dataclass(frozen=True)
class Sealed:
    inner: object
    _: KW_ONLY
    token: str = field(default="", repr=False)
    key: InitVar[str] = ""
    pin: int = field(default=1234, repr=False)
    colour: str = "green"
    size: int = 3

    def __post_init__(self, key):
        if self.colour == "red" or self.size > 9:
            raise ValueError(f"no {self.colour} {self.token} {self.token!r} {key} of {self.size}")

    async def send(self, request, /):
        ...


def opened(inner, *, url, tags: list[str] = (), mode: int | None = None, level=2, shade="pale", **more):
    if more:
        raise RuntimeError(f"no use for {more}")
    if level != 2:
        raise RuntimeError(f"{url} cannot be reached with {tags} at {level}")
    return inner


class Shelf:
    def __init__(self, url: str, *, shelves: int = 1):
        raise ConnectionError(f"cannot reach\\n{url}")
"""


@pytest.fixture
def sealed(shop: Shop) -> None:
    points = {"layers: sealed": "acme_sealed:Sealed", "layers: opened": "acme_sealed:opened"}
    shop.install("acme", {**points, "stores: shelf": "acme_sealed:Shelf"}, {"acme_sealed": SEALED})


def told(recipe: object) -> str:
    with pytest.raises(WiringError) as caught:
        from_config(recipe, ScriptedClient())  # type: ignore[arg-type]
    return str(caught.value)


def inspected(capsys: pytest.CaptureFixture[str], tmp_path: Path, recipe: object) -> dict[str, str]:
    """The options that are shown, and what is shown of them."""
    path = tmp_path / "p.json"
    path.write_text(json.dumps(recipe))
    assert main(["inspect", str(path)]) == 0
    lines = (line.lstrip(" *").partition(" ") for line in capsys.readouterr().out.splitlines())
    return {name: value.strip() for name, _, value in lines}


@pytest.mark.usefixtures("sealed")
@pytest.mark.parametrize(
    ("layer", "text"),
    [
        ({"use": "sealed", "token": [SECRET]}, "layers[0].token: expected str, got array"),
        ({"use": "sealed", "pin": SECRET}, "layers[0].pin: expected int, got str"),
        ({"use": "sealed", "pin": 0.125}, "layers[0].pin: expected int, got float"),
        ({"use": "sealed", "colour": 3}, "layers[0].colour: expected str, got int: 3"),
        ({"use": "sealed", "size": "many"}, "layers[0].size: expected int, got str: 'many'"),
        (
            {"use": "sealed", "token": SECRET, "key": SECRET, "colour": "red"},
            "layers[0]: ValueError: no red ... ... ... of 3 (plugin acme 1.0, 'sealed')",
        ),
        ({"use": "sealed", "size": 10}, "layers[0]: ValueError: no green '' of 10 (plugin acme 1.0, 'sealed')"),
        ({"use": "opened", "url": "x", "tags": [1, SECRET]}, "layers[0].tags[0]: expected str, got int"),
        ({"use": "opened", "url": "x", "tags": SECRET}, "layers[0].tags: expected array, got str"),
        ({"use": "opened", "url": "x", "mode": "many"}, "layers[0].mode: expected int | null, got str: 'many'"),
        (
            {"use": "opened", "url": SECRET, "tags": ["a", SECRET], "level": 3},
            "layers[0]: RuntimeError: ... cannot be reached with [..., ...] at 3 (plugin acme 1.0, 'opened')",
        ),
        (
            {"use": "opened", "url": "x", "headers": [{"key": [SECRET]}]},
            "layers[0]: RuntimeError: no use for {'headers': [{'key': [...]}]} (plugin acme 1.0, 'opened')",
        ),
    ],
)
def test_an_error_quotes_what_may_be_shown_and_nothing_else(layer: dict[str, object], text: str) -> None:
    assert told({"layers": [layer]}) == f"config: {text}"


@pytest.mark.usefixtures("sealed")
def test_inspect_shows_the_same_values(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    layer = {"use": "sealed", "token": SECRET, "key": SECRET, "pin": 7, "colour": "blue", "size": 5}

    shown = inspected(capsys, tmp_path, {"layers": [layer]})

    hidden = "(set, not shown)"
    assert (shown["token"], shown["key"], shown["pin"]) == (hidden, hidden, hidden)
    assert (shown["colour"], shown["size"]) == ('"blue"  (default "green")', "5  (default 3)")
    assert inspected(capsys, tmp_path, {"layers": ["sealed"]})["pin"] == "(not shown)"


@pytest.mark.usefixtures("sealed")
def test_options_without_a_type_hint_are_shown_as_what_they_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shown = inspected(capsys, tmp_path, {"layers": [{"use": "opened", "url": SECRET, "level": 2}]})

    assert shown["url"] == "(set, not shown)"
    assert shown["level"] == "2  (default 2)"
    assert shown["shade"] == '"pale"'
    assert shown["mode"] == "none"


def test_whose_decisions_a_memory_holds_is_shown_by_neither(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = {"use": "sqlite", "path": "a.sqlite"}

    shown = inspected(capsys, tmp_path, {"memory": {"store": store, "scope": SECRET, "max_entries": 7}})

    assert shown["memory:"] == "store sqlite, scope (set, not shown), max_entries 7"
    assert told({"memory": {"scope": SECRET}}).startswith("config: memory.scope: scope=... names whose")
    assert told({"memory": {"store": store, "scope": [SECRET]}}) == "config: memory.scope: expected str, got array"
    assert told({"memory": {"max_entries": "7"}}) == "config: memory.max_entries: expected int, got str: '7'"


@pytest.mark.usefixtures("sealed")
def test_where_a_store_is_may_hold_a_password_also_in_what_its_plugin_says() -> None:
    store = {"use": "shelf", "url": f"shelf://me:{SECRET}@here"}

    assert told({"memory": {"store": store, "scope": "t"}}) == (
        "config: memory.store: ConnectionError: cannot reach ... (plugin acme 1.0, 'shelf')"
    )
    assert told({"memory": {"store": {**store, "url": [SECRET]}, "scope": "t"}}) == (
        "config: memory.store.url: expected str, got array"
    )
