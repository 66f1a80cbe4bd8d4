"""Context managers: what they trim, what they leave alone, and what they say."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from chatstack import (
    CharCounter,
    ChatOptions,
    ChatStack,
    ChatStream,
    ClearThenDrop,
    ContextMemory,
    Message,
    OldestFirst,
    Plan,
    Strategy,
    ToolCall,
    WiringError,
)
from chatstack.client.wiring import Layer
from chatstack.context.edits.context import Context
from chatstack.context.strategies.clearing import ClearToolResults
from chatstack.nodes.managers import (
    AwaitedContextManager,
    BaseContextManager,
    MessageContextManager,
    StackContextManager,
    StrategyContextManager,
)
from chatstack.nodes.state import AgentState
from chatstack.stores.sqlite import SQLiteStore
from chatstack.testing import ScriptedClient, TelemetryCapture
from tests.context.strictness import leftovers, size

Trim = Callable[[BaseContextManager[Any], Any], Any]


def at_once(manager: BaseContextManager[Any], state: Any) -> Any:
    return manager.trim_context(state)


def awaited(manager: BaseContextManager[Any], state: Any) -> Any:
    return asyncio.run(manager.atrim_context(state))


def inside_a_loop(manager: BaseContextManager[Any], state: Any) -> Any:
    """The synchronous method, called where an event loop runs."""

    async def call() -> Any:
        return manager.trim_context(state)

    return asyncio.run(call())


both_ways = pytest.mark.parametrize("trim", [at_once, awaited, inside_a_loop])


def turns(count: int) -> list[Message]:
    return [m for n in range(count) for m in (Message.user(f"question {n}"), Message.assistant(f"answer {n}"))]


def loop(rounds: int, output: str = "sunny") -> list[Message]:
    calls = [(Message.assistant(ToolCall(f"c{n}", "look")), Message.tool(f"c{n}", output)) for n in range(rounds)]
    return [Message.user("task"), *(message for each in calls for message in each)]


# The newest messages


@both_ways
def test_the_newest_turns_are_kept_and_the_system_messages_come_first(trim: Trim) -> None:
    history = [Message.system("a"), *turns(3), Message.system("b"), *turns(2), Message.system("c")]
    state = AgentState(history, {"step": 1})
    trimmed = trim(MessageContextManager(max_messages=1), state)
    assert trimmed.messages == [history[0], history[7], history[12], *history[10:12]]
    assert trimmed.extra is state.extra
    assert state.messages is history
    assert len(history) == 13


@both_ways
def test_the_state_itself_comes_back_when_there_is_nothing_to_trim(trim: Trim) -> None:
    for history in ([], turns(10), [*turns(1), Message.system("late"), Message.user("so?")]):
        state = AgentState(history)
        assert trim(MessageContextManager(), state) is state


@both_ways
def test_broken_pairs_are_repaired_even_where_nothing_is_too_old(trim: Trim) -> None:
    """The original leaves orphans that were there, and makes new ones."""
    asked_in_vain = Message.assistant(ToolCall("b", "look"))
    history = [Message.tool("a", "of nobody"), Message.user("1"), asked_in_vain, Message.user("2")]
    capture = TelemetryCapture()
    trimmed = trim(MessageContextManager(telemetry=capture.telemetry), AgentState(history))
    assert leftovers(trimmed.messages) == {}
    assert [message.role for message in trimmed.messages] == ["user", "assistant", "tool", "user"]
    assert capture.warnings == ("messages_repaired",)


@both_ways
def test_a_long_tool_loop_after_one_user_message_can_be_bounded(trim: Trim) -> None:
    """The original counts user messages alone, so it sends all of it."""
    state = AgentState(loop(40))
    trimmed = trim(MessageContextManager(max_rounds=5), state)
    assert trimmed.messages == [state.messages[0], *state.messages[-10:]]


def test_what_was_trimmed_is_said_as_an_edit_and_no_warning() -> None:
    capture = TelemetryCapture()
    manager = MessageContextManager(2, telemetry=capture.telemetry)
    for count in (2, 3, 3):
        manager.trim_context(AgentState(turns(count)))
    (span,) = capture.spans
    assert span.name == "compact_context newest_turns"
    assert span.attributes["chatstack.compaction.reason"] == "3 user messages, more than 2"
    assert span.attributes["chatstack.compaction.messages_before"] == 6
    assert span.attributes["chatstack.compaction.messages_after"] == 4
    assert capture.warnings == ()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_messages": 0}, "MessageContextManager: max_messages=0 must be a whole number, at least 1"),
        ({"max_messages": "3"}, "MessageContextManager: max_messages='3'"),
        ({"max_rounds": -2}, "MessageContextManager: max_rounds=-2"),
        ({"remove_tool_msgs": "no"}, "MessageContextManager: remove_tool_msgs='no'"),
    ],
)
def test_options_that_would_drop_everything_are_refused_with_their_value(options: dict[str, Any], told: str) -> None:
    """The original takes 0 for "nothing but system messages"."""
    with pytest.raises(WiringError, match=told) as caught:
        MessageContextManager(**options)
    assert (caught.value.layer, caught.value.parameter) == ("MessageContextManager", next(iter(options)))


def test_the_repr_names_the_options() -> None:
    assert repr(MessageContextManager(3, max_rounds=2)) == (
        "MessageContextManager(max_messages=3, remove_tool_msgs=False, max_rounds=2)"
    )
    manager = StrategyContextManager(OldestFirst(50, 30))
    assert repr(manager).startswith("StrategyContextManager(strategy=OldestFirst(max_tokens=50, target_tokens=30)")


# Subclasses


class Half(BaseContextManager[AgentState]):
    def trim_context(self, state: AgentState) -> AgentState:
        return state


class OtherHalf(BaseContextManager[AgentState]):
    async def atrim_context(self, state: AgentState) -> AgentState:
        return state


class Neither(BaseContextManager[AgentState]):
    pass


@pytest.mark.parametrize(
    ("kind", "missing"),
    [(Half, "atrim_context"), (OtherHalf, "trim_context"), (Neither, "atrim_context and no trim_context")],
)
def test_a_subclass_that_lacks_a_method_fails_when_it_is_made_and_says_which(kind: type, missing: str) -> None:
    with pytest.raises(WiringError, match=rf"^{kind.__name__}: has no {missing};") as caught:
        kind()
    assert caught.value.layer == kind.__name__
    assert caught.value.parameter in missing


class Whole(BaseContextManager[AgentState]):
    def trim_context(self, state: AgentState) -> AgentState:
        return self.with_messages(state, state.messages[-1:])

    async def atrim_context(self, state: AgentState) -> AgentState:
        return self.trim_context(state)


@both_ways
def test_a_subclass_with_both_methods_needs_nothing_else(trim: Trim) -> None:
    state = AgentState(turns(2), {"step": 1})
    assert trim(Whole(), state) == AgentState(turns(2)[-1:], {"step": 1})
    assert len(state.messages) == 4


def test_a_subclass_without_a_constructor_takes_no_arguments() -> None:
    """As any class: an option that nobody reads must not be swallowed."""
    with pytest.raises(TypeError, match=r"Whole\(\) takes no arguments"):
        cast("Any", Whole)(max_messages=3)


def test_a_subclass_may_have_a_constructor_and_be_copied() -> None:
    class Keeping(Whole):
        def __init__(self, most: int) -> None:
            self.most = most

    assert copy.copy(Keeping(3)).most == 3


@dataclass(frozen=True)
class Turn:
    """A state whose messages are not under that name alone."""

    lines: tuple[Message, ...]

    @property
    def messages(self) -> Sequence[Message]:
        return self.lines


class OfTurns(MessageContextManager):
    def with_messages(self, state: Turn, messages: Sequence[Message]) -> Turn:
        return Turn(tuple(messages))


@both_ways
def test_how_a_state_is_made_can_be_overridden(trim: Trim) -> None:
    assert trim(OfTurns(1), Turn(tuple(turns(3)))) == Turn(tuple(turns(3)[-2:]))
    with pytest.raises(WiringError, match="Turn: cannot be copied with other messages; override with_messages"):
        trim(MessageContextManager(1), Turn(tuple(turns(3))))


# Managers that have to wait


class Summarizing(AwaitedContextManager[AgentState]):
    """Asks a model, as a summarizer does."""

    def __init__(self) -> None:
        self.asked = 0

    async def atrim_context(self, state: AgentState) -> AgentState:
        self.asked += 1
        await asyncio.sleep(0)
        return self.with_messages(state, [Message.assistant("in short"), *state.messages[-1:]])


@pytest.mark.parametrize("trim", [at_once, inside_a_loop])
def test_a_manager_that_asks_a_model_refuses_to_be_called_synchronously(trim: Trim) -> None:
    manager = Summarizing()
    with pytest.raises(WiringError, match=r"^Summarizing: trim_context .* `await atrim_context\(state\)`"):
        trim(manager, AgentState(turns(2)))
    assert manager.asked == 0


def test_awaited_it_does_what_it_says() -> None:
    trimmed = awaited(Summarizing(), AgentState(turns(2)))
    assert [message.text for message in trimmed.messages] == ["in short", "answer 1"]


def test_one_without_its_method_fails_when_it_is_made() -> None:
    class Empty(AwaitedContextManager[AgentState]):
        pass

    with pytest.raises(WiringError, match="Empty: has no atrim_context;"):
        cast("Any", Empty)()


# Strategies


LONG_RESULT = "x" * 40_000


@both_ways
@pytest.mark.parametrize(
    "strategy",
    [
        OldestFirst(5_000, 4_000),
        ClearToolResults(trigger={"tokens": 5_000}, keep={"messages": 1}),
        ClearThenDrop(5_000),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_a_long_tool_result_is_weighed_as_what_it_is(trim: Trim, strategy: Strategy) -> None:
    """The original counts 40,000 characters as one token."""
    history = [*loop(1, LONG_RESULT), Message.assistant("so"), Message.user("and?"), *loop(1)]
    state = AgentState(history)
    trimmed = trim(StrategyContextManager(strategy), state)
    assert size(trimmed.messages) < 5_000 < size(history)
    assert leftovers(trimmed.messages) == {}
    assert state.messages is history


@both_ways
def test_below_its_trigger_a_strategy_leaves_the_state_itself(trim: Trim) -> None:
    state = AgentState(turns(3))
    assert trim(StrategyContextManager(OldestFirst(5_000, 4_000)), state) is state


def test_what_was_decided_is_decided_the_same_way_again() -> None:
    capture = TelemetryCapture()
    manager = StrategyContextManager(OldestFirst(100, 50), telemetry=capture.telemetry)
    first = manager.trim_context(AgentState(turns(20)))
    second = manager.trim_context(AgentState([*turns(20), Message.user("more")]))
    assert second.messages == [*first.messages, Message.user("more")]
    assert len(capture.spans_named("compact_context truncate")) == 1


def test_managers_with_one_memory_share_what_they_decide() -> None:
    memory, capture = ContextMemory(), TelemetryCapture()
    for _ in range(2):
        manager = StrategyContextManager(OldestFirst(100, 50), memory=memory, telemetry=capture.telemetry)
        manager.trim_context(AgentState(turns(20)))
    assert len(capture.spans_named("compact_context truncate")) == 1


def test_a_memory_can_be_given_to_the_newest_messages_too() -> None:
    memory, capture = ContextMemory(), TelemetryCapture()
    for _ in range(2):
        MessageContextManager(1, memory=memory, telemetry=capture.telemetry).trim_context(AgentState(turns(3)))
    assert len(capture.spans_named("compact_context newest_turns")) == 1


def test_sizes_are_those_of_the_counter_that_was_given() -> None:
    state = AgentState(turns(5))
    strategy = OldestFirst(100, 50)
    assert StrategyContextManager(strategy).trim_context(state) is state
    assert len(StrategyContextManager(strategy, counter=CharCounter(0.5)).trim_context(state).messages) < 10


def test_what_goes_along_with_the_messages_is_weighed_with_them() -> None:
    state = AgentState(turns(5))
    options = ChatOptions(instructions="be kind " * 200)
    strategy = OldestFirst(200, 100)
    assert StrategyContextManager(strategy).trim_context(state) is state
    assert len(StrategyContextManager(strategy, options=options).trim_context(state).messages) < 10


@both_ways
def test_a_strategy_that_goes_by_the_window_is_told_it(trim: Trim) -> None:
    state = AgentState([*loop(3, LONG_RESULT), Message.assistant("so"), Message.user("and?")])
    for options in (None, ChatOptions(model="some-model")):
        manager = StrategyContextManager(ClearThenDrop(), window_tokens=8_000, options=options)
        assert size(trim(manager, state).messages) < 8_000


def test_a_window_that_nobody_knows_is_warned_of() -> None:
    capture = TelemetryCapture()
    state = AgentState(loop(3, LONG_RESULT))
    assert StrategyContextManager(ClearThenDrop(), telemetry=capture.telemetry).trim_context(state) is state
    assert capture.warnings == ("window_unknown",)


@dataclass(frozen=True)
class Reckless(Strategy):
    """Drops a call, and leaves its result."""

    def plan(self, context: Context) -> Plan | None:
        return Plan(strategy="reckless", reason="why not", drop=(1,))


@both_ways
def test_a_bad_plan_is_not_applied_and_is_warned_of(trim: Trim) -> None:
    capture = TelemetryCapture()
    state = AgentState(loop(2))
    assert trim(StrategyContextManager(Reckless(), telemetry=capture.telemetry), state) is state
    assert capture.warnings == ("plan_rejected",)


@dataclass(frozen=True)
class Broken(Strategy):
    def plan(self, context: Context) -> Plan | None:
        return cast("Plan", cast("Any", context).no_such_thing)


@both_ways
def test_what_a_strategy_raises_surfaces(trim: Trim) -> None:
    with pytest.raises(AttributeError, match="no_such_thing"):
        trim(StrategyContextManager(Broken()), AgentState(turns(1)))


@both_ways
def test_a_strategy_is_not_asked_about_no_messages_at_all(trim: Trim) -> None:
    """No request is without any, so none expects it."""
    state = AgentState()
    assert trim(StrategyContextManager(Broken()), state) is state


def in_a_thread(function: Callable[[Any], Any], argument: Any) -> Any:
    """Where no event loop runs."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function, argument).result()


def test_shared_decisions_have_to_be_awaited(tmp_path: Path) -> None:
    async def check() -> None:
        store = SQLiteStore(tmp_path / "decisions.db")
        manager = StrategyContextManager(OldestFirst(100, 50), memory=ContextMemory(store=store, scope="tenant"))
        state = AgentState(turns(20))
        with pytest.raises(WiringError, match=r"^StrategyContextManager: trim_context .* `await atrim_context"):
            manager.trim_context(state)
        with pytest.raises(WiringError, match=r"^StrategyContextManager: trim_context .* `await atrim_context"):
            in_a_thread(manager.trim_context, state)
        assert len((await manager.atrim_context(state)).messages) < 40
        await store.aclose()

    asyncio.run(check())


@dataclass(frozen=True)
class Passing:
    inner: Any

    async def send(self, request: Any, /) -> Any:
        await asyncio.sleep(0)
        return await self.inner.send(request)


def test_a_strategy_whose_layer_may_wait_has_to_be_awaited() -> None:
    class Waiting(OldestFirst):
        """A strategy with a layer of its own, which may well ask a model."""

        def as_layer(self) -> Layer:
            return lambda inner: Passing(Strategy.as_layer(OldestFirst(100, 50))(inner))

    manager = StrategyContextManager(Waiting(100, 50))
    with pytest.raises(WiringError, match="await atrim_context"):
        manager.trim_context(AgentState(turns(20)))
    assert len(awaited(manager, AgentState(turns(20))).messages) < 40


def test_a_layer_that_hides_what_it_sends_is_named() -> None:
    @dataclass(frozen=True)
    class Hiding:
        inner: Any

        async def send(self, request: Any, /) -> ChatStream:
            return ChatStream.opening(lambda: self.inner.send(request))

    class Secretive(OldestFirst):
        def as_layer(self) -> Layer:
            return Hiding

    with pytest.raises(WiringError, match=r"^Secretive: its layer gives a stream of its own"):
        awaited(StrategyContextManager(Secretive(100, 50)), AgentState(turns(2)))


@pytest.mark.parametrize("given", [OldestFirst, None, MessageContextManager()])
def test_what_is_no_strategy_is_refused(given: Any) -> None:
    with pytest.raises(WiringError, match=r"^StrategyContextManager: strategy is .*; pass an instance of a Strategy"):
        StrategyContextManager(given)


def test_what_are_no_options_of_calls_is_refused() -> None:
    options: Any = {"model": "m"}
    told = r"options=\{'model': 'm'\} must be ChatOptions\(...\)"
    with pytest.raises(WiringError, match=f"^StrategyContextManager: {told}"):
        StrategyContextManager(OldestFirst(100, 50), options=options)
    with pytest.raises(WiringError, match=f"^StackContextManager: {told}"):
        StackContextManager(ChatStack(ScriptedClient()), options=options)


# At the same time


def test_one_manager_serves_many_conversations_at_once() -> None:
    manager = MessageContextManager(2)
    histories = [[Message.user(f"{who}: {n}") for n in range(3 + who % 5)] for who in range(200)]

    async def check() -> None:
        trimmed = await asyncio.gather(*(manager.atrim_context(AgentState(each)) for each in histories))
        assert [each.messages for each in trimmed] == [each[-2:] for each in histories]

    asyncio.run(check())
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        states = list(pool.map(manager.trim_context, map(AgentState, histories)))
    assert [each.messages for each in states] == [each[-2:] for each in histories]
