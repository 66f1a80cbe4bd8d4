"""A run that dies at any entry of its journal, before or after it is written: the next life comes to the same."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chatstack import tool
from chatstack.loop.context import IterativeContext
from chatstack.loop.iteration import INTERRUPTED
from chatstack.loop.iterative import IterativeLoop
from chatstack.loop.journal import Entry
from chatstack.loop.results import IterativeResult
from chatstack.loop.workspace import MemoryWorkspace
from chatstack.stores.sqlite_journal import SQLiteJournal
from chatstack.testing import ScriptedClient
from tests.loop.runs import call, outputs


class Killed(BaseException):
    pass


class Dying:
    """A journal that kills whoever writes its n-th entry, before or after it is written."""

    def __init__(self, journal: SQLiteJournal, at: int, *, before: bool) -> None:
        self.journal = journal
        self.at = at
        self.before = before
        self.seen = 0

    async def entries(self, run_id: str) -> Sequence[Entry]:
        return await self.journal.entries(run_id)

    async def append(self, run_id: str, number: int, entry: Entry) -> None:
        self.seen += 1
        if self.seen == self.at and self.before:
            raise Killed
        await self.journal.append(run_id, number, entry)
        if self.seen == self.at:
            raise Killed


def lived(path: Path, at: int, *, before: bool, ran: list[str], workspace: MemoryWorkspace) -> tuple[Any, Any]:
    """One life: what it came to, None if it was killed; and its context."""

    async def main() -> tuple[IterativeResult | None, IterativeContext]:
        journal = SQLiteJournal(path)
        context = IterativeContext(workspace=workspace, run_id="r1")

        @tool
        async def work(name: str) -> str:
            """Works."""
            ran.append(name)
            context.state["worked"] = [*context.state.get("worked", []), name]
            return f"{name} is done"

        def prompt(context: IterativeContext) -> str:
            context.state["prompts"] = context.state.get("prompts", 0) + 1
            return f"iteration {context.iteration}: {[each.output for each in context.last_tool_results]}"

        loop = IterativeLoop(
            Rounds(),
            "Work.",
            prompt,
            [work],
            mode="multi_round",
            max_tool_rounds=2,
            max_iterations=2,
            max_concurrency=1,
            journal=Dying(journal, at, before=before),
        )
        try:
            return await loop.run(context), context
        except Killed:
            return None, context
        finally:
            await journal.aclose()

    return asyncio.run(main())


class Rounds(ScriptedClient):
    """Asks for two calls in each round, named by iteration and round."""

    async def send(self, request: Any, /) -> Any:
        iteration = request.messages[0].text.split()[1].rstrip(":")
        number = sum(message.role == "assistant" for message in request.messages)
        self.answers = [
            [call("work", f"{iteration}{number}{which}", name=f"{iteration}{number}{which}") for which in "ab"]
        ]
        return await super().send(request)


ENTRIES = 2 * (1 + 2 * (1 + 2 * 2) + 1)
ALL = [f"{iteration}{number}{which}" for iteration in "01" for number in "01" for which in "ab"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A life that nothing ends early."""
    path = tmp_path_factory.mktemp("whole") / "runs.db"
    return lived(path, 0, before=False, ran=[], workspace=MemoryWorkspace())


@pytest.mark.sampled(5)
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("at", range(1, ENTRIES + 1))
def test_killed_at_any_entry_the_next_life_comes_to_the_same(
    tmp_path: Path, at: int, before: bool, undisturbed: tuple[Any, Any]
) -> None:
    path, ran, workspace = tmp_path / "runs.db", list[str](), MemoryWorkspace()
    whole, expected = undisturbed
    first, _ = lived(path, at, before=before, ran=ran, workspace=workspace)
    assert first is None
    result, context = lived(path, 0, before=False, ran=ran, workspace=workspace)
    assert (result.reason, result.usage.output_tokens) == ("max_iterations", whole.usage.output_tokens)
    told = [each for iteration in outputs(result) for each in iteration]
    interrupted = [name for name, output in zip(ALL, told, strict=True) if output == INTERRUPTED]
    assert [output for output in told if output != INTERRUPTED] == [f"{n} is done" for n in ALL if n not in interrupted]
    assert len(interrupted) <= 1
    assert interrupted or result.usage == whole.usage  # to be told of it takes more tokens
    assert len(set(ran)) == len(ran)
    assert set(ALL) - set(interrupted) <= set(ran)
    assert context.state == {"prompts": 2, "worked": [name for name in ALL if name not in interrupted]}
    assert [record.model_calls for record in result.iterations] == [2, 2]
    assert expected.state["prompts"] == 2
    last, _ = lived(path, 0, before=False, ran=ran, workspace=workspace)
    assert last == result
