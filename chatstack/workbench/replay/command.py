"""``chatstack replay``: recorded conversations through policies, with a progress bar, a table and a page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from chatstack.cli.terminal import make_console, printable
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
    from chatstack.workbench.replay.outcomes import Outcome
    from chatstack.workbench.replay.policies import Policy
    from chatstack.workbench.replay.reading.sources import Source
    from chatstack.workbench.replay.setup import Setup

_STORIES, _MOST_STORIES = 12, 100
_DESCRIPTION = """\
Compares what stacks would send of recorded conversations. Each recorded
answer is asked for again, through every stack, with all that came before it.
No model is called: the recording answers.

Built-in policies: 'nothing' sends everything as it is, 'guard' leaves out the
oldest messages that do not fit the window, 'sliding-window' sends the
newest that fit, 'rolling-masking' the ten newest tool results,
'batch-clearing' clears all but three when the window is full; 'recommended'
bounds new results, and clears, then drops, in one edit, when the window is full
or once that pays, and keeps the names that were in it. --policy picks some of
them, --pipeline adds yours.

Costs are those of input tokens with a prompt cache that lives from one call
to the next, or as long as --pause has it. Found are the values in the recorded
tool calls that were still in what was sent. Where a stack has summaries
written, a stand-in of 500 tokens that holds nothing takes their place.
"""
_EPILOG = """\
A conversation is the body of a request (OpenAI chat completions or Responses,
Anthropic messages), or the bare list of its messages or items:
  {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello"}, ...]}
A log of requests will do, also as {"request": ..., "response": ...} on each
line: one that is the beginning of another is the same conversation, and
Responses that name the one before (previous_response_id) are one, too.
So will session files of Claude Code (~/.claude/projects) and of Codex
(~/.codex/sessions), and trajectories in ATIF, Harbor's format. The usage that
a recording holds is shown beside what is computed.

A stack for --pipeline is the list of its layers, outermost first; as TOML:
  [[layers]]
  use = "ContextWindowGuard"
  max_context_tokens = 4000
  prune_on_overflow = true

example:
  chatstack replay talks.jsonl --window 8000 --pipeline my.toml --html my.html

next: chatstack tune finds settings for your conversations, and writes such a
file; docs/how-to/replay.md says how to record them

exit codes: 0 all was read, 1 some of it could not be, or there was no call in
it, 2 nothing was done
"""


def register(subparsers: Subparsers) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "replay",
        help="compare what stacks would send of recorded conversations",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    _add_stacks(parser)
    _add_targets(parser)
    parser.set_defaults(run=run)


def _add_stacks(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say which stacks are compared, and how they count and remember."""
    parser.add_argument(
        "--pipeline",
        action="append",
        default=[],
        metavar="FILE",
        type=Path,
        help="a stack of yours to compare: a JSON, TOML or YAML file with its layers; may be given again",
    )
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME",
        help="a built-in policy; may be given again (default: all of them)",
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help="also compare the strategies of LangChain, Agent Framework, maf-compaction and Headroom, where they are "
        "installed",
    )
    parser.add_argument(
        "--counter",
        choices=("same", "own"),
        default="same",
        help="'own': the layers of the stacks count by themselves, as they would with the recorded model's provider, "
        "which tells them the size of each call, and what they misjudge shows as calls over the window; 'same': the "
        "built-in policies count as they are measured (default: same)",
    )
    parser.add_argument(
        "--shared-memory",
        action="store_true",
        help="let each stack remember one conversation in the next, in the order of the files, in one process; the "
        "figures depend on that order (default: every conversation begins with an empty memory)",
    )


def _add_targets(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what is written."""
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write the figures there, too, as JSON; '-' writes them to standard output, and the table to standard "
        "error",
    )
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write a page there that shows the figures as pictures, and conversations call by call; it needs no "
        "network, and holds the beginnings of those conversations' messages",
    )
    parser.add_argument(
        "--stories",
        type=number(0, _MOST_STORIES, "conversations"),
        default=_STORIES,
        metavar="N",
        help=f"how many conversations the page shows, those with most to see (default: {_STORIES})",
    )


def run(arguments: argparse.Namespace) -> int:
    """Replay, report, and return 0, or 1 if something could not be read.

    Raises ``ChatStackError`` for anything that prevents the start, before anything runs.
    """
    messages = make_console(stderr=True)
    from chatstack.workbench.replay.reading.joining import JoinedRecordings
    from chatstack.workbench.replay.reading.sources import sources_from

    with sources_from(arguments.files) as sources:
        targets = {"--json": target_of(arguments.json), "--html": arguments.html}
        check_targets(targets, arguments, sources, arguments.pipeline)
        with warnings_on(messages):
            _tell_missing(arguments, messages)
            setup = _setup(arguments, sources)
            _tell_left_out(setup.policies, messages)
            recordings = JoinedRecordings(sources)
            jobs = _jobs(arguments, sources)
            with workers_for(arguments) as workers:
                outcome = replayed(setup, recordings, jobs, messages, "replaying", workers=workers)
            outcome.joined, outcome.left_out = recordings.joined, dict(recordings.notes)
        _report(outcome, setup, arguments, [source.name for source in sources], messages)
    if not outcome.everything.calls:
        what = "an answer behind a first message, in the recording or in a later line of the log"
        messages.print(f"Nothing was replayed: no conversation has {what}.", soft_wrap=True)
    return 1 if outcome.broken_count or not outcome.everything.calls else 0


def _tell_missing(arguments: argparse.Namespace, messages: Console) -> None:
    """Say which peers are left out, as they are not installed."""
    if arguments.peers:
        from chatstack.workbench.replay.peers import missing_told

        if told := missing_told():
            messages.print(told, soft_wrap=True)


def _tell_left_out(policies: Sequence[Policy], messages: Console) -> None:
    """Say which layers of pipelines, and which of their options, are not part of the replay."""
    for policy in policies:
        if policy.left_out:
            without = ", ".join(policy.left_out)
            told = f"{policy.name}: replayed without {without}: a recording has its calls and answers, and no API"
            messages.print(printable(told), soft_wrap=True, markup=False)


def _setup(arguments: argparse.Namespace, sources: Sequence[Source]) -> Setup:
    policies = _policies(arguments)  # first: to find the window, all may have to be read
    return replace(
        setup_from(arguments, sources),
        policies=tuple(policies),
        stories=arguments.stories if arguments.html else 0,
        shared_memory=arguments.shared_memory,
        own_counter=arguments.counter == "own",
    )


def _jobs(arguments: argparse.Namespace, sources: Sequence[Source]) -> int:
    """Return the number of processes. Raises ``InputError`` if a shared memory is to be in several."""
    if not arguments.shared_memory:
        return jobs_for(arguments.jobs, sources)
    if arguments.on is not None:
        raise InputError(f"--shared-memory is in one process: drop --on {arguments.on}")
    if arguments.jobs not in (None, 1):
        raise InputError(f"--shared-memory is in one process: drop --jobs {arguments.jobs}")
    return 1


def _policies(arguments: argparse.Namespace) -> list[Policy]:
    from chatstack.workbench.replay.policies import policies_for

    policies = policies_for(arguments.pipeline, arguments.policy)
    if arguments.peers:
        from chatstack.workbench.replay.peers import peer_policies

        policies += peer_policies()
    return policies


def _report(
    outcome: Outcome, setup: Setup, arguments: argparse.Namespace, files: Sequence[str], messages: Console
) -> None:
    from chatstack.workbench.replay.report import report_json, report_of, with_stories
    from chatstack.workbench.replay.table import (
        print_table,
        report_broken,
        report_dearest,
        report_faults,
        report_left_out,
        report_over,
        report_table,
    )

    tools: Path | None = arguments.tools
    report = report_of(outcome, setup, files, None if tools is None else str(tools))
    target: str | None = arguments.json
    print_table(report_table(outcome, setup), messages if target == STDOUT else make_console())
    told = [*report_faults(outcome), *report_over(outcome, setup)]
    if dearest := report_dearest(outcome):
        told += ["Highest cost of one conversation (sending everything = 1):", *dearest]
    told += [*outcome.recorded.told(setup.counter.name), *report_left_out(outcome)]
    for line in (*told, *report_broken(outcome)):
        messages.print(line, soft_wrap=True)
    if target is not None:
        write_figures(target, report_json(report))
    page: Path | None = arguments.html
    if page is not None:
        from chatstack.workbench.replay.page import page_of

        write("--html", page, page_of(with_stories(report, outcome)))
