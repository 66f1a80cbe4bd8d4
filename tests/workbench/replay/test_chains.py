"""Rows of OpenAI Responses that name the response before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chatstack.workbench.replay.reading.forms import conversation_of
from tests.workbench.replay.session_files import Row, broken, joined, read, told, usages, write


def said(text: str) -> Row:
    return {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def row(called: str, given: Any, *output: Row, after: str | None = None, tokens: int = 100, **fields: Any) -> Row:
    request: Row = {"model": "gpt-5", "input": given, "instructions": f"Of {called}.", **fields}
    if after is not None:
        request["previous_response_id"] = after
    details = {"cached_tokens": tokens // 2}
    usage = {"input_tokens": tokens, "input_tokens_details": details, "output_tokens": 7}
    response = {"id": called, "object": "response", "model": "gpt-5-2025", "output": list(output), "usage": usage}
    return {"request": request, "response": response}


CALL = {
    "type": "function_call",
    "call_id": "c1",
    "name": "look",
    "arguments": "{}",
    "id": "fc_1",
}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "found"}
CHAIN = [
    row("r1", "question 1", CALL),
    row("r2", [RESULT], said("answer 1"), after="r1", tokens=140),
    row("r3", "question 2", said("answer 2"), after="r2", tokens=180),
]


def test_rows_that_name_the_one_before_are_one_conversation_with_their_usage(tmp_path: Path) -> None:
    (recording,) = read(write(tmp_path / "log.jsonl", CHAIN))

    assert told(recording) == ["u:question 1", "a: ?look", "t: !found", "a:answer 1", "u:question 2", "a:answer 2"]
    assert usages(recording) == [(100, 50, 0, 7), (140, 70, 0, 7), (180, 90, 0, 7)]
    assert (recording.form, recording.model, recording.id) == ("responses", "gpt-5", "r3")
    assert conversation_of(recording).options.instructions == "Of r3."


def test_a_question_whose_type_is_null_is_one(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "question 1", "type": None}]
    (recording,) = read(write(tmp_path / "log.jsonl", [row("r1", asked, CALL), *CHAIN[1:]]))

    assert told(recording)[:2] == ["u:question 1", "a: ?look"]
    assert usages(recording) == [(100, 50, 0, 7), (140, 70, 0, 7), (180, 90, 0, 7)]


def test_a_response_that_two_requests_name_begins_two_conversations(tmp_path: Path) -> None:
    again = row("r4", "another question", said("another answer"), after="r2", tokens=170)
    first, second = read(write(tmp_path / "log.jsonl", [*CHAIN, again]))

    assert told(first)[-2:] == ["u:question 2", "a:answer 2"]
    assert told(second)[-2:] == ["u:another question", "a:another answer"]
    assert usages(second) == ["copied", "copied", (170, 85, 0, 7)]


def test_several_conversations_may_be_logged_at_once(tmp_path: Path) -> None:
    others = [row("q1", "hello", said("hi")), row("q2", "bye", said("see you"), after="q1")]
    mixed = [CHAIN[0], others[0], CHAIN[1], others[1], CHAIN[2]]

    assert [len(told(each)) for each in read(write(tmp_path / "log.jsonl", mixed))] == [4, 6]


def test_a_response_that_only_the_server_has_is_named(tmp_path: Path) -> None:
    (error,) = broken(write(tmp_path / "log.jsonl", CHAIN[1:2]))

    assert error.startswith("1: previous_response_id: the response before is in no earlier row of this file")


def test_a_request_that_failed_ends_nothing(tmp_path: Path) -> None:
    failed = {**row("x", "again", after="r3"), "response": {"error": {"message": "overloaded"}}}
    (recording,) = read(write(tmp_path / "log.jsonl", [*CHAIN, failed]))

    assert len(told(recording)) == 6


@pytest.mark.parametrize("store", [True, False])
def test_rows_that_repeat_all_before_are_joined_with_the_usage_of_each(tmp_path: Path, store: bool) -> None:
    items: list[Row] = [{"role": "user", "content": "question 1"}]
    rows = []
    for number in (1, 2, 3):
        rows.append(row(f"r{number}", list(items), said(f"answer {number}"), tokens=100 * number, store=store))
        rows[-1]["request"]["instructions"] = "Be brief."
        items += [said(f"answer {number}"), {"role": "user", "content": f"question {number + 1}"}]
    (recording,), count = joined(write(tmp_path / "log.jsonl", rows))

    assert count == 2
    assert usages(recording) == [(100, 50, 0, 7), (200, 100, 0, 7), (300, 150, 0, 7)]


def test_every_beginning_of_a_log_reads(tmp_path: Path) -> None:
    for lines in range(1, len(CHAIN) + 1):
        (recording,) = read(write(tmp_path / "log.jsonl", CHAIN[:lines]))
        assert len(usages(recording)) == lines


def chat_rows() -> list[Row]:
    messages: list[Row] = [{"role": "user", "content": "question 1"}]
    rows = []
    for number in (1, 2, 3):
        answer = {"role": "assistant", "content": f"answer {number}"}
        usage = {"prompt_tokens": 10 * number, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
        response = {"choices": [{"message": answer}], "usage": usage}
        rows.append({"request": {"model": "gpt-5", "messages": list(messages)}, "response": response})
        messages += [answer, {"role": "user", "content": f"question {number + 1}"}]
    return rows


def anthropic_rows() -> list[Row]:
    rows = chat_rows()
    for number, each in enumerate(rows, 1):
        content = [{"type": "text", "text": f"answer {number}"}]
        usage = {"input_tokens": 1, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 10 * number - 5}
        message = {"role": "assistant", "content": content, "stop_reason": "end_turn"}
        each["response"] = {**message, "usage": {**usage, "output_tokens": 2}}
        each["request"]["system"] = "Be brief."
    return rows


@pytest.mark.parametrize("form", ["chat", "messages"])
def test_usage_of_joined_lines_of_a_log_goes_to_their_calls(tmp_path: Path, form: str) -> None:
    rows, written = (chat_rows(), [0, 0, 0]) if form == "chat" else (anthropic_rows(), [5, 15, 25])
    (recording,), count = joined(write(tmp_path / "log.jsonl", rows[::-1]))

    assert count == 2
    assert usages(recording) == [(10 * nth, 4, written[nth - 1], 2) for nth in (1, 2, 3)]


def test_a_call_whose_line_is_not_there_has_no_usage(tmp_path: Path) -> None:
    (recording,), _ = joined(write(tmp_path / "log.jsonl", [chat_rows()[0], chat_rows()[2]]))

    assert usages(recording) == [(10, 4, 0, 2), "unknown", (30, 4, 0, 2)]
