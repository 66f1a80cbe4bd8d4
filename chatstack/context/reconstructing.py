"""Reconstructing: the edits that a strategy would have made over a history, had it run from the beginning.

A history whose past is not known (after a restart without a store, or an eviction) must be sent as if nothing had been
forgotten, or every restart would lose its prompt cache. Each assistant message in it was the answer to a request: all
messages before it. So the strategy, which is a pure function, is run over these requests again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, cast

import msgspec
from msgspec.structs import force_setattr

from chatstack.context.asking import Asking, Pauses
from chatstack.context.carrying import weighed, with_edits
from chatstack.context.context import Context
from chatstack.context.conversations import Carried, Wait
from chatstack.context.history import Recognised
from chatstack.context.plans import Plan
from chatstack.context.records import NOTHING_MADE, Made, Record, edit_of, record_of
from chatstack.context.units import is_users
from chatstack.context.verifier import keeps_pairs, problems
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message
from chatstack.values.requests import ChatRequest

_MOST_STEPS = 256
"""Maximum number of reconstructed edits; the rest is planned as one edit."""
_EACH = 512
"""Maximum number of requests planned one by one; after that, only those that have grown by a 32nd since the last."""
_LOOKS_AT = 1_000_000
"""The same bound in messages, as planning a request takes time proportional to its messages."""


class Policy(NamedTuple):
    """A strategy with its layer's rules for when to plan.

    ``is_due`` is cheap, and once true it stays true as a context grows. ``waits_on`` gives the sizes that the layer
    waits on after a search that found no edit (see ``Wait``); None if it searches again on each call.
    """

    plan: Callable[[Context], Plan | None]
    is_due: Callable[[Context], bool]
    waits_on: Callable[[Context], tuple[int, ...] | None] = lambda _: None


class Growth:
    """The messages of the longest of several contexts, each the beginning of the next.

    ``kept`` is what a strategy has worked out of them for the next contexts. It has to stay true when messages are
    replaced by the strategy's own edits, none of which moves a message, a call or a result.
    """

    __slots__ = ("kept", "messages")

    def __init__(self, messages: tuple[Message, ...], kept: object = None) -> None:
        self.messages = messages
        self.kept = kept

    @classmethod
    def of(cls, context: Context) -> Growth:
        """Return the growth that a context belongs to; one of its own if it belongs to none."""
        return cast("Growth | None", context.__dict__.get("_growth")) or cls(context.messages)

    def includes(self, context: Context) -> Context:
        """Return the context, after noting on it that its messages are the first ones of these."""
        force_setattr(context, "_growth", self)
        return context

    def edited(self, messages: tuple[Message, ...]) -> Growth:
        """Return the growth after an edit, which takes over what is kept."""
        kept, self.kept = self.kept, None
        return Growth(messages, kept)


class Step:
    """One reconstructed edit: the length of the history it was made for, its plan, and all edits in force from then on,
    which are put together when they are asked for. ``context`` is the plan's context if it is that of the current
    request."""

    def __init__(self, length: int, plan: Plan, context: Context | None, make: Callable[[], Made]) -> None:
        self.length = length
        self.plan = plan
        self.context = context
        self._make = make

    @cached_property
    def made(self) -> Made:
        """All edits in force from then on, with the edited messages."""
        return self._make()

    @property
    def record(self) -> Record:
        """All edits in force from then on."""
        return self.made.record


class _Course(NamedTuple):
    """The edits in force on the way: the current request as it looks with them, and the record that they began with.

    ``replaced`` are the edited messages by their position in the request, if no edit has moved a message.
    """

    whole: Context
    made: Made
    replaced: Mapping[int, Message] | None
    growth: Growth


class Reconstruction:
    """Runs a strategy over the requests of a history, in order, and waits where its layer would have waited.

    Contexts only grow between two edits, so the first request that is due is found by bisection. No edit depends on
    what follows its request, so a history that goes on comes to the same edits.
    """

    def __init__(
        self,
        came: Context,
        seen: Recognised,
        counter: TokenCounter,
        policy: Policy,
        *,
        by_original: bool = False,
        carried: Carried | None = None,
    ) -> None:
        self._came = came
        self._seen = seen
        self._is_plain = isinstance(seen.positions, range) and not by_original
        """True if the request holds the messages of the history in one piece."""
        self._counter = counter
        self._policy = policy
        self._carried = carried
        self.wait: Wait | None = None
        """The last search that found no edit, since the last edit: the layer goes on waiting from there."""
        self.was_rejected = False
        """True if the last plan did not pass the verifier."""
        self.looked = 0
        """The length of the request that the strategy was last asked to plan for."""
        self._looks = self._looked_at = 0

    def steps(self, since: int, record: Record | None) -> Asking[list[Step]]:
        """Return the edits of all requests of more than ``since`` messages, the current one included; ``record`` holds
        the edits in force before that. Pauses between them."""
        steps, pauses = list[Step](), Pauses()
        course = self._course(record)
        while course is not None and len(steps) < _MOST_STEPS:
            found = self._next(since, course)
            if found is None:
                break
            step, course = found
            steps.append(step)
            since = step.length
            yield from pauses.if_due()
        return steps

    def first(self, since: int, record: Record | None) -> Step | None:
        """Return the first of these edits; None if there is none."""
        course = self._course(record)
        found = None if course is None else self._next(since, course)
        return None if found is None else found[0]

    def _next(self, since: int, course: _Course) -> tuple[Step, _Course | None] | None:
        """Return the first edit of the requests of more than ``since`` messages, and the course after it."""
        lengths = self._lengths(since)
        if not lengths or not self._is_due(lengths[-1], course):
            return None
        self.wait = None
        for length in lengths[self._first_due(lengths, course) :]:
            context = self._context(length, course)
            if context is None:
                continue
            user, sizes = self._seen.latest_user(length), self._policy.waits_on(context)
            if (self._looks >= _EACH or self._looked_at >= _LOOKS_AT) and length < self._seen.length:
                user, sizes = -1, sizes or (context.tokens,)
            if sizes is not None and self.wait is not None and self.wait.goes_on(user, sizes):
                continue
            self.looked, self.was_rejected = length, False
            self._looks += 1
            self._looked_at += length
            found = self._step(length, context, course)
            self.wait = None if found is not None or sizes is None else Wait(user, sizes)
            if found is not None:
                return found
        return None

    def _lengths(self, since: int) -> Sequence[int]:
        """Return the lengths of the requests in the history that contain a user message, from ``since`` on."""
        return self._requests[bisect_right(self._requests, since) :]

    @cached_property
    def _requests(self) -> list[int]:
        """The lengths of all requests in the history that contain a user message."""
        seen = self._seen
        messages, length = seen.history.messages, seen.length
        user = next((at for at in range(length) if is_users(messages[at])), length)
        answers = (at for at in range(user + 1, length) if messages[at].role == "assistant" and not messages[at].mark)
        return [*answers, length]

    def _first_due(self, lengths: Sequence[int], course: _Course) -> int:
        """Return the index of the first request that is due, by bisection; the last one is. Where edits follow one
        another closely, it is among the first."""
        low, high, ahead = 0, len(lengths) - 1, 1
        while low < high:
            middle = min((low + high) // 2, low + ahead - 1)
            if self._is_due(lengths[middle], course):
                high = middle
            else:
                low, ahead = middle + 1, 2 * ahead
        return low

    def _is_due(self, length: int, course: _Course) -> bool:
        context = self._context(length, course)
        return context is not None and self._policy.is_due(context)

    def _step(self, length: int, context: Context, course: _Course) -> tuple[Step, _Course | None] | None:
        plan = self._policy.plan(context)
        if plan is None or (isinstance(plan, Plan) and plan.is_empty):  # pyright: ignore[reportUnnecessaryIsInstance]
            return None
        if problems(plan, context):
            self.was_rejected = True
            return None
        after, its_own = context.after(plan), context if length == self._seen.length else None
        if course.replaced is not None and keeps_pairs(plan, context):
            replaced = {**course.replaced, **dict(plan.replace)}
            step = Step(length, plan, its_own, lambda: self._made_of(replaced, course.made))
            return step, _replaced(course, plan, replaced, context.messages_tokens - after.messages_tokens)
        left = list(zip(after.messages, after.origins, strict=True))
        positions, messages = self._positions(length), self._messages(length)
        made = course.made if course.replaced is None else self._made_of(course.replaced, course.made)
        made = record_of(positions, messages, left, made)
        return Step(length, plan, its_own, lambda: made), self._course(made.record, made)

    def _made_of(self, replaced: Mapping[int, Message], known: Made) -> Made:
        """Return the record of edits that move no message; ``known`` is that of the first of them."""
        messages, head = self._came.messages, self._seen.positions[0]
        earlier = {each.position: each for each in known.record.replace}
        edited = {at - head: replaced[at] for at in sorted(replaced) if replaced[at] is not messages[at]}
        replace = tuple(
            [
                earlier[at] if known.edited.get(at) is message else edit_of(at, messages[at + head], message)
                for at, message in edited.items()
            ]
        )
        return Made(Record(replace=replace), edited)

    def _course(self, record: Record | None, made: Made | None = None) -> _Course | None:
        """Return the course that begins with a record; None if it does not fit the messages."""
        came, positions = self._came, self._seen.positions
        if record is None:
            growth = Growth(came.messages)
            return _Course(
                growth.includes(msgspec.structs.replace(came)), NOTHING_MADE, {} if self._is_plain else None, growth
            )
        carried = self._carried
        if made is None and carried is not None and carried.record is record:
            made = carried.made
        if made is None:
            edited = record.edited(came.messages, positions)
            if edited is None:
                return None
            made = Made(record, edited)
        if self._is_plain and isinstance(positions, range):
            if carried is None or carried.made is not made:
                carried = weighed(made, self._seen, self._counter, came.size_of)
            whole = with_edits(came, carried, positions)
        else:
            whole = came.after(record.plan(positions, len(came.messages), made.edited))
        replaced = None
        if self._is_plain and not record.drop and not record.insert:
            replaced = {positions[at]: message for at, message in made.edited.items()}
        growth = Growth(whole.messages)
        return _Course(growth.includes(whole), made, replaced, growth)

    def _context(self, length: int, course: _Course) -> Context | None:
        """Return the context of the request of that many messages of the history, with the edits in force."""
        came, seen, whole = self._came, self._seen, course.whole
        if length == seen.length:
            return whole
        messages = self._messages(length)
        if came.left_out and max(came.left_out) >= len(messages):  # it was left out later than that
            return None
        request = came.request.but(messages=messages)
        if not self._is_plain:
            return self._sparse(length, request, course.made)
        sums = seen.history.sums(seen.length, self._counter, came.size_of)
        is_edited = whole.messages is not came.messages
        end = len(messages) + len(whole.messages) - len(came.messages)  # all edits are of messages before
        context = msgspec.structs.replace(
            whole,
            request=request,
            messages=whole.messages[:end] if is_edited else messages,
            messages_tokens=whole.messages_tokens - (sums[seen.length] - sums[length]),
            is_cold=False,
            find_origins=(lambda: whole.origins[:end]) if is_edited else None,
        )
        return course.growth.includes(context)

    def _sparse(self, length: int, request: ChatRequest, made: Made) -> Context:
        """Return such a context where system messages stand between the others, or sizes are not the history's."""
        came, messages = self._came, request.messages
        tokens = sum(map(came.size_of, messages))
        context = msgspec.structs.replace(
            came, request=request, messages=messages, messages_tokens=tokens, is_cold=False
        )
        if made is NOTHING_MADE:
            return context
        return context.after(made.record.plan(self._positions(length), len(messages), made.edited))

    def _positions(self, length: int) -> Sequence[int]:
        return self._seen.positions[:length]

    def _messages(self, length: int) -> tuple[Message, ...]:
        """Return the messages of that request: all before its answer."""
        messages, positions = self._came.messages, self._seen.positions
        return messages if length == self._seen.length else messages[: positions[length]]


def _replaced(course: _Course, plan: Plan, replaced: Mapping[int, Message], saved: int) -> _Course:
    """Return the course after a plan that moves no message."""
    messages = list(course.whole.messages)
    for position, message in plan.replace:
        messages[position] = message
    whole = msgspec.structs.replace(
        course.whole, messages=tuple(messages), messages_tokens=course.whole.messages_tokens - saved
    )
    growth = course.growth.edited(whole.messages)
    return _Course(growth.includes(whole), course.made, replaced, growth)
