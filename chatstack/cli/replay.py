"""``chatstack replay``: recorded conversations through policies, with a progress bar and a table."""

from __future__ import annotations

import argparse
import asyncio
import json
import stat
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from chatstack.cli.terminal import make_console, printable
from chatstack.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Generator

    from rich.console import Console

    from chatstack.cli import Subparsers
    from chatstack.replay.running import Replay
    from chatstack.values.requests import DeclaredTool

_STDOUT = "-"
_REDRAW_SECONDS = 0.1
_MODEL_CHARS = 80
_DESCRIPTION = """\
Compares what stacks would send of recorded conversations. Each recorded
answer is asked for again, through every stack, with all that came before it.
No model is called: the recording answers.

These stacks are there: 'nothing' sends everything as it is, 'guard' leaves out
the oldest messages that do not fit the window, 'sliding-window' sends the
newest that fit, 'rolling-masking' the ten newest tool results,
'batch-clearing' clears all but three when the window is full; 'ours' is what we
recommend: it clears, then drops, in one edit, and keeps the names that were in
it. --policy picks some of them, --pipeline adds yours.

Costs are those of input tokens with a prompt cache that lives from one call
to the next. Found are the values in the recorded tool calls that were still
in what was sent.
"""
_EPILOG = """\
A conversation is an object with OpenAI chat messages, or the bare list:
  {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello"}, ...]}

A stack for --pipeline is the list of its layers, outermost first; as TOML:
  [[layers]]
  use = "ContextWindowGuard"
  max_context_tokens = 4000
  prune_on_overflow = true

example:
  chatstack replay talks.jsonl.gz --window 8000 --pipeline mine.toml

exit codes: 0 all was read, 1 some of it could not be, 2 nothing was done
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
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        type=Path,
        help="recorded conversations: JSON, or JSONL with one on each line; may be gzipped",
    )
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
        help="one of the stacks that are there; may be given again (default: all of them)",
    )
    parser.add_argument(
        "--window",
        type=_positive,
        metavar="N",
        help="how many tokens the model takes at most (default: what the recorded model takes, if it is known)",
    )
    parser.add_argument(
        "--tools", type=Path, metavar="FILE", help="JSON list of OpenAI tool schemas that go out with every call"
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write the figures there, too, as JSON; '-' writes them to standard output, and the table to standard "
        "error",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Replay, report, and return 0, or 1 when something could not be read.

    Raises ``ChatStackError`` for whatever keeps it from starting, before anything runs.
    """
    files: list[Path] = arguments.files
    target: str | None = arguments.json
    messages = make_console(stderr=True)
    from chatstack.replay.recordings import check_readable

    size_bytes = check_readable(files)
    if target is not None and target != _STDOUT:
        _check_target(Path(target), [*files, *arguments.pipeline])
    with _warnings_on(messages):
        replay = _prepared(arguments)
        _go(replay, files, size_bytes, messages)
    if not replay.conversations:
        reason = f"; {replay.broken[0]}" if replay.broken else ""
        raise InputError(f"no conversation could be read{reason}")
    _report(replay, files, arguments.tools, target, messages)
    return 1 if replay.broken_count else 0


def _prepared(arguments: argparse.Namespace) -> Replay:
    from chatstack.replay.measuring import WireCounter
    from chatstack.replay.policies import policies_for
    from chatstack.replay.running import Replay

    policies = policies_for(arguments.pipeline, arguments.policy)
    tools: Path | None = arguments.tools
    declared = () if tools is None else _read_tools(tools)
    window: int | None = arguments.window
    return Replay(
        policies,
        window=_window_of(arguments.files) if window is None else window,
        counter=WireCounter.best(),
        tools=declared,
    )


def _go(replay: Replay, files: Sequence[Path], size_bytes: int, console: Console) -> None:
    """Run it all under a progress bar: bytes read tell how far it is, as nobody knows how many conversations come."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from chatstack.replay.recordings import read_recordings

    total = max(1, size_bytes)
    columns = (TextColumn("replaying"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[done]}"))
    # Drawn from here and not from a thread of its own: that thread's CPU time would count as the policies'.
    bar = Progress(*columns, TimeRemainingColumn(), console=console, auto_refresh=False)
    task = bar.add_task("", total=total, done="")
    redraw = _throttled(bar.refresh)

    def advance(position: int) -> None:
        bar.update(task, completed=position)

    def on_conversation(done: int) -> None:
        bar.update(task, done=f"{done:,} conversation{'s' if done != 1 else ''}")
        redraw()

    # It stays on the screen only when there is something to show for it; an error stands alone, on its own line.
    bar.live.transient = True
    bar.start()
    try:
        asyncio.run(replay.run(read_recordings(files, advance=advance), on_conversation))
        bar.update(task, completed=total)
        bar.live.transient = not replay.conversations
    finally:
        if bar.live.transient:
            bar.live.stop()
        else:
            bar.stop()


def _report(replay: Replay, files: Sequence[Path], tools: Path | None, target: str | None, messages: Console) -> None:
    from chatstack.replay.report import report_broken, report_faults, report_json, report_table

    text = "" if target is None else report_json(replay, files, tools)
    if target == _STDOUT:
        sys.stdout.write(f"{text}\n")
    elif target is not None:
        try:
            Path(target).write_text(f"{text}\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"--json {target}: cannot be written: {error.strerror or error}") from error
    (messages if target == _STDOUT else make_console()).print(report_table(replay))
    for line in (*report_faults(replay), *report_broken(replay)):
        messages.print(line, soft_wrap=True)


def _window_of(files: Sequence[Path]) -> int:
    """The window of the model that the recordings name; they are read through for it once more."""
    from chatstack.replay.recordings import Recording, read_recordings
    from chatstack.tokens.windows import window_of

    windows: dict[str, int | None] = {}
    for item in read_recordings(files):
        if isinstance(item, Recording) and (window := window_of(item.model)) not in windows.values():
            windows[item.model] = window
        if len(windows) > 1 or None in windows.values():
            break  # the rest cannot change that there is not one window
    if not windows:
        return 1  # nothing to replay, which is said later, with the reason
    known = next(iter(windows.values()))
    if known is not None and len(windows) == 1:
        return known
    told = ", ".join(f"{model[:_MODEL_CHARS] or 'no name'}: {window or 'unknown'}" for model, window in windows.items())
    raise InputError(f"the recordings' models do not tell one window ({told}): pass --window N")


def _read_tools(path: Path) -> tuple[DeclaredTool, ...]:
    from chatstack.providers.openai.chat_wire import request_from_wire

    try:
        # Only a regular file is opened: opening a pipe waits until somebody writes to it.
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError("not a file")
        tools: object = json.loads(path.read_text(encoding="utf-8-sig"))
        if not isinstance(tools, list):
            raise InputError("expected a list of tool schemas")
        return request_from_wire({"messages": [], "tools": cast("object", tools)}).options.tools
    except OSError as error:
        raise InputError(f"--tools {path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"--tools {path}: not UTF-8 text: byte {error.start + 1} is wrong") from error
    except json.JSONDecodeError as error:
        raise InputError(f"--tools {path}: not valid JSON: {error}") from error
    except RecursionError as error:
        raise InputError(f"--tools {path}: nested too deeply") from error
    except ValueError as error:
        raise InputError(f"--tools {path}: {error}") from error


def _check_target(target: Path, inputs: Sequence[Path]) -> None:
    """Refuse what could not be written, or would destroy what is read, before the work is done."""
    if target.is_dir() or not target.parent.is_dir():
        raise InputError(f"--json {target}: no file can be written there")
    if any(target.exists() and path.exists() and target.samefile(path) for path in inputs):
        raise InputError(f"--json {target}: is one of the files to read")


@contextmanager
def _warnings_on(console: Console) -> Generator[None]:
    """Python warnings, such as that of an order of layers which is hardly meant, as one line each."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        console.print(f"warning: {printable(str(message))}", soft_wrap=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _throttled(redraw: Callable[[], None]) -> Callable[[], None]:
    last = 0.0

    def maybe() -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _REDRAW_SECONDS:
            last = now
            redraw()

    return maybe


def _positive(text: str) -> int:
    digits = text.replace("_", "").replace(",", "")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 16 and int(digits) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens greater than 0")
    return int(digits)
