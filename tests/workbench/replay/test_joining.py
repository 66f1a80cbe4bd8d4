"""Request logs: a line that is the beginning of another is the same conversation."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chatstack.cli import main
from chatstack.workbench.replay.reading.joining import JoinedRecordings
from chatstack.workbench.replay.reading.recordings import BrokenLine, Recording
from chatstack.workbench.replay.reading.sources import sources_from
from tests.workbench.replay.conversations import assistant, conversation, data_file, result, talk, user, write_lines

Wire = dict[str, object]


def requests_of(whole: Wire) -> list[Wire]:
    """What a proxy writes down of a conversation: the body of the request for each of its answers."""
    messages: Any = whole["messages"]
    answered = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    return [{"model": whole["model"], "messages": messages[:at]} for at in answered]


def twelve() -> list[Wire]:
    """They all begin alike: with the same system message."""
    talks = []
    for number in range(12):
        whole = talk(3 + number % 4)
        messages: Any = whole["messages"]
        messages[1] = user(f"the task of talk {number}")
        talks.append(whole)
    return talks


def read(*paths: Path) -> tuple[list[Recording], int]:
    with sources_from(paths) as sources:
        recordings = JoinedRecordings(sources)
        items = list(recordings.read())
        assert items == list(recordings.read())
    assert not any(isinstance(item, BrokenLine) for item in items), items
    return [item for item in items if isinstance(item, Recording)], recordings.joined


def lengths(*lines: Wire | list[Any], folder: Path) -> list[int]:
    """How many messages each conversation of a log has that is not the beginning of another."""
    path = write_lines(folder / "log.jsonl", *(json.dumps(line) for line in lines))
    bodies = [recording.body for recording in read(path)[0]]
    return [len(body.get("messages", body.get("input"))) for body in bodies]  # type: ignore[arg-type]


def reported(target: Path, *arguments: str | Path) -> dict[str, Any]:
    command = ["replay", *map(str, arguments), "--window", "300", "--policy", "guard", "--json", str(target)]
    assert main(command) == 0
    report: dict[str, Any] = json.loads(target.read_text())
    for each in report["policies"]:
        del each["cpu_ms_per_call"]
    return report


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "3"])
def test_requests_logged_in_any_order_over_several_files_are_replayed_as_whole_conversations(
    tmp_path: Path, jobs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line for whole in twelve() for line in requests_of(whole)]
    whole = write_lines(tmp_path / "whole.jsonl", *(requests_of(each)[-1] for each in twelve()))
    random.Random(1).shuffle(lines)
    logs = [write_lines(tmp_path / f"log{at}.jsonl", *lines[at::3]) for at in range(3)]

    expected = reported(tmp_path / "whole.json", whole)
    assert "joined" not in capsys.readouterr().out
    found = reported(tmp_path / "logs.json", *logs, "--jobs", jobs)

    assert (expected["joined"], found["joined"]) == (0, len(lines) - 12)
    assert found["conversations"] == expected["conversations"] == 12
    for row in (*found["policies"], *expected["policies"]):
        row["dearest"] = row["dearest"]["cost_relative"]  # its number and id are those of its line
    assert found["policies"] == expected["policies"]
    assert f"{len(lines) - 12} recorded lines are the beginning of another" in capsys.readouterr().out
    assert any(f"{len(lines) - 12} of the recorded lines" in sentence for sentence in found["assumptions"])


def test_the_page_says_how_many_lines_were_joined(tmp_path: Path) -> None:
    log, page = write_lines(tmp_path / "log.jsonl", *requests_of(talk(4))), tmp_path / "page.html"

    reported(tmp_path / "log.json", log, "--html", page)

    assert "<dt>lines joined</dt><dd>7 <small>" in page.read_text()


def test_a_line_that_comes_again_is_read_once(tmp_path: Path) -> None:
    first, second, third = requests_of(talk(2))[:3]

    assert lengths(first, second, second, third, first, third, folder=tmp_path) == [6]


def test_conversations_that_only_begin_alike_stay_apart(tmp_path: Path) -> None:
    common = [user("hello"), assistant("hi")]
    ends = [[*common, user(text), assistant("fine")] for text in ("one", "two")]

    assert lengths(*(conversation(*each) for each in (common, *ends)), folder=tmp_path) == [4, 4]


def test_other_instructions_make_it_another_conversation(tmp_path: Path) -> None:
    short, long = [user("hello")], [user("hello"), {"role": "assistant", "content": [output("hi")]}, user("go on")]
    brief: Wire = {"instructions": "Be brief.", "input": short}

    assert lengths(brief, {"instructions": "Be long.", "input": long}, folder=tmp_path) == [1, 3]
    assert lengths(brief, {"instructions": "Be brief.", "input": long}, folder=tmp_path) == [3]


def test_an_answer_is_the_same_however_the_caller_sends_it_back(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at": "it", "n": 1}'}}
    again = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"n":1,"at":"it"}'}}
    said: Wire = {"role": "assistant", "content": " I look.\n", "tool_calls": [call], "refusal": None}
    sent: Wire = {"role": "assistant", "content": [{"type": "text", "text": "I look."}], "tool_calls": [again]}
    before: list[Wire] = [user("q"), said, result("c")]
    after: list[Wire] = [user("q"), sent, result("c"), assistant("a"), user("and?")]

    assert lengths(conversation(*before), conversation(*after), folder=tmp_path) == [5]


def test_a_cache_mark_that_moves_with_the_conversation_changes_nothing(tmp_path: Path) -> None:
    def asked(*texts: str) -> Wire:
        blocks = [{"type": "text", "text": text} for text in texts]
        messages: list[Wire] = [
            {"role": ("user", "assistant")[at % 2], "content": [block]} for at, block in enumerate(blocks)
        ]
        messages[-1]["content"] = [{**blocks[-1], "cache_control": {"type": "ephemeral"}}]
        return {"model": "claude-sonnet-4-5", "system": "Be brief.", "messages": messages}

    assert lengths(asked("q"), asked("q", "a", "r"), asked("q", "a", "r", "b", "s"), folder=tmp_path) == [5]


def test_pictures_count(tmp_path: Path) -> None:
    def asked(url: str, *more: Wire) -> Wire:
        return conversation({"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}, *more)

    log = asked("https://example.org/a"), asked("https://example.org/b", assistant("a dog"))
    assert lengths(*log, folder=tmp_path) == [1, 2]


def output(text: str) -> Wire:
    return {"type": "output_text", "text": text}


CHAT = {"model": "gpt-4o", "messages": [user("q")]}
CHAT_ANSWER = {"id": "r", "choices": [{"index": 0, "message": {**assistant("a"), "refusal": None}}], "usage": {}}
CLAUDE = {"model": "claude-sonnet-4-5", "max_tokens": 9, "system": "Be brief.", "messages": [user("q")]}
CLAUDE_ANSWER = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "text", "text": "a"}],
    "stop_reason": "end_turn",
}
RESPONSES = {"model": "gpt-5", "instructions": "Be brief.", "input": "q"}
MESSAGE = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [output("a")]}
RESPONSES_ANSWER = {"object": "response", "output": [{"type": "reasoning", "id": "t", "summary": []}, MESSAGE]}
WIRES = [
    pytest.param(CHAT, CHAT_ANSWER, "chat", 2, id="chat"),
    pytest.param(CLAUDE, CLAUDE_ANSWER, "messages", 2, id="anthropic"),
    pytest.param(RESPONSES, RESPONSES_ANSWER, "responses", 3, id="responses"),
]


def rows_of(request: Wire, response: Wire) -> Sequence[Wire]:
    """The same exchange, as several loggers write it."""
    return (
        {"request": request, "response": response},
        {"id": 7, "time": "2026-01-01", "status": 200, "url": "/v1", "request": request, "response": response},
        {"request": {"method": "POST", "headers": {}, "body": request}, "response": {"status": 200, "body": response}},
        {"request": {"url": "/v1", "body": json.dumps(request)}, "response": {"body": json.dumps(response)}},
        {"request": json.dumps(request), "response": json.dumps(response)},
    )


@pytest.mark.parametrize(("request_body", "response_body", "form", "length"), WIRES)
def test_a_row_of_request_and_response_is_the_conversation_with_its_answer(
    tmp_path: Path, request_body: Wire, response_body: Wire, form: str, length: int
) -> None:
    for row in rows_of(request_body, response_body):
        (recording,), joined = read(write_lines(tmp_path / "rows.jsonl", row))

        items: Any = recording.body.get("messages", recording.body.get("input"))
        assert (recording.form, recording.model, len(items), joined) == (form, request_body["model"], length, 0)


@pytest.mark.parametrize(("request_body", "response_body", "form", "length"), WIRES)
def test_the_next_request_goes_on_from_the_answer_of_a_row(
    tmp_path: Path, request_body: Wire, response_body: Wire, form: str, length: int
) -> None:
    path = write_lines(tmp_path / "rows.jsonl", {"request": request_body, "response": response_body})
    (first,), _ = read(path)
    name = "input" if form == "responses" else "messages"
    items: Any = first.body[name]
    more = {**request_body, name: [*(item for item in items if item.get("type") != "reasoning"), user("and?")]}
    pairs: list[Wire] = [{"request": each, "response": response_body} for each in (request_body, more)]
    write_lines(path, *pairs)

    (recording,), joined = read(path)

    assert (recording.line, joined) == (2, 1)


@pytest.mark.parametrize("response", [None, {"error": {"message": "overloaded"}}, "data: {...}", {"choices": []}, 3])
def test_a_row_without_an_answer_is_the_request(tmp_path: Path, response: object) -> None:
    ((recording,), _) = read(write_lines(tmp_path / "rows.jsonl", {"request": CHAT, "response": response}))

    assert recording.body == {"messages": [user("q")]}


def test_a_body_in_text_may_hold_a_lone_surrogate(tmp_path: Path) -> None:
    body = json.dumps({"messages": [user("cut within \ud83d")]})
    for text in (body, body.replace("\\ud83d", "\ud83d")):
        ((recording,), _) = read(write_lines(tmp_path / "rows.jsonl", {"request": text, "response": "\ud83d"}))

        assert recording.body == {"messages": [user("cut within \ud83d")]}


@pytest.mark.parametrize(
    "request_body", [None, 3, "{broken", "[" * 100_000, {"url": "/v1"}, {"body": {"body": {"body": {"a": 1}}}}]
)
def test_a_row_without_a_request_body_is_named(tmp_path: Path, request_body: object) -> None:
    path = write_lines(tmp_path / "rows.jsonl", {"request": request_body, "response": CHAT_ANSWER})
    with sources_from([path]) as sources:
        (broken,) = JoinedRecordings(sources).read()

    assert "found an object with 'request', 'response'" in str(broken)


@pytest.mark.data
def test_no_recorded_conversation_is_the_beginning_of_another() -> None:
    paths = [data_file(f"{name}.dev.jsonl.gz") for name in ("tau_airline_gpt4o", "tau2_activegraph")]

    recordings, joined = read(*paths)

    assert (len(recordings), joined) == (116, 0)
