"""One message of the user, and two hundred rounds of tools behind it: compressed between rounds, never within one."""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
from typing import Any

import pytest

from chatstack import (
    ChatRequest,
    ChatResponse,
    ChatStack,
    ContextWindow,
    FunctionInvoker,
    Message,
    Summarizer,
    ToolCall,
)
from chatstack.context.edits.units import is_users, items_in
from chatstack.testing import Answer, TelemetryCapture
from tests.context.strictness import leftovers
from tests.lanes import in_lanes
from tests.layers.travel import COUNTER, FOLD, Ruled, entries_in, items, sent_tokens, summaries_in

ROUNDS = 200
TASK = "Read the whole book, page by page, and tell me its last word. Never skip a page."


def page(number: int) -> str:
    """A page of the book, and which one is next."""
    following = f"next={number + 1}" if number < ROUNDS - 1 else "the end; the last word is 'sunrise'"
    return f"page={number} {'and so it went on ' * 12}{following}"


def footnotes(number: int) -> str:
    """The footnotes of a page."""
    return f"notes={number} {'ibidem ' * 20}"


def reader(request: ChatRequest) -> Answer:
    """Calls for the page that the last result names; knows nothing but what it is sent."""
    results = [result.text for message in request.messages for result in message.results]
    following = re.search(r"next=(\d+)", results[-1]) if results else None
    if results and "last word is 'sunrise'" in results[-1]:
        return "sunrise"
    number = following[1] if following is not None else "0"
    return Message.assistant(f"Page {number}.", ToolCall(f"p{number}", "page", f'{{"number": {number}}}'))


def reader_of_both(request: ChatRequest) -> Answer:
    """The same with two calls in each round, the ids of which are always the same."""
    results = [result.text for message in request.messages for result in message.results]
    found = re.findall(r"next=(\d+)", "\n".join(results[-2:]))
    if "last word is 'sunrise'" in "\n".join(results[-2:]):
        return "sunrise"
    number = found[-1] if found else "0"
    calls = [ToolCall(f"c-{name}", name, f'{{"number": {number}}}') for name in ("page", "footnotes")]
    return Message.assistant(*calls)


def pages_read(request: ChatRequest) -> Answer:
    """A summary in the form of ranges: "pages 0-41", from the summary so far and what is new."""
    last = -1
    for entry in entries_in(request):
        for found in re.finditer(r"^page=(\d+)|^Read: pages 0-(\d+)", entry.text, flags=re.MULTILINE):
            last = max(last, int(found[1] or found[2]))
    return f"Read: pages 0-{last}."


class Reading:
    """The one turn, and all that was sent for it."""

    def __init__(self, rule: Any, **options: Any) -> None:
        self.model, self.summarizer, self.capture = Ruled(rule), Ruled(pages_read), TelemetryCapture()
        stack = ChatStack(self.model).use(
            FunctionInvoker, tools=[page, footnotes], max_tool_calls_per_turn=2 * ROUNDS + 1
        )
        layer = options.pop("layer", ContextWindow)
        limit = {"max_tool_calls_per_turn": None} if layer is ContextWindow else {}
        stack = stack.use(layer, summary_client=self.summarizer, **limit, **options)
        client = stack.build(self.capture.resolve)
        self.response: ChatResponse = asyncio.run(client.get_response([Message.user(TASK)]))

    @property
    def new_tokens(self) -> int:
        return sum(map(COUNTER.count_message, self.response.messages))

    @property
    def new_items(self) -> int:
        return sum(map(items_in, self.response.messages))


READINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tokens": (reader, {"max_tokens": 2_000}),
    "items": (reader, {"max_context_items": 30}),
    "both limits": (reader, {"max_tokens": 2_000, "max_context_items": 60}),
    "one recent turn": (reader, {"max_tokens": 2_000, "keep_recent_turns": 1}),
    "parallel calls, ids used again": (reader_of_both, {"max_tokens": 3_000}),
    "the summarizer alone": (reader, {"max_tokens": 2_000, "layer": Summarizer}),
}

PLAIN = ("both limits", "parallel calls, ids used again", "the summarizer alone")
"""Those of a plain run."""


@functools.cache
def reading(name: str) -> Reading:
    rule, options = READINGS[name]
    return Reading(rule, **options)


every_reading = pytest.mark.parametrize("name", in_lanes(READINGS, PLAIN))


@pytest.mark.slow
@every_reading
def test_the_turn_gets_to_its_end(name: str) -> None:
    read = reading(name)
    assert read.response.text == "sunrise"
    assert read.response.rounds == len(read.model.requests) == ROUNDS + 1
    pages = [result.text for message in read.response.messages for result in message.results if result.name == "page"]
    assert pages == [page(number) for number in range(ROUNDS)]  # what is given back is whole


@pytest.mark.slow
@every_reading
def test_the_task_comes_first_and_word_for_word_in_every_request(name: str) -> None:
    for request in reading(name).model.requests:
        assert request.messages[0] == Message.user(TASK)
        assert sum(map(is_users, request.messages)) == 1
        assert len(summaries_in(request)) <= 1
        assert all(message.mark == "summary" for message in request.messages[1:2] if not message.calls)


@every_reading
def test_rounds_stay_whole_and_what_is_left_is_the_end_of_what_was_done(name: str) -> None:
    read = reading(name)
    done = [Message.user(TASK), *read.response.messages]
    for request in read.model.requests:
        assert not leftovers(request.messages)
        left = [message for message in request.messages[1:] if message.mark != "summary"]
        ends = [at for at in range(1, len(done)) if done[at : at + len(left)] == left]
        assert ends or not left


@every_reading
def test_no_request_of_the_turn_is_over_a_limit(name: str) -> None:
    read = reading(name)
    options = READINGS[name][1]
    assert max(map(sent_tokens, read.model.requests)) <= options.get("max_tokens", 10**9)
    assert max(map(items, read.model.requests)) <= options.get("max_context_items", 10**9)
    assert read.capture.warnings == ()


@every_reading
def test_summaries_are_few(name: str) -> None:
    """Each one takes a good third of the limit away, or they would come more often than that."""
    read = reading(name)
    options = READINGS[name][1]
    most = max(
        read.new_tokens / (0.3 * options.get("max_tokens", 10**9)),
        read.new_items / (0.3 * options.get("max_context_items", 10**9)),
    )
    assert 3 <= len(read.summarizer.requests) == len(read.capture.spans_named(FOLD)) <= most


@every_reading
def test_every_round_is_summarized_once_and_the_summary_knows_all_of_them(name: str) -> None:
    read = reading(name)
    told = [
        int(found[1])
        for request in read.summarizer.requests
        for entry in entries_in(request)
        if entry.who == "result of page" and (found := re.match(r"page=(\d+)", entry.text)) is not None
    ]
    assert told == list(range(len(told)))
    (summary,) = summaries_in(read.model.requests[-1])
    assert summary.text.endswith(f"Read: pages 0-{len(told) - 1}.")
    left = [
        result.text
        for message in read.model.requests[-1].messages
        for result in message.results
        if result.name == "page"
    ]
    assert left == [page(number) for number in range(len(told), ROUNDS)]


@every_reading
def test_only_a_summary_breaks_what_the_last_request_began_with(name: str) -> None:
    read = reading(name)
    broken = [
        before
        for before, after in itertools.pairwise(read.model.requests)
        if after.messages[: len(before.messages)] != before.messages
    ]
    assert len(broken) == len(read.summarizer.requests)


@every_reading
def test_whoever_summarizes_is_shown_the_task_as_what_stays(name: str) -> None:
    for request in reading(name).summarizer.requests:
        entries = entries_in(request)
        assert [entry.text for entry in entries if entry.who == "user (stays)"] == [TASK]
        assert not any(entry.who == "user" for entry in entries)


def test_with_a_limit_of_calls_in_the_window_the_turn_ends_there() -> None:
    model, capture = (
        Ruled(lambda request: reader(request) if request.options.tool_choice != "none" else "enough"),
        (TelemetryCapture()),
    )
    stack = ChatStack(model).use(FunctionInvoker, tools=[page], max_tool_calls_per_turn=300)
    summarizer = Ruled(pages_read)
    stack = stack.use(ContextWindow, max_tokens=1_000, max_tool_calls_per_turn=150, summary_client=summarizer)
    client = stack.build(capture.resolve)
    response = asyncio.run(client.get_response(TASK))
    assert response.text == "enough"
    assert sum(len(message.results) for message in response.messages) == 150  # those in summaries count as well
    assert len(summarizer.requests) > 3
    assert capture.warnings == ("tool_loop_limit_reached",)
