"""The three APIs' requests and answers as JSON objects, to and from ours: for whoever speaks HTTP without an SDK.

    request = read_request("messages", body)               # the body that somebody has sent
    reader = AnswerReader("messages", streaming=True)
    for event in events:                                   # each one the object in an event's data
        updates = reader.add(event)
    updates = reader.finish()

A proxy, a recorder or a provider of your own reads with it; ``failure`` (``chatstack.providers.failures``) turns an
error's body into the matching ``ProviderError``. Pure: nothing is sent here, and no SDK is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from chatstack.errors import ServerError
from chatstack.providers.anthropic import wire as anthropic_wire
from chatstack.providers.anthropic.blocks import PROVIDER as ANTHROPIC
from chatstack.providers.anthropic.events import AnswerFold, events_of
from chatstack.providers.converters import Form as Form
from chatstack.providers.converters import naming_faults
from chatstack.providers.extras import WireObject, as_list, as_object
from chatstack.providers.failures import failure, misshapen, stream_ended
from chatstack.providers.openai import chat_wire, responses_options, responses_wire
from chatstack.providers.openai.chat_answers import ChatAnswer
from chatstack.providers.openai.chat_parts import PROVIDER as OPENAI
from chatstack.providers.openai.responses_answers import ResponsesAnswer
from chatstack.values.interning import interned
from chatstack.values.messages import Message
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate

PROVIDERS: Mapping[Form, str] = {"chat": OPENAI, "messages": ANTHROPIC, "responses": OPENAI}
"""The name of the provider whose API each form is."""
_LISTS: Mapping[Form, str] = {"chat": "messages", "messages": "messages", "responses": "input"}
_REQUESTS: Mapping[Form, Callable[[Mapping[str, object]], ChatRequest]] = {
    "chat": chat_wire.request_from_wire,
    "messages": anthropic_wire.request_from_wire,
    "responses": responses_options.request_from_wire,
}
_BODIES: Mapping[Form, Callable[[ChatRequest], WireObject]] = {
    "chat": chat_wire.request_to_wire,
    "messages": anthropic_wire.request_to_wire,
    "responses": responses_options.request_to_wire,
}
_ITEMS: Mapping[Form, Callable[[Sequence[Message]], list[WireObject]]] = {
    "chat": chat_wire.messages_to_wire,
    "messages": anthropic_wire.messages_to_wire,
    "responses": responses_wire.messages_to_wire,
}


def read_request(form: Form, body: Mapping[str, object]) -> ChatRequest:
    """Return the request in a JSON body, messages that were read before as the same objects. Fields without a
    counterpart here go into ``options.extra``.

    Raises ``InputError``, naming the place, for malformed data.
    """

    def read() -> ChatRequest:
        request = _REQUESTS[form](body)
        return request.but(messages=tuple(interned(request.messages)))

    return naming_faults(read, _LISTS[form], body.get(_LISTS[form]))


def write_request(form: Form, request: ChatRequest) -> WireObject:
    """Return the JSON body of a request, without marks for a prompt cache. Raises ``InputError`` for what this API has
    no form for."""
    return naming_faults(lambda: _BODIES[form](request), "messages", request.messages)


def read_messages(form: Form, items: Sequence[object]) -> tuple[Message, ...]:
    """Return the messages in a body's ``messages`` or ``input``, those that were read before as the same objects.

    Raises ``InputError``, naming the place.
    """

    def read() -> tuple[Message, ...]:
        if form == "messages":
            blocks = [as_object(each, f"messages[{at}]") for at, each in enumerate(items)]
            return tuple(interned(anthropic_wire.messages_from_wire(blocks)))
        wire = chat_wire if form == "chat" else responses_wire
        return tuple(interned(wire.messages_from_wire(items)))

    return naming_faults(read, _LISTS[form], items)


def write_messages(form: Form, messages: Sequence[Message]) -> list[WireObject]:
    """Return messages as items of a body's ``messages`` or ``input``. Raises ``InputError`` for what this API has no
    form for."""
    return naming_faults(lambda: _ITEMS[form](messages), "messages", messages)


class _Answer(Protocol):
    @property
    def is_complete(self) -> bool: ...

    def add(self, event: Mapping[str, object], /, *, streaming: bool) -> Iterator[ChatUpdate]: ...

    def finish(self, raw: object) -> Iterator[ChatUpdate]: ...


class AnswerReader:
    """Reads one answer: the events of a stream, or, not ``streaming``, the whole answer as its only event.

    ``add`` and ``finish`` raise the matching ``ProviderError`` for an event that tells an error, and for an answer that
    is malformed, or not complete.
    """

    def __init__(self, form: Form, *, streaming: bool) -> None:
        self.streaming = streaming
        self._provider = PROVIDERS[form]
        self._answer: _Answer = _ANSWERS[form]()

    @property
    def is_complete(self) -> bool:
        """True once the model has ended its answer; a stream may go on, with the usage."""
        return self._answer.is_complete

    def add(self, event: object) -> list[ChatUpdate]:
        """Return the updates for one event."""
        with misshapen(self._provider, streaming=self.streaming):
            return list(self._answer.add(as_object(event, "event"), streaming=self.streaming))

    def finish(self, raw: object = None) -> list[ChatUpdate]:
        """Return the last updates. ``raw`` is what the answer's ``raw`` shall be."""
        if not self.is_complete:
            if self.streaming:
                raise stream_ended(self._provider, "its last event")
            raise ServerError(f"{self._provider}: the answer is not complete", provider=self._provider)
        with misshapen(self._provider, streaming=self.streaming):
            return list(self._answer.finish(raw))


class _AnthropicAnswer:
    """The events of Anthropic's API, as the two others are read."""

    def __init__(self) -> None:
        self._fold = AnswerFold()

    @property
    def is_complete(self) -> bool:
        return self._fold.is_done

    def add(self, event: Mapping[str, object], *, streaming: bool) -> Iterator[ChatUpdate]:
        if event.get("type") == "error":
            raise failure(ANTHROPIC, body=dict(event), streaming=streaming)
        if streaming:
            yield from self._fold.updates(event)
            return
        as_list(event.get("content"), "content")
        for each in events_of(event):
            yield from self._fold.updates(each)

    def finish(self, raw: object) -> Iterator[ChatUpdate]:
        return self._fold.ended(raw)


_ANSWERS: Mapping[Form, type[_Answer]] = {
    "chat": ChatAnswer,
    "messages": _AnthropicAnswer,
    "responses": ResponsesAnswer,
}
