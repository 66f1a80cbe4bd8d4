"""The common part of the commands that read recorded conversations: arguments, progress bar, files to write."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from chatstack.cli.progress_bar import Progress
from chatstack.cli.terminal import printable
from chatstack.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Generator

    from rich.console import Console

    from chatstack.values.requests import DeclaredTool
    from chatstack.workbench.replay.engines import Workers
    from chatstack.workbench.replay.outcomes import Outcome
    from chatstack.workbench.replay.reading.joining import JoinedRecordings
    from chatstack.workbench.replay.reading.recordings import BrokenLine, Recording
    from chatstack.workbench.replay.reading.sources import Source
    from chatstack.workbench.replay.setup import Setup

Item: TypeAlias = "Recording | BrokenLine"
STDOUT = "-"
_MODEL_CHARS = 80
_SMALL_BYTES = 2_000_000
"""Size of recordings, as files, below which one process is done before others have started."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what is read and how it is measured."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="recorded conversations: JSON, or JSONL with one on each line, may be gzipped; a folder of such files; "
        "an address of either, as s3://bucket/folder or https://host/file.jsonl.gz (extra 'remote'); '-' for standard "
        "input",
    )
    parser.add_argument(
        "--window",
        type=tokens,
        metavar="N",
        help="how many tokens the model takes at most (default: what the recorded model takes, if it is known)",
    )
    parser.add_argument(
        "--model",
        default="",
        metavar="NAME",
        help="model whose prices and window are used (default: the recorded models')",
    )
    parser.add_argument(
        "--tools",
        type=Path,
        metavar="FILE",
        help="JSON list of OpenAI tool schemas that go out with every call, whatever a recording declares",
    )
    parser.add_argument(
        "--pause",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="how long after one call the next one comes: a prompt cache may have gone cold by then (default: 0)",
    )
    parser.add_argument(
        "--long-cache",
        action="store_true",
        help="pay for prompt caches that live an hour, where the model has them (default: those of some minutes)",
    )
    parser.add_argument(
        "--jobs",
        type=number(1, 256, "processes"),
        metavar="N",
        help="how many processes work at it (default: one for each core)",
    )
    parser.add_argument(
        "--on",
        metavar="ENGINE",
        help="give the work to an engine that is installed: 'dask' (the plugin chatstack-dask) for --jobs workers of "
        "its own on this machine, 'dask=ADDRESS' for those of a cluster; recordings are read here",
    )


def jobs_for(wanted: int | None, sources: Sequence[Source]) -> int:
    """Return the number of processes: the wanted one, or one for each core if there is enough to do."""
    from chatstack.workbench.replay.parallel import cores

    is_small = sum(source.size_bytes for source in sources) < _SMALL_BYTES
    return wanted or (1 if is_small else cores())


def workers_for(arguments: argparse.Namespace) -> AbstractContextManager[Workers | None]:
    """Return the context of the engine that is asked for; without one, a context of None."""
    if arguments.on is None:
        return contextlib.nullcontext()
    from chatstack.workbench.replay.engines import workers_of

    return workers_of(arguments.on, arguments.jobs)


def window_for(arguments: argparse.Namespace, sources: Sequence[Source]) -> int:
    """Return the window that is asked for, or that of the model. To find the model, recordings are read once more."""
    from chatstack.tokens.windows import window_of
    from chatstack.workbench.replay.reading.recordings import Recording, read_recordings

    asked: int | None = arguments.window
    if asked is not None:
        return asked
    named: str = arguments.model
    if named:
        known = window_of(named)
        if known is None:
            raise InputError(f"--model {named!r}: its window is not known: pass --window N")
        return known
    windows: dict[str, int | None] = {}
    for item in read_recordings(sources):
        if isinstance(item, Recording) and (window := window_of(item.model)) not in windows.values():
            windows[item.model] = window
        if len(windows) > 1 or None in windows.values():
            break  # windows differ, or one is unknown: the rest cannot change that
    if not windows:
        return 1  # nothing to replay, which is reported later, with the reason
    known = next(iter(windows.values()))
    if known is not None and len(windows) == 1:
        return known
    told = ", ".join(f"{model[:_MODEL_CHARS] or 'no name'}: {window or 'unknown'}" for model, window in windows.items())
    raise InputError(f"the recordings' models do not tell one window ({told}): pass --window N")


def tools_from(path: Path | None) -> tuple[DeclaredTool, ...]:
    """Return the tool schemas in a file. Raises ``InputError``."""
    from chatstack.providers.openai.chat_wire import request_from_wire

    if path is None:
        return ()
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


def setup_from(arguments: argparse.Namespace, sources: Sequence[Source]) -> Setup:
    """Return the setup of the replay from the arguments of ``add_arguments``, without policies."""
    from chatstack.workbench.replay.measures.measuring import WireCounter
    from chatstack.workbench.replay.setup import Setup

    return Setup(
        (),
        window=window_for(arguments, sources),
        counter=WireCounter.best(),
        tools=tools_from(arguments.tools),
        model=arguments.model,
        pause_seconds=arguments.pause,
        long_cache=arguments.long_cache,
    )


def check_targets(
    targets: Mapping[str, Path | None],
    arguments: argparse.Namespace,
    sources: Sequence[Source],
    others: Sequence[Path] = (),
) -> None:
    """Refuse targets that cannot be written, would destroy the input, or overwrite each other, before any work is done.

    ``targets`` are by option.
    """
    tools: Path | None = arguments.tools
    inputs = [*others, *([tools] if tools else []), *(each.path for each in sources if each.path is not None)]
    seen: dict[Path, str] = {}
    for option, target in targets.items():
        if target is None:
            continue
        if str(target) == STDOUT:
            raise InputError(f"{option} {STDOUT}: expected the name of a file; only --json writes to standard output")
        try:
            with contextlib.suppress(FileNotFoundError):
                target.stat()
            can_be = not target.is_dir() and target.parent.is_dir()
            is_input = any(target.exists() and path.exists() and target.samefile(path) for path in inputs)
            other = seen.setdefault(target.resolve(), option)
        except (OSError, RuntimeError) as error:  # a name too long, a cycle of links
            raise InputError(f"{option} {target}: no file can be written there: {error}") from error
        if not can_be:
            raise InputError(f"{option} {target}: no file can be written there")
        if is_input:
            raise InputError(f"{option} {target}: is one of the files to read")
        if other != option:
            raise InputError(f"{option} {target}: is where {other} writes")
        _try_to_write(option, target)


def target_of(text: str | None) -> Path | None:
    """Return the file that an option names; None for standard output."""
    return None if text is None or text == STDOUT else Path(text)


def _try_to_write(option: str, target: Path) -> None:
    """Write nothing beside the target, and remove it again. Raises ``InputError`` if that cannot be done."""
    if target.exists() and not target.is_file():  # a pipe would wait for somebody who reads
        return
    try:
        part = _part_of(target)
        part.touch()
        part.unlink()
    except OSError as error:
        raise InputError(f"{option} {target}: no file can be written there: {error.strerror or error}") from error


def _part_of(target: Path) -> Path:
    """Return the file that is written first, beside the target."""
    return target.resolve().with_name(f".{os.getpid()}.part")


def write(option: str, target: Path, text: str) -> None:
    """Write a file atomically: on failure, the old file stays. Raises ``InputError`` that names the option."""
    try:
        if target.exists() and not target.is_file():  # a device, a pipe
            target.write_text(text, encoding="utf-8")
            return
        whole, part = target.resolve(), _part_of(target)
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(whole)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{option} {target}: cannot be written: {error.strerror or error}") from error


def write_figures(target: str, text: str) -> None:
    """Write the output of ``--json``: to a file, or to standard output."""
    if target == STDOUT:
        sys.stdout.write(f"{text}\n")
    else:
        write("--json", Path(target), f"{text}\n")


def replayed(
    setup: Setup,
    recordings: JoinedRecordings,
    jobs: int,
    console: Console,
    told: str,
    pick: Callable[[Iterator[Item]], Iterable[Item]] | None = None,
    workers: Workers | None = None,
) -> Outcome:
    """Replay the recordings, or those that are picked, through the policies, under a progress bar with a title.

    ``workers`` do it instead of ``jobs`` processes, if there are any. Raises ``InputError`` if there is no conversation
    among them.
    """
    from chatstack.workbench.replay.parallel import replay

    progress = Progress(console, told, recordings.size_bytes)
    with progress.shown():
        items = recordings.read(advance=progress.advance)
        picked = items if pick is None else pick(items)
        outcome = replay(setup, picked, jobs=jobs, workers=workers, on_progress=progress.done)
        if not outcome.conversations:
            reason = f"; {outcome.broken[0]}" if outcome.broken else ""
            raise InputError(f"no conversation could be read{reason}")
    return outcome


@contextmanager
def warnings_on(console: Console) -> Generator[None]:
    """Print Python warnings, such as that of an unlikely order of layers, in one line each."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        console.print(f"warning: {printable(str(message))}", soft_wrap=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def tokens(text: str) -> int:
    """Parse an argument that is a number of tokens."""
    digits = text.replace("_", "").replace(",", "")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 16 and int(digits) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens greater than 0")
    return int(digits)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return seconds


def number(least: int, most: int, what: str) -> Callable[[str], int]:
    """Return the type of an argument that is a number within bounds."""

    def parsed(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 16 and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {what}, {least} to {most}")
        return int(text)

    return parsed
