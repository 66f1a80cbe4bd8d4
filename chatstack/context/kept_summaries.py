"""Kept summaries: what was written once about the beginning of a history is there for everybody who comes from it."""

from __future__ import annotations

from dataclasses import dataclass

from chatstack.context.agreement import Agreement
from chatstack.context.context import Context
from chatstack.context.history import Recognised
from chatstack.context.records import Decision, Record


@dataclass(frozen=True, slots=True)
class KeptSummaries:
    """Summaries by what they are about, and by nothing that follows: branches, other limits and other tools meet them
    too. ``owner`` names what a summary depends on beside: the prompt. Kept in the memory, and in its store."""

    agreement: Agreement
    owner: str

    async def find(self, seen: Recognised, context: Context) -> Decision:
        """The one of the longest beginning of this history; ``context`` is as it came in. Its record may be None."""
        return await self.agreement.recalled(self.owner, seen, context)

    async def keep(self, seen: Recognised, context: Context, record: Record, covers: int) -> None:
        """Keep the summary of the first ``covers`` messages."""
        await self.agreement.latched(self.owner, seen, context, record, covers=covers)
