"""Rollout files of Codex."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatstack.values.parts import Image, Text
from chatstack.workbench.replay.reading.contexts import Notes
from chatstack.workbench.replay.reading.forms import conversation_of
from tests.workbench.replay.session_files import Rollout, Row, broken, codex_usage, joined, read, told, usages, write

PARENT = "019fa000-0000-7000-8000-000000000001"
PARENT_TURN = "019fa000-0001-7000-8000-000000000001"
CHILD = "019fb000-0000-7000-8000-000000000001"
CHILD_TURN = "019fb000-0001-7000-8000-000000000001"


def of(rollout: Rollout, folder: Path, notes: Notes | None = None) -> list[list[str]]:
    return [told(each) for each in read(write(folder / "rollout.jsonl", rollout.rows), notes)]


def small(session: str = PARENT, turn: str = PARENT_TURN) -> Rollout:
    made = Rollout(session)
    made.turn(turn)
    made.user("question 1")
    made.call("c1")
    made.counted(100, 60, 10)
    made.output("c1", "found 1")
    made.answer("answer 1")
    made.counted(150, 100, 20)
    return made


def test_a_rollout_is_one_conversation_with_the_usage_of_each_call(tmp_path: Path) -> None:
    (recording,) = read(write(tmp_path / "r.jsonl", small().rows))

    assert told(recording) == ["u:question 1", "a: ?shell", "t: !found 1", "a:answer 1"]
    assert usages(recording) == [(100, 60, 0, 10), (150, 100, 0, 20)]
    assert (recording.form, recording.model) == ("responses", "gpt-5-codex")
    assert conversation_of(recording).options.instructions == "You are a coding agent."


def test_a_report_of_usage_that_is_repeated_counts_once(tmp_path: Path) -> None:
    rollout = small()
    rollout.repeat_count(codex_usage(150, 100, 20))
    rollout.event("token_count", info=None, rate_limits={"primary": None})
    rollout.user("question 2")
    rollout.repeat_count(codex_usage(150, 100, 20))
    rollout.answer("answer 2")
    rollout.counted(160, 150, 5)
    notes = Notes()
    (recording,) = read(write(tmp_path / "r.jsonl", rollout.rows), notes)

    assert usages(recording) == [(100, 60, 0, 10), (150, 100, 0, 20), (160, 150, 0, 5)]
    assert notes == {}


def test_usage_that_comes_behind_the_results_belongs_to_the_answer_before(tmp_path: Path) -> None:
    rollout = Rollout()
    rollout.user("look")
    rollout.call("c1")
    rollout.call("c2")
    rollout.output("c1")
    rollout.output("c2")
    rollout.counted(100, 0, 10)
    rollout.answer("done")
    (recording,) = read(write(tmp_path / "r.jsonl", rollout.rows))

    assert told(recording) == ["u:look", "a: ?shell ?shell", "t: !seen", "t: !seen", "a:done"]
    assert usages(recording) == [(100, 0, 0, 10), "unknown"]


def test_a_compaction_begins_a_context_with_what_took_the_place_of_the_history(tmp_path: Path) -> None:
    rollout = small()
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "question 1"}]}
    kept = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "answer 1"}]}
    rollout.counted(170, 0, 30)  # the call that wrote the summary
    rollout.add("compacted", {"message": "", "replacement_history": [message, kept, {"type": "ghost_snapshot"}]})
    rollout.event("context_compacted")
    rollout.user("question 2")
    rollout.answer("answer 2")
    rollout.counted(40, 0, 5)
    notes = Notes()
    first, second = read(write(tmp_path / "r.jsonl", rollout.rows), notes)

    assert told(first)[-1] == "a:answer 1"
    assert told(second) == ["u:question 1", "a:answer 1", "u:question 2", "a:answer 2"]
    assert usages(second) == ["copied", (40, 0, 0, 5)]
    assert notes == {"reports of usage by Codex for calls that it did not write down, as compactions": 1}


def test_a_compaction_that_tells_only_its_summary_keeps_what_the_user_said(tmp_path: Path) -> None:
    rollout = small()
    rollout.add("compacted", {"message": "All is well."})
    rollout.user("question 2")
    rollout.answer("answer 2")

    assert of(rollout, tmp_path)[1] == ["u:question 1", "u:All is well.", "u:question 2", "a:answer 2"]


def test_turns_that_were_rolled_back_are_in_a_context_before_alone(tmp_path: Path) -> None:
    rollout = small()
    for number in (2, 3):
        rollout.user(f"question {number}")
        rollout.answer(f"answer {number}")
        rollout.counted(10 * number, 0, 1)
    rollout.event("thread_rolled_back", num_turns=2)
    rollout.user("question 4")
    rollout.answer("answer 4")
    rollout.event("thread_rolled_back", num_turns=1)
    rollout.user("question 5")
    rollout.answer("answer 5")
    recordings = read(write(tmp_path / "r.jsonl", rollout.rows))

    assert [told(each)[-2:] for each in recordings] == [
        ["u:question 3", "a:answer 3"],
        ["u:question 4", "a:answer 4"],
        ["u:question 5", "a:answer 5"],
    ]
    assert [told(each)[:4] for each in recordings] == [told(recordings[0])[:4]] * 3
    assert usages(recordings[2]) == ["copied", "copied", "unknown"]


def fork(parent: Rollout, **meta: object) -> Rollout:
    """A session that begins with a copy of another: its lines, with their usage and all."""
    made = Rollout(CHILD, **{"forked_from_id": PARENT, **meta})
    made.rows += parent.rows
    made.totals = list(parent.totals)
    made.turn(CHILD_TURN)
    made.user("another question")
    made.answer("another answer")
    made.counted(200, 150, 8)
    return made


@pytest.mark.parametrize("meta", [{}, {"source": {"subagent": {"thread_spawn": {"parent_thread_id": PARENT}}}}])
def test_what_a_fork_copied_is_context_and_no_call(tmp_path: Path, meta: dict[str, object]) -> None:
    parent = small()
    path = write(tmp_path / "child.jsonl", fork(parent, **meta).rows)
    parent.user("question 2")
    parent.answer("answer 2")
    (recording,) = read(path)

    assert told(recording) == [
        *("u:question 1", "a: ?shell", "t: !found 1", "a:answer 1", "u:another question", "a:another answer")
    ]
    assert usages(recording) == ["copied", "copied", (200, 150, 0, 8)]
    recordings, count = joined(write(tmp_path / "parent.jsonl", parent.rows), path)
    assert (len(recordings), count) == (2, 0)


def test_calls_of_a_session_that_ended_where_it_was_forked_count_once(tmp_path: Path) -> None:
    parent = small()
    paths = [write(tmp_path / "1.jsonl", parent.rows), write(tmp_path / "2.jsonl", fork(parent).rows)]
    other = fork(parent)
    other.user("one more question")
    other.answer("one more answer")
    other.rows = [row for row in other.rows if "another" not in str(row)]
    paths.append(write(tmp_path / "3.jsonl", other.rows))
    recordings, _ = joined(*paths)
    counted = [usage for recording in recordings for usage in usages(recording) if usage != "copied"]

    assert len(recordings) == 2
    assert counted.count((100, 60, 0, 10)) == counted.count((150, 100, 0, 20)) == 1


def test_a_fork_without_ids_of_turns_is_told_by_the_file_that_it_was_forked_from(tmp_path: Path) -> None:
    parent = small()
    parent.rows = [row for row in parent.rows if "turn_id" not in row["payload"]]
    child = fork(parent)
    child.rows = [row for row in child.rows if "turn_id" not in row["payload"]]
    parent.user("question 2")
    parent.answer("answer 2")
    notes = Notes()
    alone = read(write(tmp_path / "2.jsonl", child.rows), notes)
    both, _ = joined(write(tmp_path / "1.jsonl", parent.rows), tmp_path / "2.jsonl")

    assert usages(alone[0])[0] == (100, 60, 0, 10)
    assert list(notes.values()) == [1]
    assert usages(both[1]) == ["copied", "copied", (200, 150, 0, 8)]


def test_several_rollouts_in_one_stream_are_several_sessions(tmp_path: Path) -> None:
    rows = [*small().rows, *small(CHILD, CHILD_TURN).rows]

    assert len(read(write(tmp_path / "r.jsonl", rows))) == 2


def test_a_call_that_was_interrupted_has_a_result_in_the_next_request(tmp_path: Path) -> None:
    rollout = Rollout()
    rollout.user("look")
    rollout.call("c1")
    rollout.item("custom_tool_call", call_id="c2", name="apply_patch", input="*** Begin", status="completed")
    rollout.output("c1", {"content": "seen", "success": True})
    rollout.event("turn_aborted", reason="interrupted")
    rollout.user("not there")
    rollout.answer("where?")
    (recording,) = read(write(tmp_path / "r.jsonl", rollout.rows))

    messages = conversation_of(recording).messages
    assert [call.id for message in messages for call in message.calls] == ["c1", "c2"]
    assert {each.call_id for message in messages for each in message.results} == {"c1", "c2"}


def test_items_of_all_kinds_are_read(tmp_path: Path) -> None:
    rollout = Rollout()
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    rollout.item("message", role="developer", content=[{"type": "input_text", "text": "<permissions>"}])
    rollout.item("message", role="user", content=[{"type": "input_text", "text": "see"}, image])
    rollout.item("local_shell_call", call_id="l1", status="completed", action={"type": "exec", "command": ["ls"]})
    rollout.output("l1", [{"type": "input_text", "text": "a"}, image])
    rollout.item("web_search_call", status="completed", action={"type": "search", "query": "q"})
    rollout.item("hologram", data="?")
    rollout.answer("seen")

    assert of(rollout, tmp_path) == [["s:<permissions>", "u:see", "a: ?local_shell", "t: !" + told_output(), "a:seen"]]


def told_output() -> str:
    return str((Text("a"), Image(media_type="image/png", data="iVBORw0KGgo=")))


def test_the_form_of_2025_is_read(tmp_path: Path) -> None:
    rows: list[Row] = [
        {"id": "s1", "timestamp": "2025-08-01T10:00:00Z", "instructions": "Be brief.", "git": {}},
        {"record_type": "state"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"record_type": "state"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
    ]
    (recording,) = read(write(tmp_path / "r.jsonl", rows))

    assert told(recording) == ["u:hello", "a:hi"]
    assert conversation_of(recording).options.instructions == "Be brief."


def test_lines_of_unknown_types_are_passed_over_and_counted(tmp_path: Path) -> None:
    rollout = small()
    rollout.add("dream", {"of": "sheep"})
    rollout.event("daydream", of="more")
    notes = Notes()

    assert len(of(rollout, tmp_path, notes)) == 1
    assert notes == {"lines of Codex of type 'dream'": 1}


def test_a_line_that_cannot_be_read_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    rollout = small()
    rollout.item("function_call_output", output="of nothing")
    rollout.add("compacted", {"replacement_history": [{"type": "function_call"}]})
    rollout.rows.append({"type": "response_item", "payload": 5})
    rollout.answer("still here")
    path = write(tmp_path / "r.jsonl", rollout.rows)

    at = len(small().rows)
    assert [error.split(":")[0] for error in broken(path)] == [str(at + nth) for nth in (1, 2, 3)]


def whole() -> Rollout:
    """A rollout with all that one can have."""
    rollout = small()
    rollout.user("question 2")
    rollout.call("c2")
    rollout.output("c2")
    rollout.answer("answer 2")
    rollout.counted(30, 0, 3)
    rollout.event("thread_rolled_back", num_turns=1)
    rollout.add("compacted", {"message": "All is well."})
    rollout.user("question 3")
    rollout.answer("answer 3")
    return rollout


@settings(max_examples=60, deadline=None)
@given(st.integers(1, len(whole().rows)))
def test_every_beginning_of_a_rollout_reads(tmp_path_factory: pytest.TempPathFactory, lines: int) -> None:
    recordings = read(write(tmp_path_factory.mktemp("cut") / "r.jsonl", whole().rows[:lines]))

    for each in recordings:
        found = [message for message in conversation_of(each).messages if message.role == "assistant"]
        assert len(found) == len(each.calls or ())
    items = [row["payload"] for row in whole().rows[:lines] if row["type"] == "response_item"]
    starts = sum(item["type"] == "reasoning" or item.get("role") == "assistant" for item in items)
    assert sum(call is not None for each in recordings for call in each.calls or ()) == starts
