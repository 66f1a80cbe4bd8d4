"""Recorded usage beside what is computed."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from chatstack.cli import main
from chatstack.tokens.prices import price_of
from chatstack.values.responses import Usage
from chatstack.workbench.replay.measures.recorded import Computed, Recorded
from chatstack.workbench.replay.reading.usages import RecordedCall, recorded_call
from tests.workbench.replay.conversations import assistant, user, write_lines
from tests.workbench.replay.session_files import Claude, Rollout, claude_usage, use, write


def session() -> Claude:
    made = Claude()
    words = " ".join(f"word{number}" for number in range(3_000))
    made.user(f"Read it all: {words}")
    made.answer("m1", use("c1"), usage=claude_usage(3, 0, 9_000, 40), stop="tool_use")
    made.result("c1", words)
    made.answer("m2", "Read.", usage=claude_usage(3, 9_000, 9_000, 2, hour=9_000), stop=None)
    made.user("And now?")
    made.answer("m3", "Nothing.")
    made.rows[-1]["message"]["usage"] = None
    return made


def reported(folder: Path, *arguments: str | Path) -> dict[str, Any]:
    target = folder / "report.json"
    command = ["replay", *map(str, arguments), "--window", "200000", "--policy", "nothing", "--json", str(target)]
    assert main(command) == 0
    report: dict[str, Any] = json.loads(target.read_text())
    return report


def test_recorded_usage_is_told_beside_what_is_computed_for_the_same_calls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = write(tmp_path / "s.jsonl", session().rows), tmp_path / "page.html"
    report = reported(tmp_path, path, "--html", page)
    recorded = report["recorded"]
    price = price_of("claude-sonnet-4-5")
    assert price is not None
    assert price.write is not None
    assert price.write_for_an_hour is not None

    assert report["calls"] == 3
    assert (recorded["calls"], recorded["calls_without_usage"]) == (2, 1)
    assert (recorded["input_tokens"], recorded["output_tokens"]) == (27_006, 42)
    assert (recorded["cache_read_tokens"], recorded["cache_write_tokens"]) == (9_000, 18_000)
    usd = 9_000 * (price.read.base + price.write.base + price.write_for_an_hour.base) + 6 * price.input.base
    assert recorded["input_usd"] == pytest.approx(float(usd / 1_000_000), abs=1e-6)
    # The two calls of which the usage is known: of the second, all of the first is read from the cache.
    nothing = report["policies"][0]
    assert nothing["tokens_sent"] > recorded["computed_tokens"] > nothing["peak_tokens"]
    assert recorded["computed_tokens_from_cache"] + recorded["computed_tokens_to_cache"] == recorded["computed_tokens"]
    assert 0 < recorded["computed_usd"] < nothing["cost_usd"]
    assert (recorded["partial_output"], recorded["without_cache_writes"]) == (1, 0)
    said = " ".join(capsys.readouterr().err.split())
    assert all(sentence in said for sentence in recorded["told"])
    assert all(sentence in page.read_text() for sentence in recorded["told"])
    assert "The record is partial: 1 without recorded usage; 1 with an output" in said


def test_nothing_is_told_where_nothing_was_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]))
    report = reported(tmp_path, path)

    assert (report["recorded"], report["left_out"]) == (None, {})
    assert "ecorded usage" not in capsys.readouterr().err


def test_what_was_left_out_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = session()
    for _ in range(3):
        made.add("\x1b[31mdream", content="of sheep")
    report = reported(tmp_path, write(tmp_path / "s.jsonl", made.rows))
    said = capsys.readouterr().err

    assert list(report["left_out"].values()) == [3]
    assert said.count("dream") == 1
    assert "\x1b[31m" not in said


def test_calls_of_a_context_that_was_copied_are_not_replayed_again(tmp_path: Path) -> None:
    made = Claude()
    made.user("question 1")
    back = made.answer("m1", "answer 1")
    for number in (2, 3, 4):
        made.user(f"question {number}", after=back)
        made.answer(f"m{number}", f"answer {number}")
    report = reported(tmp_path, write(tmp_path / "s.jsonl", made.rows))

    assert (report["conversations"], report["calls"], report["recorded"]["calls"]) == (3, 4, 4)
    assert report["calls_at"] == [3, 1]


def logged(question: str, answer: str, *before: dict[str, object], id: str | None = None) -> dict[str, object]:
    """A row of a log, with 1,000 tokens of input."""
    response = {
        "id": id,
        "choices": [{"message": assistant(answer)}],
        "usage": {"prompt_tokens": 1_000, "completion_tokens": 10},
    }
    return {"request": {"model": "gpt-4o", "messages": [*before, user(question)]}, "response": response}


def chained(question: str, answer: str) -> dict[str, Any]:
    """A row of the Responses API, with 1,000 tokens of input."""
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": answer}]}
    usage = {"input_tokens": 1_000, "output_tokens": 10}
    response = {"id": "r1", "object": "response", "model": "gpt-5", "output": [said], "usage": usage}
    return {"request": {"model": "gpt-5", "input": question}, "response": response}


@pytest.mark.parametrize("row", [logged("q", "a"), chained("q", "a")], ids=["chat", "responses"])
def test_dollars_are_those_of_the_service_tier_that_answered(row: dict[str, Any], tmp_path: Path) -> None:
    row["request"]["model"] = "gpt-5"
    usual = reported(tmp_path, write_lines(tmp_path / "log.jsonl", row))
    row["response"]["service_tier"] = "flex"
    report = reported(tmp_path, write_lines(tmp_path / "log.jsonl", row))

    assert [price["model"] for price in (*usual["prices"], *report["prices"])] == ["gpt-5", "gpt-5 (flex)"]
    for name in ("input_usd", "output_usd", "computed_usd"):
        assert report["recorded"][name] == pytest.approx(usual["recorded"][name] / 2)
        assert report["recorded"][name] > 0


def forked_log() -> list[dict[str, object]]:
    """Ten calls in a row, then two more answers to the last question, then three questions behind the first of them."""
    before: list[dict[str, object]] = []
    rows: list[dict[str, object]] = []
    for number in range(10):
        rows.append(logged(f"q{number}", f"a{number}", *before, id=f"r{number}"))
        before += [user(f"q{number}"), assistant(f"a{number}")]
    rows += [logged("q9", f"again {number}", *before[:-2], id="r") for number in range(2)]
    return rows + [logged(f"worker {number}", "done", *before, id="r") for number in range(3)]


def test_the_calls_before_a_fork_of_a_log_are_calls_of_one_conversation(tmp_path: Path) -> None:
    report = reported(tmp_path, write_lines(tmp_path / "log.jsonl", *forked_log()))

    assert (report["conversations"], report["calls"], report["left_out"]) == (5, 15, {})
    assert (report["recorded"]["calls"], report["recorded"]["input_tokens"]) == (15, 15_000)
    assert report["recorded"]["calls_without_usage"] == 0


def test_without_usage_the_calls_before_a_fork_are_told_by_the_lines_of_the_log(tmp_path: Path) -> None:
    rows: list[Any] = forked_log()
    for row in rows:
        del row["response"]["usage"]
    report = reported(tmp_path, write_lines(tmp_path / "log.jsonl", *rows))

    assert (report["conversations"], report["calls"], report["recorded"]) == (5, 15, None)


def test_in_a_log_of_requests_an_answer_is_a_call_as_often_as_it_was_asked_for(tmp_path: Path) -> None:
    rows: list[Any] = [row["request"] for row in forked_log()]
    report = reported(tmp_path, write_lines(tmp_path / "log.jsonl", *rows))
    assert (report["conversations"], report["calls"]) == (3, 12)  # the last question stands in three lines

    greetings: list[Any] = [{"messages": [user("hi")]}] * 3
    goes_on: list[Any] = [
        {"messages": [user("hi"), assistant(answer), user(text)]}
        for answer, text in (("hello", "one"), ("hello", "two"), ("hello", "three"), ("welcome", "four"))
    ]
    report = reported(tmp_path, write_lines(tmp_path / "log.jsonl", *greetings, *goes_on))
    assert (report["conversations"], report["calls"]) == (4, 3)


def test_whole_conversations_that_begin_alike_have_all_their_calls(tmp_path: Path) -> None:
    common = [user("hi"), assistant("hello")]
    wholes: list[Any] = [{"messages": [*common, user(text), assistant("fine")]} for text in ("one", "two")]

    assert reported(tmp_path, write_lines(tmp_path / "log.jsonl", *wholes))["calls"] == 4


def test_lines_of_a_log_that_equal_others_are_told_with_their_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [logged("When?", "9 to 5", id=f"r{number}") for number in range(10)]
    report = reported(tmp_path, write_lines(tmp_path / "log.jsonl", *rows, *rows))

    assert (report["calls"], report["recorded"]["input_tokens"]) == (1, 1_000)
    assert report["left_out"] == {"calls of lines that equal others, 9,000 tokens of recorded input": 9}
    assert "equal others, 9,000 tokens of recorded input (9)" in capsys.readouterr().err


def test_requests_for_embeddings_are_left_out_with_a_note(tmp_path: Path) -> None:
    asked: list[Any] = [{"input": "text", "encoding_format": "base64"}, {"input": ["a", "b"]}, {"input": [[1, 2]]}]
    rows: list[Any] = [*asked, {"request": asked[1], "response": {"data": []}}, logged("q", "a")]
    report = reported(tmp_path, write_lines(tmp_path / "log.jsonl", *rows))

    assert (report["conversations"], report["calls"]) == (1, 1)
    assert report["left_out"] == {"requests for embeddings": 4}


@pytest.mark.slow
def test_recorded_figures_do_not_depend_on_processes(tmp_path: Path) -> None:
    paths = [write(tmp_path / "1.jsonl", session().rows)]
    for number in range(2, 9):
        rollout = Rollout(f"r{number}")
        rollout.turn("t")
        rollout.user(f"question of {number}")
        rollout.answer("answer")
        rollout.counted(random.Random(number).randrange(10_000), 0, number)
        paths.append(write(tmp_path / f"{number}.jsonl", rollout.rows))

    one, three = (reported(tmp_path, *paths, "--jobs", jobs)["recorded"] for jobs in ("1", "3"))
    assert one == three
    assert one["calls"] == 9


def test_a_sum_of_parts_is_the_whole() -> None:
    calls = [
        RecordedCall(Usage(100, 10, 50, 20, hour_write_tokens=10), True, model="claude-sonnet-4-5"),
        RecordedCall(Usage(200, 20), tells_writes=False),
        RecordedCall(),
        None,
    ]
    computed = Computed(90, 40, 20, Decimal("0.5"))
    whole, parts = Recorded(), [Recorded(), Recorded()]
    for number, call in enumerate(calls):
        whole.add(call, computed, "gpt-5")
        parts[number % 2].add(call, computed, "gpt-5")
    parts[0].merge(parts[1])

    assert parts[0] == whole
    assert (whole.calls, whole.without_usage, whole.partial_outputs, whole.without_writes) == (2, 2, 1, 1)


def test_prices_are_those_of_the_call_then_of_the_recording_unless_another_model_is_asked_for() -> None:
    usage = Usage(1_000_000)
    sums: list[Decimal | None] = []
    for called, prices_of in (
        ("claude-sonnet-4-5", ""),
        ("nobody-knows", ""),
        ("claude-sonnet-4-5", "claude-haiku-4-5"),
    ):
        recorded = Recorded()
        recorded.add(RecordedCall(usage, model=called), Computed(), "gpt-5", prices_of=prices_of)
        sums.append(recorded.usd_input)
    prices = [price_of(name) for name in ("claude-sonnet-4-5", "gpt-5", "claude-haiku-4-5")]

    assert sums == [price.input.at(1_000_000) for price in prices if price is not None]


def test_a_model_without_a_price_has_no_sum_in_dollars() -> None:
    recorded = Recorded()
    recorded.add(RecordedCall(Usage(100, 10)), Computed(90, 0, 0, None), "nobody-knows")

    assert (recorded.usd_input, recorded.usd_output, recorded.computed.usd) == (None, None, None)
    assert not any("$" in sentence for sentence in recorded.told("o200k"))


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (claude_usage(3, 10, 20, 5, hour=8), RecordedCall(Usage(33, 5, 10, 20, hour_write_tokens=8), tier="standard")),
        ({"input_tokens": 3, "output_tokens": 5}, RecordedCall(Usage(3, 5))),
        ({"input_tokens": 3, "service_tier": "priority"}, RecordedCall(Usage(3), tier="priority")),
        ({"input_tokens": 3, "service_tier": "standard", "speed": "fast"}, RecordedCall(Usage(3), tier="fast")),
        (
            {"input_tokens": 30, "input_tokens_details": {"cached_tokens": 10}, "output_tokens": 5},
            RecordedCall(Usage(30, 5, 10)),
        ),
        (
            {
                "prompt_tokens": 30,
                "prompt_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 7},
                "completion_tokens": 5,
                "completion_tokens_details": {"reasoning_tokens": 4},
            },
            RecordedCall(Usage(30, 5, 10, 7, 4)),
        ),
        (
            {"input_tokens": 30, "cached_input_tokens": 10, "output_tokens": 5, "reasoning_output_tokens": 2},
            RecordedCall(Usage(30, 5, 10, 0, 2)),
        ),
        ({"input_tokens": 5, "cached_input_tokens": 10}, RecordedCall(Usage(10, 0, 10))),
        (
            {"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135},
            RecordedCall(Usage(32, 103)),
        ),
        ({"prompt_tokens": 30, "completion_tokens": 5, "cached_tokens": 10}, RecordedCall(Usage(30, 5, 10))),
        ({"prompt_tokens": 30, "completion_tokens": 5, "prompt_cache_hit_tokens": 9}, RecordedCall(Usage(30, 5, 9))),
        ({"input_tokens": -1, "output_tokens": True}, None),
        ({"input_tokens": "3", "output_tokens": 10**30}, None),
        ({"input_tokens_details": 5, "cache_creation": [], "cache_read_input_tokens": 4}, RecordedCall(Usage(4, 0, 4))),
        ({}, None),
        (None, None),
        ("many", None),
    ],
)
def test_usage_is_read_by_the_names_of_its_fields(usage: object, expected: RecordedCall | None) -> None:
    assert recorded_call(usage) == expected
