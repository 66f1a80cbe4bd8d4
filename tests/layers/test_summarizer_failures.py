"""Summaries that go wrong: the history stays as it was, somebody else makes it fit, and it is tried again later."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chatstack import (
    ChatClient,
    ChatRequest,
    ChatResponse,
    ChatStack,
    ContextMemory,
    ContextWindow,
    ContextWindowGuard,
    FunctionInvoker,
    Message,
    ProviderInfo,
    ServerError,
    Summarizer,
    ToolCall,
    Usage,
)
from chatstack.client.stream import ChatStream
from chatstack.context.edits.summaries import OPENING
from chatstack.errors import (
    AuthenticationError,
    BrokenStreamError,
    ContextOverflowError,
    ProviderConnectionError,
    ProviderTimeoutError,
    RateLimitError,
    RequestRefusedError,
)
from chatstack.testing import Answer, CapturedSpan, ScriptedClient, TelemetryCapture
from chatstack.values.responses import ChatUpdate
from tests.context.strictness import size

FOLD = "compact_context summarize"
SECRET = "heliotrope"
WORDS = f"{SECRET} " * 45
LIMIT = 1_500
_FACT = re.compile(r"\bfact\d+x\d+\b")


def facts_in(text: str) -> set[str]:
    return set(_FACT.findall(text))


def exchanges(count: int, *, start: int = 0, of: int = 0) -> list[Message]:
    """Questions and answers of about 260 tokens together; each message holds a fact of its own."""
    numbers = range(2 * start, 2 * (start + count), 2)
    return [
        message
        for number in numbers
        for message in (
            Message.user(f"fact{of}x{number} {WORDS}"),
            Message.assistant(f"fact{of}x{number + 1} {WORDS}"),
        )
    ]


def conversation(count: int = 8, *, of: int = 0) -> list[Message]:
    return [*exchanges(count, of=of), Message.user("and now?")]


def facts_told(messages: Sequence[Message]) -> set[str]:
    return set[str]().union(*(facts_in(message.text) for message in messages))


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for it, in steps of the loop; after many, which nothing but a thread can need, with pauses."""
    for step in range(30_000):
        if is_so():
            return
        await asyncio.sleep(0 if step < 1_000 else 0.01)
    raise AssertionError("it never came to that")


class Remembering(ScriptedClient):
    """Writes down every fact that it is told, after it has played what it was given."""

    def __init__(self, *first: Answer, **options: Any) -> None:
        super().__init__([*first, ""], **options)

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.answers[-1] = " ".join(sorted(facts_in(request.messages[0].text))) or "nothing"
        return await super().send(request)


class Summarized:
    """A summarizer, or a window, around a script, and all that it said."""

    def __init__(
        self,
        writer: ChatClient | None,
        *,
        provider: ScriptedClient | None = None,
        memory: ContextMemory | None = None,
        window: bool = False,
        guard: int | None = None,
        tools: Sequence[Any] = (),
        **options: Any,
    ) -> None:
        self.provider = provider or ScriptedClient(["ok"])
        self.capture = TelemetryCapture()
        self.now = 1_000.0
        stack = ChatStack(self.provider, memory=memory or ContextMemory(clock=lambda: self.now))
        if tools:
            stack = stack.use(FunctionInvoker, tools=tools, max_tool_calls_per_turn=100)
        options = {"max_tokens": LIMIT, "summary_client": writer, **options}
        stack = stack.use(ContextWindow, **options) if window else stack.use(Summarizer, **options)
        if guard is not None:
            stack = stack.use(ContextWindowGuard, max_context_tokens=guard, prune_on_overflow=True)
        self.client = stack.build(self.capture.resolve)

    def send(self, messages: Sequence[Message], **options: Any) -> ChatResponse:
        answer: ChatResponse = asyncio.run(self.client.get_response(messages, **options))
        return answer

    @property
    def sent(self) -> tuple[Message, ...]:
        return self.provider.requests[-1].messages

    @property
    def summaries(self) -> list[Message]:
        return [message for message in self.sent if message.mark == "summary"]

    @property
    def spans(self) -> tuple[CapturedSpan, ...]:
        return self.capture.spans_named(FOLD)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.capture.warnings


class Raises:
    """A client of somebody's own that knows no error of ours."""

    async def send(self, request: ChatRequest, /) -> ChatStream:
        raise RuntimeError(f"{SECRET}: the socket is gone")


class Gives:
    """A client that gives something else than a stream."""

    def __init__(self, given: Callable[[], object]) -> None:
        self.given = given

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return cast("ChatStream", self.given())


class Stuck:
    """What a stream reads from that gives nothing, and tells when it is closed."""

    is_closed = False

    async def __anext__(self) -> ChatUpdate:
        await asyncio.sleep(3_600)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.is_closed = True


class HardToClose:
    """What a stream reads from that fails, and cannot be closed: not at all, or not in time."""

    def __init__(self, *, hangs: bool) -> None:
        self.hangs = hangs

    async def __anext__(self) -> ChatUpdate:
        raise ServerError(SECRET)

    async def aclose(self) -> None:
        if self.hangs:
            await asyncio.sleep(3_600)
        raise RuntimeError(SECRET)


class Answers:
    """What looks like a stream, and has something else for its answer."""

    sent: ChatRequest | None = None
    so_far: object = None

    async def response(self) -> object:
        return SECRET

    async def aclose(self) -> None:
        return None


def script(*answers: Answer) -> Callable[[], ChatClient]:
    return lambda: ScriptedClient(answers)


FAILURES: dict[str, tuple[Callable[[], ChatClient], str]] = {
    "no key": (script(AuthenticationError(SECRET)), "AuthenticationError"),
    "too many requests": (script(RateLimitError(SECRET, retry_after_seconds=3)), "RateLimitError"),
    "always too long": (script(ContextOverflowError(9, 8, message=SECRET)), "overflow"),
    "rejected": (script(RequestRefusedError(SECRET)), "RequestRefusedError"),
    "no answer in the SDK's time": (script(ProviderTimeoutError(SECRET)), "ProviderTimeoutError"),
    "no connection": (script(ProviderConnectionError(SECRET)), "ProviderConnectionError"),
    "server down": (script(ServerError(SECRET)), "ServerError"),
    "stream breaks at once": (script(BrokenStreamError(SECRET)), "BrokenStreamError"),
    "stream breaks midway": (script([SECRET, "half", BrokenStreamError(SECRET)]), "BrokenStreamError"),
    "a foreign error": (Raises, "RuntimeError"),
    "a foreign error midway": (script([SECRET, OSError(SECRET)]), "OSError"),
    "empty": (script(""), "empty"),
    "only white space": (script(" \n\t \u2003\n"), "empty"),
    "only thinking": (script("<think>The user wants\n</think>\n"), "empty"),
    "only thinking without an end": (script("<think>The user wants"), "empty"),
    "only the opening line": (script(f"{OPENING}\n"), "empty"),
    "cut off": (script([SECRET, "length"]), "truncated"),
    "refused": (script([SECRET, "refused"]), "refused"),
    "paused": (script([SECRET, "paused"]), "paused"),
    "a tool call": (script(Message.assistant(SECRET, ToolCall("c", SECRET, "{}"))), "tool_call"),
    "larger than the history": (script(f"{SECRET} " * 5_000), "not_smaller"),
    "no part at all": (script(Message("assistant", ())), "empty"),
    "nothing": (lambda: Gives(lambda: None), "TypeError"),
    "a text": (lambda: Gives(lambda: SECRET), "TypeError"),
    "a thing": (lambda: Gives(SimpleNamespace), "TypeError"),
    "an answer that is none": (lambda: Gives(Answers), "TypeError"),
    "fails, and cannot be closed": (lambda: Gives(lambda: ChatStream(HardToClose(hangs=False))), "ServerError"),
}
each_failure = pytest.mark.parametrize(("writer", "kind"), FAILURES.values(), ids=FAILURES)


@each_failure
def test_whatever_goes_wrong_the_history_goes_out_as_it_came(writer: Callable[[], ChatClient], kind: str) -> None:
    summarized, history = Summarized(writer()), conversation()
    assert summarized.send(history).text == "ok"
    assert [*map(id, summarized.sent)] == [*map(id, history)]


@each_failure
def test_a_failure_is_one_warning_with_its_numbers_and_no_text_of_anybody(
    writer: Callable[[], ChatClient], kind: str
) -> None:
    summarized, history = Summarized(writer()), conversation()
    summarized.send(history)
    assert summarized.warnings == ("summarizer_failed",)
    span = summarized.capture.span(FOLD)
    assert (span.status, span.attributes["error.type"]) == ("error", kind)
    about = {name.removeprefix("chatstack."): value for name, value in span.attributes.items()}
    assert about["severity"] == "WARN"
    assert about["warning.code"] == "summarizer_failed"
    assert about["compaction.strategy"] == "summarize"
    assert about["compaction.messages_before"] == len(history)
    assert about["compaction.tokens_before"] == size(history)
    assert "compaction.tokens_after" not in about
    assert summarized.capture.open_spans == ()
    assert SECRET not in summarized.capture.said()


@pytest.mark.sampled(4)
@each_failure
def test_a_window_truncates_instead_and_keeps_its_limits(writer: Callable[[], ChatClient], kind: str) -> None:
    summarized, history = Summarized(writer(), window=True), conversation()
    for _ in range(4):
        summarized.send(history)
        assert size(summarized.sent) <= LIMIT
        assert (summarized.sent[0], summarized.sent[-1]) == (history[0], history[-1])
        assert summarized.summaries == []
        history += [Message.assistant("ok"), Message.user(f"more {WORDS}")]
    assert summarized.warnings == ("summarizer_failed",)
    assert summarized.capture.spans_named("compact_context truncate")


@pytest.mark.sampled(4)
@each_failure
def test_a_guard_behind_it_prunes_instead(writer: Callable[[], ChatClient], kind: str) -> None:
    summarized, history = Summarized(writer(), guard=LIMIT), conversation()
    summarized.send(history)
    assert size(summarized.sent) <= LIMIT
    assert (summarized.sent[0], summarized.sent[-1]) == (history[0], history[-1])
    assert summarized.warnings.count("summarizer_failed") == 1


@pytest.mark.parametrize("source", [HardToClose(hangs=True), None], ids=["closing hangs", "answering hangs"])
def test_a_client_that_hangs_is_left_after_its_time(source: HardToClose | None) -> None:
    writer = Gives(lambda: ChatStream(source)) if source else ScriptedClient(["late"], delay_seconds=3_600)
    summarized, history = Summarized(writer, summary_timeout_seconds=0.02), conversation()

    async def bounded() -> ChatResponse:
        async with asyncio.timeout(300):
            return await summarized.client.get_response(history)

    assert asyncio.run(bounded()).text == "ok"
    assert [*map(id, summarized.sent)] == [*map(id, history)]
    assert summarized.warnings == ("summarizer_failed",)
    if source is None:
        assert summarized.capture.span(FOLD).attributes["error.type"] == "timeout"
    assert summarized.capture.open_spans == ()


def test_the_stream_of_a_summary_that_is_given_up_is_closed() -> None:
    source = Stuck()
    summarized = Summarized(Gives(lambda: ChatStream(source)), summary_timeout_seconds=0.02)
    summarized.send(conversation())
    assert source.is_closed
    assert summarized.capture.span(FOLD).attributes["error.type"] == "timeout"


def test_a_client_that_cancels_itself_has_failed_and_nobody_else_is_cancelled() -> None:
    summarized, history = Summarized(ScriptedClient([asyncio.CancelledError()])), conversation()

    async def ask() -> str:
        try:
            return (await summarized.client.get_response(history)).text
        except asyncio.CancelledError:
            return "cancelled, though nobody had asked for it"

    assert asyncio.run(ask()) == "ok"
    assert summarized.warnings == ("summarizer_failed",)


# What it cost


@pytest.mark.parametrize("kind", ["empty", "cut off", "refused", "paused", "a tool call", "larger than the history"])
def test_what_a_failed_summary_cost_is_in_the_same_answer_once(kind: str) -> None:
    writer = FAILURES[kind][0]()
    assert isinstance(writer, ScriptedClient)
    summarized, history = Summarized(writer), conversation()
    answer = summarized.send(history)
    request = writer.requests[0]
    assert answer.overhead_usage.input_tokens == size(request.messages) + writer.counter.count_options(request.options)
    assert answer.usage.input_tokens == size(history)
    assert summarized.send([*history, *answer.messages, Message.user("more")]).overhead_usage == Usage()


def test_what_a_summary_cost_is_told_with_the_next_answer_if_the_model_failed() -> None:
    writer = Remembering()
    summarized = Summarized(writer, provider=ScriptedClient([ServerError("down"), "ok"]))
    history = conversation()
    with pytest.raises(ServerError):
        summarized.send(history)
    answer = summarized.send(history)
    assert len(writer.requests) == 1
    assert answer.overhead_usage.input_tokens > 1_000
    assert summarized.send(history).overhead_usage == Usage()


def test_what_the_pieces_cost_that_were_written_before_a_cancellation_is_told_later() -> None:
    writer = Remembering(info=ProviderInfo(name="small", window_tokens=2_000), delay_seconds=0)
    summarized, history = Summarized(writer), conversation(12)

    async def cancelled_in_the_third_piece() -> ChatResponse:
        asking = asyncio.ensure_future(summarized.client.get_response(history))
        await until(lambda: len(writer.requests) == 3)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        return await summarized.client.get_response(history)

    answer = asyncio.run(cancelled_in_the_third_piece())
    asked = [size(request.messages) + writer.counter.count_options(request.options) for request in writer.requests]
    assert len(asked) > 4
    assert answer.overhead_usage.input_tokens == sum(asked) - asked[2]


# Trying again


def attempts_by_the_second(summarized: Summarized, writer: ScriptedClient, seconds: int, step: int = 5) -> list[int]:
    """When it was tried to summarize one history, in seconds since the first time, asked for every few seconds."""
    history, found = conversation(), list[int]()
    began = summarized.now
    while summarized.now - began <= seconds:
        before = len(writer.requests)
        summarized.send(history)
        found += [int(summarized.now - began)] * (len(writer.requests) > before)
        summarized.now += step
    return found


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["", ServerError("down")], ids=["no summary", "no answer"])
def test_it_is_tried_again_ever_more_rarely_down_to_once_in_ten_minutes(answer: Answer) -> None:
    writer = ScriptedClient([answer])
    tried = attempts_by_the_second(Summarized(writer), writer, 3_000)
    assert tried == [0, 15, 45, 105, 225, 465, 945, 1_545, 2_145, 2_745]


def test_each_attempt_warns_and_resting_is_said_once() -> None:
    writer = ScriptedClient([""])
    summarized = Summarized(writer)
    tried = attempts_by_the_second(summarized, writer, 300)
    assert summarized.warnings == ("summarizer_failed",) * len(tried)
    assert {str(span.attributes["error.type"]) for span in summarized.spans} == {"empty"}


def test_after_a_success_the_first_rest_is_short_again() -> None:
    writer = ScriptedClient(["", "", "", "a summary", ""])
    summarized, history = Summarized(writer), conversation()
    for _ in range(60):
        summarized.send(history)
        summarized.now += 5
    assert len(writer.requests) == 4
    history += [*exchanges(6, start=9), Message.user("and?")]
    summarized.send(history)
    summarized.now += 14
    summarized.send(history)
    assert len(writer.requests) == 5
    summarized.now += 2
    summarized.send(history)
    assert len(writer.requests) == 6


@pytest.mark.parametrize("answer", ["", ServerError("down")], ids=["no summary", "no answer"])
@pytest.mark.parametrize("conversation_id", [None, "c-1"])
def test_it_rests_also_where_each_request_ends_with_a_reminder_that_is_not_kept(
    answer: Answer, conversation_id: str | None
) -> None:
    writer = ScriptedClient([answer])
    summarized, history = Summarized(writer), conversation()
    for number in range(10):
        summarized.send([*history, Message.user(f"reminder {number}")], conversation_id=conversation_id)
        history += [Message.assistant("ok"), Message.user(f"more {number}")]
    assert len(writer.requests) == 1


def test_when_it_works_again_what_was_truncated_meanwhile_is_in_the_summary() -> None:
    writer = Remembering("", "")
    summarized, history = Summarized(writer, window=True), conversation()
    for number in range(10, 18):
        summarized.send(history)
        assert size(summarized.sent) <= LIMIT
        assert summarized.summaries == []
        history += [*exchanges(1, start=number), Message.user("and?")]
        summarized.now += 3
    summarized.now += 100
    summarized.send(history)
    assert len(summarized.summaries) == 1
    assert facts_told(summarized.sent) == facts_told(history)
    assert size(summarized.sent) <= LIMIT


@pytest.mark.slow
def test_a_dead_client_is_left_alone_by_a_thousand_conversations() -> None:
    writer = ScriptedClient([ServerError("down")])
    summarized = Summarized(writer)

    async def all_of_them() -> None:
        for number in range(1_000):
            await summarized.client.get_response(conversation(of=number))
            summarized.now += 0.05

    asyncio.run(all_of_them())
    assert 2 <= len(writer.requests) <= 5
    assert len(summarized.provider.requests) == 1_000


def test_a_client_that_answers_badly_rests_for_that_conversation_only() -> None:
    writer = Remembering("", "")
    summarized = Summarized(writer)
    for number in (0, 1, 2):
        summarized.send(conversation(of=number))
    assert len(writer.requests) == 3
    assert facts_told(summarized.sent) == facts_told(conversation(of=2))
    for number in (0, 1):
        summarized.send(conversation(of=number))
    assert len(writer.requests) == 3
