"""The comparison of what was sent with what would have been."""

from __future__ import annotations

import asyncio

from rich.console import Console

from chatstack import ChatOptions, ChatRequest, ChatResponse, ChatStack, Message, Usage
from chatstack.context.edits.summaries import summary_message
from chatstack.testing import ScriptedClient
from chatstack.tokens.counter import CharCounter
from chatstack.values.messages import Annotation
from chatstack.workbench.demo.ledger import Ledger, RequestScale
from chatstack.workbench.demo.show import comparison, refused_call, still_known, verdict

OLD, OLD_ANSWER, NEW = Message.user("a" * 400), Message.assistant("b" * 400), Message.user("c" * 40)
WHOLE, PRUNED = ChatRequest((OLD, OLD_ANSWER, NEW)), ChatRequest((NEW,))


SUMMARY = summary_message("Lima is grey.", Annotation("summarize", 200))
TALK = ChatOptions(instructions="Be brief.")


def booked(*calls: tuple[ChatRequest, ...]) -> Ledger:
    """A ledger of calls: for each what came to the layers, then what went out, attempt by attempt."""
    ledger = Ledger(CharCounter())
    for whole, *attempts in calls:
        ledger.before(whole)
        for attempt in attempts:
            ledger.behind(attempt)
    return ledger


def test_a_call_is_weighed_as_it_would_have_been_and_as_it_was_sent() -> None:
    (call,) = booked((WHOLE, PRUNED)).calls
    assert (call.whole_tokens, call.sent_tokens, call.was_edited) == (222, 14, True)
    assert (call.whole_questions, call.sent_questions, call.turn) == (2, 1, 1)


def test_of_several_attempts_the_last_one_counts() -> None:
    ledger = booked((WHOLE, WHOLE, PRUNED))
    assert [(call.whole_tokens, call.sent_tokens) for call in ledger.calls] == [(222, 14)]


def test_calls_are_grouped_by_turn_and_summed() -> None:
    first = ChatRequest((OLD,))
    ledger = booked((first, first), (first, first), (WHOLE, PRUNED))
    assert [len(calls) for calls in ledger.turns()] == [2, 1]
    assert (ledger.sent_tokens, ledger.whole_tokens) == (104 + 104 + 14, 104 + 104 + 222)


def test_the_scale_passes_requests_on_untouched() -> None:
    provider, seen = ScriptedClient(), list[ChatRequest]()
    client = ChatStack(provider).use(RequestScale, weigh=seen.append).build()
    asyncio.run(client.get_response([OLD, OLD_ANSWER, NEW]))
    assert len(provider.requests) == 1
    assert seen[0] is provider.requests[0]


def test_the_call_that_asks_for_a_summary_is_no_call_of_the_users() -> None:
    ledger = Ledger(CharCounter())
    ledger.before(ChatRequest(WHOLE.messages, TALK))
    ledger.behind(ChatRequest((Message.user("x" * 4_000),), ChatOptions(instructions="Summarize the record.")))
    assert (ledger.summary_calls, ledger.calls[0].sent_tokens) == (1, 0)
    ledger.behind(ChatRequest((SUMMARY, NEW), TALK))
    assert ledger.summary_calls == 1
    assert 0 < ledger.calls[0].sent_tokens < 100


def test_a_summary_that_is_sent_again_and_again_is_kept_once() -> None:
    with_summary = ChatRequest((OLD, SUMMARY, NEW))
    other = summary_message("Lima and Oslo are grey.", Annotation("summarize", 200))
    ledger = booked((WHOLE, with_summary), (WHOLE, with_summary), (WHOLE, ChatRequest((OLD, other, NEW))))
    assert ledger.summaries == [SUMMARY.text, other.text]


def test_what_summaries_cost_is_summed_from_the_answers() -> None:
    ledger = booked((WHOLE, PRUNED))
    for overhead in (Usage(), Usage(100, 20), Usage(30, 4)):
        ledger.answered(ChatResponse(messages=(Message.assistant("Yes."),), overhead_usage=overhead))
    assert ledger.overhead == Usage(130, 24)


def test_the_verdict_on_an_edited_conversation_names_saving_and_refusal() -> None:
    ledger = booked((ChatRequest((OLD,)), ChatRequest((OLD,))), (WHOLE, PRUNED))
    said = " ".join(verdict(ledger, window_tokens=200, turns=["Lima", "Oslo"]))
    assert "118 tokens in 2 calls, 64 % less than the 326 in full" in said
    assert "would have ended in Oslo: call 2 has 222 tokens" in said
    assert "Summaries" not in said


def test_the_verdict_counts_what_summaries_cost_and_may_find_that_they_did_not_pay() -> None:
    ledger = booked((ChatRequest((OLD,)), ChatRequest((OLD,))), (WHOLE, PRUNED))
    ledger.summary_calls, ledger.summaries = 1, ["grey"]
    ledger.overhead = Usage(110, 20)
    assert (
        "1 in 1 call of their own, 110 tokens read and 20 written (overhead_usage); with what they read, 30 % less"
        in (" ".join(verdict(ledger, window_tokens=None, turns=["Lima", "Oslo"])))
    )
    ledger.overhead = Usage(534, 20)
    assert "with what they read, 100 % more than the 326 in full." in (
        " ".join(verdict(ledger, window_tokens=None, turns=["Lima", "Oslo"]))
    )


def test_the_verdict_on_an_untouched_conversation_claims_no_saving() -> None:
    ledger = booked((WHOLE, WHOLE))
    assert verdict(ledger, window_tokens=1_000, turns=["Lima"]) == [
        "Sent: 222 tokens in 1 call, the same as in full.",
        "Largest call: 222 tokens; in full 222.",
    ]


def test_what_is_still_known_names_the_questions_that_were_sent_and_a_summary_only_if_there_is_one() -> None:
    pruned, folded = booked((WHOLE, PRUNED)), booked((WHOLE, ChatRequest((SUMMARY, NEW))))
    assert still_known(pruned, "Where?", "In Lima.") == [
        "The user: Where?",
        "The model: In Lima.",
        "It was sent 1 of 2 questions as they were asked.",
    ]
    assert still_known(folded, "Where?", "In Lima.")[-1].endswith("what came of the others it had from a summary.")


def test_nothing_sent_is_said() -> None:
    assert verdict(booked(), window_tokens=None, turns=[]) == ["Nothing was sent."]


def test_where_the_window_is_unknown_no_refusal_is_claimed() -> None:
    ledger = booked((WHOLE, PRUNED))
    assert refused_call(ledger, None) is None
    assert refused_call(ledger, 222) is None
    assert refused_call(ledger, 221) == (1, ledger.calls[0])


def test_the_bars_are_as_long_as_what_was_sent_and_what_was_not() -> None:
    ledger = booked((ChatRequest((OLD,)), ChatRequest((OLD,))), (WHOLE, PRUNED))
    console = Console(width=80, color_system=None)
    with console.capture() as shown:
        console.print(comparison(ledger, ["Lima", "Oslo"], console))
    lima, oslo, total = (line.rstrip() for line in shown.get().splitlines()[1:])
    assert lima.split()[:3] == ["Lima", "104", "104"]
    assert oslo.split()[:3] == ["Oslo", "14", "222"]
    # 20 columns for the largest call of 222 tokens
    assert [lima.count(each) for each in "█░#."] in ([9, 0, 0, 0], [0, 0, 9, 0])
    assert [oslo.count(each) for each in "█░#."] in ([1, 19, 0, 0], [0, 0, 1, 19])
    assert total.split() == ["all", "calls", "118", "326"]
