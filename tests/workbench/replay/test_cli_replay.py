"""``chatstack replay``: its table, its figures, and one clear line for each file that is not what it should be."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from chatstack.cli import main
from chatstack.workbench.replay.policies import policies_for
from tests.command_line import CONTROLS, HOSTILE, error_of
from tests.workbench.replay.conversations import assistant, conversation, data_file, talk, user, write_lines

ONE = conversation(user("hello"), assistant("hi"))
FIELDS = {
    "name",
    "conversations",
    "calls",
    "tokens_sent",
    "peak_tokens",
    "over_limit",
    "invalid_requests",
    "edits",
    "cpu_ms_per_call",
    "prefix_breaks",
    "cost_relative",
    "cost_usd",
    "cost_usd_uncached",
    "grounding",
    "grounding_far",
}
BUILT_IN = [policy.name for policy in policies_for([])]


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


def report_of(path: Path) -> dict[str, Any]:
    report = json.loads(path.read_text())
    assert isinstance(report, dict)
    return report


def test_a_replay_shows_a_table_and_writes_the_figures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write_lines(tmp_path / "talks.jsonl.gz", talk(20), talk(3, about="Be kind."))
    target = tmp_path / "out.json"

    assert main(["replay", str(path), "--window", "1_000", "--json", str(target)]) == 0

    captured = capsys.readouterr()
    report = report_of(target)
    assert {name: report[name] for name in ("version", "counter", "window", "tools", "files", "errors")} == {
        "version": 2,
        "counter": "o200k",
        "window": 1_000,
        "tools": None,
        "files": [str(path)],
        "errors": [],
    }
    nothing, guard, *_ = report["policies"]
    assert nothing.keys() >= FIELDS
    assert (nothing["name"], guard["name"]) == ("nothing", "guard")
    assert nothing["conversations"] == guard["conversations"] == 2
    assert nothing["calls"] == guard["calls"] == 46
    assert guard["tokens_sent"] < nothing["tokens_sent"]
    assert (guard["over_limit"], guard["invalid_requests"]) == (0, 0)
    assert f"{nothing['tokens_sent']:,}" in captured.out
    assert f"{guard['edits']:,}" in captured.out
    assert "2 conversations" in captured.err
    assert "100%" in captured.err


def test_json_on_standard_output_is_alone_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write_lines(tmp_path / "talks.jsonl", ONE)

    assert main(["replay", str(path), "--window", "100", "--json", "-"]) == 0

    captured = capsys.readouterr()
    assert json.loads(captured.out)["window"] == 100
    assert "nothing" in captured.err


def test_broken_lines_are_told_with_their_places_and_the_exit_code_is_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "talks.jsonl", ONE, "{broken", *["3"] * 20, ONE)
    target = tmp_path / "out.json"

    assert main(["replay", str(path), "--window", "100", "--json", str(target)]) == 1

    told = capsys.readouterr().err
    errors = report_of(target)["errors"]
    assert "21 could not be read:" in told
    assert f"{path}:2: not valid JSON" in told
    assert "and 11 more" in told
    assert [error["line"] for error in errors] == list(range(2, 23))
    assert report_of(target)["error_count"] == 21


def test_the_window_is_that_of_the_recorded_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    path = write_lines(tmp_path / "talks.jsonl", ONE, conversation(user("q"), assistant("a"), model="openai/gpt-4o"))

    assert main(["replay", str(path), "--json", str(target)]) == 0
    assert report_of(target)["window"] == 128_000


@pytest.mark.parametrize("models", [["no-such-model"], ["gpt-4o", "gpt-4.1"], ["gpt-4o", ""]])
def test_a_window_that_nobody_knows_is_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, models: list[str]
) -> None:
    path = write_lines(
        tmp_path / "talks.jsonl", *(conversation(user("q"), assistant("a"), model=each) for each in models)
    )

    assert error_of(capsys, "replay", path).endswith(": pass --window N")


def test_tools_are_sent_along_and_named_in_the_figures(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "talks.jsonl", ONE)
    tools, target = tmp_path / "tools.json", tmp_path / "out.json"
    tools.write_text(json.dumps([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]))
    sent = []
    for more in ([], ["--tools", str(tools)]):
        assert main(["replay", str(path), "--window", "100", "--json", str(target), *more]) == 0
        sent.append(report_of(target)["policies"][0]["tokens_sent"])

    named = report_of(target)["tools"]
    assert named == {"file": str(tools), "count": 1, "tokens": sent[1] - sent[0]}
    assert sent[1] > sent[0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "tools.json: not valid JSON: "),
        ("", "tools.json: not valid JSON: "),
        ("[" * 100_000, "tools.json: nested too deeply"),
        ('{"name": "look"}', "expected a list of tool schemas"),
        ("[3]", "expected an object, got int"),
        ('[{"type": "function"}]', "tools[0]"),
    ],
)
def test_tools_that_are_none_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, told: str
) -> None:
    path, tools = write_lines(tmp_path / "talks.jsonl", ONE), tmp_path / "tools.json"
    tools.write_text(text)

    assert told in error_of(capsys, "replay", path, "--window", "100", "--tools", tools)


def test_a_pipeline_is_one_more_policy(tmp_path: Path) -> None:
    path, target = write_lines(tmp_path / "talks.jsonl", talk(20)), tmp_path / "out.json"
    names = []
    for threshold in ("loose", "tight"):
        size = 900 if threshold == "loose" else 500
        layer = {"use": "ContextWindowGuard", "max_context_tokens": size, "prune_on_overflow": True}
        (tmp_path / f"{threshold}.json").write_text(json.dumps({"layers": [layer]}))
        names += ["--pipeline", str(tmp_path / f"{threshold}.json")]

    assert main(["replay", str(path), "--window", "1000", *names, "--json", str(target)]) == 0

    sent = {each["name"]: each["tokens_sent"] for each in report_of(target)["policies"]}
    assert list(sent) == [*BUILT_IN, "loose", "tight"]
    assert sent["tight"] < sent["loose"] < sent["nothing"]


def test_a_pipeline_that_cannot_be_built_is_told_with_its_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, pipeline = write_lines(tmp_path / "talks.jsonl", ONE), tmp_path / "tight.json"
    pipeline.write_text('{"layers": [{"use": "ContextWindowGuard", "max_context_tokens": "many"}]}')

    told = error_of(capsys, "replay", path, "--window", "100", "--pipeline", pipeline)

    assert told.startswith(f"chatstack: error: {pipeline}: layers[0].max_context_tokens: ")


def test_a_policy_is_chosen_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, target = write_lines(tmp_path / "talks.jsonl", talk(20)), tmp_path / "out.json"
    (tmp_path / "mine.json").write_text("{}")
    chosen = ["--policy", "guard", "--policy", "nothing", "--pipeline", str(tmp_path / "mine.json")]

    assert main(["replay", str(path), "--window", "1000", "--json", str(target), *chosen]) == 0

    assert [each["name"] for each in report_of(target)["policies"]] == ["guard", "nothing", "mine"]
    assert "sliding" not in capsys.readouterr().out


def test_what_the_layers_warned_of_is_not_told_line_by_line(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    path, target = write_lines(tmp_path / "talks.jsonl", talk(20)), tmp_path / "out.json"

    assert main(["replay", str(path), "--window", "500", "--json", str(target), "--policy", "guard"]) == 0

    assert report_of(target)["policies"][0]["edits"] > 0
    assert caplog.records == []


def test_a_policy_that_there_is_not_is_told_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "talks.jsonl", ONE)

    told = error_of(capsys, "replay", path, "--window", "100", "--policy", "gard\x1b[31m")

    assert told == f"chatstack: error: --policy 'gard\\x1b[31m': no such policy; there are {', '.join(BUILT_IN)}"


def test_the_table_fits_80_columns(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = write_lines(tmp_path / "talks.jsonl", talk(20), talk(3))

    assert main(["replay", str(path), "--window", "1_000"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [name for name in BUILT_IN if any(line.split()[:1] == [name] for line in lines)] == BUILT_IN
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize("window", ["0", "-5", "many", "", "1e3", "٣"])
def test_a_window_that_is_no_number_of_tokens_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, window: str
) -> None:
    path = write_lines(tmp_path / "talks.jsonl", ONE)

    assert "argument --window: " in error_of(capsys, "replay", path, f"--window={window}")


def test_files_that_cannot_be_read_are_told_before_anything_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "talks.jsonl", ONE)

    assert "missing.jsonl: cannot be read: No such file" in error_of(capsys, "replay", path, tmp_path / "missing.jsonl")
    (tmp_path / "empty").mkdir()
    assert "nothing to read in this folder" in error_of(capsys, "replay", path, tmp_path / "empty")


def test_without_one_conversation_there_is_no_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, target = write_lines(tmp_path / "talks.jsonl", "{broken"), tmp_path / "out.json"

    for window in ([], ["--window", "100"]):
        told = error_of(capsys, "replay", path, "--json", target, *window)

        assert told.startswith(f"chatstack: error: no conversation could be read; {path}:1: not valid JSON")
        assert not target.exists()


def test_figures_are_not_written_where_they_cannot_be_or_over_what_is_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "talks.jsonl", ONE)
    before = path.read_bytes()

    assert "no file can be written there" in error_of(capsys, "replay", path, "--json", tmp_path)
    assert "no file can be written there" in error_of(capsys, "replay", path, "--json", tmp_path / "no" / "out.json")
    assert "is one of the files to read" in error_of(capsys, "replay", path, "--json", path)
    assert path.read_bytes() == before


def test_hostile_text_in_a_recording_reaches_no_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b[31mb\u202ec"
    folder.mkdir()
    hostile = conversation(user(HOSTILE), assistant(HOSTILE), model=HOSTILE, id=HOSTILE)
    broken = json.dumps({"messages": [{"role": HOSTILE, "content": HOSTILE}]})
    path = write_lines(folder / "talks\x07.jsonl", hostile, broken, HOSTILE.replace("\n", ""))
    pipeline = folder / "mine\x1b]0;x\x07.json"
    pipeline.write_text("{}")

    assert main(["replay", str(path), "--window", "100", "--pipeline", str(pipeline)]) == 1
    captured = capsys.readouterr()
    assert "mine.json" in captured.out + captured.err or "mine" in captured.out
    assert "talks.jsonl:2: " in captured.err
    assert CONTROLS.search(captured.out + captured.err) is None

    assert "red" in error_of(capsys, "replay", write_lines(tmp_path / "one.jsonl", hostile))


@pytest.mark.slow
@pytest.mark.data
def test_the_airline_conversations_are_replayed_from_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, tools = data_file("tau_airline_gpt4o.dev.jsonl.gz"), data_file("tau_airline_gpt4o.tools.json")
    target = tmp_path / "out.json"

    chosen = ["--policy", "nothing", "--policy", "guard"]
    assert main(["replay", str(path), "--window", "8000", "--tools", str(tools), "--json", str(target), *chosen]) == 0

    policies = report_of(target)["policies"]
    assert [each["conversations"] for each in policies] == [100, 100]
    assert [each["invalid_requests"] for each in policies] == [0, 0]
    assert policies[1]["over_limit"] == 0 < policies[0]["over_limit"]
    assert "100 conversations" in capsys.readouterr().err


def test_json_is_alone_on_standard_output_though_standard_error_is_closed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path / "talks.jsonl", ONE)
    monkeypatch.setattr(sys, "stderr", None)

    assert main(["replay", str(path), "--window", "100", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["window"] == 100


@pytest.mark.parametrize(("option", "name"), [("--tools", "tools.json"), ("--pipeline", "mine.toml")])
def test_a_pipe_is_refused_and_not_waited_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str, name: str
) -> None:
    path, pipe = write_lines(tmp_path / "talks.jsonl", ONE), tmp_path / name
    os.mkfifo(pipe)

    told = error_of(capsys, "replay", path, "--window", "100", option, pipe)

    assert told.endswith(f"{pipe}: not a file")


@pytest.mark.parametrize(
    ("content", "told"), [(b"", "mine.toml: is empty"), (b"\xff", "mine.toml: not UTF-8 text: byte 1 is wrong")]
)
def test_a_pipeline_that_says_nothing_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, told: str
) -> None:
    path, pipeline = write_lines(tmp_path / "talks.jsonl", ONE), tmp_path / "mine.toml"
    pipeline.write_bytes(content)

    assert error_of(capsys, "replay", path, "--window", "100", "--pipeline", pipeline).endswith(told)
    pipeline.unlink()
    pipeline.mkdir()
    assert error_of(capsys, "replay", path, "--window", "100", "--pipeline", pipeline).endswith("not a file")


def test_a_long_model_name_is_cut_where_the_window_is_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "talks.jsonl", conversation(user("q"), assistant("a"), model="m" * 100_000))

    assert f"({'m' * 80}: unknown)" in error_of(capsys, "replay", path)


def test_recordings_without_a_call_are_told_and_fail(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write_lines(tmp_path / "talks.jsonl", conversation(user("hello")))

    assert main(["replay", str(path), "--window", "1000", "--policy", "nothing"]) == 1

    assert "Nothing was replayed: no conversation has an answer behind a first message" in capsys.readouterr().err
