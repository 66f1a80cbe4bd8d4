"""Tools that a config names by where they are imported from, in one's own file, or where that is allowed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from chatstack import WiringError, from_config
from chatstack.cli import main
from chatstack.config.recipes import Allowed
from chatstack.config.schema import pipeline_schema
from chatstack.testing import ScriptedClient
from tests.test_config_schema import errors

MODULE = """
from chatstack import tool

LIMIT = 5


def look(place: str) -> str:
    \"\"\"Look around.\"\"\"
    return place


@tool(name="shout")
def called_otherwise(text: str) -> str:
    \"\"\"Shout.\"\"\"
    return text


class Kit:
    @staticmethod
    def hammer(nails: int) -> int:
        \"\"\"Hammer.\"\"\"
        return nails
"""
NAMES = ["chest_of_tools.kit:look", "chest_of_tools.kit:called_otherwise", "chest_of_tools.kit:Kit.hammer"]


@pytest.fixture(autouse=True)
def chest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "chest_of_tools"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "kit.py").write_text(MODULE)
    (package / "broken.py").write_text("raise RuntimeError('no hammer')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("chest_of_tools", "chest_of_tools.kit"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def config(*tools: object) -> dict[str, Any]:
    return {"layers": [{"use": "FunctionInvoker", "tools": list(tools)}]}


def wrong(*tools: object, allowed: Allowed | None = None) -> str:
    with pytest.raises(WiringError) as caught:
        from_config(config(*tools), ScriptedClient(), allowed=allowed)
    return str(caught.value)


def names_in(recipe: dict[str, Any], allowed: Allowed | None = None) -> list[str]:
    built: Any = from_config(recipe, ScriptedClient(), allowed=allowed).build()
    return [each.name for each in built.layers[0].tools]


def test_functions_and_tools_are_imported_by_name() -> None:
    assert names_in(config(*NAMES)) == ["look", "shout", "hammer"]
    assert errors(config(*NAMES), pipeline_schema()) == []


def test_names_and_functions_may_stand_side_by_side() -> None:
    def here(x: int) -> int:
        """Here."""
        return x

    assert names_in(config(here, NAMES[0])) == ["here", "look"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("os.system", "'os.system' names no tool; write 'package.module:function'"),
        (":look", "':look' names no tool"),
        ("..kit:look", "'..kit:look' names no tool"),
        ("a/b:look", "'a/b:look' names no tool"),
        ("chest_of_tools.kit:look()", "names no tool"),
        ("chest_of_tools.kit:look\n", "names no tool"),
        ("chest_of_tools.nowhere:look", "chest_of_tools.nowhere cannot be imported: ModuleNotFoundError"),
        ("chest_of_tools.broken:look", "chest_of_tools.broken cannot be imported: RuntimeError: no hammer"),
        ("chest_of_tools.kit:lok", "there is no lok in chest_of_tools.kit; did you mean 'look'?"),
        ("os:no_such", "there is no no_such in os; known: PathLike, "),
        ("chest_of_tools.kit:LIMIT", "'chest_of_tools.kit:LIMIT' is an int, which is no function"),
    ],
)
def test_what_is_wrong_with_a_name_is_told_with_its_place(name: str, told: str) -> None:
    assert wrong(NAMES[0], name).startswith("config: layers[0].tools[1]: ")
    assert told in wrong(NAMES[0], name)


def test_a_function_that_can_be_no_tool_is_told_with_its_place() -> None:
    assert wrong("json:dumps").startswith("config: layers[0]")


def test_in_somebody_elses_file_nothing_is_imported_that_is_not_allowed() -> None:
    for allowed in (Allowed(), Allowed(tools=[NAMES[1]])):
        assert f"tools[0]: {NAMES[0]!r} is not allowed in this config" in wrong(NAMES[0], allowed=allowed)
    assert "chest_of_tools.kit" not in sys.modules
    assert names_in(config(NAMES[0]), Allowed(tools={NAMES[0]})) == ["look"]


def test_inspect_shows_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(config(*NAMES)))
    assert main(["inspect", str(path)]) == 0
    assert '* tools                     ["look", "shout", "hammer"]' in capsys.readouterr().out
