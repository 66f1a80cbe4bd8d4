"""The comparison of what was sent with what would have been."""

from __future__ import annotations

import asyncio

from rich.console import Console

from chatstack import ChatRequest, ChatStack, Message
from chatstack.demo.ledger import Ledger, RequestScale
from chatstack.demo.show import comparison, refused_call, verdict
from chatstack.testing import ScriptedClient
from chatstack.tokens.counter import CharCounter

OLD, OLD_ANSWER, NEW = Message.user("a" * 400), Message.assistant("b" * 400), Message.user("c" * 40)
WHOLE, PRUNED = ChatRequest((OLD, OLD_ANSWER, NEW)), ChatRequest((NEW,))


def booked(*calls: tuple[ChatRequest, ...]) -> Ledger:
    """A ledger of calls: for each what came to the guard, then what went out, attempt by attempt."""
    ledger = Ledger(CharCounter())
    for whole, *attempts in calls:
        ledger.before(whole)
        for attempt in attempts:
            ledger.behind(attempt)
    return ledger


def test_a_call_is_weighed_as_it_would_have_been_and_as_it_was_sent() -> None:
    (call,) = booked((WHOLE, PRUNED)).calls
    assert (call.whole_tokens, call.sent_tokens, call.was_pruned) == (222, 14, True)
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


def test_the_verdict_on_a_pruned_conversation_names_saving_refusal_and_price() -> None:
    ledger = booked((ChatRequest((OLD,)), ChatRequest((OLD,))), (WHOLE, PRUNED))
    said = " ".join(verdict(ledger, window_tokens=200, cities=["Lima", "Oslo"]))
    assert "118 tokens in 2 calls, 64 % less than the 326 without the guard" in said
    assert "would have ended in Oslo: call 2 has 222 tokens" in said
    assert "saw 1 of 2 questions" in said


def test_the_verdict_on_an_untouched_conversation_claims_no_saving_and_no_price() -> None:
    ledger = booked((WHOLE, WHOLE))
    assert verdict(ledger, window_tokens=1_000, cities=["Lima"]) == [
        "Sent: 222 tokens in 1 call, the same as without the guard.",
        "Largest call: 222 tokens; without the guard 222.",
    ]


def test_nothing_sent_is_said() -> None:
    assert verdict(booked(), window_tokens=None, cities=[]) == ["Nothing was sent."]


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
