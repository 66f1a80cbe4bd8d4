"""A request on its way through a context layer."""

from __future__ import annotations

import msgspec

from chatstack.context.context import Context
from chatstack.context.digests import digest
from chatstack.context.history import Recognised
from chatstack.context.records import Record


class Opened(msgspec.Struct):
    """A request, repaired and sized.

    ``limit`` is the one that it is to fit, 0 if there is none. ``replayed`` is the earlier decision that was carried
    out for it, if any; ``found`` is the one that is there, even if it does not hold. ``is_anchored``: its size goes by
    what the provider reported for its beginning. ``is_by_original``: it came edited by a layer outside, and ``seen`` is
    about the messages as they were.
    """

    context: Context
    seen: Recognised
    model: str
    limit: int = 0
    replayed: Record | None = None
    found: Record | None = None
    is_anchored: bool = False
    is_by_original: bool = False
    terms: tuple[int, str] = (-1, "")

    @property
    def who(self) -> str | Recognised:
        """What the memory knows this conversation by: its id, or, without one, its history."""
        conversation_id = self.context.request.conversation_id
        if conversation_id is not None:
            return conversation_id
        return self.seen if self.seen.length else b"".join(map(digest, self.context.messages)).hex()
