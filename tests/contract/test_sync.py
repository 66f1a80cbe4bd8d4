"""A stack behind the synchronous front keeps the contract of layers, called from a thread in which a loop runs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from chatstack import (
    ChatClient,
    ChatRequest,
    ChatResponse,
    ChatStack,
    ChatStream,
    ChatUpdate,
    ClearThenDrop,
    ContextWindowGuard,
    FunctionInvoker,
    Message,
    ModelTracer,
    ProgressReporter,
    SyncClient,
    SyncStream,
    Telemetry,
)
from chatstack.testing import LayerContract
from chatstack.testing.conversations import TOOLS, EchoClient, numbered, numbers_in
from chatstack.testing.outages import silent_telemetry

LIMIT = 240
MADE: list[SyncClient] = []
"""The clients of a check, which the contract does not close."""


@dataclass(frozen=True, slots=True, eq=False)
class Blocking:
    """A client whose every step is one of the synchronous front, and blocks the event loop that it is called on."""

    inner: SyncClient

    @property
    def kind(self) -> str:
        return str(getattr(self.inner.inner, "kind", ""))

    async def send(self, request: ChatRequest, /) -> ChatStream:
        stream = self.inner.get_streaming_response(
            request.messages, options=request.options, conversation_id=request.conversation_id
        )
        with_first = stream.__enter__()
        return ChatStream(_Steps(with_first))

    async def aclose(self) -> None:
        self.inner.close()


class _Steps:
    def __init__(self, stream: SyncStream) -> None:
        self._stream = stream

    async def __anext__(self) -> ChatUpdate:
        try:
            return next(self._stream)
        except StopIteration:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        self._stream.close()

    def __del__(self) -> None:
        """Close what was dropped before the contract looks: what the front itself drops is closed soon after."""
        self._stream.close()


class SyncContract(LayerContract):
    def around(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        raise NotImplementedError

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        client = SyncClient(self.around(inner, telemetry))
        MADE.append(client)
        return Blocking(client)

    def teardown_method(self) -> None:
        while MADE:
            MADE.pop().close()

    async def ask(
        self,
        inner: ChatClient,
        messages: Sequence[Message],
        *,
        stream: bool = False,
        telemetry: Telemetry | None = None,
        updates: list[ChatUpdate] | None = None,
    ) -> ChatResponse:
        heard = [] if updates is None else updates
        with SyncClient(self.around(inner, telemetry or silent_telemetry())) as client:
            if not stream:
                return client.get_response(messages, conversation_id="contract")
            with client.get_streaming_response(messages, conversation_id="contract") as answer:
                heard.extend(answer)
                return answer.response()

    def test_a_thousand_conversations_at_once_do_not_mix(self) -> None:
        inner = EchoClient()
        with SyncClient(self.around(inner, silent_telemetry())) as client:

            def one(number: int) -> set[int]:
                named = None if number % 2 else f"conversation-{number}"
                if number % 3:
                    response = client.get_response(numbered(number), conversation_id=named)
                else:
                    response = client.get_streaming_response(numbered(number), conversation_id=named).response()
                return numbers_in(response.messages)

            with ThreadPoolExecutor(50) as threads:
                answered = list(threads.map(one, range(1_000)))
        assert answered == [{number} for number in range(1_000)]
        assert all(len(numbers_in(request.messages)) == 1 for request in inner.requests)


@pytest.mark.slow
class TestAPlainTracer(SyncContract):
    def around(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        return ModelTracer(inner, telemetry=telemetry)


class TestAToolLoop(SyncContract):
    def around(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        return FunctionInvoker(inner, tools=TOOLS, telemetry=telemetry)


@pytest.mark.slow
class TestAFullStack(SyncContract):
    edits = True

    def around(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        stack = (
            ChatStack(inner)
            .use(ProgressReporter)
            .use(FunctionInvoker, tools=TOOLS)
            .use(ClearThenDrop, max_tokens=LIMIT)
            .use(ContextWindowGuard, max_context_tokens=LIMIT, prune_on_overflow=True)
        )
        return stack.build({Telemetry: telemetry}.__getitem__)
