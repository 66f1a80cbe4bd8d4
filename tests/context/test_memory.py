"""The context memory: decided once, replayed for whoever sends the same again, for nobody else."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest

from chatstack import (
    CharCounter,
    ChatOptions,
    ChatRequest,
    ChatStack,
    ChatStream,
    ContextMemory,
    ContextWindowGuard,
    Message,
    OldestFirst,
    Reasoning,
    Text,
    ToolCall,
    ToolDeclaration,
    ToolResult,
    WiringError,
)
from chatstack.context.decisions.agreement import Agreement
from chatstack.context.edits.records import Insertion, Record, record_of
from chatstack.context.edits.summaries import OPENING
from chatstack.context.histories.digests import Links
from chatstack.telemetry.emission import Telemetry
from chatstack.testing import ScriptedClient
from tests.context.strictness import context_of
from tests.context.test_sharing import DictStore
from tests.histories import decoded_again

A, B, C, D = Message.user("a"), Message.assistant("b"), Message.user("c"), Message.assistant("d")
SAID = Message.assistant("said")
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


class QuietClient(ScriptedClient):
    """Keeps no requests."""

    async def send(self, request: ChatRequest, /) -> ChatStream:
        stream = await super().send(request)
        self.requests.clear()
        return stream


def chosen(memory: ContextMemory, *messages: Message, who: str | None = None, place: str = "guard") -> Record | None:
    """The choice in force for these messages, of the conversation of that id."""
    return memory.chosen(place, memory.recognise(messages, who)).record


def choose(
    memory: ContextMemory,
    *request: Message,
    said: Message = SAID,
    record: Record = FIRST,
    who: str | None = None,
    place: str = "guard",
) -> tuple[Message, ...]:
    """Have that answer given to this request under these edits; the history with the answer."""
    seen = memory.recognise(request, who)
    memory.choose(place, seen, record, said, [seen.who])
    return (*request, said)


def test_a_choice_holds_for_whoever_has_the_answer_that_was_given_under_it() -> None:
    memory = ContextMemory()
    history = choose(memory, A, B)
    assert chosen(memory, *history) == FIRST
    assert chosen(memory, *history, C) == FIRST
    assert chosen(memory, A, B) is None
    assert chosen(memory, A, B, C) is None


def test_an_answer_made_again_is_not_bound_by_what_the_first_was_given_under() -> None:
    memory = ContextMemory()
    choose(memory, A, B)
    assert chosen(memory, A, B, Message.assistant("said otherwise"), C) is None


def test_fresh_but_equal_messages_recall_it_too() -> None:
    memory = ContextMemory()
    assert chosen(memory, *decoded_again([*choose(memory, A, B), C])) == FIRST


def test_an_answer_is_known_as_callers_keep_it() -> None:
    memory, call = ContextMemory(), ToolCall("c1", "look", '{"at": "sky", "n": 1}')
    said = Message("assistant", (Reasoning("hm"), Text("let me  see\n"), call))
    choose(memory, A, B, said=said)
    kept = Message.assistant("let me see", ToolCall("call_9", "look", '{"n":1,"at":"sky"}'))
    assert chosen(memory, A, B, kept, Message.tool("call_9", "sun")) == FIRST


def test_the_head_of_a_conversation_names_it_where_it_has_no_id() -> None:
    memory = ContextMemory()
    history = choose(memory, Message.system("it is 10:05 on 2026-01-09"), A, B)
    (_, *conversation) = history
    assert chosen(memory, Message.system("it is 9:00 on 2026-01-11"), *conversation) == FIRST
    assert chosen(memory, Message.system("you are a pirate"), *conversation) is None
    assert chosen(memory, *conversation) is None


def test_a_system_message_in_between_does_not_make_another_conversation() -> None:
    """It comes with what is said, as a note on one call, and another on the next."""
    memory, head = ContextMemory(), Message.system("be brief")
    choose(memory, head, A, B, C)
    for note in ("the user is in a hurry", "the user has left"):
        assert chosen(memory, head, A, Message.system(note), B, C, SAID) == FIRST


def test_an_id_narrows_and_never_replaces_the_comparison_of_messages() -> None:
    memory = ContextMemory()
    history = choose(memory, A, B, who="mine")
    assert chosen(memory, *history, who="mine") == FIRST
    assert chosen(memory, *history, who="yours") is None
    assert chosen(memory, *history) is None
    assert chosen(memory, A, D, SAID, who="mine") is None


def test_the_newest_answer_counts() -> None:
    memory = ContextMemory()
    history = choose(memory, A, B)
    longer = choose(memory, *history, C, said=D, record=SECOND)
    assert chosen(memory, *longer, A) == SECOND
    assert chosen(memory, *history, C) == FIRST


def test_branches_share_what_was_chosen_up_to_the_fork_only() -> None:
    memory = ContextMemory()
    history = choose(memory, A, B)
    choose(memory, *history, C, said=D, record=SECOND)
    assert chosen(memory, *history, B, D) == FIRST
    assert chosen(memory, A, SAID) is None


def test_a_history_edited_in_the_middle_falls_back_to_the_choice_before_the_edit() -> None:
    memory = ContextMemory()
    history = choose(memory, A, B)
    choose(memory, *history, C, said=D, record=SECOND)
    assert chosen(memory, *history, Message.user("C, but edited"), D) == FIRST


def test_a_message_that_is_pinned_later_recalls_nothing_that_was_chosen_about_it() -> None:
    memory = ContextMemory()
    choose(memory, A, B)
    assert chosen(memory, A, Message.user("b", pinned=True), SAID) is None


def test_of_two_calls_at_once_that_got_the_same_answer_all_later_ones_go_by_the_same_choice() -> None:
    """Pure strategies choose the same; of others, one choice holds."""
    memory = ContextMemory()
    start = threading.Barrier(8)

    def choose_one(number: int) -> None:
        start.wait()
        choose(memory, A, B, record=Record(drop=(number,)))

    threads = [threading.Thread(target=choose_one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {chosen(memory, *decoded_again([A, B, SAID]), *more) for more in ((), (C,), (C, D))}
    assert len(found) == 1
    assert found < {Record(drop=(number,)) for number in range(8)}


def test_each_layer_has_choices_of_its_own() -> None:
    memory = ContextMemory()
    assert chosen(memory, *choose(memory, A, B), place="clearer") is None


def test_a_reminder_that_goes_along_with_one_request_is_no_part_of_what_was_chosen() -> None:
    memory = ContextMemory()
    choose(memory, A, B, Message.user("remember: one"))
    assert chosen(memory, A, B, SAID, Message.user("remember: two")) == FIRST
    assert chosen(memory, A, B, Message.user("remember: one"), SAID, C) == FIRST
    assert chosen(memory, A, SAID) is None


def test_what_a_choice_names_is_part_of_it_wherever_it_stands() -> None:
    memory, new = ContextMemory(), Message.user("new")
    choose(memory, A, B, new, record=Record(drop=(2,)))
    assert chosen(memory, A, B, SAID) is None
    assert chosen(memory, A, B, new, SAID, C) == Record(drop=(2,))


def test_what_was_put_in_the_place_of_a_reminder_is_no_choice_without_it() -> None:
    memory, ours = ContextMemory(), Message("assistant", (Text("ours"),), mark="repair")
    choose(memory, A, B, C, record=Record(insert=(Insertion(3, ours, None),)))
    assert chosen(memory, A, B, SAID) is None


# Artifacts


def test_an_artifact_serves_whoever_asks_for_exactly_its_subject() -> None:
    memory, summary = ContextMemory(), Message("assistant", (Text("short"),), mark="summary")
    seen = memory.recognise((A, B, SAID))
    memory.keep_artifact("summary:1:folded", seen.links[1], summary, seen)
    other = memory.recognise(decoded_again([A, B, D, C]), "another conversation")
    assert memory.artifact("summary:1:folded", other.links[1]) is summary
    assert memory.artifact("summary:2:folded", other.links[1]) is None
    assert memory.artifact("summary:1:folded", other.links[2]) is None


# Bounds


def test_a_conversation_goes_as_a_whole_and_the_one_that_was_not_used_for_longest_first() -> None:
    memory = ContextMemory(max_messages=6)
    kept = {name: choose(memory, Message.user(name)) for name in ("one", "two")}
    assert chosen(memory, *kept["one"]) == FIRST
    assert memory.take_evicted() == 0
    kept["three"] = choose(memory, Message.user("three"), B, C)
    chosen(memory, *kept["three"])
    assert memory.take_evicted() > 0
    assert chosen(memory, *kept["three"]) == FIRST
    assert chosen(memory, *kept["two"]) is None


def test_what_is_held_stays_within_its_megabytes_whatever_comes() -> None:
    memory = ContextMemory(max_megabytes=0.2)
    for number in range(60):
        history = choose(memory, Message.user(f"{number} " + "x" * 9_000), B)
        memory.set_level("guard", memory.recognise(history), 1)
        summary = Message("assistant", (Text("x" * 2_000),), mark="summary")
        seen = memory.recognise(history)
        memory.keep_artifact("summary", seen.links[0], summary, seen)
        memory.recognise(history)
        assert 0 < memory.held_bytes <= 200_000
    assert memory.take_evicted() > 30
    assert memory.take_evicted() == 0


def test_what_is_kept_of_a_conversation_that_went_goes_with_it() -> None:
    memory = ContextMemory(max_messages=4)
    history = choose(memory, A, B)
    summary = Message("assistant", (Text("short"),), mark="summary")
    seen = memory.recognise(history)
    memory.keep_artifact("summary", seen.links[0], summary, seen)
    memory.recognise([Message.user(f"other {number}") for number in range(4)])
    assert memory.artifact("summary", seen.links[0]) is None
    assert chosen(memory, *history) is None


@pytest.mark.parametrize("given", [0, -1, -0.5, float("nan"), float("inf"), None, "256", True, b"1"], ids=repr)
def test_what_is_no_size_in_megabytes_is_refused(given: Any) -> None:
    with pytest.raises(WiringError, match="max_megabytes=") as caught:
        ContextMemory(max_megabytes=given)
    assert caught.value.parameter == "max_megabytes"


@pytest.mark.parametrize("given", [0.001, 1, 256, 10_000.5])
def test_any_other_size_is_taken(given: float) -> None:
    memory = ContextMemory(max_megabytes=given)
    assert chosen(memory, *choose(memory, A, B)) == FIRST
    assert repr(memory) == f"ContextMemory(max_megabytes={given:g})"


class Traced(Message, frozen=True, weakref=True):
    """A message that tells when it is gone."""


def test_what_is_chosen_about_messages_keeps_none_of_them() -> None:
    """It holds positions, and what was put in their place."""

    def decided() -> tuple[Record, list[weakref.ref[Message]]]:
        asked = Traced("user", (Text("the secret garden"),))
        old = Traced("tool", (ToolResult("c1", "", "roses " * 50), Text("a note")))
        cleared = old.edited(parts=(ToolResult("c1", "", "[cleared]"), old.parts[1]))
        ours = Message("assistant", (Text("ours"),), mark="repair")
        record = record_of(range(2), (asked, old), [(ours, None), (cleared, 1)]).record
        return record, [weakref.ref(each) for each in (asked, old, cleared)]

    record, gone = decided()
    gc.collect()
    assert (record.drop, len(record.replace), len(record.insert)) == ((0,), 1, 1)
    assert [each() for each in gone] == [None, None, None]


def test_a_conversation_that_went_leaves_no_message_behind() -> None:
    memory = ContextMemory(max_messages=5)

    def talk() -> list[weakref.ref[Message]]:
        messages = [Traced(each.role, each.parts) for each in (A, B, C)]
        choose(memory, *messages)
        return [weakref.ref(each) for each in messages]

    gone = talk()
    gc.collect()
    assert None not in [each() for each in gone]
    memory.recognise([Message.user(f"other {number}") for number in range(5)])
    gc.collect()
    assert [each() for each in gone] == [None, None, None]


def test_a_call_that_is_over_leaves_nothing_of_what_was_forgotten() -> None:
    """Layers, their memory and what they have noted on the way."""
    memory = ContextMemory()
    stack = ChatStack(QuietClient(), memory=memory)
    stack = stack.use(ContextWindowGuard, max_context_tokens=100, prune_on_overflow=True)

    async def talk() -> list[weakref.ref[Message]]:
        messages = [Traced(each.role, each.parts) for each in LONG]
        await stack.build().get_response(messages)
        return [weakref.ref(each) for each in messages]

    gone = asyncio.run(talk())
    gc.collect()
    assert None not in [each() for each in gone]
    memory.forget()
    gc.collect()
    assert [each() for each in gone] == [None] * len(LONG)


# Levels


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


def test_a_level_is_looked_up_for_the_lengths_that_one_was_kept_for(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, long = ContextMemory(), [A, *[B, C] * 1_000]
    for length in (3, 700, 5_000):
        memory.set_level("guard", memory.recognise([A, *[B, C] * length]), length)
    asked: list[int] = []
    link_at = Links.__getitem__
    monkeypatch.setattr(Links, "__getitem__", lambda self, at: asked.append(at) or link_at(self, at))  # type: ignore[func-returns-value]
    assert (memory.level("guard", memory.recognise(long, "mine")), len(asked)) == (700, 1)
    assert (memory.level("clearer", memory.recognise(long, "mine")), len(asked)) == (0, 3)


# Forgetting


def test_a_conversation_can_be_forgotten_by_its_id() -> None:
    memory = ContextMemory()
    for who in ("mine", "yours"):
        memory.set_level("guard", who, 1)
        choose(memory, A, B, who=who)
    memory.forget(conversation_id="mine")
    assert (memory.level("guard", "mine"), memory.level("guard", "yours")) == (0, 1)
    assert chosen(memory, A, B, SAID, who="mine") is None
    assert chosen(memory, A, B, SAID, who="yours") == FIRST


@pytest.mark.parametrize("answers", [0, 1], ids=["as they were sent", "with the last answer"])
def test_messages_and_every_beginning_of_them_can_be_forgotten(answers: int) -> None:
    memory = ContextMemory()
    first = choose(memory, A)
    second = choose(memory, *first, B, record=SECOND)
    third = choose(memory, *second, C)
    other = choose(memory, D)
    memory.forget(messages=[*first, B, SAID][: 3 + answers])
    assert chosen(memory, *second) is None
    assert chosen(memory, *first) is None
    assert chosen(memory, *third) == FIRST
    assert chosen(memory, *other) == FIRST


def test_messages_are_forgotten_under_every_name_of_their_conversation() -> None:
    memory = ContextMemory()
    choose(memory, A, B, who="mine")
    choose(memory, A, B)
    memory.forget(messages=[A, B, SAID])
    assert chosen(memory, A, B, SAID, who="mine") is None
    assert chosen(memory, A, B, SAID) is None


def test_artifacts_and_levels_of_messages_are_forgotten_with_them() -> None:
    memory, summary = ContextMemory(), Message("assistant", (Text("short"),), mark="summary")
    seen = memory.recognise((A, B, C))
    memory.keep_artifact("summary", seen.links[1], summary, seen)
    memory.set_level("guard", seen, 2)
    memory.forget(messages=[A, B, C])
    assert memory.artifact("summary", seen.links[1]) is None
    assert memory.level("guard", memory.recognise((A, B, C))) == 0


def test_summaries_of_a_conversation_are_forgotten_with_its_id_and_those_of_others_stay_bounded() -> None:
    memory, summary = ContextMemory(max_messages=6), Message("assistant", (Text("short"),), mark="summary")
    links: list[bytes] = []
    for number in range(8):
        seen = memory.recognise([Message.user(f"{number}"), B], f"conversation {number}")
        memory.keep_artifact("summary", seen.links[1], summary, seen)
        links.append(seen.links[1])
        memory.forget(conversation_id="somebody else's")
    kept = [number for number, link in enumerate(links) if memory.artifact("summary", link)]
    assert kept == [5, 6, 7], "three conversations of two messages fit"
    memory.forget(conversation_id="conversation 6")
    assert [number for number in kept if memory.artifact("summary", links[number])] == [5, 7]


def test_everything_can_be_forgotten() -> None:
    memory, counter = ContextMemory(), CountingCounter()
    history = choose(memory, A)
    choose(memory, A, who="mine")
    seen, summary = memory.recognise(history), Message("assistant", (Text("short"),), mark="summary")
    memory.keep_artifact("summary", seen.links[0], summary, seen)
    memory.set_level("guard", "mine", 1)
    memory.options_size(ChatOptions(instructions="be brief"), counter)
    memory.forget()
    assert memory.held_bytes == 0
    assert chosen(memory, *history) is None
    assert chosen(memory, *history, who="mine") is None
    assert memory.artifact("summary", seen.links[0]) is None
    assert memory.level("guard", "mine") == 0
    memory.options_size(ChatOptions(instructions="be brief"), counter)
    assert counter.options == 2


def test_a_layer_that_has_forgotten_chooses_anew() -> None:
    memory = ContextMemory()
    history = choose(memory, A, B)
    memory.forget(messages=history)
    choose(memory, A, B, record=SECOND)
    assert chosen(memory, *history) == SECOND


@pytest.mark.parametrize("answers", [0, 1], ids=["as they were sent", "with the last answer"])
def test_messages_are_forgotten_in_the_store_too(answers: int) -> None:
    async def run() -> None:
        store = DictStore()
        memory = ContextMemory(store=store, scope="tenant")
        agreement = Agreement(memory, Telemetry())
        seen = memory.recognise((A, B))
        for bound in memory.choose("guard", seen, FIRST, SAID, [seen.who]):
            await agreement.share(bound, seen, context_of((A, B)))
        summary = Message("assistant", (Text(f"{OPENING}\nshort"),), mark="summary")
        await agreement.keep_artifact("summary", seen.links[1], summary, seen)
        other = memory.recognise((D,))
        for bound in memory.choose("guard", other, FIRST, SAID, [other.who]):
            await agreement.share(bound, other, context_of((D,)))
        assert len(store.kept) > 2
        await memory.forget_stored([A, B, SAID][: 2 + answers])
        assert len(store.kept) == 1
        assert chosen(memory, A, B, SAID) is None
        assert chosen(memory, D, SAID) == FIRST

    asyncio.run(run())


def test_that_a_store_could_not_forget_is_raised() -> None:
    async def fails() -> None:
        raise OSError("gone")

    memory = ContextMemory(store=DictStore(fails), scope="tenant")
    with pytest.raises(OSError, match="gone"):
        asyncio.run(memory.forget_stored([A, B]))


# Sizes


def test_a_message_is_counted_once_for_each_counter_fresh_or_not() -> None:
    memory, one, other = ContextMemory(), CountingCounter(), CountingCounter()
    message = Message.user("count me")
    for each in (message, message, *decoded_again([message, message])):
        assert memory.sizes_by(one)(each) == one.message_tokens + 2
    memory.sizes_by(other)(message)
    memory.sizes_by(one)(message)
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
    guard: dict[str, Any] = {"max_context_tokens": 100, "prune_on_overflow": True}
    one, other = (ChatStack(ScriptedClient(), memory=memory).use(ContextWindowGuard, **guard) for _ in range(2))
    first = sent(one, LONG)
    assert sent(other, [*LONG, Message.user("more")]) == (*first, Message.user("more"))


def test_a_message_that_is_pinned_after_it_was_pruned_is_sent_again() -> None:
    stack = ChatStack(ScriptedClient()).use(OldestFirst(100, 50))
    assert LONG[1] not in sent(stack, LONG)
    pinned = Message("assistant", LONG[1].parts, pinned=True)
    assert pinned in sent(stack, [LONG[0], pinned, *LONG[2:]])
