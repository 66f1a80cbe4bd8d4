"""Output of the demo: live progress, then a table of the tokens that were sent beside those of the full requests."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from chatstack.cli.terminal import counted, printable
from chatstack.telemetry.events import ProgressEvent
from chatstack.workbench.demo.ledger import Call, Ledger
from chatstack.workbench.live.view import LiveView
from chatstack.workbench.live.wording import edit_sizes

_BAR_WIDTH = 20
_LIVE_WIDTH = 46


class TurnProgress:
    """One line for every finished turn, with the edits and warnings of the layers; meanwhile a progress bar.

    ``tell`` takes the events of a ``ProgressReporter``, ``heard`` the words of the answer; without a terminal, as in a
    pipe, there is no bar. The two come from different threads, and words may be ahead of events: words only move the
    bar, and the lines that stay are made of events alone.
    """

    def __init__(self, console: Console, turns: Sequence[str]) -> None:
        self._turns = turns
        self._started = 0
        self._tools = 0
        self._answer = ""
        self._remarks: list[Text] = []
        self._bar = Progress(
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
            refresh_per_second=20,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=len(turns))

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def heard(self, text: str) -> None:
        """Show the answer as it is written."""
        self._answer += text
        if text:
            self._describe(self._answer[-_LIVE_WIDTH:])

    def tell(self, event: ProgressEvent) -> None:
        """Take in an event."""
        if event.kind == "turn_started":
            self._started += 1
            self._tools, self._answer, self._remarks = 0, "", []
        elif event.kind == "tool_started":
            self._tools += 1
            self._describe(event.name)
        elif event.kind == "model_call_started":
            self._describe(f"asking {event.name}")
        elif event.kind == "warning":
            self._remarks.append(Text(f"! {event.name}: {printable(event.message)}", style="yellow"))
        elif event.kind == "edit":
            self._remarks.append(Text(f"* {event.name}: {edit_sizes(event)}", style="cyan"))
        elif event.kind == "turn_ended":
            self._print(event)

    @property
    def _turn(self) -> str:
        return self._turns[self._started - 1] if 0 < self._started <= len(self._turns) else ""

    def _describe(self, what: str) -> None:
        self._bar.update(self._task, description=f"{self._turn}: {printable(what)[:_LIVE_WIDTH]}")

    def _print(self, event: ProgressEvent) -> None:
        calls, tokens = int(event.numbers["rounds"]), int(event.numbers["input_tokens"])
        asked, used = counted(calls, "model call"), counted(self._tools, "tool")
        said = event.error or f"{asked}, {used}, {tokens:>5,} tokens in all"
        self._bar.update(self._task, completed=self._started)
        place = f"{self._started:>3}/{len(self._turns)}  "
        style = "red" if event.error else ""
        self._bar.console.print(Text.assemble(place, (f"{self._turn:<12}", "bold"), (said, style)))
        for remark in self._remarks:
            self._bar.console.print(Padding(remark, (0, 0, 0, 8), expand=False))


class LiveTurns(LiveView):
    """The same in a ``LiveView``, with each question above its events; the words of the answers are not shown."""

    def __init__(self, console: Console, questions: Sequence[str]) -> None:
        super().__init__(console)
        self._questions = iter(questions)

    def heard(self, text: str) -> None:
        """Do nothing: the words come from another thread than the events."""

    def tell(self, event: ProgressEvent) -> None:
        """Take in an event."""
        if event.kind == "turn_started":
            self.note(f"> {next(self._questions, '')}")
        self(event)


def comparison(ledger: Ledger, turns: Sequence[str], console: Console) -> Table:
    """Return a table with a row for every turn: each call's tokens, as sent and in full, and a bar for the last one."""
    largest = max((call.whole_tokens for call in ledger.calls), default=1)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_footer=True)
    table.add_column("turn", footer="all calls")
    table.add_column("sent, call by call", justify="right", footer=f"{ledger.sent_tokens:,}")
    table.add_column("in full", justify="right", footer=f"{ledger.whole_tokens:,}")
    full, cut = ("#", ".") if console.options.ascii_only else ("█", "░")
    table.add_column(Text(f"last: {full} sent, {cut} left out"), no_wrap=True)
    for turn, calls in zip(turns, ledger.turns(), strict=False):
        edited = any(call.was_edited for call in calls)
        table.add_row(
            printable(turn),
            Text(" ".join(f"{call.sent_tokens:>5,}" for call in calls), style="cyan" if edited else ""),
            " ".join(f"{call.whole_tokens:>5,}" for call in calls),
            _bar(calls[-1], largest, full, cut) if calls else "",
        )
    return table


def verdict(ledger: Ledger, *, window_tokens: int | None, turns: Sequence[str]) -> list[str]:
    """Return the outcome in sentences. ``window_tokens`` is the model's context window, if known."""
    if not ledger.calls:
        return ["Nothing was sent."]
    sent, whole, cost = ledger.sent_tokens, ledger.whole_tokens, ledger.overhead
    said = [f"Sent: {sent:,} tokens in {counted(len(ledger.calls), 'call')}, {_compared(sent, whole)} in full."]
    if ledger.summary_calls:
        said.append(
            f"Summaries: {len(ledger.summaries)} in {counted(ledger.summary_calls, 'call')} of their own, "
            f"{cost.input_tokens:,} tokens read and {cost.output_tokens:,} written (overhead_usage); with what they "
            f"read, {_compared(sent + cost.input_tokens, whole)} in full."
        )
    largest, longest = max(call.sent_tokens for call in ledger.calls), max(call.whole_tokens for call in ledger.calls)
    said.append(f"Largest call: {largest:,} tokens; in full {longest:,}.")
    refused = refused_call(ledger, window_tokens)
    if refused is not None:
        number, call = refused
        said.append(
            f"In full the conversation would have ended in {turns[call.turn]}: call {number} has "
            f"{call.whole_tokens:,} tokens, and the stand-in refuses more than {window_tokens:,}."
        )
    if sent < whole:
        said.append("The assistant itself still has the whole conversation: only what is sent was edited.")
    return said


def still_known(ledger: Ledger, question: str, answer: str) -> list[str]:
    """Return the last question, the answer, and how much of the conversation the model had been sent."""
    call = ledger.calls[-1]
    return [
        f"The user: {question}",
        f"The model: {printable(answer)}",
        f"It was sent {call.sent_questions} of {call.whole_questions} questions as they were asked"
        + ("; what came of the others it had from a summary." if ledger.summaries else "."),
    ]


def refused_call(ledger: Ledger, window_tokens: int | None) -> tuple[int, Call] | None:
    """Return the first call (counted from 1) that would not have fitted into the model's window in full."""
    if window_tokens is None:
        return None
    return next(((n, call) for n, call in enumerate(ledger.calls, 1) if call.whole_tokens > window_tokens), None)


def _compared(tokens: int, whole: int) -> str:
    if tokens == whole:
        return "the same as"
    return f"{100 * abs(whole - tokens) / whole:.0f} % {'less' if tokens < whole else 'more'} than the {whole:,}"


def _bar(call: Call, largest: int, full: str, cut: str) -> Text:
    whole = round(_BAR_WIDTH * call.whole_tokens / largest)
    sent = min(whole, max(1, round(_BAR_WIDTH * call.sent_tokens / largest)))
    return Text.assemble((full * sent, "green"), (cut * (whole - sent), "dim"))
