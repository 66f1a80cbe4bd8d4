"""Repairs: every call gets its result, right behind it, and every result has a call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter

import msgspec

from chatstack.context.pairing import Answered, Pairs, pairs_and_answers
from chatstack.context.plans import Plan
from chatstack.values.messages import Message
from chatstack.values.parts import ToolCall, ToolResult
from chatstack.values.surrogates import without_lone_surrogates

NO_RESULT = "Error: this call was never answered; its result is not known."


def repair_plan(messages: Sequence[Message]) -> Plan | None:
    """Make a list of messages one that every provider takes; None if it is.

    Results that have no call are removed. Results that stand away from their calls are put right behind them, so that
    whatever stood between comes after. Calls that have no result are answered, unless they are the last message's.
    A pure function of the messages, in which nothing but results changes its place: a longer history is repaired the
    same way, save where a result has arrived for a call that had none. Source: seed ``xpert-context-editing`` (orphan
    results are removed before thresholds are weighed).
    """
    pairs, answers = pairs_and_answers(messages)
    if not pairs.need_repair(len(messages) - 1):
        return None
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
    """Whether a result has come for a call that had none, and was not the last message's, ``length`` messages long."""
    pairs = Pairs()
    before: set[tuple[int, int]] = set()
    for position, message in enumerate(messages):
        if position == length:
            before = {(at, part) for at, part, _ in pairs.open_calls() if at != length - 1}
        pairs.add(position, message)
    return not before.issubset((at, part) for at, part, _ in pairs.open_calls())


def _moves(answer: Answered, messages: Sequence[Message], put_behind: set[int]) -> bool:
    """Whether a result leaves its place: it is displaced, or more results have to come before what it stands beside."""
    if answer.is_displaced or answer.call_position not in put_behind:
        return answer.is_displaced
    message = messages[answer.position]
    return message.role != "tool" or any(type(part) is not ToolResult for part in message.parts)


def _without(
    messages: Sequence[Message], leaving: Iterable[tuple[int, int]]
) -> tuple[tuple[int, ...], tuple[tuple[int, Message], ...]]:
    """Messages of nothing but what leaves go; of others, what leaves alone. Not as edits: they stand for themselves."""
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
    """Results that move, and answers of ours: behind the results that stay, in the order of their calls."""
    places: dict[int, int] = {}
    leaving = {each[:2] for each in moved}
    for each in answers:
        if each[:2] not in leaving:
            places[each.call_position] = each.position + 1
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
    """Results of a message by themselves; the very message, where it holds nothing else."""
    if message.role != "tool":  # what a provider gave may hold half a character, what is sent to one must not
        return Message("tool", tuple(map(_whole, results)), message.pinned)
    return message if results == message.parts else msgspec.structs.replace(message, parts=results)


def _whole(result: ToolResult) -> ToolResult:
    if isinstance(result.output, str) and not result.output.isascii():
        return msgspec.structs.replace(result, output=without_lone_surrogates(result.output))
    return result


def _answer(call: ToolCall) -> Message:
    return Message("tool", (ToolResult(call.id, call.name, NO_RESULT, is_error=True),), mark="repair")
