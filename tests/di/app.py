"""What the tests of containers build: a recipe with services of every kind, and a layer that tells of its closing."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

from chatstack import (
    FROM_CONTAINER,
    ChatClient,
    ChatFronts,
    ChatRequest,
    ChatStack,
    ContextWindowGuard,
    ProgressReporter,
    Summarizer,
    TokenCounter,
    ToolResultClearer,
)
from chatstack.client.stream import ChatStream
from chatstack.testing import ScriptedClient


class Words(TokenCounter):
    """Counts words."""

    def count_text(self, text: str) -> int:
        return len(text.split())


class Letters(TokenCounter):
    """Counts characters."""

    def count_text(self, text: str) -> int:
        return len(text)


class Journal:
    """Which layers were made, and closed."""

    def __init__(self) -> None:
        self.made: list[Journalled] = []
        self.closed: list[Journalled] = []


@dataclass(frozen=True, slots=True, eq=False)
class Journalled(ChatFronts):
    """A layer that cannot do without its service."""

    inner: ChatClient
    _: KW_ONLY
    journal: Journal = field(default=FROM_CONTAINER, repr=False)
    note: str = ""

    def __post_init__(self) -> None:
        self.journal.made.append(self)

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request)

    async def aclose(self) -> None:
        self.journal.closed.append(self)


class Provider(ScriptedClient):
    """Says after the user what was said in the conversation; knows whether it was closed."""

    def __init__(self, delay_seconds: float | None = None) -> None:
        super().__init__(["?"], delay_seconds=delay_seconds)
        self.is_closed = False

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.requests.append(request)
        said = " ".join(message.text for message in request.messages if message.role == "user")
        return await ChatStream.primed(self._play(said, request))

    async def aclose(self) -> None:
        self.is_closed = True


def recipe(provider: ChatClient | None = None) -> ChatStack:
    """The order of the README, and a layer that is closed."""
    return (
        ChatStack(provider or Provider())
        .use(ProgressReporter)
        .use(Journalled)
        .use(ToolResultClearer)
        .use(Summarizer, max_tokens=1_000)
        .use(ContextWindowGuard, max_context_tokens=2_000)
    )
