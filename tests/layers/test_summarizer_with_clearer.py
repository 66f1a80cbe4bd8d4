"""A clearer outside: what was cleared is summarized as it was, and what is cleared later costs no new summary."""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from chatstack import ChatRequest, ChatStack, ContextMemory, Message, Summarizer, ToolCall, ToolResultClearer
from chatstack.stores.sqlite import SQLiteStore
from chatstack.testing import Answer, CapturedSpan, ScriptedClient, TelemetryCapture
from tests.context.strictness import leftovers
from tests.histories import decoded_again
from tests.lanes import in_lanes
from tests.layers.travel import FOLD, Ruled, entries_in, sent_tokens, summaries_in

CLEAR = "compact_context clear_tool_results"
TASK = Message.user("Look around until I say stop.")
DETAILS = "grey and blue " * 40


def turn(number: int) -> list[Message]:
    """A turn of about 250 tokens, most of them in the result of a tool."""
    return [
        Message.user(f"Look at place {number}."),
        Message.assistant(ToolCall(f"c{number % 7}", "look", f'{{"place": {number}}}')),
        Message.tool(f"c{number % 7}", f"seen {number}: {DETAILS}{number}!", name="look"),
        Message.assistant(f"I was at place {number}, {'which was nice ' * 8}"),
    ]


def places_in(request: ChatRequest) -> Answer:
    """A summary of what tools have seen, and of nothing that was merely said: "seen 0 1 2"."""
    seen: list[str] = []
    for who, text in entries_in(request):
        if who == "summary so far":
            seen += text.split()[1:]
        elif who == "result of look" and (found := re.fullmatch(rf"seen (\d+): {DETAILS}\1!", text)) is not None:
            seen.append(found[1])
    return f"seen {' '.join(seen)}"


class Looked:
    """A long conversation behind a clearer, and all that was sent for it."""

    def __init__(
        self,
        length: int,
        clearer: dict[str, Any],
        summarizer: dict[str, Any],
        is_new_process: Callable[[int], bool],
        *,
        talk: int,
    ) -> None:
        self.model, self.summarizer, self.capture = ScriptedClient(["ok"]), Ruled(places_in), TelemetryCapture()
        self.clears_when_folded: list[int] = []
        self._clearer = clearer
        self._summarizer: dict[str, Any] = {**summarizer, "summary_client": self.summarizer}
        self.history = [TASK, Message.assistant("I go.")]
        for number in range(talk):
            self.history += [Message.user(f"Tell me of {number}."), Message.assistant(f"{number}: {DETAILS}")]
        with TemporaryDirectory() as folder:
            asyncio.run(self._run(length, Path(folder) / "decisions.db", is_new_process))

    async def _run(self, length: int, path: Path, is_new_process: Callable[[int], bool]) -> None:
        memory, client = self._started(path)
        for number in range(length):
            if is_new_process(number):
                await memory.aclose()
                memory, client = self._started(path)
                self.history = decoded_again(self.history)
            added = turn(number)
            # Every round of a turn is a request: the question, and the result.
            for until in (1, 3):
                folds = len(self.summarizer.requests)
                self.model.answers = [added[until]]  # the history holds what the model has answered
                await client.get_response([*self.history, *added[:until]])
                if len(self.summarizer.requests) > folds:
                    self.clears_when_folded.append(len(self.clears))
            self.history += added
        await memory.aclose()

    def _started(self, path: Path) -> tuple[ContextMemory, Any]:
        memory = ContextMemory(store=SQLiteStore(path), scope="tenant", store_timeout_seconds=300)
        stack = ChatStack(self.model, memory=memory)
        stack = stack.use(ToolResultClearer, **self._clearer).use(Summarizer, **self._summarizer)
        return memory, stack.build(self.capture.resolve)

    @property
    def clears(self) -> tuple[CapturedSpan, ...]:
        """The spans of what the clearer did; what it could not do is a warning."""
        return tuple(
            span for span in self.capture.spans_named(CLEAR) if span.attributes.get("chatstack.severity") == "INFO"
        )

    def told(self, who: str) -> list[str]:
        """What whoever summarizes was shown, in all requests together."""
        return [entry.text for request in self.summarizer.requests for entry in entries_in(request) if entry.who == who]


SIZES: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "cleared before it is summarized": (
        {"trigger": {"tokens": 1_500}, "keep": {"messages": 2}},
        {"max_tokens": 2_500},
        0,
    ),
    "summarized before it is cleared": (
        {"trigger": {"tokens": 2_000}, "keep": {"messages": 1}},
        {"max_tokens": 2_500, "keep_recent_turns": 2},
        18,
    ),
    "by messages and items": (
        {"trigger": {"messages": 30}, "keep": {"messages": 2}},
        {"max_context_items": 40, "keep_recent_turns": 2},
        0,
    ),
}
"""Options of the clearer and of the summarizer, and how many turns without a tool there are before."""
PLAIN = ("cleared before it is summarized", "summarized before it is cleared")
"""Those of a plain run."""
LENGTH = 60


def _never(number: int) -> bool:
    return False


def _always(number: int) -> bool:
    return number > 0


PROCESSES: dict[str, Callable[[int], bool]] = {"one process": _never, "a process for each turn": _always}


@functools.cache
def looked(sizes: str, processes: str) -> Looked:
    clearer, summarizer, talk = SIZES[sizes]
    return Looked(LENGTH, clearer, summarizer, PROCESSES[processes], talk=talk)


every_size = pytest.mark.parametrize("sizes", in_lanes(SIZES, PLAIN))


def every_one(test: Callable[[str, str], None]) -> Callable[[str, str], None]:
    return every_size(pytest.mark.parametrize("processes", PROCESSES)(test))


@pytest.mark.slow
@every_one
def test_the_text_of_cleared_results_is_what_is_summarized(sizes: str, processes: str) -> None:
    run = looked(sizes, processes)
    assert "[cleared]" not in "".join(message.text for each in run.summarizer.requests for message in each.messages)
    seen = run.told("result of look")
    assert seen == [f"seen {number}: {DETAILS}{number}!" for number in range(len(seen))]
    assert len(seen) > LENGTH / 2
    (summary,) = summaries_in(run.model.requests[-1])
    assert summary.text.splitlines()[-1] == f"seen {' '.join(map(str, range(len(seen))))}"


@pytest.mark.slow
@every_one
def test_what_the_clearer_does_later_has_no_summary_written_again(sizes: str, processes: str) -> None:
    run = looked(sizes, processes)
    assert len(run.clears) - run.clears_when_folded[0] >= 3  # so many were there after the first summary
    if sizes == "summarized before it is cleared":
        assert run.clears_when_folded[0] == 0
    assert len(run.clears_when_folded) == len(run.summarizer.requests) == len(run.capture.spans_named(FOLD))
    for who in ("user", "result of look", "assistant", "assistant calls look"):
        assert len(run.told(who)) == len(set(run.told(who)))
    assert len(run.told("summary so far")) == len(run.summarizer.requests) - 1


@every_size
def test_another_process_for_each_turn_pays_for_no_summary_more(sizes: str) -> None:
    one, many = (looked(sizes, processes) for processes in PROCESSES)
    assert len(many.summarizer.requests) == len(one.summarizer.requests)


@every_size
def test_another_process_for_each_turn_sends_the_same(sizes: str) -> None:
    """What the summarizer has folded is in the store: no clearer has to make room for it again."""
    one, many = (looked(sizes, processes) for processes in PROCESSES)
    differs = [
        number
        for number, (here, there) in enumerate(zip(one.model.requests, many.model.requests, strict=True))
        if here.messages != there.messages
    ]
    assert differs == []


@every_one
def test_both_together_break_the_prefix_no_oftener_than_they_edit(sizes: str, processes: str) -> None:
    run = looked(sizes, processes)
    edits = len(run.clears) + len(run.capture.spans_named(FOLD))
    assert 0 < _breaks(run.model.requests) <= edits
    assert set(run.capture.warnings) <= {"edit_ineffective"}


@every_one
def test_the_request_for_a_summary_is_not_called_compacted_though_what_came_was_cleared(
    sizes: str, processes: str
) -> None:
    run = looked(sizes, processes)
    folds = {span.span_id for span in run.capture.spans_named(FOLD)}
    chats = run.capture.spans_named("chat script")
    of_summaries = [span for span in chats if span.parent_id in folds]
    assert len(of_summaries) == len(run.summarizer.requests)
    assert not any("gen_ai.conversation.compacted" in span.attributes for span in of_summaries)
    others = [span for span in chats if span.parent_id not in folds]
    is_edited = [
        bool(summaries_in(request))
        or any(result.text == "[cleared]" for message in request.messages for result in message.results)
        for request in run.model.requests
    ]
    assert [span.attributes.get("gen_ai.conversation.compacted", False) for span in others] == is_edited


@every_one
def test_limits_hold_and_pairs_stay_whole_behind_a_clearer(sizes: str, processes: str) -> None:
    run = looked(sizes, processes)
    for request in run.model.requests:
        assert not leftovers(request.messages)
        assert len(summaries_in(request)) <= 1
        assert sent_tokens(request) <= SIZES[sizes][1].get("max_tokens", 10**9)


def _breaks(requests: Sequence[ChatRequest]) -> int:
    pairs = itertools.pairwise(requests)
    return sum(after.messages[: len(before.messages)] != before.messages for before, after in pairs)


def test_a_summary_made_of_cleared_results_holds_for_whoever_does_not_clear() -> None:
    """It is kept for what was said, not for what was sent."""
    memory, summarizer, history = ContextMemory(), Ruled(places_in), [TASK, Message.assistant("I go.")]
    for number in range(12):
        history += turn(number)
    history.append(Message.user("and?"))
    model = ScriptedClient(["ok"])
    plain = ChatStack(model, memory=memory).use(Summarizer, max_tokens=1_500, summary_client=summarizer)
    clearing = ChatStack(model, memory=memory).use(ToolResultClearer, trigger={"tokens": 1_000}, keep={"messages": 1})
    clearing = clearing.use(Summarizer, max_tokens=1_500, summary_client=summarizer)
    asyncio.run(clearing.build().get_response(history))
    asyncio.run(plain.build().get_response(history))
    assert len(summarizer.requests) <= 2
    told = [entry.text for request in summarizer.requests for entry in entries_in(request) if entry.who == "user"]
    assert len(told) == len(set(told))
    assert summaries_in(model.requests[-1])
