"""A run is forgotten as a whole: its journal, and what was decided about its messages."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chatstack import ChatStack, ContextMemory, ServerError, Summarizer, ToolResultClearer
from chatstack.loop.iterative import IterativeLoop
from chatstack.stores.sqlite import SQLiteStore
from chatstack.stores.sqlite_journal import SQLiteJournal
from chatstack.testing import Answer, ScriptedClient
from tests.loop.runs import call, fresh, look

SECRET = "a secret of theirs"


def content(folder: Path, pattern: str = "*") -> bytes:
    return b"".join(each.read_bytes() for each in folder.glob(pattern))


def memory_over(folder: Path) -> ContextMemory:
    return ContextMemory(store=SQLiteStore(folder / "decisions.db"), scope="all", store_timeout_seconds=300)


@pytest.mark.parametrize("ends", [True, False], ids=["a run that ended", "a run that failed"])
def test_a_run_is_forgotten_with_what_was_decided_about_its_messages(tmp_path: Path, ends: bool) -> None:
    calls: list[Answer] = [[call("look", f"c{at}", what=f"{SECRET} {at} " + "grey " * 80)] for at in range(4)]
    two: Answer = [call("look", "d1", what="x " * 200), call("look", "d2", what="y " * 200)]
    answers = [*calls, two, *calls, "done" if ends else ServerError("down")]

    async def main() -> None:
        memory, journal = memory_over(tmp_path), SQLiteJournal(tmp_path / "runs.db")
        stack = ChatStack(ScriptedClient(answers), memory=memory)
        stack = stack.use(ToolResultClearer, trigger={"tokens": 300}, keep={"messages": 1})
        writer = ScriptedClient([f"They told {SECRET}."])
        stack = stack.use(Summarizer, max_tokens=320, keep_recent_turns=1, summary_client=writer)
        loop = IterativeLoop(
            stack.build(),
            "You look at things.",
            lambda context: "look at everything",
            [look],
            journal=journal,
            mode="multi_round",
            max_tool_rounds=20,
        )
        result = await loop.run(fresh(run_id="r"))
        assert (result.reason == "error") != ends
        await memory.aclose()
        for kept in ("decisions.db", "runs.db"):
            assert SECRET.encode() in content(tmp_path, f"{kept}*")
        other = memory_over(tmp_path)
        await journal.forget("r", memory=other)
        await journal.aclose()
        await other.aclose()
        assert SECRET.encode() not in content(tmp_path)

    asyncio.run(main())
