"""A provider that plays a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import TypeAlias, cast, get_args

from chatstack.client.fronts import ChatFronts
from chatstack.client.protocol import ProviderInfo
from chatstack.client.stream import ChatStream
from chatstack.tokens.counter import TokenCounter, char_counter
from chatstack.values.messages import Message
from chatstack.values.parts import PART_TYPES, Part, Reasoning, Text, ToolCall
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate, FinishReason, Usage

Answer: TypeAlias = str | Message | BaseException | Sequence[str | Part | BaseException | FinishReason]
"""One answer: text, a whole message, an error that refuses the request, or a list of deltas, parts and errors, whose
last item may be a finish reason."""

_FINISHES: frozenset[object] = frozenset(get_args(FinishReason))


class ScriptedClient(ChatFronts):
    """Plays its answers in order, repeating the last one, and keeps every request in ``requests``.

    Text is streamed word by word. An exception in the place of an answer is raised by ``send``; inside a list it breaks
    the stream at that point. A finish reason is one only as the last item of a list. ``open_streams`` counts the
    streams not yet closed or read to their end. ``delay_seconds`` passes before every update. Usage is counted by
    ``counter``; the default, characters divided by four, is also that of the layers.

    Raises ``ValueError`` for what cannot be played.
    """

    def __init__(
        self,
        answers: Iterable[Answer] = ("fine",),
        *,
        info: ProviderInfo | None = None,
        counter: TokenCounter | None = None,
        delay_seconds: float | None = None,
    ) -> None:
        if isinstance(answers, str | Message) or not isinstance(answers, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError("ScriptedClient: answers must be a list, also of a single one: ScriptedClient([...])")
        self.answers = list(answers)
        if not self.answers:
            raise ValueError("ScriptedClient: needs at least one answer")
        for position, answer in enumerate(self.answers):
            _check_answer(f"answers[{position}]", answer)
        self.info = info or ProviderInfo(name="scripted", model="script")
        self.counter = counter or char_counter(4)
        self.delay_seconds = delay_seconds
        self.requests: list[ChatRequest] = []
        self.open_streams = 0

    async def send(self, request: ChatRequest, /) -> ChatStream:
        answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append(request)
        stream = await ChatStream.primed(self._play(answer, request))
        stream.sent = request
        return stream

    async def _play(self, answer: Answer, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        self.open_streams += 1
        try:
            parts: list[Part] = []
            steps = _steps(answer)
            last = answer[-1] if isinstance(answer, Sequence) and not isinstance(answer, str) and answer else None
            ends = isinstance(last, str) and last in _FINISHES
            finish = cast("FinishReason", steps.pop()) if ends else None
            for step in steps:
                if self.delay_seconds is not None:
                    await asyncio.sleep(self.delay_seconds)
                if isinstance(step, BaseException):
                    raise step
                if isinstance(step, str):
                    _append_text(parts, step)
                    yield ChatUpdate(text=step)
                else:
                    parts.append(step)
                    yield _update_of(step)
            message = answer if isinstance(answer, Message) else Message("assistant", tuple(parts))
            called = any(isinstance(part, ToolCall) for part in message.parts)
            yield ChatUpdate(
                message_done=message,
                usage=self._usage(request, message),
                finish_reason=finish or ("tool_calls" if called else "stop"),
                response_id=f"scripted-{len(self.requests)}",
                model=request.options.model or self.info.model,
            )
        finally:
            self.open_streams -= 1

    def _usage(self, request: ChatRequest, answer: Message) -> Usage:
        count = self.counter.count_message
        return Usage(self.counter.count_options(request.options) + sum(map(count, request.messages)), count(answer))

    def __repr__(self) -> str:
        return f"ScriptedClient({len(self.answers)} answers)"


def _check_answer(place: str, answer: object) -> None:
    """Raise ``ValueError`` for what cannot be played."""
    if isinstance(answer, str | BaseException) or (isinstance(answer, Message) and answer.role == "assistant"):
        return
    if not isinstance(answer, Sequence):
        given = f"a {answer.role} message" if isinstance(answer, Message) else _given(answer)
        wanted = "text, a message of the assistant, an error, or a list of deltas, parts and errors"
        raise ValueError(f"ScriptedClient: {place} is {given}; an answer is {wanted}")
    for position, step in enumerate(cast("Sequence[object]", answer)):
        if not isinstance(step, (str, BaseException, *PART_TYPES)):
            told = f"{place}[{position}] is {_given(step)}; in a list are texts, parts and errors"
            raise ValueError(f"ScriptedClient: {told}")


def _given(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}: pass an instance, {value.__name__}(...)"
    return f"a {type(value).__name__}"


def _steps(answer: Answer) -> list[str | Part | BaseException]:
    if isinstance(answer, BaseException):
        return [answer]
    if isinstance(answer, Message):
        return [step for part in answer.parts for step in (_words(part.text) if isinstance(part, Text) else [part])]
    if isinstance(answer, str):
        return list(_words(answer))
    return list(answer)


def _words(text: str) -> list[str]:
    head, *rest = text.split(" ")
    return [word for word in (head, *(f" {each}" for each in rest)) if word]


def _append_text(parts: list[Part], text: str) -> None:
    last = parts[-1] if parts else None
    if isinstance(last, Text):
        parts[-1] = Text(last.text + text)
    else:
        parts.append(Text(text))


def _update_of(part: Part) -> ChatUpdate:
    if isinstance(part, Text):
        return ChatUpdate(text=part.text)
    if isinstance(part, Reasoning):
        return ChatUpdate(reasoning=part.text)
    return ChatUpdate(part=part)
