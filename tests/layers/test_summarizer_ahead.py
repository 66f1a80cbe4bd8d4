"""Summaries ahead of need: prepared from a soft mark on, so that no call waits for one, and none is paid for twice."""

from __future__ import annotations

import asyncio
import collections
import gc
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from chatstack import (
    CharCounter,
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ChatStack,
    ContextMemory,
    ContextWindow,
    FunctionInvoker,
    Message,
    ProgressReporter,
    Summarizer,
    ToolCall,
    ToolResultClearer,
    Usage,
    find,
)
from chatstack.client.stream import ChatStream
from chatstack.errors import ServerError
from chatstack.testing import ScriptedClient, TelemetryCapture
from chatstack.testing.leftovers import LeftoverWatch, complaints
from tests.context.strictness import size
from tests.context.test_sharing import DictStore
from tests.layers.test_summarizer_failures import (
    FOLD,
    LIMIT,
    WORDS,
    Remembering,
    exchanges,
    facts_in,
    facts_told,
    until,
)

PREPARED = "chatstack.compaction.prepared"


class Gated(Remembering):
    """Writes summaries only while its gate is open."""

    def __init__(self, *first: Any, **options: Any) -> None:
        super().__init__(*first, **options)
        self.is_open = True
        self.waiting = 0

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.requests.append(request)
        self.waiting += 1
        try:
            await until(lambda: self.is_open)
        finally:
            self.waiting -= 1
            self.requests.pop()
        return await super().send(request)


class Conversed:
    """A conversation of a caller who appends answers, with a summarizer that prepares its summaries."""

    def __init__(
        self,
        writer: ScriptedClient,
        *,
        stack: ChatStack | None = None,
        memory: ContextMemory | None = None,
        of: int = 0,
        conversation_id: str | None = None,
        window: bool = False,
        **options: Any,
    ) -> None:
        self.writer, self.capture, self.of, self.conversation_id = writer, TelemetryCapture(), of, conversation_id
        self.provider = ScriptedClient([f"noted {WORDS}"])
        self.memory = memory or ContextMemory(clock=lambda: self.now)
        self.now = 1_000.0
        layer: Any = ContextWindow if window else Summarizer
        given = {"max_tokens": LIMIT, "summary_client": writer, "prepare_at": 0.6, "keep_recent_turns": 1, **options}
        self.stack = ChatStack(self.provider, memory=self.memory).use(ProgressReporter).use(layer, **given)
        self.client = self.stack.build(self.capture.resolve)
        self.history: list[Message] = []
        self.answers: list[ChatResponse] = []

    async def ask(self, *reminder: Message, streamed: bool = False, options: ChatOptions | None = None) -> ChatResponse:
        """Ask the next question, and append the answer."""
        number = len(self.answers)
        self.history.append(Message.user(f"fact{self.of}x{number} {WORDS}"))
        messages = [*self.history, *reminder]
        if streamed:
            async with self.client.get_streaming_response(messages, conversation_id=self.conversation_id) as stream:
                answer = await stream.response()
        else:
            answer = await self.client.get_response(messages, conversation_id=self.conversation_id, options=options)
        self.history += answer.messages
        self.answers.append(answer)
        return answer

    async def idle(self) -> None:
        """Wait until nothing is prepared any more."""
        await until(lambda: self.running() == 0)

    def running(self) -> int:
        layer = find(self.client, Summarizer)
        return 0 if layer is None else len(layer.services.attempts.background)

    async def until_it_prepares(self) -> None:
        while not self.running():
            await self.ask()

    @property
    def sent(self) -> tuple[Message, ...]:
        return self.provider.requests[-1].messages

    @property
    def outcomes(self) -> dict[str, int]:
        points = self.capture.metric(PREPARED)
        return {str(point.labels["chatstack.compaction.outcome"]): int(point.total) for point in points}

    @property
    def has_summary(self) -> bool:
        return bool(self.provider.requests) and any(message.mark == "summary" for message in self.sent)

    @property
    def overhead(self) -> Usage:
        return sum((answer.overhead_usage for answer in self.answers), Usage())


def spent(writer: ScriptedClient) -> int:
    """The input that the writer has been sent."""
    return sum(size(each.messages) + writer.counter.count_options(each.options) for each in writer.requests)


# No call waits


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("conversation_id", [None, "c-42"])
def test_no_call_waits_for_a_summary_and_all_are_used_and_told(streamed: bool, conversation_id: str | None) -> None:
    async def main() -> Conversed:
        talk = Conversed(Gated(), conversation_id=conversation_id)
        assert isinstance(talk.writer, Gated)
        for _ in range(30):
            talk.writer.is_open = False  # whoever waited for a summary now would wait in vain
            await talk.ask(streamed=streamed)
            talk.writer.is_open = True
            await talk.idle()
        return talk

    talk = asyncio.run(main())
    assert all(size(request.messages) <= LIMIT for request in talk.provider.requests)
    assert facts_told(talk.sent) >= {f"fact0x{number}" for number in range(30)}
    edits = [span for span in talk.capture.spans_named(FOLD) if "chatstack.compaction.reason" in span.attributes]
    assert len(edits) == talk.outcomes["used"] >= 4
    assert talk.outcomes == {"written": len(talk.writer.requests), "used": len(edits)}
    assert len(talk.writer.requests) - len(edits) in (0, 1)  # one may be prepared for what is still to come
    assert talk.overhead.input_tokens == spent(talk.writer)
    assert talk.capture.warnings == ()


@pytest.mark.parametrize("conversation_id", [None, "c-42"])
def test_below_the_limit_exactly_what_came_is_sent_and_between_edits_each_request_begins_with_the_last(
    conversation_id: str | None,
) -> None:
    async def main() -> Conversed:
        talk = Conversed(Remembering(), conversation_id=conversation_id)
        for _ in range(25):
            await talk.ask()
            if not talk.has_summary:
                assert [*map(id, talk.sent)] == [*map(id, talk.history[:-1])]
            await talk.idle()
        return talk

    talk = asyncio.run(main())
    sent = [request.messages for request in talk.provider.requests]
    broken = sum(later[: len(earlier)] != earlier for earlier, later in pairwise(sent))
    assert broken == talk.outcomes["used"] >= 3


def test_without_the_option_nothing_is_prepared() -> None:
    async def main() -> None:
        talk = Conversed(Remembering(), prepare_at=None)
        while size(talk.history) < LIMIT * 0.8:
            await talk.ask()
            assert talk.running() == 0
        assert talk.writer.requests == []
        assert talk.capture.metric(PREPARED) == ()

    asyncio.run(main())


def test_a_limit_in_items_has_a_soft_mark_too() -> None:
    async def main() -> Conversed:
        talk = Conversed(Gated(), max_tokens=None, max_context_items=20)
        assert isinstance(talk.writer, Gated)
        for _ in range(40):
            talk.writer.is_open = False
            await talk.ask()
            talk.writer.is_open = True
            await talk.idle()
        return talk

    talk = asyncio.run(main())
    assert all(len(request.messages) <= 20 for request in talk.provider.requests)
    assert talk.outcomes["used"] >= 4
    assert facts_told(talk.sent) >= {f"fact0x{number}" for number in range(40)}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_within_a_tool_loop_it_is_prepared_in_one_round_and_used_in_a_later_one(streamed: bool) -> None:
    writer, capture = Gated(), TelemetryCapture()
    calls = [Message.assistant(f"round {number}", ToolCall(f"c{number}", "look")) for number in range(24)]
    provider = ScriptedClient([*calls, "done"], delay_seconds=0)

    async def main() -> ChatResponse:
        async def look() -> str:
            writer.is_open = True
            await until(lambda: len(attempts.background) == 0)
            writer.is_open = False
            return f"fact0x{len(provider.requests)} {WORDS}"

        stack = ChatStack(provider).use(FunctionInvoker, tools=[look], max_tool_calls_per_turn=100)
        stack = stack.use(Summarizer, max_tokens=LIMIT, summary_client=writer, prepare_at=0.6)
        async with stack.open(capture.resolve) as client:
            layer = find(client, Summarizer)
            assert layer is not None
            attempts = layer.services.attempts
            writer.is_open = False  # no round may wait for a summary
            if not streamed:
                return await client.get_response("look around")
            async with client.get_streaming_response("look around") as stream:
                return await stream.response()

    answer = asyncio.run(main())
    assert all(size(request.messages) <= LIMIT for request in provider.requests)
    (used,) = [p.total for p in capture.metric(PREPARED) if p.labels["chatstack.compaction.outcome"] == "used"]
    assert used >= 3
    told = set[str]().union(*(facts_in(str(result.text)) for m in answer.messages for result in m.results))
    sent = provider.requests[-1].messages
    shown = facts_told(sent) | set[str]().union(*(facts_in(str(result.text)) for m in sent for result in m.results))
    assert shown == told
    assert "summarizer_failed" not in capture.warnings


def test_streamed_and_not_the_same_is_sent() -> None:
    async def sent(*, streamed: bool) -> list[tuple[Message, ...]]:
        talk = Conversed(Remembering())
        for _ in range(20):
            await talk.ask(streamed=streamed)
            await talk.idle()
        return [request.messages for request in talk.provider.requests]

    assert asyncio.run(sent(streamed=True)) == asyncio.run(sent(streamed=False))


def test_a_context_window_prepares_too_and_closing_it_ends_that() -> None:
    async def main() -> None:
        writer = Gated()
        talk = Conversed(writer, window=True, max_tool_calls_per_turn=None)
        while not writer.waiting:
            await talk.ask()
            await asyncio.sleep(0)
            writer.is_open = False
        before = asyncio.all_tasks()
        await talk.client.aclose()
        assert len(asyncio.all_tasks()) == len(before) - 1
        assert writer.waiting == 0

    asyncio.run(main())


@pytest.mark.parametrize("conversation_id", [None, "c-42"])
def test_where_what_was_prepared_is_not_enough_it_is_used_and_folded_into_another(conversation_id: str | None) -> None:
    async def main() -> Conversed:
        talk = Conversed(Remembering(), conversation_id=conversation_id)
        await talk.until_it_prepares()
        await talk.idle()
        talk.history += exchanges(6, start=100)
        await talk.ask()
        return talk

    talk = asyncio.run(main())
    assert talk.outcomes == {"written": 1, "used": 1}
    assert size(talk.sent) <= LIMIT
    assert facts_told(talk.sent) == facts_told(talk.history)
    assert len(talk.writer.requests) == 2
    told = talk.writer.requests[-1].messages[0].text
    assert "summary so far" in told
    assert f"fact0x1 {WORDS}" not in told


# Joining it


def test_a_call_that_needs_what_is_being_written_joins_it_and_pays_once() -> None:
    async def main() -> Conversed:
        writer = Gated()
        talk = Conversed(writer)
        writer.is_open = False
        await talk.until_it_prepares()
        while size(talk.history) + size([Message.user(WORDS)]) < LIMIT:
            await talk.ask()
        asking = asyncio.ensure_future(talk.ask())
        await until(lambda: writer.waiting == 1)
        for _ in range(50):
            await asyncio.sleep(0)
        assert not asking.done()
        writer.is_open = True
        await asking
        return talk

    talk = asyncio.run(main())
    assert talk.has_summary
    assert len(talk.writer.requests) == 1
    assert talk.answers[-1].overhead_usage.input_tokens == spent(talk.writer)
    assert talk.outcomes == {"written": 1, "used": 1}


def test_whoever_joins_and_goes_away_leaves_it_to_the_next() -> None:
    async def main() -> Conversed:
        writer = Gated()
        talk = Conversed(writer, conversation_id="c")
        writer.is_open = False
        await talk.until_it_prepares()
        while size(talk.history) + size([Message.user(WORDS)]) < LIMIT:
            await talk.ask()
        asking = asyncio.ensure_future(talk.ask())
        for _ in range(50):
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        talk.history.pop()
        assert talk.running() == 1
        writer.is_open = True
        await talk.idle()
        await talk.ask()
        return talk

    talk = asyncio.run(main())
    assert talk.has_summary
    assert len(talk.writer.requests) == 1
    assert talk.overhead.input_tokens == spent(talk.writer)


def test_many_branches_at_once_use_the_one_that_was_prepared() -> None:
    async def main() -> Conversed:
        talk = Conversed(Remembering())
        while size(talk.history) + size([Message.user(WORDS)]) < LIMIT:
            await talk.ask()
            await talk.idle()
        ask = talk.client.get_response
        last = [Message.user(f"question {number} {WORDS}") for number in range(20)]
        await asyncio.gather(*(ask([*talk.history, each]) for each in last))
        return talk

    talk = asyncio.run(main())
    assert len(talk.writer.requests) == 1
    branches = [request.messages for request in talk.provider.requests[-20:]]
    assert len({branch[:-1] for branch in branches}) == 1
    assert any(message.mark == "summary" for message in branches[0])


# Ending it


def test_closing_the_client_ends_what_is_prepared_and_leaves_nothing() -> None:
    async def main() -> None:
        writer = Gated(delay_seconds=0)
        talk = Conversed(writer)
        watch = LeftoverWatch(writer, talk.capture)
        with complaints() as heard:
            writer.is_open = False
            await talk.until_it_prepares()
            await until(lambda: writer.waiting == 1)
            with watch.step("closing"):
                await talk.client.aclose()
            assert watch.now() == []
            (span,) = talk.capture.spans_named(FOLD)
            assert (span.status, span.attributes["error.type"]) == ("unset", "cancelled")
            assert talk.outcomes == {"cancelled": 1}
            assert await watch.found() == []
            writer.is_open = True
            await talk.ask()
            assert talk.running() == 0  # it is closed
            talk.client = talk.stack.build(talk.capture.resolve)
            while not talk.has_summary:
                await talk.ask()
                await talk.idle()
            await talk.client.aclose()
        assert heard == []
        assert talk.capture.warnings == ()
        assert len(writer.requests) == 1

    asyncio.run(main())


def test_closed_at_any_step_of_the_writing_it_leaves_nothing_and_nothing_is_paid_twice() -> None:
    async def closed_after(step: int) -> bool:
        talk = Conversed(Remembering(delay_seconds=0), conversation_id="c")
        watch = LeftoverWatch(talk.writer, talk.capture)
        await talk.until_it_prepares()
        for _ in range(step):
            await asyncio.sleep(0)
        was_running = talk.running() > 0
        await talk.client.aclose()
        assert await watch.found() == []
        was_written = len(talk.writer.requests) == 1 and not was_running
        talk.client = talk.stack.build(talk.capture.resolve)
        while not talk.has_summary:
            await talk.ask()
            await talk.idle()
        assert len(talk.writer.requests) <= (1 if was_written else 2)
        assert talk.capture.warnings == ()
        return was_running

    async def everywhere() -> int:
        step = 0
        while await closed_after(step):
            step += 1
        return step

    assert asyncio.run(everywhere()) >= 4


def test_a_call_that_is_cancelled_leaves_what_it_started_to_the_client() -> None:
    async def main() -> None:
        writer = Gated()
        talk = Conversed(writer, conversation_id="c")
        writer.is_open = False
        while size(talk.history) + 2 * size([Message.user(WORDS)]) < LIMIT * 0.6:
            await talk.ask()
        talk.provider.answers[:] = [f"noted {WORDS}"]
        stream = talk.client.get_streaming_response(
            [*talk.history, Message.user(f"fact0x{len(talk.answers)} {WORDS}")], conversation_id="c"
        )
        async for _ in stream:
            break
        assert talk.running() == 1
        await stream.aclose()
        writer.is_open = True
        await talk.idle()
        while not talk.has_summary:
            await talk.ask()
            await talk.idle()
        assert len(writer.requests) <= 2

    asyncio.run(main())


def test_a_loop_for_each_call_prepares_twice_in_vain_and_then_no_more() -> None:
    talk = Conversed(Gated(), conversation_id="c")
    assert isinstance(talk.writer, Gated)
    begun = 0
    while not talk.has_summary:
        talk.writer.is_open = size(talk.history) + size([Message.user(WORDS)]) >= LIMIT

        async def once() -> None:
            nonlocal begun
            await talk.ask()
            for _ in range(5):
                await asyncio.sleep(0)
            begun += talk.running()

        asyncio.run(once())
        assert talk.running() == 0
    assert 1 <= begun <= 2
    assert talk.outcomes == {"cancelled": begun}
    assert len(talk.writer.requests) == 1
    gc.collect()


def test_a_client_for_each_call_does_not_begin_one_with_every_call() -> None:
    async def main() -> None:
        writer = Gated()
        talk = Conversed(writer, conversation_id="c", max_tokens=4_000, prepare_at=0.2)
        begun = 0
        for _ in range(12):
            writer.is_open = False
            async with talk.stack.open(talk.capture.resolve) as client:
                talk.client = client
                await talk.ask()
                await asyncio.sleep(0)
                begun += talk.running()
        assert begun == 2
        assert talk.outcomes == {"cancelled": 2}

    asyncio.run(main())


def test_stacked_by_hand_closing_the_summarizer_ends_it_too() -> None:
    async def main() -> None:
        writer, provider = Gated(), ScriptedClient([f"noted {WORDS}"])
        summarizer = Summarizer(provider, max_tokens=LIMIT, prepare_at=0.5, summary_client=writer, keep_recent_turns=1)
        client = ToolResultClearer(summarizer, trigger={"tokens": 10**6}, keep={"messages": 3})
        writer.is_open = False
        history = exchanges(4)
        await client.get_response([*history, Message.user("and?")])
        await until(lambda: writer.waiting == 1)
        await summarizer.aclose()
        assert writer.waiting == 0

    asyncio.run(main())


# What goes wrong


def test_what_fails_beside_the_calls_is_said_once_rests_and_truncation_takes_over() -> None:
    async def main() -> Conversed:
        writer = Remembering(ServerError("down"), ServerError("down"))
        talk = Conversed(writer, window=True, max_tool_calls_per_turn=None)
        for _ in range(8):
            await talk.ask()
            for _ in range(200):
                await asyncio.sleep(0)
        return talk

    talk = asyncio.run(main())
    assert len(talk.writer.requests) == 1
    assert talk.outcomes == {"failed": 1}
    assert talk.capture.warnings == ("summarizer_failed",)
    assert not talk.has_summary
    assert size(talk.sent) <= LIMIT
    (span,) = [each for each in talk.capture.spans_named(FOLD) if each.attributes.get("chatstack.compaction.ahead")]
    assert span.status == "error"


def test_after_its_rest_it_is_tried_again() -> None:
    async def main() -> Conversed:
        talk = Conversed(Remembering(ServerError("down")))
        await talk.until_it_prepares()
        await talk.idle()
        talk.now += 60
        while not talk.has_summary:
            await talk.ask()
            await talk.idle()
        return talk

    talk = asyncio.run(main())
    assert len(talk.writer.requests) == 2
    assert talk.outcomes == {"failed": 1, "written": 1, "used": 1}


def test_what_was_forgotten_meanwhile_is_not_kept_anywhere() -> None:
    async def main() -> None:
        store = DictStore()
        memory = ContextMemory(store=store, scope="tenant")
        writer = Gated()
        talk = Conversed(writer, memory=memory, conversation_id="c")
        writer.is_open = False
        await talk.until_it_prepares()
        await until(lambda: writer.waiting == 1)
        await memory.forget_stored(talk.history)
        writer.is_open = True
        await talk.idle()
        assert talk.outcomes == {"dropped": 1}
        assert not any(b"fact" in record for record in _values(store))
        while not talk.has_summary:
            await talk.ask()
            await talk.idle()

    asyncio.run(main())


def _values(store: object) -> list[bytes]:
    found: list[bytes] = []
    for held in vars(store).values():
        if isinstance(held, dict):
            found += [each for each in held.values() if isinstance(each, bytes)]
    return found


# Other ways of a history


@pytest.mark.parametrize("conversation_id", [None, "c-42"])
@pytest.mark.parametrize("back", [1, 2, 3])
def test_a_branch_that_goes_back_gets_what_its_own_messages_say(conversation_id: str | None, back: int) -> None:
    async def main() -> Conversed:
        talk = Conversed(Remembering(), conversation_id=conversation_id)
        await talk.until_it_prepares()
        await talk.idle()
        del talk.history[-2 * back :]
        gone = {f"fact0x{number}" for number in range(len(talk.answers) - back, len(talk.answers))}
        while not talk.has_summary:
            await talk.ask()
            await talk.idle()
        assert facts_told(talk.sent) == facts_told([each for each in talk.history if each.role == "user"])
        assert not facts_told(talk.sent) & gone
        return talk

    talk = asyncio.run(main())
    assert len(talk.writer.requests) <= 2
    calls = [each for each in talk.capture.spans if each.name == "chat script"]
    ours = {each.span_id for each in talk.capture.spans_named(FOLD)}
    told = sum(int(str(each.attributes["gen_ai.usage.input_tokens"])) for each in calls if each.parent_id in ours)
    assert told == spent(talk.writer)  # whatever becomes of the branch
    if conversation_id is not None or back == 1:
        assert talk.overhead.input_tokens == told


@pytest.mark.parametrize("conversation_id", [None, "c-42"])
def test_a_reminder_that_is_not_repeated_is_no_reason_to_prepare_it_again(conversation_id: str | None) -> None:
    async def main() -> Conversed:
        talk = Conversed(Remembering(), conversation_id=conversation_id, max_tokens=3_000)
        while not talk.has_summary:
            await talk.ask(Message.user(f"reminder {len(talk.answers)}"))
            await talk.idle()
        return talk

    talk = asyncio.run(main())
    assert len(talk.writer.requests) == 1
    assert talk.outcomes == {"written": 1, "used": 1}


@pytest.mark.parametrize("conversation_id", [None, "c-42"])
def test_another_reserve_for_each_answer_is_no_reason_to_prepare_it_again(conversation_id: str | None) -> None:
    """How far a history has come is kept by its limits and reserve, what was planned for it is not."""

    async def main() -> Conversed:
        talk = Conversed(Remembering(), conversation_id=conversation_id, max_tokens=3_000)
        while not talk.has_summary:
            await talk.ask(options=ChatOptions(max_tokens=100 + len(talk.answers)))
            await talk.idle()
        return talk

    talk = asyncio.run(main())
    assert len(talk.writer.requests) == 1
    assert talk.outcomes == {"written": 1, "used": 1}


def test_a_caller_who_rewrites_answers_does_not_pay_for_a_summary_with_every_call() -> None:
    async def main() -> Conversed:
        talk = Conversed(Remembering(), max_tokens=4_000, prepare_at=0.2)
        for number in range(14):
            await talk.ask()
            talk.history[-1] = Message.assistant(f"rewritten {number} {WORDS}")
            await talk.idle()
        return talk

    assert len(asyncio.run(main()).writer.requests) <= 2


def test_another_process_uses_what_was_prepared_for_a_conversation_with_an_id() -> None:
    async def main() -> None:
        store = DictStore()
        one, other = (
            Conversed(Remembering(), memory=ContextMemory(store=store, scope="tenant"), conversation_id="c")
            for _ in range(2)
        )
        await one.until_it_prepares()
        await one.idle()
        other.history, other.answers = one.history, one.answers
        while not other.has_summary:
            await other.ask()
            await other.idle()
        assert len(one.writer.requests) == 1
        assert other.writer.requests == []
        assert facts_told(other.sent) >= {f"fact0x{number}" for number in range(len(other.answers))}

    asyncio.run(main())


@pytest.mark.slow
def test_a_thousand_conversations_at_once_see_their_own_facts_and_pay_for_their_own() -> None:
    writer = Remembering(delay_seconds=0)
    memory = ContextMemory()
    one = Conversed(writer, memory=memory)

    async def talk(of: int) -> Conversed:
        mine = Conversed(writer, memory=memory, of=of, conversation_id=str(of) if of % 2 else None)
        mine.client, mine.provider = one.client, one.provider
        for _ in range(9):
            await mine.ask()
        return mine

    async def all_of_them() -> list[Conversed]:
        done = await asyncio.gather(*map(talk, range(1_000)))
        await until(lambda: one.running() == 0)
        await one.client.aclose()
        return done

    done = asyncio.run(all_of_them())
    told: dict[str, set[str]] = collections.defaultdict(set)
    for request in one.provider.requests:
        facts = facts_told(request.messages)
        of = {fact.split("x")[0] for fact in facts}
        assert len(of) == 1
        told[of.pop()] |= facts
    assert len(told) == 1_000
    paid = sum(each.overhead.input_tokens for each in done)
    assert 0 < paid <= spent(writer)
    assert one.capture.warnings == ()


# What it says


def test_its_spans_belong_to_the_turn_that_started_it() -> None:
    async def main() -> None:
        talk = Conversed(Remembering(), conversation_id="c-42")
        with complaints() as heard:
            while not talk.has_summary:
                await talk.ask()
                await talk.idle()
            await talk.client.aclose()
        assert heard == []
        (ahead,) = [each for each in talk.capture.spans if each.attributes.get("chatstack.compaction.ahead")]
        turns = {each.span_id: each for each in talk.capture.spans if each.name == "invoke_agent chat"}
        assert ahead.parent_id in turns
        assert ahead.attributes["gen_ai.conversation.id"] == "c-42"
        (call,) = [each for each in talk.capture.spans if each.parent_id == ahead.span_id]
        assert call.attributes["gen_ai.conversation.id"] == "c-42"
        (edit,) = [each for each in talk.capture.spans if "chatstack.compaction.reason" in each.attributes]
        assert str(edit.attributes["chatstack.compaction.reason"]).endswith("; a summary was prepared")
        assert edit.parent_id in turns
        assert edit.parent_id != ahead.parent_id

    asyncio.run(main())


def test_an_error_of_ours_beside_the_calls_fails_no_call_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    class Breaks(CharCounter):
        def count_message(self, message: Message) -> int:
            if message.mark == "summary":
                raise ZeroDivisionError
            return super().count_message(message)

    async def main() -> None:
        talk = Conversed(Remembering(), counter=Breaks())
        await talk.until_it_prepares()
        await talk.idle()
        assert talk.outcomes == {"failed": 1}
        assert talk.capture.warnings == ("summarizer_failed",)

    asyncio.run(main())
    assert not any(record.name == "asyncio" for record in caplog.records)


def test_messages_of_the_caller_stay_as_they_were() -> None:
    async def main() -> None:
        talk = Conversed(Remembering())
        for _ in range(12):
            came: Sequence[Message] = tuple(talk.history)
            await talk.ask()
            await talk.idle()
            assert [*map(id, talk.history[: len(came)])] == [*map(id, came)]

    asyncio.run(main())
