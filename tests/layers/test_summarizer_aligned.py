"""Summaries behind the cached prefix: what is sent, who may share one, and when the transcript is sent after all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chatstack import (
    ChatOptions,
    ChatRequest,
    ChatStack,
    ContextMemory,
    ContextWindow,
    Message,
    OutputSchema,
    ProviderInfo,
    Summarizer,
    ToolCall,
    WiringError,
)
from chatstack.client.stream import ChatStream
from chatstack.errors import ContextOverflowError, RequestRefusedError
from chatstack.testing import ScriptedClient, TelemetryCapture
from tests.context.strictness import size
from tests.layers.test_summarizer_failures import LIMIT, WORDS, exchanges, facts_in, facts_told, until

ASKED = "This message is no part of the conversation."


class Model(ScriptedClient):
    """Answers, and writes down the facts of the conversation where it is asked for a summary."""

    def __init__(self, *, window: int | None = None, instead: Any = None) -> None:
        info = ProviderInfo(name="scripted", model="script", window_tokens=window)
        super().__init__(["ok"], info=info)
        self.instead = instead
        self.aligned: list[ChatRequest] = []
        self.framed: list[ChatRequest] = []
        self.asked: list[ChatRequest] = []
        self.before: list[tuple[tuple[Message, ...], tuple[Message, ...]]] = []
        """The beginning of each request for a summary, and the last request sent before it."""

    async def send(self, request: ChatRequest, /) -> ChatStream:
        is_aligned, is_framed = request.messages[-1].text.startswith(ASKED), "record" in request.options.instructions
        kept = self.aligned if is_aligned else self.framed if is_framed else self.asked
        kept.append(request)
        if is_aligned and self.asked:
            self.before.append((request.messages[:-1], self.asked[-1].messages))
        told = " ".join(sorted(set[str]().union(*(facts_in(each.text) for each in request.messages))))
        self.answers[-1] = (self.instead if is_aligned and self.instead else told) if kept is not self.asked else "ok"
        return await super().send(request)

    @property
    def sent(self) -> tuple[Message, ...]:
        return self.asked[-1].messages


def stack_of(model: Model, capture: TelemetryCapture | None = None, **options: Any) -> Any:
    given = {"max_tokens": LIMIT, "keep_recent_turns": 1, "cache_aligned": True, **options}
    stack = ChatStack(model, memory=ContextMemory()).use(Summarizer, **given)
    return stack.build((capture or TelemetryCapture()).resolve)


def grown(client: Any, turns: int = 8, *, options: ChatOptions | None = None, **given: Any) -> list[Message]:
    async def ask() -> list[Message]:
        history: list[Message] = []
        for number in range(turns):
            history.append(Message.user(f"fact0x{number} {WORDS}"))
            answer = await client.get_response(history, options=options, **given)
            history += [*answer.messages, Message.user("go on"), Message.assistant(WORDS)]
        await client.aclose()
        return history

    return asyncio.run(ask())


@pytest.mark.parametrize("prepare_at", [None, 0.6], ids=["when due", "ahead"])
def test_it_begins_with_the_last_request_sent_and_is_used(prepare_at: float | None) -> None:
    model = Model()
    client = stack_of(model, prepare_at=prepare_at)

    async def ask() -> None:
        history: list[Message] = []
        for number in range(24):
            history.append(Message.user(f"fact0x{number} {WORDS}"))
            answer = await client.get_response(history, conversation_id="c")
            history += answer.messages
            await until(lambda: len(client.layers[0].services.attempts.background) == 0)

    asyncio.run(ask())
    assert model.framed == []
    assert len(model.before) >= 2
    for begins, sent in model.before:
        assert begins[: len(sent)] == sent
        assert len(begins) - len(sent) <= (0 if prepare_at else 1)  # the answer, if that is summarized, too
    assert sum(message.mark == "summary" for message in model.sent) == 1
    assert facts_told(model.sent) >= {f"fact0x{number}" for number in range(24)}
    assert all(size(request.messages) <= LIMIT for request in model.asked)


def test_the_next_one_takes_in_the_one_before() -> None:
    model = Model()
    grown(stack_of(model), 20)
    assert len(model.aligned) >= 3
    assert facts_told(model.sent) >= {f"fact0x{number}" for number in range(20)}
    assert sum(message.mark == "summary" for message in model.aligned[-1].messages) == 1


def test_a_conversation_gets_no_summary_of_what_another_one_said_later() -> None:
    """Both begin alike, and fold the same messages; the writer of the one has seen a turn that the other lacks."""
    model = Model()
    client = stack_of(model)
    shared = exchanges(6)

    async def ask() -> None:
        for own in ("fact7x1", "fact8x1"):
            history = [*shared, Message.user(f"{own} {WORDS}"), Message.assistant("ok"), Message.user("and?")]
            await client.get_response(history)
            told = facts_told(model.sent)
            assert own in told
            assert len(told & {"fact7x1", "fact8x1"}) == 1

    asyncio.run(ask())
    assert len(model.aligned) <= 2


@pytest.mark.parametrize("place", ["system", "later system", "instructions"])
def test_a_conversation_gets_no_summary_that_was_written_in_sight_of_other_rules(place: str) -> None:
    """All say the same but for the rules; who comes with equal ones shares the summary."""
    model = Model()
    client = stack_of(model)
    written: list[int] = []

    async def ask(who: str, own: str) -> None:
        rules = [Message.system(f"Never tell {own}.")]
        history = [*exchanges(8), Message.user("and?")]
        history = [*rules, *history] if place == "system" else history
        history = [*history[:2], *rules, *history[2:]] if place == "later system" else history
        options = ChatOptions(instructions=rules[0].text) if place == "instructions" else None
        await client.get_response(history, conversation_id=who, options=options)
        summaries = tuple(message for message in model.sent if message.mark == "summary")
        assert len(summaries) == 1
        assert {"fact7x1", "fact8x1"} & facts_told(summaries) <= {own}
        written.append(len(model.aligned))

    async def all_of_them() -> None:
        for who, own in (("anna", "fact7x1"), ("bert", "fact8x1"), ("anne", "fact7x1")):
            await ask(who, own)

    asyncio.run(all_of_them())
    assert written == [1, 2, 2]


@pytest.mark.parametrize("conversation_id", [None, "c"])
def test_a_branch_that_goes_back_gets_no_summary_of_what_was_said_after(conversation_id: str | None) -> None:
    model = Model()
    client = stack_of(model)
    history = [*exchanges(6), Message.user(f"fact7x1 {WORDS}"), Message.assistant("ok"), Message.user("and?")]

    async def ask() -> None:
        await client.get_response(history, conversation_id=conversation_id)
        assert "fact7x1" in facts_told(model.sent)
        branch = [*history[:12], Message.user(f"fact8x1 {WORDS}"), Message.assistant("ok"), Message.user("and now?")]
        await client.get_response(branch, conversation_id=conversation_id)
        assert "fact7x1" not in facts_told(model.sent)

    asyncio.run(ask())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("conversation_id", [None, "c"])
@pytest.mark.parametrize("prepare_at", [None, 0.6], ids=["when due", "ahead"])
@pytest.mark.parametrize("back", [1, 2, 3])
def test_a_conversation_that_goes_back_has_nothing_of_what_it_left(
    conversation_id: str | None, prepare_at: float | None, back: int
) -> None:
    model = Model()
    client = stack_of(model, prepare_at=prepare_at)

    async def ask() -> None:
        history: list[Message] = []
        for number in range(40):
            history.append(Message.user(f"fact0x{number} {WORDS}"))
            answer = await client.get_response(history, conversation_id=conversation_id)
            history += answer.messages
            await until(lambda: len(client.layers[0].services.attempts.background) == 0)
            if number % 10 == 9:
                del history[-2 * back :]
            told = {each.text.split()[0] for each in history if each.role == "user"}
            assert number % 10 == 9 or facts_told(model.sent) == told
        await client.aclose()

    asyncio.run(ask())
    assert len(model.aligned) >= 3


INSTEAD: dict[str, Any] = {
    "a tool call": Message.assistant("", ToolCall("t", "look")),
    "too long": ContextOverflowError(9_999, 2_000),
    "refused": RequestRefusedError("no"),
}


@pytest.mark.parametrize("instead", INSTEAD.values(), ids=INSTEAD)
def test_what_does_not_work_out_falls_back_to_the_transcript(instead: Any) -> None:
    model, capture = Model(instead=instead), TelemetryCapture()
    grown(stack_of(model, capture), 12)
    assert len(model.aligned) == len(model.framed) >= 1
    assert model.framed[0].options.tools == ()
    assert any(message.mark == "summary" for message in model.sent)
    assert capture.warnings == ()


def test_what_does_not_fit_the_window_is_not_tried() -> None:
    model = Model(window=1_700)
    grown(stack_of(model, max_summary_tokens=100), 12)
    assert model.aligned == []
    assert len(model.framed) >= 2


def test_a_request_for_another_form_has_its_summary_from_the_transcript() -> None:
    model = Model()
    grown(stack_of(model), 12, options=ChatOptions(output_schema=OutputSchema("a", '{"type":"object"}')))
    assert model.aligned == []
    assert model.framed


def test_it_is_for_the_model_that_answers_alone() -> None:
    for layer in (Summarizer, ContextWindow):
        given: dict[str, Any] = {"max_tokens": 100, "summary_client": ScriptedClient(), "cache_aligned": True}
        with pytest.raises(WiringError, match="cache_aligned=True must be left out where summary_client is given"):
            ChatStack(ScriptedClient()).use(layer, **given).build()


def test_a_window_has_it_too() -> None:
    model = Model()
    stack = ChatStack(model).use(ContextWindow, max_tokens=LIMIT, keep_recent_turns=1, cache_aligned=True)
    grown(stack.build(), 12)
    assert model.aligned
    assert model.framed == []
