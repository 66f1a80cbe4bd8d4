"""A request on its way through a context layer."""

from __future__ import annotations

import msgspec

from chatstack.context.context import Context
from chatstack.context.conversations import LastAnswer, Reached, Wait
from chatstack.context.digests import digest
from chatstack.context.history import Recognised
from chatstack.context.records import Record


class Opened(msgspec.Struct):
    """A request, repaired and sized.

    ``limit`` is the one that it is to fit, 0 if there is none. ``replayed`` are the edits in force, if any; ``since``
    says for how many messages of the history these are known to be what was decided. ``saved`` is what they save.
    ``is_pending``: something is due, and was not done; it is due on the next call, too.
    ``is_anchored``: its size goes by what the provider reported for its beginning. ``is_by_original``: it came edited
    by a layer outside, and ``seen`` is about the messages as they were. ``wait``: the last look in vain,
    if no edit has come since. ``has_looked``: the strategy was asked about this request.
    ``is_ineffective``: it was warned of that an edit does not help.
    ``last_answer``: the one before, if it is known. ``scale``: by which this very request was weighed before.
    ``reached``: what came of it, and the terms that this is kept under.
    """

    context: Context
    seen: Recognised
    model: str
    limit: int = 0
    replayed: Record | None = None
    since: int = 0
    is_pending: bool = False
    saved: int = 0
    wait: Wait | None = None
    is_anchored: bool = False
    is_by_original: bool = False
    has_looked: bool = False
    is_ineffective: bool = False
    last_answer: LastAnswer | None = None
    scale: float | None = None
    reached: tuple[int, Reached] | None = None

    def know(self, reached: Reached) -> None:
        """Take over what is known of its history."""
        self.since, self.replayed, self.wait, scale = reached
        self.scale = scale if reached.length == self.seen.length else None

    @property
    def who(self) -> str | Recognised:
        """What the memory knows this conversation by: its id, or, without one, its history."""
        conversation_id = self.context.request.conversation_id
        if conversation_id is not None:
            return conversation_id
        return self.seen if self.seen.length else b"".join(map(digest, self.context.messages)).hex()
