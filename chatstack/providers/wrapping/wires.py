"""The three APIs whose calls can be wrapped: their addresses, requests and answers, over the same pure functions as the
providers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, cast

from chatstack.providers.anthropic.blocks import PROVIDER as ANTHROPIC
from chatstack.providers.anthropic.events import AnswerFold, events_of
from chatstack.providers.anthropic.wire import request_from_wire as anthropic_from_wire
from chatstack.providers.anthropic.wire import request_to_wire as anthropic_to_wire
from chatstack.providers.extras import WireObject, as_list, as_object, as_string, encoded, extra_json_of
from chatstack.providers.failures import failure, misshapen, stream_ended
from chatstack.providers.openai.chat_answers import ChatAnswer
from chatstack.providers.openai.chat_parts import PROVIDER as OPENAI
from chatstack.providers.openai.chat_wire import request_from_wire as chat_from_wire
from chatstack.providers.openai.chat_wire import request_to_wire as chat_to_wire
from chatstack.providers.openai.responses_answers import ResponsesAnswer
from chatstack.providers.openai.responses_options import request_to_wire as responses_to_wire
from chatstack.providers.openai.responses_parts import WIRE as RESPONSES_WIRE
from chatstack.providers.openai.responses_wire import messages_from_wire as responses_from_wire
from chatstack.providers.wrapping.joining import ChatJoining, Joining, MessagesJoining, ResponsesJoining
from chatstack.values.parts import ProviderItem
from chatstack.values.requests import ChatOptions, ChatRequest, DeclaredTool, ToolDeclaration
from chatstack.values.responses import ChatUpdate


class Reading(ABC):
    """An answer that is being read: ``updates`` of each object, then those of the ``end``."""

    provider: ClassVar[str]
    ends: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *, streaming: bool) -> None:
        self.streaming = streaming

    def updates(self, event: WireObject) -> list[ChatUpdate]:
        """Return the updates of one event, or of the whole answer."""
        with misshapen(self.provider, streaming=self.streaming):
            return list(self._updates(event))

    def end(self) -> list[ChatUpdate]:
        """Return the last updates. Raises ``BrokenStreamError`` if the answer is not complete."""
        with misshapen(self.provider, streaming=self.streaming):
            return list(self._end())

    def is_end(self, raw: bytes, event: WireObject | None) -> bool:
        """Return True for the event behind which nothing comes: the server may take its time to close."""
        return event is not None and event.get("type") in self.ends

    @abstractmethod
    def _updates(self, event: WireObject) -> Iterable[ChatUpdate]: ...

    @abstractmethod
    def _end(self) -> Iterable[ChatUpdate]: ...


class OpenAIReading(Reading):
    """An answer of OpenAI's, folded by ``answer``."""

    provider = OPENAI
    answer: ChatAnswer | ResponsesAnswer

    def _updates(self, event: WireObject) -> Iterable[ChatUpdate]:
        return self.answer.add(event, streaming=self.streaming)

    def _end(self) -> Iterable[ChatUpdate]:
        if not self.answer.is_complete:
            raise stream_ended(OPENAI, "its end")
        return self.answer.finish(None)


class ChatReading(OpenAIReading):
    """A chat completion."""

    def __init__(self, *, streaming: bool) -> None:
        OpenAIReading.__init__(self, streaming=streaming)
        self.answer = ChatAnswer()

    def is_end(self, raw: bytes, event: WireObject | None) -> bool:
        return event is None and b"[DONE]" in raw


class ResponsesReading(OpenAIReading):
    """A response of Responses."""

    ends = ("response.completed", "response.incomplete", "response.failed")

    def __init__(self, *, streaming: bool) -> None:
        OpenAIReading.__init__(self, streaming=streaming)
        self.answer = ResponsesAnswer()


class MessagesReading(Reading):
    """An answer of Anthropic's."""

    provider, ends = ANTHROPIC, ("message_stop",)

    def __init__(self, *, streaming: bool) -> None:
        Reading.__init__(self, streaming=streaming)
        self._fold = AnswerFold()

    def _updates(self, event: WireObject) -> Iterable[ChatUpdate]:
        if event.get("type") == "error":
            raise failure(ANTHROPIC, body=event, streaming=self.streaming)
        for each in (event,) if self.streaming else events_of(event):
            yield from self._fold.updates(each)

    def _end(self) -> Iterable[ChatUpdate]:
        return self._fold.ended()


class Wire(ABC):
    """One API: ``path`` ends the address of its calls, ``events_have_names`` in its streams."""

    provider: ClassVar[str]
    path: ClassVar[str]
    events_have_names: ClassVar[bool] = True
    reading: ClassVar[type[Reading]]
    joining: ClassVar[type[Joining]]

    @abstractmethod
    def read(self, body: Mapping[str, object]) -> ChatRequest:
        """Return the request in a body. Raises ``InputError`` for what is malformed."""

    @abstractmethod
    def _written(self, request: ChatRequest) -> WireObject: ...

    def write(self, request: ChatRequest, model: str) -> WireObject:
        """Return the body of a request; ``model`` is for options that name none."""
        body = self._written(request)
        return body if body.get("model") else {"model": model, **body}


class ChatWire(Wire):
    """OpenAI's chat completions."""

    provider, path, events_have_names = OPENAI, "/chat/completions", False
    reading, joining = ChatReading, ChatJoining

    def read(self, body: Mapping[str, object]) -> ChatRequest:
        request = chat_from_wire(body)
        extra = {name: value for name, value in request.options.extra.items() if name != "tools"}  # it would win
        return request.but(options=request.options.but(extra=extra))

    def _written(self, request: ChatRequest) -> WireObject:
        return chat_to_wire(request)


class ResponsesWire(Wire):
    """OpenAI's Responses."""

    provider, path = OPENAI, "/responses"
    reading, joining = ResponsesReading, ResponsesJoining

    def read(self, body: Mapping[str, object]) -> ChatRequest:
        rest = dict(body)
        given = rest.pop("input", None) or cast("list[object]", [])
        items = [{"role": "user", "content": given}] if isinstance(given, str) else as_list(given, "input")
        is_stream = rest.pop("stream", None) is True
        fields: dict[str, object] = {"tools": tuple(_tools(rest.pop("tools", None)))}
        for name, field, kind in _RESPONSES_FIELDS:
            if type(rest.get(name)) is kind:
                fields[field] = rest.pop(name)
        return ChatRequest(responses_from_wire(items), ChatOptions(extra=rest).but(**fields), None, is_stream)

    def _written(self, request: ChatRequest) -> WireObject:
        return responses_to_wire(request)


_RESPONSES_FIELDS = (
    ("model", "model", str),
    ("instructions", "instructions", str),
    ("max_output_tokens", "max_tokens", int),
    ("parallel_tool_calls", "parallel_tool_calls", bool),
    ("tool_choice", "tool_choice", str),
)


def _tools(tools: object) -> Iterator[DeclaredTool]:
    for position, each in enumerate(as_list(tools or [], "tools")):
        fields = as_object(each, f"tools[{position}]")
        if fields.get("type") != "function":
            yield ProviderItem(OPENAI, encoded(dict(fields)))
            continue
        name, about = as_string(fields.get("name"), f"tools[{position}].name"), fields.get("description")
        parameters, strict = fields.get("parameters"), fields.get("strict")
        text = encoded(cast("object", parameters)) if isinstance(parameters, Mapping) else ""
        known = {"type": 0, "name": 0, "description": 0, "parameters": 0, "strict": 0}
        extra = extra_json_of(fields, known, RESPONSES_WIRE)
        described = about if isinstance(about, str) else ""
        yield ToolDeclaration(name, described, text, strict if isinstance(strict, bool) else None, extra)


class MessagesWire(Wire):
    """Anthropic's Messages."""

    provider, path = ANTHROPIC, "/v1/messages"
    reading, joining = MessagesReading, MessagesJoining

    def read(self, body: Mapping[str, object]) -> ChatRequest:
        return anthropic_from_wire(body)

    def _written(self, request: ChatRequest) -> WireObject:
        return anthropic_to_wire(request)


WIRES: tuple[Wire, ...] = (ChatWire(), ResponsesWire(), MessagesWire())
