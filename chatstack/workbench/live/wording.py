"""How events and conversations are put into words and bars: lines that fit, in any encoding, and without colour."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from chatstack.cli.terminal import printable
from chatstack.telemetry.events import ProgressEvent
from chatstack.workbench.live.conversations import Conversation, count, number, what_was_done

_BAR = 16
_LABEL = 12
_NAME = 40
_MESSAGE = 600
_FULL = 0.8
"""From here on a bar is no longer green. Only the colour: what is near the limit, the guard says."""


def entry(event: ProgressEvent, conversation: Conversation, console: Console) -> Text | None:
    """What the log says of an event: of edits, warnings, failures, and turns that ended; of others nothing."""
    said = _said(event, conversation, console)
    if said is None:
        return None
    mark, text, style = said
    whose = _short(_named(conversation), _NAME, console)
    return hanging(Text(f"{mark} ", style), Text.assemble((whose, "bold"), "  ", (text, style)), console)


def _said(event: ProgressEvent, conversation: Conversation, console: Console) -> tuple[str, str, str] | None:
    """The mark, the words and the style of what is said of an event."""
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
    """What a turn took. A loop of turns counts its iterations, a turn its model calls and their tokens."""
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
    """What an edit left of tokens and messages, and how many tool results it cleared and shortened."""
    sizes = ((what, count(event, f"{what}_before"), count(event, f"{what}_after")) for what in ("tokens", "messages"))
    found = [f"{before:,} -> {after:,} {what}" for what, before, after in sizes if before != after]
    for done in ("cleared", "shortened"):
        if results := count(event, f"tool_results_{done}"):
            found.append(f"{counted(results, 'result')} {done}")
    return ", ".join(found) or "the same size"


def counted(number: int, word: str) -> str:
    """So many of them."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def rows(conversations: Iterable[Conversation], console: Console, *, now: float) -> list[list[Text]]:
    """Each conversation in two lines, in more where they are short: its window, then what it does and what was done.

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
    """How full the window of a conversation is, below an entry of the log; nothing where there is no guard."""
    return _flow(_window(conversation, console), console, indented=True) if conversation.window else []


def rest(others: int, running: int, console: Console) -> Text:
    """The conversations for which there is no room."""
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
    """How full the window is. Without a guard nobody knows, so what the provider has read is all there is."""
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
        # A summary asks a model of its own: what is being waited for is the summary.
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
    """The tenths only while they matter."""
    seconds = max(0.0, seconds)
    return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:,.0f} s"


def _flow(pieces: Iterable[Text], console: Console, *, indented: bool = False) -> list[Text]:
    """Pieces side by side, two columns apart; what does not fit goes on below, indented."""
    indent = _indent(console)
    lines, line = list[Text](), Text(indent if indented else "")
    is_empty = True
    for piece in pieces:
        if not is_empty and line.cell_len + 2 + piece.cell_len > console.width:
            lines.append(line)
            line, is_empty = Text(indent), True
        if line.cell_len + piece.cell_len > console.width:  # it would not fit on any
            piece = Text(_short(piece.plain, console.width - line.cell_len, console), piece.style)
        line.append("" if is_empty else "  ").append_text(piece)
        is_empty = False
    return [_stripped(each) for each in (*lines, line)]


def hanging(mark: Text, text: Text, console: Console) -> Text:
    """Text behind its mark; what does not fit on the first line goes on indented."""
    first, *more = text.wrap(console, max(1, console.width - mark.cell_len)) or [Text()]
    lines = [Text.assemble(mark, first), *(Text.assemble(_indent(console), line) for line in more)]
    return Text("\n").join(map(_stripped, lines))


def _indent(console: Console) -> str:
    return "  " if console.width > 8 else ""


def _stripped(line: Text) -> Text:
    line.rstrip()
    return line


def _short(text: str, width: int, console: Console) -> str:
    """Outside text, no wider than that, in letters that can be shown; dots stand for what is missing."""
    text = printable(text[: 4 * max(1, width)])  # some letters take no room, so their number is bounded too
    text = text.encode(console.encoding, "replace").decode(console.encoding)
    if cell_len(text) <= width:
        return text
    dots = ("..." if console.options.ascii_only else "…")[: max(0, width)]
    return set_cell_size(text, max(0, width - cell_len(dots))).rstrip() + dots
