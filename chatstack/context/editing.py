"""Editing: how a request is repaired, what was decided for it replayed, and a strategy's plan checked and applied."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from opentelemetry.trace import Span

from chatstack import semconv
from chatstack.client.protocol import ChatClient, provider_info
from chatstack.client.stream import ChatStream
from chatstack.context.agreement import Agreement
from chatstack.context.context import Context
from chatstack.context.history import LastAnswer, Recognised
from chatstack.context.memory import ContextMemory
from chatstack.context.opened import Opened
from chatstack.context.plans import Plan
from chatstack.context.records import Decision, Record, record_of
from chatstack.context.repairing import repair_plan
from chatstack.context.saying import edit_attributes, say_bypassed, say_rejected, say_repaired, say_unstable
from chatstack.context.verifier import problems
from chatstack.errors import WiringError
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.turns import attached, compacted, is_compacted
from chatstack.tokens.caching import CACHE_SECONDS, CACHED_FROM
from chatstack.tokens.calibration import Anchor, Calibration, is_plausible
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message
from chatstack.values.requests import ChatOptions, ChatRequest
from chatstack.values.responses import ChatResponse

SERVER_HELD = ("previous_response_id", "conversation")
"""Options by which the history lies at the provider: what is sent is not what the model sees, so nothing is edited."""

RESERVING = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Fields of a request's body that bound the answer, where they are given as ``options.extra``."""

_COLD_SHARE = 0.05
_MOST_ANCHORS = 64


@dataclass(frozen=True, slots=True)
class ContextEditing:
    """What every context layer does around its strategy. ``owner`` names the layer's options: decisions are kept under
    it. ``layer`` is what errors call it. ``by_original`` recognises messages that came edited by what they were before,
    so that an edit further out leaves standing what was decided here."""

    memory: ContextMemory
    telemetry: Telemetry
    counter: TokenCounter
    owner: str
    layer: str
    default_reserve: int = 0
    calibration: Calibration = field(default_factory=Calibration)
    model: str = ""
    by_original: bool = False
    _agreement: Agreement = field(init=False)

    @classmethod
    def around(
        cls,
        inner: ChatClient,
        owner: str,
        *,
        layer: str,
        memory: ContextMemory,
        telemetry: Telemetry,
        counter: TokenCounter,
        calibration: Calibration,
        by_original: bool = False,
    ) -> ContextEditing:
        """That of a layer which wraps this client: what its provider says of itself is taken over."""
        info = provider_info(inner)
        reserve, model = (info.default_max_tokens, info.model) if info is not None else (0, "")
        owner = f"{owner},{counter!r}"
        return cls(memory, telemetry, counter, owner, layer, reserve, calibration, model, by_original)

    def __post_init__(self) -> None:
        layer, counter = self.layer, self.counter
        kind = type(counter).__name__
        if not isinstance(counter, TokenCounter):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(f"{layer}: counter={kind!r} must be a TokenCounter", layer=layer, parameter="counter")
        if type(counter).__hash__ is None:
            raise WiringError(
                f"{layer}: counter {kind} cannot be hashed, and sizes are kept by counter: a dataclass needs "
                "eq=False, or frozen=True",
                layer=layer,
                parameter="counter",
            )
        if self.memory.shared is not None and type(counter).__repr__ is object.__repr__:
            raise WiringError(
                f"{layer}: counter {kind} has no repr of its own, and processes share decisions under it: write "
                "__repr__, naming every option",
                layer=layer,
                parameter="counter",
            )

        object.__setattr__(self, "_agreement", Agreement(self.memory, self.telemetry))

    def open(self, request: ChatRequest) -> Opened:
        """Repair a request first, then weigh it."""
        opened = self._opened(request)
        if not opened.seen.needs_repair:
            return opened
        context = opened.context
        plan = repair_plan(request.messages)
        if plan is None:
            return opened
        wrong = problems(plan, context, is_repair=True)
        if wrong:
            say_rejected(self.telemetry, plan, wrong)
            return opened
        repaired = context.after(plan)
        opened = self._opened(repaired.to_send())
        if self.is_news("repair", opened, 1 + len(plan.drop) + len(plan.replace) + len(plan.insert)):
            say_repaired(self.telemetry, plan, context, repaired)
        return opened

    def stands_aside(self, request: ChatRequest) -> bool:
        """Whether the history lies at the provider, so that nothing may be edited; said once for each conversation."""
        if not any(request.options.extra.get(name) for name in SERVER_HELD):
            return False
        if self.is_news("bypass", self._opened(request)):
            say_bypassed(self.telemetry)
        return True

    async def replay(self, opened: Opened) -> Context:
        """The context with what was decided for its history, or for a beginning of it."""
        context, seen = opened.context, opened.seen
        if seen.is_unstable and not is_compacted():
            if self.memory.raise_level("prefix_unstable", opened.who, 1):  # by whichever layer sees it first
                say_unstable(self.telemetry, seen.length)
            context = msgspec.structs.replace(context, is_unstable=True)
        terms = self._terms(opened)
        if seen.length:
            decision = await self._agreement.recalled(terms, seen, opened.context)
            opened.found = decision.record
            # What was not the latest word of the user when this was decided may be now: what followed may be gone.
            if decision.record is not None and seen.history.latest_user not in decision.record.touched:
                opened.replayed = decision.record
                context = self._carried_out(decision, context, opened)
        return self._corrected(terms, opened, context)

    async def decided(self, opened: Opened) -> Record | None:
        """What was decided here for a history that another layer has opened."""
        terms = self._terms(Opened(opened.context, opened.seen, opened.model))
        return (await self._agreement.recalled(terms, opened.seen, opened.context)).record

    async def apply(self, plan: Plan | None, context: Context, opened: Opened, *, span: Span | None = None) -> Context:
        """The context after a strategy's plan: checked, kept and said; as it was if there is nothing to do.

        A plan that does not pass the verifier is not applied; it is warned of as ``plan_rejected``. Where somebody
        else has decided for the same history in the meantime, it is theirs that holds.
        """
        if plan is None or (isinstance(plan, Plan) and plan.is_empty):  # pyright: ignore[reportUnnecessaryIsInstance]
            return context
        wrong = problems(plan, context)
        if wrong:
            say_rejected(self.telemetry, plan, wrong)
            return context
        after = context.after(plan)
        seen = opened.seen
        if seen.length:
            left = list(zip(after.messages, after.origins, strict=True))
            mine = record_of(seen.positions, opened.context.messages, left)
            kept = await self._agreement.latched(self._terms(opened), seen, opened.context, mine, replaces=opened.found)
            if kept is not mine:
                if span is not None:
                    span.set_attribute(semconv.COMPACTION_REASON, "somebody else decided first")
                opened.replayed = opened.found = kept
                return self._adopted(kept, context, opened)
            opened.replayed = opened.found = mine
        self.telemetry.edit(
            plan.strategy,
            f"{plan.reason}: {context.tokens:,} tokens became {after.tokens:,}",
            edit_attributes(plan, context, after),
            tokens_before=context.tokens,
            tokens_after=after.tokens,
            span=span,
        )
        if isinstance(seen.positions, range) or not plan.insert:
            return after
        # With system messages in between, what is put in stands where later calls will find it.
        return self._adopted(opened.replayed, context, opened) if opened.replayed is not None else after

    async def send(self, inner: ChatClient, context: Context, opened: Opened) -> ChatStream:
        """Send what is left, and learn from what is reported for it."""
        request = context.to_send()
        before = opened.seen.history.answered  # now: a layer inside of this one will note the same answer
        if context.is_edited:
            with attached(compacted()):
                stream = await inner.send(request)
        else:
            stream = await inner.send(request)
        terms, sent = self._terms(opened), stream.sent
        stream.when_answered(lambda answer: self._learn(terms, opened, context, request, sent, before, answer))
        return stream

    def is_news(self, what: str, opened: Opened, level: int = 1) -> bool:
        """Whether this is new for the conversation; once said, a fact is not repeated until it gets worse."""
        return self.memory.raise_level(f"{self.owner}:{what}", opened.who, level)

    def was_said(self, what: str, opened: Opened) -> bool:
        """Whether that was news once."""
        return self.memory.level(f"{self.owner}:{what}", opened.who) > 0

    def _opened(self, request: ChatRequest) -> Opened:
        by_original = self.by_original and is_compacted()
        messages = tuple([each.original for each in request.messages]) if by_original else request.messages
        seen = self.memory.recognise(messages)
        context = self._weighed(request, seen, by_original)
        return Opened(context, seen, request.options.model or self.model, is_by_original=by_original)

    def _weighed(self, request: ChatRequest, seen: Recognised, by_original: bool) -> Context:
        """The context as it came in: only what is new of the conversation is counted."""
        messages = request.messages
        if by_original:  # each of them was counted once, but their sums are those of other messages
            tokens = sum(map(self.size_of, messages))
        else:
            tokens = seen.history.sums(seen.length, self.counter, self.size_of)[seen.length]
            if seen.length < len(messages):
                tokens += sum(map(self.size_of, seen.systems_in(messages)))
        return Context(
            request=request,
            messages=messages,
            messages_tokens=tokens,
            fixed_tokens=self.memory.options_size(request.options, self.counter),
            size_of=self.size_of,
            reserved_tokens=self._reserved(request.options),
            is_cold=self._is_cold(seen),
        )

    def _is_cold(self, seen: Recognised) -> bool:
        """Whether the provider has hardly anything of this history in its cache, as far as that is known."""
        answered = seen.history.answered
        return answered is not None and (answered.missed_cache or self.memory.clock() - answered.at >= CACHE_SECONDS)

    def size_of(self, message: Message) -> int:
        """The size of a message, counted once."""
        return self.memory.size_of(message, self.counter)

    def _adopted(self, record: Record, context: Context, opened: Opened) -> Context:
        """What came in with a record carried out, and weighed as this context is."""
        came = msgspec.structs.replace(
            opened.context, scale=context.scale, is_unstable=context.is_unstable, window_tokens=context.window_tokens
        )
        length = opened.seen.length
        return self._carried_out(Decision(record, length, length, 0), came, opened)

    def _carried_out(self, decision: Decision, context: Context, opened: Opened) -> Context:
        """The context with a decision about its history, or a beginning of it."""
        seen = opened.seen
        record, positions, messages = decision.record, seen.positions, context.messages
        if record is None:
            return context
        if opened.is_by_original or not isinstance(positions, range):
            # System messages stand between the others, and stay where they are; or sizes are not those of the history.
            return context.after(record.plan(positions, len(messages)))
        if decision.saved is None or decision.saved[0] is not self.counter:
            sums = seen.history.sums(decision.covers, self.counter, self.size_of)
            decision.saved = (self.counter, record.saved(sums, self.size_of))

        def origins() -> list[int | None]:
            return [origin for _, origin in record.plan(positions, len(messages)).apply_to(messages)]

        return msgspec.structs.replace(
            context,
            messages=record.carried_out(messages, positions.start),
            messages_tokens=context.messages_tokens - decision.saved[1],
            find_origins=origins,
        )

    def _corrected(self, terms: str, opened: Opened, context: Context) -> Context:
        """The context with the scale that providers' reports tell: the last one of this history, else the model's."""
        factor = self.calibration.factor(opened.model, self.counter)
        known = opened.seen.history.anchors.get(terms)
        counted = context.input_tokens
        if known is None or known[0] != self._rest_of(opened) or known[1].estimated > counted or not counted:
            return context if factor == 1.0 else msgspec.structs.replace(context, scale=factor)
        opened.is_anchored = True
        return msgspec.structs.replace(context, scale=known[1].corrected(counted, factor) / counted)

    def _learn(
        self,
        terms: str,
        opened: Opened,
        context: Context,
        request: ChatRequest,
        sent: ChatRequest | None,
        before: LastAnswer | None,
        answer: ChatResponse,
    ) -> None:
        """Take a report for what it is: the size of the very request that was weighed here, if nobody inside of this
        layer has changed it."""
        usage, history = answer.usage, opened.seen.history
        cached = usage.cache_read_tokens
        expected = before.input_tokens if before is not None and before.record is opened.replayed else 0
        missed = expected >= CACHED_FROM and cached < expected * _COLD_SHARE
        history.answered = LastAnswer(self.memory.clock(), usage.input_tokens, missed, opened.replayed)
        if sent is None or usage.input_tokens <= 0 or sent.messages is not request.messages:
            return
        if sent.options is not request.options:
            return
        self.calibration.learn(opened.model, self.counter, context.input_tokens, usage.input_tokens)
        if is_plausible(context.input_tokens, usage.input_tokens):
            if len(history.anchors) >= _MOST_ANCHORS:
                history.anchors.clear()
            history.anchors[terms] = (self._rest_of(opened), Anchor(context.input_tokens, usage.input_tokens))

    def _rest_of(self, opened: Opened) -> object:
        """What a report belongs to, beside the history: what was decided, what goes along, which model it was."""
        request = opened.context.request
        systems = opened.seen.systems_in(request.messages)
        options = request.options
        return (opened.replayed, systems, options.instructions, options.tools, options.output_schema, opened.model)

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
        if opened.terms[0] == opened.limit:
            return opened.terms[1]
        options = opened.context.request.options
        tools = self.memory.options_size(ChatOptions(tools=options.tools), self.counter) if options.tools else 0
        opened.terms = (opened.limit, f"{self.owner}:{opened.limit}:{opened.context.reserved_tokens}:{tools}")
        return opened.terms[1]
