"""``chatstack replay --peers``: a row for each policy of the installed frameworks, and not a word of their own."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from chatstack import InputError
from chatstack.cli import main
from chatstack.workbench.replay.peers import peer_policies
from chatstack.workbench.replay.policies import BUILT_IN
from tests.workbench.replay.conversations import assistant, conversation, result, talk, user, write_lines

HARDLY_EDIT = ("maf-user-turns", "headroom", "headroom-agent")
"""Without a limit, or only where there is much that a user said."""


@pytest.fixture
def names() -> list[str]:
    """Of the peers' policies; skips the test where no peer is installed."""
    try:
        return [policy.name for policy in peer_policies()]
    except InputError as error:
        pytest.skip(str(error))


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    """Enough for two processes, all of it over a window of 1,000 tokens, also with all but the newest left out."""
    too_large = conversation(
        user("look"), assistant(None, "call_0"), result("call_0", "seen " * 1_500), assistant("so")
    )
    talks = [talk(turns, 60, about=f"Be brief, {turns}.") for turns in range(8, 16)]
    return write_lines(tmp_path / "talks.jsonl", *talks, too_large)


def rows_of(talks: Path, *, jobs: int) -> list[dict[str, object]]:
    """The figures of each policy, save those of CPU time."""
    target = talks.with_suffix(".json")
    arguments = ["--window", "1000", "--peers", "--jobs", str(jobs), "--json", str(target)]
    assert main(["replay", str(talks), *arguments]) == 0
    rows: list[dict[str, object]] = json.loads(target.read_text())["policies"]
    return [{name: value for name, value in row.items() if not name.startswith("cpu_")} for row in rows]


def test_each_policy_of_the_peers_has_a_row_behind_ours_that_does_not_depend_on_the_processes(
    names: list[str], talks: Path
) -> None:
    rows = rows_of(talks, jobs=2)

    assert [row["name"] for row in rows] == [*(policy.name for policy in BUILT_IN), *names]
    assert {(row["conversations"], row["calls"], row["requests"], row["refused"]) for row in rows} == {(9, 186, 186, 0)}
    nothing, *others = rows
    editing = [row for row in others if row["name"] not in HARDLY_EDIT]
    assert all(row["edits"] and row["tokens_sent"] != nothing["tokens_sent"] for row in editing)
    assert rows == rows_of(talks, jobs=1)


@pytest.mark.parametrize("jobs", [1, 2])
def test_nothing_that_a_framework_logs_is_on_standard_error(
    names: list[str], talks: Path, jobs: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where logging prints warnings, and where nobody has configured it, as in the processes of a replay."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [*root.handlers, logging.StreamHandler()])

    rows_of(talks, jobs=jobs)

    heads = {line.partition(" ")[0].rstrip(":") for line in capfd.readouterr().err.splitlines()}
    assert "replaying" in heads
    assert heads <= {"replaying", "peers", "Highest", *(policy.name for policy in BUILT_IN), *names}


def test_agent_framework_is_not_heard_while_it_is_replayed_and_elsewhere_it_is(
    talks: Path, caplog: pytest.LogCaptureFixture
) -> None:
    framework = pytest.importorskip("agent_framework", reason="agent-framework-core is not installed")
    caplog.set_level(logging.INFO)
    rows_of(talks, jobs=1)
    assert [record.name for record in caplog.records if record.name.startswith(("agent_framework", "lang"))] == []

    strategy = framework.ContextWindowCompactionStrategy(max_context_window_tokens=100, max_output_tokens=0)
    messages = [framework.Message("user", [f"seen_{number} " * 200]) for number in range(3)]
    asyncio.run(framework.apply_compaction(messages, strategy=strategy))
    assert {record.name for record in caplog.records} == {"agent_framework"}
