"""What folding promises for every conversation, over generated histories."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from chatstack import Annotation, Context, Message, Plan
from chatstack.context.edits.limits import Limits
from chatstack.context.edits.repairing import repair_plan
from chatstack.context.edits.summaries import summary_message
from chatstack.context.edits.units import is_users
from chatstack.context.edits.verifier import problems
from chatstack.context.summaries.folding import Cut, OldestIntoSummary
from tests.context.strictness import context_of, leftovers, size
from tests.histories import PROPERTY, decoded_again, histories, tidy_histories

SUMMARY = summary_message("in short", Annotation("summarize"))
STRATEGIES = st.builds(
    OldestIntoSummary,
    st.sampled_from([Limits(40), Limits(150), Limits(400), Limits(None, 4), Limits(None, 12), Limits(100, 8)]),
    st.integers(1, 3),
    st.sampled_from([0.3, 0.6, 1.0]),
    st.sampled_from([32, 64]),
)


def as_layers_see_it(messages: list[Message]) -> list[Message]:
    """Repaired, and with one summary at most: no layer of ours would have left two."""
    plan = repair_plan(messages)
    seen: list[Message] = []
    for message in messages if plan is None else plan.apply(messages):
        is_second = message.mark == "summary" and any(each.mark == "summary" for each in seen)
        seen.append(msgspec.structs.replace(message, mark="") if is_second else message)
    return seen


HISTORIES = st.one_of(histories(), tidy_histories(min_size=6)).map(as_layers_see_it)


def planned(strategy: OldestIntoSummary, messages: Sequence[Message]) -> tuple[Context, Cut, Plan]:
    """The edit; examples without one are left out."""
    context = context_of(messages)
    cut = strategy.cut(context)
    assume(cut is not None)
    assert cut is not None
    return context, cut, strategy.plan(context, cut, SUMMARY)


@PROPERTY
@given(HISTORIES, STRATEGIES)
def test_every_plan_with_a_summary_that_is_shorter_passes_the_verifier(
    messages: list[Message], strategy: OldestIntoSummary
) -> None:
    context, cut, plan = planned(strategy, messages)
    assume(size([messages[position] for position in cut.folded]) > size([SUMMARY]))
    assert problems(plan, context) == ()


@PROPERTY
@given(HISTORIES, STRATEGIES)
def test_what_must_stay_stays(messages: list[Message], strategy: OldestIntoSummary) -> None:
    context, cut, _ = planned(strategy, messages)
    users = [at for at, message in enumerate(messages) if is_users(message)]
    assert not {*users[:1], *users[-1:]} & {*cut.folded}
    assert not [at for at in cut.folded if messages[at].role == "system" or messages[at].pinned]
    for unit in context.units:
        if unit.is_open or unit.positions[-1] > context.latest_assistant:
            assert not {*unit.positions} & {*cut.folded}


@PROPERTY
@given(HISTORIES, STRATEGIES)
def test_whole_units_go_or_nothing_of_them(messages: list[Message], strategy: OldestIntoSummary) -> None:
    context, cut, plan = planned(strategy, messages)
    for unit in context.units:
        assert len({*unit.positions} & {*cut.folded}) in (0, len(unit.positions))
    assert leftovers(plan.apply(messages)) == leftovers(messages)


@PROPERTY
@given(HISTORIES, STRATEGIES)
def test_nothing_goes_from_behind_the_border_and_only_what_must_or_may_stay_is_left_before_it(
    messages: list[Message], strategy: OldestIntoSummary
) -> None:
    context, cut, _ = planned(strategy, messages)
    assert list(cut.folded) == sorted(at for at in set(cut.folded) if at < cut.border)
    recent = [at for at in range(len(messages)) if is_users(messages[at])][-strategy.keep_recent_turns :]
    for unit in context.units:
        is_before_and_seen = unit.positions[-1] < cut.border and unit.positions[-1] <= context.latest_assistant
        if is_before_and_seen and not unit.is_open and not {*unit.positions} & {*cut.folded}:
            assert any(
                at in recent or at == context.first_user or messages[at].role == "system" or messages[at].pinned
                for at in unit.positions
            )


@PROPERTY
@given(HISTORIES, STRATEGIES)
def test_something_that_was_said_follows_the_summary(messages: list[Message], strategy: OldestIntoSummary) -> None:
    _, _, plan = planned(strategy, messages)
    assert [each for each in plan.apply(messages) if each.role != "system"][-1] is not SUMMARY


@PROPERTY
@given(HISTORIES, STRATEGIES)
def test_nothing_is_cut_within_the_limits(messages: list[Message], strategy: OldestIntoSummary) -> None:
    context = context_of(messages)
    limits = strategy.limits
    within = context.tokens <= (limits.max_tokens or context.tokens) and context.items <= (
        limits.max_items or context.items
    )
    assert strategy.is_due(context) is not within
    if within:
        assert strategy.cut(context) is None


@PROPERTY
@given(HISTORIES, STRATEGIES)
def test_equal_messages_are_cut_the_same_way(messages: list[Message], strategy: OldestIntoSummary) -> None:
    assert strategy.cut(context_of(messages)) == strategy.cut(context_of(decoded_again(messages)))


@PROPERTY
@given(HISTORIES, STRATEGIES)
def test_all_that_goes_is_in_the_transcript_in_order(messages: list[Message], strategy: OldestIntoSummary) -> None:
    context, cut, _ = planned(strategy, messages)
    gone = [messages[at] for at in cut.folded if messages[at].mark != "summary"]
    texts = [text for each in gone for text in (each.text, *(result.text for result in each.results)) if text]
    told = iter(entry.text for entry in strategy.entries(context, cut))
    for text in texts:
        assert any(text in each for each in told)


@PROPERTY
@given(tidy_histories(min_size=6), STRATEGIES)
def test_however_often_it_is_folded_there_is_one_summary(messages: list[Message], strategy: OldestIntoSummary) -> None:
    """The conversation grows message by message, and each cut is made in what the last one left."""
    view: list[Message] = []
    for message in messages:
        view.append(msgspec.structs.replace(message, mark=""))
        context = context_of(view)
        if leftovers(view) or (cut := strategy.cut(context)) is None:
            continue
        plan = strategy.plan(context, cut, SUMMARY)
        if "the edit does not make the context smaller" in "".join(problems(plan, context)):
            continue
        view = list(plan.apply(view))
        assert len([each for each in view if each.mark == "summary"]) == 1
