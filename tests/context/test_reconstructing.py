"""A reconstruction shares what its requests have in common; the edits are those of each request by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import CharCounter, ChatRequest, ChatStack, ContextMemory, Message, Plan, Strategy
from chatstack.context.decisions import reconstructing
from chatstack.context.decisions.policy import Policy
from chatstack.context.decisions.reconstructing import Reconstruction, Step
from chatstack.context.edits.context import Context
from chatstack.context.histories.growth import Growth
from chatstack.context.requests.asking import answered
from chatstack.context.strategies.clearing import ClearToolResults
from chatstack.context.strategies.condensing import ClearThenDrop
from chatstack.context.strategies.pruning import OldestFirst
from chatstack.testing import ScriptedClient
from tests.calls import calls_in
from tests.context.test_work_counted import rounds
from tests.histories import PROPERTY, tidy_histories

COUNTER = CharCounter()
STRATEGIES: list[Strategy] = [
    ClearToolResults(trigger={"tokens": 1}, keep={"messages": 0}),
    ClearToolResults(trigger={"tokens": 40}, keep={"tokens": 30}, clear_tool_inputs=True),
    ClearToolResults(trigger={"messages": 3}, keep={"messages": 1}, clear_at_least="pays"),
    ClearThenDrop(60),
]


def steps_of(strategy: Strategy, messages: Sequence[Message], *, shares: bool = True) -> list[Step]:
    def plan(context: Context) -> Plan | None:
        return strategy.plan(context if shares else msgspec.structs.replace(context))

    memory = ContextMemory()
    # Nothing pays in a context that is too small for a cache.
    fixed_tokens = 2_000 if getattr(strategy, "clear_at_least", 0) == "pays" else 0
    came = Context.of(ChatRequest(tuple(messages)), fixed_tokens=fixed_tokens, size_of=memory.sizes_by(COUNTER))
    seen = memory.recognise(came.messages)
    return asyncio.run(answered(Reconstruction(came, seen, COUNTER, Policy(plan, strategy.is_due)).steps(0, None)))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@PROPERTY
@given(messages=tidy_histories(min_size=4))
def test_what_requests_share_changes_no_edit(strategy: Strategy, messages: list[Message]) -> None:
    shared, alone = steps_of(strategy, messages), steps_of(strategy, messages, shares=False)
    assert [(step.length, step.plan) for step in shared] == [(step.length, step.plan) for step in alone]
    assert [step.record for step in shared] == [step.record for step in alone]


@pytest.mark.parametrize("keep", [{"messages": 1}, {"tokens": 60}])
@pytest.mark.parametrize("least", [0, 200, "pays"])
def test_results_that_stay_among_others_change_no_edit(keep: dict[str, int], least: Literal["pays"] | int) -> None:
    history = [Message.user("task"), *rounds(0, 60), Message.assistant("done")]
    history = [_failed(message) if at % 10 == 2 else message for at, message in enumerate(history)]
    strategy = ClearToolResults(trigger={"tokens": 1}, keep=keep, clear_at_least=least)
    shared, alone = steps_of(strategy, history), steps_of(strategy, history, shares=False)
    assert shared
    assert [(step.length, step.plan, step.record) for step in shared] == [
        (step.length, step.plan, step.record) for step in alone
    ]


def _failed(message: Message) -> Message:
    result = message.results[0]
    return Message.tool(result.call_id, "no", name=result.name, is_error=True)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@PROPERTY
@given(messages=tidy_histories(min_size=4), data=st.data())
def test_a_history_that_goes_on_comes_to_the_same_edits(
    strategy: Strategy, messages: list[Message], data: st.DataObject
) -> None:
    whole = steps_of(strategy, messages)
    answers = [at for at, message in enumerate(messages) if at and message.role == "assistant" and not message.mark]
    if not answers:
        return
    end = data.draw(st.sampled_from(answers))
    if not any(message.role == "system" for message in messages):  # their places are not those of the history
        begun = steps_of(strategy, messages[:end])
        assert [step.record for step in begun] == [step.record for step in whole if step.length <= end]


def test_a_strategy_made_of_two_has_the_edits_of_both() -> None:
    looking, writing = (
        ClearToolResults(trigger={"tokens": 1}, keep={"messages": 0}, exclude_tools=(tool,))
        for tool in ("write", "look")
    )
    context = Context.of(
        ChatRequest((Message.user("task"), *rounds(0, 3), Message.assistant("done"))),
        fixed_tokens=0,
        size_of=COUNTER.count_message,
    )
    growth = Growth(lambda: context.messages)
    for _ in range(2):
        growth.includes(context)
        assert len(looking.batch(context)) == 3
        assert writing.batch(context) == []


@pytest.mark.parametrize(
    "strategy",
    [OldestFirst(max_tokens=600, target_tokens=420), ClearThenDrop(600)],
    ids=repr,
)
def test_a_history_of_twice_the_length_takes_twice_the_work(strategy: Strategy) -> None:
    """Python calls for all edits of a history that was never seen, one of which is made every few requests."""
    once, twice = (calls_of(strategy, count) for count in (150, 300))
    assert twice < 2.6 * once


def calls_of(strategy: Strategy, count: int) -> int:
    history = [Message.user("task"), *rounds(0, count), Message.assistant("done")]
    steps: list[Step] = []

    def work() -> None:
        steps.extend(steps_of(strategy, history))
        assert steps[-1].record

    calls = calls_in(work)
    assert len(steps) > count / 30
    return calls


@pytest.mark.parametrize(
    "strategy", [OldestFirst(max_tokens=600, target_tokens=420), ClearThenDrop(600, before_limit="never")], ids=repr
)
def test_what_is_too_much_to_be_reconstructed_is_made_in_one_edit_at_once(
    strategy: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = [Message.user("task"), *rounds(0, 100), Message.assistant("done"), Message.user("and now?")]

    def sent() -> Sequence[Message]:
        inner = ScriptedClient(["done"])
        asyncio.run(ChatStack(inner).use(strategy).build().get_response(history))
        return inner.requests[0].messages

    monkeypatch.setattr(reconstructing, "_MOST_STEPS", 3)
    assert sum(map(COUNTER.count_message, sent())) <= 600
