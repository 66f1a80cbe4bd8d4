"""The requests that one policy sends of one conversation, followed from call to call."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from chatstack.values.messages import Message
from chatstack.values.requests import ChatRequest
from chatstack.workbench.replay.measures.following import Following
from chatstack.workbench.replay.stories import TEXT_CHARS, Added, CallStory, Cut, State, cut

_ADDED_CHARS = 600
_VALUE_CHARS = 200
_VALUES = 30
"""Maximum number of lost values reported for one call."""


class _Sent(NamedTuple):
    """A message of a request: the number of the recorded one that it is or was made from, None for an inserted one."""

    at: int | None
    message: Message


class Tracing:
    """Follows the requests of one policy in one conversation. Each call is told by what differs from the one before."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._at = {id(message): at for at, message in enumerate(messages)}
        self._equal: dict[Message, list[int]] = {}
        for at, message in enumerate(messages):
            self._equal.setdefault(message, []).append(at)
        self._messages = messages
        self._following = Following(self._take, self._drop)
        self._sent: list[_Sent] = []
        self._inserted: list[int] = []
        """Places in ``_sent`` of the inserted messages."""
        self._states: list[State] = []
        self._stacks: dict[int, list[State]] = {}
        """States of the messages in the request, one for each time that one is in it."""
        self._before: dict[int, State] = {}
        """States at the call before, of the messages that were looked at since."""
        self._texts: dict[int, Cut] = {}
        self._folded: set[int] = set()
        self._summaries: list[Message] = []
        self._call = CallStory()
        self.calls: list[CallStory] = []

    def add(self, call: CallStory, position: int, sent: ChatRequest | None) -> None:
        """Add the call whose answer is the message at that position; ``sent`` is None if it was refused."""
        self.calls.append(call)
        call.lost_count = len(call.lost)
        call.lost = [value[:_VALUE_CHARS] for value in call.lost[:_VALUES]]
        if sent is None:
            call.states = _runs("d" * position)
            return
        self._call = call
        self._before = {}
        sure = 0 if position < len(self._states) else self._sure()
        known = min(len(self._states), position)
        del self._states[known:]
        self._states.extend(itertools.repeat("d", position - known))
        self._following.follow(sent.messages, most=sure)
        call.added = list(self._added())
        call.same = 0 if self._fold() else min([known, *filter(self._has_changed, self._before)])
        call.states = _runs(map(self._told, range(call.same, position)))

    def _take(self, message: Message) -> None:
        at = self._place(message)
        if at is None:
            self._inserted.append(len(self._sent))
        else:
            state: State = "k" if message == self._messages[at] else "c"
            self._stacks.setdefault(at, []).append(state)
            self._set(at, state)
            if state == "c":
                self._tell(at, cut(message, TEXT_CHARS))
        self._sent.append(_Sent(at, message))

    def _drop(self, _: Message) -> None:
        sent = self._sent.pop()
        if sent.at is None:
            self._inserted.pop()
        else:
            stack = self._stacks[sent.at]
            stack.pop()
            if sent.at < len(self._states):
                self._set(sent.at, stack[-1] if stack else "d")

    def _set(self, at: int, state: State) -> None:
        self._before.setdefault(at, self._states[at])
        self._states[at] = state

    def _place(self, message: Message) -> int | None:
        """Return the number of the recorded message that this one is or was made from; None for an inserted one."""
        at = self._at.get(id(message.original))
        if at is None and not message.mark:
            at = next((n for n in self._equal.get(message, ()) if self._is_free(n)), None)
        return at if at is not None and at < len(self._states) else None

    def _is_free(self, at: int) -> bool:
        return at < len(self._states) and self._states[at] == "d"

    def _sure(self) -> int | None:
        """Return how many messages of the last request keep their places in the next one, None for all.

        One that was inserted may turn out to be a message that has been recorded since.
        """
        return next((place for place in self._inserted if self._may_have_a_place(self._sent[place].message)), None)

    def _may_have_a_place(self, message: Message) -> bool:
        return id(message.original) in self._at or (not message.mark and message in self._equal)

    def _added(self) -> Iterable[Added]:
        """Yield the inserted messages, each before the recorded one that follows, or behind the last."""
        for place in self._inserted:
            following = self._nearest(range(place + 1, len(self._sent)))
            if following is None:
                ahead = self._nearest(range(place - 1, -1, -1))
                following = 0 if ahead is None else ahead + 1
            text = cut(self._sent[place].message, _ADDED_CHARS)
            yield Added(following, text.text, text.chars)

    def _nearest(self, places: Iterable[int]) -> int | None:
        return next((at for place in places if (at := self._sent[place].at) is not None), None)

    def _fold(self) -> bool:
        """Take note of the summaries in the request; return True if that changes what is folded into them."""
        sent = (self._sent[place].message for place in self._inserted)
        summaries = [message.original for message in sent if message.mark == "summary"]
        known = {id(each) for each in self._summaries}  # by identity: a stand-in writes the same text each time
        self._summaries = summaries
        if any(id(each) not in known for each in summaries):
            self._folded.update(at for at, state in enumerate(self._states) if state == "d")
            return True
        is_over = bool(self._folded) and not summaries
        if is_over:
            self._folded.clear()
        return is_over

    def _told(self, at: int) -> State:
        return self._as_told(at, self._states[at])

    def _as_told(self, at: int, state: State) -> State:
        return "f" if state == "d" and at in self._folded else state

    def _has_changed(self, at: int) -> bool:
        return self._as_told(at, self._before[at]) != self._told(at)

    def _tell(self, at: int, new: Cut) -> None:
        if self._texts.get(at) != new:
            self._texts[at] = new
            self._call.changed[str(at)] = new


def _runs(states: Iterable[str]) -> str:
    """Run-length encode: ``kkkcd`` becomes ``3k1c1d``."""
    return "".join(f"{len(list(run))}{state}" for state, run in itertools.groupby(states))
