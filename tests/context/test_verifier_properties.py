"""Whatever plan passes the verifier keeps every promise; whatever leaves out whole units passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from chatstack import Context, Message, OldestFirst, Plan, Text, ToolCall, ToolResult
from chatstack.context.edits.repairing import repair_plan
from chatstack.context.edits.units import units_of
from chatstack.context.edits.verifier import problems, problems_of_all
from tests.context.strictness import context_of, leftovers, size
from tests.histories import PROPERTY, histories, tidy_histories

_SUMMARY = Message("assistant", (Text("in short"),), mark="summary")
_CALL = Message("assistant", (ToolCall("new", "look"),), mark="summary")
_CHANGES: tuple[dict[str, Any], ...] = ({"role": "user"}, {"mark": "summary"}, {"pinned": True})
_STRANGE = (_SUMMARY, _CALL, Message.assistant("unmarked"), Message.tool("a", "result"))


@st.composite
def _any_plan(draw: st.DrawFn, messages: list[Message]) -> Plan:
    """Careless ones, and such as lie outside the messages."""
    positions = st.integers(-1, len(messages)) if draw(st.integers(0, 5)) == 0 else st.integers(0, len(messages) - 1)
    replace = [(at, _replacement(draw, messages, at)) for at in draw(st.lists(positions, max_size=2))]
    insert = [(at, draw(st.sampled_from(_STRANGE))) for at in draw(st.lists(positions, max_size=2))]
    drop = draw(st.lists(positions, max_size=4))
    return Plan(strategy="any", reason="why not", drop=tuple(drop), replace=tuple(replace), insert=tuple(insert))


@st.composite
def _likely_plan(draw: st.DrawFn, messages: list[Message]) -> Plan:
    """Whole units go, one message gets shorter, a summary comes; mostly where they may."""
    units = draw(st.lists(st.sampled_from(units_of(messages)), min_size=1, max_size=4, unique=True))
    free = [unit for unit in units if not any(_is_protected(messages[at]) for at in unit.positions)]
    drop = {at for unit in free for at in unit.positions}
    left = [at for at in range(len(messages)) if at not in drop and not _is_protected(messages[at])]
    shorter = draw(st.lists(st.sampled_from(left), max_size=1)) if left else []
    replace = tuple((at, messages[at].edited(parts=messages[at].parts[1:])) for at in shorter)
    insert = tuple((at, _SUMMARY) for at in draw(st.lists(st.integers(0, len(messages)), max_size=1)))
    return Plan(strategy="likely", reason="too long", drop=tuple(sorted(drop)), replace=replace, insert=insert)


def _is_protected(message: Message) -> bool:
    return message.role in ("system", "user") or message.pinned


def _replacement(draw: st.DrawFn, messages: list[Message], at: int) -> Message:
    old = messages[at % len(messages)]
    without_parts = old.edited(parts=old.parts[1:])
    other_role = old.edited(role="user" if old.role == "assistant" else "assistant")
    return draw(st.sampled_from([without_parts, without_parts, other_role, Message(old.role, old.parts), _SUMMARY]))


@st.composite
def _cases(draw: st.DrawFn, *, repaired: bool = True) -> tuple[Context, Plan]:
    """A context as a strategy sees it, repaired before, and a plan for it."""
    messages = draw(histories())
    repair = repair_plan(messages)
    if repaired and repair is not None:
        messages = [*repair.apply(messages)] or messages
    plans = st.one_of(_any_plan(messages), _likely_plan(messages), _likely_plan(messages))
    return context_of(messages), draw(plans)


@PROPERTY
@given(_cases(repaired=False))
def test_any_plan_gets_an_answer(case: tuple[Context, Plan]) -> None:
    context, plan = case
    assert all(isinstance(each, str) and each for each in problems(plan, context))


@st.composite
def _clearing_plan(draw: st.DrawFn, messages: list[Message]) -> Plan:
    """Results lose their content, the first one now and then wrongly; sometimes units go, too, or a summary comes."""
    likely, wrong = draw(_likely_plan(messages)), draw(st.integers(0, len(_CHANGES) + 3))
    drop = likely.drop if draw(st.integers(0, 3)) == 0 else ()
    insert = draw(st.sampled_from([(), (), (), likely.insert, ((len(messages), _SUMMARY),)]))
    replace: list[tuple[int, Message]] = []
    for at, message in enumerate(messages):
        if not message.results or at in drop or draw(st.integers(0, 3)) == 0:
            continue
        kind = len(_CHANGES) + 1 if replace else wrong
        call_id = "else" if kind == len(_CHANGES) else ""
        parts = tuple(
            ToolResult(call_id or each.call_id, each.name, "") if isinstance(each, ToolResult) else each
            for each in message.parts
        )
        edited = message.edited(parts=parts)
        if kind < len(_CHANGES):
            edited = edited.edited(**_CHANGES[kind])
        elif kind == len(_CHANGES) + 2:
            edited = Message(message.role, parts)
        replace.append((at, edited))
    return Plan(strategy="clear", reason="too long", drop=drop, replace=tuple(replace), insert=insert)


def _is_found_alike(plan: Plan, context: Context) -> bool:
    """A look at what a plan touches finds the same as one at everything; of misplaced ones no more is asked."""
    found = problems(plan, context)
    return any("is not among" in each or "is named" in each for each in found) or found == problems_of_all(
        plan, context
    )


@PROPERTY
@given(_cases(repaired=False))
def test_any_plan_is_checked_where_it_touches_as_it_is_in_full(case: tuple[Context, Plan]) -> None:
    context, plan = case
    assert _is_found_alike(plan, context)


@PROPERTY
@given(tidy_histories(min_size=2), st.data())
def test_a_plan_that_clears_is_checked_where_it_touches_as_it_is_in_full(
    messages: list[Message], data: st.DataObject
) -> None:
    assert _is_found_alike(data.draw(_clearing_plan(messages)), context_of(messages))


@PROPERTY
@given(_cases())
def test_a_plan_that_passes_makes_no_orphan_and_is_smaller(case: tuple[Context, Plan]) -> None:
    context, plan = case
    assume(not problems(plan, context))
    after = plan.apply(context.messages)
    assert after
    assert leftovers(after) <= leftovers(context.messages)
    assert size(after) < size(context.messages)


@PROPERTY
@given(_cases())
def test_a_plan_that_passes_keeps_what_must_stay(case: tuple[Context, Plan]) -> None:
    context, plan = case
    assume(not problems(plan, context))
    after = plan.apply(context.messages)
    here = set(map(id, after))
    users = [message for message in context.messages if message.role == "user"]
    kept = [each for each in context.messages if each.role == "system" or each.pinned] + users[-1:]
    assert [message for message in kept if id(message) not in here] == []
    assert {call.id for call in context.messages[-1].calls} <= {call.id for call in after[-1].calls}


@PROPERTY
@given(_cases())
def test_a_plan_that_passes_inserts_only_what_is_marked_and_never_inside_a_unit(case: tuple[Context, Plan]) -> None:
    context, plan = case
    assume(not problems(plan, context))
    after = plan.apply(context.messages)
    originals = set(map(id, context.messages))
    for message in after:
        assert id(message) in originals or message.mark or id(message.original) in originals
    inserted = {id(message) for _, message in plan.insert}
    for unit in units_of(after):
        between = range(unit.positions[0], unit.positions[-1])
        assert not [position for position in between if id(after[position]) in inserted and len(unit.positions) > 1]


@PROPERTY
@given(tidy_histories(), st.data())
def test_leaving_out_whole_units_that_nothing_protects_passes_unless_the_models_words_come_to_the_end(
    messages: list[Message], data: st.DataObject
) -> None:
    context = context_of(messages)
    free = [
        unit
        for unit in context.units
        if not unit.is_open
        and context.latest_user not in unit.positions
        and not any(
            messages[each].role == "system" or messages[each].pinned or messages[each].mark == "summary"
            for each in unit.positions
        )
    ]
    assume(free)
    gone = data.draw(st.lists(st.sampled_from(free), min_size=1, unique=True))
    plan = Plan(
        strategy="some", reason="too long", drop=tuple(sorted(position for unit in gone for position in unit.positions))
    )
    wrong = _ends_with_words(plan.apply(messages)) and not _ends_with_words(messages)
    assert problems(plan, context) == (("the request would end with an assistant message",) if wrong else ())


def _ends_with_words(messages: Sequence[Message]) -> bool:
    spoken = [message for message in messages if message.role != "system"]
    return bool(spoken) and spoken[-1].role == "assistant" and not spoken[-1].calls


@PROPERTY
@given(tidy_histories(), st.data())
def test_splitting_a_unit_never_passes(messages: list[Message], data: st.DataObject) -> None:
    context = context_of(messages)
    whole = [unit for unit in context.units if len(unit.positions) > 1]
    assume(whole)
    unit = data.draw(st.sampled_from(whole))
    gone = data.draw(
        st.lists(st.sampled_from(unit.positions), min_size=1, max_size=len(unit.positions) - 1, unique=True)
    )
    assert problems(Plan(strategy="some", reason="too long", drop=tuple(gone)), context) != ()


@PROPERTY
@given(histories(), st.sampled_from([10, 50, 150]))
def test_every_plan_of_the_pruning_strategy_passes(messages: list[Message], limit: int) -> None:
    context = context_of(messages)
    plan = OldestFirst(limit, max(1, limit // 2)).plan(context)
    if plan is not None:
        assert problems(plan, context) == ()
