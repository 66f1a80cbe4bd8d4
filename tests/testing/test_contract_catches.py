"""The contract is worth something: for each promise, a layer that breaks it, and the check that says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from msgspec.structs import force_setattr, replace

from chatstack import ChatClient, ChatRequest, ChatStream, ChatUpdate, LayerKind, Message, Reasoning, Telemetry, Text
from chatstack.testing import LayerContract, ScriptedClient
from chatstack.testing.conversations import numbers_in
from chatstack.values.requests import NO_OPTIONS


@dataclass(frozen=True, slots=True)
class Faulty:
    """A layer with nothing wrong; the others change one thing each."""

    inner: ChatClient
    telemetry: Telemetry

    kind: ClassVar[LayerKind] = "plain"

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request)


class TellsNoKind(Faulty):
    kind: ClassVar[Any] = ""


class HoldsASpanAcrossAYield(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        stream = await self.inner.send(request)

        async def updates() -> AsyncGenerator[ChatUpdate, None]:
            with self.telemetry.tracer.start_as_current_span("held"):
                async for update in stream:
                    yield update

        return ChatStream(updates(), owns=stream)


class ForgetsToEndItsSpan(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.telemetry.tracer.start_span("forgotten")
        return await self.inner.send(request)


class EndsItsSpanTwice(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        span = self.telemetry.tracer.start_span("twice")
        span.end()
        span.end()
        return await self.inner.send(request)


class LeavesTheInnerStreamOpen(Faulty):
    kept: ClassVar[list[ChatStream]] = []

    async def send(self, request: ChatRequest, /) -> ChatStream:
        stream = await self.inner.send(request)
        self.kept.append(stream)

        async def updates() -> AsyncGenerator[ChatUpdate, None]:
            async for update in stream:
                yield update

        return ChatStream(updates())


class LeavesATask(Faulty):
    kept: ClassVar[list[object]] = []

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.kept.append(asyncio.ensure_future(asyncio.sleep(3_600)))
        return await self.inner.send(request)


class IgnoresCancellation(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        try:
            return await self.inner.send(request)
        except asyncio.CancelledError:
            return await self.inner.send(request)


class RenamesErrors(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        try:
            return await self.inner.send(request)
        except Exception as error:
            raise RuntimeError("something went wrong") from error


class TakesABrokenAnswerForWhole(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        stream = await self.inner.send(request)

        async def updates() -> AsyncGenerator[ChatUpdate, None]:
            try:
                async for update in stream:
                    yield update
            except Exception:  # noqa: BLE001 - this is the mistake
                return

        return ChatStream(updates(), owns=stream)


class DropsTheSystemMessage(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        kept = tuple(message for message in request.messages if message.role != "system")
        return await self.inner.send(request.but(messages=kept))


class DropsTheFirstResult(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        first = next((message for message in request.messages if message.results), None)
        kept = tuple(message for message in request.messages if message is not first)
        return await self.inner.send(request.but(messages=kept))


class CopiesMessages(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request.but(messages=tuple(replace(each) for each in request.messages)))


class ChangesTheCallersMessages(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        for message in request.messages:
            for part in message.parts:
                if isinstance(part, Text):
                    force_setattr(part, "text", part.text.strip())
        return await self.inner.send(request)


class EditsOnlyWhenStreaming(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        if request.stream:
            request = request.but(messages=request.messages[-1:])
        return await self.inner.send(request)


class SaysMoreWhenStreaming(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        if request.stream:
            self.telemetry.tracer.start_span("streamed").end()
        return await self.inner.send(request)


class ChangesTheTextBehindTheDeltas(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        stream = await self.inner.send(request)

        async def updates() -> AsyncGenerator[ChatUpdate, None]:
            async for update in stream:
                done = update.message_done
                yield update if done is None else replace(update, message_done=Message.assistant(f"{done.text}!"))

        return ChatStream(updates(), owns=stream)


class AnswersFromTheLastConversation(Faulty):
    last: ClassVar[dict[str, Message]] = {}

    async def send(self, request: ChatRequest, /) -> ChatStream:
        before = self.last.setdefault("last", request.messages[0])
        self.last["last"] = request.messages[0]
        if numbers_in(request.messages):
            return await self.inner.send(request.but(messages=(before, *request.messages[1:])))
        return await self.inner.send(request)


class QuotesOnItsSpan(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        with self.telemetry.tracer.start_as_current_span("quote") as span:
            span.set_attribute("prompt", request.messages[-1].text)
            return await self.inner.send(request)


class QuotesErrorsOnItsSpan(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        with self.telemetry.tracer.start_as_current_span("quote"):
            return await self.inner.send(request)


class NeedsTheSdk(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        span = self.telemetry.tracer.start_span("needs")
        span.end()
        return await self.inner.send(request if span.get_span_context().is_valid else request.but(messages=()))


class AsksAgainForEveryResponse(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        inner = self.inner

        class Again(ChatStream):
            __slots__ = ()

            async def response(self):  # type: ignore[no-untyped-def]
                await (await inner.send(request)).response()
                return await super().response()

        stream = await inner.send(request)
        return Again(stream, owns=stream)


class LosesOptions(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(ChatRequest(request.messages, NO_OPTIONS, request.conversation_id, request.stream))


class LosesTools(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request.but(options=request.options.but(tools=())))


class LosesTheConversation(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request.but(conversation_id=None))


class LosesTheStream(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request.but(stream=False))


class AnswersByItself(Faulty):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await ScriptedClient(["fine"]).send(request)


@dataclass(frozen=True, slots=True)
class Changes(Faulty):
    """Changes the updates of the answer."""

    async def send(self, request: ChatRequest, /) -> ChatStream:
        stream = await self.inner.send(request)

        async def updates() -> AsyncGenerator[ChatUpdate, None]:
            async for update in stream:
                yield self.changed(update)

        return ChatStream(updates(), owns=stream)

    def changed(self, update: ChatUpdate) -> ChatUpdate:
        raise NotImplementedError


class LosesUsage(Changes):
    def changed(self, update: ChatUpdate) -> ChatUpdate:
        return replace(update, usage=None)


class LosesUsageOfItsContext(LosesUsage):
    kind = "context"


class LosesTheFinishReason(Changes):
    def changed(self, update: ChatUpdate) -> ChatUpdate:
        return replace(update, finish_reason=None)


class LosesTheModel(Changes):
    def changed(self, update: ChatUpdate) -> ChatUpdate:
        return replace(update, model="")


class LosesReasoning(Changes):
    def changed(self, update: ChatUpdate) -> ChatUpdate:
        done = update.message_done
        if done is None:
            return update
        return replace(update, message_done=Message.assistant(*(p for p in done.parts if not isinstance(p, Reasoning))))


class LosesCallsOfItsContext(Changes):
    kind = "context"

    def changed(self, update: ChatUpdate) -> ChatUpdate:
        done = update.message_done
        return update if done is None else replace(update, message_done=Message.assistant(done.text))


class SpeaksBeforeItIsAsked(Faulty):
    def __init__(self, inner: ChatClient, telemetry: Telemetry) -> None:
        super().__init__(inner, telemetry)
        telemetry.tracer.start_span("made").end()


BREAKS: list[tuple[type[Faulty], Callable[[LayerContract], None]]] = [
    (HoldsASpanAcrossAYield, LayerContract.test_each_update_may_be_read_by_another_task),
    (HoldsASpanAcrossAYield, LayerContract.test_a_stream_may_be_closed_after_every_update),
    (ForgetsToEndItsSpan, LayerContract.test_a_stream_may_be_dropped_after_every_update),
    (ForgetsToEndItsSpan, LayerContract.test_a_response_may_be_asked_for_again),
    (EndsItsSpanTwice, LayerContract.test_a_stream_may_be_closed_after_every_update),
    (TellsNoKind, LayerContract.test_it_says_what_it_is_to_the_layers_around_it),
    (LeavesTheInnerStreamOpen, LayerContract.test_a_stream_may_be_closed_after_every_update),
    (LeavesTheInnerStreamOpen, LayerContract.test_a_stream_may_be_dropped_after_every_update),
    (LeavesATask, LayerContract.test_a_call_may_be_cancelled_at_every_step),
    (IgnoresCancellation, LayerContract.test_a_call_may_be_cancelled_at_every_step),
    (RenamesErrors, LayerContract.test_what_inner_raises_before_its_answer_is_raised_by_send),
    (TakesABrokenAnswerForWhole, LayerContract.test_what_inner_raises_in_its_answer_is_raised_by_the_stream),
    (DropsTheSystemMessage, LayerContract.test_what_must_be_sent_is_sent),
    (DropsTheFirstResult, LayerContract.test_no_call_and_no_result_becomes_an_orphan),
    (CopiesMessages, LayerContract.test_what_must_be_sent_is_sent),
    (EditsOnlyWhenStreaming, LayerContract.test_streaming_and_not_streaming_are_the_same),
    (SaysMoreWhenStreaming, LayerContract.test_streaming_and_not_streaming_are_the_same),
    (ChangesTheTextBehindTheDeltas, LayerContract.test_the_deltas_add_up_to_the_text_of_all_assistant_messages),
    (AnswersFromTheLastConversation, LayerContract.test_a_thousand_conversations_at_once_do_not_mix),
    (QuotesOnItsSpan, LayerContract.test_no_text_of_a_message_or_an_error_is_told),
    (QuotesErrorsOnItsSpan, LayerContract.test_no_text_of_a_message_or_an_error_is_told),
    (NeedsTheSdk, LayerContract.test_it_works_without_an_opentelemetry_sdk),
    (AsksAgainForEveryResponse, LayerContract.test_a_response_may_be_asked_for_again),
    (SpeaksBeforeItIsAsked, LayerContract.test_a_stream_that_is_not_opened_sends_nothing),
]
LOSSES: list[tuple[type[Faulty], Callable[[LayerContract], None], str]] = [
    (LosesOptions, LayerContract.test_what_the_caller_asks_for_reaches_inner, "'temperature'"),
    (LosesTools, LayerContract.test_what_the_caller_asks_for_reaches_inner, r"\['tools'\]"),
    (LosesTheConversation, LayerContract.test_what_the_caller_asks_for_reaches_inner, r"\['conversation_id'\]"),
    (LosesTheStream, LayerContract.test_what_the_caller_asks_for_reaches_inner, r"\['stream'\]"),
    (AnswersByItself, LayerContract.test_what_the_caller_asks_for_reaches_inner, "no request"),
    (LosesUsage, LayerContract.test_what_inner_answers_is_handed_on, "another usage"),
    (LosesTheFinishReason, LayerContract.test_what_inner_answers_is_handed_on, "another finish_reason"),
    (LosesTheModel, LayerContract.test_what_inner_answers_is_handed_on, "another model"),
    (LosesReasoning, LayerContract.test_what_inner_answers_is_handed_on, "another messages"),
    (LosesUsageOfItsContext, LayerContract.test_what_inner_answers_is_handed_on, "'input_tokens', 'output_tokens'"),
    (LosesCallsOfItsContext, LayerContract.test_what_inner_answers_is_handed_on, "c1"),
]


def contract_of(layer: type[Faulty]) -> LayerContract:
    class Contract(LayerContract):
        def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
            return layer(inner, telemetry)

    return Contract()


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "check"), BREAKS, ids=lambda each: each.__name__)
def test_a_broken_promise_is_noticed(layer: type[Faulty], check: Callable[[LayerContract], None]) -> None:
    with pytest.raises(AssertionError):
        check(contract_of(layer))


@pytest.mark.parametrize(("layer", "check", "told"), LOSSES, ids=lambda each: getattr(each, "__name__", ""))
def test_what_a_layer_loses_is_named(layer: type[Faulty], check: Callable[[LayerContract], None], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check(contract_of(layer))


def test_an_option_that_a_layer_sets_itself_may_differ() -> None:
    class Contract(LayerContract):
        own_options = frozenset({"tools"})

        def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
            return LosesTools(inner, telemetry)

    Contract().test_what_the_caller_asks_for_reaches_inner()


def test_a_layer_may_ask_inner_for_itself_too() -> None:
    class AsksFirst(Faulty):
        kind = "context"

        async def send(self, request: ChatRequest, /) -> ChatStream:
            await (await self.inner.send(ChatRequest((Message.user("is it long?"),)))).response()
            return await self.inner.send(request)

    contract_of(AsksFirst).test_what_the_caller_asks_for_reaches_inner()


def test_a_layer_may_close_without_waiting() -> None:
    class Closes(Faulty):
        closed: ClassVar[list[object]] = []

        def aclose(self) -> None:
            self.closed.append(self)

    contract_of(Closes).test_streaming_and_not_streaming_are_the_same()
    assert Closes.closed


def test_a_layer_that_edits_and_calls_itself_plain_is_noticed() -> None:
    class Contract(LayerContract):
        edits = True

        def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
            return Faulty(inner, telemetry)

    with pytest.raises(AssertionError, match='is a "context" layer'):
        Contract().test_it_says_what_it_is_to_the_layers_around_it()


def test_a_layer_that_shows_nobody_what_it_wraps_is_noticed() -> None:
    class Closed:
        kind: ClassVar[LayerKind] = "plain"

        def __init__(self, inner: ChatClient) -> None:
            self.wrapped = inner

        async def send(self, request: ChatRequest, /) -> ChatStream:
            return await self.wrapped.send(request)

    class Contract(LayerContract):
        def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
            return Closed(inner)

    with pytest.raises(AssertionError, match="keep it in an attribute named inner"):
        Contract().test_it_says_what_it_is_to_the_layers_around_it()


def test_a_layer_that_changes_the_callers_messages_is_noticed() -> None:
    class Contract(LayerContract):
        histories = {"spaces": (Message.user("  hello  "),)}  # noqa: RUF012 - its own, for it is changed

        def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
            return ChangesTheCallersMessages(inner, telemetry)

    with pytest.raises(AssertionError, match="what is in them"):
        Contract().test_the_messages_of_the_caller_are_left_alone()


@pytest.mark.parametrize("name", [name for name in dir(LayerContract) if name.startswith("test_")])
def test_a_layer_with_nothing_but_send_keeps_the_contract(name: str) -> None:
    getattr(contract_of(Faulty), name)()


def test_every_check_is_seen_to_fail_but_for_those_that_a_layer_cannot_break_alone() -> None:
    checks = {name for name in dir(LayerContract) if name.startswith("test_")}
    broken = [check for _, check in BREAKS] + [check for _, check, _ in LOSSES]
    assert checks - {check.__name__ for check in broken} == {
        "test_an_exporter_that_fails_is_not_felt",
        "test_an_exporter_that_hangs_is_not_felt",
        "test_the_messages_of_the_caller_are_left_alone",  # by itself, above
    }
