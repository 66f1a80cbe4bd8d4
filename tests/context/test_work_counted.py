"""The work of a call, in counts: between edits it does not grow with the history, and an unknown past is soon known."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from chatstack import (
    CharCounter,
    ChatStack,
    ContextMemory,
    ContextWindowGuard,
    Message,
    Plan,
    Strategy,
    ToolCall,
    ToolResultClearer,
)
from chatstack.context.edits import context
from chatstack.context.edits.context import Context
from chatstack.context.edits.records import record_in_place
from chatstack.context.edits.verifier import problems
from chatstack.context.histories import digests, growth
from chatstack.context.requests.asking import on_this_thread
from chatstack.context.strategies.clearable import Clearer
from chatstack.context.strategies.clearing import ClearToolResults
from chatstack.context.strategies.truncating import Truncate
from chatstack.testing import ScriptedClient
from chatstack.values import handles
from chatstack.values.requests import ChatRequest
from tests.histories import decoded_again

LIMIT = 12_000


class Counting(CharCounter):
    """Counts how often it is asked."""

    is_cheap = False

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def count_message(self, message: Message) -> int:
        self.asked += 1
        return super().count_message(message)


def rounds(first: int, count: int) -> list[Message]:
    return [
        message
        for number in range(first, first + count)
        for message in (
            Message.assistant("I look.", ToolCall(f"c{number}", "look", '{"at": 1}')),
            Message.tool(f"c{number}", f"seen {number} " + "grey " * 20, name="look"),
        )
    ]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What digests were made of."""
    made: list[object] = []
    real = handles.written

    def noted(value: object) -> bytes:
        made.append(value)
        return real(value)

    monkeypatch.setattr(digests, "written", noted)
    monkeypatch.setattr(handles, "written", noted)
    return made


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", [list, decoded_again], ids=["the same objects", "fresh objects"])
def test_a_call_between_edits_counts_and_digests_what_is_new_alone(
    form: Callable[[Sequence[Message]], list[Message]], written: list[object]
) -> None:
    counter = Counting()
    model = ScriptedClient()
    client = (
        ChatStack(model, memory=ContextMemory(clock=lambda: 0.0))
        .use(ContextWindowGuard, max_context_tokens=LIMIT, prune_on_overflow=True, counter=counter)
        .build()
    )

    async def work_at(length: int) -> tuple[int, int]:
        """The most of five calls, once the history is edited, and known."""
        history = [Message.user(f"task {length}"), *rounds(0, length)]
        most = (0, 0)
        for at in range(8):
            history += rounds(length + at, 1)
            counter.asked = 0
            written.clear()
            await client.get_response(form(history), conversation_id=str(length))
            assert len(model.requests[-1].messages) < len(history)
            if at > 2:
                most = max(most, (counter.asked, len(written)))
        return most

    async def check() -> None:
        short, long = await work_at(500), await work_at(2_000)
        assert long <= short <= (16, 16), (short, long)

    asyncio.run(check())


@dataclass(frozen=True)
class Asked(Strategy):
    """Truncates, and keeps count; ``is_cheap`` says that it tells cheaply when it is due."""

    limit: int
    is_cheap: bool
    plans: list[int] = field(default_factory=list, repr=False, compare=False)
    tests: list[int] = field(default_factory=list, repr=False, compare=False)
    name = "asked"

    def is_due(self, context: Context) -> bool:
        self.tests.append(len(context.messages))
        return not self.is_cheap or Truncate(self.limit).is_due(context)

    def plan(self, context: Context) -> Plan | None:
        self.plans.append(len(context.messages))
        return Truncate(self.limit).plan(context)


def turns(first: int, count: int) -> list[Message]:
    return [
        message
        for number in range(first, first + count)
        for message in (Message.assistant(f"seen {number} " + "grey " * 20), Message.user("and then?"))
    ]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("limit", [LIMIT, 10_000_000])
@pytest.mark.parametrize("more", [rounds, turns], ids=["rounds of one turn", "turns"])
@pytest.mark.parametrize("is_cheap", [True, False])
def test_of_a_long_history_that_is_seen_first_a_strategy_is_asked_a_bounded_number_of_times(
    is_cheap: bool, more: Callable[[int, int], list[Message]], limit: int
) -> None:
    strategy = Asked(limit, is_cheap)
    client = ChatStack(ScriptedClient(), memory=ContextMemory(clock=lambda: 0.0)).use(strategy).build()
    history = [Message.user("task"), *more(0, 2_500)]

    async def check() -> None:
        await client.get_response(history, conversation_id="one")
        first = (len(strategy.plans), len(strategy.tests))
        assert first[0] <= (40 if is_cheap else 900)
        assert first[1] <= 40 * 3
        history.extend(more(2_500, 1))
        await client.get_response(history, conversation_id="one")
        assert len(strategy.plans) - first[0] <= 1
        assert len(strategy.tests) - first[1] <= 2

    asyncio.run(check())


def contexts_alive() -> int:
    return sum(type(each) is Context for each in gc.get_objects())


@pytest.mark.usefixtures("without_collector")
def test_of_a_long_history_that_is_seen_first_each_result_is_looked_at_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once to clear it, once as it is cleared. And no list of messages waits for the garbage collector."""
    looked_at, clearable = 0, Clearer.clearable
    client = ChatStack(ScriptedClient()).use(ToolResultClearer, trigger={"tokens": 10_000}).build()
    history = [Message.user("task"), *turns(0, 400), *rounds(0, 1_000)]

    def counted(*given: object) -> object:
        nonlocal looked_at
        looked_at += 1
        return clearable(*given)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Clearer, "clearable", counted)
    before = contexts_alive()
    with on_this_thread():
        asyncio.run(client.get_response(history))
    assert 1_000 < looked_at <= 2 * 1_000
    assert contexts_alive() == before


def calls_of(work: Callable[[], object]) -> int:
    """Count the Python calls of some work."""
    count = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("number", [100, 400])
def test_to_clear_a_result_its_message_is_made_counted_and_verified_once(number: int, written: list[object]) -> None:
    """Plan, verifier and record take 25 Python calls for each result, 7 of them the counter's; once 37."""
    counter, memory = Counting(), ContextMemory()
    counter.is_cheap = True  # type: ignore[misc]
    messages = [Message.user("task"), *rounds(0, number), Message.assistant("done"), Message.user("go on")]
    request, size_of = ChatRequest(tuple(messages)), memory.sizes_by(counter)
    context = Context.of(request, fixed_tokens=0, size_of=size_of)
    strategy = ClearToolResults(trigger={"messages": 1}, keep={"messages": 0})
    counter.asked = 0

    def clear() -> None:
        plan = strategy.plan(context)
        assert plan is not None
        assert len(plan.replace) == number
        assert problems(plan, context) == ()
        record_in_place(context.messages, 0, dict(plan.replace))

    calls = calls_of(clear)
    assert counter.asked == number
    assert written == []
    assert calls <= 26 * number, calls / number


@pytest.mark.parametrize("systems", [0, 2])
def test_to_clear_results_of_a_known_history_nothing_is_paired_or_grouped_anew(
    systems: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ScriptedClient()
    client = ChatStack(model).use(ToolResultClearer, trigger={"messages": 205 + systems}).build()
    history = [*[Message.system("be brief")] * systems, Message.user("task"), *rounds(0, 101)]

    def refused(_: object) -> object:
        raise AssertionError("the history has these")

    async def check() -> None:
        await client.get_response(history)
        monkeypatch.setattr(growth, "places_of", refused)
        monkeypatch.setattr(context, "units_of", refused)
        history.extend(rounds(101, 1))
        waiting = Message.assistant(ToolCall("new", "look"))  # its unit is open
        await client.get_response([*history, waiting])

    asyncio.run(check())
    cleared = [each for each in model.requests[-1].messages if each.original is not each]
    assert len(cleared) == 102 - 3


def test_what_context_layers_add_to_a_call_with_nothing_to_edit_is_few_python_calls() -> None:
    """192 (3.11), each of 0.1 to 0.2 µs; they were 245 with generators, casts, and questions that were asked twice."""

    def calls(stack: ChatStack) -> int:
        client, history, found = stack.build(), [Message.user("task"), *rounds(0, 100)], 0
        with asyncio.Runner() as runner:
            for number in range(100, 104):
                history.extend(rounds(number, 1))
                found = calls_of(lambda: runner.run(client.get_response(history)))
        return found

    stack = ChatStack(ScriptedClient(), memory=ContextMemory())
    layers = stack.use(ToolResultClearer).use(ContextWindowGuard, max_context_tokens=1_000_000, prune_on_overflow=True)
    assert 0 < calls(layers) - calls(stack) <= 200
