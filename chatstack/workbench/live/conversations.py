"""State of conversations, collected from progress events, for a bounded number of conversations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chatstack.lru import Lru
from chatstack.telemetry.events import ProgressEvent

REMEMBERED = 500
"""Maximum number of conversations kept. Beyond it, those whose last turn began longest ago are evicted."""
COUNTED = 10_000
"""Maximum number of evicted conversations that are known again when they come back, and so are counted once."""


@dataclass(frozen=True, slots=True)
class Activity:
    """A running step: its ``kind`` is "model", "tool" or "edit". ``since`` is in seconds of the wall clock."""

    kind: str
    name: str
    since: float


@dataclass(slots=True)
class Conversation:
    """The state of a conversation.

    ``tokens`` is the size of the request, as the guard counted it, and ``window`` the guard's limit; both are 0 without
    a guard. ``reported`` is the input of the last model call that reported its usage. ``edits`` counts edits by kind,
    and ``removed`` is the number of tokens that they took off the request, each counted once.
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
    edits: dict[str, int] = field(default_factory=dict[str, int])
    removed: int = 0
    warnings: int = 0
    error: str = ""
    """Error of the last turn that ended."""
    seconds: float = 0.0
    """Duration of the last turn that ended."""

    def take(self, event: ProgressEvent) -> None:
        """Update the state from an event."""
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
                done = what_was_done(event)
                self.edits[done] = self.edits.get(done, 0) + 1
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
        """End a step. Steps of the same name cannot be told apart, so the one that began first is taken."""
        ended = next((each for each in self.doing if (each.kind, each.name) == (kind, name)), None)
        if ended is not None:
            self.doing.remove(ended)


class Conversations:
    """All known conversations, in the order in which their last turns began. Those without an id share one entry."""

    def __init__(self) -> None:
        self._known: Lru[str | None, Conversation] = Lru(REMEMBERED)
        self._evicted: dict[int, None] = {}
        """Hashes of the ids of evicted conversations, in order."""
        self._long_gone = 0

    def take(self, event: ProgressEvent) -> Conversation:
        """Update the conversation of an event, and return it."""
        key = event.conversation_id
        found = self._known.peek(key)
        if found is None:
            self._make_room(key)
            found = Conversation(key or event.name if event.kind == "turn_started" else key or "")
            self._known.put(key, found)
        elif event.kind == "turn_started":
            self._known.move_to_end(key)
            found.label = found.label or event.name
        found.take(event)
        return found

    def _make_room(self, key: str | None) -> None:
        """Evict the oldest conversation if necessary, and count it until it comes back."""
        self._evicted.pop(hash(key), None)
        if len(self._known) == REMEMBERED:
            oldest, _ = self._known.popitem(last=False)
            self._evicted[hash(oldest)] = None
        if len(self._evicted) > COUNTED:
            del self._evicted[next(iter(self._evicted))]
            self._long_gone += 1

    def latest(self, most: int) -> list[Conversation]:
        """Return up to ``most`` conversations in the order of their last turns; running ones take precedence."""
        at_work = [each for each in self._known.values() if each.running]
        ended = [each for each in self._known.values() if not each.running]
        chosen = {id(each) for each in [*ended, *at_work][-most:]}
        return [each for each in self._known.values() if id(each) in chosen]

    def others(self, shown: Sequence[Conversation]) -> tuple[int, int]:
        """Return the number of conversations that are not shown, and how many of them are running."""
        running = sum(each.running > 0 for each in self._known.values()) - sum(each.running > 0 for each in shown)
        return len(self._known) + len(self._evicted) + self._long_gone - len(shown), running


def what_was_done(event: ProgressEvent) -> str:
    """Return the kind of an edit in a word: names of other authors' strategies may not say it."""
    if event.name == "summarize":
        return "folded"
    if count(event, "messages_after") < count(event, "messages_before"):
        return "dropped"
    if count(event, "tool_results_cleared"):
        return "cleared"
    shortened = count(event, "tool_results_shortened") or count(event, "tool_results_deduplicated")
    return "shortened" if shortened else "edited"


_MOST = 10**15
"""Upper bound for any count of tokens, bytes or seconds."""


def number(event: ProgressEvent, name: str) -> float:
    """Return a number of an event; 0 if it is missing or cannot be shown."""
    value = event.numbers.get(name, 0)
    return value if abs(value) < _MOST else 0  # False for NaN, too


def count(event: ProgressEvent, name: str) -> int:
    """Return a whole number of an event, at least 0."""
    return max(0, int(number(event, name)))
