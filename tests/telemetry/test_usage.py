"""Usage that cannot be true, on its way through a stack: whoever goes by usage sees what may be true alone."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from chatstack import (
    Budget,
    BudgetExceeded,
    BuiltClient,
    ChatRequest,
    ChatResponse,
    ChatStack,
    ChatStream,
    ChatUpdate,
    ContextWindowGuard,
    FunctionInvoker,
    IterativeContext,
    IterativeLoop,
    Message,
    ProgressEvent,
    ProgressReporter,
    ToolCall,
    Usage,
)
from chatstack.loop.workspace import MemoryWorkspace
from chatstack.testing import TelemetryCapture

FRONTS = pytest.mark.parametrize("streaming", [False, True])
CALL = Message.assistant(ToolCall("1", "look"))


class Reports:
    """A provider that reports that usage, one after the other, the last again and again."""

    def __init__(self, *reported: Usage, answer: Message | None = None) -> None:
        self.reported = reported
        self.answer = answer or Message.assistant("fine")
        self.requests: list[ChatRequest] = []

    async def send(self, request: ChatRequest, /) -> ChatStream:
        usage = self.reported[min(len(self.requests), len(self.reported) - 1)]
        self.requests.append(request)

        async def updates() -> AsyncGenerator[ChatUpdate, None]:
            yield ChatUpdate(text="fine")
            yield ChatUpdate(message_done=self.answer, usage=usage, overhead_usage=usage, finish_reason="stop")

        return await ChatStream.primed(updates())


def look() -> str:
    """Looks."""
    return "sunny"


async def ask(client: BuiltClient, streaming: bool, text: str = "hello", **options: Any) -> Usage:
    if not streaming:
        answer: ChatResponse = await client.get_response(text, **options)
        return answer.usage
    stream: ChatStream = client.get_streaming_response(text, **options)
    async with stream:
        told = [update.usage async for update in stream if update.usage is not None]
        assert sum(told, Usage()) == (await stream.response()).usage
        return (await stream.response()).usage


@FRONTS
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("reported", "believed"),
    [
        (Usage(-1_000, -1_000), Usage()),
        (Usage(10**30, 5), Usage(0, 5)),
        (Usage(2**63, 5, 7), Usage(0, 5)),
        (Usage(math.nan, 5), Usage(0, 5)),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        (Usage(60_000, 70_000, 50_000), Usage(60_000, 70_000, 50_000)),
    ],
)
def test_the_answer_the_turn_and_the_listener_are_told_what_may_be_true(
    reported: Usage, believed: Usage, traced: bool, streaming: bool
) -> None:
    capture, heard = TelemetryCapture(), list[ProgressEvent]()
    stack = ChatStack(Reports(reported), trace_model_calls=traced).use(ProgressReporter, on_progress=heard.append)

    async def run() -> Usage:
        async with stack.build(capture.resolve) as client:
            return await ask(client, streaming)

    assert asyncio.run(run()) == believed
    for name in ("invoke_agent chat", *(("chat",) if traced else ())):
        span = capture.span(name)
        assert span.attributes.get("gen_ai.usage.input_tokens", 0) == believed.input_tokens
        assert span.attributes.get("gen_ai.usage.output_tokens", 0) == believed.output_tokens
    ended = next(event for event in heard if event.kind == "turn_ended")
    assert (ended.numbers["input_tokens"], ended.numbers["output_tokens"]) == (
        believed.input_tokens,
        believed.output_tokens,
    )
    tokens = sum(point.total for point in capture.metric("gen_ai.client.token.usage"))
    assert tokens == (2 * believed.total_tokens if traced else 0)  # with what was used beside the answer


@FRONTS
def test_a_figure_far_above_the_size_of_the_call_is_not_believed(streaming: bool) -> None:
    provider = Reports(Usage(100_200), Usage(100_200, 100_200))
    capture = TelemetryCapture()
    client = ChatStack(provider).build(capture.resolve)
    assert asyncio.run(ask(client, streaming, "x" * 400)) == Usage(100_200)
    assert not capture.warnings
    assert asyncio.run(ask(client, streaming, "hi")) == Usage()
    assert capture.warnings == ("usage_implausible",)


def test_a_long_answer_may_have_as_many_tokens_as_it_has() -> None:
    answer = Message.assistant("x" * 800_000)
    client = ChatStack(Reports(Usage(10, 200_000), answer=answer)).build()
    assert asyncio.run(ask(client, False)) == Usage(10, 200_000)


@FRONTS
def test_negative_usage_gives_nothing_back_to_a_budget(streaming: bool) -> None:
    async def run() -> int:
        for number in range(10):
            try:
                await ask(client, streaming, conversation_id="c")
            except BudgetExceeded:
                return number
        return -1

    stack = ChatStack(Reports(Usage(60), Usage(-1_000), Usage(60)))
    client = stack.use(Budget, max_tokens=200, per="conversation").build()
    assert asyncio.run(run()) == 3  # the overhead counts, too: 120, 0, 120


def test_usage_without_end_does_not_end_a_budget() -> None:
    stack = ChatStack(Reports(Usage(10**30, 5))).use(Budget, max_tokens=100, per="conversation")
    client = stack.build()

    async def run() -> None:
        for _ in range(5):
            await client.get_response("hello", conversation_id="c")

    asyncio.run(run())


def test_a_loop_counts_what_may_be_true() -> None:
    client = ChatStack(Reports(Usage(10**30, 5))).build()
    loop = IterativeLoop(client, "Go on.", lambda _: "go on", max_tokens=1_000)
    result = asyncio.run(loop.run(IterativeContext(workspace=MemoryWorkspace())))
    assert (result.reason, result.usage, result.iterations[0].usage) == ("answered", Usage(0, 5), Usage(0, 5))


def test_it_is_warned_of_once_per_conversation_and_by_its_beginning_where_there_is_no_id() -> None:
    capture = TelemetryCapture()
    client = ChatStack(Reports(Usage(-1))).use(FunctionInvoker, tools=[look]).build(capture.resolve)
    again = ChatStack(Reports(Usage(-1))).build(capture.resolve)

    async def run() -> list[int]:
        said: list[int] = []
        for conversation in ("a", "b", "a", None, None, "b"):
            for each in (client, again):
                await each.get_response("hello", conversation_id=conversation)
            said.append(len(capture.warnings))
        await client.get_response([Message.user("hello"), Message.assistant("fine"), Message.user("and now?")])
        await client.get_response("something else")
        return [*said, len(capture.warnings)]

    assert asyncio.run(run()) == [1, 2, 2, 3, 3, 3, 4]


def test_what_is_learnt_for_estimates_is_not_harmed() -> None:
    def asked(*reported: Usage) -> list[object]:
        capture = TelemetryCapture()
        stack = ChatStack(Reports(*reported)).use(ContextWindowGuard, max_context_tokens=9_000)
        client = stack.build(capture.resolve)
        for _ in range(3):
            asyncio.run(client.get_response("hello there my friend " * 1_500, conversation_id="c"))
        said = capture.spans_named("context_guard")
        return [span.attributes["chatstack.context.input_tokens"] for span in said]

    assert asked(Usage(-9_000)) == asked(Usage(10**30)) == asked(Usage()) != []
