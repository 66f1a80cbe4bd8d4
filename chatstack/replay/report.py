"""What a replay found: as JSON for programs, as a table for people.

The JSON has, beside what was read and how it was measured (``counter``, ``window``, ``tools``), the ``prices`` of the
recorded models (dollars for a million tokens, of a small request; ``write`` null where nobody tells it) and, for each
of the ``policies``:

- ``conversations``, ``calls`` (recorded answers), ``requests`` (all that was sent for them)
- ``tokens_sent``, ``peak_tokens`` (the largest request), ``over_limit`` (calls with a request over the window)
- ``tokens_from_cache``, ``tokens_to_cache``: tokens that a prompt cache would have held, and would have taken in;
  ``prefix_breaks``: calls whose request does not start with all of the request before it (``replay/costs.py``)
- ``cost_relative``: cost in uncached input tokens, a read 0.1 and a write 1.25, nothing under 1,024 tokens cached, as a
  multiple of what sending everything costs; null where calls were refused
- ``cost_usd``, ``cost_usd_uncached``: the input with a prompt cache and without, by the prices of the recorded models
  and the fixed counter's tokens; null where calls were refused or a price is not known. What the answers cost is the
  same for every policy and is left out.
- ``grounding``, ``grounding_far``: shares, 0 to 1, of the ``grounding_values`` and ``grounding_far_values`` that the
  recorded calls took from their full context and that were still in what was sent (``replay/grounding.py``); null
  where there was no such value. Of a refused call none was there.
- ``edits`` (that layers report), ``refused`` (calls for which the stack raised), ``invalid_requests`` (that a server
  would refuse), ``faults`` (why, and how often), ``cpu_ms_per_call``
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from chatstack.cli.terminal import printable
from chatstack.replay.figures import PolicyFigures
from chatstack.replay.running import Replay
from chatstack.tokens.prices import Price

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
        "prices": [_price(model, price) for model, price in replay.prices.items()],
        "policies": [_policy(figures, replay.everything) for figures in replay.figures],
    }
    return json.dumps(report, indent=2)


def _price(model: str, price: Price) -> dict[str, object]:
    return {
        "model": model,
        "input": float(price.input.base),
        "read": float(price.read.base),
        "write": None if price.write is None else float(price.write.base),
        "minimum_prefix_tokens": price.minimum_tokens,
        "lifetime_seconds": price.lifetime_seconds,
        "source": price.source,
    }


def _policy(figures: PolicyFigures, everything: PolicyFigures) -> dict[str, object]:
    spending, grounding = figures.spending, figures.grounding
    is_whole = not figures.refused  # what was refused cost nothing: its sum beside others would look cheap
    return {
        "name": figures.name,
        "conversations": figures.conversations,
        "calls": figures.calls,
        "requests": figures.requests,
        "tokens_sent": figures.tokens_sent,
        "peak_tokens": figures.peak_tokens,
        "over_limit": figures.over_limit,
        "tokens_from_cache": spending.tokens_read,
        "tokens_to_cache": spending.tokens_written,
        "prefix_breaks": spending.prefix_breaks,
        "cost_relative": _rounded(figures.cost_relative(everything.spending)),
        "cost_usd": _rounded(spending.usd) if is_whole else None,
        "cost_usd_uncached": _rounded(spending.usd_uncached) if is_whole else None,
        "grounding": _rounded(grounding.share),
        "grounding_values": grounding.values,
        "grounding_far": _rounded(grounding.far_share),
        "grounding_far_values": grounding.far_values,
        "invalid_requests": figures.invalid_requests,
        "edits": figures.edits,
        "refused": figures.refused,
        "cpu_ms_per_call": round(figures.cpu_ms_per_call, 4),
        "faults": figures.faults,
    }


def _rounded(figure: float | Decimal | None) -> float | None:
    return None if figure is None else round(float(figure), 6)


def report_table(replay: Replay) -> Table:
    """One row for each policy."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    everything = replay.everything
    table = Table(
        title=f"{_counted(replay.conversations, 'conversation')}, {_counted(everything.calls, 'call')}, "
        f"window {replay.window:,} tokens",
        caption=_caption(replay),
        box=SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
    )
    table.add_column("policy", overflow="fold", min_width=7)
    columns = _columns(replay)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for each in replay.figures:
        table.add_row(printable(each.name), *(tell(each) for tell in columns.values()))
    return table


def _columns(replay: Replay) -> dict[str, Callable[[PolicyFigures], str]]:
    """What the table tells of each policy, under which heading. The table has to fit 80 columns, so what is rare is
    there only where it happened."""
    everything = replay.everything
    columns: dict[str, Callable[[PolicyFigures], str]] = {
        # What was refused was not sent: a share of all would make refusing look cheap.
        "sent\n%": lambda each: "-" if each.refused else _percent(each.tokens_sent, everything.tokens_sent),
        " cost": lambda each: _decimals(each.cost_relative(everything.spending)),
        "breaks": lambda each: f"{each.spending.prefix_breaks:,}",
        "found\n%": lambda each: _percent(each.grounding.found, each.grounding.values),
        "  far\n%": lambda each: _percent(each.grounding.far_found, each.grounding.far_values),
        "largest": lambda each: f"{each.peak_tokens:,}",
        " over\nlimit": lambda each: f"{each.over_limit:,}",
        " edits": lambda each: f"{each.edits:,}",
    }
    if any(each.invalid_requests for each in replay.figures):
        columns["  in-\nvalid"] = lambda each: f"{each.invalid_requests:,}"
    if any(each.refused for each in replay.figures):
        columns["  re-\nfused"] = lambda each: f"{each.refused:,}"
    columns["CPU ms\na call"] = lambda each: _decimals(each.cpu_ms_per_call)
    return columns


def _caption(replay: Replay) -> str:
    """What the columns mean, in lines that fit the table."""
    lines = [
        f"sent, cost: beside sending everything, {replay.everything.tokens_sent:,} tokens of the",
        f"wire text by {replay.counter.name}"
        + (f", {replay.tools_tokens:,} of tool schemas in every call" if replay.tools else ""),
        "found: values of the recorded tool calls that were still in what was",
        "sent, of those in the full context; far: of those only far back in it",
    ]
    return "\n".join(lines)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def _percent(part: int, whole: int) -> str:
    """To one decimal, and rounded down, so that 100 means all."""
    if not whole:
        return "-"
    thousandths = 1_000 * part // whole
    return f"{thousandths // 10}" if thousandths >= 1_000 else f"{thousandths / 10:.1f}"


def _decimals(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.2f}"


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
