"""A layer that only looks at the request, or edits it, is not there while the answer streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from chatstack import (
    BuiltClient,
    ChatRequest,
    ChatStack,
    ChatStream,
    ContextWindowGuard,
    Message,
    OldestFirst,
    ProgressReporter,
)
from chatstack.testing import ScriptedClient

LONG = tuple(Message.user("x" * 400) for _ in range(10))


class Keeping(ScriptedClient):
    """Keeps the stream that it gave last."""

    given: ChatStream

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.given = await super().send(request)
        return self.given


def stack_of(model: Keeping) -> ChatStack:
    return ChatStack(model, trace_model_calls=False)


@pytest.mark.parametrize("messages", [LONG[:1], LONG], ids=["untouched", "edited"])
@pytest.mark.parametrize(
    "build",
    [
        lambda model: stack_of(model).use(ContextWindowGuard, max_context_tokens=500, prune_on_overflow=True).build(),
        lambda model: stack_of(model).use(OldestFirst, max_tokens=500, target_tokens=300).build(),
    ],
    ids=["ContextWindowGuard", "OldestFirst"],
)
def test_the_stream_of_the_model_is_handed_on_itself(
    build: Callable[[Keeping], BuiltClient], messages: tuple[Message, ...]
) -> None:
    async def check() -> None:
        model = Keeping()
        stream = await build(model).send(ChatRequest(messages))
        assert stream is model.given
        assert (len(model.requests[0].messages) < len(messages)) == (messages is LONG)
        await stream.aclose()

    asyncio.run(check())


def test_nothing_is_wrapped_by_reporter_and_tracer_when_nobody_looks_on() -> None:
    async def check() -> None:
        model = Keeping()
        stream = await ChatStack(model).use(ProgressReporter).build().send(ChatRequest(LONG))
        assert stream is model.given
        await stream.aclose()

    asyncio.run(check())
