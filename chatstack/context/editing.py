"""Editing: how a request is repaired, what was decided for it replayed, and a strategy's plan checked and applied."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from opentelemetry.trace import Span

from chatstack.client.options import options_key, versioned
from chatstack.client.protocol import ChatClient, chain, provider_info
from chatstack.client.stream import ChatStream
from chatstack.context.agreement import Agreement
from chatstack.context.binding import Binding, ThenShared
from chatstack.context.carrying import carried_out
from chatstack.context.choices import Bound
from chatstack.context.context import Context
from chatstack.context.conversations import NOTHING_KNOWN, LastAnswer, Wait
from chatstack.context.history import Recognised
from chatstack.context.limits import check_counter
from chatstack.context.memory import ContextMemory
from chatstack.context.opened import Opened
from chatstack.context.plans import Plan
from chatstack.context.reconstructing import Policy, Reconstruction
from chatstack.context.records import Record, record_of
from chatstack.context.repairing import has_answer_since, repair_plan
from chatstack.context.reports import Reports
from chatstack.context.reserves import reserve_asked
from chatstack.context.saying import (
    say_bypassed,
    say_edited,
    say_ineffective,
    say_rejected,
    say_repaired,
    say_unstable,
)
from chatstack.context.verifier import problems
from chatstack.errors import InputError
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.shortening import compacted, is_compacted
from chatstack.telemetry.turns import attached, ineffective, is_ineffective
from chatstack.tokens.caching import CACHE_SECONDS
from chatstack.tokens.calibration import Calibration
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatResponse

SERVER_HELD = ("previous_response_id", "conversation")
"""Options by which the history lies at the provider: what is sent is not what the model sees, so nothing is edited."""

_ANSWERED = "repair:answered"
"""How many messages a history had when one of its calls was answered for want of a result."""


@dataclass(frozen=True, slots=True)
class ContextEditing:
    """The work of every context layer around its strategy. ``owner`` names the layer's options, ``place`` its version
    and its place in the recipe: choices are kept under it, whatever the options. ``layer`` is what errors call it.
    ``by_original`` recognises messages that came edited by what they were before, so that an edit further out leaves
    standing what was decided here."""

    memory: ContextMemory
    telemetry: Telemetry
    counter: TokenCounter
    owner: str
    layer: str
    place: str = ""
    default_reserve: int = 0
    calibration: Calibration = field(default_factory=Calibration)
    model: str = ""
    by_original: bool = False
    binding: Binding = field(init=False)
    reports: Reports = field(init=False)

    @classmethod
    def around(
        cls,
        inner: ChatClient,
        options: object,
        *,
        memory: ContextMemory,
        telemetry: Telemetry,
        counter: TokenCounter,
        calibration: Calibration,
        by_original: bool = False,
    ) -> ContextEditing:
        """That of a layer around this client; ``options`` is the layer, or its strategy, whose options count."""
        info = provider_info(inner)
        reserve, model = (info.default_max_tokens, info.model) if info is not None else (0, "")
        layer, owner = type(options).__name__, f"{options_key(options)},{options_key(counter)}"
        place = f"{versioned(options)}#{sum(_name_in_recipe(each) == layer for each in chain(inner))}"
        return cls(memory, telemetry, counter, owner, layer, place, reserve, calibration, model, by_original)

    def __post_init__(self) -> None:
        counter = self.counter
        check_counter(self.layer, counter)
        agreement = Agreement(self.memory, self.telemetry)
        object.__setattr__(self, "binding", Binding(self.memory, agreement, counter, self.owner, self.place))
        object.__setattr__(self, "reports", Reports(self.memory, self.calibration, counter, self.owner))

    def open(self, request: ChatRequest) -> Opened:
        """Repair a request first, then weigh it. Raises ``InputError`` where nothing is left to send."""
        opened = self._opened(request)
        context, seen = opened.context, opened.seen
        levels = seen.conversation.levels
        answered = levels.get(_ANSWERED, 0)
        if not (seen.needs_repair or answered):
            return opened
        plan = repair_plan(request.messages) or Plan(strategy="repair", reason="no result of a call, and has it now")
        is_news = bool(answered) and has_answer_since(request.messages, answered)
        if not plan.is_empty:
            wrong = problems(plan, context, is_repair=True)
            if wrong:
                say_rejected(self.telemetry, plan, wrong)
                return opened
            if not context.after(plan).messages:
                raise InputError(
                    "messages: nothing but tool results; keep the messages with the calls that they answer"
                )
            opened = self._opened(context.after(plan).to_send())
            is_news |= self.is_news("repair", opened, 1 + len(plan.drop) + len(plan.replace) + len(plan.insert))
        if is_news:
            say_repaired(self.telemetry, plan, context, opened.context)
        if seen.history is opened.seen.history and not plan.is_empty:
            # An answer at the end made that history grow.
            levels = self._opened(request).seen.conversation.levels
        levels[_ANSWERED] = len(request.messages) if any(each.mark == "repair" for _, each in plan.insert) else 0
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
        if seen.length:
            opened.know(await self.binding.in_force(opened))
            # What was not the latest word of the user when this was decided may be now: what followed may be gone.
            if opened.replayed is not None and seen.history.latest_user in opened.replayed.touched:
                opened.know(NOTHING_KNOWN)
            edited = self._carried_out(opened.replayed, context, opened)
            if edited is None:
                opened.know(NOTHING_KNOWN)
            else:
                opened.saved = context.messages_tokens - edited.messages_tokens
                context = edited
        return self.reports.corrected(opened, context)

    async def decided(self, opened: Opened) -> Record | None:
        """The edits in force here for a history that another layer has opened."""
        return (await self.binding.in_force(Opened(opened.context, opened.seen, opened.model))).record

    def edit(self, policy: Policy, context: Context, opened: Opened, *, span: Span | None = None) -> Context:
        """The context after what a strategy plans for it; first, what it would have planned for those requests that
        the history tells of and nobody here remembers."""
        seen = opened.seen
        if context.is_unstable or opened.since >= seen.history.latest_assistant or opened.is_by_original:
            return self._edited_now(policy, context, opened, span)
        came = self.as_it_came(context, opened)
        past = self.past_of(came, opened, policy)
        steps = past.steps(opened.since, opened.replayed)
        if (len(steps) == 1 and steps[0].length == seen.length) or (not steps and past.was_rejected):
            return self._edited_now(policy, context, opened, span)
        opened.wait = past.wait
        opened.has_looked = bool(steps) or past.looked == seen.length
        if not steps:
            return context
        last = steps[-1]
        after = self.adopt(last.record, came, opened, strategy=last.strategy, reason=last.reason, span=span)
        return self._edited_now(policy, context, opened, span) if after is came else after

    def _edited_now(self, policy: Policy, context: Context, opened: Opened, span: Span | None) -> Context:
        sizes, seen = policy.waits_on(context), opened.seen
        user = -1 if sizes is None else seen.latest_user(seen.length)
        if sizes is not None and opened.wait is not None and opened.wait.goes_on(user, sizes):
            return context  # planning looks at the whole history: not again for every message that comes
        opened.has_looked = True
        after = self.apply(policy.plan(context), context, opened, span=span)
        opened.wait = Wait(user, sizes) if after is context and sizes is not None else None
        return after

    def adopt(
        self,
        record: Record,
        came: Context,
        opened: Opened,
        *,
        strategy: str,
        reason: str,
        span: Span | None = None,
    ) -> Context:
        """The context as it came, after these edits; as it came, if they do not pass the verifier."""
        seen = opened.seen
        edited = record.edited(came.messages, seen.positions)
        if edited is None:
            return came
        plan = record.plan(seen.positions, len(came.messages), edited)
        return self.apply(msgspec.structs.replace(plan, strategy=strategy, reason=reason), came, opened, span=span)

    def as_it_came(self, context: Context, opened: Opened) -> Context:
        """A context with no edits of this layer, weighed as the one with them."""
        return msgspec.structs.replace(
            context,
            request=opened.context.request,
            messages=opened.context.messages,
            messages_tokens=context.messages_tokens + opened.saved,
            find_origins=None,
        )

    def past_of(self, came: Context, opened: Opened, policy: Policy) -> Reconstruction:
        """The requests that a history tells of."""
        return Reconstruction(came, opened.seen, self.counter, policy, by_original=opened.is_by_original)

    def carried_out(self, record: Record | None, came: Context, opened: Opened) -> Context:
        """The context as it came, with these edits."""
        return self._carried_out(record, came, opened) or came

    def apply(self, plan: Plan | None, context: Context, opened: Opened, *, span: Span | None = None) -> Context:
        """The context after a strategy's plan: checked and said; as it was if there is nothing to do.

        A plan that does not pass the verifier is not applied; it is warned of as ``plan_rejected``. The choice is bound
        to the answer that is given under it, once that is there.
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
            opened.replayed = record_of(seen.positions, opened.context.messages, left)
        say_edited(self.telemetry, plan, context, after, span)
        if isinstance(seen.positions, range) or not plan.insert or opened.replayed is None:
            return after
        # With system messages in between, what is put in stands where later calls will find it.
        return self._adopted(opened.replayed, context, opened)

    async def send(self, inner: ChatClient, context: Context, opened: Opened) -> ChatStream:
        """Send what is left, and learn from what is reported for it."""
        request = context.to_send()
        marked = None
        if context.is_edited:
            came = opened.context
            marked = compacted(came.messages, context.messages, context.fewer_than(came))
        if opened.is_ineffective:
            marked = ineffective(marked)
        if marked is not None:
            with attached(marked):
                stream = await inner.send(request)
        else:
            stream = await inner.send(request)
        sent, bound = stream.sent, list[Bound]()

        def answered(answer: ChatResponse) -> None:
            said = next((message for message in answer.messages if message.role == "assistant"), None)
            if said is not None:
                entry = self.memory.past.entry(opened.seen, said)
                self.reports.learn(opened, context, request, sent, entry, answer.usage)
                bound.extend(self.binding.bind(opened, said, entry))

        self.binding.reach(opened, context.scale)
        stream.when_answered(answered)
        if self.memory.shared is None or opened.replayed is None:
            return stream
        shared = ChatStream(ThenShared(stream, lambda: self.binding.share(bound, opened)), owns=stream)
        shared.sent = sent
        return shared

    def say_ineffective(self, strategy: str, context: Context, opened: Opened, why: str) -> None:
        """Warn that an edit does not help: once for a conversation, and by one layer alone for each request."""
        if self.is_news("ineffective", opened) and not is_ineffective():
            opened.is_ineffective = True
            say_ineffective(self.telemetry, strategy, context, why)

    def is_news(self, what: str, opened: Opened, level: int = 1) -> bool:
        """Whether this is new for the conversation; once said, a fact is not repeated until it gets worse."""
        return self.memory.raise_level(f"{self.owner}:{what}", opened.who, level)

    def was_said(self, what: str, opened: Opened) -> bool:
        """Whether that was news once."""
        return self.memory.level(f"{self.owner}:{what}", opened.who) > 0

    def _opened(self, request: ChatRequest) -> Opened:
        by_original = self.by_original and is_compacted()
        messages = tuple([each.original for each in request.messages]) if by_original else request.messages
        seen = self.memory.recognise(messages, request.conversation_id, request.options.instructions)
        evicted = self.memory.take_evicted()
        if evicted:
            self.telemetry.evicted(evicted)
        self.memory.past.recall(seen)
        last = seen.conversation.last_answer(seen.length)
        context = self._weighed(request, seen, by_original, last)
        model = request.options.model or self.model
        return Opened(context, seen, model, is_by_original=by_original, last_answer=last)

    def _weighed(self, request: ChatRequest, seen: Recognised, by_original: bool, last: LastAnswer | None) -> Context:
        """The context as it came in: only what is new of the conversation is counted."""
        messages = request.messages
        if by_original:  # each of them was counted once, but their sums are those of other messages
            tokens = sum(map(self.size_of, messages))
        else:
            tokens = seen.history.sums(seen.length, self.counter, self.size_of)[seen.length]
            if seen.length < len(messages):
                tokens += sum(map(self.size_of, seen.systems_in(messages)))
        asked = reserve_asked(request.options)
        return Context(
            request=request,
            messages=messages,
            messages_tokens=tokens,
            fixed_tokens=self.memory.options_size(request.options, self.counter),
            size_of=self.size_of,
            reserved_tokens=asked or 0,
            default_reserve_tokens=self.default_reserve if asked is None else 0,
            is_cold=last is not None and self._is_cold(last),
        )

    def _is_cold(self, last: LastAnswer) -> bool:
        """Whether the provider has hardly anything of the history in its cache that got this answer."""
        return last.missed_cache or self.memory.clock() - last.at >= CACHE_SECONDS

    def size_of(self, message: Message) -> int:
        """The size of a message, counted once."""
        return self.memory.size_of(message, self.counter)

    def _carried_out(self, record: Record | None, context: Context, opened: Opened) -> Context | None:
        return carried_out(record, context, opened, owner=self.owner, counter=self.counter)

    def _adopted(self, record: Record, context: Context, opened: Opened) -> Context:
        """What came in with a record carried out, and weighed as this context is."""
        came = msgspec.structs.replace(
            opened.context, scale=context.scale, is_unstable=context.is_unstable, window_tokens=context.window_tokens
        )
        return self._carried_out(record, came, opened) or context


def _name_in_recipe(layer: object) -> str:
    return type(getattr(layer, "strategy", layer)).__name__
