"""Mistakes are refused where they are made, with what is wanted instead: no run is begun that could never end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from worker_process import make_context

from chatstack import ChatStack, FunctionInvoker, InputError, IterativeLoop, WiringError
from chatstack.testing import ScriptedClient
from chatstack_dbos import DurableLoop, DurableRuns, DurableTurn, RunWorker, database

CLIENT = ChatStack(ScriptedClient()).use(FunctionInvoker).build()
TURN = DurableTurn(CLIENT)
LOOP = IterativeLoop(ScriptedClient(), "You work.", lambda context: "work")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name": 5}, "name=5 must be text"),
        ({"name": "a\ud800"}, r"name='a\\ud800' must be text"),
        ({"run_id": 42}, "run_id=42 must be text"),
        ({"run_id": "r\ud800"}, r"run_id='r\\ud800' must be text, not blank, without NUL and lone surrogates"),
        ({"run_id": "r\0"}, r"run_id='r\\x00' must be text"),
        ({"conversation_id": 42}, "conversation_id=42 must be text"),
        ({"conversation_id": ""}, "conversation_id='' must be text"),
        ({"conversation_id": "c\ud800"}, "conversation_id='c.ud800' must be text"),
        ({"timeout_seconds": "5"}, "timeout_seconds='5' must be a number greater than 0"),
        ({"timeout_seconds": True}, "timeout_seconds=True must be a number"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds=nan must be a number"),
        ({"given": "x\ud800"}, "given to run 'run-1' cannot be written as JSON"),
        ({"given": {"at": object()}}, "given to run 'run-1' cannot be written as JSON"),
    ],
)
def test_a_run_that_could_never_be_read_is_not_started(tmp_path: Path, given: dict[str, Any], told: str) -> None:
    async def story() -> None:
        async with DurableRuns(f"sqlite:///{tmp_path}/runs.db") as runs:
            with pytest.raises(InputError, match=f"DurableRuns: .*{told}"):
                await runs.start(**({"name": "support", "run_id": "run-1"} | given))

    asyncio.run(story())
    assert not list(tmp_path.glob("*")), "nothing is written"


def test_an_sqlite_that_lacks_what_dbos_needs_is_refused_before_a_file_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOWEST_SQLITE", (99, 1, 0))
    with pytest.raises(WiringError, match=r"DBOS needs SQLite 99\.1\.0 or later on this Python, which has 3\."):
        DurableRuns(f"sqlite:///{tmp_path}/runs.db")
    assert not list(tmp_path.glob("*"))
    DurableRuns("postgresql://app@127.0.0.1/app")


def test_an_id_that_no_run_can_have_is_refused_wherever_it_is_given(tmp_path: Path) -> None:
    async def story() -> None:
        async with DurableRuns(f"sqlite:///{tmp_path}/runs.db") as runs:
            wrong: Any
            for wrong in (42, None, " ", "r\ud800"):
                for asked in (runs.result, runs.has_ended, runs.cancel, runs.forget):
                    with pytest.raises(InputError, match="DurableRuns: run_id="):
                        await asked(wrong)
                for follow in (runs.events, runs.text):
                    with pytest.raises(InputError, match="DurableRuns: run_id="):
                        follow(wrong)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"serves": [TURN]}, "serves, a list, must be a dict with one name at least"),
        ({"serves": {1: TURN}}, "serves has the key 1: each must be text"),
        ({"serves": {" ": TURN}}, "serves has the key ' ': each must be text"),
        ({"serves": {"a": CLIENT}}, r"serves\['a'\] is of type BuiltClient, .* write DurableTurn\(client\)"),
        ({"serves": {"a": LOOP}}, r"serves\['a'\] is of type IterativeLoop, .* DurableLoop\(loop, context\)"),
        ({"serves": {"a": DurableTurn}}, r"serves\['a'\] is of type DurableTurn"),
        ({"runs": "sqlite:///runs.db"}, r"runs='sqlite:///runs.db' must be DurableRuns\(database\)"),
        ({"max_runs": 2.5}, "max_runs=2.5 must be a whole number greater than 0"),
        ({"max_takeovers": True}, "max_takeovers=True must be a whole number greater than 0"),
        ({"poll_seconds": "1"}, "poll_seconds='1' must be a number greater than 0"),
    ],
)
def test_a_worker_that_could_end_no_run_is_not_made(tmp_path: Path, given: dict[str, Any], told: str) -> None:
    runs = DurableRuns(f"sqlite:///{tmp_path}/runs.db")
    right = {"runs": runs, "serves": {"turn": TURN, "loop": DurableLoop(LOOP, make_context)}}
    RunWorker(**right)  # type: ignore[arg-type]
    with pytest.raises(WiringError, match=f"RunWorker: {told}"):
        RunWorker(**(right | given))
