"""Answers: those of Agent Framework's as updates of ours, and ours as their updates and responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from typing import Any, TypeAlias, cast

import msgspec
from agent_framework import ChatResponse as TheirResponse
from agent_framework import ChatResponseUpdate as TheirUpdate
from agent_framework import Content, ResponseStream, UsageDetails
from agent_framework import Message as TheirMessage

from chatstack import ChatResponse, ChatStream, ChatUpdate, Message, ToolCall, Usage
from chatstack.client.answers import updates_of
from chatstack.providers.foreign import finish_reason_of
from chatstack.values.parts import Part
from chatstack.values.responses import CallDelta
from chatstack_agent_framework.contents import arguments_of, content_of, from_theirs, kept_of

TheirStream: TypeAlias = "ResponseStream[TheirUpdate, TheirResponse[Any]]"
TheirAnswer: TypeAlias = "TheirResponse[Any] | TheirStream"

_THEIR_FINISHES = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "refused": "content_filter"}
_COVERED = object()
"""The ``raw`` of an update that another one's ``raw`` holds as well."""


async def answered(ask: Callable[[], Awaitable[TheirAnswer]]) -> AsyncGenerator[ChatUpdate, None]:
    """Ask a chat client of theirs, and yield its answer; ``raw`` of an update is what it was made from."""
    answer = await ask()
    if not isinstance(answer, ResponseStream):
        for update in _whole(answer):
            yield update
        return
    try:
        calls: list[str] = []
        async for theirs in answer:
            for update in _pieces(theirs, calls):
                yield update
        for update in _whole(await answer.get_final_response(), streamed=True):
            yield update
    finally:
        close = getattr(answer, "close", None)  # since 1.20
        if close is not None:
            await close()


def _whole(response: TheirResponse[Any], *, streamed: bool = False) -> Iterator[ChatUpdate]:
    messages = list(map(from_theirs, response.messages)) or [Message("assistant", ())]
    for message in messages:
        last = message is messages[-1]
        for update in updates_of(
            message,
            streamed=streamed,
            usage=usage_of(response.usage_details) if last else None,
            finish_reason=finish_reason_of(response.finish_reason),
            response_id=response.response_id or "",
            model=response.model or "",
            raw=response if last else None,
        ):
            told = streamed and update.raw is None  # by one of their updates
            yield msgspec.structs.replace(update, raw=_COVERED) if told else update


def _pieces(theirs: TheirUpdate, calls: list[str]) -> Iterator[ChatUpdate]:
    """Yield one update of theirs as ours: text and reasoning together, then pieces of calls. The first one has it as
    its ``raw``. ``calls`` are the ids of the message's calls so far."""
    thoughts = "".join(each.text or "" for each in theirs.contents if each.type == "text_reasoning")
    yield ChatUpdate(text=theirs.text, reasoning=thoughts, raw=theirs)
    for content in theirs.contents:
        if content.type != "function_call":
            continue
        if content.call_id and content.call_id not in calls:
            calls.append(content.call_id)
        index = calls.index(content.call_id) if content.call_id else max(0, len(calls) - 1)
        delta = CallDelta(index, content.call_id or "", content.name or "", arguments_of(content))
        yield ChatUpdate(call_delta=delta, raw=_COVERED)


async def their_updates(stream: ChatStream, own_tools: Collection[str] | None) -> AsyncGenerator[TheirUpdate, None]:
    """Yield the updates of a stream as theirs: the very ones, where they came from a client of theirs.

    Calls of other tools than the agent's own were carried out by the stack, and are told for information; where
    ``own_tools`` is None, the stack carries out none.
    """
    said, parts, used = 0, list[Part](), Usage()
    async with stream:
        async for update in stream:
            if update.usage is not None:
                used += update.usage
            if isinstance(update.raw, TheirUpdate):
                yield update.raw
            elif update.text or update.reasoning:
                yield TheirUpdate(contents=list(_deltas(update)), role="assistant", message_id=f"{id(stream):x}-{said}")
            if update.part is not None and update.raw is not _COVERED:
                parts.append(update.part)
            if update.message_done is not None:
                if update.raw is not _COVERED and not isinstance(update.raw, TheirResponse):
                    yield _closing(update, used, parts, own_tools, f"{id(stream):x}-{said}")
                said, parts, used = said + 1, [], Usage()


def whole_of(stream: ChatStream, seen: Sequence[TheirUpdate], response_format: Any) -> TheirResponse[Any]:
    """Return the whole answer of a stream that was read as theirs: of one model call, that of their client."""
    answer = stream.so_far
    raw = _raw_of(answer)
    if raw is not None and answer.rounds == 1:
        return raw
    return TheirResponse.from_updates(seen, output_format_type=response_format)


def _deltas(update: ChatUpdate) -> Iterator[Content]:
    if update.reasoning:
        yield Content.from_text_reasoning(text=update.reasoning)
    if update.text:
        yield Content.from_text(update.text)


def _closing(
    update: ChatUpdate, used: Usage, parts: Sequence[Part], own_tools: Collection[str] | None, message_id: str
) -> TheirUpdate:
    """Return the last update of a message: its calls, and what only its message tells."""
    message = cast("Message", update.message_done)
    contents = _contents_of(message, parts, own_tools)
    if used != Usage():
        contents.append(Content.from_usage(details_of(used)))
    return TheirUpdate(
        contents=contents,
        role=message.role,
        message_id=message_id,
        response_id=update.response_id or None,
        model=update.model or None,
        finish_reason=cast("Any", _THEIR_FINISHES.get(update.finish_reason or "other")),
    )


def _contents_of(message: Message, parts: Sequence[Part], own_tools: Collection[str] | None) -> list[Content]:
    """Return the parts of a message as contents; the last one keeps what only the message tells."""
    found = (content_of(part, informational=_ran_inside(part, own_tools)) for part in parts)
    contents, kept = [content for content in found if content is not None], kept_of(message)
    if kept:
        contents = contents or [Content.from_text("")]
        contents[-1].additional_properties.update(kept)
    return contents


def _ran_inside(part: Part, own_tools: Collection[str] | None) -> bool:
    return own_tools is not None and isinstance(part, ToolCall) and part.name not in own_tools


def their_response(
    response: ChatResponse, own_tools: Collection[str] | None, response_format: Any
) -> TheirResponse[Any]:
    """Return a whole answer as theirs: the very one, where a client of theirs gave it, else with ours as its
    ``raw_representation``."""
    raw = _raw_of(response)
    if raw is not None and tuple(map(from_theirs, raw.messages)) == response.messages:
        return raw
    return TheirResponse(
        messages=[TheirMessage(each.role, _contents_of(each, each.parts, own_tools)) for each in response.messages],
        response_id=response.id or None,
        model=response.model or None,
        finish_reason=cast("Any", _THEIR_FINISHES.get(response.finish_reason or "other")),
        usage_details=details_of(response.usage),
        response_format=response_format,
        raw_representation=response,
    )


def _raw_of(answer: ChatResponse) -> TheirResponse[Any] | None:
    raw: Any = answer.raw
    known: TheirResponse[Any] | None = raw if isinstance(answer.raw, TheirResponse) else None
    return known


def usage_of(details: UsageDetails | None) -> Usage | None:
    """Return reported usage as ours."""
    if not details:
        return None
    return Usage(
        details.get("input_token_count") or 0,
        details.get("output_token_count") or 0,
        details.get("cache_read_input_token_count") or 0,
        details.get("cache_creation_input_token_count") or 0,
        details.get("reasoning_output_token_count") or 0,
    )


def details_of(usage: Usage) -> UsageDetails:
    """Return usage as theirs."""
    return UsageDetails(
        input_token_count=usage.input_tokens,
        output_token_count=usage.output_tokens,
        total_token_count=usage.total_tokens,
        cache_read_input_token_count=usage.cache_read_tokens,
        cache_creation_input_token_count=usage.cache_write_tokens,
        reasoning_output_token_count=usage.reasoning_tokens,
    )
