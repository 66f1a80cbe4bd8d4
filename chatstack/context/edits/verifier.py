"""The verifier: every plan, built in or a plugin's, must pass it to be applied."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from chatstack.context.edits.context import Context
from chatstack.context.edits.item_pairs import is_linked
from chatstack.context.edits.pairing import answered_calls, pair
from chatstack.context.edits.plans import Plan
from chatstack.values.messages import Message, Role
from chatstack.values.native import compaction_in
from chatstack.values.parts import Part, ProviderItem, ToolCall, ToolResult


def problems(plan: Plan, context: Context, *, is_repair: bool = False) -> tuple[str, ...]:
    """Return the problems of a plan for that context, without the text of any message; empty if there are none.

    A repair need not make the context smaller, and may move results out of any message, as a provider would refuse the
    request otherwise. It may change nothing else, and must leave nothing to repair.
    """
    found = tuple(_misplaced(plan, context))
    if found:
        return found
    after = context.after(plan)
    if is_repair:
        return (*_lost(plan, context, is_repair), *_not_only_moved(context, after))
    if _only_clears(plan, context):
        return tuple(_not_smaller(context, after))
    return problems_of_all(plan, context, pairs_are_kept=_takes_out_whole(plan, context))


def problems_of_all(plan: Plan, context: Context, *, pairs_are_kept: bool = False) -> tuple[str, ...]:
    """Return the problems of a plan whose positions are right, by looking at everything; at the pairs of all messages
    only where these are not known to be kept."""
    after = context.after(plan)
    return (
        *_unmarked(plan, context),
        *_unsendable(plan, context),
        *_lost(plan, context, False),
        *_summaries(plan, context, after),
        *(() if pairs_are_kept else _unpaired(context, after)),
        *_inserted_into_units(plan, context),
        *_ends_with_assistant(plan, context, after),
        *_not_smaller(context, after),
    )


def _only_clears(plan: Plan, context: Context) -> bool:
    """Return True if it only replaces tool messages of one result by edited ones with the same result, so that no more
    than its size can be wrong.

    Nearly all edits do: one look at what they touch took a fifth of what six checks took.
    """
    if plan.drop or plan.insert:
        return False
    messages = context.messages
    for position, new in plan.replace:
        old = messages[position]
        was, now = old.parts, new.parts
        if (
            not (old.role == new.role == "tool" and len(was) == len(now) == 1)
            or not (type(result := was[0]) is ToolResult and type(made := now[0]) is ToolResult)
            or result.call_id != made.call_id
            or (new.original is not old and new.original is not old.original)
            or old.mark != new.mark
            or old.pinned
            or new.pinned
        ):
            return False
    return True


def _misplaced(plan: Plan, context: Context) -> Iterator[str]:
    length = len(context.messages)
    if type(plan) is not Plan:
        yield f"it is a {type(plan).__name__}, not a Plan"
        return
    for word, given in (("drop", plan.drop), ("replace", plan.replace), ("insert", plan.insert)):
        if isinstance(given, Iterator):  # a generator can be read once only
            yield f"{word} is a {type(given).__name__}, not a tuple"
            return
    try:
        replaced, inserted = [at for at, _ in plan.replace], [at for at, _ in plan.insert]
        positions = (*plan.drop, *replaced, *inserted)
    except (TypeError, ValueError):
        yield "drop holds positions, replace and insert hold pairs of a position and a message"
        return
    if not {int}.issuperset(map(type, positions)):
        yield "a position is not a whole number"
        return
    if not {Message}.issuperset([type(message) for _, message in (*plan.replace, *plan.insert)]):
        yield "what it puts in is not a Message"
        return
    yield from _out_of("drop", plan.drop, length, length)
    yield from _out_of("replace", replaced, length, length)
    yield from _out_of("insert", inserted, length + 1, length)
    touched = (*plan.drop, *replaced)
    if len(set(touched)) != len(touched):
        for position, times in Counter(touched).items():
            if times > 1:
                yield f"position {position} is named {times} times"


def _out_of(word: str, positions: Sequence[int], limit: int, length: int) -> Iterator[str]:
    for position in positions:
        if not 0 <= position < limit:
            yield f"{word}: position {position} is not among the {length} messages"


def _unmarked(plan: Plan, context: Context) -> Iterator[str]:
    for position, message in plan.insert:
        if not message.mark:
            yield f"insert at {position}: the message is not marked as ours"
        if message.role in ("system", "user") or message.pinned:
            yield f"insert at {position}: a layer may not speak as {message.role}, nor pin"
    messages = context.messages
    for position, message in plan.replace:
        old = messages[position]
        # An equal one is as good: another thread may just have linked the edited message to its own copy of it.
        if message.original is not old.original and message.original != old.original:
            yield f"replace at {position}: not made by edited() from the message that it replaces"
        elif message.role != old.role:
            yield f"replace at {position}: the role changes from {old.role} to {message.role}"
        elif message.pinned != old.pinned or (message.mark == "summary") != (old.mark == "summary"):
            yield f"replace at {position}: an edit may not pin, unpin, or make or unmake a summary"


def _unsendable(plan: Plan, context: Context) -> Iterator[str]:
    """Check that what it puts in can be sent: parts that its role may have, and calls that a model may have made."""
    for position, message in plan.insert:
        if not message.parts:
            yield f"insert at {position}: the message is empty"
    for position, message in plan.replace:
        old = context.messages[position]
        if not message.parts and old.parts:
            yield f"replace at {position}: nothing is left of the message"
        arguments = {call.arguments for call in old.calls}
        kinds = {(call.id, call.name): call.arguments.lstrip()[:1] for call in old.calls}
        for call in message.calls:
            kind = kinds.get((call.id, call.name))
            if kind is None or not (call.arguments in arguments or _is_json(call.arguments, kind)):
                yield f"replace at {position}: a call gets another name, or arguments that are no JSON"
    for position, message in (*plan.replace, *plan.insert):
        if message.role != "assistant" and any(type(part) is ToolCall for part in message.parts):
            yield f"position {position}: a {message.role} message makes no tool calls"


def _is_json(arguments: str, kind: str) -> bool:
    """Return True for a JSON object; for a text, too, where the arguments were one: a custom tool takes it."""
    try:
        msgspec.json.decode(arguments or "{}", type=str if kind == '"' else dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        return False
    return True


def _lost(plan: Plan, context: Context, is_repair: bool) -> Iterator[str]:
    messages, latest_user = context.messages, context.latest_user
    for word, positions in (
        ("dropped", plan.drop),
        ("replaced", () if is_repair else [position for position, _ in plan.replace]),
    ):
        for position in positions:
            message = messages[position]
            if message.role == "system":
                yield f"the system message at {position} is {word}"
            elif message.pinned and not is_repair:
                yield f"the pinned message at {position} is {word}"
            elif position == latest_user:
                yield f"the latest user message, at {position}, is {word}"
    after: list[tuple[int, Message | None]] = [*((at, None) for at in plan.drop), *plan.replace]
    for at, new in after:  # only what the plan touches is searched for a compaction
        is_gone = compaction_in(messages[at]) is not None and (new is None or compaction_in(new) is None)
        if is_gone and at == context.latest_compaction:
            yield f"the provider's compaction at {at} is lost"


def _not_only_moved(before: Context, after: Context) -> Iterator[str]:
    """Check that a repair only moves results: none is lost, new ones are marked, all else stays in its order, and each
    result stands behind its call."""
    there = Counter(each.result for each in answered_calls(before.messages))
    now = [(part, each.mark) for each in after.messages if each.role != "system" for part in each.results]
    if Counter(part for part, mark in now if not mark) - there:
        yield "it puts in a result that was not there, and does not mark it as ours"
    if _words(before.messages) != _words(after.messages):
        yield "a repair moves results, and changes nothing else"
    if there - Counter(part for part, _ in now):
        yield "a result that answers a call is lost"
    if pair(after.messages).need_repair(len(after.messages) - 1):
        yield "it leaves something to repair"


def _words(messages: Sequence[Message]) -> list[tuple[Role, bool, tuple[Part, ...]]]:
    """Return the messages without their results; parts of a system message are not results."""
    found: list[tuple[Role, bool, tuple[Part, ...]]] = []
    for message in messages:
        parts = message.parts
        if message.role != "system":
            parts = tuple([part for part in parts if type(part) is not ToolResult])
        if parts or not message.parts:
            found.append((message.role, message.pinned, parts))
    return found


def _summaries(plan: Plan, context: Context, after: Context) -> Iterator[str]:
    """Check that no summary is dropped without a new one, and that there is at most one."""
    inserted = sum(message.mark == "summary" for _, message in plan.insert)
    if not inserted:
        for position in sorted(each for each in plan.drop if context.messages[each].mark == "summary"):
            yield f"the summary at {position} is dropped, and none takes its place"
    elif sum(message.mark == "summary" and not message.pinned for message in after.messages) > 1:
        yield "there would be more than one summary"


def keeps_pairs(plan: Plan, context: Context) -> bool:
    """Return True if it only replaces messages by ones with the same calls and results in the same order."""
    if plan.drop or plan.insert:
        return False
    return all(_asks_alike(context.messages[position], message) for position, message in plan.replace)


def _takes_out_whole(plan: Plan, context: Context) -> bool:
    """Return True if it drops nothing but whole units without a waiting call, and puts in no call or result, all before
    the last message: so all other pairs stay.

    A result answers the newest call of its id that has none yet, so pairs of one id lie within one another, like
    brackets: taking out both of a pair joins no others. Pairing all messages anew, before and after, took half of the
    time of checking a plan that drops.
    """
    messages = context.messages
    last, dropped = len(messages) - 1, set(plan.drop)
    if last in dropped:
        return False
    if any(position > last or _ids(message.parts) for position, message in plan.insert):
        return False
    if not all(_asks_alike(messages[position], message) for position, message in plan.replace):
        return False
    touched = [unit for unit in context.units if not dropped.isdisjoint(unit.positions)] if dropped else []
    return all(not unit.is_open and dropped.issuperset(unit.positions) for unit in touched)


def _asks_alike(before: Message, after: Message) -> bool:
    old, new = before.parts, after.parts
    if (
        len(old) == len(new) == 1 and type(old[0]) is ToolResult and type(new[0]) is ToolResult
    ):  # most of what is edited
        return old[0].call_id == new[0].call_id and before.role == after.role
    return _ids(old) == _ids(new) and before.role == after.role


def _ids(parts: tuple[Part, ...]) -> list[tuple[type[Part], str]]:
    """Return what pairs go by: ids of calls and results, and provider items that belong to others."""
    found: list[tuple[type[Part], str]] = []
    for part in parts:
        if isinstance(part, ToolCall):
            found.append((ToolCall, part.id))
        elif isinstance(part, ToolResult):
            found.append((ToolResult, part.call_id))
        elif isinstance(part, ProviderItem) and is_linked(part):
            found.append((ProviderItem, part.json))
    return found


def _unpaired(before: Context, after: Context) -> Iterator[str]:
    if before.messages and not after.messages:
        yield "nothing is left to send"
    pairs_before, pairs_after = pair(before.messages), pair(after.messages)
    ends = len(before.messages) - 1, len(after.messages) - 1
    found: dict[str, None] = {}
    # Twice: with the calls of the last message, so that none gets there by losing its results, and without them, so
    # that none that waits is moved away from there.
    for end_before, end_after in ((-1, -1), ends):
        new = pairs_after.leftovers(end_after)
        new.subtract(pairs_before.leftovers(end_before))
        found.update((what, None) for what, times in new.items() if times > 0)
    yield from found
    for call_id in pairs_before.waiting_in(ends[0]) - pairs_after.waiting_in(ends[1]):
        yield f"the call {call_id}, which waits for its result, is gone"


def _inserted_into_units(plan: Plan, context: Context) -> Iterator[str]:
    """Check that nothing is inserted between a call and its results, or the provider would refuse the request."""
    if not plan.insert:
        return
    dropped = frozenset(plan.drop)
    # Differences by position: +1 behind the first message of a unit, -1 behind its last; their sums are open units.
    begun = [0] * (len(context.messages) + 2)
    for unit in context.units:
        kept = [each for each in unit.positions if each not in dropped]
        if kept:
            begun[kept[0] + 1] += 1
            begun[kept[-1] + 1] -= 1
    inside = tuple(itertools.accumulate(begun))
    for position, _ in plan.insert:
        if inside[position]:
            yield f"insert at {position}: between a call and its results"


def _ends_with_assistant(plan: Plan, before: Context, after: Context) -> Iterator[str]:
    """Check that no words of the model's, nor a summary, come to the end, where they would look like the answer."""
    if (plan.drop or plan.insert) and _ends_with_words(after) and not _ends_with_words(before):
        yield "the request would end with an assistant message"


def _ends_with_words(context: Context) -> bool:
    """Return True if the last message, but for system messages, is one of the model's that waits for no result."""
    last = next((message for message in reversed(context.messages) if message.role != "system"), None)
    return last is not None and last.role == "assistant" and not last.calls


def _not_smaller(before: Context, after: Context) -> Iterator[str]:
    if after.tokens >= before.tokens:
        yield f"the edit does not make the context smaller: {before.tokens} tokens before, {after.tokens} after"
