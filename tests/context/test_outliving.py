"""The past of an answer, which outlives the history that it was given for."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from chatstack import ContextMemory, Message, ToolCall
from chatstack.context.histories.conversations import Form, LastAnswer
from chatstack.context.histories.history import History
from chatstack.context.histories.own_past import Entry
from chatstack.context.histories.recognised import Recognised

ASKED = (Message.user("a"), Message.assistant("b"), Message.user("c"))
SAID = Message.assistant("d")


def answer(memory: ContextMemory, seen: Recognised, said: Message = SAID, tokens: int = 7) -> None:
    memory.past.entry(seen, said).answered = LastAnswer(0.0, tokens, missed_cache=False, record=0, length=3)


def known_of(memory: ContextMemory, messages: tuple[Message, ...], conversation_id: str | None = None) -> int:
    """The size that was reported for the last answer in these messages, once their history is recognised anew."""
    again = ContextMemory().recognise(messages, conversation_id)
    memory.past.recall(again)
    known = again.conversation.answered
    return 0 if known is None else known.input_tokens


def let_go(memory: ContextMemory) -> None:
    """Let another conversation have the latest answer, and collect all histories that nobody holds."""
    answer(memory, memory.recognise([Message.user("another")] * 4))
    gc.collect()


def request(middle: str) -> tuple[Message, ...]:
    return Message.user("a"), Message.assistant(middle), Message.user("c")


def test_the_past_of_an_answer_outlives_the_history_that_it_was_given_for() -> None:
    memory = ContextMemory(max_messages=4)
    entry = memory.past.entry(memory.recognise(ASKED), Message.assistant("d  e"))
    entry.answered = LastAnswer(0.0, 7, missed_cache=False, record=0, length=3)
    memory.recognise([Message.user("another")] * 4)
    assert memory.take_evicted() == 1
    for said, known in (("d e", entry.answered), ("f", None)):
        again = memory.recognise((*ASKED, Message.assistant(said)))
        memory.past.recall(again)
        assert again.conversation.answered == known


@pytest.mark.parametrize("edited", [False, True])
def test_so_does_that_of_one_that_came_when_the_history_was_gone(edited: bool) -> None:
    memory = ContextMemory(max_messages=4)

    def recognised(memory: ContextMemory, *more: Message, evicted: bool = False) -> Recognised:
        seen = memory.recognise((*ASKED, *more))
        if evicted:
            memory.recognise([Message.user("another")] * 4)
        form = Form(seen.who, 0, False, 7)
        return memory.derived.recognised(seen, form, (*ASKED[1:], *more)) if edited else seen

    entry = memory.past.entry(recognised(memory, evicted=True), SAID)
    entry.answered = LastAnswer(0.0, 7, missed_cache=False, record=0, length=3)
    let_go(memory)
    assert entry.history() is None
    again = recognised(ContextMemory(), SAID)
    memory.past.recall(again)
    assert again.conversation.answered == entry.answered


@pytest.mark.parametrize(
    "forgotten", [{}, {"conversation_id": "mine"}, {"messages": ASKED}], ids=["all", "id", "messages"]
)
@pytest.mark.parametrize("is_shared", [False, True])
def test_so_does_that_of_one_that_came_when_the_conversation_was_forgotten(
    forgotten: dict[str, Any], is_shared: bool
) -> None:
    memory = ContextMemory(max_messages=4)
    seen = memory.recognise(ASKED, "mine")
    if is_shared:
        memory.recognise(ASKED, "another")
    memory.forget(**forgotten)
    answer(memory, seen)
    del seen
    let_go(memory)
    assert known_of(memory, (*ASKED, SAID), "mine") == 7


def test_so_does_that_of_one_of_many_conversations_that_begin_alike() -> None:
    memory = ContextMemory(max_messages=4)
    under_way = memory.recognise(ASKED, "second")
    answer(memory, memory.recognise(ASKED, "first"))
    for number in range(20):
        memory.recognise(ASKED, f"{number}")
    answer(memory, under_way)
    del under_way
    let_go(memory)
    assert [known_of(memory, (*ASKED, SAID), each) for each in ("first", "second", "0")] == [7, 7, 0]


@pytest.mark.parametrize("evicted", [False, True])
def test_requests_that_begin_and_end_alike_have_a_past_each(evicted: bool) -> None:
    memory = ContextMemory(max_messages=3) if evicted else ContextMemory()
    for tokens, middle in enumerate("xyz", 1):
        answer(memory, memory.recognise(request(middle)), tokens=tokens)
    assert (memory.take_evicted() > 0) is evicted
    assert [known_of(memory, (*request(middle), SAID)) for middle in "zyxw"] == [3, 2, 1, 0]


def test_one_of_these_is_found_when_that_of_the_first_is_dropped() -> None:
    memory, said = ContextMemory(), Message.assistant("d", ToolCall("1", "look", "{}"))
    for tokens, middle in enumerate("xy", 1):
        answer(memory, memory.recognise(request(middle)), said, tokens)
    history = (*request("x"), said)
    for number in range(2, 5):
        history = (*history, Message.tool(f"{number - 1}", "found", name="look"))
        called = Message.assistant(ToolCall(f"{number}", "look", "{}"))
        answer(memory, memory.recognise(history), called, 9)
        history = (*history, called)
    assert [known_of(memory, (*request(middle), said)) for middle in "xy"] == [0, 2]


def test_to_find_one_takes_no_longer_where_many_requests_begin_and_end_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, compared, is_of = ContextMemory(), list[int](), Entry.is_of

    def counted(entry: Entry, history: History) -> bool:
        compared.append(entry.length)
        return is_of(entry, history)

    monkeypatch.setattr(Entry, "is_of", counted)
    for number in range(100):
        answer(memory, memory.recognise(request(f"{number}")))
    assert 0 < len(compared) < 200
