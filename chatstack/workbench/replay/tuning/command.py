"""``chatstack tune``: the cheapest settings that keep the values that recorded calls used, as a config file."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from chatstack.cli.progress_bar import Progress
from chatstack.cli.terminal import make_console, own_version, printable
from chatstack.errors import InputError
from chatstack.workbench.replay.arguments import (
    STDOUT,
    add_arguments,
    check_targets,
    jobs_for,
    number,
    replayed,
    setup_from,
    target_of,
    warnings_on,
    workers_for,
    write,
    write_figures,
)

if TYPE_CHECKING:
    from rich.console import Console

    from chatstack.cli import Subparsers
    from chatstack.workbench.replay.engines import Workers
    from chatstack.workbench.replay.outcomes import Outcome
    from chatstack.workbench.replay.policies import Policy
    from chatstack.workbench.replay.reading.sources import Source
    from chatstack.workbench.replay.tuning.halves import Halves, Part
    from chatstack.workbench.replay.tuning.tuned import Tuned

_TRIALS, _MOST_TRIALS = 150, 10_000
_DESCRIPTION = """\
Finds settings for your conversations: the stack that costs least among those
that keep the wanted share of what the recorded calls used ('found' in the
table of 'chatstack replay'), fit the window wherever the guard alone would,
and send nothing that a server would refuse. It tries clearing and dropping in
one edit, clearing tool results, and the guard alone, each with many settings.

It is tuned on one half of the conversations and reported on the other, which
the settings have not seen. In which half one is depends on its first user
message only. A little more than wanted is asked for, as much as it takes on
the tuned half for choices made on a part of it to hold on the rest. Costs are
those of input tokens, in dollars where the prices of all recorded models are
known.

The file is written for from_config, and for 'chatstack replay --pipeline'.
Where the extra 'tokenizer' is installed, its layers count by it.
"""
_EPILOG = """\
example:
  chatstack tune talks.jsonl.gz --window 8000 --grounding 98 --write mine.toml

next: chatstack inspect mine.toml shows the stack; from_config("mine.toml")
makes it in your program

exit codes: 0 all was read and the file is written, 1 some of it could not be
read, or no settings keep what is wanted (then nothing is written), 2 nothing
was done
"""


def register(subparsers: Subparsers) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "tune",
        help="find the cheapest settings for recorded conversations",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    parser.add_argument(
        "--grounding",
        type=_percent,
        required=True,
        metavar="PERCENT",
        help="how much of what the recorded calls used must still be in what is sent, as in 98",
    )
    parser.add_argument(
        "--far", type=_percent, metavar="PERCENT", help="the same of what stood only far back (default: no limit)"
    )
    parser.add_argument(
        "--write",
        type=Path,
        required=True,
        metavar="FILE",
        help="write the stack there: .toml, .yaml, .yml or .json; an existing file is overwritten",
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write the figures there as JSON; '-' writes them to standard output, and the tables to standard error",
    )
    parser.add_argument(
        "--trials",
        type=number(1, _MOST_TRIALS, "trials"),
        default=_TRIALS,
        metavar="N",
        help=f"how many settings are tried at most (default: {_TRIALS})",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Tune, report, write the file, and return 0; or 1 if something could not be read, or no stack reaches the goal.

    Raises ``ChatStackError`` for anything that prevents the start.
    """
    messages = make_console(stderr=True)
    from chatstack.workbench.replay.reading.sources import sources_from

    _check_suffix(arguments.write)
    with sources_from(arguments.files) as sources:
        check_targets({"--write": arguments.write, "--json": target_of(arguments.json)}, arguments, sources)
        with warnings_on(messages):
            passes = _Passes(arguments, sources, messages)
            with workers_for(arguments) as passes.workers:
                tuned = _tuned(arguments, passes)
        _report(tuned, arguments, [source.name for source in sources], messages)
    return 0 if tuned.best.is_feasible and not tuned.halves.unread.broken_count else 1


def _percent(text: str) -> Fraction:
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9])?", text) or not 0 < Fraction(text) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage from 0.1 to 100, with one decimal at most")
    return Fraction(text) / 100


def _check_suffix(target: Path) -> None:
    from chatstack.workbench.replay.tuning.pipeline_files import SUFFIXES

    if target.suffix.lower() not in SUFFIXES:
        raise InputError(f"--write {target}: expected a file that ends in {', '.join(SUFFIXES)}")


class _Passes:
    """The recordings, read as often as needed; each pass shows its title and its progress."""

    def __init__(self, arguments: argparse.Namespace, sources: Sequence[Source], console: Console) -> None:
        from chatstack.workbench.replay.reading.joining import JoinedRecordings
        from chatstack.workbench.replay.tuning.halves import halves_of

        self.setup = setup_from(arguments, sources)
        self.workers: Workers | None = None
        """The workers that replay, if not the processes of this machine."""
        self._console = console
        self._jobs = jobs_for(arguments.jobs, sources)
        self._recordings = JoinedRecordings(sources)
        progress = Progress(console, f"{'reading':22}", self._recordings.size_bytes)
        with progress.shown():
            self.halves: Halves = halves_of(self._recordings.read(advance=progress.advance), self.setup.window)
            self.halves.unread.joined = self._recordings.joined
            self.halves.check()

    def tried(self, part: Part, policies: Sequence[Policy]) -> Outcome:
        """Replay a part of the recordings through the guard and some candidates."""
        where = "a sample" if part == "sample" else "half of it"
        return self.replay(part, policies, f"{len(policies) - 1:3} settings, {where}")

    def replay(self, part: Part, policies: Sequence[Policy], told: str) -> Outcome:
        """Replay a part of the recordings through these policies."""
        from chatstack.workbench.replay.tuning.halves import of_part
        from chatstack.workbench.replay.tuning.margins import GROUPS

        for source in self._recordings.sources:
            source.check_unchanged()
        setup = replace(self.setup, policies=tuple(policies), groups=GROUPS)
        picked = partial(of_part, part=self.halves.part(part))
        return replayed(setup, self._recordings, self._jobs, self._console, f"{told:22}", picked, self.workers)


def _tuned(arguments: argparse.Namespace, passes: _Passes) -> Tuned:
    from chatstack.workbench.replay.tuning.candidates import ConfigWriter
    from chatstack.workbench.replay.tuning.margins import Goal
    from chatstack.workbench.replay.tuning.search import Search, compared, policy_of
    from chatstack.workbench.replay.tuning.tuned import Tuned

    goal = Goal(arguments.grounding, arguments.far)
    writer = ConfigWriter.measured_by(passes.setup.counter, passes.setup.window)
    search = Search(goal, writer, passes.tried, arguments.trials, has_sample=passes.halves.has_sample)
    best = search.best()
    policies = compared(policy_of(best.candidate, writer, "tuned"))
    return Tuned(
        goal,
        best,
        search.margin,
        writer,
        len(search.tried),
        passes.halves,
        replace(passes.setup, policies=policies),
        passes.replay("tuning", policies, "tuned, half of it"),
        passes.replay("other", policies, "tuned, the other half"),
    )


def _report(tuned: Tuned, arguments: argparse.Namespace, files: Sequence[str], messages: Console) -> None:
    from chatstack.workbench.replay.report import report_json
    from chatstack.workbench.replay.table import print_table, report_broken
    from chatstack.workbench.replay.tuning.pipeline_files import pipeline_text

    tools: Path | None = arguments.tools
    target: Path = arguments.write
    figures: str | None = arguments.json
    console = messages if figures == STDOUT else make_console()
    for table in tuned.tables():
        print_table(table, console)
    for line in tuned.lines():
        console.print(line)
    if tuned.best.is_feasible:
        remarks = tuned.remarks(files, own_version())
        text = pipeline_text(tuned.config, target.suffix.lower(), remarks)
        try:
            write("--write", target, text)
        except InputError:
            console.print(text, soft_wrap=True)  # rather than lose what took so long
            raise
    if figures is not None:
        write_figures(figures, report_json(tuned.report(files, None if tools is None else str(tools))))
    done = f"Written: {printable(str(target))}" if tuned.best.is_feasible else "Nothing is written."
    console.print(done, soft_wrap=True)
    for line in report_broken(tuned.halves.unread):
        messages.print(line, soft_wrap=True)
