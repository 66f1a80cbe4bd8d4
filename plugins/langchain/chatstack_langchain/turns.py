"""What a turn of a stack added, as one message of LangChain's, and back.

A chat model of LangChain's answers with one message. Where that does not say all that the turn had added (the rounds of
the stack's own tools, a provider's signature, the arguments of a call as they were received), the turn rides along in
``additional_kwargs``, and is what the stack gets back. Streamed or not, the message is the sum of the same chunks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, InvalidToolCall, message_chunk_to_message
from langchain_core.messages.ai import add_ai_message_chunks
from langchain_core.messages.tool import tool_call_chunk

from chatstack import ChatResponse, ChatUpdate, InputError, Message, ProviderItem, ToolCall, ToolResult
from chatstack.nodes.remainder import as_list, as_object, digest
from chatstack_langgraph import from_langchain
from chatstack_langgraph.blocks import Block, arguments_object, block_of
from chatstack_langgraph.messages import KEPT
from chatstack_langgraph.updates import to_usage_metadata


class TurnWriter:
    """Writes one turn as chunks of one message. ``handed_back`` are the names of the agent's own tools."""

    def __init__(self, handed_back: Iterable[str]) -> None:
        self._handed_back = frozenset(handed_back)
        self._block = 0
        self._kind = ""
        self._open: set[int] = set()
        self._begun: set[str] = set()
        self._chunks: list[AIMessageChunk] = []

    def chunk_of(self, update: ChatUpdate) -> AIMessageChunk | None:
        """Return the chunk for an update; None for one that shows nothing: a call that the stack runs itself."""
        chunk: AIMessageChunk | None = None
        delta, part = update.call_delta, update.part
        if update.text or update.reasoning:
            chunk = self._said("text" if update.text else "reasoning", update.text or update.reasoning, update.round)
        elif delta is not None:
            if delta.id and delta.name in self._handed_back:
                self._open.add(delta.index)
                self._begun.add(delta.id)
            if delta.index in self._open:
                chunk = _call(delta.name or None, delta.arguments, delta.id or None, delta.index)
        elif isinstance(part, ToolCall):
            if part.name in self._handed_back and part.id not in self._begun:
                chunk = _call(part.name, part.arguments, part.id, None)
        elif part is not None and not isinstance(part, ToolResult):
            chunk = AIMessageChunk(content=[cast("Any", block_of(part))])
        if update.message_done is not None:
            self._kind, self._open, self._begun = "", set(), set()
        if chunk is not None:
            self._chunks.append(_copied(chunk))
        return chunk

    def closing(self, response: ChatResponse) -> AIMessageChunk:
        """Return the last chunk: usage, what the provider said of the answer, and what the others do not tell."""
        # No "model_provider": LangChain would look for that provider's own blocks, and leave out text and calls.
        told = {"model_name": response.model, "finish_reason": response.finish_reason, "id": response.id}
        unknown = [call for call in _open_calls(response) if call.name not in self._handed_back]
        late = [tool_call_chunk(name=call.name, args=call.arguments, id=call.id) for call in unknown]
        content = cast("Any", _refusal_in(response) or "")
        self._chunks.append(AIMessageChunk(content=content, tool_call_chunks=late))
        said = self.whole(response)
        kept = {}
        if plainly(said) != response.messages:
            turn = [msgspec.to_builtins(message) for message in response.messages]
            kept = {KEPT: {"turn": turn, "of": _digest(said)}}
        self._chunks[-1] = AIMessageChunk(
            content=content,
            tool_call_chunks=late,
            usage_metadata=to_usage_metadata(response.usage),
            response_metadata={name: value for name, value in told.items() if value},
            additional_kwargs=kept,
            chunk_position="last",
        )
        return self._chunks[-1]

    def whole(self, response: ChatResponse) -> AIMessage:
        """Return the sum of the chunks. A call with arguments that are no JSON object is invalid, which in a sum of
        chunks LangChain takes for one that was cut off, and mends."""
        message = cast("AIMessage", message_chunk_to_message(add_ai_message_chunks(*map(_copied, self._chunks))))
        broken = [call for call in _open_calls(response) if arguments_object(call.arguments) is None]
        if broken:
            ids = {call.id for call in broken}
            message.tool_calls = [call for call in message.tool_calls if call["id"] not in ids]
            message.invalid_tool_calls = [
                InvalidToolCall(type="invalid_tool_call", id=call.id, name=call.name, args=call.arguments, error=None)
                for call in broken
            ]
        return message

    def _said(self, kind: str, text: str, round_number: int) -> AIMessageChunk:
        """Return a piece of text or reasoning: plain text in the first round, else in a block of its own."""
        if kind == "text" and round_number == 0:
            self._kind = kind
            return AIMessageChunk(content=text)
        self._block += kind != self._kind
        self._kind = kind
        return AIMessageChunk(content=[{"type": kind, kind: text, "index": self._block}])


def from_agent(message: BaseMessage) -> tuple[Message, ...]:
    """Return a message of an agent as the stack's: a turn as it was, unless somebody has changed the message."""
    return _turn_in(message) or plainly(message)


def plainly(message: BaseMessage) -> tuple[Message, ...]:
    """Return the message as ours, without what only LangChain has a field for."""
    return tuple(from_langchain([message], keep_rest=False))


def content_of(message: BaseMessage) -> object:
    """Return all that a conversion reads of the message, and its id: what is told apart goes back as the object that
    it is."""
    return {**vars(message), "artifact": None}


def _turn_in(message: BaseMessage) -> tuple[Message, ...]:
    kept = as_object(message.additional_kwargs.get(KEPT)) or {}
    if "turn" not in kept or not isinstance(message, AIMessage) or kept.get("of") != _digest(message):
        return ()
    try:
        turn = msgspec.convert(kept["turn"], tuple[Message, ...])
    except (msgspec.ValidationError, InputError, RecursionError):
        return ()
    # It may come from outside: it must not tell the model what only an application may.
    return turn if all(each.role in ("assistant", "tool") for each in turn) else ()


def _refusal_in(response: ChatResponse) -> list[Block]:
    """Return LangChain's block for an answer that was refused, in the provider's words where it has some."""
    if response.finish_reason != "refused" or not response.messages:
        return []
    last = response.messages[-1]
    items = [part for part in last.parts if isinstance(part, ProviderItem)]
    if any(block_of(item).get("type") == "refusal" for item in items):
        return []  # of a model of LangChain's below: it is told with the others
    kept = [last.extra_json, *(item.json for item in items)]
    words = (_words(msgspec.json.decode(text)) for text in kept if text)
    return [{"type": "refusal", "refusal": next(filter(None, words), "")}]


def _words(kept: object) -> str:
    """Return the first text under the name ``refusal``, as OpenAI's answers have it."""
    found = as_object(kept) or {}
    said = found.get("refusal")
    within = (_words(each) for each in found.values() or as_list(kept) or ())
    return said if isinstance(said, str) else next(filter(None, within), "")


def _open_calls(response: ChatResponse) -> list[ToolCall]:
    """Return the calls that nobody has run: the agent's."""
    run = {result.call_id for message in response.messages for result in message.results}
    return [call for message in response.messages for call in message.calls if call.id not in run]


def _digest(message: AIMessage) -> str:
    """Return a digest of what is said in it."""
    content: object = message.content  # pyright: ignore[reportUnknownMemberType]
    calls = [*message.tool_calls, *message.invalid_tool_calls]
    return digest([content, [[call["id"], call["name"], call["args"]] for call in calls]])


def _copied(chunk: AIMessageChunk) -> AIMessageChunk:
    """Return the chunk with a list of its own: adding up changes the one in the first chunk."""
    content: object = chunk.content  # pyright: ignore[reportUnknownMemberType]
    return chunk.model_copy(update={"content": [*content]}) if isinstance(content, list) else chunk


def _call(name: str | None, arguments: str, id: str | None, index: int | None) -> AIMessageChunk:
    return AIMessageChunk(content="", tool_call_chunks=[tool_call_chunk(name=name, args=arguments, id=id, index=index)])
