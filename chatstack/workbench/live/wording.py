"""Text and bars for events and conversations: lines that fit, in any encoding, and without colour."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from chatstack.cli.terminal import counted, printable
from chatstack.telemetry.events import ProgressEvent
from chatstack.workbench.live.conversations import Conversation, count, number, what_was_done

_BAR = 16
_LABEL = 12
_NAME = 40
_MESSAGE = 600
_FULL = 0.8
"""Share of the window from which a bar is no longer green. Only the colour: the guard itself warns near the limit."""


def entry(event: ProgressEvent, conversation: Conversation, console: Console) -> Text | None:
    """Return the log entry of an edit, a warning, a failure or the end of a turn; None for other events."""
    said = _said(event, conversation, console)
    if said is None:
        return None
    mark, text, style = said
    whose = _short(_named(conversation), _NAME, console)
    return hanging(Text(f"{mark} ", style), Text.assemble((whose, "bold"), "  ", (text, style)), console)


def _said(event: ProgressEvent, conversation: Conversation, console: Console) -> tuple[str, str, str] | None:
    """Return the mark, the words and the style of an event's log entry."""
    name, error = _short(event.name, _NAME, console), _ending(event.error, console)
    if event.kind == "warning":
        return "!", f"{name}: {_short(event.message, _MESSAGE, console)}", "yellow"
    if event.kind == "edit":
        return "*", f"{what_was_done(event)}: {edit_sizes(event)} ({name})", "cyan"
    if event.kind == "turn_ended":
        turn = f"turn {conversation.turns:,}" if conversation.turns else "turn"
        if event.error:
            return "x", f"{turn} {error}, {_duration(number(event, 'seconds'))}", "red"
        return "-", f"{turn}: {', '.join(_turn_numbers(event, conversation, console))}", ""
    if event.error not in ("", "cancelled") and event.kind != "edit_ended":
        return "x", f"{'tool' if event.kind == 'tool_ended' else 'model'} {name} {error}", "red"
    return None


def _turn_numbers(event: ProgressEvent, conversation: Conversation, console: Console) -> Iterator[str]:
    """Yield the numbers of a turn: of a loop, its iterations; of a turn, its model calls and their tokens."""
    for name, word in (("iterations", "iteration"), ("rounds", "model call")):
        if name in event.numbers:
            yield counted(count(event, name), word)
    yield counted(conversation.tools, "tool")
    if "input_tokens" in event.numbers:
        yield f"{count(event, 'input_tokens'):,} tokens read"
        yield f"{count(event, 'output_tokens'):,} written"
    yield _duration(number(event, "seconds"))
    if event.message:
        yield _short(event.message, _NAME, console)


def edit_sizes(event: ProgressEvent) -> str:
    """Return tokens and messages before and after an edit, and the tool results that it cleared and shortened."""
    sizes = ((what, count(event, f"{what}_before"), count(event, f"{what}_after")) for what in ("tokens", "messages"))
    found = [f"{before:,} -> {after:,} {what}" for what, before, after in sizes if before != after]
    for done in ("cleared", "shortened"):
        if results := count(event, f"tool_results_{done}"):
            found.append(f"{counted(results, 'result')} {done}")
    return ", ".join(found) or "the same size"


def rows(conversations: Iterable[Conversation], console: Console, *, now: float) -> list[list[Text]]:
    """Return each conversation in two lines, more on narrow terminals: its window, then its activity and edits.

    ``now`` is in seconds of the wall clock.
    """
    names = [(_short(_named(each), _LABEL, console), each) for each in conversations]
    widest = max((cell_len(name) for name, _ in names), default=0)
    return [
        _flow([Text(name + " " * (widest - cell_len(name)), "bold"), *_place(each, console)], console)
        + _flow(_state(each, console, now), console, indented=True)
        for name, each in names
    ]


def window(conversation: Conversation, console: Console) -> list[Text]:
    """Return the fill level of a conversation's window, for a log entry; nothing without a guard."""
    return _flow(_window(conversation, console), console, indented=True) if conversation.window else []


def rest(others: int, running: int, console: Console) -> Text:
    """Return the line for conversations that do not fit on the screen."""
    return Text(
        _short(f"and {counted(others, 'more conversation')}, {running:,} at work", console.width, console), "dim"
    )


def _named(conversation: Conversation) -> str:
    return conversation.label if printable(conversation.label).strip() else "?"


def _place(conversation: Conversation, console: Console) -> Iterator[Text]:
    yield from _window(conversation, console)
    if conversation.turns:
        yield Text(f"turn {conversation.turns:,}, round {conversation.round + 1:,}")


def _window(conversation: Conversation, console: Console) -> list[Text]:
    """Return the fill level of the window. Without a guard it is unknown: then the reported tokens are shown."""
    tokens, limit = conversation.tokens, conversation.window
    if not limit:
        return [Text(f"{conversation.reported:,} tokens read")] if conversation.reported else []
    share, width = tokens / limit, max(1, min(_BAR, console.width - 2))
    style = "green" if share < _FULL else "yellow" if share <= 1 else "red"
    filled = min(width, max(int(width * share), 1 if tokens else 0))  # full only if it is
    full, room = ("#", ".") if console.options.ascii_only else ("█", "░")
    bar = Text.assemble((full * filled, style), (room * (width - filled), "dim"))
    return [bar, Text(f"{share:>4.0%}", style), Text(f"{tokens:,} of {limit:,} tokens")]


def _state(conversation: Conversation, console: Console, now: float) -> Iterator[Text]:
    is_idle = not conversation.running and not conversation.doing
    yield Text(_doing(conversation, console, now), ("red" if conversation.error else "dim") if is_idle else "")
    for what, times in conversation.edits.items():
        yield Text(f"{what} {times:,}x", "cyan")
    if conversation.removed:
        yield Text(f"-{conversation.removed:,} tokens", "cyan")
    if conversation.warnings:
        yield Text(counted(conversation.warnings, "warning"), "yellow")


def _doing(conversation: Conversation, console: Console, now: float) -> str:
    if conversation.doing:
        # A summary calls a model of its own: the summary is what is being waited for.
        edits = (each for each in conversation.doing if each.kind == "edit")
        latest, others = next(edits, conversation.doing[-1]), len(conversation.doing) - 1
        more = f" and {others:,} more" if others else ""
        return f"{latest.kind} {_short(latest.name, _NAME, console)}{more}, {_duration(now - latest.since)}"
    if conversation.running:
        return "at work" if conversation.running == 1 else f"{conversation.running:,} turns at work"
    if conversation.error:
        return _ending(conversation.error, console)
    return f"answered, {_duration(conversation.seconds)}" if conversation.seconds else "quiet"


def _ending(error: str, console: Console) -> str:
    return error if error == "cancelled" else f"failed: {_short(error, _NAME, console)}"


def _duration(seconds: float) -> str:
    """Return a duration, with tenths only while they matter."""
    seconds = max(0.0, seconds)
    return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:,.0f} s"


def _flow(pieces: Iterable[Text], console: Console, *, indented: bool = False) -> list[Text]:
    """Place pieces side by side, two columns apart; those that do not fit go on below, indented."""
    indent = _indent(console)
    lines, line = list[Text](), Text(indent if indented else "")
    is_empty = True
    for piece in pieces:
        if not is_empty and line.cell_len + 2 + piece.cell_len > console.width:
            lines.append(line)
            line, is_empty = Text(indent), True
        if line.cell_len + piece.cell_len > console.width:  # it would not fit on any line
            piece = Text(_short(piece.plain, console.width - line.cell_len, console), piece.style)
        line.append("" if is_empty else "  ").append_text(piece)
        is_empty = False
    return [_stripped(each) for each in (*lines, line)]


def hanging(mark: Text, text: Text, console: Console) -> Text:
    """Place text behind its mark with a hanging indent."""
    first, *more = text.wrap(console, max(1, console.width - mark.cell_len)) or [Text()]
    lines = [Text.assemble(mark, first), *(Text.assemble(_indent(console), line) for line in more)]
    return Text("\n").join(map(_stripped, lines))


def _indent(console: Console) -> str:
    return "  " if console.width > 8 else ""


def _stripped(line: Text) -> Text:
    line.rstrip()
    return line


def _short(text: str, width: int, console: Console) -> str:
    """Shorten outside text to the width, in letters that can be shown, ending in dots if it was cut."""
    text = printable(text[: 4 * max(1, width)])  # some characters have no width, so their number is bounded too
    text = text.encode(console.encoding, "replace").decode(console.encoding)
    if cell_len(text) <= width:
        return text
    dots = ("..." if console.options.ascii_only else "…")[: max(0, width)]
    return set_cell_size(text, max(0, width - cell_len(dots))).rstrip() + dots
