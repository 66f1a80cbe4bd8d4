"""Edited forms of a history: which of them are kept, and whose past they have."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest

from chatstack import CharCounter, ContextMemory, Message
from chatstack.context.histories import history
from chatstack.context.histories.conversations import Form
from chatstack.context.histories.digests import next_links
from chatstack.context.histories.recognised import Recognised

TALK = tuple(Message.assistant(f"{at}") if at % 2 else Message.user(f"{at}") for at in range(40))
MANY = 6


def seen_of(memory: ContextMemory, length: int) -> Recognised:
    return memory.recognise(TALK[:length], "mine")


def form_of(memory: ContextMemory, edits: int, length: int, *, behind: int = 0) -> Recognised:
    """The history of so many messages, with that many left out."""
    seen = seen_of(memory, length)
    return memory.derived.recognised(seen, Form(seen.who, behind, False, edits), TALK[edits:length])


def edits_of(seen: Recognised) -> list[int]:
    return [form.edits for form in seen.history.forms]


def test_a_form_is_dropped_once_the_one_after_it_has_grown() -> None:
    memory = ContextMemory()
    form_of(memory, 1, 11)
    form_of(memory, 2, 13)
    assert edits_of(seen_of(memory, 13)) == [1, 2]
    form_of(memory, 2, 15)
    assert edits_of(seen_of(memory, 15)) == [2]


def test_forms_that_a_conversation_alternates_between_stay() -> None:
    memory = ContextMemory()
    for length in range(11, 31, 4):
        one, other = form_of(memory, 1, length), form_of(memory, 2, length + 2)
        assert (len(one.history.messages), len(other.history.messages)) == (length - 1, length)
    assert sorted(edits_of(seen_of(memory, 29))) == [1, 2]


def test_a_form_behind_one_layer_leaves_those_behind_another_alone() -> None:
    memory = ContextMemory()
    for length in (11, 13, 15):
        form_of(memory, 1, length)
        form_of(memory, 2, length, behind=1)
    assert sorted(edits_of(seen_of(memory, 15))) == [1, 2]


def test_what_a_dropped_form_weighed_is_given_back() -> None:
    memory, alone = ContextMemory(), ContextMemory()
    form_of(memory, 1, 11)
    form_of(memory, 2, 13)
    form_of(alone, 2, 13)
    assert memory.held_bytes > alone.held_bytes
    form_of(memory, 2, 15)
    form_of(alone, 2, 15)
    assert memory.held_bytes == alone.held_bytes


def test_a_level_is_kept_under_the_messages_as_they_came() -> None:
    """Under these a conversation is forgotten, and known again where its history is new."""
    memory = ContextMemory()
    memory.set_level("guard", form_of(memory, 3, 11), 1)
    assert [memory.level("guard", memory.recognise(TALK[:at], f"yours {at}")) for at in (9, 13)] == [0, 1]
    memory.forget(messages=TALK[:15])
    assert memory.level("guard", form_of(memory, 3, 17)) == 0


def test_an_edited_form_is_not_digested_for_its_level(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = ContextMemory()
    memory.set_level("guard", memory.recognise([Message.user("another conversation")]), 1)
    form, digested = form_of(memory, 3, 11), list[int]()

    def counting(link: bytes, new: Sequence[Message], key: bytes) -> list[bytes]:
        digested.append(len(new))
        return next_links(link, new, key)

    monkeypatch.setattr(history, "next_links", counting)
    memory.set_level("guard", form, 1 + memory.level("guard", form))
    assert digested == [11]


def test_the_forms_of_a_conversation_have_one_past() -> None:
    """It may go on from few answers, however often it was edited."""
    memory = ContextMemory()
    for edit in range(1, MANY):
        memory.past.entry(form_of(memory, edit, 9 + 2 * edit), Message.assistant(f"{edit}"))
    assert len(memory.past) == 4


def test_the_past_of_the_latest_answers_outlives_their_form() -> None:
    memory = ContextMemory()
    entry = memory.past.entry(form_of(memory, 1, 11), TALK[11])
    form_of(memory, 2, 13)
    memory.past.entry(form_of(memory, 2, 15), TALK[15])
    assert entry.history() is None
    again = ContextMemory()
    again.past = memory.past
    seen = form_of(again, 1, 13)
    assert again.past.entry(form_of(again, 1, 11), TALK[11]) is entry
    assert seen.length == 12


def test_so_does_that_of_an_answer_to_a_reminder_that_does_not_come_again() -> None:
    memory, said, edits = ContextMemory(), Message.assistant("said"), 3
    seen = form_of(memory, edits, 11)
    entry = memory.past.entry(seen, said)
    memory.past.entry(seen_of(memory, 11), said)
    del seen
    memory.recognise((*TALK[:10], said, Message.user("and then?")), "mine")
    gc.collect()
    assert entry.history() is None
    again = ContextMemory()
    again.past = memory.past
    assert again.past.entry(form_of(again, edits, 11), said) is entry


@pytest.mark.parametrize("second", [10, 25], ids=["edits further down", "the same ones"])
def test_what_is_worked_out_of_a_form_holds_for_the_next_one_as_far_as_both_begin_alike(second: int) -> None:
    """The second edit of a conversation leaves what the first one did, and all before it, as it was."""
    memory, alone, counter = ContextMemory(), ContextMemory(), CharCounter()
    counted: list[Message] = []

    def size_of(message: Message) -> int:
        counted.append(message)
        return counter.count_message(message)

    def form(memory: ContextMemory, edits: int, length: int) -> Recognised:
        edited = (*TALK[:second], *(each.edited(parts=(each.parts[0],) * 2) for each in TALK[second:25]))
        messages = (edited if edits > 1 else TALK[:25]) + TALK[25:length]
        seen = seen_of(memory, length)
        return memory.derived.recognised(seen, Form(seen.who, 0, False, edits), messages)

    def worked_out(seen: Recognised) -> tuple[list[int], list[bytes], list[int]]:
        history, length = seen.history, seen.length
        sums = [*history.sums(length, counter, size_of)]
        return sums, [*seen.links], [history.prefix_hash(at) for at in range(1, length + 1)]

    worked_out(form(memory, 1, 31))
    counted.clear()
    found = worked_out(form(memory, 2, 33))
    assert counted == [*form(memory, 2, 33).history.messages[second if second < 25 else 31 :]]
    counted.clear()
    assert found == worked_out(form(alone, 2, 33))
    assert len(counted) == 33
