"""Messages of 10xgraph and of chatstack, both ways, without loss.

Both sides keep what the other has no field for: 10xgraph's messages under ``chatstack`` in their ``metadata`` (a
signature, a pin, a mark), ours under ``10xgraph`` in ``extra_json`` (ids, times, metadata, usage), which no provider
is sent. The arguments of a call stay the text that was received: 10xgraph's ``tools_calls`` hold it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import msgspec
from pydantic import BaseModel
from tenxgraph.core.state import Message as GraphMessage

from chatstack import InputError, Message, Part, Reasoning, ToolCall
from chatstack.nodes.remainder import as_object, completed, json_text, remainder
from chatstack_tenxgraph.blocks import WIRE, Block, arguments_object, block_of, part_of

KEPT = "chatstack"
"""Where our fields ride along in the ``metadata`` of 10xgraph's messages."""

_MADE = ("message_id", "timestamp")
"""What 10xgraph makes for every message that has none."""


def to_tenxgraph(messages: Sequence[Message]) -> list[GraphMessage]:
    """10xgraph's messages for ours, one for one. What came from 10xgraph is the message that it was, id and all."""
    return [_theirs(message) for message in messages]


def from_tenxgraph(messages: Sequence[GraphMessage], *, keep_rest: bool = True) -> list[Message]:
    """Our messages for 10xgraph's, one for one.

    Without ``keep_rest``, what we have no field for (ids, times, metadata, usage) stays behind: that is for messages
    that are only sent, where histories that say the same should be the same. Raises ``InputError`` for what is no
    whole message of 10xgraph's, and, with ``keep_rest``, for what JSON cannot say.
    """
    return [_ours(message, f"messages[{position}]", keep_rest) for position, message in enumerate(messages)]


def _theirs(message: Message) -> GraphMessage:
    came, rest = _without_rest(message)
    fields = cast("dict[str, Any]", completed(_plain_fields(came), rest))
    missing = remainder(_json_of(came), _json_of(_plain_message(fields)))
    if missing:
        fields["metadata"] = {**fields["metadata"], KEPT: {"rest": missing}}
    made = {name for name in _MADE if rest is None}
    return GraphMessage.model_validate({name: value for name, value in fields.items() if name not in made})


def _ours(message: object, where: str, keep_rest: bool) -> Message:
    if not isinstance(message, GraphMessage):
        raise InputError(f"{where}: expected a Message of tenxgraph, got {type(message).__name__}")
    if message.delta:
        raise InputError(f"{where}: is a delta; convert the whole message that follows it")
    parsed = cast("object", message.parsed_content)  # pyright: ignore[reportUnknownMemberType]
    if keep_rest and isinstance(parsed, BaseModel):
        kind = type(parsed).__name__
        raise InputError(f"{where}.parsed_content: JSON cannot keep a {kind}; convert it with keep_rest=False")
    fields = message.model_dump()
    kept = as_object(fields["metadata"].get(KEPT)) or {}
    fields["metadata"] = {name: value for name, value in fields["metadata"].items() if name != KEPT}
    found = _completed(_plain_message(fields), kept.get("rest"))
    return _with_rest(found, remainder(fields, _plain_fields(found)), where) if keep_rest else found


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


def _plain_message(fields: dict[str, Any]) -> Message:
    """Our message for those fields. A call stands where its block does; what has no block comes last."""
    calls = [call for each in fields["tools_calls"] or () if (call := _call_of(each)) is not None]
    tool_name = fields["metadata"].get("function_name")
    name = tool_name if isinstance(tool_name, str) else ""
    parts: list[Part] = []
    for block in cast("list[Block]", fields["content"]):
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


def _completed(plain: Message, rest: object) -> Message:
    """The message with what was kept of it; as it is plainly, where that does not make a message.

    Metadata may come from outside, so nobody becomes the system by it, and no user the assistant.
    """
    if not isinstance(rest, dict):
        return plain
    try:
        whole = msgspec.convert(completed(_json_of(plain), rest), Message)
    except (msgspec.ValidationError, InputError):
        return plain
    forged = ("system", "assistant") if plain.role == "user" else ("system",)
    return plain if whole.role != plain.role and whole.role in forged else whole


def _with_rest(message: Message, rest: dict[str, Any], where: str) -> Message:
    """Under our name in ``extra_json``, beside what other wires have there."""
    own: dict[str, Any] = {"rest": rest}
    others: dict[str, Any] = {}
    if message.extra_json:
        own["was"] = message.extra_json  # to give back the same text
        others = _object_in(message.extra_json)
    return msgspec.structs.replace(message, extra_json=json_text({**others, WIRE: own}, where))


def _without_rest(message: Message) -> tuple[Message, object]:
    own = as_object(_object_in(message.extra_json).get(WIRE)) if message.extra_json else None
    if own is None or "rest" not in own:
        return message, None
    was = own.get("was", "")
    return msgspec.structs.replace(message, extra_json=was if isinstance(was, str) else ""), own["rest"]


def _object_in(text: str) -> dict[str, Any]:
    return arguments_object(text) or {}


def _json_of(value: Message) -> dict[str, Any]:
    return cast("dict[str, Any]", _with_lists(msgspec.to_builtins(value)))


def _with_lists(value: Any) -> Any:
    """The same with lists for tuples, as JSON has it."""
    fields = as_object(value)
    if fields is not None:
        return {name: _with_lists(each) for name, each in fields.items()}
    if isinstance(value, tuple | list):
        return [_with_lists(each) for each in cast("list[Any]", cast("object", value))]
    return value
