"""Repairs: every call gets a result, every result has a call."""

from __future__ import annotations

from collections.abc import Sequence

from chatstack.context.pairing import Pairing, pair
from chatstack.context.plans import Plan
from chatstack.values.messages import Message
from chatstack.values.parts import ToolCall, ToolResult

NO_RESULT = "Error: this call was never answered; its result is not known."


def repair_plan(messages: Sequence[Message]) -> Plan | None:
    """Remove results that have no call, and answer calls that have no result, unless they are the last message's.

    None if everything pairs. Source: seed ``xpert-context-editing`` (orphan results are removed before thresholds
    are weighed).
    """
    pairing = pair(messages)
    last = len(messages) - 1
    open_calls = [(position, call) for position, call in pairing.open_calls if position != last]
    if not pairing.orphans and not open_calls:
        return None
    drop, replace = _without_orphans(messages, pairing)
    insert = tuple((_place_for(messages, pairing, position), _answer(call)) for position, call in open_calls)
    return Plan(
        strategy="repair",
        reason=f"{len(pairing.orphans)} results without a call, {len(open_calls)} calls without a result",
        drop=drop,
        replace=replace,
        insert=insert,
    )


def _without_orphans(
    messages: Sequence[Message], pairing: Pairing
) -> tuple[tuple[int, ...], tuple[tuple[int, Message], ...]]:
    """Messages of nothing but orphans go; of others, the orphans alone."""
    orphans: dict[int, list[int]] = {}
    for position, result in pairing.orphans:
        orphans.setdefault(position, []).append(id(result))
    drop: list[int] = []
    replace: list[tuple[int, Message]] = []
    for position, gone in orphans.items():
        message = messages[position]
        left = tuple(part for part in message.parts if id(part) not in gone)
        if left:
            replace.append((position, message.edited(parts=left)))
        else:
            drop.append(position)
    return tuple(drop), tuple(replace)


def _place_for(messages: Sequence[Message], pairing: Pairing, call_position: int) -> int:
    """Right behind the call and the results that directly follow it."""
    answers = {answer for answer, call in pairing.answers if call == call_position}
    place = call_position + 1
    while place < len(messages) and place in answers:
        place += 1
    return place


def _answer(call: ToolCall) -> Message:
    return Message("tool", (ToolResult(call.id, call.name, NO_RESULT, is_error=True),), mark="repair")
