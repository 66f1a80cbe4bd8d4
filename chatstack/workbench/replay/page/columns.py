"""The part of a report that is shown without a script, and the columns of its table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from chatstack.workbench.replay.page.writing import Number, count, decimals, dollars, percent

Direction: TypeAlias = Literal["ascending", "descending"]


class Tools(msgspec.Struct):
    """The tool schemas that went out with every call."""

    file: str | None = None
    count: Number = None
    tokens: Number = None


class Price(msgspec.Struct):
    """Prices in dollars for a million tokens."""

    model: str | None = None
    input: Number = None
    read: Number = None
    write: Number = None
    minimum_prefix_tokens: Number = None
    lifetime_seconds: Number = None
    source: str | None = None


class Unread(msgspec.Struct):
    """A line that could not be read, and the reason."""

    file: str | None = None
    line: Number = None
    error: str | None = None


class Dearest(msgspec.Struct):
    """The conversation with the highest relative cost."""

    cost_relative: Number = None
    number: Number = None
    id: str | None = None


class PolicyRow(msgspec.Struct):
    """The figures of one policy."""

    name: str | None = None
    about: str | None = None
    is_yours: bool | None = None
    requests: Number = None
    tokens_sent: Number = None
    peak_tokens: Number = None
    over_limit: Number = None
    tokens_from_cache: Number = None
    tokens_to_cache: Number = None
    tokens_missed: Number = None
    prefix_breaks: Number = None
    cost_relative: Number = None
    cost_usd: Number = None
    cost_usd_uncached: Number = None
    grounding: Number = None
    grounding_values: Number = None
    grounding_far: Number = None
    grounding_far_values: Number = None
    grounding_bare: Number = None
    grounding_far_bare: Number = None
    grounding_attributed: Number = None
    grounding_far_attributed: Number = None
    invalid_requests: Number = None
    edits: Number = None
    refused: Number = None
    latest_user_lost: Number = None
    dearest: Dearest | None = None
    cpu_ms_per_call: Number = None
    summary_input: Number = None
    summary_output: Number = None
    faults: dict[str, Number] | None = None

    @property
    def would_do(self) -> bool:
        """True if no call was refused or over the window, both known, and no request is known to be invalid, or to
        lack the latest user message."""
        return self.over_limit == 0 and self.refused == 0 and not self.invalid_requests and not self.latest_user_lost

    @property
    def lists_names(self) -> bool:
        """True if values were found that stood only in lists of names."""
        return self.grounding_bare is not None and self.grounding_bare != self.grounding


class RecordedUsage(msgspec.Struct):
    """The usage that the recording holds, beside what was computed, in sentences."""

    told: list[str] | None = None


class Figures(msgspec.Struct):
    """The figures of a report, without its curves and conversations."""

    counter: str | None = None
    window: Number = None
    conversations: Number = None
    joined: Number = None
    left_out: dict[str, Number] | None = None
    recorded: RecordedUsage | None = None
    calls: Number = None
    files: list[str] | None = None
    file_count: Number = None
    errors: list[Unread] | None = None
    error_count: Number = None
    tools: Tools | None = None
    prices: list[Price] | None = None
    assumptions: list[str] | None = None
    policies: list[PolicyRow] | None = None


def _lists_names(row: PolicyRow) -> bool:
    return row.lists_names


class Column(msgspec.Struct, frozen=True):
    """One column: its heading, its figure, and the format.

    ``first`` is the direction in which it is sorted first; a fault is highlighted unless it is zero; a rare column is
    shown only if ``occurs`` in some row.
    """

    heading: str
    value: Callable[[PolicyRow], Number]
    about: str
    tell: Callable[[Number], str] = count
    first: Direction = "ascending"
    is_fault: bool = False
    occurs: Callable[[PolicyRow], object] | None = None


COLUMNS = (
    Column(
        "cost",
        lambda row: row.cost_relative,
        "What was sent, and what was read and written for summaries, at the prices under Assumptions, as a multiple "
        "of what sending everything costs. Not known where calls were refused: what was not sent cost nothing.",
        decimals,
    ),
    Column(
        "dearest",
        lambda row: None if row.dearest is None else row.dearest.cost_relative,
        "The cost of the conversation that is dearest beside sending everything of it.",
        decimals,
    ),
    Column(
        "found\n%",
        lambda row: row.grounding,
        "Of the values in the recorded tool calls that stood in the full context, the share that still stood in what "
        "was sent. It says what could be seen, not how well a model would have answered.",
        percent,
        "descending",
    ),
    Column(
        "far\n%",
        lambda row: row.grounding_far,
        "The same, of the values that stood only far back: not in the system message, the first or the latest user "
        "message, or the last three units (a plain message, or calls with their results).",
        percent,
        "descending",
    ),
    Column(
        "found\nbare %",
        lambda row: row.grounding_bare,
        "Found, without what stood only in a list of names that an edit left: nobody knows what a bare word is worth.",
        percent,
        "descending",
        occurs=_lists_names,
    ),
    Column(
        "far\nbare %",
        lambda row: row.grounding_far_bare,
        "The same, of the far ones.",
        percent,
        "descending",
        occurs=_lists_names,
    ),
    Column(
        "found\nattr. %",
        lambda row: row.grounding_attributed,
        "Attributed: found bare, or in a list of names by a label that leads to the call that held the value.",
        percent,
        "descending",
        occurs=_lists_names,
    ),
    Column(
        "far\nattr. %",
        lambda row: row.grounding_far_attributed,
        "The same, of the far ones.",
        percent,
        "descending",
        occurs=_lists_names,
    ),
    Column(
        "over\nwindow",
        lambda row: row.over_limit,
        "Calls with a request of more tokens than the window.",
        is_fault=True,
    ),
    Column(
        "refused",
        lambda row: row.refused,
        "Calls for which the policy itself raised instead of sending.",
        is_fault=True,
    ),
    Column(
        "invalid",
        lambda row: row.invalid_requests,
        "Requests that a server would refuse, such as a result without its call.",
        is_fault=True,
    ),
    Column(
        "user\nlost",
        lambda row: row.latest_user_lost,
        "Calls whose request lacks the latest user message.",
        is_fault=True,
        occurs=lambda row: row.latest_user_lost,
    ),
    Column("largest", lambda row: row.peak_tokens, "Tokens of the largest request."),
    Column("requests", lambda row: row.requests, "All that was sent for the calls."),
    Column("tokens\nsent", lambda row: row.tokens_sent, "Of all requests together, as often as they were sent."),
    Column(
        "from\ncache",
        lambda row: row.tokens_from_cache,
        "Tokens of them that a prompt cache would have held.",
        first="descending",
    ),
    Column("to\ncache", lambda row: row.tokens_to_cache, "Tokens of them that it would have taken in."),
    Column(
        "missed\nin cache",
        lambda row: row.tokens_missed,
        "Tokens that the call before had left in the cache, and that were sent again and not read from there.",
    ),
    Column(
        "prefix\nbreaks",
        lambda row: row.prefix_breaks,
        "Calls whose request does not start with all of the request before it: from there on the cache is of no use.",
    ),
    Column(
        "read for\nsummaries",
        lambda row: row.summary_input,
        "Tokens that went out to have summaries written.",
        occurs=lambda row: row.summary_input,
    ),
    Column(
        "written\nfor them",
        lambda row: row.summary_output,
        "Tokens of the summaries that were written.",
        occurs=lambda row: row.summary_output,
    ),
    Column("edits", lambda row: row.edits, "Edits that the policy reported."),
    Column(
        "USD",
        lambda row: row.cost_usd,
        "The input with a prompt cache, by the prices of the recorded models. What the answers cost is the same for "
        "every policy and left out.",
        dollars,
    ),
    Column("USD\nuncached", lambda row: row.cost_usd_uncached, "The input without a prompt cache.", dollars),
    Column("CPU ms\na call", lambda row: row.cpu_ms_per_call, "CPU time of the policy itself.", decimals),
)
"""The columns in the order of the table."""


def columns_of(figures: Figures) -> list[Column]:
    """Return the columns that have figures to show; the page defines the same ones."""
    rows = figures.policies or []
    return [each for each in COLUMNS if each.occurs is None or any(map(each.occurs, rows))]
