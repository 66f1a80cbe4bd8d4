"""Carrying out: a context with the edits that are in force for its history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import msgspec

from chatstack.context.edits.context import Context
from chatstack.context.edits.plans import Plan
from chatstack.context.edits.records import Made, Record
from chatstack.context.histories.conversations import Carried, term_in, with_term
from chatstack.context.histories.recognised import Recognised
from chatstack.context.requests.opened import Opened
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message, relink


def plan_of(record: Record, messages: tuple[Message, ...], positions: Sequence[int]) -> Plan | None:
    """Return these edits as a plan for a request with these messages; None if they do not fit them."""
    edited = record.edited(messages, positions)
    return None if edited is None else record.plan(positions, len(messages), edited)


def carried_out(
    record: Record, context: Context, opened: Opened, *, owner: str, counter: TokenCounter
) -> Context | None:
    """Return the context with these edits; None if they do not fit its messages."""
    seen = opened.seen
    positions, messages = seen.positions, context.messages
    if not isinstance(positions, range):  # system messages stand between the others, and stay where they are
        plan = plan_of(record, messages, positions)
        return None if plan is None else context.after(plan)
    carried = carried_last(opened, owner)
    if carried is None or carried.record is not record:
        edited = record.edited(messages, positions)
        if edited is None:
            return None
        carried = keep_carried(Made(record, edited), opened, owner=owner, counter=counter)
    else:  # if the caller sends fresh objects, nothing else holds those of an earlier call
        relink(carried.made.edited, messages, positions.start)
    return with_edits(context, carried, positions)


def carried_last(opened: Opened, owner: str) -> Carried | None:
    """Return the record that a layer has carried out last for this history, as it came."""
    return term_in(opened.seen.conversation.carried, (owner, opened.came_edited))


def keep_carried(made: Made, opened: Opened, *, owner: str, counter: TokenCounter) -> Carried:
    """Keep a record with its edited messages, so that later calls neither make nor count them again."""
    seen, size_of = opened.seen, opened.context.size_of
    if opened.is_by_original:  # the sizes are those of the edited messages that came
        head = seen.positions[0]
        came = opened.context.messages[head : head + made.record.reach]
        carried = Carried(made, made.record.saved([0, *accumulate(map(size_of, came))], size_of, made.edited))
    else:
        carried = weighed(made, seen, counter, size_of)
    conversation = seen.conversation
    conversation.carried = with_term(conversation.carried, (owner, opened.came_edited), carried)
    return carried


def weighed(made: Made, seen: Recognised, counter: TokenCounter, size_of: Callable[[Message], int]) -> Carried:
    """Return a record with its edited messages, and the tokens that it saves of a history that stands in one piece."""
    sums = seen.history.sums(max(made.record.reach, 1), counter, size_of)
    return Carried(made, made.record.saved(sums, size_of, made.edited))


def with_edits(context: Context, carried: Carried, positions: range) -> Context:
    """Return the context with these edits, for a history in one piece whose sizes are those of its messages."""
    (record, edited), messages = carried.made, context.messages

    def origins() -> list[int | None]:
        came: list[int | None] = list(range(len(messages)))
        for start, stop, put in reversed(record.patches):  # by slices, as each call asks for all of them
            came[start + positions.start : stop + positions.start] = [None] * len(put)
        return came

    return msgspec.structs.replace(
        context,
        messages=record.carried_out(messages, positions.start, edited),
        messages_tokens=context.messages_tokens - carried.saved,
        find_origins=origins,
    )
