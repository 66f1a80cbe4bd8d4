"""A request as one context layer gets it."""

from __future__ import annotations

import msgspec

from chatstack.context.edits.context import Context
from chatstack.context.edits.records import Record
from chatstack.context.histories.conversations import LastAnswer, Planned, Reached, Wait
from chatstack.context.histories.digests import digest
from chatstack.context.histories.recognised import Recognised
from chatstack.values.requests import ChatRequest


class Opened(msgspec.Struct):
    """A request as one context layer gets it, repaired and sized, with what is known of the layer's edits of its
    history, and what comes of it on its way through the layer."""

    context: Context
    seen: Recognised
    """Its history; that of the original messages, if it ``is_by_original``."""
    model: str
    is_by_original: bool = False
    """True if it came edited by a layer outside, and this layer goes by the originals."""
    is_unstable: bool = False
    """True if its history keeps coming with another beginning."""
    outer: int = 0
    """A hash of the layers outside, which have edited it, or may have."""
    above: int = 0
    """A hash of what stands above its history: system messages, instructions, tools, output schema."""
    before: int = 0
    """The fingerprint of the edits by layers outside."""
    shortened: int = 0
    """A hash of what this layer itself has shortened in it, before any other edit; 0 for nothing."""
    last_answer: LastAnswer | None = None
    """The previous answer, if it is known."""
    provider_clears: int = 0
    """The tokens of it that the provider clears by itself, as a layer outside has asked it to."""
    forgets: int = 0
    """The memory's ``forgets`` as the request came."""

    limit: int = 0
    """The size that it has to fit; 0 if there is none."""
    replayed: Record | None = None
    """The edits in force, if any."""
    since: int = 0
    """Number of messages of the history up to which the edits in force are known to be complete."""
    saved: int = 0
    """The tokens that the edits in force save."""
    sent: int = 0
    """The tokens that were sent under them last; 0 if that is not known."""
    wait: Wait | None = None
    """The last search that found no edit, if there was no edit since."""
    ahead: Planned | Wait | None = None
    """The next edit, if it is planned before it is due; what the search for it waits on, if it found none."""
    scale: float | None = None
    """The scale of this very request when it came before."""
    is_anchored: bool = False
    """True if its size is based on the provider's report for its beginning."""

    has_looked: bool = False
    """True if the strategy was asked to plan for this request."""
    is_pending: bool = False
    """True if an edit is due, and was not made; it is due on the next call, too."""
    is_ineffective: bool = False
    """True if this layer, or one outside, has warned that an edit of this request does not help."""
    reached: tuple[int, Reached] | None = None
    """The progress of the strategy after it, and the hash that this is kept under."""

    def know(self, reached: Reached) -> None:
        """Take over the known progress of the strategy over its history."""
        self.since, self.replayed, self.wait, self.ahead = reached.length, reached.record, reached.wait, reached.ahead
        self.sent = reached.sent
        self.scale = reached.scale if reached.length == self.seen.length else None

    @property
    def edits(self) -> int:
        """The fingerprint of all edits in force up to this layer's; 0 if there are none."""
        return after_edits(self.before, self.replayed)

    @property
    def came_edited(self) -> int:
        """A hash of all edits that it came with, on which the sizes of its messages depend; 0 if there are none."""
        return hash((self.before, self.shortened)) if self.shortened else self.before

    @property
    def who(self) -> str | Recognised:
        """The conversation, for what the memory keeps of it."""
        return who_of(self.context.request, self.seen)


def who_of(request: ChatRequest, seen: Recognised) -> str | Recognised:
    """Return the conversation for the memory: its id or, without one, its history or a digest of its messages."""
    if request.conversation_id is not None:
        return request.conversation_id
    return seen if seen.length else b"".join(map(digest, request.messages)).hex()


def after_edits(before: int, record: Record | None) -> int:
    """Return the fingerprint of edits with those of one more layer, valid in this process only."""
    return before if record is None else hash((before, record.fingerprint))
