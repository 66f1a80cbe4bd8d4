"""The two public methods over ``send``, and validation of their arguments."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence
from operator import countOf
from typing import Any, Never, TypeGuard, TypeVar, overload

from chatstack.client.checks import send_to
from chatstack.client.parsing import OutputShape, shape_of
from chatstack.client.stream import ChatStream
from chatstack.client.what_was_done import tell_what_was_done
from chatstack.errors import InputError
from chatstack.values.messages import Message
from chatstack.values.mistakes import check_messages, kind_of, remedy_for
from chatstack.values.requests import NO_OPTIONS, ChatOptions, ChatRequest, refuse_blank
from chatstack.values.responses import ChatResponse, ParsedResponse

T = TypeVar("T")

_CALLED = {
    **dict.fromkeys(("system", "system_prompt", "instruction"), "instructions"),
    **dict.fromkeys(("response_format", "output_schema", "schema"), "output_type"),
    **dict.fromkeys(("session_id", "thread_id"), "conversation_id"),
}
"""Names of options in other libraries, and their names here."""
_TAKEN = ("conversation_id", "options", "output_type", "timeout_seconds")


class ChatFronts:
    """Mixin that adds the two fronts to a client: a client of your own needs only ``send``.

    Both fronts call that, so override it alone: they are overloaded, and another signature is an error of type
    checkers.
    """

    __slots__ = ()

    async def send(self, request: ChatRequest, /) -> ChatStream:
        """Answer one request. See ``ChatClient``."""
        raise TypeError(f"{type(self).__name__} has no send(): every chat client needs one")

    @overload
    async def get_response(
        self,
        messages: str | Message | Sequence[Message],
        *,
        options: ChatOptions | None = None,
        conversation_id: str | None = None,
        output_type: type[T],
        timeout_seconds: float | None = None,
    ) -> ParsedResponse[T]: ...
    @overload
    async def get_response(
        self,
        messages: str | Message | Sequence[Message],
        *,
        options: ChatOptions | None = None,
        conversation_id: str | None = None,
        output_type: object = None,
        timeout_seconds: float | None = None,
    ) -> ChatResponse: ...
    async def get_response(
        self,
        messages: str | Message | Sequence[Message],
        *,
        options: ChatOptions | None = None,
        conversation_id: str | None = None,
        output_type: object = None,
        timeout_seconds: float | None = None,
        **unknown: Never,
    ) -> ChatResponse:
        """Answer the conversation; returns when the turn is over, tool calls included.

        ``output_type`` (a dataclass, a ``TypedDict`` or ``msgspec.Struct``, a pydantic model, or a union of them) asks
        for an answer of that type: ``response.parsed``. An answer that does not fit, is refused or cut off raises an
        ``OutputError``, which keeps the text.

        Raises ``InputError`` for a request that cannot be sent, ``ProviderError`` when the model's side fails, and
        ``TurnTimeoutError`` when ``timeout_seconds`` for the whole turn ran out. The ``messages`` of an error, also of
        one that is not ours, are what the turn had added until then.
        """
        if unknown:
            raise _unknown("get_response", unknown)
        shape = None if output_type is None else shape_of(output_type)
        request = request_of(messages, options, conversation_id, stream=False, shape=shape)
        refuse_blank(request.messages)
        if timeout_seconds is not None:
            async with self._opening(request, timeout_seconds, shape) as timed:
                return await timed.response()
        stream: ChatStream | None = None
        try:
            stream = await send_to(self, request)
            answer = await stream.response()  # which closes it
            return answer if shape is None else shape.parsed(answer)
        except BaseException as error:
            if stream is not None:
                await stream.aclose()
            if isinstance(error, Exception):
                tell_what_was_done(error, None if stream is None else stream.so_far)
            raise

    @overload
    def get_streaming_response(
        self,
        messages: str | Message | Sequence[Message],
        *,
        options: ChatOptions | None = None,
        conversation_id: str | None = None,
        output_type: type[T],
        timeout_seconds: float | None = None,
    ) -> ChatStream[ParsedResponse[T]]: ...
    @overload
    def get_streaming_response(
        self,
        messages: str | Message | Sequence[Message],
        *,
        options: ChatOptions | None = None,
        conversation_id: str | None = None,
        output_type: object = None,
        timeout_seconds: float | None = None,
    ) -> ChatStream: ...
    def get_streaming_response(
        self,
        messages: str | Message | Sequence[Message],
        *,
        options: ChatOptions | None = None,
        conversation_id: str | None = None,
        output_type: object = None,
        timeout_seconds: float | None = None,
        **unknown: Never,
    ) -> ChatStream:
        """Return the same answer as a stream. Bad input raises at once; nothing is sent until it is entered or
        iterated.

        With ``output_type``, ``stream.response()`` has the value, or raises the ``OutputError``. Errors have
        ``messages``, as those of ``get_response``; a stream that you leave early has ``stream.so_far.messages``.
        """
        if unknown:
            raise _unknown("get_streaming_response", unknown)
        shape = None if output_type is None else shape_of(output_type)
        request = request_of(messages, options, conversation_id, stream=True, shape=shape)
        refuse_blank(request.messages)
        return self._opening(request, timeout_seconds, shape)

    def _opening(self, request: ChatRequest, timeout_seconds: float | None, shape: OutputShape | None) -> ChatStream:
        _check_timeout(timeout_seconds)
        return ChatStream.opening(
            lambda: send_to(self, request),
            timeout_seconds=timeout_seconds,
            read=None if shape is None else _reader(shape),
        )


def _reader(shape: OutputShape) -> Callable[[ChatResponse], ChatResponse]:
    """Return a function that parses an answer; its error tells of the whole turn."""

    def parsed(answer: ChatResponse) -> ChatResponse:
        try:
            return shape.parsed(answer)
        except Exception as error:
            tell_what_was_done(error, answer)
            raise

    return parsed


def request_of(
    messages: object,
    options: object = None,
    conversation_id: object = None,
    *,
    stream: bool = False,
    shape: OutputShape | None = None,
) -> ChatRequest:
    """Check the arguments of a front, and return the request; errors name position and type, never text."""
    given: Any = messages  # a cast would be a call
    kind = type(messages)
    if kind is list or kind is tuple or _is_sequence(messages):
        found: tuple[Any, ...] = tuple(given)
    elif isinstance(messages, str):
        found = (Message.user(messages),)
    elif isinstance(messages, Message):
        found = (messages,)
    else:
        raise InputError(
            f"messages: expected text, a Message or a list of them, got {kind_of(messages)}{remedy_for(messages)}"
        )
    if not found:
        raise InputError("messages: empty; a request needs at least one message")
    if countOf(map(type, found), Message) != len(found):  # histories are long, and nearly always right
        check_messages(found)
    if options is not None and not isinstance(options, ChatOptions):
        raise InputError(f"options: expected ChatOptions, got {type(options).__name__}; write ChatOptions(...)")
    if conversation_id is not None and not isinstance(conversation_id, str):
        raise InputError(f"conversation_id: expected text, got {type(conversation_id).__name__}")
    if conversation_id == "":
        raise InputError("conversation_id: empty; everybody without one would share a conversation: pass None")
    options = options or NO_OPTIONS
    if shape is not None:
        if options.output_schema is not None:
            raise InputError("output_type: the options have an output_schema already; leave one of them out")
        options = options.but(output_schema=shape.schema)
    return ChatRequest(found, options, conversation_id, stream)


def _unknown(front: str, unknown: Collection[str]) -> InputError:
    """Return an error that names the first unknown option, e.g. ``temperature=0``, and where it belongs, or the nearest
    name."""
    name = next(iter(unknown))
    fields = ChatOptions.__struct_fields__
    close = _CALLED.get(name) or next(iter(difflib.get_close_matches(name, [*_TAKEN, *fields], n=1)), "")
    if name == "stream":
        remedy = "get_streaming_response(...) streams"
    elif close in _TAKEN:
        remedy = f"did you mean {close!r}?"
    else:
        example = f"{close}=..." if close else "temperature=0, extra={...}"
        remedy = f"how to answer is said by options=ChatOptions({example})"
    return InputError(f"{front}: unknown option {name!r}; {remedy}")


def _check_timeout(seconds: object) -> None:
    if seconds is None:
        return
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise InputError(f"timeout_seconds: expected a number, got {type(seconds).__name__}")
    if not seconds > 0:
        raise InputError(f"timeout_seconds={seconds} must be greater than 0")


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    """Return True for what is like a list; bytes are a mistake, and an iterator could be read only once."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)
