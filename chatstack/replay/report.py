"""What a replay found: as JSON for programs, as a table for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chatstack.cli.terminal import printable
from chatstack.replay.running import PolicyFigures, Replay

if TYPE_CHECKING:
    from rich.table import Table

REPORT_VERSION = 1
"""Goes up when a field changes its meaning or goes away; fields may be added."""

_PLACES_SHOWN = 10


def report_json(replay: Replay, files: Sequence[Path], tools_file: Path | None) -> str:
    """The whole report, with what it was measured by."""
    tools = {"file": str(tools_file), "count": len(replay.tools), "tokens": replay.tools_tokens}
    report = {
        "version": REPORT_VERSION,
        "counter": replay.counter.name,
        "window": replay.window,
        "tools": tools if tools_file is not None else None,
        "files": [str(path) for path in files],
        "errors": [{"file": each.file, "line": each.line, "error": each.error} for each in replay.broken],
        "error_count": replay.broken_count,
        "policies": [_policy(figures) for figures in replay.figures],
    }
    return json.dumps(report, indent=2)


def _policy(figures: PolicyFigures) -> dict[str, object]:
    return {
        "name": figures.name,
        "conversations": figures.conversations,
        "calls": figures.calls,
        "tokens_sent": figures.tokens_sent,
        "peak_tokens": figures.peak_tokens,
        "over_limit": figures.over_limit,
        "invalid_requests": figures.invalid_requests,
        "edits": figures.edits,
        "refused": figures.refused,
        "cpu_ms_per_call": round(figures.cpu_ms_per_call, 4),
        "faults": figures.faults,
    }


def report_table(replay: Replay) -> Table:
    """One row for each policy."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        title=f"{replay.conversations:,} conversation{'s' if replay.conversations != 1 else ''}, "
        f"window {replay.window:,} tokens",
        caption=f"tokens of the wire text by {replay.counter.name}"
        + (f", {replay.tools_tokens:,} of tool schemas in every call" if replay.tools else ""),
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("policy", overflow="fold", min_width=7)
    counts: dict[str, Callable[[PolicyFigures], int]] = {
        "largest": lambda each: each.peak_tokens,
        "over\nlimit": lambda each: each.over_limit,
        "in-\nvalid": lambda each: each.invalid_requests,
        "edits": lambda each: each.edits,
    }
    if any(each.refused for each in replay.figures):  # rare, and the table has to fit 80 columns
        counts["re-\nfused"] = lambda each: each.refused
    for heading in ("calls", "tokens\nsent", "of\nall", *counts, "CPU ms\na call"):
        table.add_column(heading, justify="right", no_wrap=True)
    everything = replay.figures[0].tokens_sent if replay.figures else 0
    for each in replay.figures:
        # What was refused was not sent: a share of all would make refusing look cheap.
        share = f"{100 * each.tokens_sent / everything:.0f} %" if everything and not each.refused else "-"
        table.add_row(
            printable(each.name),
            *(f"{count:,}" for count in (each.calls, each.tokens_sent)),
            share,
            *(f"{count(each):,}" for count in counts.values()),
            f"{each.cpu_ms_per_call:.2f}",
        )
    return table


def report_faults(replay: Replay) -> list[str]:
    """A line for each policy that sent what a server would refuse, or refused to send."""
    lines: list[str] = []
    for each in replay.figures:
        if each.faults:
            told = ", ".join(f"{reason} ({count:,})" for reason, count in sorted(each.faults.items()))
            lines.append(printable(f"{each.name}: {told}"))
    return lines


def report_broken(replay: Replay) -> list[str]:
    """How many lines could not be read, and where; nothing when all could."""
    if not replay.broken_count:
        return []
    lines = [f"{replay.broken_count:,} could not be read:"]
    lines += [f"  {printable(str(each))}" for each in replay.broken[:_PLACES_SHOWN]]
    if replay.broken_count > _PLACES_SHOWN:
        lines.append(f"  and {replay.broken_count - _PLACES_SHOWN:,} more")
    return lines
