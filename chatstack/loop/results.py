"""Results of an iterative loop: a record of each iteration, and the reason why the run ended."""

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
"""The reason why a run ended.

In this order: ``is_complete`` returned True; the model answered in words and there is no ``is_complete``; a limit was
reached (two reasons); tokens or money were used up; iterations repeated each other without effect; the run was
cancelled; an error was raised.
"""


class ToolCallResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tool call of an iteration, and its result. ``arguments`` is the JSON text as the model wrote it.

    ``was_run`` is False for a call that was answered without being run: over a limit, cut off, not allowed.
    """

    name: str
    arguments: str
    result: ToolResult
    was_run: bool = True

    @property
    def output(self) -> str:
        """The result as text; of a list of parts, their texts."""
        output = self.result.output
        return output if isinstance(output, str) else "\n".join(getattr(part, "text", "") for part in output)

    @property
    def is_error(self) -> bool:
        """True if the call failed, or was not run."""
        return self.result.is_error


class IterationRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One iteration: the model's last text, the tool calls, the usage; ``workspace_digest`` is that at the end.

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
    """The outcome of a run: why it ended, and all its records. ``cost`` is in dollars, None if no cost was limited.

    ``error`` is the exception, for the reason "error"; for "budget" it is the ``BudgetExceeded`` of a layer of the
    client, if that ended the run. It has not been raised.
    """

    reason: EndReason
    iterations: tuple[IterationRecord, ...]
    usage: Usage = Usage()
    overhead_usage: Usage = Usage()
    cost: Decimal | None = None
    error: BaseException | None = None

    @property
    def text(self) -> str:
        """The model's last text."""
        return next((record.text for record in reversed(self.iterations) if record.text), "")

    @property
    def tool_calls(self) -> int:
        """Number of tools that were run."""
        return sum(call.was_run for record in self.iterations for call in record.tool_calls)
