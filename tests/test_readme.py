"""What the README shows works as it is printed there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chatstack import from_config
from chatstack.cli import main
from chatstack.workbench.demo.stand_in import StandIn
from tests.warning_lines import without_warnings

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def run(code: str, base_url: str, folder: Path | None = None) -> str:
    environment = {**os.environ, "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": base_url, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    assert without_warnings(done.stderr) == ""
    return done.stdout


def test_there_is_code_in_the_readme() -> None:
    assert len(BLOCKS) == 12


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_of_code_runs_as_printed(number: int, tmp_path: Path) -> None:
    with StandIn(window_tokens=100_000) as server:
        run(BLOCKS[number], server.base_url, tmp_path)


def test_the_quickstart_streams_an_answer_and_reports_progress() -> None:
    with StandIn(window_tokens=100_000) as server:
        printed = run(BLOCKS[0], server.base_url)
    assert "Dubai" in printed
    assert "turn_ended" in printed
    assert "get_weather" in printed


def test_the_override_of_the_container_example_reaches_the_layer() -> None:
    printed = run(BLOCKS[1], "http://127.0.0.1:9")
    assert printed.startswith("ContextWindowGuard(max_context_tokens=8000, counter=CharCounter(chars_per_token=3)")
    assert "strict=True" in printed


def test_the_example_of_a_node_keeps_the_state_whole() -> None:
    assert run(BLOCKS[2], "http://127.0.0.1:9") == "6 messages in the state, 5 in what the model was sent\n"


def test_the_example_of_a_warning_shows_it_on_its_span_and_on_the_root() -> None:
    printed = run(BLOCKS[3], "http://127.0.0.1:9")
    assert "context_guard fits at 97%: about 97 of 100 tokens\n" in printed
    assert "('context_window_near_limit',)" in printed


def test_the_example_of_summaries_folds_once_and_keeps_the_task_and_two_turns(tmp_path: Path) -> None:
    printed = run(BLOCKS[5], "http://127.0.0.1:9", tmp_path).splitlines()
    assert [line.split(",")[0] for line in printed if "folded" in line] == ["Quito: folded"]
    said = [line for line in printed if line.startswith(("user", "assistant"))]
    assert [line.split()[0] for line in said] == ["user", "assistant", *["user", "assistant"] * 2, "user"]
    assert said[1].startswith("assistant summary [Summary of earlier messages.")
    assert [
        city for city in ("Lima", "Oslo", "Cairo", "Tokyo", "Quito", "Accra") if f"in {city}?" in "".join(said)
    ] == [
        "Lima",
        "Tokyo",
        "Quito",
        "Accra",
    ]


def test_the_clearing_example_clears_and_names_the_handles(tmp_path: Path) -> None:
    printed = run(BLOCKS[4], "http://127.0.0.1:9", tmp_path)
    assert len(re.findall(r"read_page: [\d,]+ tokens cleared; recall\(handle='[0-9a-f]{10}'", printed)) == 3
    assert len(re.findall(r"\['page [34]: turn the valve", printed)) == 2
    assert (tmp_path / "decisions.sqlite").exists()


def test_the_example_of_a_fallback_parses_the_second_clients_answer() -> None:
    assert run(BLOCKS[6], "http://127.0.0.1:9") == "['coat', 'boots'] True\n"


def test_the_example_of_a_loop_ends_with_the_file_that_completes_it() -> None:
    assert run(BLOCKS[7], "http://127.0.0.1:9") == "completed [0, 1]\n"


def test_what_the_recording_example_writes_down_can_be_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = (each for each in BLOCKS if "requests.jsonl" in each)
    with StandIn(window_tokens=100_000) as server:
        for _ in range(2):
            run(block, server.base_url, tmp_path)

    assert main(["replay", "requests.jsonl", "--window", "8000", "--policy", "guard"]) == 0
    assert "1 conversation, 0 calls" in capsys.readouterr().out


def test_ci_runs_the_readmes_commands() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8") if (ROOT / ".ci").is_dir() else None
    if script is None:
        pytest.skip("away from the checkout there is no CI script")
    commands = re.findall(r"^\$ (?:pip install uv && )?(uv run .*(?:demo|pytest).*)$", README, re.MULTILINE)
    assert commands == [
        "uv run --no-dev --extra demo chatstack demo",
        "uv run pytest",
        "uv run --group full pytest --full",
    ]
    for command in commands:
        assert re.search(rf"^(\w+=\w+ )?{re.escape(command)}$", script, re.MULTILINE)


def test_nothing_was_left_to_be_filled_in() -> None:
    assert re.findall(r"[A-Z]+_TABLE|TODO|FIXME", README) == []


def test_the_config_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    (block,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "pipeline.toml").write_text(block, encoding="utf-8")
    names = [spec.name for spec in from_config(tmp_path / "pipeline.toml").layers]
    assert names == ["ProgressReporter", "Budget", "ContextWindowGuard", "Fallback"]


def test_the_client_of_ones_own_streams_and_tells_what_it_used() -> None:
    assert run(BLOCKS[10], "http://127.0.0.1:9") == "WHERE IS THE NIGHT TRAIN? \n"
