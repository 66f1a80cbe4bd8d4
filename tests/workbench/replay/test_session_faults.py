"""Whatever stands in a session file: it is read, or named, and does no harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatstack.errors import InputError
from chatstack.workbench.replay.reading import trees
from chatstack.workbench.replay.reading.contexts import Kept, Notes, SessionTooLongError, note
from chatstack.workbench.replay.reading.forms import conversation_of
from chatstack.workbench.replay.reading.joining import JoinedRecordings
from chatstack.workbench.replay.reading.recordings import BrokenLine, Recording
from chatstack.workbench.replay.reading.sources import sources_from
from tests.workbench.replay.session_files import Claude, Rollout, Row, read, told, write
from tests.workbench.replay.test_atif import SMALL
from tests.workbench.replay.test_chains import CHAIN
from tests.workbench.replay.test_claude_code import whole as whole_session
from tests.workbench.replay.test_codex import whole as whole_rollout

LEAVES = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=5)
NAMES = st.sampled_from(["type", "text", "id", "s1-1", "c1", "m1"])
ANYTHING = st.recursive(
    LEAVES | NAMES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)
ROWS = [*whole_session().rows, *whole_rollout().rows, SMALL, *CHAIN]


def places_in(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """All places in a JSON value."""
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, each in inner for place in places_in(each, (*path, name)))]


@st.composite
def broken_files(draw: st.DrawFn) -> list[Any]:
    """The lines of session files, with anything in some of their places, in any order."""
    order = draw(st.permutations(ROWS)) if draw(st.booleans()) else ROWS
    rows: list[Any] = json.loads(json.dumps(order))
    for _ in range(draw(st.integers(0, 12))):
        at = draw(st.integers(0, len(rows) - 1))
        *path, last = draw(st.sampled_from(places_in(rows[at])[1:] or [(0,)]))
        inner = rows[at]
        if not isinstance(inner, dict):
            continue
        for name in path:
            inner = inner[name]
        inner[last] = draw(ANYTHING)
    return rows


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(broken_files())
def test_anything_in_any_place_is_read_or_named(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    path = write(tmp_path_factory.mktemp("any") / "s.jsonl", rows)
    with sources_from([path]) as sources:
        items = list(JoinedRecordings(sources).read())

    for item in items:
        if isinstance(item, BrokenLine):
            assert 1 <= item.line <= len(rows)
            continue
        try:
            answers = [each for each in conversation_of(item).messages if each.role == "assistant"]
        except InputError:
            continue
        assert item.calls is None or len(item.calls) == len(answers)


def test_files_of_all_forms_may_be_one_stream(tmp_path: Path) -> None:
    apart = [read(write(tmp_path / f"{nth}.jsonl", rows)) for nth, rows in enumerate((ROWS[:-4], [SMALL], CHAIN))]
    together = read(write(tmp_path / "all.jsonl", ROWS))

    assert sorted(map(told, together)) == sorted(told(each) for one in apart for each in one)


def a_long_session() -> list[Row]:
    made = Claude()
    for number in range(20):
        made.user(f"question {number}: {'x' * 100}")
        made.answer(f"m{number}", "yes")
    return made.rows


def a_long_rollout() -> list[Row]:
    made = Rollout()
    for number in range(20):
        made.user(f"question {number}: {'x' * 100}")
        made.answer("yes")
    return made.rows


def a_rollout_of_compactions() -> list[Row]:
    """Few bytes, but each compaction keeps what the user said: without a bound, ever more would be held."""
    made = Rollout()
    for number in range(100):
        made.user(str(number))
        made.answer("yes")
        made.add("compacted", {"message": ""})
    return made.rows


@pytest.mark.parametrize(
    ("rows", "limit_bytes"),
    [(a_long_session(), 1_000), (a_long_rollout(), 1_000), (a_rollout_of_compactions(), 50_000)],
)
def test_a_session_that_is_too_long_is_named_and_what_was_read_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[Row], limit_bytes: int
) -> None:
    monkeypatch.setattr(Kept.__init__, "__defaults__", (limit_bytes,))
    with sources_from([write(tmp_path / "s.jsonl", rows)]) as sources:
        items = list(JoinedRecordings(sources).read())

    assert f"reading stopped here: its conversations hold more than {limit_bytes:,} bytes" in str(items[0])
    assert items[1:]
    assert all(isinstance(each, Recording) for each in items[1:])


def test_what_is_kept_is_bounded() -> None:
    kept = Kept(20)
    assert kept.json_of("0123456789") == b'"0123456789"'
    with pytest.raises(SessionTooLongError):
        kept.json_of("0123456789")


def test_notes_name_only_some_kinds() -> None:
    notes = Notes()
    for number in range(1_000):
        note(notes, f"lines of type {number}")
    assert len(notes) == 21
    assert notes["others"] == 980


def test_branches_that_would_repeat_too_much_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "_MOST_COPIES", 100)
    made = Claude()
    for number in range(30):
        made.user(f"question {number}")
        back = made.answer(f"m{number}", "yes")
    for number in range(30, 50):
        made.user(f"question {number}", after=back)
        made.answer(f"m{number}", "yes")
    with sources_from([write(tmp_path / "s.jsonl", made.rows)]) as sources:
        *recordings, last = JoinedRecordings(sources).read()

    assert isinstance(last, BrokenLine)
    assert f"{20 - len(recordings)} more branches than are read" in last.error
    assert 1 < len(recordings) < 20
