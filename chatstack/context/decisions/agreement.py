"""Agreement: processes that share a store use the same choices and artifacts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chatstack import semconv
from chatstack.context.decisions.carrying import plan_of
from chatstack.context.edits.context import Context
from chatstack.context.edits.records import Insertion, Record
from chatstack.context.edits.summaries import is_summary
from chatstack.context.edits.verifier import problems
from chatstack.context.histories.choices import Bound
from chatstack.context.histories.conversations import Chosen, term_in, with_term
from chatstack.context.histories.recognised import Recognised
from chatstack.context.memory.forgetting import came_link
from chatstack.context.memory.memory import ContextMemory
from chatstack.context.requests.saying import say_rejected
from chatstack.telemetry.emission import Telemetry
from chatstack.values.messages import Message


@dataclass(frozen=True, slots=True)
class Agreement:
    """The memory of a context layer together with its store. Records from a store are verified like any plan."""

    memory: ContextMemory
    telemetry: Telemetry

    async def recalled(
        self,
        place: str,
        seen: Recognised,
        context: Context,
        others: Callable[[], tuple[str, ...]],
    ) -> Chosen:
        """Return the choice of the newest answer in this history that has one, here or in the store; ``context`` is as
        it came in."""
        shared, conversation = self.memory.shared, seen.conversation
        known = self.memory.chosen(place, seen, others)
        if shared is None:
            return known
        before = term_in(conversation.asked, place) or 0
        # Links are looked up only once: else every call would look up the whole history.
        beyond = max(0, known.covers - 1, before)
        links, messages = list(seen.links[: seen.length]), seen.history.messages[: seen.length]
        answered = True
        for who in (seen.who, *(() if before else others())):  # a branch may have an id of its own
            found = await shared.find(_owner(place, who), links, messages, beyond=beyond)
            self._say(found.problem)
            answered = answered and found.answered
            record, covers = found.record, found.covers
            if record is None:
                continue
            under = self.memory.noted_under(seen, covers, record)
            if seen.came is not None:
                await shared.keep_notes(under)
            if record != known.record and self._holds(record, seen, context):
                bound = Bound(place, seen.who, links[covers - 1], record, messages[:covers], under[-1])
                self.memory.adopt(bound, seen)
                known = self.memory.chosen(place, seen)
                break
        if answered:
            conversation.asked = with_term(conversation.asked, place, max(0, seen.history.latest_assistant))
        return known

    async def share(self, bound: Bound, seen: Recognised, context: Context) -> None:
        """Put a choice into the store; where there is one already, adopt that. ``context`` is as it came in."""
        if self.memory.shared is None:
            return
        owner = _owner(bound.place, bound.who)
        there = await self.memory.shared.put(owner, bound.link, bound.record, bound.messages, under=bound.under)
        self._say(there.problem)
        if there.record is not bound.record and self._holds(there.record, seen, context):
            self.memory.adopt(bound._replace(record=there.record), seen)

    async def artifact(self, subject: str, link: bytes, seen: Recognised) -> Message | None:
        """Return the artifact about exactly this subject, here or in the store; None if there is none."""
        known = self.memory.artifact(subject, link)
        if known is not None or self.memory.shared is None:
            return known
        found = await self.memory.shared.find(subject, [link], ())
        self._say(found.problem)
        if found.record is None or not found.record.insert:
            return None
        made = found.record.insert[0].made()
        if not is_summary(made):
            return None
        under = _under(seen, link)
        if under != link:
            await self.memory.shared.keep_notes([under])
        self.memory.keep_artifact(subject, link, made, seen, under)
        return made

    async def keep_artifact(self, subject: str, link: bytes, made: Message, seen: Recognised) -> Message:
        """Keep an artifact under a link of this history; return the one in force, as another process may have made one
        first. If the history is an edited form, the artifact is forgotten with what that stands for."""
        known = self.memory.artifact(subject, link)
        if known is not None:
            return known
        shared, under = self.memory.shared, _under(seen, link)
        if shared is not None:
            record = Record(insert=(Insertion(0, made, made.annotation),))
            there = await shared.put(subject, link, record, (), under=under)
            self._say(there.problem)
            kept = there.record.insert[0].made() if there.record.insert else made
            made = kept if is_summary(kept) else made
        self.memory.keep_artifact(subject, link, made, seen, under)
        return made

    def _holds(self, record: Record, seen: Recognised, context: Context) -> bool:
        plan = None if record.reach > seen.length else plan_of(record, context.messages, seen.positions)
        if plan is None:
            return False
        wrong = problems(plan, context)
        if wrong:
            say_rejected(self.telemetry, plan, wrong)
        return not wrong

    def _say(self, problem: str) -> None:
        if problem:
            self.telemetry.warn(
                "store_unavailable",
                problem,
                {semconv.COMPACTION_STRATEGY: "replay"},
                span_name="compact_context replay",
            )


def _under(seen: Recognised, link: bytes) -> bytes:
    """Return the link of the history as it came that reaches what is kept under a link of this form of it."""
    if seen.came is None:
        return link
    links = seen.links
    return came_link(seen, next((at + 1 for at in range(seen.length - 1, -1, -1) if links[at] == link), seen.length))


def _owner(place: str, who: str) -> str:
    return f"choice:{place}:{who}"
