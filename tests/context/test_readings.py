"""What was read of a conversation for an edit is kept for the next one: bounded, for one call at a time, and not longer
than the conversation."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterable, Sequence

import pytest

from chatstack import ChatStack, ClearThenDrop, ContextMemory, Message, ToolCall
from chatstack.context.histories.conversations import Conversation
from chatstack.context.histories.growth import Reading
from chatstack.context.memory.readings import Readings
from chatstack.context.strategies.mentions import Gone
from chatstack.testing import ScriptedClient
from tests.histories import decoded_again

LIMIT = 2_000


def history(rounds: int) -> list[Message]:
    messages = [Message.system("You look things up."), Message.user("Look.")]
    for at in range(rounds):
        said = " ".join(f"word{at}_{number}" for number in range(40))
        messages.append(Message.assistant(f"I look at {at}.", ToolCall(f"c{at}", "look", f'{{"at": "place_{at}"}}')))
        messages.append(Message.tool(f"c{at}", said, name="look"))
    return messages


def reading_of(words: int) -> Reading:
    reading, gone = Reading(), Gone()
    gone.add([Message.user(" ".join(f"word{at}" for at in range(words)))], [0])
    reading.gone = gone
    return reading


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions of all messages whose words were read as gone, in order."""
    found: list[int] = []
    add = Gone.add

    def counting(self: Gone, messages: Sequence[Message], positions: Iterable[int]) -> None:
        positions = [*positions]
        found.extend(at for at in positions if at not in self.read)
        add(self, messages, positions)

    monkeypatch.setattr(Gone, "add", counting)
    return found


async def grow(memory: ContextMemory, messages: Sequence[Message], *, is_fresh: bool = False) -> list[str]:
    """Send each beginning of a history that ends where a model is asked; return what was sent."""
    inner = ScriptedClient(["done"] * len(messages))
    client = ChatStack(inner, memory=memory).use(ClearThenDrop(LIMIT)).build()
    for end in range(2, len(messages) + 1, 2):
        beginning = messages[:end]
        await client.get_response(decoded_again(beginning) if is_fresh else beginning)
    return [repr(request.messages) for request in inner.requests]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_fresh", [False, True], ids=["kept objects", "fresh objects"])
def test_over_all_edits_of_a_conversation_each_message_is_read_once(read: list[int], is_fresh: bool) -> None:
    sent = asyncio.run(grow(ContextMemory(), history(80), is_fresh=is_fresh))
    assert len(read) > 100
    assert len(read) == len(set(read))
    read.clear()
    assert sent == asyncio.run(grow(ContextMemory(max_megabytes=0.2), history(80), is_fresh=is_fresh))
    assert len(read) > 2 * len(set(read))  # nothing was kept, and the same was sent


def test_it_is_forgotten_with_its_conversation() -> None:
    memory = ContextMemory()
    asyncio.run(grow(memory, history(60)))
    assert memory.readings.held_bytes > 0
    memory.forget()
    assert memory.held_bytes == 0


def test_it_goes_with_a_conversation_that_nobody_holds() -> None:
    readings = ContextMemory().readings
    readings.keep(Conversation(), "terms", reading_of(3))
    gc.collect()
    assert readings.held_bytes == 0


def test_a_reading_is_with_one_call_at_a_time() -> None:
    readings, conversation, reading = ContextMemory().readings, Conversation(), reading_of(3)
    readings.keep(conversation, "terms", reading)
    assert readings.take(conversation, "other terms") is None
    assert readings.take(Conversation(), "terms") is None
    assert readings.take(conversation, "terms") is reading
    assert readings.take(conversation, "terms") is None


def test_those_used_last_stay_within_the_bound() -> None:
    memory = ContextMemory(max_megabytes=0.1)
    readings, conversations = memory.readings, [Conversation() for _ in range(5)]
    for conversation in conversations:
        readings.keep(conversation, "terms", reading_of(5))
    assert memory.held_bytes == readings.held_bytes == 3 * 5 * 400
    assert [readings.take(each, "terms") is not None for each in conversations] == [False, False, True, True, True]


def test_one_that_is_larger_than_the_bound_evicts_no_other() -> None:
    readings, small, large = ContextMemory(max_megabytes=0.1).readings, Conversation(), Conversation()
    readings.keep(small, "terms", reading_of(5))
    readings.keep(large, "terms", reading_of(100))
    assert readings.take(small, "terms") is not None
    assert readings.take(large, "terms") is None


def test_there_are_few_of_them_however_small_they_are() -> None:
    readings, conversations = Readings(10**9, threading.RLock()), [Conversation() for _ in range(100)]
    for conversation in conversations:
        readings.keep(conversation, "terms", reading_of(1))
    assert sum(readings.take(each, "terms") is not None for each in conversations) == 32


def test_of_a_conversation_the_last_one_is_kept() -> None:
    readings, conversation, reading = ContextMemory(max_megabytes=0.1).readings, Conversation(), reading_of(10)
    readings.keep(conversation, "terms", reading_of(10))
    readings.keep(conversation, "other terms", reading)
    assert readings.held_bytes == 10 * 400
    assert readings.take(conversation, "terms") is None
    assert readings.take(conversation, "other terms") is reading


def test_what_is_no_word_to_be_listed_is_not_kept() -> None:
    gone = Gone()
    gone.add([Message.tool("c", "a" * 150_000 + " word")], [0])
    assert len(gone) == 1


def test_the_order_of_the_words_grows_with_their_number_alone() -> None:
    gone = Gone()
    words = [f"word_{at}" for at in range(1_000)]
    for at in range(200):
        gone.add([Message.user(" ".join(words if not at else words[at : at + 50]))] * 200, [at])
        gone.mentions([], most=10)
    assert len(gone._in_order) <= 3 * len(gone)


def test_nothing_of_the_caller_is_held_by_it() -> None:
    readings, conversation, reading = ContextMemory().readings, Conversation(), reading_of(1)
    reading.said[Message.user("hello").parts[0]] = frozenset({"hello"})
    readings.keep(conversation, "terms", reading)
    assert not reading.said
