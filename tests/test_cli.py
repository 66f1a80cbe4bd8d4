"""The command line: one clear line for whatever goes wrong, exit codes that tell, nothing hostile on the terminal."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chatstack.cli import COMMANDS, main
from chatstack.cli.terminal import make_console, printable
from tests.replay.conversations import assistant, conversation, data_file, talk, user, write_lines

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
}
HOSTILE = "\x1b[31mred\x1b[0m \x1b]0;title\x07\x9b2J\x1b]52;c;cGFzdGU=\x1b\\ \u202egnp.exe\u202c \x08\x00end"
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 2) -> str:
    """The one line on stderr of a command that fails."""
    assert main([str(each) for each in arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert CONTROLS.search(captured.err.removesuffix("\n")) is None
    return captured.err.removesuffix("\n")


def report_of(path: Path) -> dict[str, object]:
    report = json.loads(path.read_text())
    assert isinstance(report, dict)
    return report


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, even ünïcödé 日本語 👩‍🚀", "plain, even ünïcödé 日本語 👩‍🚀"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]0;new title\x07text", "text"),
        ("\x1b]8;;https://example.test\x1b\\click\x1b]8;;\x1b\\", "click"),
        ("\x9d52;c;cGFzdGU=\x9ctext", "text"),
        ("\x1bP1$r\x1b\\\x1b_payload\x1b\\text", "text"),
        ("\x1bcreset", "reset"),
        ("\x1b]52;c;never ends", "52;c;never ends"),
        ("\x1b\x1b[31m[31mtext", "[31mtext"),
        ("over\rwritten\nline\ttab", "over written line tab"),
        ("a\x08\x7f\x00b", "ab"),
        ("\u202egnp.exe\u202c \u2067x\u2069\u200f", "gnp.exe x"),
        ("in\u200bvis\U000e0041ible\ufeff", "invisible"),
        ("half \udc80", "half \ufffd"),
    ],
)
def test_outside_text_shows_as_what_it_is(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_line_breaks_stay_where_they_are_wanted() -> None:
    assert printable("a\r\nb\x85c\u2028d\re", lines=True) == "a\nb\nc\nd\ne"


def test_stripping_takes_time_in_proportion_to_the_text() -> None:
    assert printable("\x1b]" * 200_000 + "end").endswith("end")


def test_the_console_takes_markup_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    make_console().print("[bold]:smile: 12[/bold]")

    assert capsys.readouterr().out == "[bold]:smile: 12[/bold]\n"


def test_help_names_every_command_and_imports_none() -> None:
    seen = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "chatstack", "--help"], capture_output=True, text=True, check=True
    )

    assert all(name in seen.stdout for name in COMMANDS)
    assert "chatstack.cli" in seen.stderr
    assert not re.search(r"\b(rich|msgspec|opentelemetry|chatstack\.replay|chatstack\.demo)\b", seen.stderr)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main([command, "--help"]) == 0
    assert f"usage: chatstack {command} " in capsys.readouterr().out


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"chatstack {version('chatstack-core')}\n"


def test_a_command_has_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(capsys) == "chatstack: error: no command; there are demo and replay (chatstack --help tells more)"


def test_an_unknown_command_is_named_without_its_tricks(capsys: pytest.CaptureFixture[str]) -> None:
    assert "invalid choice: 'replya'" in error_of(capsys, "replya")
    assert "red" in error_of(capsys, HOSTILE)


def test_an_unknown_option_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write_lines(tmp_path / "talks.jsonl", ONE)

    assert "unrecognized arguments: --windw" in error_of(capsys, "replay", path, "--windw", "5")


def test_a_missing_package_is_one_line_that_says_what_to_install(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path / "talks.jsonl", ONE)
    for module in [each for each in sys.modules if each.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "rich", None)

    assert error_of(capsys, "replay", path) == (
        "chatstack: error: rich is not installed: pip install 'chatstack-core[cli]'"
    )


def test_an_interrupt_is_one_line_and_not_a_traceback(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("chatstack.cli.replay.run", interrupted)

    path = write_lines(tmp_path / "talks.jsonl", ONE)
    assert error_of(capsys, "replay", path, code=130) == "chatstack: error: interrupted"


def test_a_replay_shows_a_table_and_writes_the_figures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write_lines(tmp_path / "talks.jsonl.gz", talk(20), talk(3))
    target = tmp_path / "out.json"

    assert main(["replay", str(path), "--window", "1_000", "--json", str(target)]) == 0

    captured = capsys.readouterr()
    report = report_of(target)
    assert {name: report[name] for name in ("version", "counter", "window", "tools", "files", "errors")} == {
        "version": 1,
        "counter": "o200k",
        "window": 1_000,
        "tools": None,
        "files": [str(path)],
        "errors": [],
    }
    nothing, guard = report["policies"]  # type: ignore[misc]
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
    assert [error["line"] for error in errors] == list(range(2, 23))  # type: ignore[attr-defined]
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
        sent.append(report_of(target)["policies"][0]["tokens_sent"])  # type: ignore[index]

    named = report_of(target)["tools"]
    assert named == {"file": str(tools), "count": 1, "tokens": sent[1] - sent[0]}
    assert sent[1] > sent[0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "--tools"),
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

    sent = {each["name"]: each["tokens_sent"] for each in report_of(target)["policies"]}  # type: ignore[attr-defined]
    assert list(sent) == ["nothing", "guard", "loose", "tight"]
    assert sent["tight"] < sent["loose"] < sent["nothing"]


def test_a_pipeline_that_cannot_be_built_is_told_with_its_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, pipeline = write_lines(tmp_path / "talks.jsonl", ONE), tmp_path / "tight.json"
    pipeline.write_text('{"layers": [{"use": "ContextWindowGuard", "max_context_tokens": "many"}]}')

    told = error_of(capsys, "replay", path, "--window", "100", "--pipeline", pipeline)

    assert told.startswith(f"chatstack: error: {pipeline}: layers[0].max_context_tokens: ")


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
    assert "not a file" in error_of(capsys, "replay", tmp_path)


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


@pytest.mark.data
def test_the_airline_conversations_are_replayed_from_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, tools = data_file("tau_airline_gpt4o.dev.jsonl.gz"), data_file("tau_airline_gpt4o.tools.json")
    target = tmp_path / "out.json"

    assert main(["replay", str(path), "--window", "8000", "--tools", str(tools), "--json", str(target)]) == 0

    policies = report_of(target)["policies"]
    assert [each["conversations"] for each in policies] == [100, 100]  # type: ignore[attr-defined]
    assert [each["invalid_requests"] for each in policies] == [0, 0]  # type: ignore[attr-defined]
    assert policies[1]["over_limit"] == 0 < policies[0]["over_limit"]  # type: ignore[index]
    assert "100 conversations" in capsys.readouterr().err
