"""A run that was cancelled, failed or had ended is run again: what goes on, and with what."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

import msgspec
import pytest

from chatstack import InputError, ServerError, StoreError, ToolCall, WiringError, tool
from chatstack.loop.context import IterativeContext
from chatstack.loop.iteration import INTERRUPTED
from chatstack.loop.iterative import IterativeLoop
from chatstack.loop.journal import Entry, IterationEnded, IterationStarted, ModelAnswered, ToolEnded, histories
from chatstack.loop.results import IterativeResult
from chatstack.loop.settings import LoopMode, Prompt
from chatstack.loop.workspace import MemoryWorkspace
from chatstack.stores.sqlite_journal import SQLiteJournal
from chatstack.testing import Answer, ScriptedClient, TelemetryCapture
from chatstack.tools.parameters import ToolContext
from tests.loop.runs import InMemory, Options, asked, call, fresh, look, looped, numbered, outputs, run


def journalled(
    path: Path,
    answers: Sequence[Answer],
    context: IterativeContext,
    prompt: Prompt = numbered,
    **given: Unpack[Options],
) -> tuple[IterativeResult, IterativeLoop]:
    async def main() -> tuple[IterativeResult, IterativeLoop]:
        given["journal"] = journal = SQLiteJournal(path)
        try:
            loop = looped(answers, prompt, **given)
            return await loop.run(context), loop
        finally:
            await journal.aclose()

    return asyncio.run(main())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def test_a_run_that_failed_goes_on_when_it_is_run_again_and_its_tools_are_not_run_twice(path: Path) -> None:
    workspace = MemoryWorkspace()
    failed, _ = journalled(
        path, [[call("note", text="a")], ServerError("down")], fresh(workspace=workspace, run_id="r")
    )
    assert (failed.reason, failed.usage.total_tokens > 0) == ("error", True)
    result, loop = journalled(path, ["noted"], fresh(workspace=workspace, run_id="r"))
    assert (result.reason, workspace.read("notes.md")) == ("answered", "a\n")
    assert asked(loop) == [["iteration 0", 'note({"text": "a"})', "noted a"]]
    assert result.iterations[0].model_calls == 2
    assert result.usage.total_tokens > failed.usage.total_tokens


def test_spans_tell_of_what_was_used_in_them_so_that_no_sum_counts_it_twice(path: Path) -> None:
    capture = TelemetryCapture()
    answers: list[Answer] = [[call("look", what="a")], ServerError("down")]
    journalled(path, answers, fresh(run_id="r"), telemetry=capture.telemetry)
    result, _ = journalled(path, ["done"], fresh(run_id="r"), telemetry=capture.telemetry)
    for name in ("invoke_workflow loop", "invoke_agent loop"):
        told = [int(str(span.attributes["gen_ai.usage.input_tokens"])) for span in capture.spans_named(name)]
        assert (len(told), min(told) > 0, sum(told)) == (2, True, result.usage.input_tokens)


@pytest.mark.parametrize("mode", ["single_call", "one_round_trip"])
def test_a_run_that_was_cancelled_goes_on_and_what_was_not_begun_is_run(path: Path, mode: LoopMode) -> None:
    context = fresh(run_id="r")
    calls = [call("look", "1", what="a"), call("note", "2", text="b")]

    def stop(call: ToolCall, context: IterativeContext) -> None:
        context.cancellation.cancel()

    first, _ = journalled(path, [calls], context, on_tool_call=stop, max_concurrency=1, mode=mode, max_iterations=1)
    assert (first.reason, first.tool_calls, first.iterations[0].is_partial) == ("cancelled", 1, True)
    result, loop = journalled(path, ["done"], fresh(run_id="r", workspace=context.workspace), mode=mode)
    assert (result.reason, outputs(result)[0]) == ("answered", ["saw a", "noted b"])
    assert len(asked(loop)) == 1


@pytest.mark.parametrize("step", range(0, 40, 2))
def test_a_run_whose_task_was_cancelled_at_any_moment_comes_to_the_same(path: Path, step: int) -> None:
    calls = [call("look", f"c{number}", what=str(number)) for number in range(4)]
    answers: list[Answer] = [calls, "one", calls, "two"]

    async def main() -> tuple[IterativeResult, int]:
        journal, workspace = SQLiteJournal(path), MemoryWorkspace()
        asked_before = 0
        for seconds in (step * 0.0002, 30):
            loop = looped(
                answers[asked_before:] or ["never"],
                tools=[tool(idempotent=True)(look.function)],
                journal=journal,
                is_complete=lambda context: context.iteration == 1,
            )
            context = fresh(run_id="r", workspace=workspace)
            running = asyncio.create_task(loop.run(context))
            await asyncio.wait([running], timeout=seconds)
            if running.done() or running.cancel() is False:
                break
            with pytest.raises(asyncio.CancelledError):
                await running
            asked_before = sum(isinstance(entry, ModelAnswered) for entry in await journal.entries("r"))
        await journal.aclose()
        return running.result(), asked_before

    result, _ = asyncio.run(main())
    assert (result.reason, [record.text for record in result.iterations]) == ("completed", ["one", "two"])
    assert outputs(result) == [[f"saw {number}" for number in range(4)]] * 2
    assert (
        result.usage.output_tokens
        == run(looped(answers, max_iterations=2, is_complete=lambda _: False)).usage.output_tokens
    )


def test_a_call_that_nobody_had_approved_yet_was_not_begun(path: Path) -> None:
    def leave(call: ToolCall, about: ToolContext) -> bool:
        raise ServerError("nobody is there")

    failed, _ = journalled(path, [[call("look", what="a")]], fresh(run_id="r"), approve=leave)
    assert (failed.reason, type(failed.error)) == ("error", ServerError)
    result, _ = journalled(path, ["done"], fresh(run_id="r"), approve=lambda call, about: True)
    assert outputs(result) == [["saw a"]]


def test_a_run_that_has_ended_gives_the_same_again_and_asks_nobody(path: Path) -> None:
    first, _ = journalled(path, [[call("look", what="a")], "done"], fresh(run_id="r", state={"a": 1}))
    context = fresh(run_id="r", state={"b": 2})
    again, loop = journalled(path, ["never"], context, is_complete=lambda context: False)
    assert (again, asked(loop)) == (first, [])
    assert context.state == {"a": 1}


@pytest.mark.parametrize("limit", [{"max_iterations": 2}, {"max_tokens": 30}, {"max_total_tool_calls": 1}])
def test_each_limit_that_ended_it_is_the_end_again(path: Path, limit: Options) -> None:
    answers: list[Answer] = [[call("note", text=str(number))] for number in range(9)]
    limit["mode"] = "single_call"
    first, _ = journalled(path, answers, fresh(run_id="r"), **limit)
    again, loop = journalled(path, ["never"], fresh(run_id="r"), **limit)
    assert first.reason == next(iter(limit)).replace("max_tokens", "budget").replace("max_total", "max")
    assert (again, asked(loop)) == (first, [])


def test_a_higher_limit_does_not_reopen_a_run_and_the_warning_counts_what_was_run(path: Path) -> None:
    answers: list[Answer] = [[call("note", text=str(number))] for number in range(9)]
    capture = TelemetryCapture()
    given: Options = {"mode": "single_call", "telemetry": capture.telemetry, "max_iterations": 2}
    first, _ = journalled(path, answers, fresh(run_id="r"), **given)
    given["max_iterations"] = 20
    again, loop = journalled(path, ["never"], fresh(run_id="r"), **given)

    assert (again, asked(loop)) == (first, [])
    told = [span.attributes["chatstack.warning.message"] for span in capture.spans_named("iterative_loop")]
    assert told == ["2 iterations, and not complete"] * 2


def test_calls_that_were_let_through_are_not_cut_by_a_limit_that_is_lower_by_now(path: Path) -> None:
    calls: list[Answer] = [[call("look", str(number), what=str(number)) for number in range(4)], ServerError("down")]

    def but_the_first(call: ToolCall, about: ToolContext) -> bool | str:
        return call.id != "0" or "No."

    journalled(path, calls, fresh(run_id="r"), approve=but_the_first)
    result, _ = journalled(path, ["done"], fresh(run_id="r"), max_total_tool_calls=1)
    assert outputs(result) == [["Error: No.", "saw 1", "saw 2", "saw 3"]]


def test_an_iteration_that_has_used_up_the_budget_is_brought_to_its_end(path: Path) -> None:
    failed, _ = journalled(path, [[call("look", what="a")]], fresh(run_id="r"), max_tokens=1, on_tool_call=failing_hook)
    assert (failed.reason, failed.tool_calls) == ("error", 0)
    result, loop = journalled(path, ["never"], fresh(run_id="r"), max_tokens=1)
    assert (result.reason, outputs(result), result.iterations[0].is_partial) == ("budget", [["saw a"]], False)
    assert (asked(loop), result.usage) == ([], failed.usage)


def failing_hook(call: ToolCall, context: IterativeContext) -> None:
    raise ServerError("down")


def test_an_iteration_stays_what_it_was_begun_as_whatever_the_budget_is_by_now(path: Path) -> None:
    calls: list[Answer] = [[call("look", what="a")]]
    journalled(path, calls, fresh(run_id="a"), max_tokens=1_000, pressure=0.01, on_tool_call=failing_hook)
    result, loop = journalled(path, ["seen"], fresh(run_id="a"), max_tokens=1_000, pressure=0.01)
    assert isinstance(loop.client, ScriptedClient)
    assert [request.options.tool_choice for request in loop.client.requests] == [None]
    assert ([record.is_final for record in result.iterations], result.reason) == ([False], "answered")

    journalled(path, [*calls, KeyError()], fresh(run_id="b"), max_tokens=1_000, pressure=0.01, mode="single_call")
    result, loop = journalled(path, ["in short"], fresh(run_id="b"), max_tokens=1_000_000, mode="single_call")
    assert isinstance(loop.client, ScriptedClient)
    assert [request.options.tool_choice for request in loop.client.requests] == ["none"]
    assert ([record.is_final for record in result.iterations], result.reason) == ([False, True], "budget")


def test_the_prompt_is_not_asked_for_again_and_the_last_results_are_there(path: Path) -> None:
    def failing(context: IterativeContext) -> bool:
        if context.iteration == 1:
            raise ServerError("down")
        return False

    journalled(path, [[call("look", what="a")]], fresh(run_id="r"), is_complete=failing, mode="single_call")
    asked_for: list[tuple[int, list[str]]] = []

    def prompt(context: IterativeContext) -> str:
        asked_for.append((context.iteration, [each.output for each in context.last_tool_results]))
        return "again"

    result, _ = journalled(
        path, ["done"], fresh(run_id="r"), prompt=prompt, mode="single_call", is_complete=lambda c: c.iteration == 2
    )
    assert asked_for == [(2, ["saw a"])]
    assert (result.reason, len(result.iterations)) == ("completed", 3)


def test_the_iterator_gives_the_iterations_that_end_now(path: Path) -> None:
    journalled(path, [[call("look", what="a")], ServerError("down")], fresh(run_id="r"), mode="single_call")

    async def main() -> list[int]:
        journal = SQLiteJournal(path)
        loop = looped(["done"], mode="single_call", journal=journal)
        seen = [record.iteration async for record in loop.iterations(fresh(run_id="r"))]
        await journal.aclose()
        return seen

    assert asyncio.run(main()) == [1]


def test_runs_are_known_by_their_ids_and_a_forgotten_one_begins_anew(path: Path) -> None:
    journalled(path, ["one"], fresh(run_id="a"))
    assert journalled(path, ["two"], fresh(run_id="b"))[0].text == "two"

    async def forget() -> None:
        journal = SQLiteJournal(path)
        await journal.forget("a")
        await journal.aclose()

    asyncio.run(forget())
    assert journalled(path, ["three"], fresh(run_id="a"))[0].text == "three"
    assert journalled(path, ["never"], fresh(run_id="b"))[0].text == "two"


def test_a_state_that_is_no_json_is_refused_only_where_it_must_be_written_down(path: Path) -> None:
    result, _ = journalled(path, ["done"], fresh(run_id="r", state={"lock": object()}))
    assert (result.reason, type(result.error)) == ("error", InputError)
    assert "context.state cannot be written down" in str(result.error)
    assert run(looped(["done"]), fresh(state={"lock": object()})).reason == "answered"


def test_a_journal_needs_a_run_id() -> None:
    with pytest.raises(InputError, match="needs a run_id"):
        looped(["done"], journal=SQLiteJournal("never.db")).iterations(fresh())


def test_a_journal_cannot_write_half_a_character() -> None:
    with pytest.raises(InputError, match=r"run_id='\\ud800' has half a character"):
        looped(["done"], journal=SQLiteJournal("never.db")).iterations(fresh(run_id="\ud800"))


def test_a_class_of_journals_is_no_journal() -> None:
    with pytest.raises(WiringError, match=r"journal=.*must be a Journal"):
        looped(["done"], journal=SQLiteJournal)  # type: ignore[arg-type]


def test_whoever_changes_the_folder_keeps_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)
    journal = SQLiteJournal("runs.db")
    monkeypatch.chdir(tmp_path / "below")
    assert run(looped(["done"], journal=journal), fresh(run_id="r")).reason == "answered"
    asyncio.run(journal.aclose())
    assert (tmp_path / "runs.db").exists()


def test_a_damaged_journal_ends_the_run_before_anything_is_asked(path: Path) -> None:
    path.write_bytes(b"not a database" * 100)
    context = fresh(run_id="r")
    result, loop = journalled(path, ["never"], context)
    assert (result.reason, type(result.error), asked(loop)) == ("error", StoreError, [])
    assert path.read_bytes() == b"not a database" * 100


def test_a_journal_that_fails_in_the_middle_ends_the_run_and_it_goes_on_when_the_journal_does(path: Path) -> None:
    class Full:
        def __init__(self, journal: SQLiteJournal) -> None:
            self.journal = journal

        async def entries(self, run_id: str) -> Sequence[Entry]:
            return await self.journal.entries(run_id)

        async def append(self, run_id: str, number: int, entry: Entry) -> None:
            if number >= 3:
                raise StoreError("the disk is full")
            await self.journal.append(run_id, number, entry)

    async def main() -> tuple[IterativeResult, IterativeResult]:
        journal = SQLiteJournal(path)
        calls = [call("look", "1", what="a"), call("look", "2", what="b")]
        full = looped([calls], tools=[look], journal=Full(journal))
        first = await full.run(fresh(run_id="r"))
        second = await looped(["done"], tools=[look], journal=journal).run(fresh(run_id="r"))
        await journal.aclose()
        return first, second

    first, second = asyncio.run(main())
    assert (first.reason, str(first.error)) == ("error", "the disk is full")
    assert second.reason == "answered"


class Hiccup(InMemory):
    """A journal in memory, which fails for one entry; nothing of it waits."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    async def append(self, run_id: str, number: int, entry: Entry) -> None:
        if len(self.written) == self.at:
            self.at = -1
            raise StoreError("busy")
        await super().append(run_id, number, entry)


def test_after_an_entry_that_could_not_be_written_none_is_written_and_no_tool_is_begun() -> None:
    ran: list[str] = []

    @tool
    async def work(name: str) -> str:
        """Works."""
        ran.append(name)
        return name

    journal = Hiccup(at=3)
    calls: list[Answer] = [[call("work", f"c{name}", name=name) for name in "abc"], "done"]
    options: Options = {"journal": journal, "max_concurrency": 1}
    result = run(looped(calls, tools=[work], **options), fresh(run_id="r"))
    assert (result.reason, str(result.error), len(journal.written), ran) == ("error", "busy", 3, ["a"])
    result = run(looped(["done"], tools=[work], **options), fresh(run_id="r"))
    assert (outputs(result), ran) == ([[INTERRUPTED, "b", "c"]], ["a", "b", "c"])


def test_the_state_is_written_only_where_it_has_changed() -> None:
    def ended(record: object, context: IterativeContext) -> None:
        context.state["ended"] = True

    journal = Hiccup(at=-1)
    answers: list[Answer] = [[call("look", what="a")], "done"]
    run(looped(answers, journal=journal, on_iteration_end=ended), fresh(run_id="r", state={"a": 1}))
    states = [
        entry.state for entry in journal.written if isinstance(entry, IterationStarted | ToolEnded | IterationEnded)
    ]
    assert states == [{"a": 1}, None, {"a": 1, "ended": True}]


def as_json(entry: Entry) -> object:
    return msgspec.json.decode(msgspec.json.encode(entry))


def numbered_pair(entry: Entry) -> object:
    return (0, entry)


@pytest.mark.parametrize(("form", "given"), [(as_json, "a dict"), (numbered_pair, "a tuple")])
def test_entries_in_another_form_end_the_run_before_anything_is_asked(
    form: Callable[[Entry], object], given: str
) -> None:
    class Own(Hiccup):
        async def entries(self, run_id: str) -> Sequence[Any]:
            return [form(entry) for entry in self.written]

    journal = Own(at=-1)
    run(looped([[call("look", what="a")], ConnectionError("gone")], journal=journal), fresh(run_id="r"))
    loop = looped(["never"], journal=journal)
    result = run(loop, fresh(run_id="r"))
    assert (result.reason, type(result.error), asked(loop)) == ("error", StoreError, [])
    told = rf"^Own.entries\(\): {given} in the place of an entry: msgspec.json.decode\(data, type=Entry\)"
    assert re.match(told, str(result.error))
    with pytest.raises(StoreError, match=f"^histories: {given} in the place of an entry"):
        histories(asyncio.run(journal.entries("r")))


class GivesNone(Hiccup):
    async def entries(self, run_id: str) -> Any:
        return None


class Yields(Hiccup):
    async def entries(self, run_id: str) -> Any:
        for entry in self.written:
            yield entry


class Reads(Hiccup):
    def entries(self, run_id: str) -> Any:
        return list(self.written)


class Appends(Hiccup):
    def append(self, run_id: str, number: int, entry: Entry) -> Any:
        self.written.append(entry)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (GivesNone, "GivesNone: entries() gave a NoneType: return a list of entries, which may be empty"),
        (Yields, "Yields: entries() is no coroutine function: write 'async def entries', without a 'yield'"),
        (Reads, "Reads: entries() is no coroutine function: write 'async def entries', without a 'yield'"),
        (Appends, "Appends: append() is no coroutine function: write 'async def append', without a 'yield'"),
    ],
)
def test_a_journal_with_other_methods_is_named(kind: type[Hiccup], told: str) -> None:
    loop = looped(["never"], journal=kind(at=-1))
    result = run(loop, fresh(run_id="r"))
    assert (type(result.error), str(result.error), asked(loop)) == (StoreError, told, [])
