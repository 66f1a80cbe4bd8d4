"""The progress bar of the commands that read recorded conversations."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING

from chatstack.cli.terminal import counted

if TYPE_CHECKING:
    from collections.abc import Generator

    from rich.console import Console

_REDRAW_SECONDS = 0.1


class Progress:
    """A progress bar over the bytes read, because the number of conversations is not known beforehand.

    It also shows how many conversations are done. It is redrawn by the caller and not by a thread of its own: that
    thread's CPU time would count as the policies'.
    """

    def __init__(self, console: Console, verb: str, total_bytes: int) -> None:
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn(verb), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[done]}"))
        self._bar = Bar(*columns, TimeRemainingColumn(), console=console, auto_refresh=False)
        self._total = max(1, total_bytes)
        self._task = self._bar.add_task("", total=self._total, done="")
        self._redraw = _throttled(self._bar.refresh)

    def advance(self, position: int) -> None:
        """Set the number of bytes read."""
        self._bar.update(self._task, completed=position)

    def done(self, conversations: int) -> None:
        """Set the number of conversations done."""
        self._bar.update(self._task, done=counted(conversations, "conversation"))
        self._redraw()

    @contextmanager
    def shown(self) -> Generator[None]:
        """Draw the bar within the block. It is removed on an error, so that the message has its own line."""
        self._bar.live.transient = True
        self._bar.start()
        try:
            yield
            self._bar.update(self._task, completed=self._total)
            self._bar.live.transient = False
        finally:
            if self._bar.live.transient:
                self._bar.live.stop()
            else:
                self._bar.stop()


def _throttled(redraw: Callable[[], None]) -> Callable[[], None]:
    last = 0.0

    def maybe() -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _REDRAW_SECONDS:
            last = now
            redraw()

    return maybe
