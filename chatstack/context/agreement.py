"""Agreement: processes that share a store use the same choices and artifacts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chatstack import semconv
from chatstack.context.choices import Bound
from chatstack.context.context import Context
from chatstack.context.conversations import Chosen, put_term
from chatstack.context.history import Recognised
from chatstack.context.memory import ContextMemory
from chatstack.context.records import Insertion, Record
from chatstack.context.saying import say_rejected
from chatstack.context.sharing import SharedDecisions
from chatstack.context.summaries import is_summary
from chatstack.context.verifier import problems
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
        shared = self.memory.shared
        if shared is None:
            return self.memory.chosen(place, seen, others)
        known = self.memory.chosen(place, seen, others)
        asked = seen.conversation.asked
        before = asked.get(place, 0)
        # Links are looked up only once: else every call would look up the whole history.
        beyond = max(0, known.covers - 1, before)
        links, messages = list(seen.links[: seen.length]), seen.history.messages[: seen.length]
        answered = True
        for who in (seen.who, *(() if before else others())):  # a branch may have an id of its own
            found = await shared.find(_owner(place, who), links, messages, beyond=beyond)
            self._say(found.problem)
            answered = answered and found.answered
            record, covers = found.record, found.covers
            if record is not None and record != known.record and self._holds(record, seen, context):
                self.memory.adopt(Bound(place, seen.who, links[covers - 1], record, messages[:covers]), seen)
                known = self.memory.chosen(place, seen)
                break
        if answered:
            put_term(asked, place, max(0, seen.history.latest_assistant))
        return known

    async def share(self, bound: Bound, seen: Recognised, context: Context) -> None:
        """Put a choice into the store; if there is one already, adopt that. ``context`` is as it came in."""
        if self.memory.shared is None:
            return
        there = await self.memory.shared.put(_owner(bound.place, bound.who), bound.link, bound.record, bound.messages)
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
        self.memory.keep_artifact(subject, link, made, seen)
        return made

    async def keep_artifact(self, subject: str, link: bytes, made: Message, seen: Recognised) -> Message:
        """Keep an artifact; return the one in force, as another process may have made one first."""
        known = self.memory.artifact(subject, link)
        if known is not None:
            return known
        shared: SharedDecisions | None = self.memory.shared
        if shared is not None:
            there = await shared.put(subject, link, Record(insert=(Insertion(0, made, made.annotation),)), ())
            self._say(there.problem)
            kept = there.record.insert[0].made() if there.record.insert else made
            made = kept if is_summary(kept) else made
        self.memory.keep_artifact(subject, link, made, seen)
        return made

    def _holds(self, record: Record, seen: Recognised, context: Context) -> bool:
        if record.reach > seen.length:
            return False
        edited = record.edited(context.messages, seen.positions)
        if edited is None:
            return False
        plan = record.plan(seen.positions, len(context.messages), edited)
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


@dataclass(frozen=True, slots=True)
class Recall:
    """The question which choice is in force for a history. See ``Agreement.recalled``."""

    agreement: Agreement
    place: str
    seen: Recognised
    context: Context
    others: Callable[[], tuple[str, ...]]

    async def answer(self) -> Chosen:
        return await self.agreement.recalled(self.place, self.seen, self.context, self.others)


def _owner(place: str, who: str) -> str:
    return f"choice:{place}:{who}"
