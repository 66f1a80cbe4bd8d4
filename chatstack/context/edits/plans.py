"""Plans: immutable descriptions of one edit."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from chatstack.values.messages import Message
from chatstack.values.mistakes import check_list


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """An edit of the messages of a request, with its reason. Messages that it does not name are kept.

    ``drop`` are positions to leave out. ``replace`` puts an edited message (``message.edited(...)``) in the place of
    the one it was made from. ``insert`` puts a message, with a layer's mark, before a position; the length of the list
    means the end. Positions are those of the messages that the plan was made for. ``reason`` is text for people.
    """

    strategy: str
    reason: str
    drop: tuple[int, ...] = ()
    replace: tuple[tuple[int, Message], ...] = ()
    insert: tuple[tuple[int, Message], ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if it changes nothing."""
        return not (self.drop or self.replace or self.insert)

    def apply(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages after the edit. Those that it does not touch stay the same objects."""
        check_list(messages)
        if self.insert:
            return tuple([message for message, _ in self.apply_to(messages)])
        after = list(messages)
        for position, message in self.replace:
            after[position] = message
        if self.drop:
            dropped = set(self.drop)
            after = [message for position, message in enumerate(after) if position not in dropped]
        return tuple(after)

    def apply_to(self, messages: Sequence[Message]) -> list[tuple[Message, int | None]]:
        """Return the messages after the edit, each with the position that it came from; None for inserted ones."""
        check_list(messages)
        kept: list[tuple[Message, int | None]] = list(zip(messages, range(len(messages)), strict=True))
        for position, message in self.replace:
            kept[position] = (message, position)
        if not (self.drop or self.insert):
            return kept
        dropped = set(self.drop)
        inserted: dict[int, list[Message]] = {}
        for position, message in self.insert:
            inserted.setdefault(position, []).append(message)
        after: list[tuple[Message, int | None]] = []
        for position, each in enumerate(kept):
            if position in inserted:
                after.extend((new, None) for new in inserted[position])
            if position not in dropped:
                after.append(each)
        after.extend((new, None) for new in inserted.get(len(messages), ()))
        return after
