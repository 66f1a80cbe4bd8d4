"""Messages of 10xgraph and of chatstack, both ways, without loss.

Both sides keep what the other has no field for: 10xgraph's messages under ``chatstack`` in their ``metadata`` (a
signature, a pin, a mark), ours under ``10xgraph`` in ``extra_json`` (ids, times, metadata, usage), which no provider
is sent. The arguments of a call stay the text that was received: 10xgraph's ``tools_calls`` hold it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from pydantic import BaseModel
from tenxgraph.core.state import Message as GraphMessage

from chatstack import InputError, Message, Part, Reasoning, ToolCall
from chatstack.nodes.remainder import as_object, completed, remainder, told_at
from chatstack.nodes.riding_along import completed_message, json_of, with_rest, without_rest
from chatstack_tenxgraph.blocks import WIRE, Block, block_of, part_of

KEPT = "chatstack"
"""Where our fields ride along in the ``metadata`` of 10xgraph's messages."""

_MADE = ("message_id", "timestamp")
"""What 10xgraph makes for every message that has none."""


def to_tenxgraph(messages: Sequence[Message]) -> list[GraphMessage]:
    """10xgraph's messages for ours, one for one. What came from 10xgraph is the message that it was, id and all."""
    return [_theirs(message, f"messages[{at}]") for at, message in enumerate(messages)]


def from_tenxgraph(messages: Sequence[GraphMessage], *, keep_rest: bool = True) -> list[Message]:
    """Our messages for 10xgraph's, one for one.

    Without ``keep_rest``, what we have no field for (ids, times, metadata, usage) stays behind: that is for messages
    that are only sent, where histories that say the same should be the same. Raises ``InputError`` for what is no
    whole message of 10xgraph's, and for content and arguments that JSON cannot say; with ``keep_rest``, for anything
    else that it cannot. It names the place, never what is there.
    """
    return [_ours(message, f"messages[{position}]", keep_rest) for position, message in enumerate(messages)]


def _theirs(message: Message, where: str) -> GraphMessage:
    came, rest = without_rest(message, WIRE)
    fields = _completed(_plain_fields(came), rest)
    with told_at(where):
        missing = remainder(json_of(came), json_of(_plain_message(fields, where)))
    if missing:
        fields["metadata"] = {**fields["metadata"], KEPT: {"rest": missing}}
    made = {name for name in _MADE if rest is None}
    return GraphMessage.model_validate({name: value for name, value in fields.items() if name not in made})


def _completed(plain: dict[str, Any], rest: object) -> dict[str, Any]:
    """The fields with what was kept of them; as they are plainly, where that does not make a message."""
    if not rest:
        return plain
    try:
        return GraphMessage.model_validate(completed(plain, rest)).model_dump()
    except (ValueError, RecursionError):  # ValueError: pydantic's
        return plain


def _ours(message: object, where: str, keep_rest: bool) -> Message:
    if not isinstance(message, GraphMessage):
        raise InputError(f"{where}: expected a Message of tenxgraph, got {type(message).__name__}")
    if message.delta:
        raise InputError(f"{where}: is a delta; convert the whole message that follows it")
    parsed = cast("object", message.parsed_content)  # pyright: ignore[reportUnknownMemberType]
    if keep_rest and isinstance(parsed, BaseModel):
        kind = type(parsed).__name__
        raise InputError(f"{where}.parsed_content: JSON cannot keep a {kind}; convert it with keep_rest=False")
    with told_at(where):
        fields = message.model_dump()
    kept = as_object(fields["metadata"].get(KEPT)) or {}
    fields["metadata"] = {name: value for name, value in fields["metadata"].items() if name != KEPT}
    found = completed_message(_plain_message(fields, where), kept.get("rest"))
    if not keep_rest:
        return found
    with told_at(where, "; convert it with keep_rest=False"):
        rest = remainder(fields, _plain_fields(found))
    return with_rest(found, WIRE, rest, where)


def _plain_fields(message: Message) -> dict[str, Any]:
    """The fields of 10xgraph's message, without an id and a time."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.calls
    ]
    named = {result.name for result in message.results if result.name}
    thoughts = [part.text for part in message.parts if isinstance(part, Reasoning) and part.text]
    plain = GraphMessage.model_validate(
        {
            "message_id": "",
            "timestamp": None,
            "role": message.role,
            "content": [block_of(part) for part in message.parts],
            "tools_calls": calls or None,
            "reasoning": "\n\n".join(thoughts) or None,
            "metadata": {"function_name": min(named)} if len(named) == 1 else {},
        }
    )
    return plain.model_dump()


def _plain_message(fields: dict[str, Any], where: str) -> Message:
    """Our message for those fields. A call stands where its block does; what has no block comes last."""
    calls: list[ToolCall] = []
    for place, each in enumerate(fields["tools_calls"] or ()):
        with told_at(f"{where}.tools_calls[{place}]"):
            call = _call_of(each)
        if call is not None:
            calls.append(call)
    tool_name = fields["metadata"].get("function_name")
    name = tool_name if isinstance(tool_name, str) else ""
    parts: list[Part] = []
    for place, block in enumerate(cast("list[Block]", fields["content"])):
        with told_at(f"{where}.content[{place}]"):
            part = part_of(block, result_name=name)
        if block.get("type") in ("tool_call", "remote_tool_call"):
            at = next((at for at, call in enumerate(calls) if call.id == block.get("id")), None)
            part = calls.pop(at) if at is not None else part
        parts.append(part)
    return Message(fields["role"], (*parts, *calls))


def _call_of(call: object) -> ToolCall | None:
    fields = as_object(call) or {}
    function = as_object(fields.get("function")) or {}
    id, name, arguments = fields.get("id"), function.get("name"), function.get("arguments")
    if not isinstance(name, str):
        return None
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, default=str)
    return ToolCall(id if isinstance(id, str) else "", name, text)
