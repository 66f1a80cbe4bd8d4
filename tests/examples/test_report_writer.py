"""The report writer runs as it is printed, goes on when it was killed, and takes a client of the reader's own."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chatstack import Message, ToolCall
from chatstack.testing import ScriptedClient
from chatstack.workbench.demo.stand_in import StandIn
from tests.examples.test_examples import EXAMPLES, example
from tests.servers import mock_server


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", str(EXAMPLES / "report_writer.py"), *arguments]


def run(*arguments: str, **environment: str) -> str:
    """What it prints, with nothing of this environment."""
    done = subprocess.run(
        command(*arguments), env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def iterations_shown(said: str) -> list[int]:
    return [int(number) for number in re.findall(r"^iteration (\d+)$", said, re.MULTILINE)]


def report_in(said: str) -> list[str]:
    return said.partition("# The planets\n\n")[2].splitlines()


def test_it_runs_without_a_key_and_near_the_end_of_its_budget_the_report_is_asked_for() -> None:
    said = run()
    assert iterations_shown(said) == list(range(6))
    assert said.startswith(
        "iteration 0\n  write_file\n  17% of the budget is used\niteration 1\n  search\n  write_file\n"
    )
    last = said.partition("iteration 5\n")[2]
    assert re.match(r"  9\d% of the budget is used\n", last)  # without a tool
    assert "completed: 6 iterations" in said
    assert report_in(said) == list(example("report_writer").FACTS.values())[:4]


def test_the_spans_are_a_tree_in_which_each_iteration_is_a_branch() -> None:
    said = run()
    assert said.count("invoke_workflow report-writer") == 1
    assert len(re.findall(r"^    [├└]── invoke_agent report-writer", said, re.MULTILINE)) == 6
    assert len(re.findall(r"^    [│ ]   [├└]── (chat rules|execute_tool \w+)", said, re.MULTILINE)) == 11 + 9


@pytest.mark.slow
def test_with_more_tokens_all_of_the_plan_is_in_the_report() -> None:
    said = run("--max-tokens", "20000")
    assert report_in(said) == list(example("report_writer").FACTS.values())
    assert iterations_shown(said) == list(range(8))


@pytest.mark.slow
def test_what_was_written_stays_in_the_folder_and_a_run_that_has_ended_is_not_made_again(tmp_path: Path) -> None:
    first = run("--folder", str(tmp_path))
    files = sorted(str(each.relative_to(tmp_path / "files")) for each in (tmp_path / "files").rglob("*.md"))
    topics = list(example("report_writer").FACTS)[:4]
    assert files == sorted(["plan.md", "report.md", *(f"notes/{topic}.md" for topic in topics)])
    again = run("--folder", str(tmp_path))
    assert iterations_shown(again) == []
    assert report_in(again) == report_in(first)
    assert again.partition("completed: ")[2] == first.partition("completed: ")[2]


@pytest.mark.slow
def test_a_report_that_was_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = run("--max-tokens", "20000")
    killed = subprocess.Popen(command("--max-tokens", "20000", "--folder", str(tmp_path)), stdout=subprocess.DEVNULL)
    while not (tmp_path / "files/notes").exists():
        assert killed.poll() is None
        time.sleep(0.001)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait(300) == -signal.SIGKILL
    said = run("--max-tokens", "20000", "--folder", str(tmp_path))
    shown = iterations_shown(said)
    assert shown == list(range(shown[0], shown[-1] + 1))
    assert shown[0] >= 1
    assert shown[-1] == 7
    assert report_in(said) == report_in(whole)


def test_it_takes_any_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def write(path: str, content: str) -> Message:
        return Message("assistant", (ToolCall("c", "write_file", f'{{"path":"{path}","content":"{content}"}}'),))

    client = ScriptedClient(
        [write("plan.md", "Mars"), "ok", write("notes/Mars.md", "red"), "ok", write("report.md", "Red.")]
    )
    result, report = asyncio.run(example("report_writer").write_report(client, tmp_path, max_tokens=100_000))
    assert (result.reason, report) == ("completed", "Red.")
    prompts = [request.messages[0].text.splitlines()[0] for request in client.requests]
    assert (
        prompts[1:]
        == ["There is no plan yet. Write plan.md: the topics of the report, one a line."]
        + ["Topic: Mars"] * 2
        + ["These are the notes:"] * 2
    )
    assert "invoke_workflow report-writer" in capsys.readouterr().out


@pytest.mark.slow
def test_it_runs_on_a_real_server_by_its_address() -> None:
    with StandIn() as server:  # which knows of the weather only, and never writes a plan
        done = subprocess.run(
            command("--model", "m", "--base-url", server.base_url),
            env={"OPENAI_API_KEY": "none"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert server.requests_served > 0
    assert (done.returncode, done.stderr) == (0, "")
    assert "stalled: 3 iterations" in done.stdout


@pytest.mark.slow
@pytest.mark.server
def test_it_runs_on_the_other_provider() -> None:
    with mock_server() as server:
        where = ["--provider", "anthropic", "--base-url", server.anthropic_url]
        said = run("--model", "m", *where, ANTHROPIC_API_KEY="none")
        assert {record["path"] for record in server.records()} == {"/anthropic/v1/messages"}
    assert re.search(r"^\w+: \d+ iterations", said, re.MULTILINE)
