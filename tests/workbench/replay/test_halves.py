"""The half of a conversation depends on that conversation alone, and copies of it are in the same one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from chatstack import InputError
from chatstack.workbench.replay.reading.recordings import BrokenLine, Recording
from chatstack.workbench.replay.tuning.halves import FEWEST, Halves, halves_of, of_part
from tests.workbench.replay.conversations import assistant, conversation, recording, user
from tests.workbench.replay.errands import WINDOW, errand, errands, is_tuned_on


def ids(items: Sequence[Recording | BrokenLine], part: frozenset[int]) -> set[str]:
    return {each.id for each in of_part(items, part) if isinstance(each, Recording)}


def test_the_half_of_a_conversation_depends_neither_on_the_order_nor_on_what_else_is_there() -> None:
    items = [recording(errand(f"errand{number}", "here", words=600)) for number in range(60)]
    halves = halves_of(items, WINDOW)
    tuning, sample = ids(items, halves.tuning), ids(items, halves.sample)
    assert len(tuning) + len(ids(items, halves.other)) == 60
    assert min(len(tuning), 60 - len(tuning)) > 15
    assert sample < tuning

    shuffled = random.Random(3).sample(items, 60)
    again = halves_of(shuffled, WINDOW)

    assert (ids(shuffled, again.tuning), ids(shuffled, again.sample)) == (tuning, sample)
    assert {each.id for each in items if halves_of([each], WINDOW).tuning} == tuning


def test_copies_continuations_and_other_runs_of_a_task_fall_into_one_half() -> None:
    for number in range(20):
        task = user(f"task {number}")
        short = conversation({"role": "system", "content": "It is 9:00."}, task, assistant("a"))
        long = conversation(
            {"role": "system", "content": "It is 9:05."}, task, assistant("a"), user("b"), assistant("c")
        )
        other_run = conversation(task, assistant("something else"))

        assert len({is_tuned_on(each) for each in (short, long, other_run)}) == 1


def test_what_cannot_be_read_or_asked_again_is_in_no_half_and_told() -> None:
    broken = recording(conversation({"role": "tool", "content": 3}), line=7)
    silent = recording(conversation(user("hello")))
    items: list[Recording | BrokenLine] = [
        BrokenLine("a.jsonl", 1, "no"),
        broken,
        silent,
        recording(conversation(user("a"), assistant("b"))),
    ]

    halves = halves_of(items, WINDOW)

    assert halves.tuning | halves.other == {4}
    assert (halves.silent, halves.unread.broken_count) == (1, 2)
    assert [each.line for each in halves.unread.broken] == [1, 7]


def test_a_sample_is_of_the_large_conversations_alone_and_where_there_is_none_it_is_the_whole_half() -> None:
    small = errands(10, is_tuned=True, calls=lambda _: ["here"], words=1)
    large = [errand(str(each["id"]).replace("errand", "long"), "here", words=2_000) for each in small]
    items = [recording(each) for each in (*small, *large)]

    halves = halves_of(items, WINDOW)
    assert ids(items, halves.sample) <= {str(each["id"]) for each in large}
    assert halves.has_sample

    only_small = halves_of([recording(each) for each in small], WINDOW)
    assert only_small.sample == only_small.tuning
    assert not only_small.has_sample


@pytest.mark.parametrize("half", ["tuning", "other"])
def test_a_half_that_is_too_small_is_refused_with_the_reason(half: str) -> None:
    numbers: dict[str, Any] = {"tuning": frozenset(range(9)), "other": frozenset(range(9, 18))}
    numbers[half] = frozenset(sorted(numbers[half])[: FEWEST - 1])
    sizes = "3 and 9" if half == "tuning" else "9 and 3"
    with pytest.raises(InputError, match=f"^Too few recordings: {sizes} in the two halves, 4 needed in each"):
        Halves(**numbers).check()

    numbers[half] = frozenset(range(100, 100 + FEWEST))
    Halves(**numbers).check()


def test_half_a_character_where_none_can_be_is_unread_and_ends_nothing() -> None:
    torn = recording(conversation(user("a"), assistant("b")))
    torn.body["tools"] = [{"type": "function", "function": {"name": "look", "parameters": {"title": "\ud83d"}}}]

    halves = halves_of([torn], 1_000)

    assert halves.unread.broken_count == 1
    assert "half a character" in halves.unread.broken[0].error
