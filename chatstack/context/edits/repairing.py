"""Repairs: every call is directly followed by its result, and every result has a call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter

import msgspec

from chatstack.context.edits.pairing import Answered, Pairs, answered_at, places_of
from chatstack.context.edits.plans import Plan
from chatstack.values.messages import Message
from chatstack.values.parts import ToolCall, ToolResult
from chatstack.values.surrogates import without_lone_surrogates

NO_RESULT = "Error: this call was never answered; its result is not known."


def repair_plan(messages: Sequence[Message]) -> Plan | None:
    """Return the plan that makes the messages acceptable to every provider; None if they are already.

    Results without a call are removed. Results away from their calls are moved right behind them, before whatever stood
    in between. Calls without a result are answered with an error, except in the last message.
    A pure function of the messages, which moves only results: a longer history is repaired the same way, unless a
    result has arrived for a call that had none. Source: Xpert's context editing (orphan results are removed
    before thresholds are checked).
    """
    pairs, places = places_of(messages)
    if not pairs.need_repair(len(messages) - 1):
        return None
    answers = [answered_at(messages, place) for place in places]
    moved_to = {each.call_position for each in answers if each.is_displaced}
    # The last message's calls may wait, but not beside results.
    open_calls = [each for each in pairs.open_calls() if each[0] != len(messages) - 1 or each[0] in moved_to]
    put_behind = moved_to.union(position for position, _, _ in open_calls)
    moved = [each for each in answers if _moves(each, messages, put_behind)]
    drop, replace = _without(messages, [*((at, part) for at, part, _ in pairs.orphans), *(each[:2] for each in moved)])
    reason = f"{len(pairs.orphans)} results without a call, {len(open_calls)} calls without a result"
    return Plan(
        strategy="repair",
        reason=f"{reason}, {pairs.displaced} results away from their call" if pairs.displaced else reason,
        drop=drop,
        replace=replace,
        insert=_put_in(messages, answers, moved, open_calls),
    )


def has_answer_since(messages: Sequence[Message], length: int) -> bool:
    """Return True if a result has come for a call that a repair had to answer when there were ``length`` messages."""
    pairs = Pairs()
    before: set[tuple[int, int]] = set()
    for position, message in enumerate(messages):
        if position == length:
            before = {(at, part) for at, part, _ in pairs.open_calls() if at != length - 1}
        pairs.add(position, message)
    return not before.issubset((at, part) for at, part, _ in pairs.open_calls())


def late_in(plan: Plan, new: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages that a repair puts behind earlier calls, with results of these messages: those that have come
    since the model's latest answer."""
    results = {id(result) for message in new for result in message.results}
    return tuple(message for _, message in plan.insert if any(id(each) in results for each in message.results))


def _moves(answer: Answered, messages: Sequence[Message], put_behind: set[int]) -> bool:
    """Return True if a result has to move: it is displaced, or other results have to be put before what it shares a
    message with."""
    if answer.is_displaced or answer.call_position not in put_behind:
        return answer.is_displaced
    message = messages[answer.position]
    return message.role != "tool" or any(type(part) is not ToolResult for part in message.parts)


def _without(
    messages: Sequence[Message], leaving: Iterable[tuple[int, int]]
) -> tuple[tuple[int, ...], tuple[tuple[int, Message], ...]]:
    """Return drops and replacements that take these parts out; a message without any other parts is dropped.

    The replacements are not made by ``edited``, so that they count as originals."""
    gone: dict[int, set[int]] = {}
    for position, part in leaving:
        gone.setdefault(position, set()).add(part)
    drop: list[int] = []
    replace: list[tuple[int, Message]] = []
    for position, parts in gone.items():
        message = messages[position]
        left = tuple(part for index, part in enumerate(message.parts) if index not in parts)
        if left:
            replace.append((position, msgspec.structs.replace(message, parts=left)))
        else:
            drop.append(position)
    return tuple(drop), tuple(replace)


def _put_in(
    messages: Sequence[Message],
    answers: Iterable[Answered],
    moved: Sequence[Answered],
    open_calls: Iterable[tuple[int, int, ToolCall]],
) -> tuple[tuple[int, Message], ...]:
    """Return the insertions of moved results and error answers: behind the results that stay, in the order of calls."""
    leaving = {each[:2] for each in moved}
    places = {each.call_position: each.position + 1 for each in answers if each[:2] not in leaving}
    put = [(position, part, _answer(call)) for position, part, call in open_calls]
    # The results of one message stay together, as far as they are of one message's calls.
    for (position, call_position), several in groupby(
        sorted(moved, key=itemgetter(0, 3)), key=lambda each: (each.position, each.call_position)
    ):
        group = list(several)
        first = min(each.call_part for each in group)
        put.append((call_position, first, _moved(messages[position], tuple(each.result for each in group))))
    put.sort(key=itemgetter(0, 1))
    return tuple((places.get(position, position + 1), message) for position, _, message in put)


def _moved(message: Message, results: tuple[ToolResult, ...]) -> Message:
    """Return a message with these results only; the message itself if it holds nothing else."""
    if message.role != "tool":  # a provider's result may contain a lone surrogate, a request must not
        return Message("tool", tuple(map(_whole, results)), message.pinned)
    return message if results == message.parts else msgspec.structs.replace(message, parts=results)


def _whole(result: ToolResult) -> ToolResult:
    if isinstance(result.output, str) and not result.output.isascii():
        return msgspec.structs.replace(result, output=without_lone_surrogates(result.output))
    return result


def _answer(call: ToolCall) -> Message:
    return Message("tool", (ToolResult(call.id, call.name, NO_RESULT, is_error=True),), mark="repair")
