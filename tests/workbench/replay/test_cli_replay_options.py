"""``chatstack replay``: where it reads from and writes to, its options, and how it ends."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import TextIO, cast

import pytest

from chatstack.cli import main
from chatstack.workbench.replay import peers
from chatstack.workbench.replay.arguments import jobs_for
from chatstack.workbench.replay.parallel import cores
from chatstack.workbench.replay.reading.sources import Source
from tests.command_line import CONTROLS, HOSTILE, error_of
from tests.workbench.replay.conversations import assistant, conversation, talk, user, write_lines
from tests.workbench.replay.test_parallel import linux

ONE = conversation(user("hello"), assistant("hi"))
FEW = ["--window", "1000", "--policy", "nothing", "--policy", "guard"]


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


def reported(target: Path, *arguments: str | Path, code: int = 0) -> dict[str, object]:
    """The figures of a replay."""
    assert main(["replay", *map(str, arguments), "--json", str(target)]) == code
    report = json.loads(target.read_text())
    assert isinstance(report, dict)
    return report


def long_talk() -> list[dict[str, object]]:
    return [user("word " * 2_003), assistant("so"), user("go on"), assistant("done")]


def price_in(report: dict[str, object]) -> dict[str, object]:
    (price,) = cast("list[dict[str, object]]", report["prices"])
    return price


def first_policy(report: dict[str, object]) -> dict[str, object]:
    return cast("list[dict[str, object]]", report["policies"])[0]


def sentences_in(report: dict[str, object]) -> list[str]:
    return cast("list[str]", report["assumptions"])


def stdin_of(data: bytes) -> TextIO:
    return io.TextIOWrapper(io.BytesIO(data))


def test_a_folder_is_all_that_is_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "talks"
    (folder / "more").mkdir(parents=True)
    names = ("a.jsonl", "b.jsonl.gz", "more/c.jsonl")
    files = [write_lines(folder / name, *(talk(1, about=f"{name}, {nth}") for nth in range(2))) for name in names]
    (folder / "readme.txt").write_text("not a conversation")

    report = reported(tmp_path / "out.json", folder, *FEW)

    assert (report["conversations"], report["files"], report["file_count"]) == (6, [str(each) for each in files], 3)


def test_what_is_paid_for_is_told_and_counts(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", conversation(*long_talk(), model="claude-sonnet-4-5"))
    few: list[str | Path] = [path, *FEW, "--pause", "600"]

    short = reported(tmp_path / "short.json", *few)
    long = reported(tmp_path / "long.json", *few, "--long-cache")
    other = reported(tmp_path / "other.json", *few, "--model", "gpt-4o")

    reports = (short, long, other)
    said = [(each["pause_seconds"], each["long_cache"], each["model"]) for each in reports]
    assert said == [(600, False, None), (600, True, None), (600, False, "gpt-4o")]
    priced = [(each["model"], each["write"], each["lifetime_seconds"]) for each in map(price_in, reports)]
    assert priced == [("claude-sonnet-4-5", 3.75, 300), ("claude-sonnet-4-5", 6, 3_600), ("gpt-4o", 2.5, 300)]
    read = [cast("int", first_policy(each)["tokens_from_cache"]) for each in reports]
    assert read[1] > 2_000
    assert read == [0, read[1], 0]
    assert "written to it 1.25" in " ".join(sentences_in(short))
    assert "written to it 2," in " ".join(sentences_in(long))


@pytest.mark.parametrize(("size", "jobs"), [(100, 1), (10_000_000, cores())])
def test_large_input_is_replayed_on_all_cores(size: int, jobs: int) -> None:
    sources = [Source("a.jsonl", size), Source("b.jsonl", size)]

    assert jobs_for(None, sources) == jobs
    assert jobs_for(3, sources) == 3


def test_the_cores_are_those_that_this_process_may_use() -> None:
    assert cores() == len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def test_a_broken_conversation_of_a_list_is_named_by_its_place(tmp_path: Path) -> None:
    torn, fine = conversation(user("q"), {"role": "user", "content": 5}, assistant("a")), ONE
    path = tmp_path / "list.json"
    path.write_text(json.dumps([fine, torn, {"id": 1}, fine], indent=1))

    report = reported(tmp_path / "out.json", path, *FEW, code=1)

    errors = report["errors"]
    assert isinstance(errors, list)
    assert [each["line"] for each in errors] == [1, 1]
    assert [each["error"].partition(":")[0] for each in errors] == ["conversation 2", "conversation 3"]


def test_standard_input_is_read_and_the_figures_are_alone_on_standard_output(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the window is that of the recorded model, for which it has to be read twice."""
    monkeypatch.setattr(sys, "stdin", stdin_of(write_lines(tmp_path / "talks.jsonl.gz", ONE, talk(1)).read_bytes()))

    assert main(["replay", "-", "--json", "-"]) == 0

    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert (report["conversations"], report["window"], report["files"]) == (2, 128_000, ["stdin"])
    assert "nothing" in captured.err


def test_standard_input_is_asked_for_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", stdin_of(b"{}"))

    assert error_of(capsys, "replay", "-", "-", *FEW).endswith("stdin: can be read only once")


@pytest.mark.slow
def test_what_cannot_be_read_of_several_files_is_told_and_the_exit_code_is_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In the order of the input, whether it is no JSON or no conversation, and in several processes too."""
    nobody = json.dumps({"messages": [{"role": "nobody", "content": "q"}]})
    files = [
        write_lines(tmp_path / "a.jsonl", ONE, "{broken", nobody, talk(1)),
        write_lines(tmp_path / "b.jsonl", nobody, talk(1, about="Be kind.")),
    ]

    reports = [reported(tmp_path / f"{jobs}.json", *files, *FEW, "--jobs", jobs, code=1) for jobs in ("1", "2")]

    for report in reports:
        errors = [(Path(each["file"]).name, each["line"]) for each in report["errors"]]  # type: ignore[attr-defined]
        assert errors == [("a.jsonl", 2), ("a.jsonl", 3), ("b.jsonl", 1)]
        assert (report["error_count"], report["conversations"]) == (3, 3)
    assert "3 could not be read:" in capsys.readouterr().err


def test_the_page_is_written_with_the_stories_that_were_asked_for(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "talks.jsonl",
        *({**talk(turns, about=f"talk {turns}"), "id": f"talk-{turns}"} for turns in (3, 30, 2)),
    )
    page = tmp_path / "page.html"

    for count in (0, 2, 100):
        assert main(["replay", str(path), *FEW, "--html", str(page), "--stories", str(count)]) == 0
        text = page.read_text()
        data = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL)
        assert data is not None
        stories = [each["id"] for each in json.loads(data[1])["stories"]]
        assert stories == ["talk-30", "talk-3", "talk-2"][:count]
        assert "Content-Security-Policy" in text


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--stories", "101", "'101' is not a number of conversations, 0 to 100"),
        ("--stories", "-1", "'-1' is not a number of conversations, 0 to 100"),
        ("--stories", "٣", "'٣' is not a number of conversations, 0 to 100"),
        ("--jobs", "0", "'0' is not a number of processes, 1 to 256"),
        ("--jobs", "257", "'257' is not a number of processes, 1 to 256"),
        ("--jobs", "many", "'many' is not a number of processes"),
        ("--pause", "-1", "'-1' is not a number of seconds, 0 or more"),
        ("--pause", "nan", "'nan' is not a number of seconds, 0 or more"),
        ("--pause", "inf", "'inf' is not a number of seconds, 0 or more"),
        ("--pause", "an hour", "'an hour' is not a number of seconds"),
    ],
)
def test_a_number_that_is_none_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str, value: str, told: str
) -> None:
    path = write_lines(tmp_path / "talks.jsonl", ONE)

    assert f"argument {option}: {told}" in error_of(capsys, "replay", path, f"{option}={value}")


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_nothing_that_is_read_is_written_over(capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str) -> None:
    """Not a file, nor one in a folder that is read, nor a link to one, nor the tools or a pipeline."""
    folder = tmp_path / "talks"
    folder.mkdir()
    path, alone = write_lines(folder / "a.jsonl", ONE), write_lines(tmp_path / "b.jsonl", ONE)
    tools, pipeline, link = tmp_path / "tools.json", tmp_path / "mine.json", tmp_path / "link.json"
    tools.write_text("[]")
    pipeline.write_text("{}")
    link.symlink_to(path)
    before = {each: each.read_bytes() for each in (path, alone, tools, pipeline)}
    given: list[str | Path] = [folder, alone, *FEW, "--tools", tools, "--pipeline", pipeline]

    for target in (*before, link):
        told = error_of(capsys, "replay", *given, option, target)
        assert told == f"chatstack: error: {option} {target}: is one of the files to read"
    for target in (tmp_path, tmp_path / "no" / "out.json"):
        assert error_of(capsys, "replay", *given, option, target).endswith(f"{target}: no file can be written there")
    assert {each: each.read_bytes() for each in before} == before


@linux
@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_folder_in_which_no_file_can_be_made_is_told_before_anything_is_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str
) -> None:
    path = write_lines(tmp_path / "talks.jsonl", "{broken")

    told = error_of(capsys, "replay", path, *FEW, option, "/proc/self/out")

    assert f"{option} /proc/self/out: no file can be written there: " in told


def test_a_page_is_not_written_to_a_file_that_is_called_like_standard_output(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "talks.jsonl", ONE)

    assert "--html -: expected the name of a file" in error_of(capsys, "replay", path, *FEW, "--html", "-")


def test_a_target_is_tried_without_a_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, old = write_lines(tmp_path / "talks.jsonl", "{broken"), tmp_path / "old.json"
    old.write_text("old")

    told = error_of(capsys, "replay", path, *FEW, "--json", old, "--html", tmp_path / "new.html")

    assert "no conversation could be read" in told
    assert old.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == [old, path]


def test_the_page_is_not_written_over_the_figures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, target = write_lines(tmp_path / "talks.jsonl", ONE), tmp_path / "out"
    for exists in (False, True):
        if exists:
            target.write_text("kept")
        told = error_of(capsys, "replay", path, *FEW, "--json", target, "--html", tmp_path / "." / "out")
        assert told.startswith(f"chatstack: error: --html {target}: is where --json writes")
    assert target.read_text() == "kept"


def test_the_model_that_is_named_gives_window_and_prices(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "talks.jsonl", ONE, conversation(user("q"), assistant("a"), model="no-such-model"))

    report = reported(tmp_path / "out.json", path, "--model", "gpt-4.1", "--policy", "nothing")

    assert report["window"] == 1_000_000
    assert [each["model"] for each in report["prices"]] == ["gpt-4.1"]  # type: ignore[attr-defined]
    assert report["policies"][0]["cost_usd"] > 0  # type: ignore[index]


def test_a_model_that_nobody_knows_needs_a_window_and_has_no_price(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "talks.jsonl", ONE)

    told = error_of(capsys, "replay", path, "--model", "no-such\x1b[31m-model")
    assert told == "chatstack: error: --model 'no-such\\x1b[31m-model': its window is not known: pass --window N"

    report = reported(tmp_path / "out.json", path, "--model", "no-such-model", *FEW)
    assert report["policies"][0]["cost_usd"] is None  # type: ignore[index]
    assert any("no sum in dollars: no-such-model" in each for each in report["assumptions"])  # type: ignore[attr-defined]


def test_a_pause_makes_the_cache_cold(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "talks.jsonl", talk(30))
    warm, cold = (
        reported(tmp_path / "out.json", path, *FEW, "--pause", seconds)["policies"][0]  # type: ignore[index]
        for seconds in ("299.5", "3600")
    )

    assert warm["tokens_from_cache"] > 0 == cold["tokens_from_cache"]
    assert warm["tokens_sent"] == cold["tokens_sent"]


def test_peers_that_are_not_installed_are_told_with_how_to_get_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(peers, "version", missing)
    path = write_lines(tmp_path / "talks.jsonl", ONE)

    assert re.search(r"peers: none is installed; .*pip install ", error_of(capsys, "replay", path, *FEW, "--peers"))


def test_no_name_reaches_the_terminal_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Of files, folders, models, conversations, policies and tools; in the table, in errors and beside the bar."""
    folder = tmp_path / "a\x1b[31mb\u202ec"
    folder.mkdir()
    path = write_lines(
        folder / "talks\x07.jsonl",
        conversation(user(HOSTILE), assistant(HOSTILE), model=HOSTILE, id=HOSTILE),
        json.dumps({"messages": [{"role": HOSTILE, "content": HOSTILE}]}),
        json.dumps({HOSTILE: 1}),
    )
    pipeline = folder / "mine\x1b]0;x\x07\u202e.json"
    pipeline.write_text("{}")
    page = folder / "page\x1b[2J.html"

    shown = ["--pipeline", str(pipeline), "--html", str(page), "--model", HOSTILE.replace("\x00", "")]
    assert main(["replay", str(folder), "--window", "100", "--policy", "nothing", *shown]) == 1
    captured = capsys.readouterr()
    assert "mine" in captured.out
    assert CONTROLS.search(captured.out + captured.err) is None
    assert HOSTILE not in page.read_text()

    for arguments in (
        ["--window", "1", "--html", path],
        ["--window", "1", "--json", folder],
        ["--window", "1", "--policy", HOSTILE],
        ["--window", HOSTILE],
        ["--stories", HOSTILE],
        ["--tools", folder / HOSTILE.replace("\x00", "").replace("/", "")],
    ):
        assert error_of(capsys, "replay", path, *arguments)


def listen_to_interrupts() -> None:
    """Which a process that runs in the background may have been told not to."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def children_of(pid: int) -> list[str]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return path.read_text().split() if path.exists() else []


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks into /proc")
def test_an_interrupt_ends_it_with_130_and_one_line(tmp_path: Path) -> None:
    """Whatever its processes are doing; they say nothing, and the figures are not written."""
    path = write_lines(tmp_path / "talks.jsonl", *(talk(60, about=f"talk {number}") for number in range(500)))
    target = tmp_path / "out.json"
    command = [sys.executable, "-m", "chatstack", "replay", str(path), "--window", "1000", "--jobs", "2"]
    process = subprocess.Popen(
        [*command, "--json", str(target)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=listen_to_interrupts,
    )
    try:
        deadline = time.monotonic() + 300
        while len(children_of(process.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)  # the second is about to begin: it has read as much of Python as to listen, and not all of ours
        os.killpg(process.pid, signal.SIGINT)
        out, said = process.communicate(timeout=300)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert (process.returncode, out) == (130, "")
    assert said.splitlines()[-1] == "chatstack: error: interrupted"
    assert "Traceback" not in said
    assert not target.exists()
