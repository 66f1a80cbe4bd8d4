"""The view itself: a log that scrolls, and below it the conversations, which are drawn again as they change."""

from __future__ import annotations

import logging
import sys
import threading
import time
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from chatstack import semconv
from chatstack.cli.terminal import make_console, printable
from chatstack.errors import WiringError
from chatstack.telemetry.events import ProgressEvent
from chatstack.workbench.live.conversations import Conversations
from chatstack.workbench.live.wording import entry, hanging, rest, rows, window

_REDRAWN_PER_SECOND = 8
_logger = logging.getLogger(semconv.SCOPE)


class LiveView:
    """Shows running conversations in the terminal: a listener for ``ProgressReporter``::

        with LiveView() as view:
            async with ChatStack(provider).use(ProgressReporter, on_progress=view).open() as client: ...

    Edits, warnings, failures and turns that ended are lines of a log, which stays. Below it stand ``most``
    conversations, running ones before others: how full the window is, as counted by a ``ContextWindowGuard``, the model
    or tool that is being waited for, and the edits so far; the others are counted in one line. Without a guard, the
    tokens that the provider reported are shown instead. Close the client inside: that delivers the last events.

    Outside of the ``with``, and where the output cannot be redrawn (no terminal, a dumb one, or ``NO_COLOR``), there is
    the log alone, without any control code, each turn with its bar. The view goes to standard error, unless ``console``
    is another one; the program's own output, in whole lines, scrolls with the log. If no logging is set up, Python
    would print warnings on standard error, too: the view suppresses that while it is shown. Any number of clients may
    share one view, from any thread.
    """

    def __init__(self, console: Console | None = None, *, most: int = 4) -> None:
        if type(most) is not int or most < 1:  # pyright: ignore[reportUnnecessaryComparison]
            raise WiringError(f"LiveView: most={most!r} must be a whole number greater than 0")
        self._console = make_console(stderr=True) if console is None else console
        self._most = most
        self._conversations = Conversations()
        self._lock = threading.RLock()  # never held while printing: the console has locks of its own
        # One print or redraw at a time: each first moves the cursor up, over what the last one drew.
        self._printing = threading.RLock()
        self._live: Live | None = None
        self._quiet: logging.Handler | None = None
        self._is_over = threading.Event()

    @property
    def moves(self) -> bool:
        """True if conversations are redrawn as they change; False for the log alone."""
        return self._console.is_interactive and not self._console.no_color

    def __call__(self, event: ProgressEvent) -> None:
        """Take in an event."""
        with self._lock:
            conversation = self._conversations.take(event)
            said = entry(event, conversation, self._console)
            if said is not None and event.kind == "turn_ended" and self._live is None:
                said = Text("\n").join([said, *window(conversation, self._console)])
        if said is not None:
            self._print(said)

    def note(self, text: str) -> None:
        """Add a line of the program's own to the log."""
        self._print(hanging(Text(), Text(printable(text)), self._console))

    def __enter__(self) -> Self:
        if self._live is not None:
            raise WiringError("LiveView: it is shown already")
        if self.moves:
            live = Live(
                self,
                console=self._console,
                auto_refresh=False,
                # What is meant for a file stays out of the terminal.
                redirect_stdout=_is_terminal(sys.stdout),
                redirect_stderr=_is_terminal(sys.stderr),
            )
            live.start()
            self._live, self._is_over = live, threading.Event()
            arguments = live, self._is_over
            threading.Thread(target=self._redraw, args=arguments, name="chatstack-live", daemon=True).start()
        if not _logger.hasHandlers():
            self._quiet = _errors_alone()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._printing:
            live, self._live = self._live, None
            if self._quiet is not None:
                _logger.removeHandler(self._quiet)
                self._quiet = None
            if live is not None:
                self._is_over.set()
                live.stop()

    def _print(self, lines: Text) -> None:
        with self._printing:
            self._console.print(lines if self._live is not None else Text(lines.plain))  # bold is a control code too

    def _redraw(self, live: Live, is_over: threading.Event) -> None:
        while not is_over.wait(1 / _REDRAWN_PER_SECOND):
            with self._printing:
                if not is_over.is_set():
                    live.refresh()

    def __rich__(self) -> Group:
        """Return the conversations as they are now."""
        console = self._console
        with self._lock:
            latest = self._conversations.latest(self._most)
            drawn = rows(latest, console, now=time.time())
            room = console.height - 3  # a line above, one for the others, and one for the cursor
            while len(drawn) > 1 and sum(map(len, drawn)) > room:
                del drawn[0], latest[0]
            others, running = self._conversations.others(latest)
        lines = [line for row in drawn for line in row]
        if others:
            lines.append(rest(others, running, console))
        if lines:
            lines.insert(0, Text())
        return Group(*lines)


def _errors_alone() -> logging.Handler:
    """Return a handler that keeps the standard logging, if nothing is set up, from repeating warnings; errors pass."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.ERROR)
    _logger.addHandler(handler)
    return handler


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()
