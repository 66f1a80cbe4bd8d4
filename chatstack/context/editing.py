"""Editing: how a request is repaired, what was decided for it replayed, and a strategy's plan checked and applied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from chatstack import semconv
from chatstack.context.context import Context
from chatstack.context.digests import History, digest
from chatstack.context.memory import ContextMemory, Record
from chatstack.context.plans import Plan
from chatstack.context.repairing import repair_plan
from chatstack.context.verifier import problems
from chatstack.telemetry.emission import Attributes, Telemetry
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message
from chatstack.values.requests import ChatOptions, ChatRequest

SERVER_HELD = ("previous_response_id", "conversation")
"""Options by which the history lies at the provider: what is sent is not what the model sees, so nothing is edited."""

RESERVING = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Fields of a request's body that bound the answer, where they are given as ``options.extra``."""


class Opened(msgspec.Struct, dict=True):
    """A request, repaired and sized.

    ``limit`` is the one that it is to fit, 0 if there is none. ``replayed`` is the earlier decision that was carried
    out for it, if any.
    """

    context: Context
    memory: ContextMemory
    limit: int = 0
    replayed: Record | None = None

    @cached_property
    def history(self) -> History:
        """The history in it, by which it is recognised; worked out when somebody asks."""
        return self.memory.history_of(self.context.messages)

    @property
    def keys(self) -> Sequence[str | bytes]:
        """What the memory knows this conversation by: its id, or, without one, its history, newest first."""
        conversation_id = self.context.request.conversation_id
        if conversation_id is not None:
            return (conversation_id,)
        return self.history.chain[::-1] or (b"".join(map(digest, self.context.messages)),)


@dataclass(frozen=True, slots=True)
class ContextEditing:
    """What every context layer does around its strategy. ``owner`` names the layer and its options: decisions are
    kept under it."""

    memory: ContextMemory
    telemetry: Telemetry
    counter: TokenCounter
    owner: str
    default_reserve: int = 0

    def open(self, request: ChatRequest) -> Opened:
        """Repair a request first, then weigh it."""
        context = self._context(request)
        plan = repair_plan(request.messages)
        if plan is None:
            return Opened(context, self.memory)
        wrong = problems(plan, context, is_repair=True)
        if wrong:
            self._say_rejected(plan, wrong)
            return Opened(context, self.memory)
        repaired = context.after(plan)
        opened = Opened(self._context(repaired.to_send()), self.memory)
        self._say_repaired(opened, context, repaired, plan)
        return opened

    def stands_aside(self, request: ChatRequest) -> bool:
        """Whether the history lies at the provider, so that nothing may be edited; said once for each conversation."""
        if not any(request.options.extra.get(name) for name in SERVER_HELD):
            return False
        if self.is_news("bypass", Opened(self._context(request), self.memory)):
            self.telemetry.warn(
                "context_layers_bypassed",
                "the history lies at the provider (previous_response_id or conversation): nothing is weighed or edited",
                {semconv.GUARD_ACTION: "warn"},
            )
        return True

    def replay(self, opened: Opened) -> Context:
        """The context with what was decided for its history, or for a beginning of it."""
        if not self.memory.has_decisions:  # then no history need be recognised
            return opened.context
        opened.replayed = self.memory.recall(self._terms(opened), opened.history)
        return opened.context if opened.replayed is None else _with_record(opened, opened.replayed)

    def apply(self, plan: Plan | None, context: Context, opened: Opened) -> Context:
        """The context after a strategy's plan: checked, kept and said; as it was if there is nothing to do.

        A plan that does not pass the verifier is not applied; it is warned of as ``plan_rejected``. Where somebody
        else has decided for the same history in the meantime, it is theirs that holds.
        """
        if plan is None or (isinstance(plan, Plan) and plan.is_empty):  # pyright: ignore[reportUnnecessaryIsInstance]
            return context
        wrong = problems(plan, context)
        if wrong:
            self._say_rejected(plan, wrong)
            return context
        after = context.after(plan)
        if opened.history.chain:
            mine = _record_of(opened, after)
            kept = self.memory.latch(self._terms(opened), opened.history, mine, replaces=opened.replayed)
            if kept is not mine:
                return _with_record(opened, kept)
        self.telemetry.edit(
            plan.strategy,
            f"{plan.reason}: {context.tokens:,} tokens became {after.tokens:,}",
            _edit_attributes(plan, context, after),
            tokens_before=context.tokens,
            tokens_after=after.tokens,
        )
        return after

    def is_news(self, what: str, opened: Opened, level: int = 1) -> bool:
        """Whether this is new for the conversation; once said, a fact is not repeated until it gets worse."""
        owner = f"{self.owner}:{what}"
        if self.memory.level(owner, opened.keys) >= level:
            return False
        self.memory.set_level(owner, opened.keys, level)
        return True

    def _reserved(self, options: ChatOptions) -> int:
        """The room that is kept for the answer: the options', in whichever spelling, or the provider's own."""
        if not options.extra:
            return self.default_reserve if options.max_tokens is None else options.max_tokens
        given = (options.max_tokens, *(options.extra.get(name) for name in RESERVING))
        return max((each for each in given if type(each) is int), default=self.default_reserve)

    def _terms(self, opened: Opened) -> str:
        """What a decision is kept under, beside its history: layer, limit, reserved output, and the tools' size.

        A cut that another limit, reserve or set of tools made necessary must not bind a request that fits. The
        instructions are left out: they may change from call to call, and do not change what has to go.
        """
        options = opened.context.request.options
        tools = self.memory.options_size(ChatOptions(tools=options.tools), self.counter) if options.tools else 0
        return f"{self.owner}:{opened.limit}:{self._reserved(options)}:{tools}"

    def _context(self, request: ChatRequest) -> Context:
        options = request.options
        return Context.of(
            request,
            fixed_tokens=self.memory.options_size(options, self.counter) + self._reserved(options),
            size_of=lambda message: self.memory.size_of(message, self.counter),
        )

    def _say_repaired(self, opened: Opened, before: Context, after: Context, plan: Plan) -> None:
        repairs = len(plan.drop) + len(plan.replace) + len(plan.insert)
        if self.is_news("repair", opened, repairs):
            self.telemetry.warn(
                "messages_repaired",
                f"the history had {plan.reason}",
                {
                    **_edit_attributes(plan, before, after),
                    semconv.COMPACTION_STRATEGY: plan.strategy,
                    semconv.COMPACTION_TOKENS_BEFORE: before.tokens,
                    semconv.COMPACTION_TOKENS_AFTER: after.tokens,
                },
                span_name="compact_context repair",
            )

    def _say_rejected(self, plan: object, wrong: tuple[str, ...]) -> None:
        strategy = plan.strategy if isinstance(plan, Plan) else "unknown"
        self.telemetry.warn(
            "plan_rejected",
            f"the plan of {strategy!r} was not applied: {'; '.join(wrong[:3])}",
            {semconv.COMPACTION_STRATEGY: strategy},
            span_name=f"compact_context {strategy}",
            error="plan_rejected",
        )


def _with_record(opened: Opened, record: Record) -> Context:
    """The context with a decision about its history, or a beginning of it, carried out."""
    at = opened.history.positions
    end = len(opened.context.messages)
    return opened.context.after(
        Plan(
            strategy="replay",
            reason="decided before",
            drop=tuple(at[position] for position in record.drop),
            replace=tuple((at[position], message) for position, message in record.replace),
            insert=tuple((at[p] if p < len(at) else end, message) for p, message in record.insert),
        )
    )


def _edit_attributes(plan: Plan, before: Context, after: Context) -> Attributes:
    return {
        semconv.COMPACTION_REASON: plan.reason,
        semconv.COMPACTION_MESSAGES_BEFORE: len(before.messages),
        semconv.COMPACTION_MESSAGES_AFTER: len(after.messages),
    }


def _record_of(opened: Opened, after: Context) -> Record:
    """All that was decided up to now, by positions in the history: what is there before and not after, and so on."""
    before = opened.context
    index = {position: number for number, position in enumerate(opened.history.positions)}
    kept = {origin for origin in after.origins if origin is not None}
    replace: list[tuple[int, Message]] = []
    insert: list[tuple[int, Message]] = []
    following = len(index)
    for message, origin in zip(reversed(after.messages), reversed(after.origins), strict=True):
        if origin is None:
            insert.append((following, message))
        else:
            following = index.get(origin, following)
            if message is not before.messages[origin]:
                replace.append((index[origin], message))
    return Record(
        tuple(number for position, number in index.items() if position not in kept),
        tuple(reversed(replace)),
        tuple(reversed(insert)),
    )
