"""Applied shapes: a rule looks at each new message of a history once, and what it made is kept with the history."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

from chatstack.context.decisions.editing import ContextEditing
from chatstack.context.edits.context import Context
from chatstack.context.edits.plans import Plan
from chatstack.context.edits.verifier import problems
from chatstack.context.histories.conversations import term_in
from chatstack.context.histories.weights import weight_of
from chatstack.context.requests.asking import Asking, aside
from chatstack.context.requests.opened import Opened
from chatstack.context.requests.saying import say_rejected, say_shaped
from chatstack.context.shapes.shaping import NOTHING_SHAPED, NewShapes, ShapeRule, Shapes
from chatstack.values.messages import relink

_BYTES_AS_A_MESSAGE = 10_000
"""The bytes of text that are as much work as one message, where it is told how much there is to do."""


class _Draft(NamedTuple):
    """The new shapes of a history, the plan that puts them in place, its problems, and the context after it."""

    new: NewShapes
    plan: Plan
    wrong: tuple[str, ...]
    after: Context


def apply_shapes(
    rule: ShapeRule, terms: int, editing: ContextEditing, opened: Opened, scaled: Callable[[Context], Context]
) -> Asking[Context]:
    """Return the context with what a rule puts in the place of its messages; only new ones are looked at. ``terms`` is
    a hash of what the rule depends on, beside the messages; ``scaled`` gives the context its true size."""
    history, length = opened.seen.history, opened.seen.length
    known = term_in(history.shapes, terms) or NOTHING_SHAPED
    context = scaled(_with_shapes(known, opened))
    if known.looked_at >= length:
        return context
    unseen = [opened.context.messages[at] for at in opened.seen.positions[known.looked_at :]]
    size = sum(map(weight_of, unseen)) // _BYTES_AS_A_MESSAGE
    work = partial(_draft, rule, known, context, opened)
    draft = yield from aside(work, max(size, sum(len(message.parts) for message in unseen)))
    made, new = known.messages, draft.new
    if draft.wrong:
        say_rejected(editing.telemetry, draft.plan, draft.wrong)
    elif new.messages:
        _say(rule, draft, context, editing, opened)
        made = {**made, **new.messages}
    texts = {**known.texts, **new.texts} if new.texts else known.texts
    latest = {**known.latest, **new.latest} if new.latest else known.latest
    saved = known.saved + context.messages_tokens - draft.after.messages_tokens
    editing.memory.derived.keep_shapes(history, terms, Shapes(length, made, saved, texts, latest))
    return draft.after


def _draft(rule: ShapeRule, known: Shapes, context: Context, opened: Opened) -> _Draft:
    positions = opened.seen.positions
    new = rule.of_new(opened.context.messages, positions, known)
    replace = tuple((positions[at], message) for at, message in new.messages.items())
    plan = Plan(strategy=rule.name, reason=rule.reason, replace=replace)
    wrong = problems(plan, context) if replace else ()
    return _Draft(new, plan, wrong, context if wrong or not replace else context.after(plan))


def _say(rule: ShapeRule, draft: _Draft, before: Context, editing: ContextEditing, opened: Opened) -> None:
    """Report what is new. What was there before the last answer is reported once for a conversation: later it is known,
    and comes again because a layer outside has edited."""
    plan, latest = draft.plan, before.latest_assistant
    is_first = editing.is_news("shaped", opened)
    known = () if is_first else tuple(each for each in plan.replace if each[0] < latest)
    if len(known) == len(plan.replace):
        return
    if known:
        before = before.after(msgspec.structs.replace(plan, replace=known))
        plan = msgspec.structs.replace(plan, replace=tuple(each for each in plan.replace if each[0] >= latest))
    earlier = sum(at < latest for at, _ in plan.replace)
    say_shaped(editing.telemetry, plan, before, draft.after, rule.attribute, earlier)


def _with_shapes(shapes: Shapes, opened: Opened) -> Context:
    """Return the context as it came, with the messages that are shaped already."""
    context, seen = opened.context, opened.seen
    positions = seen.positions
    edited = {positions[at]: message for at, message in shapes.messages.items() if at < seen.length}
    if not edited:
        return context
    # If the caller sends fresh objects, nothing else holds those of an earlier call.
    relink(edited, context.messages, 0)
    messages, saved = [*context.messages], shapes.saved
    for at, message in edited.items():
        messages[at] = message
    if len(edited) < len(shapes.messages):  # another call has gone further in the meantime
        saved = sum(context.size_of(context.messages[at]) - context.size_of(new) for at, new in edited.items())
    return msgspec.structs.replace(
        context, messages=tuple(messages), messages_tokens=context.messages_tokens - saved, find_origins=None
    )
