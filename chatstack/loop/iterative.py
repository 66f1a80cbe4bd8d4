"""The iterative loop: fresh prompts over a workspace, until the work is done."""

from __future__ import annotations

from chatstack.errors import InputError
from chatstack.loop.context import IterativeContext
from chatstack.loop.results import IterativeResult
from chatstack.loop.running import IterativeRun
from chatstack.loop.settings import LoopSettings
from chatstack.loop.workspace import Workspace
from chatstack.values.surrogates import lone_surrogate_in


class IterativeLoop(LoopSettings):
    """Asks a model again and again, each time with a fresh prompt, its only memory a workspace.

    No history accumulates: ``prompt`` makes each prompt from the ``IterativeContext``, above all from the files that
    tools have written. In an iteration the model is called once (``single_call``: its tools are run, it never sees the
    results), twice (``one_round_trip``), or up to ``max_tool_rounds`` times (``multi_round``); results that it has not
    seen are in ``context.last_tool_results`` for the next prompt.

    A run ends for one of these reasons:

    - ``is_complete`` returns True (a bool); it is called after each iteration, before the other reasons are checked
    - the model answers in words, and there is no ``is_complete``
    - ``max_iterations``, ``max_total_tool_calls``, ``max_tokens`` or ``max_cost`` is reached (in dollars, each
      answer and summary at the price of the model that wrote it)
    - ``max_stalled_iterations`` in a row called the same tools with the same arguments, and left the same workspace
    - the run is cancelled
    - an error is raised, which is then in the result

    Once the share ``pressure`` of the budget is used, one last iteration may use no tools (``context.is_finalizing``);
    if the whole budget is used up by then, there is none.

    The client must have no tool loop of its own; other layers (a guard, a clearer, a fallback) work here, too. A bare
    provider is given a ``ModelTracer``. Tools may have ``Injected[Workspace]`` and ``Injected[IterativeContext]``.
    ``tool_filter`` decides which tools are offered, and is called again before each tool call. Hooks may be sync or
    async; an exception of a hook ends the run.

    With a ``journal``, and a ``run_id`` in the context, a run that was killed, was cancelled or failed resumes where it
    was, if its workspace is still there. Answers of the model and results of tools are taken from the journal; a tool
    that was interrupted is run again only if it is marked ``idempotent``. ``on_iteration_end`` and ``is_complete`` may
    then be called twice for one iteration.

    Raises ``WiringError`` for settings that cannot work, ``InputError`` for a context that does not fit. Source:
    NexusLabs.Needlr's iterative agent loop.
    """

    __slots__ = ()

    async def run(self, context: IterativeContext) -> IterativeResult:
        """Run to the end. Cancelling the task cancels the run, and raises; ``context.records`` has what was done."""
        return await self.iterations(context).result()

    def iterations(self, context: IterativeContext) -> IterativeRun:
        """Return the run, to step through: ``async for record in run``, then ``await run.result()``."""
        if not isinstance(context, IterativeContext):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"IterativeLoop: context is a {type(context).__name__}, not an IterativeContext")
        if context.is_taken or context.records or context.iteration:
            raise InputError("IterativeLoop: this context has been through a run; a new one needs a new context")
        if not isinstance(context.workspace, Workspace):  # pyright: ignore[reportUnnecessaryIsInstance]
            kind = type(context.workspace).__name__
            raise InputError(f"IterativeLoop: context.workspace is a {kind}, not a Workspace")
        if context.run_id is not None and (not isinstance(context.run_id, str) or not context.run_id):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"IterativeLoop: run_id={context.run_id!r} must be text that names this run, or None")
        if self.journal is not None and not context.run_id:
            raise InputError("IterativeLoop: with a journal, the context needs a run_id: IterativeContext(run_id=...)")
        if self.journal is not None and lone_surrogate_in(context.run_id or "") is not None:
            told = "has half a character (a lone surrogate), which no journal can write"
            raise InputError(f"IterativeLoop: run_id={context.run_id!r} {told}")
        context.is_taken = True
        return IterativeRun(self, context)
