"""Messages of LangChain and of chatstack, both ways, without loss.

Both sides keep what the other has no field for: LangChain's messages under ``chatstack`` in ``additional_kwargs`` (the
arguments of a call as they were received, a signature, a pin, a mark), ours under ``langchain`` in ``extra_json`` (ids,
names, metadata, usage, artifacts), which no provider is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

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
from chatstack.nodes.remainder import as_list, completed, remainder, told_at
from chatstack.nodes.riding_along import completed_message, json_of, with_rest, without_rest
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
    return [each for at, message in enumerate(messages) for each in _theirs(message, f"messages[{at}]")]


def from_langchain(messages: Sequence[BaseMessage], *, keep_rest: bool = True) -> list[Message]:
    """Our messages for LangChain's; chunks count as the messages that they are of.

    Without ``keep_rest``, what we have no field for (ids, names, metadata, usage, artifacts) stays behind: that is for
    messages that are only sent, where histories that say the same should be the same. Raises ``InputError`` for
    anything but a human, AI, system or tool message, for calls whose id is no text, and for content and arguments that
    JSON cannot say; with ``keep_rest``, for anything else that it cannot. It names the place, never what is there.
    """
    checked = [_checked(message, position) for position, message in enumerate(messages)]
    found: list[Message] = []
    position = 0
    while position < len(checked):
        count = _pieces_from(checked, position)
        places = [f"messages[{at}]" for at in range(position, position + count)]
        found.append(_ours(checked[position : position + count], places, keep_rest))
        position += count
    return found


def _theirs(message: Message, where: str) -> list[BaseMessage]:
    came, rest = without_rest(message, WIRE)
    pieces = _completed(pieces_of(came), rest)
    with told_at(where):
        missing = remainder(json_of(came), json_of(group_of(pieces, [where] * len(pieces))))
    if missing:
        _keep(pieces[0], "rest", missing)
    if len(pieces) > 1:
        for place, each in enumerate(pieces):
            _keep(each, "piece", [place, len(pieces)])
    return pieces


def _completed(plain: list[BaseMessage], rest: object) -> list[BaseMessage]:
    """The messages with what was kept of them; as they are plainly, where that does not make messages."""
    if not rest:
        return plain
    try:
        dumps = cast("list[dict[str, Any]]", completed([each.model_dump() for each in plain], rest))
        return [_CLASSES[each["type"]](**each) for each in dumps]
    except (LookupError, TypeError, ValueError, RecursionError):  # ValueError: pydantic's, too
        return plain


def _ours(pieces: list[BaseMessage], places: list[str], keep_rest: bool) -> Message:
    bare = [_without_kept(each) for each in pieces]
    message = completed_message(group_of(bare, places), _kept(pieces[0]).get("rest"))
    if not keep_rest:
        return message
    with told_at(places[0], "; convert it with keep_rest=False"):
        rest = remainder([each.model_dump() for each in bare], [each.model_dump() for each in pieces_of(message)])
    return with_rest(message, WIRE, rest, places[0]) if rest else message


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
