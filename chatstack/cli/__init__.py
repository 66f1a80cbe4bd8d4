"""The command line: ``chatstack COMMAND ...``.

A command is a module with ``register(subparsers)``, which adds its parser and sets ``run``, a function from the parsed
arguments to an exit code. Only the command that is asked for is imported. Exit codes: 0 all well, 1 done but not
everything could be read, 2 nothing done: an argument, a file, a missing package, nowhere to write to.

An installed distribution adds a command by an entry point in ``chatstack.commands``, whose target is such a module; it
cannot take the name of a built-in one. ``CHATSTACK_PLUGINS`` restricts which may be loaded (``chatstack.plugins``).
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn, Protocol, TypeAlias, cast

from chatstack.cli.interrupts import interrupts_kept
from chatstack.cli.terminal import missing_extra, own_version, printable
from chatstack.values.errors import ChatStackError

GROUP = "chatstack.commands"
"""The entry point group in which other distributions offer commands."""

COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": (
        "chatstack.workbench.demo.command",
        "watch a conversation outgrow its context window; needs no key",
    ),
    "doctor": ("chatstack.cli.doctor", "say what is installed, what is missing for what, what is known about a model"),
    "inspect": ("chatstack.cli.inspect", "show the stack that a config file describes, with every option"),
    "replay": ("chatstack.workbench.replay.command", "compare what stacks would send of recorded conversations"),
    "schema": ("chatstack.cli.schema", "print the JSON schema of config files, for editors"),
    "tune": ("chatstack.workbench.replay.tuning.command", "find the cheapest settings for recorded conversations"),
}
"""Each command's module, and its line in ``--help``."""

_ELSEWHERE: Mapping[str, str] = {"serve": "chatstack-gateway, in plugins/gateway of the repository"}
"""The distributions of our own that have the other commands."""

_DESCRIPTION = """\
Layers around any chat client: they shorten conversations, run tools, warn and trace. No command calls a model unless
you name one. Start with 'chatstack demo'; 'chatstack doctor' says what is missing here; 'chatstack replay' compares
policies on conversations that you recorded. 'chatstack COMMAND --help' tells more about each.
"""
_INTERRUPTED = 130
_CANNOT_WRITE = (errno.ENOSPC, errno.EIO, errno.EBADF)


class OneLineParser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line, free of control characters."""

    def error(self, message: str) -> NoReturn:
        raise SystemExit(_complain(f"{message} ({self.prog} --help tells more)", self.prog))


Subparsers: TypeAlias = "argparse._SubParsersAction[OneLineParser]"  # pyright: ignore[reportPrivateUsage]


class CommandModule(Protocol):
    """A module that holds a command."""

    def register(self, subparsers: Subparsers) -> None: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors are reported in one line, without a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]  # whoever started us has closed it
        return _complain("standard output is closed, so nothing could be shown")
    try:
        with interrupts_kept():
            code = _run(arguments)
        sys.stdout.flush()
        return code
    except SystemExit as ended:  # how argparse leaves, after --help too
        return ended.code if isinstance(ended.code, int) else 0
    except ChatStackError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        _complain("interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; Python must not try to flush the rest to it at exit.
        sys.stdout = None
        return 1
    except OSError as error:  # of standard output; commands report errors of their own files themselves
        if error.errno not in _CANNOT_WRITE:
            raise
        sys.stdout = None
        return _complain(f"the output cannot be written: {error.strerror}")


def _run(arguments: list[str]) -> int:
    parser = _parser(next((each for each in arguments if not each.startswith("-")), ""))
    chosen = parser.parse_args(arguments)
    if chosen.version:
        sys.stdout.write(f"chatstack {own_version()}\n")
        return 0
    run = getattr(chosen, "run", None)
    if run is None:
        parser.print_help(sys.stderr)
        return 2
    return cast("int", run(chosen))


def command_parser(command: str) -> OneLineParser:
    """Return the parser of one command. Raises ``KeyError`` for a name that is no command."""
    _import(COMMANDS[command][0]).register(subparsers := _bare_parser().add_subparsers())
    return subparsers.choices[command]


def _parser(command: str) -> OneLineParser:
    """Return the parser: the chosen command in full, the others by name and help line only."""
    parser = _bare_parser()
    subparsers = parser.add_subparsers(metavar="COMMAND", title="commands")
    for name, (module, line) in COMMANDS.items():
        if name == command:
            _import(module).register(subparsers)
        else:
            subparsers.add_parser(name, help=line, add_help=False)
    others = dict[str, str]() if command in COMMANDS else _offered()
    if command in _ELSEWHERE and command not in others:
        parser.error(f"{command}: this command is that of {_ELSEWHERE[command]}, which is not installed here")
    for name, source in others.items():
        if name == command:
            _load(name).register(subparsers)
        else:
            subparsers.add_parser(name, help=f"(from {source})", add_help=False)
    return parser


def _bare_parser() -> OneLineParser:
    parser = OneLineParser(prog="chatstack", description=_DESCRIPTION)
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    return parser


def _offered() -> dict[str, str]:
    """Return the names of the commands of other distributions, with the distribution's. Imports none of them."""
    from importlib.metadata import entry_points

    points = sorted(entry_points(group=GROUP))
    return {each.name: each.dist.name if each.dist is not None else "" for each in points if each.name not in COMMANDS}


def _load(name: str) -> CommandModule:
    """Return another distribution's command. Raises ``WiringError`` if it may not be loaded, cannot be, or is none."""
    from chatstack import plugins  # not needed for a built-in command, and not by --help
    from chatstack.errors import WiringError

    offer = plugins.find((GROUP,), name)
    found = None if offer is None else plugins.load(offer)
    if offer is None or not callable(getattr(found, "register", None)):
        raise WiringError(
            f"{name!r} of {'nobody' if offer is None else offer.source} is no command: it has no register()"
        )
    return cast("CommandModule", found)


def _import(module: str) -> CommandModule:
    try:
        return cast("CommandModule", importlib.import_module(module))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "chatstack"):
            raise
        raise missing_extra(package, "cli" if package == "rich" else "all") from error


def _complain(message: str, program: str = "chatstack") -> int:
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]  # where it is closed, the code has to do
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{program}: error: {printable(message)}\n")
    return 2
