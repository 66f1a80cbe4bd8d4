"""Recognising: a conversation is known again when it comes longer, and is never taken for another one."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given

from chatstack import Message, ToolCall
from chatstack.context.edits.repairing import repair_plan
from chatstack.context.histories.history import History
from chatstack.context.histories.recognised import Recognised
from chatstack.context.histories.recognising import NEW_MESSAGES, Recogniser
from tests.histories import PROPERTY, decoded_again, histories

CALL, RESULT = Message.assistant("looking", ToolCall("c", "look")), Message.tool("c", "sun")


def recogniser(max_messages: int = 100_000) -> Recogniser:
    return Recogniser(b"", max_messages)


def talk(count: int, start: str = "") -> list[Message]:
    """User and assistant in turn, no two messages equal."""
    return [(Message.assistant if at % 2 else Message.user)(f"{start}{at}") for at in range(count)]


def seen(known: Recogniser, messages: Sequence[Message]) -> Recognised:
    return known.recognise(tuple(messages))


@pytest.mark.parametrize("fresh", [False, True], ids=["the same objects", "fresh equal objects"])
def test_a_conversation_that_goes_on_keeps_its_history(fresh: bool) -> None:
    known, messages = recogniser(), talk(40)
    found = {
        id(seen(known, decoded_again(messages[:end]) if fresh else messages[:end]).history) for end in range(1, 41)
    }
    assert len(found) == 1


def test_the_same_request_again_is_the_same_history() -> None:
    known, messages = recogniser(), talk(9)
    assert seen(known, messages).history is seen(known, decoded_again(messages)).history


def test_a_conversation_may_have_grown_by_many_messages_in_between() -> None:
    known, messages = recogniser(), talk(2 * NEW_MESSAGES + 3)
    first = seen(known, messages[:2]).history
    assert seen(known, messages[: 1 + NEW_MESSAGES]).history is first
    assert seen(known, messages).history is not first


def test_branches_are_histories_of_their_own() -> None:
    known, messages = recogniser(), talk(9)
    trunk = seen(known, messages).history
    one, other = (seen(known, [*messages[:7], *talk(3, name)]) for name in ("x", "y"))
    assert len({id(trunk), id(one.history), id(other.history)}) == 3
    assert list(one.links[:7]) == list(other.links[:7])
    assert one.links[7] != other.links[7]
    assert not one.is_unstable
    assert not other.is_unstable


def test_a_history_that_was_edited_in_the_middle_is_another_one() -> None:
    known, messages = recogniser(), talk(12)
    before = seen(known, messages)
    edited = [*messages[:6], Message.user("6, but edited"), *messages[7:]]
    after = seen(known, edited)
    assert after.history is not before.history
    assert after.links[5] == before.links[5]
    assert after.links[6] != before.links[6]
    assert seen(known, [*edited, *talk(2, "more")]).history is after.history


@pytest.mark.parametrize("place", [0, 1, 3, 6, 7])
def test_system_messages_may_stand_anywhere_and_change_from_call_to_call(place: int) -> None:
    known, messages = recogniser(), talk(7)
    history = seen(known, messages).history
    for day in ("Monday", "Tuesday"):
        given_now = [*messages[:place], Message.system(day), *messages[place:]]
        found = seen(known, given_now)
        assert found.history is history
        assert found.length == 7
        assert [given_now[at] for at in found.positions] == messages
    assert seen(known, [Message.system("a"), *messages[:3], Message.system("b"), *messages[3:]]).history is history


def test_system_messages_alone_are_no_history() -> None:
    known = recogniser()
    found = seen(known, [Message.system("be brief")])
    assert (found.length, found.needs_repair, list(found.positions)) == (0, False, [])
    assert seen(known, []).length == 0


def test_what_was_not_used_for_longest_is_forgotten() -> None:
    known = recogniser(max_messages=10)
    one, two, three = (seen(known, talk(4, name)).history for name in ("x", "y", "z"))
    assert seen(known, talk(4, "y")).history is two
    assert seen(known, talk(4, "z")).history is three
    assert seen(known, talk(4, "x")).history is not one


def test_what_is_used_stays_however_much_else_comes() -> None:
    known = recogniser(max_messages=40)
    messages = talk(30)
    history = seen(known, messages[:10]).history
    for end in range(10, 31):
        assert seen(known, messages[:end]).history is history
        seen(known, talk(5, f"other {end} "))


def test_one_conversation_that_is_larger_than_the_bound_is_known_all_the_same() -> None:
    known, messages = recogniser(max_messages=3), talk(20)
    history = seen(known, messages[:10]).history
    assert seen(known, messages).history is history


def test_two_conversations_with_the_same_beginning_do_not_get_in_each_others_way() -> None:
    known, shared = recogniser(), talk(6)
    one, other = [*shared, Message.user("one")], [*shared, Message.user("other")]
    histories = seen(known, one).history, seen(known, other).history
    for number in range(10):
        one += talk(2, f"one {number} ")
        other += talk(2, f"other {number} ")
        assert (seen(known, one).history, seen(known, other).history) == histories
    assert histories[0] is not histories[1]


@pytest.mark.parametrize("differ_at", [0, 1])
def test_a_thousand_conversations_that_differ_in_their_beginning_alone_are_all_known_again(differ_at: int) -> None:
    known, same = recogniser(), talk(24)
    conversations = [
        [*same[:differ_at], Message.user(f"task {number}"), *same[differ_at + 1 :]] for number in range(1_000)
    ]
    first = [seen(known, each[:14]).history for each in conversations]
    later = [seen(known, each[:16]).history for each in conversations]
    assert len(set(map(id, first))) == 1_000
    assert all(one is other for one, other in zip(first, later, strict=True))


def test_a_thousand_conversations_that_differ_in_their_middle_alone_are_never_taken_for_one_another() -> None:
    known, same = recogniser(), talk(24)
    conversations = [[*same[:5], Message.user(f"task {number}"), *same[6:]] for number in range(1_000)]
    for end in (14, 16, 16):
        found = [seen(known, each[:end]) for each in conversations]
        assert len({id(each.history) for each in found}) == 1_000
        assert not any(each.is_unstable for each in found)


def test_many_threads_that_make_the_same_conversations_grow_see_what_they_sent() -> None:
    known = recogniser()
    conversations = [[*talk(3, f"{number} "), CALL, RESULT, *talk(40, f"{number} then ")] for number in range(4)]
    start = threading.Barrier(8)
    wrong: list[str] = []

    def call(number: int) -> None:
        messages = decoded_again(conversations[number % 4])
        start.wait()
        for end in [*range(1, len(messages) + 1)] * 3:
            found = seen(known, messages[:end])
            given_now = messages[:end]
            if list(found.history.messages[:end]) != given_now:
                wrong.append(f"conversation {number} of {end} messages is not its history")
            if repair_plan(given_now) is not None and not found.needs_repair:
                wrong.append(f"conversation {number} of {end} messages needs repair")

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@PROPERTY
@given(histories())
def test_it_needs_repair_exactly_where_something_does_not_pair(messages: list[Message]) -> None:
    known = recogniser()
    for end in range(1, len(messages) + 1):
        assert seen(known, messages[:end]).needs_repair == (repair_plan(messages[:end]) is not None)


# Bounds


def test_what_was_not_used_for_longest_goes_first_by_bytes_too() -> None:
    evicted: list[History] = []
    known = Recogniser(b"", 100_000, max_bytes=lambda: 100_000, on_evicted=evicted.append)
    one, two = (seen(known, [Message.user(name * 30_000)]).history for name in "xy")
    assert seen(known, [Message.user("x" * 30_000)]).history is one
    assert evicted == []
    three = seen(known, [Message.user("z" * 30_000)]).history
    assert evicted == [two]
    assert known.held_bytes == one.held_bytes + three.held_bytes < 100_000


def test_what_the_memory_keeps_because_of_a_history_weighs_and_goes_with_it() -> None:
    evicted: list[History] = []
    known = Recogniser(b"", 100_000, max_bytes=lambda: 20_000, on_evicted=evicted.append)
    one, two = (seen(known, talk(1, name)).history for name in "xy")
    assert known.weigh(one, 2_000)
    assert evicted == []
    assert known.weigh(two, 15_000)
    assert evicted == [one]
    assert not known.weigh(one, 1)
    assert known.held_bytes == two.held_bytes


def test_forgetting_all_of_them_leaves_nothing() -> None:
    known, messages = recogniser(), talk(9)
    history = seen(known, messages).history
    known.clear()
    assert known.held_bytes == 0
    assert not known.weigh(history, 1)
    assert seen(known, messages).history is not history
    assert known.held_bytes == history.held_bytes


# Beginnings that change


def is_unstable(calls: Sequence[Sequence[Message]]) -> list[bool]:
    known = recogniser()
    return [seen(known, messages).is_unstable for messages in calls]


def test_a_head_that_changes_on_every_call_is_noticed_at_the_third() -> None:
    rest = talk(30, "rest ")[1:]
    calls = [[Message.user(f"it is {number} o'clock"), *rest[: 8 + 2 * number]] for number in range(6)]
    assert is_unstable(calls) == [False, False, True, True, True, True]


def test_another_conversation_that_begins_alike_does_not_hide_that_the_window_slides() -> None:
    task, rest, known = Message.user("the task"), talk(60, "rest "), recogniser()
    calls = [tuple([task, *rest[2 * number : 2 * number + 14]]) for number in range(6)]
    found: list[bool] = []
    for messages in calls:
        known.recognise((task,), 0, "another")
        found.append(known.recognise(messages, 0, "sliding").is_unstable)
    assert found == is_unstable(calls) == [False, False, True, True, True, True]


def test_a_request_made_again_is_as_unstable_as_it_was() -> None:
    rest = talk(30, "rest ")[1:]
    calls = [[Message.user(f"it is {number} o'clock"), *rest[: 8 + 2 * number]] for number in range(4)]
    assert is_unstable([*calls, calls[-1], calls[-1]])[-3:] == [True, True, True]


@pytest.mark.parametrize("slide", [1, 2, 3])
@pytest.mark.parametrize("keeps_task", [False, True])
def test_a_window_that_its_caller_slides_is_noticed(slide: int, keeps_task: bool) -> None:
    messages = talk(60)
    task = messages[:1] if keeps_task else []
    calls = [[*task, *messages[1 + slide * number : 11 + slide * number]] for number in range(6)]
    assert is_unstable(calls) == [False, False, True, True, True, True]


def turns(count: int, rounds: int) -> list[list[Message]]:
    """Each a question, rounds of calls, and an answer."""

    def calls(at: int) -> Iterator[Message]:
        for each in range(rounds):
            yield Message.assistant(ToolCall(f"c{at}-{each}", "look", "{}"))
            yield Message.tool(f"c{at}-{each}", "seen", name="look")

    return [
        [Message.user(f"question {at}"), *calls(at), Message.assistant(f"answer {at}")]
        for at in range(count)
    ]  # fmt: skip


def test_rounds_of_a_turn_do_not_hide_that_the_window_slides() -> None:
    calls: list[list[Message]] = []
    for number in range(6):
        *past, asked = turns(number + 5, rounds=2)[number:]
        calls += [[*itertools.chain(*past), *asked[:end]] for end in (1, 3, 5)]
    assert is_unstable(calls) == [False] * 6 + [True] * 12


def test_rounds_that_are_dropped_a_few_turns_later_are_no_moving_beginning() -> None:
    calls: list[list[Message]] = []
    for number in range(8):
        *past, asked = turns(number + 1, rounds=2)
        answers = [message for turn in past[:-2] for message in (turn[0], turn[-1])]
        calls += [[*answers, *itertools.chain(*past[-2:]), *asked[:end]] for end in (1, 3, 5)]
    assert not any(is_unstable(calls))


def test_a_long_turn_may_be_shortened_now_and_then() -> None:
    calls, conversation = list[list[Message]](), talk(1)
    for number in range(4):
        conversation = [Message.user(f"so far: {number}"), *conversation[-20:]]
        for at in range(40):
            call = ToolCall(f"c{at}", "look", f'{{"at":{number * 40 + at}}}')
            conversation = [*conversation, Message.assistant("", call), Message.tool(call.id, "sun")]
            calls.append(conversation)
    assert not any(is_unstable(calls))


def test_a_beginning_that_has_come_to_rest_is_stable_again() -> None:
    rest = talk(40, "rest ")[1:]
    calls = [[Message.user(f"task {min(number, 3)}"), *rest[: 8 + 2 * number]] for number in range(7)]
    assert is_unstable(calls) == [False, False, True, True, False, False, False]


def test_a_beginning_that_changes_once_is_no_habit() -> None:
    rest = talk(40, "rest ")[1:]
    calls = [[Message.user("a" if number < 3 else "b"), *rest[: 8 + 2 * number]] for number in range(7)]
    assert not any(is_unstable(calls))


def test_a_last_message_that_is_not_kept_is_no_moving_beginning() -> None:
    messages = talk(60)
    for reminder in ("be brief", "be brief, number {}"):
        calls = [[*messages[:end], Message.user(reminder.format(end))] for end in range(1, 60, 2)]
        assert not any(is_unstable(calls))


def test_answers_made_again_and_branches_are_no_moving_beginning() -> None:
    messages = talk(40)
    again = [[*messages[:20], Message.assistant(f"take {number}"), Message.user("no")] for number in range(10)]
    assert not any(is_unstable([messages[:20], *again]))
    forks = [[*messages[: 20 - number], *talk(5, f"branch {number} ")] for number in range(10)]
    assert not any(is_unstable([messages, *forks]))


def test_short_chats_are_never_unstable() -> None:
    rest = talk(30, "rest ")[1:]
    calls = [[Message.user(f"it is {number} o'clock"), *rest[:6]] for number in range(10)]
    assert not any(is_unstable(calls))


def test_conversations_that_end_alike_are_no_moving_beginning() -> None:
    end = [Message.user("thanks"), Message.assistant("you are welcome"), Message.user("bye"), Message.assistant("bye")]
    calls = [[*talk(6 + number % 3, f"{number} "), *end] for number in range(30)]
    assert not any(is_unstable(calls))


def test_conversations_that_ended_alike_for_a_while_are_no_moving_beginning() -> None:
    known, end = recogniser(), talk(4, "end ")
    conversations = [[*talk(8, f"{number} "), *end] for number in range(10)]
    for number, conversation in enumerate(conversations):
        assert not seen(known, conversation).is_unstable
        if number:
            seen(known, [*conversations[number - 1], *talk(2, f"{number} more ")])


def test_conversations_that_differ_in_their_task_alone_are_no_moving_beginning_while_they_go_on() -> None:
    known, rest = recogniser(), talk(30, "rest ")[1:]
    for end in range(0, 30, 2):
        for number in range(200):
            assert not seen(known, [Message.user(f"task {number}"), *rest[:end]]).is_unstable
