"""Reconstructing: the edits that a strategy would have made over a history, had it run from the beginning.

A history whose past is not known (after a restart without a store, or an eviction) must be sent as if nothing had been
forgotten, or every restart would lose its prompt cache. Each assistant message in it was the answer to a request: all
messages before it. So the strategy, which is a pure function, is run over these requests again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from chatstack.context.carrying import weighed, with_edits
from chatstack.context.context import Context
from chatstack.context.conversations import Carried, Wait
from chatstack.context.history import Recognised
from chatstack.context.plans import Plan
from chatstack.context.records import NOTHING_MADE, Made, Record, record_of
from chatstack.context.units import is_users
from chatstack.context.verifier import problems
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message

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


class Step(NamedTuple):
    """One reconstructed edit: the length of the history it was made for, its plan, and all edits in force from then on.
    ``context`` is the plan's context if it is that of the current request."""

    length: int
    made: Made
    plan: Plan
    context: Context | None

    @property
    def record(self) -> Record:
        return self.made.record


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

    def steps(self, since: int, record: Record | None) -> list[Step]:
        """Return the edits of all requests of more than ``since`` messages, the current one included; ``record`` holds
        the edits in force before that."""
        steps: list[Step] = []
        while len(steps) < _MOST_STEPS:
            step = self.first(since, record)
            if step is None:
                break
            steps.append(step)
            since, record = step.length, step.record
        return steps

    def first(self, since: int, record: Record | None) -> Step | None:
        """Return the first of these edits; None if there is none."""
        lengths = self._lengths(since)
        if not lengths or not self._is_due(lengths[-1], record):
            return None
        low, high = 0, len(lengths) - 1
        while low < high:
            middle = (low + high) // 2
            if self._is_due(lengths[middle], record):
                high = middle
            else:
                low = middle + 1
        self.wait = None
        for length in lengths[low:]:
            context = self._context(length, record)
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
            step = self._step(length, context)
            self.wait = None if step is not None or sizes is None else Wait(user, sizes)
            if step is not None:
                return step
        return None

    def _lengths(self, since: int) -> list[int]:
        """Return the lengths of the requests in the history that contain a user message."""
        seen = self._seen
        messages, length = seen.history.messages, seen.length
        if since >= length:
            return []
        user = next((at for at in range(length) if is_users(messages[at])), length)
        answers = (
            at
            for at in range(max(since, user) + 1, length)
            if messages[at].role == "assistant" and not messages[at].mark
        )
        return [*answers, length]

    def _is_due(self, length: int, record: Record | None) -> bool:
        context = self._context(length, record)
        return context is not None and self._policy.is_due(context)

    def _step(self, length: int, context: Context) -> Step | None:
        plan = self._policy.plan(context)
        if plan is None or (isinstance(plan, Plan) and plan.is_empty):  # pyright: ignore[reportUnnecessaryIsInstance]
            return None
        if problems(plan, context):
            self.was_rejected = True
            return None
        after = context.after(plan)
        left = list(zip(after.messages, after.origins, strict=True))
        known = NOTHING_MADE if self._carried is None else self._carried.made
        made = record_of(self._positions(length), self._messages(length), left, known)
        return Step(length, made, plan, context if length == self._seen.length else None)

    def _context(self, length: int, record: Record | None) -> Context | None:
        """Return the context of the request of that many messages of the history, with these edits."""
        came, seen = self._came, self._seen
        messages = self._messages(length)
        head = seen.positions.start if self._is_plain and isinstance(seen.positions, range) else -1
        if head >= 0:
            sums = seen.history.sums(seen.length, self._counter, came.size_of)
            tokens = came.messages_tokens - (sums[seen.length] - sums[length])
        else:
            tokens = sum(map(came.size_of, messages))
        context = came
        if length < seen.length:
            if came.left_out and max(came.left_out) >= len(messages):  # it was left out later than that
                return None
            request = came.request.but(messages=messages)
            context = msgspec.structs.replace(
                came, request=request, messages=messages, messages_tokens=tokens, is_cold=False
            )
        if record is None:
            return context
        made = self._made(record)
        if made is None:
            return None
        positions = self._positions(length)
        if isinstance(positions, range) and self._is_plain:
            return with_edits(context, made, positions)
        return context.after(record.plan(positions, len(messages), made.edited))

    def _made(self, record: Record) -> Carried | None:
        """Carry out a record; the edited messages are cached, so that each is counted once."""
        if self._carried is None or self._carried.record is not record:
            edited = record.edited(self._came.messages, self._seen.positions)
            if edited is None:
                return None
            self._carried = weighed(Made(record, edited), self._seen, self._counter, self._came.size_of)
        return self._carried

    def _positions(self, length: int) -> Sequence[int]:
        return self._seen.positions[:length]

    def _messages(self, length: int) -> tuple[Message, ...]:
        """Return the messages of that request: all before its answer."""
        messages, positions = self._came.messages, self._seen.positions
        return messages if length == self._seen.length else messages[: positions[length]]
