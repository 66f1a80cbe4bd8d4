"""Session files of Claude Code."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatstack.workbench.replay.reading.contexts import Notes
from chatstack.workbench.replay.reading.forms import conversation_of
from tests.workbench.replay.session_files import Claude, broken, claude_usage, joined, read, told, usages, use, write


def of(session: Claude, folder: Path, notes: Notes | None = None) -> list[list[str]]:
    return [told(each) for each in read(write(folder / "s.jsonl", session.rows), notes)]


def small(session: str = "s1") -> Claude:
    made = Claude(session)
    made.user("question 1")
    made.answer("m1", use("c1"), usage=claude_usage(3, 100, 40, 7), stop="tool_use")
    made.result("c1", "found 1")
    made.answer("m2", "answer 1", usage=claude_usage(3, 140, 20, 9))
    return made


def test_a_session_is_one_conversation_with_the_usage_of_each_call(tmp_path: Path) -> None:
    (recording,) = read(write(tmp_path / "s.jsonl", small().rows))

    assert told(recording) == ["u:question 1", "a: ?Read", "t: !found 1", "a:answer 1"]
    assert usages(recording) == [(143, 100, 40, 7), (163, 140, 20, 9)]
    assert (recording.form, recording.model, recording.line) == ("messages", "claude-sonnet-4-5", 1)


def test_an_answer_split_over_lines_is_one_answer_with_its_usage_once(tmp_path: Path) -> None:
    session = Claude()
    session.user("do both")
    thinking = {"type": "thinking", "thinking": "Both, then.", "signature": "c2ln"}
    usage = claude_usage(3, 100, 0, 1)
    session.answer("m1", thinking, usage=usage, stop=None)
    session.answer("m1", "I look.", usage=usage, stop=None)
    first = session.answer("m1", use("c1"), usage=usage, stop=None)
    second = session.answer("m1", use("c2"), usage=claude_usage(3, 100, 0, 80), stop="tool_use")
    # Results hang from the line of their call, and come in any order.
    session.result("c2", "two", after=second)
    session.result("c1", "one", after=first)
    session.answer("m2", "Done.")
    (recording,) = read(write(tmp_path / "s.jsonl", session.rows))

    assert told(recording) == ["u:do both", "a:I look. ?Read ?Read", "t: !two", "t: !one", "a:Done."]
    assert usages(recording) == [(103, 100, 0, 80), (10, 0, 0, 5)]
    assert recording.calls is not None
    assert not any(call.output_is_partial for call in recording.calls if call)


def test_an_answer_written_down_again_as_it_grows_is_one(tmp_path: Path) -> None:
    session = Claude()
    session.user("hello")
    session.answer("m1", "He", stop=None)
    session.answer("m1", "Hello, you", stop=None)
    session.answer("m1", "Hello, you", use("c1"), usage=claude_usage(10, 0, 0, 33), stop="tool_use")
    session.result("c1")

    assert of(session, tmp_path) == [["u:hello", "a:Hello, you ?Read", "t: !seen"]]


def test_an_output_that_was_written_down_too_early_is_told(tmp_path: Path) -> None:
    session = Claude()
    session.user("hello")
    session.answer("m1", "hi", stop=None)
    (recording,) = read(write(tmp_path / "s.jsonl", session.rows))

    assert [call and call.output_is_partial for call in recording.calls or ()] == [True]


def test_going_back_makes_a_branch_whose_beginning_is_no_call_again(tmp_path: Path) -> None:
    session = small()
    back = session.last
    session.user("this way")
    session.answer("m3", "wrong")
    session.user("that way", after=back)
    session.answer("m4", "right")
    first, second = read(write(tmp_path / "s.jsonl", session.rows))

    assert told(first)[-2:] == ["u:this way", "a:wrong"]
    assert told(second)[-2:] == ["u:that way", "a:right"]
    assert told(first)[:4] == told(second)[:4]
    assert usages(first) == [(143, 100, 40, 7), (163, 140, 20, 9), (10, 0, 0, 5)]
    assert usages(second) == ["copied", "copied", (10, 0, 0, 5)]
    assert second.line == 7


def test_a_branch_that_nobody_answered_is_no_conversation(tmp_path: Path) -> None:
    session = small()
    back = session.last
    session.user("never mind")
    session.user("this", after=back)
    session.answer("m3", "yes")

    assert of(session, tmp_path) == [
        ["u:question 1", "a: ?Read", "t: !found 1", "a:answer 1", "u:this", "a:yes"],
    ]


def test_sub_agents_are_conversations_of_their_own(tmp_path: Path) -> None:
    session = Claude()
    session.user("delegate")
    call = session.answer("m1", use("c1", "Task"), stop="tool_use")
    session.beside = {"isSidechain": True, "agentId": "a1"}
    session.user("look there", after=call)
    session.answer("n1", "it is there")
    session.beside = {}
    session.result("c1", "it is there", after=call, agentId="a1")
    session.answer("m2", "done")

    assert of(session, tmp_path) == [
        ["u:look there", "a:it is there"],
        ["u:delegate", "a: ?Task", "t: !it is there", "a:done"],
    ]


def test_a_compaction_begins_a_conversation_with_its_summary(tmp_path: Path) -> None:
    session = small()
    before = session.last
    session.add("system", after=None, subtype="compact_boundary", logicalParentUuid=before)
    session.user("Summary: all is well.", isCompactSummary=True, isVisibleInTranscriptOnly=True)
    session.user("go on")
    session.answer("m3", "gone on")

    assert of(session, tmp_path) == [
        ["u:question 1", "a: ?Read", "t: !found 1", "a:answer 1"],
        ["u:Summary: all is well.", "u:go on", "a:gone on"],
    ]


def test_messages_that_a_compaction_kept_stand_behind_its_summary_and_are_no_calls_again(tmp_path: Path) -> None:
    session = small()
    head = session.user("question 2")
    tail = session.answer("m3", "answer 2")
    boundary = session.add("system", after=None, subtype="compact_boundary")
    summary = session.user("Summary.", isCompactSummary=True)
    segment = {"headUuid": head, "anchorUuid": summary, "tailUuid": tail}
    session.rows[-2]["compactMetadata"] = {"trigger": "manual", "preservedSegment": segment}
    assert session.rows[-2]["uuid"] == boundary
    session.user("go on")
    session.answer("m4", "gone on")
    first, second = read(write(tmp_path / "s.jsonl", session.rows))

    assert told(first)[-2:] == ["u:question 2", "a:answer 2"]
    assert told(second) == ["u:Summary.", "u:question 2", "a:answer 2", "u:go on", "a:gone on"]
    assert usages(second) == ["copied", (10, 0, 0, 5)]


def test_what_no_model_was_shown_is_left_out(tmp_path: Path) -> None:
    session = Claude()
    session.rows.append({"type": "summary", "summary": "Of another session", "leafUuid": "x"})
    session.rows.append({"type": "file-history-snapshot", "messageId": "x", "snapshot": {}, "isSnapshotUpdate": False})
    session.user("Caveat: typed by the user", isMeta=True)
    session.user("hello")
    session.add("progress", data={"type": "hook_progress"})
    session.add("attachment", attachment={"type": "hook_success", "content": "ok"})
    session.user("shown in the transcript", isVisibleInTranscriptOnly=True)
    session.answer("e1", "API Error: 529", isApiErrorMessage=True, message={"model": "<synthetic>"})
    session.answer("e2", "No response requested.", message={"model": "<synthetic>"})
    session.answer("m1", "hi")
    session.rows.append({"type": "queue-operation", "operation": "enqueue", "content": "later", "sessionId": "s1"})
    notes = Notes()

    assert of(session, tmp_path, notes) == [["u:Caveat: typed by the user", "u:hello", "a:hi"]]
    assert notes == {}


def test_a_message_that_was_queued_while_the_model_worked_is_read(tmp_path: Path) -> None:
    session = Claude()
    session.user("look")
    session.answer("m1", use("c1"), stop="tool_use")
    session.result("c1")
    queued = {"type": "queued_command", "prompt": "in the other one", "commandMode": "prompt"}
    session.add("attachment", attachment=queued)
    session.answer("m2", "looked")

    assert of(session, tmp_path) == [["u:look", "a: ?Read", "t: !seen", "u:in the other one", "a:looked"]]


def test_a_call_that_was_interrupted_has_a_result_in_the_next_request(tmp_path: Path) -> None:
    session = Claude()
    session.user("look")
    session.answer("m1", use("c1"), use("c2"), stop="tool_use")
    session.result("c1")
    session.user([{"type": "text", "text": "[Request interrupted by user for tool use]"}])
    session.user("not there")
    session.answer("m2", "where, then?")
    (recording,) = read(write(tmp_path / "s.jsonl", session.rows))

    messages = conversation_of(recording).messages
    calls = [call.id for message in messages for call in message.calls]
    assert calls == [each.call_id for message in messages for each in message.results] == ["c1", "c2"]


def test_a_call_at_the_end_waits_for_its_result(tmp_path: Path) -> None:
    session = Claude()
    session.user("look")
    session.answer("m1", use("c1"), stop="tool_use")

    assert of(session, tmp_path) == [["u:look", "a: ?Read"]]


def test_images_and_results_with_text_beside_are_read(tmp_path: Path) -> None:
    session = Claude()
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    session.user([image, {"type": "text", "text": "what is it?"}])
    session.answer("m1", use("c1"), stop="tool_use")
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [image], "is_error": False}
    session.user([result, {"type": "text", "text": "and hurry"}])
    session.answer("m2", "a dot")
    (recording,) = read(write(tmp_path / "s.jsonl", session.rows))

    assert [message.role for message in conversation_of(recording).messages] == [
        *("user", "assistant", "tool", "user", "assistant")
    ]


def test_a_resumed_session_that_repeats_the_lines_in_a_second_file_is_one_conversation(tmp_path: Path) -> None:
    first = small()
    second = Claude("s2")
    second.rows = [{**row, "sessionId": "s2"} for row in first.rows]
    second.last = first.last
    second.user("question 2")
    second.answer("m3", "answer 2")
    recordings, count = joined(write(tmp_path / "1.jsonl", first.rows), write(tmp_path / "2.jsonl", second.rows))

    assert count == 1
    assert [usages(each) for each in recordings] == [[(143, 100, 40, 7), (163, 140, 20, 9), (10, 0, 0, 5)]]


def test_two_sessions_resumed_from_one_count_what_they_share_once(tmp_path: Path) -> None:
    sessions = [small("a"), small("b")]
    for session in sessions:
        session.user(f"question of {session.session}")
        session.answer(f"m3{session.session}", "answer 2")
    recordings, count = joined(*(write(tmp_path / f"{at}.jsonl", each.rows) for at, each in enumerate(sessions)))

    assert count == 0
    assert [usages(each) for each in recordings] == [
        [(143, 100, 40, 7), (163, 140, 20, 9), (10, 0, 0, 5)],
        ["copied", "copied", (10, 0, 0, 5)],
    ]


def test_lines_of_unknown_types_are_passed_over_and_counted(tmp_path: Path) -> None:
    session = Claude()
    session.user("hello", novelty={"deep": [1]})
    session.add("dream", content="of sheep")
    session.add("dream", content="of more")
    session.answer("m1", {"type": "hologram", "data": "?"}, "hi")
    notes = Notes()
    (recording,) = read(write(tmp_path / "s.jsonl", session.rows), notes)

    assert told(recording) == ["u:hello", "a:hi"]
    assert notes == {"lines of Claude Code of type 'dream'": 2}


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (None, "message: expected an object, got null"),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "user", "content": [{"type": "tool_result", "content": "x"}]}, "tool_use_id"),
        ({"role": "user", "content": ["text"]}, "content[0]"),
    ],
)
def test_a_line_that_cannot_be_read_is_named_and_the_rest_goes_on(tmp_path: Path, message: object, why: str) -> None:
    session = small()
    session.add("user", message=message)
    session.answer("m3", "answer 2")
    path = write(tmp_path / "s.jsonl", session.rows)

    (error,) = broken(path)
    assert error.startswith("5: ")
    assert why in error


def test_hostile_lines_do_no_harm(tmp_path: Path) -> None:
    session = small()
    rows = [json.dumps(row) for row in session.rows]
    deep = '{"type":"user","uuid":"d","message":{"role":"user","content":%s}}' % ("[" * 100_000 + "]" * 100_000)
    nan = '{"type":"user","uuid":"n","message":{"role":"user","content":"x","at":NaN}}'
    half = '{"type":"user","uuid":"h","parentUuid":"s1-4","message":{"role":"user","content":"\\ud83d"}}'
    own = '{"type":"user","uuid":"o","parentUuid":"o","message":{"role":"user","content":"me"}}'
    numbers = '{"type":"assistant","uuid":"w","parentUuid":"h","message":{"role":"assistant","content":"ok",'
    numbers += '"id":7,"model":8,"usage":{"input_tokens":-5,"output_tokens":1e99,"cache_read_input_tokens":true}}}'
    path = tmp_path / "s.jsonl"
    path.write_text("\n".join([*rows, deep, nan, half, own, numbers]))

    assert [error.split(":")[0] for error in broken(path)] == ["5", "6"]


def test_half_an_emoji_is_replaced(tmp_path: Path) -> None:
    session = small()
    session.user("a \ud83d")
    session.answer("m3", {"type": "thinking", "thinking": "half \ude00", "signature": "s"}, "ok \ude00")

    assert of(session, tmp_path)[0][-2:] == ["u:a \ufffd", "a:ok \ufffd"]


def test_a_gzipped_session_is_read(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl.gz"
    path.write_bytes(gzip.compress("".join(f"{json.dumps(row)}\n" for row in small().rows).encode()))

    assert len(read(path)) == 1


def whole() -> Claude:
    """A session with all that a session can have."""
    session = small()
    back = session.last
    session.user("this way")
    session.answer("m3", "wrong", use("c3"), stop="tool_use")
    session.user("that way", after=back)
    session.answer("m4", use("c4"), stop=None)
    session.answer("m4", use("c5"), stop="tool_use")
    session.result("c5")
    session.result("c4")
    session.answer("m5", "right")
    session.add("system", after=None, subtype="compact_boundary")
    session.user("Summary.", isCompactSummary=True)
    session.beside = {"isSidechain": True, "agentId": "a1"}
    session.user("look there", after=None)
    session.answer("n1", "there")
    return session


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(whole().rows)))
def test_every_beginning_of_a_session_reads(tmp_path_factory: pytest.TempPathFactory, lines: int) -> None:
    path = write(tmp_path_factory.mktemp("cut") / "s.jsonl", whole().rows[:lines])
    if not lines:
        assert broken(path) == ["1: holds nothing"]
        return
    answers = {row["message"]["id"] for row in whole().rows[:lines] if row["type"] == "assistant"}
    recordings = read(path)

    assert sum(call is not None for each in recordings for call in each.calls or ()) == len(answers)
    for each in recordings:
        found = [message for message in conversation_of(each).messages if message.role == "assistant"]
        assert len(found) == len(each.calls or ())


def streamed(session: Claude, side: str | None = None) -> list[dict[str, object]]:
    """The lines as ``claude -p --output-format stream-json`` writes them."""
    left_out = ("parentUuid", "isSidechain", "sessionId", "version")
    beside = {"session_id": session.session, "parent_tool_use_id": side}
    return [{**{name: row[name] for name in row if name not in left_out}, **beside} for row in session.rows]


def test_a_stream_is_one_conversation_and_a_sub_agent_in_it_another(tmp_path: Path) -> None:
    agent = Claude("s1")
    agent.user("look into it")
    agent.answer("m9", "It is so.")
    for number, row in enumerate(agent.rows):
        row["uuid"] = f"agent-{number}"
    first, *rest = streamed(small())
    begin: dict[str, object] = {"type": "system", "subtype": "init", "session_id": "s1", "tools": []}
    end: dict[str, object] = {"type": "result", "subtype": "success", "result": "answer 1", "session_id": "s1"}
    notes = Notes()
    rows = [begin, first, *rest[:1], *streamed(agent, "c1"), *rest[1:], end]
    other, main = read(write(tmp_path / "s.jsonl", rows), notes)

    assert told(main) == ["u:question 1", "a: ?Read", "t: !found 1", "a:answer 1"]
    assert told(other) == ["u:look into it", "a:It is so."]
    assert usages(main) == [(143, 100, 40, 7), (163, 140, 20, 9)]
    assert not notes
