"""Trajectories in ATIF."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from chatstack.workbench.replay.reading.forms import conversation_of
from tests.workbench.replay.session_files import Row, broken, read, told, usages

TOOL = {"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}}


def trajectory(*steps: Row, **fields: Any) -> Row:
    agent = {"name": "harness", "version": "1", "model_name": "gpt-5", "tool_definitions": [TOOL]}
    numbered = [{"step_id": nth, **step} for nth, step in enumerate(steps, 1)]
    return {"schema_version": "ATIF-v1.7", "session_id": "s1", "agent": agent, "steps": numbered, **fields}


def user(text: Any) -> Row:
    return {"source": "user", "message": text}


def agent(text: str, *calls: str, results: list[Row] | None = None, **fields: Any) -> Row:
    step: Row = {"source": "agent", "message": text, **fields}
    if calls:
        step["tool_calls"] = [
            {"tool_call_id": each, "function_name": "shell", "arguments": {"cmd": "ls"}} for each in calls
        ]
    if results is not None:
        step["observation"] = {"results": results}
    return step


def metrics(given: int, cached: int, said: int, **extra: int) -> Row:
    return {"prompt_tokens": given, "cached_tokens": cached, "completion_tokens": said, "extra": extra}


SMALL = trajectory(
    {"source": "system", "message": "Be brief."},
    user("look"),
    agent("I look.", "c1", results=[{"source_call_id": "c1", "content": "found"}], metrics=metrics(100, 60, 10)),
    agent("Done.", metrics=metrics(150, 100, 5, cache_creation_input_tokens=20), model_name="gpt-5-mini"),
)


def write(folder: Path, document: object) -> Path:
    path = folder / "trajectory.json"
    path.write_text(json.dumps(document, indent=2))
    return path


@pytest.mark.parametrize("form", ["pretty", "line", "gzip", "list"])
def test_a_trajectory_is_a_conversation_with_the_usage_of_each_call(tmp_path: Path, form: str) -> None:
    path = write(tmp_path, [SMALL] if form == "list" else SMALL)
    if form == "line":
        path = tmp_path / "t.jsonl"
        path.write_text(json.dumps(SMALL) + "\n")
    if form == "gzip":
        path = tmp_path / "t.json.gz"
        path.write_bytes(gzip.compress(json.dumps(SMALL, indent=1).encode()))
    (recording,) = read(path)

    assert told(recording) == ["s:Be brief.", "u:look", "a:I look. ?shell", "t: !found", "a:Done."]
    assert usages(recording) == [(100, 60, 0, 10), (150, 100, 20, 5)]
    assert (recording.form, recording.model, recording.id) == ("chat", "gpt-5", "s1")
    assert [call and (call.model, call.tells_writes) for call in recording.calls or ()] == [
        ("gpt-5", False),
        ("gpt-5-mini", True),
    ]
    assert len(conversation_of(recording).options.tools) == 1


def test_copied_steps_and_steps_without_a_model_are_context_and_no_calls(tmp_path: Path) -> None:
    steps = [
        user("look"),
        agent("Copied.", is_copied_context=True, metrics=metrics(99, 0, 9)),
        agent("By rule.", llm_call_count=0),
        agent("Several.", llm_call_count=3, metrics=metrics(300, 0, 30)),
        agent("One.", llm_call_count=1, metrics=metrics(50, 0, 5)),
    ]
    (recording,) = read(write(tmp_path, trajectory(*steps)))

    assert usages(recording) == ["copied", "copied", "unknown", (50, 0, 0, 5)]


def test_a_trajectory_of_copies_alone_is_no_conversation(tmp_path: Path) -> None:
    copied = trajectory(user("look"), agent("Copied.", is_copied_context=True))

    assert read(write(tmp_path, [copied, SMALL]))[0].id == "s1"
    assert len(read(write(tmp_path, [copied, SMALL]))) == 1


def test_results_find_their_calls_and_what_is_observed_without_one_is_the_users(tmp_path: Path) -> None:
    steps = [
        user("go"),
        agent("", "a", results=[{"content": "alone"}]),
        agent("", "b", "c", results=[{"source_call_id": "c", "content": "2"}, {"source_call_id": "b", "content": "1"}]),
        agent("", "d", "e", results=[{"content": "in"}, {"content": "order"}]),
        agent("", "f", "g", results=[{"content": "whose?"}]),
        agent("no call", results=[{"content": "the screen"}]),
        agent("", "h"),
    ]
    (recording,) = read(write(tmp_path, trajectory(*steps)))
    messages = conversation_of(recording).messages

    results = [(each.call_id, each.output) for message in messages for each in message.results]
    missing = "The recording holds no result of this call."
    assert results == [
        *(("a", "alone"), ("c", "2"), ("b", "1"), ("d", "in"), ("e", "order")),
        *(("f", missing), ("g", missing)),
    ]
    assert [message.text for message in messages if message.role == "user"] == ["go", "whose?", "the screen"]


def test_pictures_count_as_pictures_wherever_they_stand(tmp_path: Path) -> None:
    picture = {"type": "image", "source": {"media_type": "image/png", "path": "images/1.png"}}
    text = {"type": "text", "text": "see"}
    steps = [user([text, picture]), agent("", "a", results=[{"source_call_id": "a", "content": [text, picture]}])]
    (recording,) = read(write(tmp_path, trajectory(*steps, agent("Seen."))))

    roles = [message.role for message in conversation_of(recording).messages]
    assert roles == ["user", "assistant", "tool", "assistant"]


def test_embedded_trajectories_are_conversations_of_their_own(tmp_path: Path) -> None:
    inner = trajectory(user("inner"), agent("Inner."), trajectory_id="t2")
    outer = trajectory(user("outer"), agent("Outer."), trajectory_id="t1", subagent_trajectories=[inner])

    assert [each.id for each in read(write(tmp_path, outer))] == ["t1", "t2"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"steps": None}, "steps: expected a list"),
        ({"steps": [5]}, "steps[0]: expected an object"),
        ({"steps": [{"source": "dog", "message": "wow"}]}, "steps[0].source: expected 'system', 'user' or 'agent'"),
        ({"steps": [user(5)]}, "steps[0].message: expected text or a list"),
        ({"steps": [user([5])]}, "steps[0].message[0]: expected an object"),
        ({"steps": [agent("", tool_calls=5)]}, "steps[0].tool_calls: expected a list"),
        ({"steps": [agent("", tool_calls=[{}])]}, "steps[0].tool_calls[0].function_name: expected text"),
        ({"steps": [agent("", observation={})]}, "steps[0].observation.results: expected a list"),
        ({"agent": 5}, "agent: expected an object, got int"),
        ({"subagent_trajectories": [5]}, "subagent_trajectories[0]: expected an object"),
    ],
)
def test_what_is_malformed_is_named(tmp_path: Path, change: Row, why: str) -> None:
    (error,) = broken(write(tmp_path, {**SMALL, **change}))

    assert error.endswith(why)


def test_trajectories_within_one_another_without_end_do_no_harm(tmp_path: Path) -> None:
    document = trajectory(user("look"), agent("Done."))
    for _ in range(60):
        document = trajectory(user("look"), agent("Done."), subagent_trajectories=[document])

    (error,) = broken(write(tmp_path, document))
    assert error.endswith("subagent_trajectories: nested too deeply")


def test_a_trajectory_of_a_future_version_with_unknown_fields_reads(tmp_path: Path) -> None:
    document = {**SMALL, "schema_version": "ATIF-v9.1", "novelty": 1}
    document["steps"] = [{**step, "novelty": {}} for step in SMALL["steps"]]

    assert len(told(read(write(tmp_path, document))[0])) == 5
