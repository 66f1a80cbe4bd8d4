"""What an iterative loop leaves: a record of each iteration, and why it ended."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal, TypeAlias

import msgspec

from chatstack.values.parts import ToolResult
from chatstack.values.responses import Usage

EndReason: TypeAlias = Literal[
    "completed",
    "answered",
    "max_iterations",
    "max_tool_calls",
    "budget",
    "stalled",
    "cancelled",
    "error",
]
"""Why a run ended: ``is_complete`` said so; the model answered in words, and nobody else says when it is complete; a
limit was reached; tokens or money were used up; iterations did the same without any effect; somebody asked for it;
something failed."""


class ToolCallResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tool call of an iteration, and what came of it. ``arguments`` is the JSON text as the model wrote it.

    ``was_run`` is False for one that was only answered: beyond a limit, cut off, not allowed.
    """

    name: str
    arguments: str
    result: ToolResult
    was_run: bool = True

    @property
    def output(self) -> str:
        """The result as text; of parts, the texts."""
        output = self.result.output
        return output if isinstance(output, str) else "\n".join(getattr(part, "text", "") for part in output)

    @property
    def is_error(self) -> bool:
        """Whether the call failed, or was not run."""
        return self.result.is_error


class IterationRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One iteration: what the model said last, what was called, what it used. ``workspace_digest`` is that of the end.

    ``is_partial`` marks one that did not get to its end; ``seconds`` are those of the process that ended it.
    """

    iteration: int
    text: str = ""
    tool_calls: tuple[ToolCallResult, ...] = ()
    model_calls: int = 0
    usage: Usage = Usage()
    overhead_usage: Usage = Usage()
    seconds: float = 0.0
    workspace_digest: str = ""
    is_final: bool = False
    is_partial: bool = False


class IterativeResult(msgspec.Struct, frozen=True, kw_only=True):
    """A run: why it ended, and everything up to there. ``cost`` is in dollars, None where no cost was bounded.

    ``error`` is what failed, for the reason "error"; for "budget" the ``BudgetExceeded`` of a layer of the client, if
    it was that one. It has not been raised.
    """

    reason: EndReason
    iterations: tuple[IterationRecord, ...]
    usage: Usage = Usage()
    overhead_usage: Usage = Usage()
    cost: Decimal | None = None
    error: BaseException | None = None

    @property
    def text(self) -> str:
        """What the model said last."""
        return next((record.text for record in reversed(self.iterations) if record.text), "")

    @property
    def tool_calls(self) -> int:
        """How many tools were run."""
        return sum(call.was_run for record in self.iterations for call in record.tool_calls)
