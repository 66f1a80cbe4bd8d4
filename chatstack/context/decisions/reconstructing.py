"""Reconstructing: the edits that a strategy would have made over a history, had it run from the beginning.

A history whose past is not known (after a restart without a store, or an eviction) must be sent as if nothing had been
forgotten, or every restart would lose its prompt cache. Each assistant message in it was the answer to a request: all
messages before it. So the strategy, which is a pure function, is run over these requests again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, partial
from itertools import accumulate, islice
from typing import NamedTuple

import msgspec

from chatstack.context.decisions.carrying import weighed, with_edits
from chatstack.context.decisions.policy import Policy
from chatstack.context.edits.context import Context
from chatstack.context.edits.plans import Plan
from chatstack.context.edits.records import NOTHING_MADE, Made, Record, record_in_place, record_of
from chatstack.context.edits.verifier import keeps_pairs, problems
from chatstack.context.histories.conversations import Carried, Wait
from chatstack.context.histories.growth import Growth, pairs_of
from chatstack.context.histories.past_requests import PastRequests, first_of
from chatstack.context.histories.recognised import Recognised
from chatstack.context.requests.asking import Asking, aside
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message

_MOST_STEPS = 256
"""Maximum number of reconstructed edits; the rest is planned as one edit."""
_EACH = 512
"""Maximum number of requests planned one by one; after that, only those that have grown by a 32nd since the last."""
_LOOKS_AT = 1_000_000
"""The same bound in messages, as planning a request takes time proportional to its messages."""
_NEVER = 2**62


@dataclass(repr=False, eq=False)
class Step:
    """One reconstructed edit: the length of the history it was made for, its plan, and all edits in force from then on,
    which are put together when they are asked for. ``context`` is the plan's context if it is that of the current
    request."""

    length: int
    plan: Plan
    context: Context | None
    make: Callable[[], Made]

    @cached_property
    def made(self) -> Made:
        """All edits in force from then on, with the edited messages."""
        return self.make()

    @property
    def record(self) -> Record:
        """All edits in force from then on."""
        return self.made.record


class _Course(NamedTuple):
    """The edits in force on the way: the beginning of the request as it looks with them. What follows is as it came.

    The beginning are the first ``begun`` messages of ``edited``, made of the first ``end`` messages of the request, and
    of the first ``length`` of its history; it is ``saved`` tokens smaller than these. ``made`` is the record that the
    edits began with. ``replaced`` are the edited messages by their position in the request, one edit after the other,
    if none has moved a message.
    """

    edited: Context
    begun: int
    end: int
    length: int
    saved: int
    made: Made
    replaced: tuple[Mapping[int, Message], ...] | None
    growth: Growth


@dataclass(repr=False, eq=False)
class Reconstruction:
    """Runs a strategy over the requests of a history, in order, and waits where its layer would have waited.

    Contexts only grow between two edits, so the first request that is due is found by bisection. No edit depends on
    what follows its request, so a history that goes on comes to the same edits.
    """

    came: Context
    seen: Recognised
    counter: TokenCounter
    policy: Policy
    _: KW_ONLY
    by_original: bool = False
    carried: Carried | None = None
    replayed: Context | None = None
    wait: Wait | None = None
    """The last search that found no edit, since the last edit: the layer goes on waiting from there."""
    was_rejected: bool = field(init=False, default=False)
    """True if the last plan did not pass the verifier."""
    was_cut_short: bool = field(init=False, default=False)
    """True if there were more edits than are reconstructed one by one."""
    growth: Growth | None = field(init=False, default=None)
    """The growth of contexts with all edits, if none has moved a message."""
    looked: int = field(init=False, default=0)
    """The length of the request that the strategy was last asked to plan for."""
    _looks: int = field(init=False, default=0)
    _looked_at: int = field(init=False, default=0)
    _due: int = field(init=False, default=_NEVER)
    """The fewest tokens that were due."""
    _past: PastRequests | None = field(init=False, default=None)
    _latest: tuple[int, _Course, Context] | None = field(init=False, default=None)
    """The context that was made last, which is often asked for again."""

    def __post_init__(self) -> None:
        self._is_plain = isinstance(self.seen.positions, range) and not self.by_original
        """True if the request holds the messages of the history in one piece."""

    def steps(self, since: int, record: Record | None) -> Asking[list[Step]]:
        """Return the edits of all requests of more than ``since`` messages, the current one included; ``record`` holds
        the edits in force before that."""
        course = self._course(record)
        if not self._is_due(self.seen.length, course):
            return []
        work = partial(self._steps, since, course)
        return (yield from aside(work, self.seen.length, self.policy.aside_from))

    def _steps(self, since: int, course: _Course) -> list[Step]:
        steps = [*islice(self._each(since, course), _MOST_STEPS)]
        self.was_cut_short = len(steps) == _MOST_STEPS
        if steps:
            steps[-1].made  # noqa: B018 - put together here, where nobody waits for it
        return steps

    def first(self, since: int, record: Record | None) -> Step | None:
        """Return the first of these edits; None if there is none."""
        step = next(self._each(since, self._course(record)), None)
        if step is not None:
            step.made  # noqa: B018 - put together here, where nobody waits for it
        return step

    def _each(self, since: int, course: _Course) -> Iterator[Step]:
        while found := self._next(since, course):
            step, course = found
            yield step
            since = step.length

    def _next(self, since: int, course: _Course) -> tuple[Step, _Course] | None:
        """Return the first edit of the requests of more than ``since`` messages, and the course after it."""
        requests = self._requests(since)
        lengths = requests.lengths[bisect_right(requests.lengths, since) :]
        likely = self._index(lengths, 0, course, self._due - 1)
        at = first_of(lengths, 0, lambda length: self._is_due(length, course), likely)
        while at < len(lengths):
            length = lengths[at]
            sized = self._sized(length, course)
            assert sized is not None  # or it was not due
            user, sizes = self._waits_on(length, sized)
            if self._goes_on(user, sizes):
                likely = self._likely_end(lengths, at + 1, course)
                at = first_of(lengths, at + 1, lambda length: not self._is_waiting(length, course), likely)
                continue
            self.looked, self.was_rejected = length, False
            self._looks += 1
            self._looked_at += length
            found = self._step(length, self._context(length, course), course)
            self.wait = None if found is not None or sizes is None else Wait(user, sizes)
            if found is not None:
                return found
            at += 1
        return None

    def _requests(self, since: int) -> PastRequests:
        """The requests of the history, from that one on or from an earlier one."""
        if self._past is None or self._past.since > since:
            self._past = PastRequests.of(self.seen, since)
        return self._past

    def _likely_end(self, lengths: Sequence[int], low: int, course: _Course) -> int:
        """Return the index at which the wait probably ends: where the context has grown enough, by arithmetic alone, or
        with the next user message.

        Making a context takes as long as its messages are many: for 20,000 messages, 1,100 are made in place of 3,850.
        """
        wait, length = self.wait, lengths[low - 1]
        assert wait is not None  # it goes on
        likely = self._index(lengths, low, course, wait.until)
        if wait.asked_at < 0:
            return likely
        return min(likely, bisect_right(lengths, self._requests(length).next_user(length), low))

    def _index(self, lengths: Sequence[int], low: int, course: _Course, most: int) -> int:
        """Return the index of the first length, from ``low`` on, of a request of more than ``most`` tokens."""
        came, whole = self.came, self.came.messages_tokens - course.saved
        return bisect_right(
            lengths, most, low, key=lambda at: came.with_messages_tokens(whole - self._tokens_behind(at))
        )

    def _is_due(self, length: int, course: _Course) -> bool:
        context = self._sized(length, course)
        if context is None or not self.policy.is_due(context):
            return False
        self._due = min(self._due, context.tokens)
        return True

    def _is_waiting(self, length: int, course: _Course) -> bool:
        context = self._sized(length, course)
        return context is None or self._goes_on(*self._waits_on(length, context))

    def _goes_on(self, user: int, sizes: tuple[int, ...] | None) -> bool:
        return sizes is not None and self.wait is not None and self.wait.goes_on(user, sizes)

    def _waits_on(self, length: int, context: Context) -> tuple[int, tuple[int, ...] | None]:
        """Return the user message that a request's turn began with, and the sizes that a search waits on."""
        over_turns, sizes = self.policy.waits_over_turns, self.policy.waits_on(context)
        user = -1 if over_turns else self._requests(length).asked_at(self.seen, length)
        if (self._looks >= _EACH or self._looked_at >= _LOOKS_AT) and length < self.seen.length:
            return -1, sizes or (context.tokens,)
        return user, sizes

    def _step(self, length: int, context: Context, course: _Course) -> tuple[Step, _Course] | None:
        plan = self.policy.plan(context)
        if plan is None or (isinstance(plan, Plan) and plan.is_empty):  # pyright: ignore[reportUnnecessaryIsInstance]
            return None
        if problems(plan, context):
            self.was_rejected = True
            return None
        after, came, end = context.after(plan), self.came.messages, self._end(length)
        replaced, in_place = None, course.replaced is not None and keeps_pairs(plan, context)
        left = after.messages  # not by the context, which holds its growth: both would wait for the garbage collector
        growth = course.growth.edited(lambda: left + came[end:], in_place=in_place)
        if course.replaced is not None and in_place:
            replaced = (*course.replaced, dict(plan.replace))
        else:
            after.origins  # noqa: B018 - found now: those of the next edit are found by these, and so on
        growth.includes(after)  # for whoever asks what is left
        self.growth = None if replaced is None else growth
        saved = course.saved + context.messages_tokens - after.messages_tokens
        following = _Course(after, len(after.messages), end, length, saved, course.made, replaced, growth)
        its_own = context if length == self.seen.length else None
        step = Step(length, plan, its_own, self._making(following))
        if plan.insert and not self._is_plain:  # later calls may put it elsewhere between system messages
            return step, self._course(step.record, step.made)
        return step, following

    def _making(self, course: _Course) -> Callable[[], Made]:
        """Return what makes the record of all edits of a course. It holds no context, if no edit has moved a message:
        many steps would hold as many lists of all messages."""
        came, positions, replaced, known = self.came.messages, self.seen.positions, course.replaced, course.made
        if replaced is not None:
            return lambda: record_in_place(
                came, positions[0], {at: new for edits in replaced for at, new in edits.items()}, known
            )
        length, edited = course.length, course.edited
        return lambda: record_of(
            positions[:length], came, list(zip(edited.messages, edited.origins, strict=True)), known
        )

    def _course(self, record: Record | None, made: Made | None = None) -> _Course:
        """Return the course that begins with a record, which fits the messages: it is in force."""
        came, positions = self.came, self.seen.positions
        if record is None:
            replaced: tuple[Mapping[int, Message], ...] | None = () if self._is_plain else None
            return _Course(came, 0, 0, 0, 0, NOTHING_MADE, replaced, self._growth(lambda: came.messages, replaced))
        carried = self.carried
        if made is None and carried is not None and carried.record is record:
            made = carried.made
        if made is None:
            edited = record.edited(came.messages, positions)
            assert edited is not None  # or it would not be in force
            made = Made(record, edited)
        if self._is_plain and isinstance(positions, range):
            if carried is None or carried.made is not made:
                carried = weighed(made, self.seen, self.counter, came.size_of)
            known = self.replayed if carried is self.carried else None
            whole = known or with_edits(came, carried, positions)
        else:
            whole = came.after(record.plan(positions, len(came.messages), made.edited))
        replaced = None
        if self._is_plain and not record.drop and not record.insert:
            replaced = ({positions[at]: message for at, message in made.edited.items()},)
        end = self._end(record.reach)
        begun = len(whole.messages) - (len(came.messages) - end)
        saved, growth = came.messages_tokens - whole.messages_tokens, self._growth(lambda: whole.messages, replaced)
        return _Course(whole, begun, end, record.reach, saved, made, replaced, growth)

    def _growth(self, find_messages: Callable[[], tuple[Message, ...]], replaced: object) -> Growth:
        """Return the growth of a course's contexts; where no message has moved, the history knows its pairs."""
        return Growth(find_messages, find_pairs=None if replaced is None else pairs_of(self.seen))

    def _sized(self, length: int, course: _Course) -> Context | None:
        """Return the context of the request of that many messages of the history, itself without messages if its policy
        goes by size; None if something was left out later than that."""
        came = self.came
        if came.left_out and max(came.left_out) >= self._end(length):
            return None
        if not self.policy.by_size:
            return self._context(length, course)
        return msgspec.structs.replace(
            came,
            messages=(),
            messages_tokens=came.messages_tokens - self._tokens_behind(length) - course.saved,
            is_cold=came.is_cold and length == self.seen.length,
        )

    def _context(self, length: int, course: _Course) -> Context:
        """Return the context of the request of that many messages of the history, with the edits in force."""
        if self._latest is None or self._latest[0] != length or self._latest[1] is not course:
            self._latest = (length, course, self._made_context(length, course))
        return self._latest[2]

    def _made_context(self, length: int, course: _Course) -> Context:
        came, end, is_whole = self.came, self._end(length), length == self.seen.length
        messages = rest = came.messages[course.end : end]
        find_origins: Callable[[], Sequence[int | None]] | None = None
        if course.end:
            messages = course.edited.messages[: course.begun] + rest
            if course.replaced is None:
                find_origins = lambda: (*course.edited.origins[: course.begun], *range(course.end, end))  # noqa: E731
        request = came.request if is_whole else came.request.but(messages=came.messages[:end] if course.end else rest)
        context = msgspec.structs.replace(
            came,
            request=request,
            messages=messages,
            messages_tokens=came.messages_tokens - self._tokens_behind(length) - course.saved,
            is_cold=is_whole and came.is_cold,
            find_origins=find_origins,
        )
        return course.growth.includes(context)

    def _end(self, length: int) -> int:
        """Return the number of messages in the request of that many messages of the history."""
        return len(self.came.messages) if length == self.seen.length else self.seen.positions[length]

    def _tokens_behind(self, length: int) -> int:
        """Return the size of all messages of the current request that came after that one."""
        if self._is_plain:
            return self._sums[self.seen.length] - self._sums[length]
        return self._sums[-1] - self._sums[self._end(length)]

    @cached_property
    def _sums(self) -> Sequence[int]:
        """The prefix sums of sizes: of the history's messages, if they stand in one piece, else of the request's."""
        seen, size_of = self.seen, self.came.size_of
        if self._is_plain:
            return seen.history.sums(seen.length, self.counter, size_of)
        return [0, *accumulate(map(size_of, self.came.messages))]
