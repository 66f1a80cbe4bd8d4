"""What pruning promises for every conversation: through a real guard, over generated histories."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chatstack import CharCounter, ContextMemory, ContextWindowGuard, Message, ToolCall
from chatstack.context.edits.repairing import repair_plan
from chatstack.context.edits.units import units_of
from chatstack.context.requests.asking import on_this_thread
from chatstack.context.requests.services import ContextServices
from chatstack.testing import ScriptedClient, TelemetryCapture
from tests.context.strictness import is_new, is_subsequence, leftovers, refusals, size
from tests.histories import PROPERTY, decoded_again, histories, tidy_histories

LIMITS = st.sampled_from([30, 80, 150, 300])


class CountingCounter(CharCounter):
    """Keeps the messages that it was asked for."""

    is_cheap = False

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Message] = []

    def count_message(self, message: Message) -> int:
        self.asked.append(message)
        return super().count_message(message)


@dataclass
class Guarded:
    """A pruning guard over a scripted model, and what it sent and said."""

    limit: int
    counter: CharCounter = field(default_factory=CharCounter)
    memory: ContextMemory = field(default_factory=ContextMemory)

    def __post_init__(self) -> None:
        self.model = ScriptedClient()
        self.capture = TelemetryCapture()
        self.guard = ContextWindowGuard(
            self.model,
            max_context_tokens=self.limit,
            prune_on_overflow=True,
            counter=self.counter,
            services=ContextServices(memory=self.memory, telemetry=self.capture.telemetry),
        )

    def send(self, messages: Sequence[Message], conversation_id: str | None = None) -> list[Message]:
        finished(self.guard.get_response(messages, conversation_id=conversation_id))
        return list(self.model.requests[-1].messages)

    @property
    def edits(self) -> int:
        return len(self.capture.spans_named("compact_context truncate"))


def finished(call: Coroutine[object, object, object]) -> None:
    """Run a call that has nothing to wait for, without a loop: there are thousands of them."""
    with suppress(StopIteration), on_this_thread():
        call.send(None)
        raise AssertionError("the call waits for something")


def cuts(messages: Sequence[Message]) -> list[int]:
    """Where a caller would send the conversation: after the user or a tool spoke, with nothing to repair."""
    ends = (end for end in range(1, len(messages) + 1) if messages[end - 1].role in ("user", "tool"))
    return [end for end in ends if repair_plan(messages[:end]) is None]


def protected(messages: Sequence[Message]) -> list[Message]:
    users = [message for message in messages if message.role == "user"]
    ours = [message for message in messages if message.role == "system" or message.pinned or message.mark == "summary"]
    return [*ours, *users[:1], *users[-1:]]


@PROPERTY
@given(histories(), LIMITS)
def test_what_is_sent_has_no_orphans_not_even_those_that_were_there(messages: list[Message], limit: int) -> None:
    sent = Guarded(limit).send(messages)
    assert leftovers(sent) == {}
    assert refusals(sent) == []


@PROPERTY
@given(histories(), LIMITS)
def test_no_message_that_must_stay_is_lost(messages: list[Message], limit: int) -> None:
    # A summary may be shortened where nothing else is left.
    sent = {id(each.original if each.mark == "summary" else each) for each in Guarded(limit).send(messages)}
    must_stay = [message for message in protected(messages) if not message.results]
    assert [message for message in must_stay if id(message) not in sent] == []


@PROPERTY
@given(tidy_histories(), LIMITS)
def test_calls_that_wait_for_their_results_are_sent(messages: list[Message], limit: int) -> None:
    waiting = Message.assistant("let me see " * 10, ToolCall("a", "look"), ToolCall("z", "look"))
    guarded = Guarded(limit)
    assert guarded.send([*messages, waiting])[-1] is waiting
    assert "plan_rejected" not in guarded.capture.warnings


@PROPERTY
@given(histories(), LIMITS)
def test_a_request_with_a_user_message_leaves_with_one(messages: list[Message], limit: int) -> None:
    repair = repair_plan(messages)
    assume(repair is None or repair.apply(messages))  # else it is refused
    sent = Guarded(limit).send(messages)
    assert any(each.role == "user" for each in sent) == any(each.role == "user" for each in messages)


def was_new_before_others(messages: Sequence[Message], end: int) -> bool:
    """Whether results at the end of a unit are new, or were in an earlier request that had two user messages behind
    them: the first of these may have gone, as the results might not, and what was decided stays."""
    behind = list(takewhile(lambda each: each.role != "assistant" or bool(each.mark), messages[end + 1 :]))
    users = sum(each.role == "user" for each in behind)
    return is_new(messages, end) or (bool(messages[end].results) and users > 1)


@PROPERTY
@given(tidy_histories(), LIMITS)
def test_whole_units_go_the_oldest_first_and_the_rest_stays_the_same_objects(
    messages: list[Message], limit: int
) -> None:
    sent = [message.original for message in Guarded(limit).send(messages)]
    assert is_subsequence(sent, messages)
    here = set(map(id, sent))
    must_stay = set(map(id, protected(messages)))
    removed: list[bool] = []
    for unit in units_of(messages):
        members = {id(messages[position]) for position in unit.positions}
        assert members <= here or not members & here
        if not unit.is_open and not members & must_stay and not was_new_before_others(messages, unit.positions[-1]):
            removed.append(not members & here)
    assert removed == sorted(removed, reverse=True)


@PROPERTY
@given(tidy_histories(), LIMITS)
def test_what_is_sent_fits_or_is_said_not_to(messages: list[Message], limit: int) -> None:
    guarded = Guarded(limit)
    sent = guarded.send(messages)
    if size(messages) <= limit:
        assert [*map(id, sent)] == [*map(id, messages)]
        assert guarded.edits == 0
    assert ("context_irreducible" in guarded.capture.warnings) == (size(sent) > limit)
    if size(sent) > limit:
        must_stay = set(map(id, protected(messages)))
        for unit in units_of(sent):
            stays = (id(sent[at].original) in must_stay or is_new(sent, at) for at in unit.positions)
            assert unit.is_open or any(stays)


@PROPERTY
@given(tidy_histories(), LIMITS)
def test_a_result_that_the_model_has_not_seen_stays_with_its_call_and_loses_no_more_than_its_middle(
    messages: list[Message], limit: int
) -> None:
    guarded = Guarded(limit)
    sent = guarded.send(messages)
    stays = [message for at, message in enumerate(messages) if is_new(messages, at)]
    left = [message for at, message in enumerate(sent) if is_new(sent, at)]
    assert [*map(id, stays)] == [id(message.original) for message in left]
    for came, went in zip(stays, left, strict=True):
        assert size([went]) <= size([came])
        for before, after in zip(came.results, went.results, strict=True):
            assert after == before or f" of {len(before.text.encode()):,} bytes left out]" in after.text
    edited = any(message is not message.original for message in left)
    assert ("tool_result_shortened" in guarded.capture.warnings) == edited


@PROPERTY
@given(histories(), LIMITS)
def test_pruning_never_makes_a_request_larger_than_its_repair_does(messages: list[Message], limit: int) -> None:
    repaired = Guarded(1_000_000).send(messages)
    assert size(Guarded(limit).send(messages)) <= size(repaired)


@PROPERTY
@given(tidy_histories(min_size=5), LIMITS, st.booleans(), st.booleans())
def test_each_request_goes_on_from_the_last_one_until_it_no_longer_fits(
    messages: list[Message], limit: int, fresh: bool, named: bool
) -> None:
    guarded = Guarded(limit)
    before: list[Message] = []
    seen = edits = 0
    for end in cuts(messages):
        history = decoded_again(messages[:end]) if fresh else messages[:end]
        sent = guarded.send(history, "c" if named else None)
        if size(before) + size(history[seen:]) <= limit or guarded.edits == edits:
            assert sent == before + history[seen:]
            assert guarded.edits == edits
        assert leftovers(sent) == {}
        assert size(sent) <= limit or not _removable(sent)
        before, seen, edits = sent, end, guarded.edits


def _removable(sent: Sequence[Message]) -> list[Message]:
    """What could still have been removed from a request."""
    must_stay = set(map(id, protected(sent)))
    units = [unit for unit in units_of(sent) if not unit.is_open]
    return [
        sent[unit.positions[0]]
        for unit in units
        if not any(id(sent[each]) in must_stay or is_new(sent, each) for each in unit.positions)
    ]


@pytest.mark.slow
@PROPERTY
@given(tidy_histories(min_size=5), LIMITS)
def test_fresh_but_equal_messages_are_edited_the_same_way_as_the_same_objects(
    messages: list[Message], limit: int
) -> None:
    same, fresh = Guarded(limit), Guarded(limit)
    for end in cuts(messages):
        assert fresh.send(decoded_again(messages[:end])) == same.send(messages[:end])
    assert fresh.edits == same.edits
    assert fresh.capture.warnings == same.capture.warnings


@pytest.mark.slow
@PROPERTY
@given(tidy_histories(min_size=5), LIMITS, st.booleans())
def test_the_counter_is_asked_once_for_each_distinct_message(messages: list[Message], limit: int, fresh: bool) -> None:
    counter = CountingCounter()
    guarded = Guarded(limit, counter)
    for end in cuts(messages):
        guarded.send(decoded_again(messages[:end]) if fresh else messages[:end])
    asked = [(message.role, message.parts, message.pinned) for message in counter.asked]
    assert len(asked) == len(set(asked))


@pytest.mark.slow
@PROPERTY
@given(tidy_histories(min_size=5), LIMITS)
def test_two_conversations_that_share_a_beginning_share_its_decisions(messages: list[Message], limit: int) -> None:
    guarded = Guarded(limit)
    ends = cuts(messages)
    for end in ends:
        guarded.send(messages[:end])
    first = guarded.send([*messages[: ends[-1]], Message.user("one way")])
    guarded.capture.clear()
    second = guarded.send([*messages[: ends[-1]], Message.user("or another")])
    assert second[-1] == Message.user("or another")
    if guarded.edits == 0 and len(first) == len(second):
        assert second[:-1] == first[:-1]
