"""Editing: replay the edits decided for a history, then check and apply a strategy's plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from opentelemetry.trace import Span

from chatstack.client.options import options_key, versioned
from chatstack.client.protocol import ChatClient, ProviderInfo, chain, provider_info
from chatstack.context.decisions.agreement import Agreement
from chatstack.context.decisions.binding import Binding, is_needed_still
from chatstack.context.decisions.carrying import carried_last, carried_out, keep_carried, plan_of
from chatstack.context.decisions.policy import Policy
from chatstack.context.decisions.reconstructing import Reconstruction
from chatstack.context.edits.context import Context
from chatstack.context.edits.limits import check_counter
from chatstack.context.edits.plans import Plan
from chatstack.context.edits.records import NOTHING_MADE, Made, Record, named, record_in_place, record_of
from chatstack.context.edits.verifier import problems
from chatstack.context.histories.conversations import NOTHING_KNOWN
from chatstack.context.histories.growth import Growth, Reading, pairs_of
from chatstack.context.memory.memory import ContextMemory
from chatstack.context.requests.asking import Asking, aside
from chatstack.context.requests.opened import Opened
from chatstack.context.requests.opening import Weighing
from chatstack.context.requests.reports import Reports
from chatstack.context.requests.saying import say_edited, say_ineffective, say_rejected
from chatstack.context.requests.services import ContextServices
from chatstack.telemetry.emission import Telemetry
from chatstack.tokens.counter import TokenCounter
from chatstack.tokens.default import default_counter


class _Draft(NamedTuple):
    """A plan with what is wrong with it, or with the record of all edits after it."""

    plan: Plan | None
    wrong: tuple[str, ...]
    made: Made | None


_NO_DRAFT = _Draft(None, (), None)


@dataclass(frozen=True, slots=True)
class ContextEditing:
    """The part of a context layer that does not depend on its strategy.

    ``owner`` names the layer's options, ``name`` is that of its strategy, ``model`` that of its provider. With
    ``by_original``, messages edited further out are recognised by their originals, so that decisions made here hold in
    spite of that.
    """

    memory: ContextMemory
    telemetry: Telemetry
    counter: TokenCounter
    owner: str
    name: str
    model: str
    by_original: bool
    weighing: Weighing
    binding: Binding
    reports: Reports

    @classmethod
    def around(
        cls,
        inner: ChatClient,
        options: object,
        services: ContextServices,
        counter: TokenCounter | None,
        *,
        by_original: bool = False,
    ) -> ContextEditing:
        """Make the editing of a layer around this client; ``options`` is the layer or strategy with the options. It
        counts as the client's provider does, if it is given no ``counter``."""
        counter = default_counter(inner) if counter is None else counter
        layer, memory, telemetry = type(options).__name__, services.memory, services.telemetry
        check_counter(layer, counter)
        info = provider_info(inner) or ProviderInfo(name="")
        owner = f"{options_key(options)},{options_key(counter)}"
        further_in = sum(type(getattr(each, "strategy", each)).__name__ == layer for each in chain(inner))
        place = f"{versioned(options)}#{further_in}"
        weighing = Weighing(memory, counter, memory.sizes_by(counter), info)
        binding = Binding(memory, Agreement(memory, telemetry), owner, place)
        reports = Reports(services.calibration, counter)
        name = str(getattr(options, "name", layer))
        return cls(memory, telemetry, counter, owner, name, info.model, by_original, weighing, binding, reports)

    def replay(self, opened: Opened, *, limit: int = 0) -> Asking[Context]:
        """Return the context with the edits decided for its history, or for a beginning of it. ``limit`` is the size
        that it has to fit, if there is one: edits are decided for a limit."""
        opened.limit, context, seen = limit, opened.context, opened.seen
        if opened.is_unstable:
            context = msgspec.structs.replace(context, is_unstable=True)
        if seen.length:
            if self.memory.shared is None:
                opened.know(self.binding.in_force_here(opened))
            else:
                opened.know((yield from self.binding.in_force(opened)))
            record = opened.replayed
            if record is not None:
                # If later messages are gone, an edited one may be the latest user message, which must stay.
                must_stay = record.touches(seen.history.latest_user)
                edited = None if must_stay else self._carried_out(record, context, opened)
                if edited is None or (seen.conversation.has_less and not _is_needed(record, context, edited, opened)):
                    opened.know(NOTHING_KNOWN)
                else:
                    opened.saved = context.messages_tokens - edited.messages_tokens
                    context = edited
        return self.reports.corrected(opened, context)

    def edit(self, policy: Policy, context: Context, opened: Opened) -> Asking[Context]:
        """Return the context after a strategy's plan. Before that, the plans for earlier requests of the history that
        are not remembered here are reconstructed."""
        seen = opened.seen
        if context.is_unstable or opened.since >= seen.history.latest_assistant or opened.is_by_original:
            return (yield from self._edited_now(policy, context, opened))
        came = self.as_it_came(context, opened)
        past = self.past_of(came, opened, policy, context)
        steps = yield from past.steps(opened.since, opened.replayed)
        if not steps and past.was_rejected:
            return (yield from self._edited_now(policy, context, opened))
        if len(steps) == 1 and steps[0].context is not None:
            opened.has_looked, opened.wait = True, None
            return self._carry_out(_Draft(steps[0].plan, (), steps[0].made), steps[0].context, opened)
        opened.wait = past.wait
        opened.has_looked = bool(steps) or past.looked == seen.length
        if not steps:
            return context
        last = steps[-1]
        after = yield from self.adopt(last.made, came, opened, last.plan.strategy, last.plan.reason)
        if after is came:
            return (yield from self._edited_now(policy, context, opened))
        if past.growth is not None:
            past.growth.includes(after)  # what was found on the way holds for it
        return (yield from self._edited_now(policy, after, opened)) if past.was_cut_short else after

    def _edited_now(self, policy: Policy, context: Context, opened: Opened) -> Asking[Context]:
        if policy.is_waiting(opened.wait, context, opened.seen):
            return context  # planning reads the whole history: do not repeat it for every new message
        opened.has_looked = True
        if policy.is_due(context):
            after = self._carry_out((yield from self._planned(policy, context, opened)), context, opened)
        else:
            after = context
        opened.wait = policy.wait(context, opened.seen) if after is context else None
        return after

    def _planned(self, policy: Policy, context: Context, opened: Opened) -> Asking[_Draft]:
        """Plan for a context, going on from what was read for the last edit of its conversation."""
        seen, growth, readings = opened.seen, _growth_of(context, opened), self.memory.readings
        is_plain = bool(seen.length) and isinstance(seen.positions, range) and not opened.is_by_original
        terms = (self.owner, opened.came_edited, seen.positions[0] if is_plain else 0)
        if is_plain:
            growth.reading = readings.take(seen.conversation, terms) or growth.reading
        draft = yield from aside(
            lambda: self._checked(policy.plan(context), context, opened), len(context.messages), policy.aside_from
        )
        if is_plain and growth.reading.gone is not None:
            readings.keep(seen.conversation, terms, growth.reading)
            growth.reading = Reading()
        return draft

    def adopt(self, edits: Record | Made, came: Context, opened: Opened, strategy: str, reason: str) -> Asking[Context]:
        """Return the context as it came, after these edits; without them if they do not pass the verifier."""

        def draft() -> _Draft:
            made = edits
            if isinstance(made, Record):
                edited = made.edited(came.messages, opened.seen.positions)
                if edited is None:
                    return _NO_DRAFT
                made = Made(made, edited)
            plan = made.record.plan(opened.seen.positions, len(came.messages), made.edited)
            plan = msgspec.structs.replace(plan, strategy=strategy, reason=reason)
            return self._checked(plan, came, opened, made)

        return self._carry_out((yield from aside(draft, len(came.messages))), came, opened)

    def as_it_came(self, context: Context, opened: Opened) -> Context:
        """Return the context without this layer's edits, scaled as the one with them."""
        return msgspec.structs.replace(
            context,
            request=opened.context.request,
            messages=opened.context.messages,
            messages_tokens=context.messages_tokens + opened.saved,
            find_origins=None,
        )

    def past_of(self, came: Context, opened: Opened, policy: Policy, replayed: Context | None = None) -> Reconstruction:
        """Return the reconstruction of a history's earlier requests; ``replayed`` is the context with the edits in
        force, if these are carried out already."""
        return Reconstruction(
            came,
            opened.seen,
            self.counter,
            policy,
            by_original=opened.is_by_original,
            carried=carried_last(opened, self.owner),
            replayed=replayed,
            wait=opened.wait,
        )

    def again(self, record: Record, came: Context, opened: Opened) -> Context | None:
        """Return the context as it came, with edits of this conversation that are not reported again; None if they do
        not fit its messages, or do not pass the verifier: another branch may have made them."""
        plan = plan_of(record, came.messages, opened.seen.positions)
        return None if plan is None or problems(plan, came) else came.after(plan)

    def apply(self, plan: Plan | None, context: Context, opened: Opened, *, span: Span | None = None) -> Context:
        """Verify a plan, apply it and report it; return the context unchanged if there is nothing to do.

        A plan that does not pass the verifier is not applied, with the warning ``plan_rejected``. The choice is bound
        to the answer given under it, once that has arrived.
        """
        return self._carry_out(self._checked(plan, context, opened), context, opened, span)

    def _checked(self, plan: Plan | None, context: Context, opened: Opened, made: Made | None = None) -> _Draft:
        """Verify a plan, and work out its record; ``made``, where that is known."""
        if plan is None or (isinstance(plan, Plan) and plan.is_empty):  # pyright: ignore[reportUnnecessaryIsInstance]
            return _NO_DRAFT
        wrong = problems(plan, context)
        if wrong or not opened.seen.length:
            return _Draft(plan, wrong, None)
        opened.seen.links  # noqa: B018 - digested here, as the choice will be bound by them
        return _Draft(plan, (), made or self._made(plan, context, opened))

    def drafted(self, plan: Plan | None, context: Context, opened: Opened) -> Record | None:
        """Return the record of all edits after a plan that is not applied yet; None if it does not pass the
        verifier."""
        made = self._checked(plan, context, opened).made
        return None if made is None else made.record

    def _made(self, plan: Plan, context: Context, opened: Opened) -> Made:
        """Work out the record of all edits after a plan."""
        positions, came = opened.seen.positions, opened.context.messages
        carried = carried_last(opened, self.owner)
        known = NOTHING_MADE if carried is None else carried.made
        if isinstance(positions, range) and not (plan.drop or plan.insert):
            head, before = positions.start, opened.replayed
            if before is None:
                return record_in_place(came, head, dict(plan.replace))
            if before is known.record and not (before.drop or before.insert):
                edited = {at + head: message for at, message in known.edited.items()}
                return record_in_place(came, head, {**edited, **dict(plan.replace)}, known)
        after = context.after(plan)
        return record_of(positions, came, list(zip(after.messages, after.origins, strict=True)), known)

    def _carry_out(self, draft: _Draft, context: Context, opened: Opened, span: Span | None = None) -> Context:
        """Apply a verified plan: keep its record, and report it. Report one that did not pass the verifier."""
        plan, wrong, made = draft
        if plan is None:
            return context
        if wrong:
            say_rejected(self.telemetry, plan, wrong, self.name)
            return context
        after, positions = context.after(plan), opened.seen.positions
        opened.ahead = None
        if made is not None:
            made = named(made) if self.memory.shared is not None else made
            opened.replayed = made.record
            if isinstance(positions, range):
                keep_carried(made, opened, owner=self.owner, counter=self.counter)
        say_edited(self.telemetry, plan, context, after, span)
        if isinstance(positions, range) or not plan.insert or opened.replayed is None:
            _growth_of(after, opened)
            return after
        # With system messages in between, replay the record, so that insertions stand where later calls put them.
        came = msgspec.structs.replace(
            opened.context, scale=context.scale, is_unstable=context.is_unstable, window_tokens=context.window_tokens
        )
        return self._carried_out(opened.replayed, came, opened) or context

    def say_ineffective(self, strategy: str, context: Context, opened: Opened, why: str) -> None:
        """Warn that an edit does not help: once per conversation, and by one layer only for each request."""
        if self.is_news("ineffective", opened) and not opened.is_ineffective:
            opened.is_ineffective = True
            say_ineffective(self.telemetry, strategy, context, why)

    def is_news(self, what: str, opened: Opened) -> bool:
        """Return True if this fact is new for the conversation; it counts as reported from then on."""
        return self.memory.raise_level(f"{self.owner}:{what}", opened.who, 1)

    def was_said(self, what: str, opened: Opened) -> bool:
        """Return True if this fact was reported before."""
        return self.memory.level(f"{self.owner}:{what}", opened.who) > 0

    def _carried_out(self, record: Record, context: Context, opened: Opened) -> Context | None:
        return carried_out(record, context, opened, owner=self.owner, counter=self.counter)


def _is_needed(record: Record, came: Context, edited: Context, opened: Opened) -> bool:
    """Return True if these edits are to go on, though what was sent under them is less now."""
    whole, left = came.messages_tokens, edited.messages_tokens
    return not opened.sent or is_needed_still(record, sent=opened.sent, whole=whole, left=left)


def _growth_of(context: Context, opened: Opened) -> Growth:
    """Return the growth of a context, noted on it. Its history knows the pairs, if edits have moved no message: finding
    them took as long as planning what to clear."""
    if Growth.is_known(context):
        return Growth.of(context)
    messages, record = context.messages, opened.replayed
    has_moved = opened.is_by_original or (record is not None and bool(record.drop or record.insert))
    growth = Growth(lambda: messages, find_pairs=None if has_moved else pairs_of(opened.seen))
    growth.includes(context)
    return growth
