"""Kept summaries: a summary is reused for exactly the same messages.

Beside that, a conversation with an id keeps its own cuts: if it goes back a turn, or another process takes it over, the
last cut is used as long as the rest fits, even if a new one would be elsewhere by now. Without an id it could be
another conversation that has the same system message and begins alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeGuard

from chatstack.context.decisions.agreement import Agreement
from chatstack.context.edits.records import Record
from chatstack.context.histories.choices import Bound
from chatstack.context.histories.digests import subject_digest
from chatstack.context.histories.recognised import Recognised
from chatstack.context.memory.forgetting import came_link
from chatstack.context.requests.opened import Opened
from chatstack.context.summaries.folding import Cut
from chatstack.values.messages import Message

Subject: TypeAlias = tuple[str, bytes]
"""The messages that a summary is about, as a cache key: a digest of them, and the link of the history up to its place.
The link is part of it because the summarizing model also sees the user messages there and what stays."""


@dataclass(frozen=True, slots=True)
class KeptSummaries:
    """Summaries by subject, in the memory and in its store. ``version`` is that of their writer: the layer with its
    version, and the prompt. If they are ``cache_aligned``, their writer sees all messages of the last request sent, and
    its instructions, so these are part of what they are about."""

    agreement: Agreement
    version: str
    cache_aligned: bool = False

    def subject(self, opened: Opened, record: Record, model: str, sent: int) -> Subject:
        """Return the subject of the summary that these edits insert; ``sent`` is the number of messages of the history
        in the last request sent."""
        seen, messages = opened.seen, opened.seen.history.messages
        folded = subject_digest(tuple(messages[at] for at in record.drop)).hex()
        end = self._end(record, sent)
        above = f":{_above(opened, end).hex()}" if self.cache_aligned else ""
        return f"{self.place(model)}:{folded}{above}", seen.links[end - 1]

    async def keep_cut(self, opened: Opened, record: Record, model: str, sent: int) -> None:
        """Keep a cut for this conversation, which has an id, under the messages that it is about, unless it is
        forgotten meanwhile."""
        seen, memory = opened.seen, self.agreement.memory
        if memory.has_forgotten(seen, opened.forgets):
            return
        covers = self._end(record, sent)
        link, messages = seen.links[covers - 1], seen.history.messages[:covers]
        bound = Bound(self.place(model), seen.who, link, record, messages, came_link(seen, covers))
        memory.adopt(bound, seen)
        await self.agreement.share(bound, seen, opened.context)

    def _end(self, record: Record, sent: int) -> int:
        """Return how many messages of the history a cut is about: up to what it drops, and to its summary's place."""
        return max(1, record.reach, sent if self.cache_aligned else 0)

    def place(self, model: str) -> str:
        """Return the key of cuts whose summaries a model writes, beside the conversation."""
        return f"summary:{self.version}:{model}"


@dataclass(frozen=True, slots=True)
class FindSummary:
    """The question whether there is a summary of exactly this subject."""

    kept: KeptSummaries
    subject: Subject
    seen: Recognised

    async def answer(self) -> Message | None:
        return await self.kept.agreement.artifact(*self.subject, self.seen)


@dataclass(frozen=True, slots=True)
class KeepSummary:
    """The wish to keep a summary; the answer is the one in force, as another process may have kept one first."""

    kept: KeptSummaries
    subject: Subject
    summary: Message
    seen: Recognised

    async def answer(self) -> Message:
        return await self.kept.agreement.keep_artifact(*self.subject, self.summary, self.seen)


class Due(NamedTuple):
    """A summary to write: the cut, the subject as its key, and the number of messages of the history in the last
    request sent, which a cache-aligned one is asked for behind."""

    cut: Cut
    subject: Subject
    sent: int


def _above(opened: Opened, end: int) -> bytes:
    """Return a digest of what no history holds: the instructions of a request, and its system messages up to there."""
    request, seen = opened.context.request, opened.seen
    before = request.messages[: seen.positions[end - 1]]
    systems = [message for message in before if message.role == "system"]
    return subject_digest((Message.system(request.options.instructions), *systems))


def sent_before(seen: Recognised, length: int) -> int:
    """Return the length of the request before the last answer in the first ``length`` messages of a history."""
    messages = seen.history.messages
    return next((at for at in range(length - 1, -1, -1) if messages[at].role == "assistant"), 0)


def goes_further(cut: Record | None, opened: Opened) -> TypeGuard[Record]:
    """Return True if a cut covers more than the edits in force, and not the latest user message.

    It may have been made further on in the conversation, or in another branch of it. So neither may it cover what the
    model has not seen here, nor its summary stand behind that, where it would look like the answer, or between a call
    and its result.
    """
    seen, known = opened.seen, opened.replayed
    if cut is None or any(_parts(each.position, cut, seen) for each in cut.insert):
        return False
    answered = sent_before(seen, seen.length)
    border = max((each.position for each in cut.insert), default=0)
    if border > min(answered + 1, seen.length - 1) or max(cut.drop, default=0) > answered:
        return False
    if cut.touches(seen.history.latest_user_in(seen.length)):
        return False
    return known is None or len(cut.drop) > len(known.drop)


def _parts(position: int, cut: Record, seen: Recognised) -> bool:
    """Return True if what is inserted there would part a result from its call."""
    is_result = position < seen.length and bool(seen.history.messages[position].results)
    return is_result and position not in cut.drop
