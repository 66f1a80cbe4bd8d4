"""The places in a request's body that our messages were read from.

A message of ours is a whole item of the body (chat completions), several items in a row (Responses, where the model's
items are one message), or some blocks of one (Anthropic, where each tool result is a message of its own).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from chatstack import Message
from chatstack.providers.extras import object_or_empty
from chatstack.providers.openai.responses_wire import item_type
from chatstack.providers.wires import Form, read_messages
from chatstack_gateway.positions import UneditableError

SYSTEM = -1
"""In the place of an item: Anthropic's ``system``, beside the messages."""

ITEMS: dict[Form, str] = {"chat": "messages", "messages": "messages", "responses": "input"}
"""The field that holds the items."""


class Place(NamedTuple):
    """The items that a message was read from, the last one excluded, and which blocks of it; none means all."""

    first: int
    end: int
    blocks: tuple[int, ...] = ()


def places_of(form: Form, items: Sequence[object], messages: Sequence[Message]) -> list[Place]:
    """Return the place of each message. Raises ``UneditableError`` if that cannot be told for sure."""
    if form == "chat":
        found = [Place(at, at + 1) for at in range(len(items))]
    elif form == "responses":
        found = _rows(items)
    else:
        found = _blocks(items, messages)
    if len(found) != len(messages):
        raise UneditableError("its messages cannot be told apart")
    return found


def _rows(items: Sequence[object]) -> list[Place]:
    """The model's items in a row are one message, every other item is a message of its own."""
    found: list[Place] = []
    was_output = False
    for at, item in enumerate(items):
        if item_type(object_or_empty(item)) == "item_reference":
            raise UneditableError("it refers to items that only the server has")
        is_output = read_messages("responses", [item])[0].role == "assistant"
        if is_output and was_output:
            found[-1] = Place(found[-1].first, at + 1)
        else:
            found.append(Place(at, at + 1))
        was_output = is_output
    return found


def _blocks(items: Sequence[object], messages: Sequence[Message]) -> list[Place]:
    """Every block is one part, in the order of the blocks; so parts and blocks are counted off against each other."""
    if any(_length(item) == 0 for item in items):
        raise UneditableError("a message of it is empty")
    blocks = [(at, block) for at, item in enumerate(items) for block in range(_length(item))]
    parts = sum(len(message.parts) for message in messages)
    system = parts - len(blocks)  # those of ``system`` stand before all others
    if system < 0 or (system and (messages[0].role != "system" or len(messages[0].parts) != system)):
        raise UneditableError("its messages cannot be told apart")
    found: list[Place] = []
    taken = 0
    for message in messages[1 if system else 0 :]:
        own = blocks[taken : taken + len(message.parts)]
        taken += len(message.parts)
        if not own or own[0][0] != own[-1][0]:
            raise UneditableError("its messages cannot be told apart")
        found.append(Place(own[0][0], own[0][0] + 1, tuple(block for _, block in own)))
    return [Place(SYSTEM, SYSTEM + 1), *found] if system else found


def _length(item: object) -> int:
    content = object_or_empty(item).get("content")
    return len(cast("list[object]", content)) if isinstance(content, list) else 1
