"""Events, consoles and what was shown on them, for the tests of the view."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.cells import cell_len
from rich.console import Console

from chatstack.telemetry.events import ProgressEvent, ProgressKind
from chatstack.workbench.live import LiveView
from tests.workbench.live.screen import Screen

_SECONDS = re.compile(r"[\d,.]+ s\b")


def event(
    kind: ProgressKind,
    name: str = "",
    conversation_id: str | None = "c-1",
    *,
    round: int = 0,
    message: str = "",
    error: str = "",
    numbers: Mapping[str, float] = {},
) -> ProgressEvent:
    return ProgressEvent(
        kind=kind,
        name=name,
        at=time.time(),
        conversation_id=conversation_id,
        round=round,
        message=message,
        error=error,
        numbers=numbers,
    )


def started(conversation_id: str | None = "c-1") -> ProgressEvent:
    return event("turn_started", "chat", conversation_id, numbers={"messages": 1})


def ended(conversation_id: str | None = "c-1", *, error: str = "") -> ProgressEvent:
    numbers = {"input_tokens": 950, "output_tokens": 41, "rounds": 3, "warnings": 0, "edits": 0, "seconds": 1.25}
    return event("turn_ended", "chat", conversation_id, error=error, numbers=numbers)


def weighed(tokens: int, limit: int, conversation_id: str | None = "c-1", *, round: int = 0) -> ProgressEvent:
    numbers = {"input_tokens": tokens, "window_tokens": limit, "utilization": tokens / limit}
    return event("context_weighed", "", conversation_id, round=round, numbers=numbers)


def edited(
    strategy: str, before: int, after: int, conversation_id: str | None = "c-1", *, messages: str = "", cleared: int = 0
) -> ProgressEvent:
    numbers: dict[str, float] = {"tokens_before": before, "tokens_after": after}
    if messages:
        numbers["messages_before"], numbers["messages_after"] = map(int, messages.split(" -> "))
    if cleared:
        numbers["tool_results_cleared"] = cleared
    return event("edit", strategy, conversation_id, numbers=numbers)


def warned(code: str, message: str, conversation_id: str | None = "c-1") -> ProgressEvent:
    return event("warning", code, conversation_id, message=message)


class Shown:
    """A view on a console of that size, and what it has shown."""

    def __init__(
        self,
        width: int = 80,
        height: int = 24,
        *,
        encoding: str = "utf-8",
        terminal: bool = False,
        most: int = 4,
        environment: Mapping[str, str] = {},
    ) -> None:
        self._written = io.BytesIO()
        file = io.TextIOWrapper(self._written, encoding=encoding, errors="replace", newline="", write_through=True)
        self._options: dict[str, Any] = {
            "file": file,
            "width": width,
            "height": height,
            "force_terminal": terminal,
            "markup": False,
            "emoji": False,
            "highlight": False,
            "_environ": {"TERM": "xterm-256color", **environment},
        }
        self.console = Console(**self._options)
        self.view = LiveView(self.console, most=most)

    @property
    def text(self) -> str:
        """All of it, control codes too."""
        return self._written.getvalue().decode()

    @property
    def lines(self) -> list[str]:
        """Its lines, each duration as ``T``."""
        return [timeless(line) for line in self.text.splitlines()]

    @property
    def rows(self) -> list[str]:
        """The conversations as they would be drawn now."""
        with self.console.capture() as drawn:
            self.console.print(self.view)
        above, *rows = drawn.get().splitlines() or [""]
        assert above == ""
        return [timeless(line) for line in rows]

    def tell(self, *events: ProgressEvent) -> None:
        for each in events:
            self.view(each)


@contextmanager
def on_screen(shown: Shown) -> Generator[Screen]:
    """Show the view, and when it has ended, what the terminal shows then."""
    screen = Screen(shown.console.width, shown.console.height)
    with shown.view:
        yield screen
    screen.write(shown.text.replace("\n", "\r\n"))  # as the terminal's own driver does


def timeless(line: str) -> str:
    return _SECONDS.sub("T", line)


def widest(lines: list[str]) -> int:
    return max(map(cell_len, lines), default=0)
