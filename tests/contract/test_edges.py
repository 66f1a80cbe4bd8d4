"""Promises of streams and warnings that a layer of somebody else's may lean on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import pytest

from chatstack import (
    ChatClient,
    ChatFronts,
    ChatRequest,
    ChatStream,
    ChatUpdate,
    FunctionInvoker,
    ModelTracer,
    ProgressReporter,
    Telemetry,
)
from chatstack.testing import ScriptedClient, TelemetryCapture


@dataclass(frozen=True, slots=True, eq=False)
class FirstWord(ChatFronts):
    """Ends its answer after the first update, while the inner client would go on."""

    inner: ChatClient

    async def send(self, request: ChatRequest, /) -> ChatStream:
        stream = await self.inner.send(request)

        async def updates() -> AsyncGenerator[ChatUpdate, None]:
            yield await anext(stream)

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


def test_an_error_inside_a_warnings_span_is_not_quoted_on_it() -> None:
    capture = TelemetryCapture()
    with pytest.raises(ValueError, match="secret"), capture.telemetry.warning("plan_rejected", "not applied", {}):
        raise ValueError("secret")
    assert "secret" not in capture.said()
    assert capture.warnings == ("plan_rejected",)
