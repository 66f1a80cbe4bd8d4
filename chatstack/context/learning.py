"""Learning: what an answer tells the layers that its request passed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from chatstack.context.decisions.editing import ContextEditing
from chatstack.context.edits.context import Context
from chatstack.context.histories.choices import Bound
from chatstack.context.histories.conversations import Conversation
from chatstack.context.memory.memory import ContextMemory
from chatstack.context.requests.opened import Opened
from chatstack.context.requests.reports import keep_answer
from chatstack.tokens.counter import TokenCounter
from chatstack.values.items import usage_of_request
from chatstack.values.native import compaction_in
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatResponse, Usage


class Hop(msgspec.Struct, frozen=True):
    """A request as the layer at that place got it, and as it handed it on."""

    place: int
    editing: ContextEditing
    opened: Opened
    context: Context
    request: ChatRequest


class SentRequest(msgspec.Struct, frozen=True):
    """A request as it was sent, with what the layers handed on. ``share`` of the tokens of ``request`` were in it: the
    rest were duplicates, which references stood for, so reported sizes are divided by it. ``request`` is None where
    nobody says what was sent."""

    hops: Sequence[Hop]
    request: ChatRequest | None
    share: float = 1.0

    def learn(self, memory: ContextMemory, answer: ChatResponse) -> list[tuple[Hop, Sequence[Bound]]]:
        """Learn from an answer, and bind to it the choices that it was given under; return these."""
        for said in answer.messages:
            if said.role == "assistant":
                break
        else:
            return []
        cleared = sum(each.cleared_tokens for each in answer.applied_edits) if answer.applied_edits else 0
        spent = usage_of_request(answer)
        usage = _of_whole(spent, cleared, self.share)
        sent = None if compaction_in(said) is not None else self.request  # what it reports is not that one's size
        # Lists: they have two or three entries.
        found: list[tuple[Hop, Sequence[Bound]]] = []
        kept: list[Conversation] = []
        learnt: list[tuple[object, TokenCounter]] = []
        for hop in reversed(self.hops):
            opened, reports = hop.opened, hop.editing.reports
            conversation, counter = opened.seen.conversation, reports.counter
            entry = memory.past.entry(opened.seen, said)
            if conversation not in kept:
                kept.append(conversation)
                keep_answer(opened, entry, spent, memory.clock(), cleared)
            # Of layers that got the same history, and count it alike, one learns; across conversations, one of all.
            is_sent = sent is not None and sent.messages is hop.request.messages and sent.options is hop.request.options
            if is_sent and (conversation, counter) not in learnt:
                is_news = (reports.calibration, counter) not in learnt
                reports.learn(opened, hop.context, entry, usage, is_news=is_news)
                learnt += ((conversation, counter), (reports.calibration, counter))
            bound = hop.editing.binding.bind(opened, said, entry, hop.context)
            if bound:
                found.append((hop, bound))
        return found


def _of_whole(usage: Usage, cleared: int, share: float) -> Usage:
    """Return the usage as of the whole request: with what the provider has cleared of the input before it read it, and
    with duplicates, as only that share was sent."""
    if not usage.input_tokens or (not cleared and share == 1.0):
        return usage
    return msgspec.structs.replace(usage, input_tokens=round((usage.input_tokens + cleared) / share))
