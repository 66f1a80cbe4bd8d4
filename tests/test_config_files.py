"""A recipe is read from TOML, YAML and JSON files; one that cannot be read is one clear line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from chatstack import ChatStack, ModelTracer, WiringError, find, named
from chatstack.config.recipes import from_config
from chatstack.layers.guard import ContextWindowGuard
from chatstack.layers.progress import ProgressReporter
from chatstack.testing import ScriptedClient

TOML = """
[[layers]]
use = "ProgressReporter"
agent_name = "travel"

[[layers]]
use = "ContextWindowGuard"
name = "window"
max_context_tokens = 4000
prune_on_overflow = true

[[layers]]
use = "ModelTracer"
"""
YAML = """
layers:
  - use: ProgressReporter
    agent_name: travel
  - use: ContextWindowGuard
    name: window
    max_context_tokens: 4000
    prune_on_overflow: true
  - ModelTracer
"""
RECIPE = {
    "layers": [
        {"use": "ProgressReporter", "agent_name": "travel"},
        {"use": "ContextWindowGuard", "name": "window", "max_context_tokens": 4000, "prune_on_overflow": True},
        "ModelTracer",
    ]
}


def wrong(path: Path | str) -> str:
    with pytest.raises(WiringError) as caught:
        from_config(path, provider=ScriptedClient())
    return str(caught.value)


def file(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", TOML),
        ("a.yaml", YAML),
        ("a.yml", YAML),
        ("a.json", json.dumps(RECIPE)),
        ("a.JSON", json.dumps(RECIPE)),
    ],
)
def test_code_dict_and_every_kind_of_file_give_the_same_stack(tmp_path: Path, name: str, text: str) -> None:
    provider = ScriptedClient()
    stack = (
        ChatStack(provider)
        .use(ProgressReporter, agent_name="travel")
        .use(named("window", ContextWindowGuard), max_context_tokens=4000, prune_on_overflow=True)
        .use(ModelTracer)
    )

    path = file(tmp_path, name, text)
    found = [from_config(path, provider=provider), from_config(str(path), provider), from_config(RECIPE, provider)]

    assert {repr(each) for each in found} == {repr(stack)}
    assert {repr(each.build()) for each in found} == {repr(stack.build())}
    guard = find(found[0].build(), ContextWindowGuard)
    assert guard is not None
    assert guard.max_context_tokens == 4000


def test_an_error_names_file_layer_and_option(tmp_path: Path) -> None:
    path = file(tmp_path, "pipeline.toml", TOML.replace("4000", "-1"))

    with pytest.raises(WiringError) as caught:
        from_config(path, provider=ScriptedClient())

    assert str(caught.value) == f"{path}: layers[1].max_context_tokens: expected an integer >= 1: -1"
    assert (caught.value.layer, caught.value.parameter) == ("window", "max_context_tokens")


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.toml", "layers = [", "not valid TOML: "),
        ("a.json", "{", "not valid JSON: "),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.json", "[]", "expected a table of names and values, got a list"),
        ("a.yaml", "layers: [", "not valid YAML: line 1: "),
        (
            "a.yaml",
            "a: !!python/object/apply:os.getcwd []",
            "not valid YAML: line 1: could not determine a constructor",
        ),
        ("a.yaml", "# no layers", "expected a table of names and values, got nothing"),
        ("a.yaml", "a: &a [*a]", "not valid YAML: larger than 1,000,000 characters once its aliases are written out"),
        ("a.yaml", "", "is empty"),
        ("a.json", "\n", "is empty"),
        ("a.toml", "\ufeff \n", "is empty"),
        ("a.ini", "", "expected a file that ends in .json, .toml, .yaml, .yml"),
    ],
)
def test_a_file_that_holds_no_config_is_told_in_one_line(tmp_path: Path, name: str, text: str, told: str) -> None:
    path = file(tmp_path, name, text)

    message = wrong(path)

    assert message.startswith(f"{path}: {told}")
    assert "\n" not in message


def test_a_file_that_is_not_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"a\xff\xfe\x00")

    assert wrong(path) == f"{path}: not UTF-8 text: byte 2 is wrong"


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert wrong(tmp_path / "a.toml") == f"{tmp_path / 'a.toml'}: cannot be read: No such file or directory"


def test_what_is_no_regular_file_is_told_and_not_opened(tmp_path: Path) -> None:
    folder = tmp_path / "a.toml"
    folder.mkdir()

    assert wrong(folder) == f"{folder}: not a file"
    assert wrong(os.devnull) == f"{os.devnull}: not a file"
    assert wrong("a\0.toml").startswith("a\0.toml: cannot be read: ")


def test_aliases_of_aliases_are_refused_in_one_short_line(tmp_path: Path) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]" for before, name in zip("abcdef", "bcdefg", strict=True)
    ]
    path = file(tmp_path, "a.yaml", "\n".join(lines))

    assert wrong(path) == f"{path}: not valid YAML: larger than 1,000,000 characters once its aliases are written out"


def test_plain_aliases_are_understood(tmp_path: Path) -> None:
    text = "layers:\n  - {use: ProgressReporter, agent_name: &name travel}\n  - {use: ModelTracer, name: *name}\n"

    stack = from_config(file(tmp_path, "a.yaml", text), ScriptedClient())

    assert [layer.name for layer in stack.layers] == ["ProgressReporter", "travel"]


def test_yaml_without_its_extra_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)

    assert wrong(file(tmp_path, "a.yaml", YAML)) == ("reading YAML needs an extra: pip install 'chatstack-core[yaml]'")
