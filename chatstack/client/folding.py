"""Folding: adding up the updates of an answer to the whole response."""

from __future__ import annotations

from chatstack.values.messages import Message
from chatstack.values.native import AppliedEdit
from chatstack.values.responses import ChatResponse, ChatUpdate, FinishReason, Usage

_NO_USAGE = Usage()


class Fold:
    """Adds up updates to the whole answer."""

    __slots__ = ("answer", "applied", "finish", "id", "messages", "model", "overhead", "raw", "rounds", "tier", "usage")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.usage = self.overhead = _NO_USAGE
        self.answer: ChatResponse | None = None
        self.finish: FinishReason | None = None
        self.id = self.model = self.tier = ""
        self.rounds = 0
        self.applied: tuple[AppliedEdit, ...] = ()
        self.raw: object = None

    @classmethod
    def of(cls, answer: ChatResponse) -> Fold:
        """Return a fold that already holds that answer."""
        fold = cls()
        fold.answer = answer
        return fold

    def add(self, update: ChatUpdate) -> None:
        if update.message_done is not None:
            self.messages.append(update.message_done)
            self.rounds = update.round
        if update.usage is not None:
            self.usage = update.usage if self.usage is _NO_USAGE else self.usage + update.usage
        if update.overhead_usage is not None:
            self.overhead = self.overhead + update.overhead_usage
        if update.applied_edits:
            self.applied += update.applied_edits
        if update.finish_reason is not None:
            self.finish = update.finish_reason
            self.id, self.model, self.raw = update.response_id, update.model, update.raw
            self.tier = update.service_tier
        self.answer = None

    def response(self) -> ChatResponse:
        if self.answer is None:
            self.answer = ChatResponse(
                messages=tuple(self.messages),
                usage=self.usage,
                overhead_usage=self.overhead,
                finish_reason=self.finish,
                id=self.id,
                model=self.model,
                rounds=self.rounds + 1,
                applied_edits=self.applied,
                raw=self.raw,
                service_tier=self.tier,
            )
        return self.answer
