"""Upstream's answer as it came, for a caller that gets what the layers make of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from chatstack import ChatResponse, ChatUpdate
from chatstack.providers.extras import WireObject, object_or_empty
from chatstack.providers.wires import Form, write_messages
from chatstack.values.parts import Part
from chatstack.values.responses import CallDelta
from chatstack_gateway.answer_terms import CHAT_FINISHES, STOP_REASONS
from chatstack_gateway.events import decoded
from chatstack_gateway.positions import written

Words: TypeAlias = tuple[str, str, Part | None, CallDelta | None]
"""What an update says to the caller. Hashable."""

_WRITTEN = ("content", "tool_calls", "function_call")
"""Fields of a message of chat completions that are written anew."""


@dataclass(slots=True, eq=False)
class CameEvent:
    """An event of a stream, the updates that it was read as, and those that the layers have handed on as they came."""

    raw: bytes
    fields: WireObject | None
    updates: list[ChatUpdate]
    handed_on: list[ChatUpdate] = field(default_factory=list[ChatUpdate])

    @property
    def is_kept(self) -> bool:
        """True if the layers have handed on all of it, in its order."""
        return self.handed_on == self.updates


_Own: TypeAlias = tuple[CameEvent, ChatUpdate]


@dataclass(slots=True, eq=False)
class CameAnswer:
    """An answer: ``whole``, or the events that are not with the caller yet."""

    is_stream: bool
    whole: bytes = b""
    events: deque[CameEvent] = field(default_factory=deque[CameEvent])
    head: Mapping[str, object] = field(default_factory=dict[str, object])
    """The first event."""
    done: ChatUpdate | None = None
    """The update with the message; None before the end."""
    told: Set[Words] = frozenset()
    """Words of the updates behind the events: what these have told before."""
    _left: dict[Words, deque[_Own]] = field(default_factory=dict[Words, deque[_Own]])
    """Updates of the events that no layer has handed on, by what they say. Without this index all events would be
    searched for each update that a layer has changed."""

    def add(self, raw: bytes, event: object, updates: list[ChatUpdate]) -> None:
        """Note an event."""
        fields = object_or_empty(event)
        self.head = self.head or fields
        came = CameEvent(raw, fields, updates)
        self.events.append(came)
        for update in updates:
            self._left.setdefault(words_of(update), deque()).append((came, update))

    def end(self, raw: bytes, updates: Sequence[ChatUpdate]) -> None:
        """Note the end, with what followed the last event that has an update."""
        self.done, self.told = updates[-1], {words_of(each) for each in updates}
        if raw:
            self.events.append(CameEvent(raw, None, []))

    def hand_on(self, update: ChatUpdate) -> CameEvent | None:
        """Return the first event that has left what an update says; from now on it is handed on."""
        words = words_of(update)
        if words not in self._left:
            return None
        event, own = self._left[words][0]
        event.handed_on.append(own)
        self._forget(words, event)
        return event

    def leave_out(self, event: CameEvent) -> None:
        """Forget what is left of an event. All events before it have gone: what it says is found in it first."""
        for update in event.updates:
            self._forget(words_of(update), event)

    def _forget(self, words: Words, event: CameEvent) -> None:
        left = self._left.get(words)
        if left and left[0][0] is event:
            left.popleft()
            if not left:
                del self._left[words]

    def is_kept(self, response: ChatResponse) -> bool:
        """Return True if the layers made nothing else of it."""
        done = self.done
        return done is not None and response.messages == (done.message_done,) and not self.ends_otherwise(response)

    def ends_otherwise(self, response: ChatResponse) -> bool:
        """Return True if the layers have changed the reason to stop."""
        return self.done is not None and response.finish_reason != self.done.finish_reason

    def rewritten(self, form: Form, response: ChatResponse) -> bytes:
        """Return a whole answer as the layers left it: its own bytes, or its fields with the message written anew, as
        it would be sent back: with signatures and items of the API's own."""
        if self.is_kept(response):
            return self.whole
        answer = cast("WireObject", decoded(self.whole))
        items = [each for each in write_messages(form, response.messages) if each.get("role", "assistant") != "user"]
        is_other = self.ends_otherwise(response)
        if form == "responses":
            return written({**answer, "output": _output(answer, items)}).encode()
        reason = response.finish_reason or "other"
        if form == "messages":
            content = [block for each in items for block in cast("list[object]", each["content"])]
            stop = {"stop_reason": STOP_REASONS[reason]} if is_other else {}
            return written({**answer, "content": content, **stop}).encode()
        first, *others = cast("list[WireObject]", answer["choices"])
        message = {name: value for name, value in object_or_empty(first.get("message")).items() if name not in _WRITTEN}
        message = {**message, "content": None, **(items[-1] if items else {})}
        finish = {"finish_reason": CHAT_FINISHES[reason]} if is_other else {}
        return written({**answer, "choices": [{**first, "message": message, **finish}, *others]}).encode()


def words_of(update: ChatUpdate) -> Words:
    """Return what an update says to the caller; falsy values alone, if it says nothing."""
    return (update.text, update.reasoning, update.part, update.call_delta)


def _output(answer: WireObject, items: Sequence[WireObject]) -> list[WireObject]:
    """Return the items of an answer of Responses, with the ids that they came with."""
    came = [object_or_empty(each) for each in cast("list[object]", answer.get("output") or [])]
    found: list[WireObject] = []
    for position, item in enumerate(items):
        same: WireObject = (
            came[position] if position < len(came) and came[position].get("type") == item.get("type") else {}
        )
        kept: WireObject = {name: same[name] for name in ("id", "status") if name in same}
        found.append({**kept, **item})
    return found
