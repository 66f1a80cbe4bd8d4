"""Where what a tool returns is written as JSON: a large result must not hold up the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from chatstack import Message, ToolCall, ToolContext, tool
from chatstack.errors import ToolTimeoutError
from chatstack.testing import TelemetryCapture
from chatstack.tools.execution import Outcome, ToolRunner
from chatstack.tools.output import is_large

MANY = 20_000


class Row:
    """A model, as pydantic's are, that keeps the thread which it is written in."""

    def __init__(self, rows: int = 0) -> None:
        self.rows = list(range(rows))
        self.thread = 0

    def model_dump(self, *, mode: str) -> dict[str, object]:
        self.thread = threading.get_ident()
        return {"rows": len(self.rows)}


def ran(function: Callable[..., Any], **options: Any) -> tuple[Outcome, int]:
    """Return the outcome of a call, and the thread of its event loop."""

    async def run() -> tuple[Outcome, int]:
        made = tool(function)
        runner = ToolRunner({made.name: made}, TelemetryCapture().telemetry, **options)
        context = ToolContext(
            conversation_id=None, call_id="1", tool_name=made.name, round=0, messages=(Message.user("go"),)
        )
        outcome = await runner.run(ToolCall("1", made.name), context)
        return outcome, threading.get_ident()

    return asyncio.run(asyncio.wait_for(run(), 300))


def test_what_a_plain_function_returns_is_written_in_its_own_thread() -> None:
    row, threads = Row(), list[int]()

    def find() -> Row:
        threads.append(threading.get_ident())
        return row

    outcome, loop = ran(find)
    assert outcome.result.output == '{"rows":0}'
    assert [row.thread] == threads != [loop]


@pytest.mark.parametrize("is_decorated", [False, True])
@pytest.mark.parametrize("rows", [0, MANY])
def test_what_an_async_one_returns_is_written_on_the_loop_only_where_it_is_small(rows: int, is_decorated: bool) -> None:
    row = Row(rows)

    async def find() -> list[Row]:
        return [row]

    def decorated() -> Any:
        return find()

    outcome, loop = ran(decorated if is_decorated else find)
    assert outcome.result.output == f'[{{"rows":{rows}}}]'
    assert (row.thread == loop) is (rows == 0)


def test_writing_counts_within_the_time_limit_and_a_loop_goes_on_meanwhile() -> None:
    written, beats = threading.Event(), list[int]()

    class Slow(Row):
        def model_dump(self, *, mode: str) -> dict[str, object]:
            written.wait(300)
            return {}

    async def beat() -> None:
        while True:
            beats.append(1)
            await asyncio.sleep(0.005)

    async def find() -> Row:
        asyncio.get_running_loop().create_task(beat())
        return Slow(MANY)

    outcome, _ = ran(find, timeout_seconds=0.1)
    written.set()
    assert isinstance(outcome.failure, ToolTimeoutError)
    assert len(beats) > 2


def circle() -> list[object]:
    values: list[object] = []
    values.append(values)
    return values


@pytest.mark.parametrize(
    "value",
    [
        list(range(MANY)),
        {"page": {"rows": [{"n": number} for number in range(MANY)]}},
        SimpleNamespace(rows=[0] * MANY),
        (set(range(MANY)),),
        circle(),
    ],
    ids=["list", "deep", "object", "set", "circle"],
)
def test_a_value_is_large_by_all_that_it_holds(value: object) -> None:
    assert is_large(value)


@pytest.mark.parametrize("value", [None, "text" * MANY, {"a": [1, 2.5, True]}, Row(), object(), type])
def test_texts_and_a_few_values_are_not(value: object) -> None:
    assert not is_large(value)
