"""Truncating: the oldest units go until limits in tokens and in items both hold."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import ChatStack, Message, ToolResult, Truncate, WiringError
from chatstack.context.edits.repairing import repair_plan
from chatstack.context.edits.verifier import problems
from chatstack.testing import ScriptedClient, TelemetryCapture
from tests.context.strictness import context_of, is_subsequence, leftovers, size
from tests.context.test_folding import calls, result, rounds, said, summary, turns, user
from tests.context.test_pruning_properties import protected
from tests.histories import PROPERTY, histories, tidy_histories

SYSTEM = Message.system("be brief")


def truncated(strategy: Truncate, messages: Sequence[Message]) -> list[Message]:
    """The messages after the plan, which must be there, and a good one."""
    context = context_of(messages)
    plan = strategy.plan(context)
    assert plan is not None
    assert problems(plan, context) == ()
    return list(plan.apply(messages))


class Sent:
    """A stack that truncates, and what it sent and said."""

    def __init__(self, strategy: Truncate) -> None:
        self.model = ScriptedClient()
        self.capture = TelemetryCapture()
        self.client = ChatStack(self.model).use(strategy).build(self.capture.resolve)

    def send(self, messages: Sequence[Message]) -> list[Message]:
        asyncio.run(self.client.get_response(messages))
        return list(self.model.requests[-1].messages)


# Options


@pytest.mark.parametrize(
    ("options", "parameter"),
    [({name: bad}, name) for name in ("max_tokens", "max_context_items") for bad in (0, -1, 1.5, True, "5")]
    + [({"truncate_to": bad}, "truncate_to") for bad in (0, -0.1, 1.1, True, "0.5", None, float("nan"))],
    ids=str,
)
def test_an_option_that_is_none_is_refused(options: dict[str, Any], parameter: str) -> None:
    with pytest.raises(WiringError) as caught:
        Truncate(**options)
    assert (caught.value.layer, caught.value.parameter) == ("Truncate", parameter)
    assert f"{parameter}={options[parameter]!r} must be" in str(caught.value)


def test_all_options_are_in_the_repr() -> None:
    assert repr(Truncate(4_000, 20, 0.5)) == "Truncate(max_tokens=4000, max_context_items=20, truncate_to=0.5)"


def test_without_limits_it_does_nothing() -> None:
    assert Truncate().plan(context_of(turns(100))) is None
    assert Truncate().excess(context_of(turns(100))) == ""


# How much goes


def test_nothing_goes_within_the_limits() -> None:
    messages = [*turns(5), user("now")]
    assert Truncate(1_100, 11).plan(context_of(messages)) is None


def test_above_a_limit_in_tokens_the_oldest_go_down_to_the_low_water() -> None:
    messages = [*turns(10), user("now")]
    assert truncated(Truncate(2_000), messages) == [messages[0], *messages[8:]]  # 1,400 are left
    assert truncated(Truncate(2_000, truncate_to=1.0), messages) == [messages[0], *messages[2:]]
    assert truncated(Truncate(2_000, truncate_to=0.2), messages) == [messages[0], *messages[-3:]]


def test_above_a_limit_in_items_the_oldest_go_down_to_the_low_water() -> None:
    messages = [*turns(10), user("now")]
    assert truncated(Truncate(max_context_items=20), messages) == [messages[0], *messages[8:]]
    assert truncated(Truncate(max_context_items=20, truncate_to=1.0), messages) == [messages[0], *messages[2:]]


def test_both_limits_hold_afterwards_whichever_was_exceeded() -> None:
    messages = [*turns(10), user("now")]
    for limits in ((2_000, 1_000), (10_000, 20), (2_000, 20)):
        assert truncated(Truncate(*limits), messages) == [messages[0], *messages[8:]]
    assert truncated(Truncate(2_000, 10), messages) == [messages[0], *messages[-6:]]
    assert truncated(Truncate(1_000, 20), messages) == [messages[0], *messages[-6:]]


def test_parallel_calls_are_as_many_items_as_there_are() -> None:
    trio = [calls("x", "y", "z"), result("x"), result("y"), result("z")]
    messages = [user("task"), *trio, *trio, *trio, user("now")]
    assert truncated(Truncate(None, 19, 0.75), messages) == [messages[0], *messages[5:]]  # 20 before, 14 left
    assert Truncate(max_context_items=20).plan(context_of(messages)) is None


def test_the_plan_says_what_was_too_much() -> None:
    plan = Truncate(1_000, 10).plan(context_of([*turns(10), user("now")]))
    assert plan is not None
    assert (plan.strategy, plan.reason) == (
        "truncate",
        "2,100 tokens, more than 1,000 and 21 items, more than 10",
    )


# What stays


def test_what_is_protected_stays() -> None:
    kept = [SYSTEM, user("task"), summary(), said("promised", pinned=True), Message.system("and polite")]
    messages = [*kept, *rounds(10), calls("open"), user("now")]
    assert truncated(Truncate(300), messages) == [*kept, calls("open"), messages[-1]]


def test_calls_go_with_all_their_results_wherever_they_stand() -> None:
    late = [calls("x", "y"), result("y"), said("meanwhile"), result("x")]
    left = truncated(Truncate(700), [user("task"), *late, *rounds(5), user("now")])
    assert not [each for each in left if {"x", "y"} & {part.call_id for part in each.results}]
    assert leftovers(left) == {}


def test_a_unit_with_a_pinned_result_stays_as_a_whole() -> None:
    kept = [calls("p"), Message("tool", (ToolResult("p", "look", "a number"),), pinned=True)]
    left = truncated(Truncate(500), [user("task"), *rounds(3), *kept, *rounds(5), user("now")])
    assert [each for each in left if each in kept] == kept


def test_results_that_the_model_has_not_seen_stay_and_are_shortened_only_if_the_limit_needs_it() -> None:
    new = [calls("x", "y"), result("x"), result("y")]
    messages = [user("task"), *rounds(10), *new]
    limit = size([messages[0], *new])
    assert truncated(Truncate(limit), messages) == [messages[0], *new]
    left = truncated(Truncate(limit - 1), messages)
    assert size(left) < limit
    assert [each.original for each in left[-3:]] == new
    assert all("bytes left out]" in each.text for message in left[-2:] for each in message.results)


def test_messages_of_the_user_that_the_model_has_not_seen_go_last_and_that_is_said() -> None:
    messages = [user("task"), *turns(3), user("first", 100), user("then", 100)]
    assert truncated(Truncate(size([messages[0], *messages[-2:]])), messages) == [messages[0], *messages[-2:]]
    plan = Truncate(size([messages[0], messages[-1]])).plan(context_of(messages))
    assert plan is not None
    assert plan.apply(messages) == (messages[0], messages[-1])
    assert "even what the model has not seen yet" in plan.reason


@pytest.mark.parametrize(
    "messages",
    [
        [user("task", 500)],
        [SYSTEM, user("task", 500), user("now", 500)],
        [user("task", 500), summary()],
        [user("task", 500), calls("open")],
        [user("task", 20), said("pinned", 500, pinned=True), user("now", 20)],
        [said("nobody asked", 500)],
    ],
    ids=["one", "two", "summary", "open call", "pinned", "the only one"],
)
def test_where_only_protected_messages_are_left_there_is_no_plan(messages: list[Message]) -> None:
    assert Truncate(100).plan(context_of(messages)) is None
    assert Truncate(100).excess(context_of(messages)) == f"{size(messages):,} tokens, more than 100"


# The layer


def test_what_cannot_be_made_to_fit_is_sent_as_it_is_and_said_once() -> None:
    sent = Sent(Truncate(100, 50))
    messages = [user("task", 500), user("now", 500)]
    assert sent.send(messages) == messages
    assert sent.capture.warnings == ("edit_ineffective",)
    span = next(each for each in sent.capture.spans_named("compact_context truncate"))
    assert span.attributes["chatstack.warning.code"] == "edit_ineffective"
    sent.send([*messages, said("fine"), user("more", 500)])
    assert sent.capture.warnings == ("edit_ineffective",)


def test_items_that_cannot_be_made_fewer_are_said_too() -> None:
    sent = Sent(Truncate(max_context_items=2))
    messages = [SYSTEM, user("task"), said("a"), user("now")]
    assert sent.send(messages) == [SYSTEM, messages[1], messages[3]]
    assert sent.capture.warnings == ("edit_ineffective",)


def test_what_could_be_made_to_fit_is_no_warning() -> None:
    sent = Sent(Truncate(1_000, 50))
    messages = [*turns(10), user("now")]
    left = sent.send(messages)
    assert left == [messages[0], *messages[1 - len(left) :]]
    assert len(left) < len(messages)
    assert sent.capture.warnings == ()
    spans = sent.capture.spans_named("compact_context truncate")
    assert spans
    assert all(span.attributes["chatstack.severity"] == "INFO" for span in spans)


def test_what_went_once_is_gone_from_the_next_call_too_and_not_cut_anew() -> None:
    sent = Sent(Truncate(2_000))
    messages = [*turns(10), user("now")]
    first = sent.send(messages)
    assert sent.send([*messages, said("fine"), user("more")]) == [*first, said("fine"), user("more")]
    assert len(sent.capture.spans_named("compact_context truncate")) == 1


# For every conversation

LIMITS = st.tuples(st.none() | st.sampled_from([30, 80, 200]), st.none() | st.integers(1, 15))


@PROPERTY
@given(st.one_of(histories(), tidy_histories(min_size=6)), LIMITS)
def test_every_plan_is_a_good_one_and_keeps_what_is_protected(
    messages: list[Message], limits: tuple[int | None, int | None]
) -> None:
    repair = repair_plan(messages)
    came = list(messages if repair is None else repair.apply(messages))
    context = context_of(came)
    plan = Truncate(*limits).plan(context)
    if plan is None:
        return
    assert problems(plan, context) == ()
    left = [message.original for message in plan.apply(came)]
    came = [message.original for message in came]
    assert is_subsequence(left, came)
    must_stay = [each for each in protected(came) if not each.results and not each.calls]
    assert is_subsequence([each for each in came if any(each is other for other in must_stay)], left)


@PROPERTY
@given(tidy_histories(min_size=6), LIMITS)
def test_afterwards_both_limits_hold_or_nothing_more_may_go(
    messages: list[Message], limits: tuple[int | None, int | None]
) -> None:
    strategy, context = Truncate(*limits), context_of(messages)
    plan = strategy.plan(context)
    after = context if plan is None else context.after(plan)
    if strategy.excess(after):
        assert strategy.plan(context_of(after.messages)) is None
