"""The hooks that a provider's author supplies, and one call through the client: the base of all parts of its
contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from chatstack.client.closing import close
from chatstack.client.protocol import ChatClient
from chatstack.client.stream import ChatStream
from chatstack.testing.provider_server import Delivery, ReceivedRequest, ScriptedServer, ServerReply
from chatstack.values.messages import Message
from chatstack.values.parts import ToolCall
from chatstack.values.requests import ChatOptions, ChatRequest
from chatstack.values.responses import ChatResponse, ChatUpdate, FinishReason, Usage

T = TypeVar("T")

RefusalKind: TypeAlias = Literal["authentication", "rate_limit", "overflow", "bad_request", "server"]
KEY = "contract-key-5e1f0b7a93"
PROMPT = "the-words-of-the-user-71c2"
"""The prompt of the requests. No error may contain it, though servers quote it."""
_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """Constructor settings of the client under test. It must not retry: each refusal is checked."""

    base_url: str
    api_key: str = KEY
    model: str = "contract-model"
    timeout_seconds: float = 20.0
    window_tokens: int = 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """One answer of the model, to be written in the form of the API.

    ``usage`` counts as ours does: cache reads are a part of the input. ``unknown``, if it is not "", is text for a
    field, or an item, that the client does not know, and that a later request has to contain again.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason = "stop"
    usage: Usage = field(default_factory=Usage)
    unknown: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRefusal:
    """A refusal by the server, to be written as the API's error.

    ``message`` belongs into the text of the error: it quotes the prompt and the key, as servers do. ``actual_tokens``
    and ``limit_tokens`` belong to an overflow, None where the server reports no sizes: an API that has no place for one
    of them leaves it out, and ``overflow_sizes`` says so. ``retry_after_seconds`` belongs to a rate limit.
    """

    kind: RefusalKind
    message: str = f"cannot do {PROMPT} for {KEY}"
    actual_tokens: int | None = None
    limit_tokens: int | None = None
    retry_after_seconds: float | None = None


class Answered(NamedTuple):
    """One answer: the updates that showed it, and the whole."""

    updates: list[ChatUpdate]
    response: ChatResponse


class ProviderUnderTest:
    """The client under test, and the replies of its server. See ``ProviderContract``."""

    usage: ClassVar[Usage] = Usage(120, 34, 100)
    refusals: ClassVar[tuple[RefusalKind, ...]] = get_args(RefusalKind)
    finish_reasons: ClassVar[tuple[FinishReason, ...]] = ("stop", "length", "refused")
    overflow_sizes: ClassVar[tuple[str, ...]] = ("actual", "limit")
    left_out: ClassVar[frozenset[str]] = frozenset()
    has_call_ids: ClassVar[bool] = True
    has_parallel_calls: ClassVar[bool] = True
    has_late_system: ClassVar[bool] = True
    keeps_unknown: ClassVar[bool] = True
    patience_seconds: ClassVar[float] = 5.0

    def make(self, settings: ProviderSettings) -> ChatClient:
        """Return the client under test, fresh; it must not retry."""
        raise NotImplementedError(f"{type(self).__name__}: write make(self, settings): a client that does not retry")

    def answer(self, said: ModelAnswer, *, stream: bool) -> ServerReply:
        """Return the server's reply for that answer: whole, or as a stream in at least three pieces."""
        raise NotImplementedError(f"{type(self).__name__}: write answer(self, said, *, stream): a ServerReply")

    def refusal(self, said: ServerRefusal) -> ServerReply:
        """Return the server's reply that refuses a request: status, headers, and the body of the error."""
        raise NotImplementedError(f"{type(self).__name__}: write refusal(self, said): a ServerReply")

    def failure_in_stream(self) -> bytes | None:
        """Return the piece of a stream in which the server reports a failure; None if the API has none."""
        return None

    def without_marks(self, body: bytes) -> bytes:
        """Return the body of a request without marks for the prompt cache, which may move from call to call."""
        return body

    @asynccontextmanager
    async def serving(
        self, script: Delivery | Callable[[ReceivedRequest], Delivery], *, timeout_seconds: float = 20.0
    ) -> AsyncGenerator[tuple[ChatClient, ScriptedServer], None]:
        """Yield a client, and its server; both are closed at the end."""
        async with ScriptedServer(script if callable(script) else partial(always, script)) as server:
            client = self.make(ProviderSettings(base_url=server.base_url, timeout_seconds=timeout_seconds))
            try:
                yield client, server
            finally:
                await close(client)

    async def outcomes(
        self, deliveries: Iterable[Delivery], *, stream: bool, timeout_seconds: float = 20.0
    ) -> list[Answered | Exception]:
        """Return the outcomes of calls by one client, one after the other, each with one of these deliveries."""
        found: list[Answered | Exception] = []
        async with self.serving(Delivery(None), timeout_seconds=timeout_seconds) as (client, server):
            for delivery in deliveries:
                server.script = partial(always, delivery)
                try:
                    found.append(await read(await client.send(a_request(stream=stream))))
                except Exception as error:  # noqa: BLE001 - the caller checks the error
                    found.append(error)
        return found

    def answered(self, *said: ModelAnswer, stream: bool) -> list[Answered]:
        """Return these answers as the client reads them."""
        found: list[Answered] = []
        for each in run(self.outcomes([Delivery(self.answer(each, stream=stream)) for each in said], stream=stream)):
            if not isinstance(each, Answered):
                told = f"an answer, {'streamed' if stream else 'not streamed'}, was an error: {each!r}"
                raise AssertionError(told) from each
            found.append(each)
        return found

    async def arrived(self, *requests: ChatRequest) -> list[ReceivedRequest]:
        """Send these requests, and return each as it arrives at the server."""

        def script(request: ReceivedRequest) -> Delivery:
            is_streamed = requests[len(server.requests) - 1].stream
            return Delivery(self.answer(ModelAnswer(text="fine"), stream=is_streamed))

        async with self.serving(script) as (client, server):
            for request in requests:
                await read(await client.send(request))
            return server.requests


def always(delivery: Delivery, request: ReceivedRequest) -> Delivery:
    """Return that delivery for every request."""
    return delivery


def run(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine in an event loop of its own, for a minute at most."""

    async def limited() -> T:
        async with asyncio.timeout(_SECONDS):
            return await work

    return asyncio.run(limited())


def a_request(*messages: Message, stream: bool = False, options: ChatOptions | None = None) -> ChatRequest:
    """Return a request, with the prompt if no messages are given."""
    return ChatRequest(messages or (Message.user(PROMPT),), options or ChatOptions(), None, stream)


async def read(stream: ChatStream) -> Answered:
    """Read a stream to its end, and close it."""
    try:
        updates = [update async for update in stream]
        return Answered(updates, await stream.response())
    finally:
        await stream.aclose()


def expect(is_so: bool, told: str) -> None:
    """Raise ``AssertionError`` with that text unless it is so."""
    if not is_so:
        raise AssertionError(told)
