"""Folding: what goes into a summary, where it is put, and what it is made from."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from chatstack import Annotation, Message, OldestFirst, Reasoning, Text, ToolCall, ToolResult
from chatstack.context.edits.limits import Limits
from chatstack.context.edits.summaries import OPENING, summary_message
from chatstack.context.edits.verifier import problems
from chatstack.context.summaries.folding import Cut, OldestIntoSummary
from tests.context.strictness import context_of, size

SYSTEM = Message.system("be brief")


def filled(label: str, tokens: int) -> str:
    """A text that makes a message of so many tokens."""
    return label.ljust(4 * (tokens - 4), ".")


def user(label: str, tokens: int = 100, *, pinned: bool = False) -> Message:
    return Message.user(filled(label, tokens), pinned=pinned)


def said(label: str, tokens: int = 100, *, pinned: bool = False) -> Message:
    return Message.assistant(filled(label, tokens), pinned=pinned)


def calls(*ids: str) -> Message:
    return Message.assistant(*(ToolCall(each, "look") for each in ids))


def result(call_id: str, text: str = "", tokens: int = 100, *, name: str = "look") -> Message:
    return Message.tool(call_id, filled(text or call_id, tokens), name=name)


def rounds(count: int, *, start: int = 0, tokens: int = 100) -> list[Message]:
    numbers = range(start, start + count)
    return [each for n in numbers for each in (calls(f"c{n}"), result(f"c{n}", f"result {n}", tokens))]


def turns(count: int) -> list[Message]:
    """Turns of 200 tokens: a question and its answer."""
    return [each for n in range(count) for each in (user(f"question {n}"), said(f"answer {n}"))]


def summary(tokens: int = 100, text: str = "") -> Message:
    """A summary of exactly so many tokens, its opening line included."""
    return summary_message(text.ljust(4 * (tokens - 4) - len(OPENING) - 1, "."), Annotation("summarize"))


def folding(
    max_tokens: int | None = None, max_items: int | None = None, *, keep: int = 3, to: float = 0.6, most: int = 100
) -> OldestIntoSummary:
    return OldestIntoSummary(Limits(max_tokens, max_items), keep, to, most)


def cut_of(strategy: OldestIntoSummary, messages: Sequence[Message]) -> Cut:
    """The cut, which must be there, and its plan a good one."""
    context = context_of(messages)
    cut = strategy.cut(context)
    assert cut is not None
    assert problems(strategy.plan(context, cut, summary(strategy.max_summary_tokens)), context) == ()
    return cut


def folded(strategy: OldestIntoSummary, messages: Sequence[Message]) -> list[Message]:
    """The messages with the summary in them; a good plan for them must be there."""
    plan = strategy.plan(context_of(messages), cut_of(strategy, messages), summary(strategy.max_summary_tokens))
    return list(plan.apply(messages))


def no_cut(strategy: OldestIntoSummary, messages: Sequence[Message]) -> bool:
    return strategy.cut(context_of(messages)) is None


# Which turns stay


def test_everything_older_than_the_newest_turns_goes_but_for_the_task() -> None:
    messages = [*turns(10), user("question 10")]
    assert cut_of(folding(1_000), messages)[:2] == (16, (*range(1, 16),))
    assert folded(folding(1_000), messages) == [messages[0], summary(), *messages[16:]]


@pytest.mark.parametrize("keep", [1, 2, 3, 4])
def test_as_many_turns_stay_as_are_to_stay(keep: int) -> None:
    messages = [*turns(20), user("question 20")]
    left = folded(folding(2_000, keep=keep), messages)
    assert [each.text.rstrip(".") for each in left if each.role == "user"] == [
        "question 0",
        *(f"question {n}" for n in range(21 - keep, 21)),
    ]


def test_the_turns_that_stay_do_so_only_if_there_are_more_than_one_beside_them() -> None:
    strategy = folding(850, most=50)
    four = [user("task"), said("long", 350), *turns(2), user("now")]
    five = [user("task"), said("long", 250), user("next"), *turns(2), user("now")]
    assert cut_of(strategy, five)[:2] == (3, (1, 2))  # within eight tenths
    assert cut_of(strategy, four)[:2] == (6, (1, 3, 5))  # six tenths, and nothing but answers


def test_a_cut_at_the_border_of_turns_that_leaves_too_much_is_not_taken() -> None:
    """Eight tenths of the limit may be left there; just more, and rounds within the turns go too."""
    messages = [*turns(10), user("question 10")]
    left_at_the_border = 100 + 100 + 5 * 100  # the task, the summary, what is newest
    assert cut_of(folding(left_at_the_border * 10 // 8), messages).border == 16
    assert cut_of(folding(left_at_the_border * 10 // 8 - 1), messages).border > 16


def test_within_turns_that_are_to_stay_the_oldest_rounds_go_and_the_users_words_stay() -> None:
    messages = [each for n in range(6) for each in (user(f"u{n}", 20), said(f"a{n}", 300))]
    messages.append(user("u6", 20))
    cut = cut_of(folding(1_000, most=200), messages)
    assert cut[:2] == (10, (*range(1, 8), 9))
    assert messages[8] in folded(folding(1_000, most=200), messages)


def test_the_users_words_in_recent_turns_go_if_nothing_else_is_enough() -> None:
    messages = [user("u0", 20), *(user(f"u{n}", 200) for n in range(1, 5)), said("a", 50), user("now", 20)]
    assert cut_of(folding(900), [*messages, said("b")])[:2] == (3, (1, 2))
    assert cut_of(folding(600), messages)[:2] == (5, (1, 2, 3, 4))


def test_the_users_words_stay_where_the_rest_is_enough_for_the_limit_if_not_for_less() -> None:
    messages = [user("task", 500), said("a", 250), user("then", 50), said("b", 250), user("now")]
    assert cut_of(folding(1_000), messages)[:2] == (4, (1, 3))
    assert cut_of(folding(700), messages)[:2] == (4, (1, 2, 3))


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_within_turns_it_goes_down_to_a_share_of_the_limit_and_no_further(share: float) -> None:
    messages = [user("task"), *rounds(200)]
    left = size(folded(folding(10_000, to=share), messages))
    one_round = size(rounds(1))
    assert 10_000 * share - one_round < left <= 10_000 * share


def test_a_single_turn_of_two_hundred_rounds_is_cut_between_rounds_and_keeps_the_task() -> None:
    messages = [SYSTEM, user("task"), *rounds(200)]
    left = folded(folding(8_000), messages)
    assert left[:3] == [SYSTEM, messages[1], summary()]
    assert left[3:] == messages[-len(left) + 3 :]
    assert left[3].calls
    assert size(left) <= 8_000 * 0.6


def test_the_least_that_is_enough_goes() -> None:
    messages = [user("task"), *rounds(30), user("and now?")]
    borders = [cut_of(folding(limit), messages).border for limit in (3_000, 2_500, 2_000, 1_500)]
    assert borders == sorted(set(borders))


# What is not folded


def test_system_and_pinned_messages_stay() -> None:
    pinned = user("remember", pinned=True), said("promised", pinned=True)
    messages = [SYSTEM, user("task"), *rounds(5), *pinned, Message.system("and polite"), *rounds(5), user("now")]
    left = folded(folding(600), messages)
    assert [each for each in messages if each.role == "system" or each.pinned] == [
        each for each in left if each.role == "system" or each.pinned
    ]


def test_a_round_with_a_pinned_message_stays_as_a_whole() -> None:
    kept = [calls("p"), Message("tool", (ToolResult("p", "look", "a number"),), pinned=True)]
    messages = [user("task"), *rounds(5), *kept, *rounds(5), user("now")]
    assert [each for each in folded(folding(600), messages) if each in kept] == kept


def test_the_first_and_the_latest_user_message_stay_even_if_they_are_too_long() -> None:
    messages = [user("task", 900), *rounds(10), user("now", 900)]
    left = folded(folding(1_000), messages)
    assert left[0] is messages[0]
    assert left[-1] is messages[-1]


def test_a_call_that_waits_for_its_result_stays() -> None:
    waits = calls("w")
    messages = [user("task"), waits, *rounds(10), user("now")]
    assert waits in folded(folding(600), messages)


@pytest.mark.parametrize("after", [[], [user("and?")], [user("and?"), user("now")]], ids=len)
def test_results_that_the_model_has_not_seen_stay_with_their_calls(after: list[Message]) -> None:
    new = [calls("x", "y"), result("x", tokens=700), result("y", tokens=700)]
    left = folded(folding(800), [user("task"), *rounds(10), *new, *after])
    assert [each for each in left if each in new] == new


# Never inside a unit


def test_parallel_calls_go_with_all_their_results() -> None:
    trio = [calls("x", "y", "z"), result("z"), result("x"), result("y")]
    messages = [user("task"), *(each for _ in range(6) for each in trio), user("now")]
    for limit in range(400, size(messages), 100):
        gone = cut_of(folding(limit), messages).folded
        assert gone == (*range(1, 1 + len(gone)),)
        assert len(gone) % 4 == 0


def test_no_summary_comes_between_a_call_and_its_late_result() -> None:
    late = [calls("late"), said("meanwhile", 600), user("hurry", 20), said("yes", 20), result("late", tokens=50)]
    messages = [user("task"), said("old", 200), *late, said("done"), user("now")]
    assert cut_of(folding(1_000, keep=2), messages).border not in range(3, 7)


def test_interleaved_results_keep_to_their_calls() -> None:
    mixed = [calls("a"), calls("b"), result("b"), user("hurry", 20), result("a")]
    messages = [user("task"), *(each for _ in range(5) for each in mixed), user("now")]
    for limit in range(300, 1_000, 50):
        cut = cut_of(folding(limit), messages)
        assert (cut.border - 1) % 5 == 0 or cut.border == len(messages) - 1


def test_what_the_user_says_between_a_call_and_its_result_stays_in_a_turn_that_stays() -> None:
    steering = user("but quickly", 20)
    messages = [user("task"), calls("a"), steering, result("a"), *rounds(10)]
    left = folded(folding(700), messages)
    assert left[:3] == [messages[0], steering, summary()]
    assert messages[3] not in left


def test_ids_that_are_used_again_join_no_rounds() -> None:
    again = [calls("a"), result("a")]
    messages = [user("task"), *(each for _ in range(20) for each in again), user("now")]
    assert cut_of(folding(1_000), messages).border % 2 == 1


def test_a_summary_is_never_the_last_that_was_said_before_the_answer() -> None:
    """After the question it would stand where the answer should; a system message at the end changes nothing."""
    messages = [*turns(2), said("more"), user("now", 200), Message.system("be quick")]
    left = [each for each in folded(folding(300), messages) if each.role != "system"]
    assert left == [messages[0], summary(), messages[-2]]


# Not worth a call


def test_nothing_is_folded_where_too_little_would_go() -> None:
    head, tail = user("task", 930), user("now", 30)
    assert no_cut(folding(1_000, most=50), [head, said("a", 49), said("b", 50), tail])
    assert cut_of(folding(1_000, most=50), [head, said("a", 50), said("b", 50), tail]).folded == (1, 2)


def test_what_is_too_little_goes_by_what_is_reported() -> None:
    context = context_of([user("task", 930), said("a", 60), said("b", 60), user("now", 30)])
    cut = folding(2_000, most=50).cut(msgspec.structs.replace(context, scale=2.0))
    assert cut is not None
    assert cut.folded == (1, 2)


def test_where_the_limit_cannot_be_kept_all_the_same_half_of_it_must_go() -> None:
    def talk(tokens: int) -> list[Message]:
        return [user("task", 960), said("a", tokens), said("b", 200), user("now")]

    assert no_cut(folding(1_000, most=50), talk(299))
    assert cut_of(folding(1_000, most=50), talk(300)).folded == (1, 2)


def test_a_summary_alone_is_not_summarized_again() -> None:
    assert no_cut(folding(1_000), [user("task", 800), summary(200), said("a", 50), user("now")])


def test_what_may_not_go_is_not_cut() -> None:
    assert no_cut(folding(100), [user("task", 500)])
    assert no_cut(folding(100), [user("task", 500), calls("a")])
    assert no_cut(folding(100), [SYSTEM, user("task", 500), user("now", 500)])
    assert no_cut(folding(100), [])


def test_two_items_at_least_are_new_in_a_summary() -> None:
    assert no_cut(folding(max_items=2), [user("task"), said("a"), user("now")])
    assert cut_of(folding(max_items=2), [user("task"), said("a"), said("b"), user("now")]).folded == (1, 2)


# The summary before


def test_the_summary_that_is_there_goes_into_the_next_one() -> None:
    earlier = summary(text="the door is blue")
    messages = [user("task"), earlier, *rounds(20), user("now")]
    strategy, context = folding(1_500), context_of(messages)
    cut = cut_of(strategy, messages)
    assert 1 in cut.folded
    assert strategy.previous(context, cut).rstrip(".") == "the door is blue"
    assert [entry for entry in strategy.entries(context, cut) if "the door is blue" in entry.text] == []


def test_without_an_earlier_summary_there_is_nothing_before() -> None:
    messages = [*turns(10), user("now")]
    strategy = folding(1_000)
    assert strategy.previous(context_of(messages), cut_of(strategy, messages)) == ""


def test_no_cut_leaves_the_earlier_summary_behind_it() -> None:
    """What the user said before that summary is the only thing long enough to go; the summary goes with it."""
    earlier = summary()
    messages = [user("u0", 50), user("u1", 700), earlier, said("a"), said("b"), user("u2", 50)]
    left = folded(folding(1_000, keep=2), messages)
    assert [each for each in left if each.mark == "summary"] == [summary()]
    assert not [each for each in left if each is earlier]


# Limits


def test_tokens_alone_are_a_limit() -> None:
    messages = [*turns(10), user("now")]
    assert not folding(2_100).is_due(context_of(messages))
    assert folding(2_099).is_due(context_of(messages))


@pytest.mark.parametrize("most", [60, 55])
def test_items_alone_are_a_limit(most: int) -> None:
    messages = [user("task"), *rounds(30, tokens=8)]
    assert not folding(max_items=61).is_due(context_of(messages))
    assert folding(max_items=most).is_due(context_of(messages))
    left = folded(folding(max_items=most), messages)
    assert most * 0.6 - 2 < context_of(left).items <= most * 0.6


def test_each_of_two_limits_is_kept() -> None:
    messages = [user("task"), *rounds(40)]
    by_tokens, by_items = folding(2_000), folding(max_items=20)
    deeper = cut_of(by_items, messages)
    assert deeper.border > cut_of(by_tokens, messages).border
    assert cut_of(folding(2_000, 20), messages) == deeper
    assert cut_of(folding(10_000, 20), messages) == deeper


def test_what_is_reported_counts_and_not_what_was_estimated() -> None:
    messages = [user("task"), *rounds(40), user("now")]
    doubled = msgspec.structs.replace(context_of(messages), scale=2.0)
    cut = folding(4_000).cut(doubled)
    assert cut is not None
    assert cut[:2] == cut_of(folding(2_000), messages)[:2]
    assert cut[:2] != cut_of(folding(4_000), messages)[:2]


def test_the_plan_says_what_was_too_much_and_how_much_went() -> None:
    messages = [*turns(10), user("now")]
    strategy, context = folding(1_000, 10), context_of(messages)
    plan = strategy.plan(context, cut_of(strategy, messages), summary())
    assert plan.strategy == "summarize"
    assert plan.reason.startswith("2,100 tokens, more than 1,000 and 21 items, more than 10; ")
    assert plan.reason.endswith(f"; {len(plan.drop)} messages into one summary")


# What it is made from


def told(strategy: OldestIntoSummary, messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Who said what in the transcript, without the dots that fill it up."""
    entries = strategy.entries(context_of(messages), cut_of(strategy, messages))
    return [(who, text.rstrip(".")) for who, text in entries]


def test_the_transcript_holds_what_goes_in_order_and_names_what_stays() -> None:
    messages = [SYSTEM, user("task"), said("old"), *rounds(2), said("secret", pinned=True), user("then"), said("x")]
    messages += [*turns(3)]
    assert told(folding(700, most=50), messages)[:7] == [
        ("user (stays)", "task"),
        ("assistant", "old"),
        ("assistant calls look", "{}"),
        ("result of look", "result 0"),
        ("assistant calls look", "{}"),
        ("result of look", "result 1"),
        ("user", "then"),
    ]


def test_the_transcript_holds_what_was_said_before_anybody_edited_it() -> None:
    whole = [user("task"), *rounds(20), user("now")]
    cleared = [
        each.edited(parts=(ToolResult(each.results[0].call_id, "look", "[cleared]"),)) if each.results else each
        for each in whole[:20]
    ]
    texts = [text for who, text in told(folding(1_000), [*cleared, *whole[20:]]) if who == "result of look"]
    assert len(texts) > 10
    assert texts == [f"result {n}" for n in range(len(texts))]


def test_a_long_message_that_stays_is_shown_by_its_beginning() -> None:
    messages = [Message.user("t" * 2_000 + "u" * 1_234), *rounds(20)]
    who, text = told(folding(2_000), messages)[0]
    assert (who, text) == ("user (stays)", "t" * 2_000 + "\n[1,234 more]")


def test_a_long_message_that_goes_is_shown_as_a_whole() -> None:
    messages = [user("task"), Message.assistant("x" * 50_000 + "!"), *rounds(3)]
    assert ("assistant", "x" * 50_000 + "!") in told(folding(2_000), messages)


def test_a_result_without_a_name_is_named_from_its_call() -> None:
    messages = [user("task"), calls("a"), result("a", name=""), *rounds(10)]
    assert told(folding(800), messages)[1:3] == [("assistant calls look", "{}"), ("result of look", "a")]


def test_what_the_model_thought_is_not_told() -> None:
    thought = Message("assistant", (Reasoning("a secret"), Text(filled("said", 300))))
    messages = [user("task"), thought, *rounds(10)]
    assert not [text for _, text in told(folding(800), messages) if "secret" in text]


# What the model has not seen yet


def test_a_summary_never_stands_behind_results_that_the_model_has_not_seen() -> None:
    new = [*rounds(1, start=8), user("by the way", 20)]
    messages = [user("task"), *turns(3), *rounds(3), *new]
    cut = cut_of(folding(500), messages)
    assert cut.border <= len(messages) - len(new)
    assert not {*range(len(messages) - len(new), len(messages))} & {*cut.folded}


def test_a_summary_is_no_answer_to_the_results_before_it() -> None:
    messages = [user("task"), *rounds(1), summary(), user("by the way")]
    assert context_of(messages).latest_assistant == 1
    plan = OldestFirst(100, 100).plan(context_of(messages))
    assert plan is not None
    assert not {1, 2} & {*plan.drop}
