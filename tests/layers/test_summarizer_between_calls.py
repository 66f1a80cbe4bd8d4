"""What a summarizer remembers from one call to the next: what was written, what went wrong, what is owed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from chatstack import (
    BrokenStreamError,
    ChatRequest,
    ChatResponse,
    ChatStack,
    ChatStream,
    ContextMemory,
    ContextOverflowError,
    ContextWindow,
    Message,
    ServerError,
    Summarizer,
    SummaryAttempts,
    Telemetry,
    ToolCall,
    TurnTimeoutError,
    Usage,
    WiringError,
)
from chatstack.stack.recipe import BuiltClient
from chatstack.testing import ScriptedClient, TelemetryCapture
from chatstack.testing.scripted import Answer
from tests.context.test_outages import Clock
from tests.context.test_sharing import DictStore

WORDS = "word " * 60


class Talk:
    """A stack with a summarizer or a window, and all that can be seen of it."""

    def __init__(self, writer: object, answers: Sequence[Answer] = ("ok",), *, windowed: bool = False) -> None:
        self.clock, self.capture = Clock(), TelemetryCapture()
        self.attempts = SummaryAttempts()
        self.model = ScriptedClient(answers)
        stack = ChatStack(self.model, memory=ContextMemory(clock=self.clock))
        options: dict[str, Any] = {"max_tokens": 1_000, "keep_recent_turns": 3, "summary_client": writer}
        stack = stack.use(ContextWindow, **options) if windowed else stack.use(Summarizer, **options)
        services = {Telemetry: self.capture.telemetry, SummaryAttempts: self.attempts}
        self.client: BuiltClient = stack.build(services.__getitem__)

    def ask(self, history: Sequence[Message], **options: Any) -> ChatResponse:
        answer: ChatResponse = asyncio.run(self.client.get_response(list(history), **options))
        return answer

    def marks(self) -> list[str]:
        return [message.mark for message in self.model.requests[-1].messages if message.mark]


def turns(count: int, start: int = 0) -> list[Message]:
    found: list[Message] = []
    for number in range(start, start + count):
        found += [Message.user(f"FACT{number} {WORDS}"), Message.assistant(f"answer {number} {WORDS}")]
    return found


def asked(number: int = 99) -> Message:
    return Message.user(f"and {number}?")


class Telling:
    """Writes the facts that it is told; the first one takes longer, so that both are under way at once."""

    def __init__(self) -> None:
        self.requests: list[ChatRequest] = []

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.requests.append(request)
        await asyncio.sleep(0.01 if len(self.requests) == 1 else 0.05)
        facts = sorted({word for word in request.messages[0].text.split() if word.startswith("FACT")})
        return await ScriptedClient([" ".join(facts)]).send(request)


@pytest.mark.parametrize("first", ["short", "long"])
def test_a_branch_never_gets_a_summary_of_what_it_does_not_have(first: str) -> None:
    writer = Telling()
    talk, history = Talk(writer), turns(12)
    forks = {"short": [*history, Message.user(WORDS)], "long": [*history, Message.user(WORDS * 8)]}

    async def both() -> None:
        order = sorted(forks, key=lambda name: name != first)
        await asyncio.gather(*(talk.client.get_response(forks[name]) for name in order))

    asyncio.run(both())
    third = [*turns(10), *turns(3, start=50), asked()]
    talk.ask(third)
    sent = " ".join(message.text for message in talk.model.requests[-1].messages)
    assert {f"FACT{number}" for number in (10, 11)}.isdisjoint(sent.split())
    assert {f"FACT{number}" for number in (*range(10), 50, 51, 52)} <= set(sent.split())


def test_a_client_that_hangs_longer_than_turns_may_take_ends_two_of_them_and_not_all() -> None:
    talk = Talk(ScriptedClient(["late"], delay_seconds=3_600), windowed=True)
    history = [*turns(9), asked()]
    for _ in range(2):
        with pytest.raises(TurnTimeoutError):
            talk.ask(history, timeout_seconds=0.05)
    assert talk.ask(history, timeout_seconds=5).text == "ok"
    assert len(talk.model.requests[-1].messages) < len(history)
    assert talk.capture.warnings == ("summarizer_failed",)


def test_what_could_not_be_folded_is_folded_as_soon_as_it_can_be() -> None:
    """A long document is the latest word at first; it is no part of what is dropped when the next turn comes."""
    talk = Talk(ScriptedClient(["the document says FACT77"]), windowed=True)
    history = [Message.user("task"), Message.assistant("yes?"), Message.user(f"FACT77 {WORDS * 20}")]
    talk.ask(history)
    assert talk.marks() == []
    talk.ask([*history, Message.assistant("read"), asked()])
    assert talk.marks() == ["summary"]
    assert "FACT77" in " ".join(message.text for message in talk.model.requests[-1].messages)


def test_what_was_paid_is_told_by_the_error_where_the_answer_breaks_off_and_not_again() -> None:
    talk = Talk(ScriptedClient(["short"]), [["half ", BrokenStreamError("cut")], "whole"])
    history = [*turns(9), asked()]
    with pytest.raises(BrokenStreamError) as broken:
        talk.ask(history)
    assert broken.value.overhead_usage is not None
    assert broken.value.overhead_usage.input_tokens > 0
    assert talk.ask(history).overhead_usage == Usage()


def test_what_was_paid_is_told_with_the_next_answer_where_nobody_read_the_first() -> None:
    talk, history = Talk(ScriptedClient(["short"])), [*turns(9), asked()]

    async def closed_unread() -> None:
        async with talk.client.get_streaming_response(history):
            pass

    asyncio.run(closed_unread())
    assert talk.ask(history).overhead_usage.input_tokens > 0


def test_a_request_without_a_conversation_is_sent_whatever_rests() -> None:
    talk = Talk(ScriptedClient([ServerError("no")]))
    talk.ask([*turns(9), asked()])
    assert talk.ask([Message.system(WORDS * 30)]).text == "ok"


def test_a_conversation_with_nothing_to_fold_is_not_warned_of_the_failure_of_another() -> None:
    talk = Talk(ScriptedClient([ServerError("no")]))
    talk.ask([*turns(9), asked()])
    talk.ask([Message.user(WORDS * 30)])
    assert talk.capture.warnings.count("summarizer_failed") == 1


def test_each_outage_is_told_again_after_a_summary_has_worked() -> None:
    talk = Talk(ScriptedClient([""]))
    history = [*turns(9), asked()]
    talk.ask(history)
    talk.ask(history)
    assert talk.capture.warnings.count("summarizer_failed") == 1


def test_an_id_narrows_and_does_not_replace_the_content() -> None:
    writer = ScriptedClient(["", "short"])
    talk = Talk(writer)
    talk.ask([*turns(9), asked()], conversation_id="web")
    talk.ask([*turns(9, start=100), asked()], conversation_id="web")
    assert len(writer.requests) == 2
    assert talk.marks() == ["summary"]


class Small:
    """Refuses what is longer than it takes, and says how much that is."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.refused = 0
        self.inner = ScriptedClient(["short"])

    async def send(self, request: ChatRequest, /) -> ChatStream:
        count = self.inner.counter.count_message
        tokens = sum(map(count, request.messages)) + self.inner.counter.count_options(request.options)
        if tokens > self.limit:
            self.refused += 1
            raise ContextOverflowError(tokens, self.limit)
        return await self.inner.send(request)


def test_a_limit_that_a_refusal_told_is_known_from_then_on() -> None:
    writer = Small(2_000)
    talk = Talk(writer)
    history = turns(20)
    talk.ask([*history, asked()])
    refused = writer.refused
    assert refused > 0
    history += turns(20, start=20)
    talk.ask([*history, asked()])
    assert talk.marks() == ["summary"]
    assert writer.refused == refused


def test_a_summary_as_large_as_the_limit_is_no_option() -> None:
    with pytest.raises(WiringError, match="max_summary_tokens=1000 must be less than max_tokens=1000"):
        Summarizer(ScriptedClient(), max_tokens=1_000, max_summary_tokens=1_000)


def test_the_repr_of_a_stack_holds_the_prompt_only_if_it_is_not_ours() -> None:
    stack = ChatStack(ScriptedClient(), trace_model_calls=False).use(ContextWindow, max_tokens=10)
    assert repr(stack.build()).splitlines()[0] == "WindowKeeper(strategy=ContextWindow(max_tokens=10))"
    mine = stack.override("ContextWindow", summary_prompt="Sum it up.").build()
    assert "summary_prompt='Sum it up.'" in repr(mine)


def test_a_conversation_that_goes_back_within_a_turn_still_shows_the_newest_result() -> None:
    """The summary of a later call covers that result: sent now, it would stand where the model's answer is wanted."""
    talk = Talk(ScriptedClient(["In short."]))
    history = [Message.user("Look into it.")]
    for number, words in enumerate([400, 400, 10, 120, 400, 400, 120, 400]):
        call = ToolCall(f"c{number}", "look", "{}")
        history += [Message.assistant(call), Message.tool(call.id, "grey " * words, name="look")]
    ends = range(3, len(history) + 1, 2)
    for end in [*ends, *ends]:
        talk.ask(history[:end], conversation_id="c-1")
    assert [request.messages[-1].role for request in talk.model.requests] == ["tool"] * 2 * len(ends)


def test_a_conversation_that_asks_its_last_question_anew_is_sent_with_the_new_one_at_its_end() -> None:
    """The summary of the question before stands behind that; of the new one it would look like the answer."""
    talk = Talk(ScriptedClient(["In short."]))

    def rounds(start: int, words: Sequence[int]) -> list[Message]:
        found: list[Message] = []
        for number, many in enumerate(words, start):
            call = ToolCall(f"c{number}", "look", "{}")
            found += [Message.assistant(call), Message.tool(call.id, "grey " * many, name="look")]
        return found

    first = [Message.user("Look into it."), *rounds(0, [600, 700]), Message.assistant("Done.")]
    second = [*first, Message.user("And more."), *rounds(9, [700, 700])]
    for end in (3, 5, 7, 9, 11):
        talk.ask(second[:end], conversation_id="c-1")
    talk.ask([*first, Message.user("Something else.")], conversation_id="c-1")
    assert talk.model.requests[-1].messages[-1] == Message.user("Something else.")


def test_a_cut_whose_summary_stands_behind_the_latest_user_message_is_shared_like_any_other() -> None:
    """All before that message is folded, so that the summary's place lies beyond what was dropped."""
    history = [Message.user("Look at Oslo.")]
    for number, words in enumerate([80, 100, 20]):
        call = ToolCall(f"c{number}", "look", f'{{"at": {number}}}')
        history += [Message.assistant(call), Message.tool(call.id, "grey and blue " * words, name="look")]
        if not number:
            history += [Message.assistant("I was there. " + "nice " * 25), Message.user("Look at Rome, too.")]
    capture, store, writer = TelemetryCapture(), DictStore(), ScriptedClient(["In short."])

    def process() -> BuiltClient:
        memory = ContextMemory(store=store, scope="tenant", store_timeout_seconds=60)
        stack = ChatStack(ScriptedClient(["ok"]), memory=memory)
        stack = stack.use(Summarizer, max_tokens=500, keep_recent_turns=1, summary_client=writer)
        return stack.build(capture.resolve)

    first = process()
    for end in (1, 3, 5, 7, 9):
        asyncio.run(first.get_response(history[:end], conversation_id="c-1"))
    written = len(writer.requests)
    asyncio.run(process().get_response(history, conversation_id="c-1"))
    assert "store_unavailable" not in capture.warnings
    assert len(writer.requests) == written > 0
