"""YAML is read as its version 1.2 has it: no number is silently another one, and what is not sure is text."""

from __future__ import annotations

from pathlib import Path

import pytest

from chatstack import ContextWindowGuard, ToolResultClearer, WiringError, find, from_config
from chatstack.testing import ScriptedClient


def guard(tmp_path: Path, option: str, value: str) -> ContextWindowGuard:
    path = tmp_path / "a.yaml"
    needed = "" if option == "max_context_tokens" else "  max_context_tokens: 9\n"
    path.write_text(f"layers:\n- use: ContextWindowGuard\n{needed}  {option}: {value}\n")
    found = find(from_config(path, ScriptedClient()).build(), ContextWindowGuard)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("4000", 4000),
        ("+17", 17),
        ("017", 17),
        ("08", 8),
        ("0o17", 15),
        ("0x1F", 31),
        ("120_000", 120_000),
        ("4000.0", 4000),
        ("4e3", 4000),
        ("!!int 017", 17),
    ],
)
def test_a_whole_number_is_the_one_that_readers_of_yaml_1_2_see(tmp_path: Path, written: str, number: int) -> None:
    found = guard(tmp_path, "max_context_tokens", written).max_context_tokens

    assert (found, type(found)) == (number, int)


@pytest.mark.parametrize("written", ["1:30", "190:20:30", "0b11", "0o18", "1__0", "_1", "1e", "2024-01-01", "'12'"])
def test_what_is_a_number_in_yaml_1_1_only_is_text_and_refused(tmp_path: Path, written: str) -> None:
    with pytest.raises(WiringError, match=r"max_context_tokens: expected int \| 'auto', got str: '"):
        guard(tmp_path, "max_context_tokens", written)


@pytest.mark.parametrize("written", ["yes", "no", "on", "off", "Yes", "NO", "y", "n", "tRUE"])
def test_yes_and_no_are_text_and_no_switches(tmp_path: Path, written: str) -> None:
    with pytest.raises(WiringError, match=rf"prune_on_overflow: expected bool, got str: '{written}'"):
        guard(tmp_path, "prune_on_overflow", written)


@pytest.mark.parametrize(("written", "value"), [("true", True), ("TRUE", True), ("False", False)])
def test_switches_are_true_and_false(tmp_path: Path, written: str, value: bool) -> None:
    assert guard(tmp_path, "prune_on_overflow", written).prune_on_overflow is value


@pytest.mark.parametrize(("written", "number"), [("0.5", 0.5), (".5", 0.5), ("5e-1", 0.5), ("1", 1), ("1.", 1)])
def test_fractions_are_read_as_they_are_written(tmp_path: Path, written: str, number: float) -> None:
    assert guard(tmp_path, "warning_threshold", written).warning_threshold == number


@pytest.mark.parametrize("written", [".inf", "-.INF", ".NaN"])
def test_what_is_no_number_is_refused_by_who_wants_one(tmp_path: Path, written: str) -> None:
    with pytest.raises(WiringError, match=r"warning_threshold: expected a number (> 0.0|<= 1.0): (nan|-?inf)"):
        guard(tmp_path, "warning_threshold", written)


@pytest.mark.parametrize("written", ["~", "null", "Null", "NULL", ""])
def test_nothing_is_nothing(tmp_path: Path, written: str) -> None:
    assert guard(tmp_path, "counter", written).counter is None


def test_words_of_yaml_1_1_are_names_like_others(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("layers:\n- {use: ToolResultClearer, exclude_tools: [yes, no, on, 1:30, 2024-01-01, =, '017']}\n")

    found = find(from_config(path, ScriptedClient()).build(), ToolResultClearer)

    assert found is not None
    assert set(found.exclude_tools) == {"yes", "no", "on", "1:30", "2024-01-01", "=", "017"}


@pytest.mark.parametrize(
    "written",
    ["!!bool yes", "!!int '1:30'", "!!float x", "!!int [1]", "!!timestamp 2001-01-01", "!!set {a}", "!mine 3"],
)
def test_a_tag_makes_nothing_else_of_it(tmp_path: Path, written: str) -> None:
    with pytest.raises(WiringError, match=r"not valid YAML: line \d: (expected (bool|int|float)|could not determine)"):
        guard(tmp_path, "max_context_tokens", written)
