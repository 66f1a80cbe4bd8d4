"""One answer, read from its chunks. Pure; chunks are JSON objects. A whole answer is read as its only chunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from chatstack.errors import ServerError
from chatstack.providers.assembly import digest_for_ids
from chatstack.providers.extras import WireObject, as_list, as_object, object_or_empty
from chatstack.providers.failures import stream_ended
from chatstack.values.messages import Message
from chatstack.values.parts import Reasoning, Text
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate, FinishReason, Usage
from chatstack.values.usage import rest_of, told_early
from chatstack_gemini.parts import MADE_ID, PROVIDER, part_from_wire

FINISHES: Mapping[str, FinishReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    **dict.fromkeys(
        (
            *("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"),
            *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "ESCALATION", "PUP_LIMITED_DISABLED"),
        ),
        "refused",
    ),
}

_FAILURES = frozenset({"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL"})
"""Reasons of answers that Gemini took back, as the model had written no valid call, or none of a declared tool."""


class AnswerFold:
    """Folds the chunks of the answer to a request into updates; ``whole`` is the answer as one chunk.

    Text continues the part before it only where neither has other fields: a signature belongs to its own part, which
    has to go back apart.
    """

    def __init__(self, request: ChatRequest) -> None:
        self._request = request
        self._fields: WireObject = {}
        self._candidate: WireObject = {}
        self._parts: list[WireObject] = []
        self._pieces: list[str] = []
        self._told: Usage | None = None

    @property
    def is_complete(self) -> bool:
        """True once the model has ended its answer, or the prompt was blocked."""
        return bool(self._candidate.get("finishReason") or self._blocked)

    def whole(self) -> WireObject:
        """Return the answer, as far as it has come, as one chunk."""
        self._join()
        content = {"role": "model", "parts": self._parts}
        return {**self._fields, "candidates": [{**self._candidate, "content": content}]}

    def updates(self, chunk: Mapping[str, object]) -> Iterator[ChatUpdate]:
        """Yield what the chunk shows."""
        for name, value in chunk.items():
            if name == "usageMetadata":
                value = {**object_or_empty(self._fields.get(name)), **as_object(value, name)}
            if name != "candidates":
                self._fields[name] = value
        for each in as_list(chunk.get("candidates") or (), "candidates"):
            candidate = as_object(each, "candidates[]")
            if candidate.get("index") not in (None, 0):
                continue
            self._candidate.update((name, value) for name, value in candidate.items() if name != "content")
            content = as_object(candidate.get("content") or {}, "content")
            for part in as_list(content.get("parts") or (), "parts"):
                for update in self._add(dict(as_object(part, "parts[]"))):
                    if self._told is None and self._usage.input_tokens and not self.is_complete:
                        update = told_early(update, self._usage, str(self._fields.get("modelVersion") or ""))
                        self._told = update.usage
                    yield update

    def ended(self, raw: object) -> Iterator[ChatUpdate]:
        """Yield the last updates. Raises ``BrokenStreamError`` if the answer is not complete, and ``ServerError`` if it
        has failed without a word: to the caller it would be an empty answer."""
        if not self.is_complete:
            raise stream_ended(PROVIDER, "a finishReason")
        self._join()
        response_id = str(self._fields.get("responseId") or "")
        made = f"{MADE_ID}{response_id or digest_for_ids(self._request)}"
        message = Message(
            "assistant", tuple(part_from_wire(part, f"{made}_{at}") for at, part in enumerate(self._parts))
        )
        reason = str(self._candidate.get("finishReason") or "")
        if reason in _FAILURES and not (message.text or message.calls):
            told = f"the model wrote no valid answer ({reason}): ask again"
            raise ServerError(f"{PROVIDER}: {told}", provider=PROVIDER, code=reason)
        for part in message.parts:
            if not isinstance(part, (Text, Reasoning)):
                yield ChatUpdate(part=part)
        yield ChatUpdate(
            message_done=message,
            usage=rest_of(self._usage, self._told),
            finish_reason=self._finish_reason(reason, message),
            response_id=response_id,
            model=str(self._fields.get("modelVersion") or ""),
            raw=raw,
        )

    @property
    def _usage(self) -> Usage:
        return usage_from_wire(object_or_empty(self._fields.get("usageMetadata")))

    @property
    def _blocked(self) -> object:
        return object_or_empty(self._fields.get("promptFeedback")).get("blockReason")

    def _add(self, part: WireObject) -> Iterator[ChatUpdate]:
        kind, text = _plain_kind(part), part.get("text")
        if kind is None or not self._parts or _plain_kind(self._parts[-1]) != kind:
            self._join()
            if text == "" and kind is not None:
                return
            self._parts.append(part)
            self._pieces = [text] if isinstance(text, str) else []
        else:
            self._pieces.append(cast("str", text))
        if isinstance(text, str) and text:
            yield ChatUpdate(reasoning=text) if part.get("thought") is True else ChatUpdate(text=text)

    def _join(self) -> None:
        """Put the whole text into the last part: appending to it would copy it each time."""
        if self._pieces:
            self._parts[-1]["text"] = "".join(self._pieces)

    def _finish_reason(self, reason: str, message: Message) -> FinishReason:
        if not reason:
            return "refused"
        return "tool_calls" if reason == "STOP" and message.calls else FINISHES.get(reason, "other")


def usage_from_wire(usage: Mapping[str, object]) -> Usage:
    """Return the usage: tokens that server-side tools fed to the model are input, its thoughts are output."""
    thoughts = _count(usage, "thoughtsTokenCount")
    return Usage(
        input_tokens=_count(usage, "promptTokenCount") + _count(usage, "toolUsePromptTokenCount"),
        output_tokens=_count(usage, "candidatesTokenCount") + thoughts,
        cache_read_tokens=_count(usage, "cachedContentTokenCount"),
        reasoning_tokens=thoughts,
    )


def _plain_kind(part: Mapping[str, object]) -> str | None:
    """Return the kind of a part that is nothing but text, or a thought; None for any other."""
    if set(part) == {"text"}:
        return "text"
    return "thought" if set(part) == {"text", "thought"} and part["thought"] is True else None


def _count(usage: Mapping[str, object], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
