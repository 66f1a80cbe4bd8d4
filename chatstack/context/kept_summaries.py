"""Kept summaries: what was written once about the beginning of a history is there for everybody who comes from it."""

from __future__ import annotations

from dataclasses import dataclass

from chatstack.context.agreement import Agreement
from chatstack.context.context import Context
from chatstack.context.history import Recognised
from chatstack.context.memory import ContextMemory
from chatstack.context.records import Decision, Record
from chatstack.telemetry.emission import Telemetry


@dataclass(frozen=True, slots=True)
class KeptSummaries:
    """Summaries by what they are about, and by nothing that follows: branches, other limits and other tools meet them
    too. ``owner`` names what a summary depends on beside: the prompt. Kept in the memory, and in its store."""

    memory: ContextMemory
    telemetry: Telemetry
    owner: str

    async def find(self, seen: Recognised, context: Context) -> Decision:
        """The one of the longest beginning of this history; ``context`` is as it came in. Its record may be None."""
        found = self.memory.recall(self.owner, seen)
        if self.memory.shared is None:
            return found
        return await self._agreement.looked_up(self.owner, seen, context, found)

    async def keep(self, seen: Recognised, context: Context, record: Record, covers: int) -> None:
        """Keep the summary of the first ``covers`` messages."""
        kept = self.memory.latch(self.owner, seen, record, covers=covers)
        if kept is record and self.memory.shared is not None:
            await self._agreement.settled(self.owner, seen, context, record, None, covers=covers)

    @property
    def _agreement(self) -> Agreement:
        assert self.memory.shared is not None
        return Agreement(self.memory, self.telemetry, self.memory.shared)
