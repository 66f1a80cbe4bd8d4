"""The run of the demo: one conversation about a dozen cities through a stack, and a report of the outcome."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from chatstack.cli.terminal import make_console, printable
from chatstack.errors import ChatStackError
from chatstack.layers.clearer import ToolResultClearer
from chatstack.layers.guard import ContextWindowGuard
from chatstack.layers.progress import ProgressReporter
from chatstack.layers.summarizer import Summarizer
from chatstack.providers.registry import PROVIDERS
from chatstack.stack.entries import named
from chatstack.stack.recipe import BuiltClient, ChatStack
from chatstack.telemetry.emission import Telemetry
from chatstack.tokens.counter import CharCounter
from chatstack.tools.invoker import FunctionInvoker
from chatstack.values.messages import Message
from chatstack.values.requests import ChatOptions
from chatstack.workbench.demo.ledger import Ledger, RequestScale
from chatstack.workbench.demo.show import LiveTurns, TurnProgress, comparison, still_known, verdict
from chatstack.workbench.demo.span_tree import PROJECT, SpanRecorder, span_tree
from chatstack.workbench.demo.stand_in import StandIn
from chatstack.workbench.demo.travel import CITIES, INSTRUCTIONS, LOOKING_BACK, TOOLS, question

if TYPE_CHECKING:
    from chatstack.providers.openai import OpenAIChatClient
    from chatstack.providers.sdk import SdkClient
    from chatstack.providers.sdk_provider import SdkProvider

    Progress: TypeAlias = TurnProgress | LiveTurns
    Provider: TypeAlias = OpenAIChatClient | SdkProvider[SdkClient]

CLEAR_TOKENS = 1_100
"""Threshold for clearing old tool results. All limits are so low that a dozen cities do not fit."""
SUMMARIZE_TOKENS = 1_400
"""Threshold for summarizing the oldest turns."""
GUARD_TOKENS = 1_800
"""The guard's limit on the tokens of a request."""
STAND_IN_TOKENS = 2_200
"""The stand-in's context window. The margin above the guard's limit covers errors of the guard's estimate."""
TURNS = (*CITIES, "at the end")
"""The subjects of the user's questions, in order."""
_WARN_AT = 0.75
_ANSWER_TOKENS = 400
"""Maximum tokens of an answer, for APIs that require a limit. It comes on top of the guard's limit."""
_SECONDS_PER_WORD = 0.003
LIVE_SECONDS_PER_WORD = 0.04
"""The stand-in's pace in the live view: the whole demo takes about twenty seconds."""
QUESTIONS = (*map(question, CITIES), LOOKING_BACK)
"""The user's questions, in order."""


async def run_demo(
    provider_name: str | None = None,
    model: str | None = None,
    base_url: str | None = None,
    *,
    every_turn: bool = False,
    live: bool = False,
    otlp: str | None = None,
) -> int:
    """Run the demo against the stand-in, or against a real model if one is named; print everything and return 0.

    With ``otlp`` its spans go to a dashboard at that address, too; 1 if nobody takes them there. ``live`` shows the
    conversation in a ``LiveView``, on a terminal slowly enough to follow it. Everything up to then is shown also when a
    call fails; the ``ProviderError`` is raised again.
    """
    console, recorder, ledger = make_console(), SpanRecorder(), Ledger(CharCounter())
    progress = LiveTurns(console, QUESTIONS) if live else TurnProgress(console, TURNS)
    is_watched = isinstance(progress, LiveTurns) and progress.moves
    pace = LIVE_SECONDS_PER_WORD if is_watched else _SECONDS_PER_WORD
    async with AsyncExitStack() as closing:
        provider: Provider
        if model is None:
            stand_in = closing.enter_context(StandIn(window_tokens=STAND_IN_TOKENS, seconds_per_word=pace))
            provider, window = await closing.enter_async_context(stand_in.client()), STAND_IN_TOKENS
            whose = f"a stand-in that answers by rules, not a model; this command runs it at {stand_in.base_url}"
        else:
            provider, window = PROVIDERS[provider_name or "openai"].load()(model, base_url=base_url), None
            closing.push_async_callback(provider.aclose)
            # The server's name, never the base_url as given: an address can hold a key.
            whose = f"{model} of {provider.info.name} at {provider.info.server_address}:{provider.info.server_port}"
        services: dict[type, object] = {Telemetry: recorder.telemetry}
        reserved = _ANSWER_TOKENS if provider.info.default_max_tokens else 0
        client = _stack(provider, ledger, progress, reserved).build(services.__getitem__)
        _introduce(console, whose, client, reserved)
        try:
            with progress:
                async with client:  # closing it delivers the last progress events
                    answer = await _converse(client, progress, ledger, reserved)
        except ChatStackError:
            _show_spans(console, recorder, every_turn=every_turn)
            raise
        _show_known(console, ledger, answer, every_summary=model is not None)
        _show_spans(console, recorder, every_turn=every_turn)
        _show_tokens(console, ledger, window)
    return 0 if otlp is None or _show_sent(console, recorder, otlp) else 1


def _stack(provider: Provider, ledger: Ledger, progress: Progress, reserved: int) -> ChatStack:
    most, warn_at = GUARD_TOKENS + reserved, _WARN_AT
    return (
        ChatStack(provider)
        .use(ProgressReporter, on_progress=progress.tell, agent_name="travel-assistant")
        .use(FunctionInvoker, tools=TOOLS)
        .use(named("before the context layers", RequestScale), weigh=ledger.before)
        .use(ToolResultClearer, trigger={"tokens": CLEAR_TOKENS}, keep={"messages": 3}, clear_at_least=200)
        .use(Summarizer, max_tokens=SUMMARIZE_TOKENS, keep_recent_turns=3)
        .use(ContextWindowGuard, max_context_tokens=most, warning_threshold=warn_at, prune_on_overflow=True)
        .use(named("behind them", RequestScale), weigh=ledger.behind)
    )


async def _converse(client: BuiltClient, progress: Progress, ledger: Ledger, reserved: int) -> str:
    """Run a user turn per city, then one about the first; return the last answer.

    The history grows by all that each turn adds, and is never shortened here.
    """
    history: list[Message] = []
    options, answer = ChatOptions(instructions=INSTRUCTIONS, max_tokens=reserved or None), ""
    for asked in QUESTIONS:
        history.append(Message.user(asked))
        async with client.get_streaming_response(history, options=options, conversation_id="demo") as stream:
            async for update in stream:
                progress.heard(update.text)
            response = await stream.response()
        ledger.answered(response)
        history.extend(response.messages)
        answer = response.text
    return answer


def _introduce(console: Console, whose: str, client: BuiltClient, reserved: int) -> None:
    room = f" (the last one with room for an answer of {reserved:,})" if reserved else ""
    console.print(Text("chatstack demo", style="bold"))
    console.print(
        f"A travel assistant is asked about {len(CITIES)} cities in one conversation, and at the end about the first "
        "one again. A city takes two tools and about three model calls, and every call sends the conversation so far: "
        f"each is longer than the one before. Three layers keep them short, each from another size on{room}:\n"
        f"  {CLEAR_TOKENS:,} tokens: ToolResultClearer clears old tool results\n"
        f"  {SUMMARIZE_TOKENS:,} tokens: Summarizer folds the oldest turns into one summary\n"
        f"  {GUARD_TOKENS + reserved:,} tokens: ContextWindowGuard leaves out the oldest; it warns at {_WARN_AT:.0%} "
        "of it\n"
    )
    console.print(Text.assemble(("Model: ", "bold"), printable(whose)))
    console.print(Text("Stack, outermost first:", style="bold"))
    for line in printable(repr(client), lines=True).splitlines():
        console.print(_hanging(line, "`- " if console.options.ascii_only else "└ "))
    console.print("RequestScale is the demo's own layer: it weighs what reaches those three, and what leaves them.")
    _heading(console, "The conversation, live")


def _hanging(line: str, mark: str) -> Table:
    """Return a line of the drawing of a stack, with a hanging indent."""
    drawn = line.lstrip(" └")
    indent = " " * (line.index(drawn) - (2 if "└" in line else 0))
    row = Table.grid()
    row.add_row(f"  {indent}{mark if '└' in line else ''}", drawn)
    return row


def _show_known(console: Console, ledger: Ledger, answer: str, *, every_summary: bool) -> None:
    _heading(console, "What is still known at the end")
    for line in still_known(ledger, LOOKING_BACK, answer):
        console.print(line)
    number = len(ledger.summaries)
    for place, summary in enumerate(ledger.summaries, 1):
        if every_summary or place == number:
            console.print(f"\nSummary {place} of {number}:")
            console.print(Padding(Text(printable(summary, lines=True), style="cyan"), (0, 0, 0, 2)))


def _show_spans(console: Console, recorder: SpanRecorder, *, every_turn: bool) -> None:
    _heading(console, "The spans, as a dashboard gets them")
    console.print(span_tree(recorder.spans(), titles=TURNS, every_turn=every_turn))


def _show_tokens(console: Console, ledger: Ledger, window: int | None) -> None:
    _heading(console, "Tokens of each model call, as sent and in full")
    console.print(comparison(ledger, TURNS, console))
    if window is None:
        console.print("Both are estimates of four characters to a token; the spans hold what the server counted.")
    console.print()
    for sentence in verdict(ledger, window_tokens=window, turns=TURNS):
        console.print(sentence)
    console.print(
        "\nNext: --all-spans shows every span, --otlp URL sends them to a dashboard, --model NAME takes a real model. "
        "In a checkout, docs/tutorial.md builds this assistant step by step."
    )


def _show_sent(console: Console, recorder: SpanRecorder, url: str) -> bool:
    """Send the spans, and say whether they arrived. Of the address only the server is shown: it can hold a key."""
    from chatstack.workbench.demo.otlp import send

    parts, spans = urlsplit(url), recorder.spans()
    server = printable(f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else ""))
    is_sent = send(spans, url)
    if is_sent:
        console.print(f"Sent {len(spans)} spans to {server}: project {PROJECT}, conversation demo.")
    else:
        console.print(Text(f"No server accepted the spans at {server}. Is it running?", "red"))
    return is_sent


def _heading(console: Console, text: str) -> None:
    console.print(Text(f"\n{text}", style="bold"))
