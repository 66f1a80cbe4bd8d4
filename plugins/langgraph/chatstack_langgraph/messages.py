"""Messages of LangChain and of chatstack, both ways, without loss.

Both sides keep what the other has no field for: LangChain's messages under ``chatstack`` in ``additional_kwargs`` (the
arguments of a call as they were received, a signature, a pin, a mark), ours under ``langchain`` in ``extra_json`` (ids,
names, metadata, usage, artifacts), which no provider is sent.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import msgspec
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    BaseMessageChunk,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_chunk_to_message,
)

from chatstack import InputError, Message
from chatstack.nodes.remainder import as_list, completed, json_text, remainder
from chatstack_langgraph.blocks import WIRE
from chatstack_langgraph.pieces import group_of, pieces_of

KEPT = "chatstack"
"""Where our fields ride along in LangChain's ``additional_kwargs``."""

_CLASSES: dict[str, type[BaseMessage]] = {
    "ai": AIMessage,
    "human": HumanMessage,
    "system": SystemMessage,
    "tool": ToolMessage,
}


def to_langchain(messages: Sequence[Message]) -> list[BaseMessage]:
    """LangChain's messages for ours. Each tool result becomes a ``ToolMessage``, as LangChain wants it.

    What came from LangChain is the message that it was, id and metadata included.
    """
    return [each for message in messages for each in _theirs(message)]


def from_langchain(messages: Sequence[BaseMessage], *, keep_rest: bool = True) -> list[Message]:
    """Our messages for LangChain's; chunks count as the messages that they are of.

    Without ``keep_rest``, what we have no field for (ids, names, metadata, usage, artifacts) stays behind: that is for
    messages that are only sent, where histories that say the same should be the same. Raises ``InputError`` for
    anything but a human, AI, system or tool message, and, with ``keep_rest``, for what JSON cannot say.
    """
    checked = [_checked(message, position) for position, message in enumerate(messages)]
    found: list[Message] = []
    position = 0
    while position < len(checked):
        count = _pieces_from(checked, position)
        pieces = checked[position : position + count]
        found.append(_ours(pieces, f"messages[{position}]", keep_rest))
        position += count
    return found


def _theirs(message: Message) -> list[BaseMessage]:
    came, rest = _without_rest(message)
    pieces = pieces_of(came)
    if rest:
        dumps = cast("list[dict[str, Any]]", completed([each.model_dump() for each in pieces], rest))
        pieces = [_CLASSES[each["type"]](**each) for each in dumps]
    missing = remainder(_json_of(came), _json_of(group_of(pieces)))
    if missing:
        _keep(pieces[0], "rest", missing)
    if len(pieces) > 1:
        for place, each in enumerate(pieces):
            _keep(each, "piece", [place, len(pieces)])
    return pieces


def _ours(pieces: list[BaseMessage], where: str, keep_rest: bool) -> Message:
    bare = [_without_kept(each) for each in pieces]
    message = _completed(group_of(bare), _kept(pieces[0]).get("rest"))
    if not keep_rest:
        return message
    rest = remainder([each.model_dump() for each in bare], [each.model_dump() for each in pieces_of(message)])
    return _with_rest(message, rest, where) if rest else message


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


def _json_of(value: Message) -> dict[str, Any]:
    return cast("dict[str, Any]", _with_lists(msgspec.to_builtins(value)))


def _with_lists(value: Any) -> Any:
    """The same with lists for tuples, as JSON has it."""
    if isinstance(value, dict):
        return {name: _with_lists(each) for name, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, tuple | list):
        return [_with_lists(each) for each in cast("list[Any]", cast("object", value))]
    return value


def _with_rest(message: Message, rest: dict[str, Any], where: str) -> Message:
    """Under our name in ``extra_json``, beside what other wires have there."""
    own: dict[str, Any] = {"rest": rest}
    others: dict[str, Any] = {}
    if message.extra_json:
        own["was"] = message.extra_json  # to give back the same text
        others = _object_of(message.extra_json)
    return msgspec.structs.replace(message, extra_json=json_text({**others, WIRE: own}, where))


def _without_rest(message: Message) -> tuple[Message, object]:
    own = _object_of(message.extra_json).get(WIRE) if message.extra_json else None
    if not isinstance(own, dict) or "rest" not in own:
        return message, None
    held = cast("dict[str, Any]", own)
    was = held.get("was", "")
    return msgspec.structs.replace(message, extra_json=was if isinstance(was, str) else ""), held["rest"]


def _object_of(text: str) -> dict[str, Any]:
    try:
        found = cast("object", json.loads(text))
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _checked(message: object, position: int) -> BaseMessage:
    if isinstance(message, BaseMessageChunk):
        message = message_chunk_to_message(message)
    if isinstance(message, BaseMessage) and message.type in _CLASSES:
        return message
    raise InputError(
        f"messages[{position}]: expected a HumanMessage, AIMessage, SystemMessage or ToolMessage of langchain_core, "
        f"got {type(message).__name__}"
    )


def _kept(message: BaseMessage) -> dict[str, Any]:
    found = message.additional_kwargs.get(KEPT)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _keep(message: BaseMessage, name: str, value: object) -> None:
    message.additional_kwargs = {**message.additional_kwargs, KEPT: {**_kept(message), name: value}}


def _without_kept(message: BaseMessage) -> BaseMessage:
    if KEPT not in message.additional_kwargs:
        return message
    others = {name: value for name, value in message.additional_kwargs.items() if name != KEPT}
    return message.model_copy(update={"additional_kwargs": others})


def _pieces_from(messages: list[BaseMessage], position: int) -> int:
    """How many messages from there on are the pieces of one of ours."""
    place = as_list(_kept(messages[position]).get("piece")) or ()
    if len(place) != 2 or not all(isinstance(each, int) for each in place):
        return 1
    first, of = place
    count = 1
    while position + count < len(messages) and _kept(messages[position + count]).get("piece") == [first + count, of]:
        count += 1
    return count
