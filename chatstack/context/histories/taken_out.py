"""Old messages that a caller has taken something out of, since they were answered."""

from __future__ import annotations

from collections.abc import Sequence

from chatstack.values.messages import Message


def stand_in_place(now: Sequence[Message], then: Sequence[Message]) -> bool:
    """Return True if each of these messages but the first may be one that was sent, in its place, with less in it:
    callers take pictures out later, cut old results, or strip what they had looked up. Of words, a part has to be there
    still."""
    if len(now) != len(then) or now[0] != then[0]:
        return False
    return all(one is other or one == other or _has_less(one, other) for one, other in zip(now, then, strict=True))


def _has_less(now: Message, then: Message) -> bool:
    """Return True if a message may be the other one with less in it: with its calls and results, but not all of these,
    and a part of its words."""
    if now.role != then.role or _ids(now) != _ids(then):
        return False
    text = now.text.strip()
    return text in then.text if text else not then.text.strip()


def _ids(message: Message) -> list[str]:
    return [*[call.id for call in message.calls], *[result.call_id for result in message.results]]
