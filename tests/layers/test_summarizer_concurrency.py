"""Summaries while others wait, read, race or go away: each is written once, and nobody sees what is not theirs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from chatstack import ChatRequest, ChatResponse, ChatUpdate, ContextMemory, Message, Reasoning, Text, ToolCall, Usage
from chatstack.client.stream import ChatStream
from chatstack.context.memory.sharing import DecisionStore
from chatstack.errors import TurnTimeoutError
from chatstack.stores.sqlite import SQLiteStore
from chatstack.testing import ScriptedClient
from chatstack.testing.leftovers import LeftoverWatch, cancelled_at
from tests.context.test_sharing import DictStore
from tests.layers.test_summarizer_failures import (
    FOLD,
    WORDS,
    Remembering,
    Summarized,
    conversation,
    exchanges,
    facts_told,
    until,
)

HIDDEN = "marigold"


def prefix_of(messages: Sequence[Message]) -> list[Message]:
    """What was sent up to the summary, it included."""
    at = next(at for at, message in enumerate(messages) if message.mark == "summary")
    return list(messages[: at + 1])


# Many at once


@pytest.mark.slow
def test_a_thousand_conversations_at_once_see_their_own_facts_and_all_of_them() -> None:
    writer = Remembering(delay_seconds=0)
    summarized = Summarized(writer, provider=ScriptedClient(["ok"], delay_seconds=0))

    async def talk(of: int) -> None:
        history = conversation(of=of)
        for number in (20, 25):
            await summarized.client.get_response(history, conversation_id=str(of))
            history += [*exchanges(5, start=number, of=of), Message.user("and now?")]

    async def all_of_them() -> None:
        await asyncio.gather(*map(talk, range(1_000)))

    asyncio.run(all_of_them())
    grown = [0] * 1_000
    for request in summarized.provider.requests:
        of = int(request.conversation_id or -1)
        history = conversation(of=of)
        for number in (20, 25)[: grown[of]]:
            history += exchanges(5, start=number, of=of)
        grown[of] += 1
        assert facts_told(request.messages) == facts_told(history)
        assert sum(message.mark == "summary" for message in request.messages) == 1
    assert grown == [2] * 1_000
    assert len(writer.requests) == 2_000
    assert summarized.warnings == ()


@pytest.mark.parametrize("differ", [False, True], ids=["the same request", "branches"])
def test_what_many_ask_at_once_is_summarized_once_and_paid_once(differ: bool) -> None:
    writer = Remembering(delay_seconds=0)
    summarized, history = Summarized(writer), exchanges(8)

    async def all_of_them() -> list[ChatResponse]:
        ask = summarized.client.get_response
        last = [Message.user(f"question {number if differ else ''}") for number in range(20)]
        return await asyncio.gather(*(ask([*history, each], conversation_id="one") for each in last))

    answers = asyncio.run(all_of_them())
    assert len(writer.requests) == 1
    assert len({tuple(prefix_of(request.messages)) for request in summarized.provider.requests}) == 1
    assert sum(answer.overhead_usage != Usage() for answer in answers) == 1
    assert len([span for span in summarized.spans if span.attributes.get("chatstack.severity") == "INFO"]) == 1


def test_where_the_first_of_two_goes_away_the_second_writes_the_summary() -> None:
    writer = Remembering(delay_seconds=0.01)
    summarized, history = Summarized(writer), conversation()

    async def both() -> None:
        first, second = (asyncio.ensure_future(summarized.client.get_response(history)) for _ in range(2))
        await until(lambda: writer.open_streams > 0)
        first.cancel()
        assert (await second).overhead_usage != Usage()
        assert first.cancelled()

    asyncio.run(both())
    assert (len(writer.requests), len(summarized.provider.requests), len(summarized.summaries)) == (2, 1, 1)
    assert summarized.warnings == ()


@pytest.mark.parametrize("differ", [False, True], ids=["the same request", "branches"])
def test_where_the_first_of_many_fails_the_others_do_not_try_one_after_the_other(differ: bool) -> None:
    writer = ScriptedClient([""], delay_seconds=0)
    summarized, history = Summarized(writer), exchanges(8)

    async def all_of_them() -> None:
        ask = summarized.client.get_response
        last = [Message.user(f"question {number if differ else ''}") for number in range(20)]
        await asyncio.gather(*(ask([*history, each], conversation_id="one") for each in last))

    asyncio.run(all_of_them())
    assert len(writer.requests) == 1
    assert len(summarized.provider.requests) == 20
    assert summarized.warnings.count("summarizer_failed") >= 1


def test_threads_with_loops_of_their_own_share_one_memory() -> None:
    writer = Remembering(delay_seconds=0.001)
    summarized = Summarized(writer, provider=ScriptedClient(["ok"], delay_seconds=0))
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        async def talk() -> None:
            for of in (0, thread):  # one that all of them have, and one of their own
                await summarized.client.get_response(conversation(of=of), conversation_id=str(of))

        try:
            asyncio.run(talk())
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert failures == []
    by_conversation: dict[str | None, set[tuple[Message, ...]]] = {}
    for request in summarized.provider.requests:
        by_conversation.setdefault(request.conversation_id, set()).add(request.messages)
        assert facts_told(request.messages) == facts_told(conversation(of=int(request.conversation_id or -1)))
    assert {key: len(sent) for key, sent in by_conversation.items()} == {str(number): 1 for number in range(9)}
    asked = len(writer.requests)
    summarized.send([*conversation(), Message.assistant("ok"), Message.user("more")])
    assert len(writer.requests) == asked


# Two processes


class Waiting(ScriptedClient):
    """Answers when something else has happened."""

    waits_for: Callable[[], bool]

    async def send(self, request: ChatRequest, /) -> ChatStream:
        stream = await super().send(request)
        await until(self.waits_for)
        return stream


@pytest.mark.parametrize("first", [0, 1])
def test_processes_that_race_send_the_summary_of_whoever_was_first(tmp_path: Path, first: int) -> None:
    """Each has a memory of its own, and both have begun to write before either has decided."""
    store, history = SQLiteStore(tmp_path / "decisions.db"), conversation()
    memories = [ContextMemory(store=store, scope="tenant", store_timeout_seconds=300) for _ in range(3)]
    writers = [Waiting([f"summary {number}"]) for number in (0, 1)]
    processes = [Summarized(writer, memory=memory) for writer, memory in zip(writers, memories, strict=False)]
    writers[first].waits_for = lambda: len(writers[1 - first].requests) > 0
    writers[1 - first].waits_for = lambda: len(processes[first].provider.requests) > 0

    async def race() -> None:
        for number in (0, 1, 2):
            await asyncio.gather(*(process.client.get_response(history) for process in processes))
            sent = [process.sent for process in processes]
            assert sent[0] == sent[1]
            assert [message.text.split("\n")[1] for message in processes[0].summaries] == [f"summary {first}"]
            history.extend([Message.assistant("ok"), Message.user(f"more {number}")])
        later = Summarized(ScriptedClient(["another one"]), memory=memories[2])
        await later.client.get_response(history)
        assert list(later.sent) == [*processes[0].sent, *history[-2:]]
        await store.aclose()

    asyncio.run(race())
    assert [len(writer.requests) for writer in writers] == [1, 1]
    assert [process.warnings for process in processes] == [(), ()]


# What the user sees of it


WRITTEN = Message("assistant", (Reasoning(f"{HIDDEN} thought"), Text(f"{HIDDEN} was seen")))


async def read(summarized: Summarized, history: Sequence[Message]) -> tuple[list[ChatUpdate], ChatResponse]:
    async with summarized.client.get_streaming_response(history) as stream:
        updates = [update async for update in stream]
        return updates, await stream.response()


def looping(rounds: int, *, delay_seconds: float | None = None) -> Summarized:
    """A tool loop whose results make the history too long in a later round."""
    calls = [Message.assistant(f"round {number}", ToolCall(f"c{number}", "look")) for number in range(rounds)]

    def look() -> str:
        return WORDS

    return Summarized(
        ScriptedClient([WRITTEN], delay_seconds=delay_seconds),
        provider=ScriptedClient([*calls, "done"], delay_seconds=delay_seconds),
        tools=[look],
    )


@pytest.mark.parametrize("in_a_loop", [False, True], ids=["at once", "in a later round"])
def test_of_a_summary_the_user_sees_what_it_cost_once_and_nothing_else(in_a_loop: bool) -> None:
    def make() -> Summarized:
        return looping(16) if in_a_loop else Summarized(ScriptedClient([WRITTEN]))

    history = [Message.user("look around")] if in_a_loop else conversation()
    summarized = make()
    updates, streamed = asyncio.run(read(summarized, history))
    assert summarized.summaries
    assert HIDDEN not in repr(updates)
    assert HIDDEN not in repr(streamed)
    said = [message for message in streamed.messages if message.role == "assistant"]
    assert "".join(update.text for update in updates) == "".join(message.text for message in said)
    told = [update.overhead_usage for update in updates if update.overhead_usage is not None]
    folds = [span for span in summarized.spans if span.attributes.get("chatstack.severity") == "INFO"]
    assert len(told) == len(folds) == (1 if not in_a_loop else len(told))
    assert sum(told, Usage()) == streamed.overhead_usage != Usage()
    again = make()
    whole = again.send(history)
    assert (whole.messages, whole.usage, whole.overhead_usage) == (
        streamed.messages,
        streamed.usage,
        streamed.overhead_usage,
    )
    assert [request.messages for request in again.provider.requests] == [
        request.messages for request in summarized.provider.requests
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "least"), [(0, 3), (12, 40)], ids=["at once", "in a loop"])
def test_a_consumer_may_break_off_anywhere_where_something_is_folded(rounds: int, least: int) -> None:
    history = [Message.user("look around")] if rounds else conversation()

    async def broken_off_after(count: int) -> bool:
        summarized = looping(rounds, delay_seconds=0)
        watch = LeftoverWatch(summarized.provider, summarized.capture)
        seen = 0
        with watch.step(f"broken off after {count} updates"):
            stream = summarized.client.get_streaming_response(history)
            async for _ in stream:
                seen += 1
                if seen > count:
                    break
            await stream.aclose()
        assert watch.now() == []  # also before the collector had its say
        assert await watch.found() == []
        assert summarized.warnings == ()
        return seen > count

    async def everywhere() -> int:
        count = 0
        while await broken_off_after(count):
            count += 1
        return count

    assert asyncio.run(everywhere()) >= least


# Cancelled


class Slow(DictStore):
    """Takes a step of the loop before, and one after it has done what it was asked."""

    async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        await asyncio.sleep(0)
        found = await super().find(owner, links)
        await asyncio.sleep(0)
        return found

    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        await asyncio.sleep(0)
        kept = await super().put(owner, link, record, replaces=replaces)
        await asyncio.sleep(0)
        return kept


class Cancelled:
    """One conversation with one stack; model and writer are one client, so that nothing of either can be left open."""

    def __init__(self, *, tools: bool = False, store: DecisionStore | None = None) -> None:
        call = Message.assistant("", ToolCall("t", "look"))
        self.model = ScriptedClient(["a summary of it", *[call] * tools, "ok then"], delay_seconds=0)
        memory = None if store is None else ContextMemory(store=store, scope="tenant")
        self.summarized = Summarized(None, provider=self.model, memory=memory, tools=[self.look] if tools else ())
        self.history = conversation()

    async def look(self) -> str:
        await asyncio.sleep(0)
        return "seen"

    async def ask(self) -> None:
        await self.summarized.client.get_response(self.history)

    async def stream(self) -> None:
        async with self.summarized.client.get_streaming_response(self.history) as updates:
            async for _ in updates:
                pass

    def folds(self) -> int:
        return sum(bool(request.options.instructions) for request in self.model.requests)


CASES: dict[str, tuple[Callable[[], Cancelled], int]] = {
    "one round": (Cancelled, 5),
    "a tool loop": (lambda: Cancelled(tools=True), 10),
    "a slow store": (lambda: Cancelled(store=Slow()), 15),
}


@pytest.mark.parametrize(("make", "least"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("ask", [Cancelled.ask, Cancelled.stream], ids=["at once", "streamed"])
def test_cancelled_at_any_step_it_leaves_nothing_and_the_next_call_folds(
    ask: Callable[[Cancelled], Awaitable[None]], make: Callable[[], Cancelled], least: int
) -> None:
    async def cancelled_after(step: int) -> bool:
        case = make()
        watch = LeftoverWatch(case.model, case.summarized.capture)
        with watch.step(f"cancelled at step {step}"):
            stopped = await cancelled_at(step, lambda: ask(case))
        assert stopped is not None
        assert await watch.found() == []
        folds = case.folds()
        was_written = len(case.model.requests) > folds  # the model has been asked, too
        case.model.answers[:] = [*["gone"] * len(case.model.requests), "a summary", "ok"]
        await case.summarized.client.get_response(case.history)
        assert case.folds() in ((folds,) if was_written else (folds, folds + 1))
        assert len(case.summarized.summaries) == 1
        assert case.summarized.warnings == ()
        return stopped

    async def everywhere() -> int:
        step = 0
        while await cancelled_after(step):
            step += 1
        return step

    assert asyncio.run(everywhere()) >= least


def test_a_turn_that_ran_out_of_time_while_it_folded_changes_nothing() -> None:
    writer = Remembering(delay_seconds=0.2)
    summarized, history = Summarized(writer), conversation()
    with pytest.raises(TurnTimeoutError):
        summarized.send(history, timeout_seconds=0.05)
    assert summarized.provider.requests == []
    assert (writer.open_streams, summarized.capture.open_spans) == (0, ())
    writer.delay_seconds = None
    summarized.send(history)
    assert facts_told(summarized.sent) == facts_told(history)
    assert (len(writer.requests), len(summarized.summaries), summarized.warnings) == (2, 1, ())


def test_a_stream_that_is_closed_while_it_folds_stops_the_fold() -> None:
    writer = Remembering(delay_seconds=0.2)
    summarized, history = Summarized(writer), conversation()

    async def closed() -> None:
        stream = summarized.client.get_streaming_response(history)
        reading = asyncio.ensure_future(stream.response())
        await until(lambda: writer.open_streams > 0)
        await stream.aclose()
        await asyncio.gather(reading, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert (writer.open_streams, summarized.capture.open_spans) == (0, ())
        assert summarized.capture.span(FOLD).status == "unset"

    asyncio.run(closed())
    assert summarized.provider.requests == []
    writer.delay_seconds = None
    summarized.send(history)
    assert (len(writer.requests), len(summarized.summaries), summarized.warnings) == (2, 1, ())
