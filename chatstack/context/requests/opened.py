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
    """A request as one context layer gets it, repaired and sized.

    ``limit`` is the size that it has to fit, 0 if there is none. ``replayed`` are the edits in force, if any; ``since``
    is up to how many messages of the history these are known to be complete; ``saved`` is the tokens that they save.
    ``is_pending``: an edit is due, and was not made; it is due on the next call, too.
    ``is_anchored``: its size is based on the provider's report for its beginning. ``is_by_original``: it came edited
    by a layer outside, and ``seen`` is about the original messages. ``is_unstable``: its history keeps coming with
    another beginning. ``wait``: the last search that found no edit, if
    there was no edit since. ``has_looked``: the strategy was asked to plan for this request.
    ``is_ineffective``: this layer, or one outside, has warned that an edit of this request does not help.
    ``outer``: a hash of the layers that have edited it, or may have. ``above``: a hash of what stands above its
    history: system messages, instructions, tools, output schema. ``before``: the fingerprint of the edits by layers
    outside. ``shortened``: a hash of what this layer itself has shortened in it, before any other edit; 0 for nothing.
    ``last_answer``: the previous answer, if it is known. ``scale``: the scale of this very request when it
    came before.
    ``provider_clears``: the tokens of it that the provider clears by itself, as a layer outside has asked it to.
    ``reached``: the progress of the strategy after it, and the hash that this is kept under.
    ``ahead``: the next edit, if it is planned before it is due. ``forgets``: that of the memory as the request came.
    ``sent``: the tokens that were sent under the edits in force; 0 if that is not known.
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
    is_unstable: bool = False
    has_looked: bool = False
    is_ineffective: bool = False
    outer: int = 0
    above: int = 0
    before: int = 0
    shortened: int = 0
    last_answer: LastAnswer | None = None
    scale: float | None = None
    provider_clears: int = 0
    reached: tuple[int, Reached] | None = None
    ahead: Planned | Wait | None = None
    forgets: int = 0
    sent: int = 0

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
