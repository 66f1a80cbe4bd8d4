"""Layers stacked by hand send, answer and warn as the stack does that a recipe makes of the same layers and options."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from chatstack import (
    ClearThenDrop,
    Context,
    ContextWindow,
    ContextWindowGuard,
    Message,
    Plan,
    Strategy,
    Summarizer,
    ToolResult,
    ToolResultClearer,
)
from chatstack.context.strategies.pruning import removable
from tests.context.conversing import LOOK, Talk, Writer, size_of
from tests.layers.stacked import STATED, Between, Call, Course, Layers, Open, Side, Stranger, by_hand, from_recipe

# Courses

SAYS = [
    each
    for number in range(8)
    for each in (f"{LOOK}{1 + number % 3} {480 + 40 * number}", f"{number}: " + "blue " * 640)
]
OTHERWISE = [f"{LOOK}2 444", "otherwise " * 280, f"{LOOK}3 555", "and on " * 480]


def calls_of(says: Sequence[str]) -> int:
    """Count the calls that these words take, one for each round of tools."""
    return sum(1 + int(each.split(" ")[1]) if each.startswith(LOOK) else 1 for each in says)


async def grows(side: Side, says: Sequence[str] = SAYS, **how: Any) -> Talk:
    talk = side.talk(says, **how)
    for _ in range(calls_of(says)):
        await talk.step(side)
    return talk


async def grows_fresh(side: Side) -> None:
    await grows(side, is_fresh=True)


async def grows_huge(side: Side) -> None:
    await grows(side, [*SAYS[:6], f"{LOOK}2 5000", *SAYS[6:12], f"{LOOK}1 9000", *SAYS[12:]])


async def goes_back(side: Side) -> None:
    talk = await grows(side, SAYS[:12])
    turns = [at for at, each in enumerate(talk.messages) if each.role == "user"]
    await grows(side, [*OTHERWISE, *SAYS[12:14]], head=talk.messages[: turns[-2]])


async def loses_its_head(side: Side) -> None:
    """A caller that keeps only the newest messages."""
    talk = side.talk(SAYS)
    for _ in range(calls_of(SAYS)):
        await talk.step(side)
        while len(talk.messages) > 26:
            del talk.messages[: 1 + next(at for at, each in enumerate(talk.messages[1:]) if each.role == "user")]


async def interleave(side: Side, ids: Sequence[str | None] = (None, None)) -> None:
    says = (SAYS[:9], SAYS[:7] + OTHERWISE[:3])
    both = [side.talk(each, conversation_id=name) for each, name in zip(says, ids, strict=True)]
    left = [*map(calls_of, says)]
    for number in itertools.cycle((0, 1, 1, 0, 0, 1, 0)):
        if not any(left):
            return
        if left[number]:
            left[number] -= 1
            await both[number].step(side)


COURSES: dict[str, Course] = {
    "plain": Course(plays=grows),
    "refused, with sizes": Course(plays=grows, window=3_600, tells=True),
    "refused, without sizes": Course(plays=grows, window=3_600),
    "summaries fail": Course(plays=grows, fails=True),
    "two at once": Course(plays=interleave),
    "two at once, with ids": Course(plays=functools.partial(interleave, ids=("a", "b"))),
    "new objects": Course(plays=grows_fresh),
    "reports of more": Course(plays=grows, reports=1.4),
    "streamed, reports of less": Course(plays=grows, stream=True, reports=0.7),
    "goes back": Course(plays=goes_back),
    "huge results": Course(plays=grows_huge),
    "loses its head": Course(plays=loses_its_head),
}
SOME = ("refused, with sizes", "two at once", "loses its head")
MOST = ("plain", *SOME[:2], "summaries fail", "goes back", "huge results")


# Stacks


@dataclass(frozen=True)
class Thins(Strategy):
    """Above ``most`` tokens, blanks old results; where there are none, drops what is oldest."""

    most: int
    name = "thins"
    quotes_nothing = True

    def plan(self, context: Context) -> Plan | None:
        if context.tokens <= self.most:
            return None
        old = [at for at in range(context.latest_assistant) if context.messages[at].results and context.sizes[at] > 60]
        if old:
            return Plan(
                strategy=self.name, reason="too much", replace=tuple((at, blank(context.messages[at])) for at in old)
            )
        units = removable(context)
        gone = tuple(sorted(at for unit in units[: 1 + len(units) // 2] for at in unit.positions))
        return Plan(strategy=self.name, reason="too much", drop=gone)


def blank(message: Message) -> Message:
    return message.edited(parts=tuple(ToolResult(each.call_id, each.name, "gone") for each in message.results))


LIMIT = 4_400
GUARD = (ContextWindowGuard, {"max_context_tokens": LIMIT, "prune_on_overflow": True})
LOOSE = (ContextWindowGuard, {"max_context_tokens": 5_000, "prune_on_overflow": True, "warning_threshold": 0.6})
AUTO = (ContextWindowGuard, {"max_context_tokens": "auto", "prune_on_overflow": True})
CLEARER = (ToolResultClearer, {"trigger": {"tokens": 3_000}, "keep": {"messages": 1}})
SHARES = (ToolResultClearer, {"trigger": {"fraction": 0.7}, "keep": {"fraction": 0.2}})
PAYS = (
    ToolResultClearer,
    {"trigger": {"tokens": 2_500}, "keep": {"messages": 1}, "clear_at_least": "pays", "max_context_tokens": STATED},
)
FOLDING = {"max_tokens": 4_600, "keep_recent_turns": 1, "max_summary_tokens": 400}


def folding(writer: Writer, **more: int) -> tuple[type[Summarizer], dict[str, object]]:
    return Summarizer, {**FOLDING, **more, "summary_client": writer}


CLEARS, DROPS, FOLDS = "clear_tool_results: ", "truncate: ", "summarize: "


@dataclass(frozen=True)
class Stack:
    """Layers, and the edits that they make: some in every course, the others where nothing gets in their way."""

    layers: Callable[[Writer], Layers]
    always: tuple[str, ...]
    also: tuple[str, ...] = ()
    courses: Sequence[str] = tuple(COURSES)

    @property
    def edits(self) -> tuple[str, ...]:
        """All edits that it makes."""
        return self.always + self.also


STACKS: dict[str, Stack] = {
    "clearer, guard": Stack(lambda _: [CLEARER, GUARD], (CLEARS, DROPS)),
    "clearer by shares, guard": Stack(lambda _: [SHARES, AUTO], (CLEARS,), (DROPS,), MOST),
    "clearer, own summarizer, guard": Stack(lambda _: [PAYS, (Summarizer, FOLDING), GUARD], (CLEARS,), (FOLDS,), MOST),
    "clearer, summarizer, guard": Stack(lambda writer: [CLEARER, folding(writer), GUARD], (CLEARS, FOLDS)),
    "summarizer, guard": Stack(lambda writer: [folding(writer), GUARD], (FOLDS, DROPS)),
    "window, guard": Stack(
        lambda writer: [(ContextWindow, {**folding(writer)[1], "max_tool_calls_per_turn": 2}), GUARD],
        (FOLDS, DROPS),
        (),
        MOST,
    ),
    "a strategy, guard": Stack(lambda _: [(Thins, {"most": 4_800}), GUARD], ("thins: ", DROPS), (), MOST),
    "clear then drop, guard": Stack(
        lambda _: [(ClearThenDrop, {"max_tokens": 5_400}), GUARD], ("clear_then_drop: ", DROPS), (), MOST
    ),
    "guard, summarizer": Stack(lambda writer: [LOOSE, folding(writer, max_tokens=4_000)], (DROPS,), (FOLDS,), MOST),
    "two guards": Stack(lambda _: [LOOSE, GUARD], (DROPS,), ("more than 5,000: ", "more than 4,400: ")),
}


@functools.cache
def built(stack: str, course: str, between: Between | None) -> Side:
    return Side(STACKS[stack].layers, COURSES[course], functools.partial(from_recipe, between=between))


def pairs_of(courses: Sequence[str]) -> list[tuple[str, str]]:
    """Return the stacks with those of the courses that tell something of them."""
    return [
        (name, course)
        for (name, stack), course in itertools.product(STACKS.items(), courses)
        if course in stack.courses and (FOLDS in stack.edits or not COURSES[course].fails)
    ]


# By hand as built


class Way(NamedTuple):
    """A way to stack layers by hand: with one set of services or with none given, and with a stranger's in between."""

    shares: bool
    between: Between | None
    courses: Sequence[str]


WAYS = {
    "one set of services": Way(True, None, SOME[:2]),
    "nothing given": Way(False, None, tuple(COURSES)),
    "a stranger between, one set of services": Way(True, Stranger, SOME),
    "an open stranger between, one set of services": Way(True, Open, SOME[2:]),
}
"""Where a stranger stands between, the layers on its two sides share only what they were given."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("stack", "course"), pairs_of(tuple(COURSES)))
def test_a_course_has_every_layer_edit(stack: str, course: str) -> None:
    side, how = built(stack, course, None), STACKS[stack]
    assert 30 <= len(side.calls) <= 60
    for talk in side.talks:
        assert size_of(talk.sent[-1]) < size_of(talk.given[-1])
    told = "\n".join(side.edited)
    assert all(told.count(each) for each in how.always)
    if course == "plain":
        assert all(told.count(each) >= 2 for each in how.edits)
    warnings = {code for call in side.calls for code in call.warnings}
    assert bool(side.asked.refused) == (COURSES[course].window is not None)
    assert ("summarizer_failed" in warnings) == COURSES[course].fails
    assert "tool_result_shortened" in warnings or course != "huge results"
    assert "prefix_unstable" in warnings or course != "loses its head"


CASES = [(way, stack, course) for way, how in WAYS.items() for stack, course in pairs_of(how.courses)]


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:layer 'between:UserWarning")  # a stranger shows nothing of what is inside
@pytest.mark.parametrize(("way", "stack", "course"), CASES)
def test_by_hand_is_as_built(way: str, stack: str, course: str) -> None:
    shares, between, _ = WAYS[way]
    hand = Side(STACKS[stack].layers, COURSES[course], functools.partial(by_hand, shares=shares, between=between))
    recipe = built(stack, course, between)
    others = [
        f"call {number}: other {name}"
        for number, both in enumerate(zip(hand.calls, recipe.calls, strict=True))
        for name in Call._fields
        if getattr(both[0], name) != getattr(both[1], name)
    ]
    if others:
        pytest.fail("; ".join(others[:9]), pytrace=False)
