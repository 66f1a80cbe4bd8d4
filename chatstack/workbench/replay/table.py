"""The terminal output of a replay: a table, and the errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from chatstack.cli.terminal import counted, printable
from chatstack.workbench.replay.measures.figures import PolicyFigures
from chatstack.workbench.replay.measures.grounding import Grounding
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.setup import Setup
from chatstack.workbench.replay.telling import percent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_PLACES_SHOWN = 10
_ID_CHARS = 60
_NAME_CHARS = 7
"""Width to which names of policies are folded, at the least."""
_WIDEST_CHARS = 1_000
_FOUND, _FAR = "found\n%", "  far\n%"


def report_table(outcome: Outcome, setup: Setup) -> Table:
    """Return the table, with one row for each policy."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    everything = outcome.everything
    caption = _caption(outcome, setup)
    table = Table(
        title=f"{counted(outcome.conversations, 'conversation')}, {counted(everything.calls, 'call')}, "
        f"window {setup.window:,} tokens{joined_told(outcome)}",
        caption=caption,
        box=SIMPLE_HEAD,
        padding=0,
        min_width=max(map(len, caption.splitlines())),  # else the caption is wrapped at the table's width
        pad_edge=False,
    )
    table.add_column("policy", overflow="fold", min_width=_NAME_CHARS)
    columns = _columns(outcome)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for each in outcome.figures:
        table.add_row(printable(each.name), *(tell(each) for tell in columns.values()))
        for name, shares in _without_lists(each.grounding):
            table.add_row(name, *(shares.get(heading, "") for heading in columns))
    return table


def print_table(table: Table, console: Console) -> None:
    """Print the table, wider than the terminal if need be: rich would cut figures, and leave the names out."""
    names = table.columns[0]
    names.max_width = _NAME_CHARS
    needed = console.measure(table, options=console.options.update(width=_WIDEST_CHARS)).minimum
    names.max_width = None
    if needed > console.width:
        table.width = needed
    console.print(table, crop=False)


def _without_lists(grounding: Grounding) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield rows on what was found otherwise than in lists of names, if there were any."""
    values, far_values = grounding.values, grounding.far_values
    if grounding.bare == grounding.found:
        return
    yield "  bare", {_FOUND: _percent(grounding.bare, values), _FAR: _percent(grounding.far_bare, far_values)}
    yield (
        "  attr.",
        {
            _FOUND: _percent(grounding.attributed, values),
            _FAR: _percent(grounding.far_attributed, far_values),
        },
    )


def _columns(outcome: Outcome) -> dict[str, Callable[[PolicyFigures], str]]:
    """Return the columns of the table by their headings.

    The table has to fit 80 columns, so rare figures are there only if they occur.
    """
    everything = outcome.everything
    columns: dict[str, Callable[[PolicyFigures], str]] = {
        # Refused calls were not sent: a share of all calls would make refusing look cheap.
        "sent\n%": lambda each: "-" if each.refused else _percent(each.tokens_sent, everything.tokens_sent),
        " cost": lambda each: _decimals(each.cost_relative(everything.spending)),
        "breaks": lambda each: f"{each.spending.prefix_breaks:,}",
        _FOUND: lambda each: _percent(each.grounding.found, each.grounding.values),
        _FAR: lambda each: _percent(each.grounding.far_found, each.grounding.far_values),
        "largest": lambda each: f"{each.peak_tokens:,}",
        " over\nlimit": lambda each: f"{each.over_limit:,}",
        " edits": lambda each: f"{each.edits:,}",
    }
    if any(each.invalid_requests for each in outcome.figures):
        columns["  in-\nvalid"] = lambda each: f"{each.invalid_requests:,}"
    if any(each.latest_user_lost for each in outcome.figures):
        columns["user\nlost"] = lambda each: f"{each.latest_user_lost:,}"
    if any(each.refused for each in outcome.figures):
        columns["  re-\nfused"] = lambda each: f"{each.refused:,}"
    columns["CPU ms\na call"] = lambda each: _decimals(each.cpu_ms_per_call)
    return columns


def _caption(outcome: Outcome, setup: Setup) -> str:
    """Return the meaning of the columns, in lines that fit the table."""
    lines = [
        f"sent, cost: beside sending everything, {outcome.everything.tokens_sent:,} tokens of the",
        f"wire text by {setup.counter.name}"
        + (f", {setup.tools_tokens:,} of tool schemas in every call" if setup.tools else ""),
        "found: values of the recorded tool calls that were still in what was",
        "sent, of those in the full context; far: of those only far back in it",
    ]
    if any(each.latest_user_lost for each in outcome.figures):
        lines += ["user lost: calls without the latest user message"]
    if any(each.grounding.bare != each.grounding.found for each in outcome.figures):
        lines += [
            "bare: without those only in a list of names that an edit left;",
            "attributed (attr.): with those whose label there leads to their call",
        ]
    return "\n".join(lines)


def joined_told(outcome: Outcome) -> str:
    """Return a second line for the title, if lines were joined."""
    if not outcome.joined:
        return ""
    are = "line is" if outcome.joined == 1 else "lines are"
    return f"\n{outcome.joined:,} recorded {are} the beginning of another, and joined"


def _percent(part: int, whole: int) -> str:
    return percent(Fraction(part, whole)) if whole else "-"


def _decimals(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.2f}"


def report_faults(outcome: Outcome) -> list[str]:
    """Return a line for each policy that sent an invalid request, or refused a call."""
    lines: list[str] = []
    for each in outcome.figures:
        if each.faults:
            told = ", ".join(f"{reason} ({count:,})" for reason, count in sorted(each.faults.items()))
            lines.append(printable(f"{each.name}: {told}"))
    return lines


def report_left_out(outcome: Outcome) -> list[str]:
    """Return what was left out of the recordings, and how often; nothing if all was read."""
    if not outcome.left_out:
        return []
    told = (f"{printable(what)} ({count:,})" for what, count in sorted(outcome.left_out.items()))
    return [f"left out, unknown or of no use here: {'; '.join(told)}"]


def report_dearest(outcome: Outcome) -> list[str]:
    """Return a line for each policy on its dearest conversation, where that costs more or less than all of it."""
    dearest = [
        (each.name, each.dearest) for each in outcome.figures if each.dearest and each.dearest.cost_relative != 1
    ]
    return [
        printable(f"{name}: {found.cost_relative:.2f}, in conversation {found.number:,} ({found.id[:_ID_CHARS]})")
        for name, found in dearest
    ]


def report_over(outcome: Outcome, setup: Setup) -> list[str]:
    """Return a line for each policy whose layers counted by themselves, and let a call through that is too large."""
    if not setup.own_counter:
        return []
    return [
        printable(
            f"{each.name}: {counted(each.over_limit, 'call')} over the window, "
            f"by {percent(Fraction(each.peak_tokens, setup.window) - 1)} % at most"
        )
        for each in outcome.figures
        if each.over_limit
    ]


def report_broken(outcome: Outcome) -> list[str]:
    """Return the number of lines that could not be read, and their places; nothing if all could."""
    if not outcome.broken_count:
        return []
    lines = [f"{outcome.broken_count:,} could not be read:"]
    lines += [f"  {printable(str(each))}" for each in outcome.broken[:_PLACES_SHOWN]]
    if outcome.broken_count > _PLACES_SHOWN:
        lines.append(f"  and {outcome.broken_count - _PLACES_SHOWN:,} more")
    return lines
