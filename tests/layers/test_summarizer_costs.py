"""What summaries cost, counted: calls of models, calls of the tokenizer, and nothing twice."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from chatstack import (
    ChatOptions,
    ChatRequest,
    ChatStack,
    ContextWindow,
    ContextWindowGuard,
    Message,
    ProviderInfo,
    Summarizer,
    Text,
    ToolCall,
    Usage,
)
from chatstack.testing import ScriptedClient
from tests.context.strictness import size
from tests.context.test_pruning_properties import CountingCounter
from tests.histories import decoded_again
from tests.layers.test_summarizer_failures import (
    LIMIT,
    WORDS,
    Remembering,
    Summarized,
    conversation,
    exchanges,
    facts_in,
    facts_told,
)

CALLS = 60


def call_and_result(number: int, chars: int) -> list[Message]:
    """A round of a tool loop."""
    asked = Message.assistant("", ToolCall(f"c{number}", "look", f'{{"n": {number}}}'))
    return [asked, Message.tool(f"c{number}", f"{number} {'x' * chars}", name="look")]


def exchange(number: int, chars: int) -> list[Message]:
    return [Message.assistant(f"{number} {'y' * chars}"), Message.user(f"{number} {'x' * chars}")]


def growing(
    summarized: Summarized,
    history: Sequence[Message],
    add: Callable[[int], Sequence[Message]],
    *,
    calls: int = CALLS,
    fresh: bool = False,
) -> list[Message]:
    """Ask that often, with a history that grows in between."""
    history = list(history)

    async def ask() -> None:
        for number in range(calls):
            await summarized.client.get_response(decoded_again(history) if fresh else history)
            history.extend(add(number))

    asyncio.run(ask())
    return history


def new_in(request: ChatRequest) -> set[str]:
    """The facts that whoever summarizes is told of for the first time."""
    record = request.messages[0].text
    entries = re.split(r"(?m)^\[[0-9a-f]{16} (.*)\]$", record)
    told = zip(entries[1::2], entries[2::2], strict=True)
    return set[str]().union(*(facts_in(text) for who, text in told if who in ("user", "assistant")))


# Calls of models


def test_below_the_limits_no_model_is_asked_and_exactly_what_came_is_sent() -> None:
    writer = Remembering()
    summarized, history = Summarized(writer), [*exchanges(5), Message.user("and?")]
    assert size(history) < LIMIT
    for _ in range(5):
        answer = summarized.send(history)
        assert [*map(id, summarized.sent)] == [*map(id, history)]
        assert answer.overhead_usage == Usage()
    assert (writer.requests, len(summarized.provider.requests), summarized.spans) == ([], 5, ())


@pytest.mark.parametrize("fresh", [False, True], ids=["the same objects", "fresh equal objects"])
def test_no_message_is_summarized_twice_and_each_call_asks_the_model_once(fresh: bool) -> None:
    writer = Remembering()
    summarized = Summarized(writer, max_tokens=4_000)
    asked = growing(summarized, conversation(), lambda number: exchanges(1, start=100 + number), fresh=fresh)
    assert len(summarized.provider.requests) == CALLS
    assert 4 <= len(writer.requests) <= CALLS // 5
    told = [fact for request in writer.requests for fact in new_in(request)]
    assert len(told) == len(set(told)) > 50
    assert facts_told(summarized.sent) == facts_told(asked[:-2])


def test_asked_again_and_again_the_same_history_is_summarized_once() -> None:
    writer = Remembering()
    summarized, history = Summarized(writer), conversation()
    answers = [summarized.send(decoded_again(history)) for _ in range(10)]
    assert len(writer.requests) == 1
    assert [answer.overhead_usage != Usage() for answer in answers] == [True] + [False] * 9
    assert len({request.messages for request in summarized.provider.requests}) == 1


def test_what_a_summary_costs_is_what_its_client_reported_and_is_counted_nowhere_else() -> None:
    writer = Remembering()
    summarized, history = Summarized(writer), conversation()
    answer = summarized.send(history)
    request = writer.requests[0]
    expected = size(request.messages) + writer.counter.count_options(request.options)
    assert answer.overhead_usage.input_tokens == expected
    assert answer.usage.input_tokens == size(summarized.sent)


LARGE = Message.user("p" * 8_000)
STUCK: dict[str, tuple[list[Message], dict[str, Any]]] = {
    "a large task": ([LARGE], {}),
    "a large pin": ([Message.user("task"), Message.user("p" * 8_000, pinned=True)], {}),
    "large instructions": ([Message.system("p" * 8_000), Message.user("task")], {}),
    "many pins": (
        [Message.user("task"), *(Message.user(f"pin {number}", pinned=True) for number in range(25))],
        {"max_tokens": None, "max_context_items": 20},
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("add", [call_and_result, exchange])
@pytest.mark.parametrize(("head", "options"), STUCK.values(), ids=STUCK)
def test_where_no_summary_gets_below_the_limit_there_is_not_one_for_every_call(
    head: list[Message], options: dict[str, Any], add: Callable[[int, int], list[Message]]
) -> None:
    writer = ScriptedClient(["a short summary"])
    summarized = Summarized(writer, **options)
    growing(summarized, head, lambda number: add(number, 600))
    assert len(writer.requests) <= CALLS // 2
    assert summarized.warnings.count("edit_ineffective") == 1


@pytest.mark.parametrize("add", [call_and_result, exchange])
def test_where_little_may_go_it_waits_until_a_summary_is_worth_a_call(
    add: Callable[[int, int], list[Message]],
) -> None:
    writer = ScriptedClient(["short"])
    summarized = Summarized(writer)
    pinned = Message.user("p" * int(4 * 0.88 * LIMIT), pinned=True)
    growing(summarized, [Message.user("task"), pinned], lambda number: add(number, 120))
    assert 5 <= len(writer.requests) <= CALLS // 3
    assert size(summarized.sent) < LIMIT * 1.2


@pytest.mark.parametrize("kept", [0, 1, 2, 4])
def test_a_caller_that_slides_a_window_of_its_own_does_not_pay_for_a_summary_with_every_call(kept: int) -> None:
    writer = Remembering()
    summarized = Summarized(writer)
    whole = exchanges(CALLS + 20)
    for number in range(CALLS):
        start = kept + 2 * number
        summarized.send([*whole[:kept], *whole[start : start + 14 + (kept + 1) % 2]])
    assert len(writer.requests) <= 3
    assert summarized.warnings.count("prefix_unstable") <= 1


def in_a_later_turn() -> list[Message]:
    """A turn whose rounds are summarized already, then another one; the user's long words come before the summary."""
    return [
        Message.user("u" * 10),
        *call_and_result(0, 400),
        Message.assistant("a" * 10),
        Message.user("u" * 2_400),
        *call_and_result(1, 1_200),
        *call_and_result(2, 400),
        Message.assistant("a" * 10),
        Message.user("u" * 1_200),
    ]


def with_a_summary_of_the_callers() -> list[Message]:
    written = Message("assistant", (Text("what was said elsewhere"),), mark="summary")
    return [*exchanges(6), Message.user("and?"), written, Message.user("and now?")]


SEQUENCES: dict[str, tuple[list[Message], Sequence[int], dict[str, Any]]] = {
    "ours, in a later turn": (
        in_a_later_turn(),
        (1, 3, 5, 7, 9, 11, 11, 11),
        {"max_tokens": 1_000, "keep_recent_turns": 2},
    ),
    "the caller's, near the end": (with_a_summary_of_the_callers(), (15, 15, 15), {}),
}


@pytest.mark.parametrize(("history", "lengths", "options"), SEQUENCES.values(), ids=SEQUENCES)
def test_a_summary_that_is_paid_for_is_used_also_where_another_one_stands_further_on(
    history: list[Message], lengths: Sequence[int], options: dict[str, Any]
) -> None:
    writer = ScriptedClient(["a short summary"])
    summarized = Summarized(writer, **options)
    for length in lengths:
        summarized.send(history[:length])
    assert "plan_rejected" not in summarized.warnings
    edits = [span for span in summarized.spans if span.attributes.get("chatstack.severity") == "INFO"]
    assert len(writer.requests) == len(edits)
    assert len(summarized.summaries) <= 1


# Calls of the tokenizer


def counted(counter: CountingCounter, **options: Any) -> tuple[ScriptedClient, Any]:
    """A stack whose layers all have that counter."""
    provider = ScriptedClient(["ok"])
    stack = ChatStack(provider, trace_model_calls=False).use(ContextWindow, counter=counter, **options)  # type: ignore[call-overload]
    return provider, stack.use(ContextWindowGuard, max_context_tokens=50_000, counter=counter).build()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fresh", [False, True], ids=["the same objects", "fresh equal objects"])
@pytest.mark.parametrize("answer", ["a summary", ""], ids=["it works", "it fails"])
def test_a_hundred_growing_calls_count_each_message_once(fresh: bool, answer: str) -> None:
    counter, writer = CountingCounter(), ScriptedClient([answer])
    _, client = counted(counter, max_tokens=4_000, summary_client=writer)
    history = [Message.user("task")]

    async def run() -> None:
        for number in range(100):
            await client.get_response(decoded_again(history) if fresh else history)
            history.extend(call_and_result(number, 600))

    asyncio.run(run())
    assert writer.requests
    summaries = [message for message in counter.asked if message.mark == "summary"]
    assert len(summaries) == bool(answer)  # they are all alike
    assert len(counter.asked) - len(summaries) == len(history) - 2  # what the last round added was not sent any more


def test_a_fold_in_pieces_counts_each_entry_a_few_times_and_calls_after_it_only_what_is_new() -> None:
    counter = CountingCounter()
    info = ProviderInfo(name="small", window_tokens=9_000)
    writer = ScriptedClient(["a summary"], info=info)
    _, client = counted(counter, max_tokens=4_000, summary_client=writer)
    history = [Message.user("task"), *(each for number in range(100) for each in call_and_result(number, 1_600))]

    async def run() -> list[int]:
        shown: list[int] = []
        for number in range(5):
            before = len(counter.asked)
            await client.get_response(history)
            shown.append(len(counter.asked) - before)
            history.extend(exchange(number, 10))
        return shown

    first, *later = asyncio.run(run())
    assert len(writer.requests) > 5
    assert first < 5 * len(history)
    assert later == [2] * 4


def test_the_calls_after_a_fold_of_five_thousand_messages_count_what_is_new_and_ask_nobody() -> None:
    counter, writer = CountingCounter(), ScriptedClient(["a summary"])
    provider, client = counted(counter, max_tokens=20_000, summary_client=writer)
    history = [Message.user("task"), *(each for number in range(2_500) for each in call_and_result(number, 60))]

    async def run() -> None:
        await client.get_response(history)
        assert len(writer.requests) == 1
        for number in range(10):
            history.extend(exchange(number, 10))
            before = len(counter.asked)
            await client.get_response(history)
            assert len(counter.asked) - before == 2

    asyncio.run(run())
    assert len(writer.requests) == 1
    assert len(provider.requests) == 11
    assert all(sum(message.mark == "summary" for message in request.messages) == 1 for request in provider.requests)


@pytest.mark.slow
def test_while_it_rests_after_a_failure_a_call_costs_no_more_for_a_longer_history() -> None:
    """Counted in looks at messages: how often the size of one is asked for."""
    looks: list[int] = []
    for messages in (1_000, 4_000):
        counter, writer = Looking(), ScriptedClient([""])
        client = (
            ChatStack(ScriptedClient(["ok"]), trace_model_calls=False)
            .use(Summarizer, max_tokens=4_000, summary_client=writer, counter=counter)
            .build()
        )
        history = [Message.user("task"), *(m for number in range(messages // 2) for m in call_and_result(number, 60))]
        asyncio.run(client.get_response(history))
        history += exchange(0, 10)
        counter.looks = 0
        asyncio.run(client.get_response(decoded_again(history)))
        assert len(writer.requests) == 1
        looks.append(counter.looks)
    assert looks[1] < 2 * looks[0] + 10


class Looking(CountingCounter):
    """Is cheap, so that it is asked for each message object anew, and counts how often it is."""

    is_cheap = True

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def count_message(self, message: Message) -> int:
        self.looks += 1
        return super().count_message(message)


def test_what_is_reserved_for_the_answer_does_not_make_it_summarize_on_every_call() -> None:
    writer = ScriptedClient(["a short summary"])
    summarized, history = Summarized(writer), [Message.user("task")]
    for number in range(CALLS):
        summarized.send(history, options=ChatOptions(max_tokens=LIMIT))
        history += [Message.assistant("ok"), Message.user(f"{number} {WORDS[:100]}")]
    assert len(writer.requests) <= CALLS // 2
