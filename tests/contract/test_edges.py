"""Promises of streams and warnings that a layer of somebody else's may lean on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import pytest

from chatstack import (
    BrokenStreamError,
    ChatClient,
    ChatFronts,
    ChatRequest,
    ChatStack,
    ChatStream,
    ChatUpdate,
    Fallback,
    FunctionInvoker,
    Message,
    ModelTracer,
    ProgressReporter,
    Telemetry,
    ToolCall,
)
from chatstack.testing import Answer, ScriptedClient, TelemetryCapture


@dataclass(frozen=True, slots=True, eq=False)
class FirstWord(ChatFronts):
    """Finishes its answer after the first update, while the inner client would go on."""

    inner: ChatClient

    async def send(self, request: ChatRequest, /) -> ChatStream:
        stream = await self.inner.send(request)

        async def updates() -> AsyncGenerator[ChatUpdate, None]:
            first = await anext(stream)
            yield first
            yield ChatUpdate(message_done=Message.assistant(first.text))

        return ChatStream(updates(), owns=stream)


AROUND: list[Callable[[ChatClient, Telemetry], ChatFronts]] = [
    lambda inner, telemetry: FirstWord(inner),
    lambda inner, telemetry: ModelTracer(FirstWord(inner), telemetry=telemetry),
    lambda inner, telemetry: FirstWord(ModelTracer(inner, telemetry=telemetry)),
    lambda inner, telemetry: ProgressReporter(FirstWord(inner), telemetry=telemetry),
    lambda inner, telemetry: FunctionInvoker(FirstWord(inner), telemetry=telemetry),
]


@pytest.mark.parametrize("make", AROUND)
@pytest.mark.parametrize("stream", [False, True])
def test_a_layer_that_ends_its_answer_early_closes_what_is_below(
    make: Callable[[ChatClient, Telemetry], ChatFronts], stream: bool
) -> None:
    async def call() -> tuple[str, int, tuple[str, ...]]:
        text = await heard()
        return text, inner.open_streams, capture.open_spans

    async def heard() -> str:
        client = make(inner, capture.telemetry)
        if not stream:
            await client.get_response("hello")
            return "so"
        async with client.get_streaming_response("hello") as answer:
            return "".join([update.text async for update in answer])

    inner, capture = ScriptedClient(["so it goes on"]), TelemetryCapture()
    assert asyncio.run(call()) == ("so", 0, ())


@dataclass(frozen=True, slots=True, eq=False)
class CutOff(ChatFronts):
    """A client of one's own whose connection is lost: its answer in words ends before its message does."""

    inner: ChatClient

    async def send(self, request: ChatRequest, /) -> ChatStream:
        stream = await self.inner.send(request)

        async def updates() -> AsyncGenerator[ChatUpdate, None]:
            async for update in stream:
                if update.finish_reason != "stop":
                    yield update

        return await ChatStream.primed(updates())


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("answers", "ended"),
    [
        (["so it goes"], ["invoke_agent chat error", "chat script error"]),
        ([Message.assistant(), "fine"], ["invoke_agent chat error", "chat script error"]),
        (
            [Message.assistant(ToolCall("1", "look")), "so it goes"],
            ["invoke_agent chat error", "chat script unset", "execute_tool look unset", "chat script error"],
        ),
    ],
)
def test_an_answer_that_is_cut_off_is_an_error_on_its_call_and_on_the_turn_whoever_gives_it(
    answers: list[Answer], ended: list[str], streaming: bool
) -> None:
    async def ask() -> None:
        if not streaming:
            await client.get_response("hello")
        async with client.get_streaming_response("hello") as stream:
            async for _ in stream:
                pass

    def look() -> str:
        return "sunny"

    inner, capture = ScriptedClient(answers), TelemetryCapture()
    stack = ChatStack(CutOff(inner)).use(ProgressReporter).use(FunctionInvoker, tools=[look])
    client = stack.build(capture.resolve)
    with pytest.raises(BrokenStreamError):
        asyncio.run(ask())
    assert [f"{span.name} {span.status}" for span in capture.spans] == ended
    failed = [span.attributes["error.type"] for span in capture.spans if span.status == "error"]
    assert failed == ["BrokenStreamError"] * 2


def test_the_next_client_of_a_fallback_is_asked_where_one_answers_nothing() -> None:
    async def ask() -> str:
        return (await client.get_response("hello")).text

    silent = CutOff(ScriptedClient([Message.assistant()]))
    client = ChatStack(silent).use(Fallback, clients=[ScriptedClient(["here I am"])]).build()
    assert asyncio.run(ask()) == "here I am"


def test_an_error_inside_a_warnings_span_is_not_quoted_on_it() -> None:
    capture = TelemetryCapture()
    with pytest.raises(ValueError, match="secret"), capture.telemetry.warning("plan_rejected", "not applied", {}):
        raise ValueError("secret")
    assert "secret" not in capture.said()
    assert capture.warnings == ("plan_rejected",)
