"""The surroundings of a replayed stack: the recording in place of the model, and the log of the layers' edits."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TypeAlias

from msgspec.structs import replace
from opentelemetry.trace import Span

from chatstack.client.protocol import ProviderInfo
from chatstack.client.stream import ChatStream
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.spans import Attributes
from chatstack.values.messages import Message
from chatstack.values.parts import Text
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate, Usage

_PROVIDERS = ((r"claude", "anthropic"), (r"gemini", "gcp.gemini"), (r"gpt-|\bo[1-9]\b", "openai"))
"""The provider of a recorded model, by its name in telemetry; the first pattern that fits the model counts."""

Report: TypeAlias = Callable[[Message], Usage]
"""A function from a request and its answer to what a provider would report of them."""


class Recorder:
    """Stands in for the model: answers with the recorded message, and keeps the requests that it was sent.

    With ``report``, it is what the model's own provider would be to a stack: it has its name, so that layers count by
    themselves as they would there, and it reports the usage of each call.
    """

    def __init__(self, window: int, report: Report | None = None) -> None:
        self.info = ProviderInfo(name="recording", window_tokens=window)
        self.requests: list[ChatRequest] = []
        self.cpu_seconds = 0.0
        self._answer = Message.assistant("")
        self._report = report

    @property
    def is_provider(self) -> bool:
        """True if layers are to count as they would with the model's own provider."""
        return self._report is not None

    def stand_for(self, model: str) -> None:
        """Take the place of that model, for the layers that are made from now on."""
        if self.is_provider:
            name = next((name for fits, name in _PROVIDERS if re.search(fits, model.lower())), "recording")
            self.info = replace(self.info, name=name, model=model)

    def expect(self, answer: Message) -> None:
        """Set the message to answer with from now on, whatever the request."""
        self._answer = answer
        self.requests.clear()
        self.cpu_seconds = 0.0

    async def send(self, request: ChatRequest, /) -> ChatStream:
        started = time.process_time()
        self.requests.append(request)
        usage = None if self._report is None else self._report(self._answer)
        stream = await ChatStream.primed(Playback(self._answer, usage))
        self.cpu_seconds += time.process_time() - started
        return stream

    def __repr__(self) -> str:
        return "Recorder()"


class Playback:
    """The source of a stream with one message."""

    def __init__(self, message: Message, usage: Usage | None = None) -> None:
        self._updates = iter(
            [
                *(
                    ChatUpdate(text=part.text) if isinstance(part, Text) else ChatUpdate(part=part)
                    for part in message.parts
                ),
                ChatUpdate(message_done=message, usage=usage, finish_reason="tool_calls" if message.calls else "stop"),
            ]
        )

    async def __anext__(self) -> ChatUpdate:
        for update in self._updates:
            return update
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._updates = iter(())


class EditLog(Telemetry):
    """The telemetry of a replayed stack: it keeps the edits that layers report in one call."""

    def __init__(self) -> None:
        super().__init__(log_warnings=False)  # they are of the past; the report has the figures
        self.edits: list[str] = []

    def edit(
        self,
        strategy: str,
        message: str,
        attributes: Attributes,
        *,
        tokens_before: int,
        tokens_after: int,
        span: Span | None = None,
    ) -> None:
        self.edits.append(f"{strategy}: {message}")
        super().edit(strategy, message, attributes, tokens_before=tokens_before, tokens_after=tokens_after, span=span)
