"""What is known of each conversation from the events that were told of it, and of how many at most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from chatstack.lru import Lru
from chatstack.telemetry.events import ProgressEvent

REMEMBERED = 500
"""Of how many conversations something is kept. Beyond, those that began their last turn longest ago are forgotten."""


@dataclass(frozen=True, slots=True)
class Activity:
    """Something that runs: its ``kind`` is "model", "tool" or "edit". ``since`` is in seconds of the wall clock."""

    kind: str
    name: str
    since: float


@dataclass(slots=True)
class Conversation:
    """Where a conversation stands.

    ``tokens`` is the size of what is sent, as the guard weighed it, ``window`` its limit; both are 0 without a guard.
    ``reported`` is the input of the last model call that was reported. ``edits`` counts by what was done, and
    ``removed`` is how many tokens shorter they made the request, each counted once.
    """

    label: str
    turns: int = 0
    running: int = 0
    round: int = 0
    tokens: int = 0
    window: int = 0
    reported: int = 0
    tools: int = 0
    doing: list[Activity] = field(default_factory=list[Activity])
    edits: Counter[str] = field(default_factory=Counter[str])
    removed: int = 0
    warnings: int = 0
    error: str = ""
    """Of the last turn that ended."""
    seconds: float = 0.0
    """Of the last turn that ended."""

    def take(self, event: ProgressEvent) -> None:
        """Learn from an event."""
        self.round = event.round
        match event.kind:
            case "turn_started":
                if not self.running:
                    self.tools = 0
                self.turns += 1
                self.running += 1
            case "turn_ended":
                self.running = max(0, self.running - 1)
                self.error, self.seconds = event.error, number(event, "seconds")
                if not self.running:
                    self.doing.clear()
            case "context_weighed":
                self.tokens, self.window = count(event, "input_tokens"), count(event, "window_tokens")
            case "edit":
                self.edits[what_was_done(event)] += 1
                self.removed += max(0, count(event, "tokens_before") - count(event, "tokens_after"))
                self.tokens = count(event, "tokens_after") or self.tokens
            case "warning":
                self.warnings += 1
            case "model_call_started":
                self.doing.append(Activity("model", event.name, event.at))
            case "model_call_ended":
                self._stop("model", event.name)
                self.reported = count(event, "input_tokens") or self.reported
            case "edit_started":
                self.doing.append(Activity("edit", event.name, event.at))
            case "edit_ended":
                self._stop("edit", event.name)
            case "tool_started":
                self.tools += 1
                self.doing.append(Activity("tool", event.name, event.at))
            case "tool_ended":
                self._stop("tool", event.name)
            case _:  # iterations: their number is the round
                pass

    def _stop(self, kind: str, name: str) -> None:
        """Several of the same name cannot be told apart: the one that began first is taken for the one that ended."""
        ended = next((each for each in self.doing if (each.kind, each.name) == (kind, name)), None)
        if ended is not None:
            self.doing.remove(ended)


class Conversations:
    """All that were told of, in the order in which their last turns began. Those without an id share one place."""

    def __init__(self) -> None:
        self._known: Lru[str | None, Conversation] = Lru(REMEMBERED)
        self._forgotten = 0

    def take(self, event: ProgressEvent) -> Conversation:
        """The conversation that an event is of, which has learnt from it."""
        key = event.conversation_id
        found = self._known.peek(key)
        if found is None:
            self._forgotten += len(self._known) == REMEMBERED
            found = Conversation(key or event.name if event.kind == "turn_started" else key or "")
            self._known.put(key, found)
        elif event.kind == "turn_started":
            self._known.move_to_end(key)
            found.label = found.label or event.name
        found.take(event)
        return found

    def latest(self, most: int) -> list[Conversation]:
        """So many of those that began a turn last, the very last one at the end; what is at work goes first."""
        at_work = [each for each in self._known.values() if each.running]
        ended = [each for each in self._known.values() if not each.running]
        chosen = {id(each) for each in [*ended, *at_work][-most:]}
        return [each for each in self._known.values() if id(each) in chosen]

    def others(self, shown: Sequence[Conversation]) -> tuple[int, int]:
        """How many there are besides those, and how many of them are at work."""
        running = sum(each.running > 0 for each in self._known.values()) - sum(each.running > 0 for each in shown)
        return len(self._known) + self._forgotten - len(shown), running


def what_was_done(event: ProgressEvent) -> str:
    """The kind of an edit, in a word: strategies of others have names that say nothing."""
    if event.name == "summarize":
        return "folded"
    if count(event, "messages_after") < count(event, "messages_before"):
        return "dropped"
    if count(event, "tool_results_cleared"):
        return "cleared"
    return "shortened" if count(event, "tool_results_shortened") else "edited"


_MOST = 10**15
"""No count of tokens, bytes or seconds is larger."""


def number(event: ProgressEvent, name: str) -> float:
    """A number of an event; 0 if it is not there, or none that can be shown."""
    value = event.numbers.get(name, 0)
    return value if abs(value) < _MOST else 0  # False for what is no number, too


def count(event: ProgressEvent, name: str) -> int:
    """A whole number of an event, 0 at least."""
    return max(0, int(number(event, name)))
