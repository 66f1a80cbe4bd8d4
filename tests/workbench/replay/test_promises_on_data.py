"""What is promised, on real conversations: at windows of 2,000 to 16,000 tokens, by several stacks.

By default every fifteenth coding run is looked at, and all others; with CHATSTACK_ALL_DATA=1 all of them, which takes
25 minutes more.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence

import pytest

from chatstack import Message
from chatstack.workbench.replay.measures.measuring import WireCounter
from chatstack.workbench.replay.policies import policies_for
from tests.workbench.replay.conversations import outcome_of, setup_of
from tests.workbench.replay.on_data import (
    ALL_DATA,
    KINDS,
    LARGE,
    STEPS,
    SWE,
    TAU,
    TAU2,
    TRIGGERS,
    UNFORCED,
    WINDOWS,
    Kind,
    Line,
    Pass,
    Talk,
    counter,
    recordings_of,
    talks_of,
)

pytestmark = [pytest.mark.data, pytest.mark.slow, pytest.mark.timeout(3_600)]

SETS = (TAU, TAU2, SWE)
STACKS = tuple(kind.name for kind in KINDS)


@pytest.fixture(scope="module", autouse=True)
def counted_once() -> Iterator[None]:
    """Policies make their own counter; here they get one that remembers, or most of the time would go into that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WireCounter, "best", classmethod(lambda _: counter()))
        yield


@pytest.fixture(scope="module", params=SETS)
def replayed(request: pytest.FixtureRequest) -> Pass:
    return asyncio.run(Pass(request.param).run())


def test_the_conversations_put_every_stack_to_the_test(replayed: Pass) -> None:
    """Else what follows would hold of stacks that do nothing."""
    expected = {TAU: 100, TAU2: 16, SWE: 255}[replayed.name]
    assert len(replayed.talks) == -(-expected // STEPS[replayed.name])
    for kind in KINDS:
        found = replayed.found[kind.name, 2_000]
        assert found.due_calls > 50
        if kind.fits:
            assert found.edited_calls > 10
    assert any(found.edited_calls for found in replayed.of("pays"))
    if replayed.name == TAU:
        assert replayed.reused_ids > 30
    if replayed.name != SWE:
        assert any(found.kept_whole for found in replayed.of(*STACKS))


def test_no_request_is_invalid(replayed: Pass) -> None:
    """Calls and results are paired and in order, also where ids of calls are used again."""
    assert replayed.wrong("invalid") == []
    assert sum(found.figures.invalid_requests for found in replayed.found.values()) == 0


def test_no_unit_is_split_and_no_message_moved_or_put_in(replayed: Pass) -> None:
    """What is sent are the caller's messages in their order, a call with the very result that answered it."""
    assert replayed.wrong("order") == []
    assert replayed.wrong("split") == []


def test_the_task_the_latest_user_message_and_the_system_messages_are_never_lost(replayed: Pass) -> None:
    assert replayed.wrong("lost") == []


def test_what_is_not_edited_is_the_very_object_that_was_given(replayed: Pass) -> None:
    """And only tool results are edited, and texts beside calls."""
    assert replayed.wrong("untouched") == []


def test_the_newest_results_are_not_cleared(replayed: Pass) -> None:
    """By their places: in these conversations a new call may have the id of an old one."""
    assert replayed.wrong("newest") == []


def test_the_callers_messages_say_the_same_as_before(replayed: Pass) -> None:
    assert replayed.changed == []


def test_what_is_over_the_limit_has_nothing_more_to_give(replayed: Pass) -> None:
    """With a guard, only protected messages are left; where a stack only clears, nothing that it may clear."""
    assert replayed.wrong("over") == []
    if replayed.name == SWE:
        assert replayed.found["guard", 2_000].over > 0  # some tasks alone are longer


def test_fresh_messages_without_an_id_give_the_same_requests_as_kept_ones_with_it(replayed: Pass) -> None:
    assert replayed.wrong("fresh") == []


def test_between_two_edits_each_request_starts_with_exactly_what_the_last_one_sent(replayed: Pass) -> None:
    """As objects compare, and as the wire text that was measured does."""
    assert replayed.wrong("prefix") == []
    for found in replayed.found.values():
        assert found.figures.spending.prefix_breaks <= found.edited_calls <= found.figures.edits


def test_edits_are_few(replayed: Pass) -> None:
    """Below a third of what one makes that remembers nothing, and with many results below rolling masking's."""
    for found in replayed.of("guard", "recommended"):
        if found.window >= 4_000 and found.due_calls > 100:  # of 2,000, hardly any is left beside the task
            # A result that is bounded when it is new is an edit that breaks no prefix.
            assert found.figures.spending.prefix_breaks <= found.due_calls / 3, found.figures.name
    if replayed.name == SWE:
        for found in replayed.of("guard", "clearer", "recommended", UNFORCED.name):
            if found.window >= 4_000:  # many a task is 2,000 alone, and each new result is cut beside it
                assert found.figures.spending.prefix_breaks < replayed.rolling, found.figures.name
        for found in replayed.of("guard", "recommended"):
            if found.window >= 8_000:
                assert found.figures.spending.prefix_breaks < replayed.rolling / 5, found.figures.name


def test_below_every_trigger_exactly_what_was_given_is_sent(replayed: Pass) -> None:
    """The very tuple of the caller's messages, and nothing is reported."""
    assert replayed.wrong("below") == []


def test_where_all_conversations_fit_it_costs_exactly_as_much(replayed: Pass) -> None:
    everything = replayed.everything
    fits = [found for found in replayed.found.values() if found.kept_whole == len(replayed.talks)]
    for found in fits:
        assert found.figures.cost_relative(everything.spending) == 1.0
        assert found.figures.edits == 0
        assert found.figures.tokens_sent == everything.tokens_sent
    names = {found.figures.name for found in fits}
    wanted = {TAU: {"guard at 16,000", "at the limit at 16,000"}, TAU2: {"at the limit at 8,000"}, SWE: set[str]()}
    assert names >= wanted[replayed.name]


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_an_edit_that_nothing_forces_pays(replayed: Pass, trigger: int) -> None:
    """Over a data set it costs no more than sending everything."""
    found = replayed.found[UNFORCED.name, trigger]
    cost = found.figures.cost_relative(replayed.everything.spending)
    assert cost is not None
    assert cost <= 1.0


def test_no_conversation_costs_more_than_twice_sending_everything(replayed: Pass) -> None:
    """Where edits wait until they pay; also where the window forces some."""
    for found in replayed.of("pays", UNFORCED.name):
        assert found.dearest <= 2.0, found.figures.name


AIMS = {
    (TAU, 4_000): (0.9, 0.99, 0.98, 0.05),
    (TAU, 16_000): (1.0, 0.99, 0.99, 0.05),
    (TAU2, 16_000): (1.0, 0.99, 0.99, 0.05),
    (SWE, 4_000): (0.4, 0.93, 0.8, 0.23),
    (SWE, 8_000): (0.53, 0.97, 0.9, 0.08),
    (SWE, 16_000): (0.68, 0.99, 0.97, 0.05),
}
"""Of what we recommend: cost at most, grounding and far grounding at least, breaks at most, by call."""
BARE_AIMS = {(SWE, 8_000): (0.9, 0.6)}
"""Grounding and far grounding without lists of names, at least."""
MOST_OVER = {(SWE, 4_000): 0.02, (SWE, 8_000): 0.001}
"""Of calls: some coding runs write whole files in one call, which stays with its result until the model has seen it."""
SPREAD = 0.02
COST_SPREAD = 0.06
"""A sample of the coding runs, one of 15, may be so far from all of them."""


def spreads(name: str) -> tuple[float, float]:
    """How far shares and cost may be from the aims: not at all where all of a set is looked at."""
    return (0.0, 0.0) if STEPS[name] == 1 else (SPREAD, COST_SPREAD)


def test_what_we_recommend_reaches_its_aims(replayed: Pass) -> None:
    """Cost beside sending everything, and how much of what the model used is still there."""
    for window in WINDOWS:
        figures = replayed.found["recommended", window].figures
        cost, grounding = figures.cost_relative(replayed.everything.spending), figures.grounding
        most, least, least_far, most_breaks = AIMS.get((replayed.name, window), (1.01, 0.0, 0.0, 1.0))
        spread, cost_spread = spreads(replayed.name)
        assert cost is not None
        assert cost <= most + cost_spread, figures.name
        if grounding.share is not None and grounding.far_share is not None:
            assert grounding.share >= least - spread, figures.name
            assert grounding.far_share >= least_far - spread, figures.name
        if (aim := BARE_AIMS.get((replayed.name, window))) is not None:
            assert grounding.bare_share is not None
            assert grounding.far_bare_share is not None
            assert grounding.bare_share >= aim[0] - spread, figures.name
            assert grounding.far_bare_share >= aim[1] - 2 * spread, figures.name
        assert figures.spending.prefix_breaks <= (most_breaks + spread) * figures.calls, figures.name
        if window >= 4_000:  # what is over has nothing more to give, as another test tells
            most_over = MOST_OVER.get((replayed.name, window), 0.0) * figures.calls
            # Of a sample, more may be over; but no more than where all goes that may go.
            assert figures.over_limit <= max(most_over, replayed.found["guard", window].figures.over_limit), (
                figures.name
            )


@pytest.mark.parametrize(("window", "most", "least_far"), [(32_000, 0.72, 0.97), (LARGE, 0.7, 0.0)])
def test_where_next_to_nothing_forces_an_edit_it_pays_all_the_same(window: int, most: float, least_far: float) -> None:
    """Of coding runs, of which hardly any is that large."""
    setup = setup_of(*policies_for([], ["nothing", "recommended"]), window=window, counter=WireCounter.best())
    everything, ours = outcome_of(setup, *recordings_of(SWE)).figures
    spread, cost_spread = spreads(SWE)

    cost, grounding = ours.cost_relative(everything.spending), ours.grounding
    assert cost is not None
    assert grounding.share is not None
    assert grounding.far_share is not None
    assert cost <= most + cost_spread
    assert grounding.share >= 0.99 - spread
    assert grounding.far_share >= least_far - spread


def in_turn(talks: Sequence[Talk]) -> list[tuple[int, int]]:
    """All calls, one conversation after the other."""
    return [(number, end) for number, talk in enumerate(talks) for end in talk.calls]


def interleaved(talks: Sequence[Talk]) -> list[tuple[int, int]]:
    """All calls, one of each conversation, then the next of each."""
    rounds = itertools.zip_longest(*([(number, end) for end in talk.calls] for number, talk in enumerate(talks)))
    return [call for each in rounds for call in each if call is not None]


@pytest.fixture(scope="module")
def airline() -> list[Talk]:
    return talks_of(TAU)


@pytest.mark.parametrize("window", (2_000, 4_000) if ALL_DATA else (4_000,))
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_conversations_do_not_leak_into_one_another(kind: Kind, window: int, airline: list[Talk]) -> None:
    """Interleaved call by call through one client, with their ids and without, they send what they send by
    themselves; and the lists that were passed hold the same objects afterwards."""
    sent = [
        asyncio.run(sent_by(kind, window, airline, order, with_ids=with_ids))
        for order, with_ids in ((in_turn(airline), True), (interleaved(airline), True), (interleaved(airline), False))
    ]

    assert len(sent[0]) == 1_243
    for each in sent[1:]:
        differing = [(airline[number].id, end) for number, end in sent[0] if each[number, end] != sent[0][number, end]]
        assert differing == []


async def sent_by(
    kind: Kind, window: int, talks: Sequence[Talk], order: Sequence[tuple[int, int]], *, with_ids: bool
) -> dict[tuple[int, int], tuple[Message, ...]]:
    """What one client sends for each of these calls."""
    line, sent = Line(kind, window), dict[tuple[int, int], tuple[Message, ...]]()
    for number, end in order:
        talk = talks[number]
        history = list(talk.messages[:end])
        request = await line.send(history, talk.id if with_ids else None, talk.messages[end])
        assert len(history) == end
        assert all(given is kept for given, kept in zip(history, talk.messages, strict=False))
        sent[number, end] = request.messages
    return sent
