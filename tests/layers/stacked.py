"""Stacks of the same layers and options, made by hand and by a recipe, and all that goes through them in a course."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import pytest

from chatstack import (
    ChatClient,
    ChatFronts,
    ChatOptions,
    ChatRequest,
    ChatStack,
    ChatStream,
    ContextMemory,
    ContextOverflowError,
    Message,
    ProviderInfo,
    ServerError,
    Strategy,
    ToolDeclaration,
    semconv,
)
from chatstack.context.edits.summaries import SUMMARY_PROMPT
from chatstack.context.requests.services import ContextServices
from chatstack.stack.recipe import LayerOrderWarning
from chatstack.telemetry.emission import Telemetry
from chatstack.testing import ScriptedClient
from tests.context.conversing import Model, Process, Talk, Writer, size_of

Layers: TypeAlias = Sequence[tuple[Any, Mapping[str, object]]]
"""Layers from the outermost in: the class of each, or of its strategy, and its options."""

Between: TypeAlias = Callable[[ChatClient], ChatClient]
"""A layer of somebody else's."""

STATED = 4_700
"""The window that the model's client states."""
OPTIONS = ChatOptions(instructions="Be brief.", tools=(ToolDeclaration("look", parameters='{"type": "object"}'),))


@dataclass(frozen=True, kw_only=True)
class Course:
    """The course that conversations take, and how the models behave meanwhile."""

    plays: Callable[[Side], Awaitable[object]]
    reports: float = 1.0
    window: int | None = None
    tells: bool = False
    fails: bool = False
    stream: bool = False


# Models


class Clock:
    """Time as calls make it pass: a few seconds with each, and now and then longer than caches live."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> float:
        return 7.0 * self.calls + 400.0 * (self.calls // 9)


class Behaving(ScriptedClient):
    """Refuses what is larger than its window, which narrows each time, and fails at times where it is to summarize: an
    error and an empty answer come before each summary."""

    def __init__(self, course: Course, log: list[ChatRequest], window: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.course, self.log, self.window = course, log, window
        self.refused = self.summaries = 0

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.log.append(as_told(request))
        if self.log[-1] is not request:
            self.summaries += 1
            if self.course.fails and self.summaries % 3 == 1:
                raise ServerError("down")
            if self.course.fails and self.summaries % 3 == 2:
                return await ChatStream.primed(self._play("", request))
        if self.window is not None and (size := size_of(request.messages)) > self.window:
            told = (size, self.window) if self.course.tells else (None, None)
            self.refused, self.window = self.refused + 1, max(2_800, self.window - 200)
            raise ContextOverflowError(*told, provider="scripted", status=400)
        return await super().send(request)


class Asked(Behaving, Model):
    """Answers, and writes summaries if nobody else does."""


class Writes(Behaving, Writer):
    """Writes summaries, and is never asked too much."""


def as_told(request: ChatRequest) -> ChatRequest:
    """Return the request; one for a summary without the delimiter of its transcript, which is another one each time."""
    said = request.options.instructions
    if not said.startswith(SUMMARY_PROMPT):
        return request
    delimiter = re.findall("[0-9a-f]{16}", said)[0]
    messages = tuple(Message.user(each.text.replace(delimiter, "-")) for each in request.messages)
    return request.but(messages=messages, options=request.options.but(instructions=said.replace(delimiter, "-")))


# Stacks


class Stranger:
    """A layer of somebody else's, that hands requests on as they are, and shows nothing."""

    def __init__(self, client: ChatClient) -> None:
        self._client = client

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self._client.send(request)


class Open(Stranger):
    """The same, and it shows the client that it wraps."""

    @property
    def inner(self) -> ChatClient:
        return self._client


def by_hand(client: Any, layers: Layers, *, shares: bool, between: Between | None = None) -> ChatFronts:
    """Stack the layers by their constructors, all with one set of services, or with none given."""
    services = {"services": ContextServices()} if shares else {}
    for number, (source, options) in enumerate(reversed(layers)):
        if number and between is not None:
            client = between(client)
        is_strategy = issubclass(source, Strategy)
        factory = source(**options).as_layer() if is_strategy else functools.partial(source, **options)
        client = factory(client, **services)
    made: ChatFronts = client
    return made


def from_recipe(client: ChatClient, layers: Layers, *, between: Between | None = None) -> ChatFronts:
    """Build the layers from a recipe."""
    stack = ChatStack(client)
    for number, (source, options) in enumerate(layers):
        if number and between is not None:
            stack = stack.with_layer(between, f"between {number}", {})
        stack = stack.with_layer(source, f"layer {number}", options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayerOrderWarning)  # orders that are hardly intended have to work, too
        return stack.build()


# Courses


class Call(NamedTuple):
    """The requests of a call, those for summaries included, its answer, and the codes of its warnings."""

    requests: list[ChatRequest]
    answer: object
    warnings: list[str]


class Codes(logging.Handler):
    """Keeps the codes of warnings, but of an order that is hardly intended: of layers by hand nobody checks it."""

    def __init__(self) -> None:
        super().__init__()
        self.codes: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        code = record.__dict__[semconv.WARNING_CODE]
        if code != "layer_order":
            self.codes.append(code)


class Side(Process):
    """A course through a stack with models, and a clock, of its own. ``edits`` are as layers report them."""

    def __init__(
        self,
        layers: Callable[[Writer], Layers],
        course: Course,
        stacked: Callable[[ChatClient, Layers], ChatFronts],
    ) -> None:
        self.course, self._codes, self._clock = course, Codes(), Clock()
        self._requests: list[ChatRequest] = []
        info = ProviderInfo(name="scripted", model="script", window_tokens=STATED)
        self.asked = Asked(course, self._requests, course.window, reports=course.reports)
        self.asked.info, self.writes = info, Writes(course, self._requests)
        self.calls: list[Call] = []
        self.edited: list[str] = []
        self.talks: list[Talk] = []
        with self._watched():
            self._front = stacked(self.asked, layers(self.writes))
            asyncio.run(self._played())
        del self._front  # with all that it remembers

    def talk(self, says: Sequence[str], head: Sequence[Message] = (), **how: Any) -> Talk:
        """Begin a conversation, which ``step`` takes on."""
        self.talks.append(Talk(tuple(head), says, options=OPTIONS, **how))
        return self.talks[-1]

    async def ask(
        self, messages: Sequence[Message], conversation_id: str | None, options: ChatOptions | None = None
    ) -> tuple[tuple[Message, ...], Message]:
        self._clock.calls += 1
        if self.course.stream:
            stream = self._front.get_streaming_response(messages, conversation_id=conversation_id, options=options)
            async with stream:
                response = await stream.response()
        else:
            response = await self._front.get_response(messages, conversation_id=conversation_id, options=options)
        answer = (response.messages, response.usage, response.overhead_usage, response.finish_reason)
        self.calls.append(Call(self._requests[:], answer, self._codes.codes[:]))
        self._requests.clear()
        self._codes.codes.clear()
        return self.calls[-1].requests[-1].messages, response.messages[-1]

    async def _played(self) -> None:
        await self.course.plays(self)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        logger, edit = logging.getLogger(semconv.SCOPE), Telemetry.edit

        def edited(telemetry: Telemetry, strategy: str, message: str, *args: Any, **more: Any) -> None:
            self.edited.append(f"{strategy}: {message}")
            edit(telemetry, strategy, message, *args, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Telemetry, "edit", edited)
            patch.setattr(logger, "propagate", False)
            patch.setitem(ContextMemory.__init__.__kwdefaults__ or {}, "clock", self._clock)
            logger.addHandler(self._codes)
            try:
                yield
            finally:
                logger.removeHandler(self._codes)
