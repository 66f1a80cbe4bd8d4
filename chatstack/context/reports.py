"""Reports: what providers say of the size of a request, and what is learnt from it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from chatstack.context.context import Context
from chatstack.context.conversations import LastAnswer
from chatstack.context.memory import MOST_TERMS, ContextMemory
from chatstack.context.opened import Opened
from chatstack.tokens.caching import CACHED_FROM
from chatstack.tokens.calibration import Anchor, Calibration, is_plausible
from chatstack.tokens.counter import TokenCounter
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatResponse

_COLD_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Reports:
    """Sizes as providers reported them, for one context layer: an anchor within a conversation, a factor across all.

    The factor is other conversations' news: it is told, and decides nothing.
    """

    memory: ContextMemory
    calibration: Calibration
    counter: TokenCounter
    owner: str

    def corrected(self, opened: Opened, context: Context) -> Context:
        """The context with the scale that the last report of this history tells; where there is none, with what the
        model's reports let expect."""
        known = opened.seen.conversation.anchors.get(self.owner)
        counted = context.input_tokens
        if known is None or known[0] != self._rest_of(opened) or known[1].estimated > counted or not counted:
            factor = self.calibration.factor(opened.model, self.counter)
            return context if factor == 1.0 else msgspec.structs.replace(context, expected_scale=factor)
        opened.is_anchored = True
        anchor = known[1]
        return msgspec.structs.replace(context, scale=anchor.corrected(counted, anchor.factor) / counted)

    def learn(
        self,
        opened: Opened,
        context: Context,
        request: ChatRequest,
        sent: ChatRequest | None,
        before: LastAnswer | None,
        answer: ChatResponse,
    ) -> None:
        """Take a report for what it is: the size of the very request that was weighed here, if nobody inside of this
        layer has changed it."""
        usage, conversation = answer.usage, opened.seen.conversation
        cached = usage.cache_read_tokens
        expected = before.input_tokens if before is not None and before.record is opened.replayed else 0
        missed = expected >= CACHED_FROM and cached < expected * _COLD_SHARE
        conversation.answered = LastAnswer(self.memory.clock(), usage.input_tokens, missed, opened.replayed)
        if sent is None or usage.input_tokens <= 0 or sent.messages is not request.messages:
            return
        if sent.options is not request.options:
            return
        self.calibration.learn(opened.model, self.counter, context.input_tokens, usage.input_tokens)
        if is_plausible(context.input_tokens, usage.input_tokens):
            if len(conversation.anchors) >= MOST_TERMS:
                conversation.anchors.clear()
            conversation.anchors[self.owner] = (self._rest_of(opened), Anchor(context.input_tokens, usage.input_tokens))

    def _rest_of(self, opened: Opened) -> object:
        """What a report belongs to, beside the history: what was decided, what goes along, which model it was."""
        request = opened.context.request
        systems = opened.seen.systems_in(request.messages)
        options = request.options
        return (opened.replayed, systems, options.instructions, options.tools, options.output_schema, opened.model)
