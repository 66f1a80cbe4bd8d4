"""What a stream of ours says, in LangChain's words: chunks of a message, and the usage of a call; and usage back."""

from __future__ import annotations

from typing import cast

from langchain_core.messages import AIMessageChunk, ToolCallChunk
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.messages.tool import tool_call_chunk

from chatstack import ChatUpdate, ToolCall, Usage


class ChunkWriter:
    """Writes the updates of one message as chunks of LangChain's. A writer is for one message: make one for each."""

    def __init__(self) -> None:
        self._wrote_calls = False

    def chunk_of(self, update: ChatUpdate, id: str | None = None) -> AIMessageChunk | None:
        """Return the chunk for an update; None for one that has no text, no reasoning and no call."""
        if update.text:
            return AIMessageChunk(content=update.text, id=id)
        if update.reasoning:
            return AIMessageChunk(content=[{"type": "reasoning", "reasoning": update.reasoning}], id=id)
        calls = self._calls_in(update)
        return AIMessageChunk(content="", id=id, tool_call_chunks=calls) if calls else None

    def _calls_in(self, update: ChatUpdate) -> list[ToolCallChunk]:
        """Pieces of calls; a call as a whole where it was not written in pieces."""
        delta, part = update.call_delta, update.part
        if delta is not None:
            self._wrote_calls = True
            piece = tool_call_chunk(
                name=delta.name or None, args=delta.arguments, id=delta.id or None, index=delta.index
            )
            return [piece]
        if isinstance(part, ToolCall) and not self._wrote_calls:
            return [tool_call_chunk(name=part.name, args=part.arguments, id=part.id, index=None)]
        return []


def to_usage_metadata(usage: Usage) -> UsageMetadata | None:
    """Return the usage as LangChain's messages hold it; None if nothing was reported."""
    if not usage.total_tokens:
        return None
    return UsageMetadata(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.total_tokens,
        input_token_details=InputTokenDetails(
            cache_read=usage.cache_read_tokens, cache_creation=usage.cache_write_tokens
        ),
        output_token_details=OutputTokenDetails(reasoning=usage.reasoning_tokens),
    )


def from_usage_metadata(reported: UsageMetadata | None) -> Usage | None:
    """Return the usage that a message of LangChain's holds; None if it holds none.

    An answer from LangChain's cache, of a model that reports nothing, has ``{"total_cost": 0}``.
    """
    if reported is None or "input_tokens" not in reported:
        return None
    read, wrote = reported.get("input_token_details", {}), reported.get("output_token_details", {})
    # ``langchain-anthropic`` tells writes by their lifetimes, and then none in all.
    short, hour = (cast("int", read.get(f"ephemeral_{each}_input_tokens") or 0) for each in ("5m", "1h"))
    return Usage(
        reported["input_tokens"],
        reported["output_tokens"],
        read.get("cache_read", 0),
        read.get("cache_creation", 0) or short + hour,
        wrote.get("reasoning", 0),
        hour,
    )
