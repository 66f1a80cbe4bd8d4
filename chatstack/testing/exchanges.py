"""One call through the layer under test, and its outcome: the base of all parts of the contract."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from chatstack import semconv
from chatstack.client.closing import close
from chatstack.client.fronts import ChatFronts
from chatstack.client.protocol import ChatClient
from chatstack.client.stream import ChatStream
from chatstack.telemetry.emission import Telemetry
from chatstack.testing.conversations import ANSWERS, HISTORIES
from chatstack.testing.outages import silent_telemetry
from chatstack.testing.scripted import Answer
from chatstack.values.messages import Message
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatResponse, ChatUpdate

SECONDS = 30.0


class LayerUnderTest:
    """The layer under test, and its test data. See ``LayerContract``."""

    edits: ClassVar[bool] = False
    recovers: ClassVar[bool] = False
    streaming_attributes: ClassVar[frozenset[str]] = frozenset(
        {semconv.REQUEST_STREAM, semconv.RESPONSE_TIME_TO_FIRST_CHUNK}
    )
    own_options: ClassVar[frozenset[str]] = frozenset()
    histories: ClassVar[Mapping[str, tuple[Message, ...]]] = HISTORIES
    answers: ClassVar[Mapping[str, tuple[Answer, ...]]] = ANSWERS

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        """Return the layer under test, fresh, around ``inner``."""
        raise NotImplementedError(f"{type(self).__name__}: write make(self, inner, telemetry)")

    def cases(self) -> Iterator[tuple[str, tuple[Message, ...], tuple[Answer, ...]]]:
        """Yield every history with every answer, and a name for the pair."""
        for shape, history in self.histories.items():
            for kind, answers in self.answers.items():
                yield f"{shape}, answered by {kind}", history, answers

    async def ask(
        self,
        inner: ChatClient,
        messages: Sequence[Message],
        *,
        stream: bool = False,
        telemetry: Telemetry | None = None,
        updates: list[ChatUpdate] | None = None,
    ) -> ChatResponse:
        """Make one call by one of the two fronts, through a fresh layer; ``updates`` collects the streamed ones."""
        client = Fronted(self.make(inner, telemetry or silent_telemetry()))
        heard = [] if updates is None else updates
        try:
            async with asyncio.timeout(SECONDS):
                if not stream:
                    return await client.get_response(messages, conversation_id="contract")
                async with client.get_streaming_response(messages, conversation_id="contract") as answer:
                    async for update in answer:
                        heard.append(update)
                    return await answer.response()
        finally:
            await client.aclose()


class Fronted(ChatFronts):
    """Adds the fronts to a layer that has only ``send``."""

    def __init__(self, inner: ChatClient) -> None:
        self.inner = inner

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request)

    async def aclose(self) -> None:
        """Close the layer, if it can be closed."""
        await close(self.inner)


def a_request(*, stream: bool = True) -> ChatRequest:
    """Return a request as a front makes it."""
    return ChatRequest((Message.user("hello"),), stream=stream)


def same(found: object, expected: object, what: str) -> None:
    """Raise ``AssertionError`` unless the two are equal."""
    if found != expected:
        raise AssertionError(f"{what}: expected {expected!r}, found {found!r}")
