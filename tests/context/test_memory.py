"""The context memory: decided once, replayed for whoever sends the same again, for nobody else."""

from __future__ import annotations

import asyncio
import threading

import pytest

from chatstack import (
    CharCounter,
    ChatOptions,
    ChatStack,
    ContextMemory,
    ContextWindowGuard,
    Message,
    OldestFirst,
    ToolDeclaration,
    WiringError,
)
from chatstack.context.memory import Record
from chatstack.testing import ScriptedClient
from tests.histories import decoded_again

A, B, C, D = (Message.assistant(each) for each in "abcd")
FIRST, SECOND = Record(drop=(0,)), Record(drop=(0, 1))


class CountingCounter(CharCounter):
    is_cheap = False

    def __init__(self) -> None:
        super().__init__()
        self.messages = self.options = 0

    def count_message(self, message: Message) -> int:
        self.messages += 1
        return super().count_message(message)

    def count_options(self, options: ChatOptions) -> int:
        self.options += 1
        return super().count_options(options)


def recalled(memory: ContextMemory, *messages: Message, owner: str = "guard") -> Record | None:
    return memory.recall(owner, memory.recognise(messages)).record


def latched(memory: ContextMemory, *messages: Message, record: Record = FIRST, owner: str = "guard") -> Record:
    return memory.latch(owner, memory.recognise(messages), record)


def test_a_decision_is_recalled_for_the_same_messages_and_for_all_that_go_on_from_them() -> None:
    memory = ContextMemory()
    latched(memory, A, B)
    assert recalled(memory, A, B) == FIRST
    assert recalled(memory, A, B, C) == FIRST
    assert recalled(memory, A) is None


def test_fresh_but_equal_messages_recall_it_too() -> None:
    memory = ContextMemory()
    latched(memory, A, B)
    assert recalled(memory, *decoded_again([A, B, C])) == FIRST


def test_other_system_messages_do_not_matter() -> None:
    memory = ContextMemory()
    latched(memory, Message.system("it is Monday"), A, B)
    assert recalled(memory, Message.system("it is Tuesday"), A, B) == FIRST


def test_the_longest_match_counts() -> None:
    memory = ContextMemory()
    latched(memory, A, B)
    latched(memory, A, B, C, record=SECOND)
    assert recalled(memory, A, B, C, D) == SECOND
    assert recalled(memory, A, B, D) == FIRST


def test_branches_share_what_was_decided_up_to_the_fork_only() -> None:
    memory = ContextMemory()
    latched(memory, A, B)
    latched(memory, A, B, C, record=SECOND)
    assert recalled(memory, A, B, D, C) == FIRST
    assert recalled(memory, A, D) is None


def test_a_history_edited_in_the_middle_falls_back_to_the_record_before_the_edit() -> None:
    memory = ContextMemory()
    latched(memory, A, B)
    latched(memory, A, B, C, D, record=SECOND)
    assert recalled(memory, A, B, Message.assistant("C, but edited"), D) == FIRST


def test_a_message_that_is_pinned_later_recalls_nothing_that_was_decided_about_it() -> None:
    memory = ContextMemory()
    latched(memory, A, B)
    assert recalled(memory, A, Message.assistant("b", pinned=True)) is None


def test_the_first_writer_wins_and_the_second_gets_its_record() -> None:
    memory = ContextMemory()
    assert latched(memory, A, B) == FIRST
    assert latched(memory, A, B, record=SECOND) == FIRST
    assert recalled(memory, A, B) == FIRST


def test_of_many_writers_at_once_all_get_the_same_record() -> None:
    memory = ContextMemory()
    start = threading.Barrier(8)
    got: list[Record] = []

    def write(number: int) -> None:
        start.wait()
        got.append(latched(memory, A, B, record=Record(drop=(number,))))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8
    assert len(set(got)) == 1
    assert recalled(memory, A, B) == got[0]


def test_each_layer_has_decisions_of_its_own() -> None:
    memory = ContextMemory()
    latched(memory, A, B)
    assert recalled(memory, A, B, owner="clearer") is None


def test_it_is_bounded_and_what_was_not_used_for_longest_goes_first() -> None:
    memory = ContextMemory(max_entries=2)
    latched(memory, A)
    latched(memory, B)
    assert recalled(memory, A) == FIRST
    latched(memory, C)
    assert (recalled(memory, A), recalled(memory, B), recalled(memory, C)) == (FIRST, None, FIRST)


def test_a_decision_holds_without_what_came_after_the_models_latest_message() -> None:
    """A reminder that a caller appends to each request, and does not keep, is no part of what was decided about."""
    memory = ContextMemory()
    latched(memory, A, B, Message.user("remember: one"))
    assert recalled(memory, A, B, Message.user("remember: two")) == FIRST
    assert recalled(memory, A, B, C, Message.user("remember: three")) == FIRST
    assert recalled(memory, A) is None


def test_what_a_decision_names_is_part_of_it_wherever_it_stands() -> None:
    memory, new = ContextMemory(), Message.user("new")
    latched(memory, A, B, new, record=Record(drop=(2,)))
    assert recalled(memory, A, B) is None
    assert recalled(memory, A, B, new, C) == Record(drop=(2,))


def test_levels_are_bounded_too() -> None:
    memory = ContextMemory(max_entries=2)
    for name in ("one", "two", "three"):
        memory.set_level("guard", name, 1)
    assert [memory.level("guard", name) for name in ("one", "two", "three")] == [0, 1, 1]


def test_a_level_is_known_by_the_longest_beginning_that_has_one() -> None:
    memory = ContextMemory()
    memory.set_level("guard", memory.recognise([A]), 1)
    memory.set_level("guard", memory.recognise([A, B]), 2)
    restarted = [A, B, C]
    assert memory.level("guard", memory.recognise(decoded_again(restarted))) == 2
    assert memory.level("guard", memory.recognise([A, D])) == 1
    assert memory.level("guard", memory.recognise([D])) == 0
    assert memory.level("clearer", memory.recognise([A, B])) == 0


def test_a_conversation_can_be_forgotten() -> None:
    memory = ContextMemory()
    memory.set_level("guard", "mine", 1)
    memory.set_level("guard", "yours", 1)
    memory.forget(conversation_id="mine")
    assert (memory.level("guard", "mine"), memory.level("guard", "yours")) == (0, 1)


def test_messages_and_every_beginning_of_them_can_be_forgotten() -> None:
    memory = ContextMemory()
    latched(memory, A)
    latched(memory, A, B)
    latched(memory, A, B, C)
    latched(memory, D)
    memory.forget(messages=[A, B])
    assert recalled(memory, A, B) is None
    assert recalled(memory, A, B, C) == FIRST
    assert recalled(memory, D) == FIRST


def test_everything_can_be_forgotten() -> None:
    memory, counter = ContextMemory(), CountingCounter()
    latched(memory, A)
    memory.set_level("guard", "mine", 1)
    memory.options_size(ChatOptions(instructions="be brief"), counter)
    memory.forget()
    assert recalled(memory, A) is None
    assert memory.level("guard", "mine") == 0
    memory.options_size(ChatOptions(instructions="be brief"), counter)
    assert counter.options == 2


def test_a_message_is_counted_once_for_each_counter_fresh_or_not() -> None:
    memory, one, other = ContextMemory(), CountingCounter(), CountingCounter()
    message = Message.user("count me")
    for each in (message, message, *decoded_again([message, message])):
        assert memory.size_of(each, one) == one.message_tokens + 2
    memory.size_of(message, other)
    memory.size_of(message, one)
    assert (one.messages, other.messages) == (1, 1)


def test_options_are_counted_once_for_each_distinct_set() -> None:
    memory, counter = ContextMemory(), CountingCounter()
    tools = (ToolDeclaration("look", "Look.", "{}"),)
    for _ in range(3):
        memory.options_size(ChatOptions(instructions="be brief", tools=tools, temperature=1), counter)
        memory.options_size(ChatOptions(instructions="be brief", tools=tools, max_tokens=5), counter)
    assert counter.options == 1
    memory.options_size(ChatOptions(instructions="be long", tools=tools), counter)
    assert counter.options == 2


def test_it_must_have_room_for_something() -> None:
    with pytest.raises(WiringError, match="max_entries=0"):
        ContextMemory(max_entries=0)


LONG = [Message.user("task"), *(Message.assistant(f"{number} " * 40) for number in range(6)), Message.user("go on")]


def sent(stack: ChatStack, messages: list[Message]) -> tuple[Message, ...]:
    asyncio.run(stack.build().get_response(messages))
    assert isinstance(stack.provider, ScriptedClient)
    return stack.provider.requests[-1].messages


def test_decisions_outlive_a_built_client() -> None:
    stack = ChatStack(ScriptedClient()).use(ContextWindowGuard, max_context_tokens=100, prune_on_overflow=True)
    first = sent(stack, LONG)
    assert len(first) < len(LONG)
    assert sent(stack, [*LONG, Message.user("more")]) == (*first, Message.user("more"))


def test_a_memory_can_be_shared_by_two_stacks() -> None:
    memory = ContextMemory()
    guard = {"max_context_tokens": 100, "prune_on_overflow": True}
    one, other = (
        ChatStack(ScriptedClient(), memory=memory).use(ContextWindowGuard, name=None, **guard) for _ in range(2)
    )
    first = sent(one, LONG)
    assert sent(other, [*LONG, Message.user("more")]) == (*first, Message.user("more"))


def test_a_message_that_is_pinned_after_it_was_pruned_is_sent_again() -> None:
    stack = ChatStack(ScriptedClient()).use(OldestFirst(100, 50))
    assert LONG[1] not in sent(stack, LONG)
    pinned = Message("assistant", LONG[1].parts, pinned=True)
    assert pinned in sent(stack, [LONG[0], pinned, *LONG[2:]])
