"""A chat completion's answer, folded from its chunks. A whole completion is one big chunk, and takes the same path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import cast

from chatstack.providers.assembly import MessageAssembly
from chatstack.providers.call_ids import sendable_name
from chatstack.providers.extras import as_list, as_object, as_string, encoded, extra_fields, fields_missing, text_in
from chatstack.providers.failures import failure, window_full
from chatstack.providers.openai.chat_calls import (
    LEGACY_CALL,
    REASONING_FIELDS,
    grown_details,
    reasoning_from_fields,
    thought_in,
)
from chatstack.providers.openai.chat_completions import grown, whole
from chatstack.providers.openai.chat_parts import PROVIDER, WIRE
from chatstack.providers.openai.chat_wire import FAILURES, finish_from_wire
from chatstack.providers.openai.usages import chat_usage
from chatstack.values.messages import Message
from chatstack.values.parts import Part, ProviderItem, Reasoning, Text, ToolCall
from chatstack.values.requests import ChatRequest, declared_names
from chatstack.values.responses import CallDelta, ChatUpdate, Usage
from chatstack.values.usage import rest_of, told_early

_TEXT, _REASONING = "content", "reasoning"
_WINDOW_FULL = ("model_context_window_exceeded", "model_length")
"""Finish reasons that OpenAI does not have, but servers with other makers' models do, and Mistral."""

_RANKS: dict[type, int] = {Reasoning: 0, Text: 1, ProviderItem: 1, ToolCall: 2}


class ChatAnswer:
    """Folds the chunks of an answer: ``add`` each and show its updates, then ``finish`` once it ``is_complete``.

    Only the first choice counts: a request for several (``n``) gets the others in ``raw`` alone. ``add`` raises
    ``InputError`` for a chunk of the wrong shape, and the matching ``ProviderError`` for a chunk with an error.
    ``request`` is what is answered; calls without ids are told apart by it.
    """

    def __init__(self, request: ChatRequest | None = None) -> None:
        self.finish_reason = ""
        self._assembly = MessageAssembly(WIRE, request=request)
        self._usage: Usage | None = None
        self._told: Usage | None = None
        self._request = request
        self._id = self._model = self._tier = ""
        self._last_index, self._last_id = -1, ""
        self._joined: dict[str, object] = {}
        self._reasoning: dict[str, object] = {}

    @property
    def is_complete(self) -> bool:
        """True if the model has sent a finish reason."""
        return bool(self.finish_reason)

    def add(self, chunk: Mapping[str, object], *, streaming: bool) -> Iterator[ChatUpdate]:
        """Fold in one chunk, and yield its updates."""
        if chunk.get("error"):
            raise failure(PROVIDER, body=dict(chunk), streaming=streaming)
        self._id = self._id or text_in(chunk, "id")
        self._model = self._model or text_in(chunk, "model")
        self._tier = text_in(chunk, "service_tier") or self._tier
        self._add_usage(chunk.get("usage"))
        choices = chunk.get("choices")
        if choices is None and streaming:
            return
        for position, each in enumerate(as_list(choices, "choices")):
            choice = as_object(each, f"choices[{position}]")
            if choice.get("index", 0) not in (0, None):
                continue
            self._add_usage(choice.get("usage"))  # Moonshot's place
            fields = choice.get("message")
            if streaming:  # a chunk may have no delta, a whole answer has its message
                fields = fields or choice.get("delta") or cast("object", {})
            for update in self._add_delta(as_object(fields, "delta" if streaming else "message")):
                # Some servers tell it with every chunk.
                if streaming and self._told is None and self._usage is not None and self._usage.input_tokens:
                    update = told_early(update, self._usage, self._model, self._tier)
                    self._told = update.usage
                yield update
            reason = text_in(choice, "finish_reason")
            failed = reason.removeprefix("function_call_filter: ")
            error = choice.get("error") or ({"type": "server_error", "code": failed} if failed in FAILURES else None)
            if error:  # before its finish reason counts: a failed answer is not complete
                raise failure(PROVIDER, body={"error": error}, streaming=streaming)
            self.finish_reason = reason or self.finish_reason

    def finish(self, raw: object) -> Iterator[ChatUpdate]:
        """Yield the whole calls, then the update that closes the message. Raises ``ContextOverflowError`` if the window
        was full before the model had begun to answer."""
        message = self._message()
        if self.finish_reason in _WINDOW_FULL and not message.parts:
            given = self._usage.input_tokens if self._usage is not None else 0
            raise window_full(PROVIDER, given, self.finish_reason)
        for call in message.calls:
            yield ChatUpdate(part=call)
        yield ChatUpdate(
            message_done=message,
            usage=None if self._usage is None else rest_of(self._usage, self._told),
            finish_reason=finish_from_wire(self.finish_reason, message),
            response_id=self._id,
            model=self._model,
            raw=raw,
            service_tier=self._tier,
        )

    def _add_usage(self, told: object) -> None:
        usage = chat_usage(told)
        if usage is not None and (self._usage is None or usage != Usage()):  # some servers end with an empty one
            self._usage = usage

    def _add_delta(self, delta: Mapping[str, object]) -> Iterator[ChatUpdate]:
        for name, value in delta.items():
            if name in REASONING_FIELDS:
                grow = grown_details if name == "reasoning_details" else grown
                self._reasoning[name] = grow(self._reasoning.get(name), value)
        yield from self._add_thought(text_in(delta, "reasoning_content") or text_in(delta, "reasoning"))
        yield from self._add_content(delta.get("content"))
        legacy = delta.get(LEGACY_CALL)
        if legacy:
            yield ChatUpdate(call_delta=self._add_legacy(as_object(legacy, LEGACY_CALL)))
        for position, each in enumerate(as_list(delta.get("tool_calls") or [], "tool_calls")):
            where = f"tool_calls[{position}]"
            yield ChatUpdate(call_delta=self._add_call(as_object(each, where), where, is_first=not position))
        for name, value in delta.items():
            if name not in ("role", "content", LEGACY_CALL, "tool_calls", *REASONING_FIELDS):
                self._joined[name] = grown(self._joined.get(name), value)

    def _add_thought(self, thought: str) -> Iterator[ChatUpdate]:
        if thought:
            self._assembly.add_reasoning(thought, block=_REASONING)
            yield ChatUpdate(reasoning=thought)

    def _add_content(self, content: object) -> Iterator[ChatUpdate]:
        if isinstance(content, str):
            if content:
                self._assembly.add_text(content, block=_TEXT)
                yield ChatUpdate(text=content)
            return
        for position, each in enumerate(as_list(content or [], "content")):
            part = as_object(each, f"content[{position}]")
            thought = thought_in(part)
            if thought is not None:
                yield from self._add_thought(thought)
            elif part.get("type") == "text":
                yield from self._add_content(text_in(part, "text"))
            else:
                self._assembly.add_part(ProviderItem(PROVIDER, encoded(dict(part))))

    def _add_call(self, fragment: Mapping[str, object], where: str, *, is_first: bool) -> CallDelta:
        """Add a call, or a piece of one. ``is_first``: no other one stands before it in its delta."""
        kind = "custom" if fragment.get("custom") else "function"
        inner = as_object(fragment.get(kind) or {}, kind)
        name, text = text_in(inner, "name"), _arguments(inner, "input" if kind == "custom" else "arguments", where)
        call_id, index = text_in(fragment, "id"), fragment.get("index")
        if not isinstance(index, int):  # whole answers have none, nor have some servers' chunks
            is_next = not is_first or self._last_index < 0 or call_id not in ("", self._last_id)
            index = self._last_index + 1 if is_next else self._last_index
        self._last_index, self._last_id = index, call_id or self._last_id
        known: dict[str, object] = {"index": 0, "id": "", "function": inner, "custom": inner}
        if (text_in(fragment, "type") or "function").lower() == "function":  # some leave it empty
            known["type"] = "function"
        extra = fields_missing(fragment, known)
        return self._assembly.add_call(index, id=call_id, name=name, arguments=text, extra=extra)

    def _add_legacy(self, fragment: Mapping[str, object]) -> CallDelta:
        return self._assembly.add_call(
            -1,
            id=LEGACY_CALL,
            name=text_in(fragment, "name"),
            arguments=_arguments(fragment, "arguments", LEGACY_CALL),
            extra={"type": LEGACY_CALL},
        )

    def _message(self) -> Message:
        thought = {name: said for name, value in self._reasoning.items() if (said := whole(value))}
        if thought:
            self._assembly.add_part(reasoning_from_fields(thought), block=_REASONING)
        joined = {name: whole(value) for name, value in self._joined.items()}
        self._assembly.add_extra({name: value for name, value in joined.items() if value not in (None, [], "")})
        message = self._assembly.finish()
        # One wire message has one order, whatever order its fragments came in.
        parts = sorted((self._decided(part) for part in message.parts), key=lambda part: _RANKS.get(type(part), 1))
        return Message("assistant", tuple(parts), extra_json=message.extra_json)

    def _decided(self, part: Part) -> Part:
        """Return the part with a custom call's input, which is any text, as a JSON string, and with a name that can be
        sent again: models make up some, and then every later request would be refused."""
        if not isinstance(part, ToolCall):
            return part
        is_custom = extra_fields(part.extra_json, WIRE, "tool_calls").get("type") == "custom"
        arguments = encoded(part.arguments) if is_custom else part.arguments
        return ToolCall(part.id, sendable_name(part.name, self._declared), arguments, part.extra_json)

    @cached_property
    def _declared(self) -> frozenset[str] | None:
        return None if self._request is None else declared_names(self._request.options.tools)


def _arguments(fields: Mapping[str, object], name: str, where: str) -> str:
    """Return the arguments of a call as text; some servers give the object itself. Raises ``InputError`` for anything
    else, as a tool would run without them."""
    value = fields.get(name)
    if isinstance(value, Mapping):
        return encoded(cast("object", value))
    return "" if value is None else as_string(value, f"{where}.{name}")
