"""``chatstack tune``: what it writes is what it measured, and whatever is wrong is one clear line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from chatstack.cli import main
from chatstack.workbench.replay.reading.recordings import Recording
from chatstack.workbench.replay.tuning.halves import halves_of, of_part
from tests.command_line import CONTROLS, HOSTILE, error_of, without_metadata
from tests.workbench.replay.conversations import data_file, recordings_in, write_lines
from tests.workbench.replay.errands import errands
from tests.workbench.replay.test_parallel import linux

FIGURES = ("cost_relative", "cost_usd", "grounding", "grounding_far", "over_limit", "prefix_breaks", "tokens_sent")
NAMES = ["nothing", "guard", "recommended", "tuned"]


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


def far_calls(name: str) -> list[str]:
    """Each call takes something up that was seen one call before, some what was seen first of all."""
    codes = [f"{name}-code-{max(0, number - 1)}" for number in range(12)]
    return [*codes, f"{name}-code-0", f"{name}-code-1", f"{name}-code-2"]


def near_calls(name: str) -> list[str]:
    return [f"{name}-code-{max(0, number - 1)}" for number in range(14)]


def talks(path: Path, tuned: int = 4, other: int = 5) -> Path:
    """Conversations that outgrow a window of 1,000, so many of each half."""
    return write_lines(
        path,
        *errands(tuned, is_tuned=True, calls=far_calls),
        *errands(other, is_tuned=False, calls=far_calls),
    )


def tune(path: Path, *more: str | Path) -> list[str]:
    """The arguments, with few trials, as they take time."""
    chosen = ["--grounding", "90"] if "--grounding" not in more else []
    return ["tune", str(path), "--window", "1000", "--trials", "9", *chosen, *(str(each) for each in more)]


def json_of(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


def half(report: dict[str, object], name: str) -> dict[str, dict[str, object]]:
    """The policies of a half, by name."""
    found = report[name]
    assert isinstance(found, dict)
    return {each["name"]: each for each in found["policies"]}


def replayed(path: Path, pipeline: Path, window: str, *more: str) -> dict[str, object]:
    """The figures of a pipeline file, as ``chatstack replay`` has them."""
    target = path.with_suffix(".replayed.json")
    chosen = ["--policy", "nothing", "--pipeline", str(pipeline)]
    assert main(["replay", str(path), "--window", window, "--json", str(target), *chosen, *more]) == 0
    _, mine = json_of(target)["policies"]
    assert isinstance(mine, dict)
    return mine


def written_half(items: Path, part: str, window: int, target: Path) -> Path:
    """The conversations of one half in a file of their own."""
    found = recordings_in(items)
    numbers = halves_of(found, window).other if part == "other" else halves_of(found, window).tuning
    kept = [each for each in of_part(found, numbers) if isinstance(each, Recording)]
    return write_lines(target, *({**each.body, "id": each.id, "model": each.model} for each in kept))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "more"),
    [
        (".toml", []),
        (".yaml", ["--pause", "9000", "--model", "claude-sonnet-4-5"]),
        (".json", ["--tools", "{}/tools.json"]),
    ],
)
def test_what_is_reported_is_a_replay_of_the_file_figure_by_figure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, suffix: str, more: list[str]
) -> None:
    tool = {"type": "function", "function": {"name": "fetch", "parameters": {"type": "object"}}}
    (tmp_path / "tools.json").write_text(json.dumps([tool]))
    more = [each.replace("{}", str(tmp_path)) for each in more]
    path, mine, target = talks(tmp_path / "talks.jsonl"), tmp_path / f"mine{suffix}", tmp_path / "out.json"

    assert main(tune(path, "--write", mine, "--json", target, *more)) == 0

    report = json_of(target)
    for part in ("tuned", "other"):
        policies = half(report, part)
        assert list(policies) == NAMES
        again = replayed(written_half(path, part, 1_000, tmp_path / f"{part}.jsonl"), mine, "1000", *more)
        for name, value in again.items():
            if name not in ("name", "about", "cpu_ms_per_call"):
                assert policies["tuned"][name] == value, name
        assert policies["tuned"]["conversations"] == {"tuned": 4, "other": 5}[part]
    assert report["reached"] is True
    assert report["tried"] == 9
    assert capsys.readouterr().out.count(f"Written: {mine}\n") == 1


def test_the_tuned_half_keeps_what_is_wanted_and_costs_no_more_than_what_keeps_it_untuned(tmp_path: Path) -> None:
    path, target = talks(tmp_path / "talks.jsonl"), tmp_path / "out.json"

    assert main(tune(path, "--write", tmp_path / "mine.toml", "--json", target, "--far", "50")) == 0

    report = json_of(target)
    policies = half(report, "tuned")
    assert report["wanted"] == {"grounding": 0.9, "far": 0.5}
    assert policies["tuned"]["grounding"] >= 0.9  # type: ignore[operator]
    assert policies["tuned"]["grounding_far"] >= 0.5  # type: ignore[operator]
    assert policies["recommended"]["grounding"] >= 0.9  # type: ignore[operator]
    # What is tuned counts by a counter that a file can name: a little more.
    assert policies["tuned"]["cost_usd"] <= 1.01 * policies["recommended"]["cost_usd"]  # type: ignore[operator]
    assert policies["tuned"]["over_limit"] == policies["guard"]["over_limit"] == 0
    assert policies["nothing"]["over_limit"] > 0  # type: ignore[operator]


@pytest.mark.slow
def test_the_choice_does_not_depend_on_how_many_processes_there_are_nor_on_the_order_of_files(tmp_path: Path) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    write_lines(one, *errands(4, is_tuned=True, calls=far_calls))
    write_lines(two, *errands(4, is_tuned=False, calls=near_calls))
    found = []
    for jobs, files in (("1", [one, two]), ("2", [two, one])):
        mine, target = tmp_path / f"mine{jobs}.toml", tmp_path / f"{jobs}.json"
        command, *options = tune(files[0], "--write", mine, "--json", target, "--jobs", jobs)
        assert main([command, str(files[1]), *options]) == 0
        report = json_of(target)
        figures = [
            [each[name] for name in FIGURES] for part in ("tuned", "other") for each in half(report, part).values()
        ]
        found.append((report["config"], figures, report["tried"]))

    assert found[0] == found[1]


@pytest.mark.slow
def test_a_half_that_does_not_keep_what_is_wanted_is_said_to_with_exit_code_0(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, mine, target = tmp_path / "talks.jsonl", tmp_path / "mine.toml", tmp_path / "out.json"
    write_lines(
        path,
        *errands(4, is_tuned=True, calls=near_calls),
        *errands(
            4,
            is_tuned=False,
            calls=lambda name: [
                *near_calls(name),
                *[f"row 0 row 0 row {each}" for each in range(4)],
                "row 0 row 0 row 0",
            ],
        ),
    )

    assert main(tune(path, "--write", mine, "--json", target, "--grounding", "100")) == 0

    report = json_of(target)
    (told,) = report["misses"]
    assert half(report, "other")["tuned"]["grounding"] < 1  # type: ignore[operator]
    assert told.startswith("In the other half ")
    assert told.endswith("% of the values are found, less than the 100 % that are wanted.")
    assert told in " ".join(capsys.readouterr().out.split())
    assert told.split(",")[0] in mine.read_text().replace("\n#  ", "")


@pytest.mark.slow
def test_where_nothing_keeps_what_is_wanted_the_nearest_is_told_and_nothing_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, mine = talks(tmp_path / "talks.jsonl"), tmp_path / "mine.toml"

    wanted = ["--grounding", "100", "--far", "100", "--window", "450"]

    assert main(tune(path, "--write", mine, *wanted, "--trials", "1", "--json", "-")) == 1

    captured = capsys.readouterr()
    report = json.loads(captured.out)
    told = " ".join(captured.err.split())
    assert not mine.exists()
    assert (report["reached"], report["config"]["layers"][1]["use"]) == (False, "ClearThenDrop")
    assert "None of 1 settings that were tried keeps what is wanted: 100 % found, 100 % of the far ones." in told
    assert "The nearest, with " in told
    assert "Nothing is written." in told


def test_what_took_so_long_is_written_by_a_bundle_without_metadata_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_metadata(monkeypatch)
    path, mine = talks(tmp_path / "talks.jsonl"), tmp_path / "mine.toml"
    assert main(tune(path, "--write", mine, "--window", "90000", "--trials", "1")) == 0
    assert "of a bundle without metadata" in mine.read_text()


def test_recordings_that_never_outgrow_the_window_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, mine = talks(tmp_path / "talks.jsonl"), tmp_path / "mine.toml"
    assert main(tune(path, "--write", mine, "--window", "90000", "--trials", "1")) == 0
    told = "Everything was sent, as the largest of these calls takes 3,122 of the window's 90,000 tokens: "
    assert f"{told}give a --window" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_the_file_says_what_it_was_tuned_on_without_where_that_was(tmp_path: Path) -> None:
    path, mine, target = talks(tmp_path / "talks\x1b[31m.jsonl"), tmp_path / "mine.yaml", tmp_path / "out.json"

    assert main(tune(path, "--write", mine, "--json", target)) == 0

    head = " ".join(line.removeprefix("#").strip() for line in mine.read_text().splitlines() if line.startswith("#"))
    assert "from talks.jsonl." in head
    assert "Window: 1,000 tokens by o200k. Wanted: 90.0 % found." in head
    assert "In the half that was tuned on, 4 conversations, 64 calls: " in head
    assert "In the other half, 5 conversations, 80 calls: " in head
    assert str(tmp_path) not in head
    other = half(json_of(target), "other")
    assert f"{other['tuned']['cost_usd'] / other['nothing']['cost_usd']:.2f} of what sending" in head  # type: ignore[operator]


@pytest.mark.slow
def test_broken_lines_are_told_and_the_file_is_written_all_the_same(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, mine = talks(tmp_path / "talks.jsonl"), tmp_path / "mine.toml"
    with path.open("a") as opened:
        opened.write('{broken\n{"messages": [{"role": "user", "content": "hello"}]}\n')

    assert main(tune(path, "--write", mine)) == 1

    captured = capsys.readouterr()
    assert f"{path}:10: not valid JSON" in captured.err
    assert "Left out, as they have no answer that could be asked for again: 1." in " ".join(captured.out.split())
    assert mine.exists()


@pytest.mark.slow
def test_it_fits_80_columns_and_hostile_text_reaches_no_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "a\x1b[31mb\u202ec"
    folder.mkdir()
    mine = folder / "mine\x1b]0;x\x07.toml"
    path = write_lines(
        folder / "talks.jsonl",
        *({**each, "model": HOSTILE} for each in errands(4, is_tuned=True, calls=near_calls)),
        *errands(4, is_tuned=False, calls=near_calls),
    )

    assert main(tune(path, "--write", mine)) == 0

    captured = capsys.readouterr()
    assert CONTROLS.search(captured.out + captured.err) is None
    *lines, written = captured.out.splitlines()
    assert written.startswith("Written: ")
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)


@pytest.mark.slow
@linux
def test_a_stack_that_cannot_be_written_after_all_is_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    full = tmp_path / "mine.toml"
    full.symlink_to("/dev/full")

    assert main(tune(talks(tmp_path / "talks.jsonl"), "--write", full)) == 2

    captured = capsys.readouterr()
    assert f"--write {full}: cannot be written: " in captured.err
    printed = captured.out[captured.out.index("# ") :]
    assert tomllib.loads(printed)["layers"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--write", "{}/a.txt"], "--write {}/a.txt: expected a file that ends in .toml, .yaml, .yml, .json"),
        (["--write", "{}/no/a.toml"], "--write {}/no/a.toml: no file can be written there"),
        pytest.param(
            ["--write", "/proc/self/a.toml"],
            "--write /proc/self/a.toml: no file can be written there: ",
            marks=linux,
        ),
        (["--write", "{}/a.toml", "--json", "{}/a.toml"], "--json {}/a.toml: is where --write writes"),
        (["--write", "{}/a.toml", "--json", "{}"], "--json {}: no file can be written there"),
        (
            ["--write", "{}/a.toml", "--json", "{}/tools.json", "--tools", "{}/tools.json"],
            "--json {}/tools.json: is one of",
        ),
        (["--write", "{}/talks.json"], "--write {}/talks.json: is one of the files to read"),
        (
            ["--write", "{}/a.toml", "--window", "9", "--tools", "{}/none.json"],
            "--tools {}/none.json: cannot be read: ",
        ),
        (["--write", "{}/a.toml", "--model", "no-such-model"], "--model 'no-such-model': its window is not known"),
        (["--write", "{}/a.toml"], "the recordings' models do not tell one window"),
        (["--write", "{}/a.toml", "--window", "9"], "Too few recordings: 3 and 0 in the two halves, 4 needed in each."),
        (["--window", "9"], "the following arguments are required: --write"),
        *(
            (["--write", "{}/a.toml", option, value], f"argument {option}: '{value}' is not")
            for option, values in (
                ("--grounding", ("0", "100.1", "98%", "-3", "nan", "9.87", "٣", "")),
                ("--far", ("0", "101")),
                ("--trials", ("0", "10001", "many")),
                ("--jobs", ("0",)),
                ("--window", ("0",)),
                ("--pause", ("-1",)),
            )
            for value in values
        ),
    ],
)
def test_a_wrong_argument_is_one_line_that_names_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], told: str
) -> None:
    wires = [{**each, "model": ""} for each in errands(3, is_tuned=True, calls=near_calls)]
    path = tmp_path / "talks.json"
    path.write_text(json.dumps(wires))
    (tmp_path / "tools.json").write_text("[]")
    before = sorted(tmp_path.iterdir())
    given = [each.replace("{}", str(tmp_path)) for each in arguments]
    wanted = [f"{name}={value}" for name, value in zip(given[::2], given[1::2], strict=True)]

    error = error_of(capsys, "tune", path, *wanted, *(["--grounding=98"] if "--grounding" not in arguments else []))

    assert told.replace("{}", str(tmp_path)) in error
    assert sorted(tmp_path.iterdir()) == before


def test_without_the_wanted_share_there_is_nothing_to_tune_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "required: --grounding" in error_of(capsys, "tune", tmp_path, "--write", tmp_path / "a.toml")


def test_where_no_line_can_be_read_the_first_reason_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write_lines(tmp_path / "talks.jsonl", "{broken")
    told = error_of(capsys, *tune(path, "--write", tmp_path / "a.toml"))
    assert f"error: no conversation could be read; {path}:1: not valid JSON" in told


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interrupt_ends_it_with_130_and_leaves_no_file(tmp_path: Path, jobs: str) -> None:
    path, mine = talks(tmp_path / "talks.jsonl", 12, 12), tmp_path / "mine.toml"
    # A shell's background job, and so what it starts, would ignore the interrupt.
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from chatstack.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, *tune(path, "--write", mine, "--jobs", jobs)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as running:
        assert running.stderr is not None
        assert running.stderr.readline().startswith("reading")
        os.killpg(running.pid, signal.SIGINT)
        told = running.stderr.read()

    assert (running.returncode, told) == (130, "chatstack: error: interrupted\n")
    assert not mine.exists()


@pytest.mark.slow
@pytest.mark.data
def test_the_figures_of_recorded_conversations_are_those_of_a_replay_of_the_file(tmp_path: Path) -> None:
    items = recordings_in(data_file("tau_airline_gpt4o.dev.jsonl.gz"))[::5]
    wires = [{**each.body, "id": each.id, "model": each.model} for each in items if isinstance(each, Recording)]
    path, mine, target = write_lines(tmp_path / "a.jsonl", *wires), tmp_path / "mine.toml", tmp_path / "out.json"

    chosen = ["--window", "4000", "--grounding", "92", "--trials", "20", "--write", str(mine), "--json", str(target)]
    assert main(["tune", str(path), *chosen]) == 0

    again = replayed(written_half(path, "other", 4_000, tmp_path / "other.jsonl"), mine, "4000")
    policies = half(json_of(target), "other")
    for name, value in again.items():
        if name not in ("name", "about", "cpu_ms_per_call"):
            assert policies["tuned"][name] == value, name
    tuned = half(json_of(target), "tuned")
    assert tuned["recommended"]["grounding"] >= 0.92  # type: ignore[operator]
    assert tuned["tuned"]["cost_usd"] <= tuned["recommended"]["cost_usd"]  # type: ignore[operator]


@pytest.mark.slow
def test_a_log_of_requests_is_tuned_on_as_the_conversations_that_it_is_of(tmp_path: Path) -> None:
    whole = [json.loads(line) for line in talks(tmp_path / "talks.jsonl").read_text().splitlines()]
    log = [{**each, "messages": each["messages"][:at]} for each in whole for at in range(2, len(each["messages"]) + 1)]
    paths = tmp_path / "talks.jsonl", write_lines(tmp_path / "log.jsonl", *log)

    reports: list[dict[str, object]] = []
    for path in paths:
        main(tune(path, "--write", tmp_path / "mine.toml", "--json", tmp_path / "out.json"))
        reports.append(json_of(tmp_path / "out.json"))

    assert [report["joined"] for report in reports] == [0, len(log) - len(whole)]
    assert reports[0]["config"] == reports[1]["config"]
    assert reports[0]["without_answer"] == reports[1]["without_answer"]
