"""Agreement: processes that share a store carry out the same decisions, and none of them waits for it for long."""

from __future__ import annotations

from dataclasses import dataclass

from chatstack import semconv
from chatstack.context.context import Context
from chatstack.context.history import Recognised
from chatstack.context.memory import MOST_TERMS, ContextMemory
from chatstack.context.records import Decision, Record, covered
from chatstack.context.saying import say_rejected
from chatstack.context.sharing import SharedDecisions
from chatstack.context.verifier import problems
from chatstack.telemetry.emission import Telemetry


@dataclass(frozen=True, slots=True)
class Agreement:
    """What a context layer does about decisions of other processes. What a store gives is verified like any plan."""

    memory: ContextMemory
    telemetry: Telemetry

    async def recalled(self, terms: str, seen: Recognised, context: Context) -> Decision:
        """The decision that covers most of this history, here or in the store, if there is one; ``context`` is as it
        came in."""
        known = self.memory.recall(terms, seen)
        if self.memory.shared is None:
            return known
        return await self._looked_up(self.memory.shared, terms, seen, context, known)

    async def latched(
        self,
        terms: str,
        seen: Recognised,
        context: Context,
        mine: Record,
        *,
        replaces: Record | None = None,
        covers: int | None = None,
    ) -> Record:
        """The record that holds from now on: ours, unless somebody else was first, here or in another process."""
        kept = self.memory.latch(terms, seen, mine, replaces=replaces, covers=covers)
        if kept is not mine or self.memory.shared is None:
            return kept
        return await self._settled(self.memory.shared, terms, seen, context, mine, replaces, covers)

    async def _looked_up(
        self, shared: SharedDecisions, terms: str, seen: Recognised, context: Context, known: Decision
    ) -> Decision:
        messages, asked = seen.history.messages[: seen.length], seen.history.asked
        # What was asked for once is not asked for again: else every call would ask for the whole history.
        beyond = max(0, known.covers - 1, asked.get(terms, 0))
        found = await shared.find(terms, seen.links, messages, beyond=beyond)
        self._say(found.problem)
        if found.answered:
            if len(asked) >= MOST_TERMS:
                asked.clear()
            # Up to the model's latest message only: what is decided with what follows it holds from there.
            asked[terms] = max(0, seen.history.latest_assistant)
        if found.record is None or found.record == known.record or not self._holds(found.record, seen, context):
            return known
        return self.memory.adopt(terms, seen, found.record, found.covers)

    async def _settled(
        self,
        shared: SharedDecisions,
        terms: str,
        seen: Recognised,
        context: Context,
        mine: Record,
        replaces: Record | None,
        covers: int | None,
    ) -> Record:
        messages = seen.history.messages[: seen.length]
        messages = messages[: covers or covered(mine, messages)]
        kept = await shared.put(terms, seen.links, mine, messages, replaces)
        self._say(kept.problem)
        if kept.record is mine or not self._holds(kept.record, seen, context):
            return mine
        self.memory.adopt(terms, seen, kept.record, len(messages))
        return kept.record

    def _holds(self, record: Record, seen: Recognised, context: Context) -> bool:
        wrong = problems(record.plan(seen.positions, len(context.messages)), context)
        if wrong:
            say_rejected(self.telemetry, record.plan(seen.positions, len(context.messages)), wrong)
        return not wrong

    def _say(self, problem: str) -> None:
        if problem:
            self.telemetry.warn(
                "store_unavailable",
                problem,
                {semconv.COMPACTION_STRATEGY: "replay"},
                span_name="compact_context replay",
            )
