"""The command line: one clear line for whatever goes wrong, exit codes that tell, nothing hostile on the terminal."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from chatstack.cli import COMMANDS, main
from tests.command_line import HOSTILE, error_of, without_metadata
from tests.workbench.replay.conversations import assistant, conversation, user, write_lines

ONE = conversation(user("hello"), assistant("hi"))


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


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


def test_a_bundle_without_metadata_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the files of the package are there: a copy, a zip file, a frozen app."""
    without_metadata(monkeypatch)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "chatstack of a bundle without metadata\n"
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "What the extras need is not known: the metadata of chatstack-core is not there." in shown


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: chatstack")
    assert main([]) == 2
    assert capsys.readouterr() == ("", shown)


def test_an_unknown_command_is_named_without_its_tricks(capsys: pytest.CaptureFixture[str]) -> None:
    assert "invalid choice: 'replya'" in error_of(capsys, "replya")
    assert "red" in error_of(capsys, HOSTILE)


def test_a_command_of_a_plugin_that_is_not_installed_is_told_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(capsys, "serve", "stack.toml") == (
        "chatstack: error: serve: this command is that of chatstack-gateway, in plugins/gateway of the repository, "
        "which is not installed here (chatstack --help tells more)"
    )


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

    monkeypatch.setattr("chatstack.workbench.replay.command.run", interrupted)

    path = write_lines(tmp_path / "talks.jsonl", ONE)
    assert error_of(capsys, "replay", path, code=130) == "chatstack: error: interrupted"


@pytest.mark.parametrize("command", [[], *([each] for each in COMMANDS)])
def test_help_fits_a_terminal_of_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    assert main([*command, "--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize("arguments", [["--help"], ["demo"], ["replay", "talks.jsonl", "--json", "-"]])
def test_a_closed_standard_output_is_one_line_before_anything_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)

    assert main(arguments) == 2
    assert capsys.readouterr().err == "chatstack: error: standard output is closed, so nothing could be shown\n"


def test_an_error_with_standard_error_closed_is_told_by_the_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)

    assert main(["replay", "missing.jsonl"]) == 2
    assert main(["replay"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device here that is always full")
def test_a_full_disk_behind_standard_output_is_one_line(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "talks.jsonl", ONE)
    command = [sys.executable, "-m", "chatstack", "replay", str(path), "--window", "100"]

    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False)

    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("chatstack: error: the output cannot be written: ")
    assert "Traceback" not in done.stderr
