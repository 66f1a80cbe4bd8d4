"""The pictures of README and ``docs``, as SVG: the stack, the spans of a turn with a warning, the walk of an edit.

Spans and walk are those of stacks that run here, around a script for a model. ``uv run poe reference`` writes them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TypeAlias

from chatstack import (
    CharCounter,
    ChatStack,
    ContextWindowGuard,
    FunctionInvoker,
    Message,
    ModelTracer,
    ProgressReporter,
    ProviderInfo,
    Summarizer,
    ToolCall,
    ToolResultClearer,
    ToolResultShaper,
    semconv,
    tool,
)
from chatstack.testing import ScriptedClient, TelemetryCapture

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"

Tree: TypeAlias = "tuple[str, list[Tree]]"

_STYLE = """<style>
text { font: 14px ui-sans-serif, system-ui, sans-serif; fill: #1f2933; }
.small { font-size: 12px; fill: #52606d; }
.name { font-weight: 600; }
.code { font-family: ui-monospace, monospace; font-size: 13px; }
.warn { fill: #9a3412; font-weight: 600; }
.edit { fill: #075985; font-weight: 600; }
</style>"""

LAYERS = (
    (ProgressReporter, "one span per turn; progress events; warnings and edits roll up to it"),
    (FunctionInvoker, "runs the tools that the model calls, and asks again"),
    (ToolResultShaper, "bounds each tool result once, when it is new"),
    (ToolResultClearer, "clears old tool results, many at a time"),
    (Summarizer, "puts one summary in the place of the oldest messages"),
    (ContextWindowGuard, "weighs what is really sent; warns; prunes if told to"),
    (ModelTracer, "one span per model call; build() puts it there"),
)
"""The layers of the drawing, outermost first."""


def svg(width: int, height: int, title: str, inside: Sequence[str]) -> str:
    """Return a picture on a ground of its own, which can be read on a dark page, too."""
    ground = f'<rect width="{width}" height="{height}" rx="8" fill="#fbfbf8" stroke="#d6d3d1"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", _STYLE, ground, *inside, "</svg>", ""])


def text(x: int, y: int, shown: str, kind: str = "") -> str:
    return f'<text x="{x}" y="{y}"{f" class={chr(34)}{kind}{chr(34)}" if kind else ""}>{escape(shown)}</text>'


def stack() -> str:
    """Return the picture of the stack: a request goes down, the answer comes up."""
    lines = [text(24, 32, "your code", "name"), text(130, 32, "get_response(...), get_streaming_response(...)", "code")]
    top = 48
    for number, (layer, told) in enumerate(LAYERS):
        y = top + number * 46
        lines.append(f'<rect x="24" y="{y}" width="692" height="36" rx="6" fill="#e6f0f5" stroke="#9fb3c8"/>')
        lines += [text(40, y + 23, layer.__name__, "name"), text(232, y + 23, told)]
    y = top + len(LAYERS) * 46
    lines.append(f'<rect x="24" y="{y}" width="692" height="36" rx="6" fill="#fdeed9" stroke="#e0b070"/>')
    lines += [text(40, y + 23, "provider", "name"), text(232, y + 23, "OpenAI, Anthropic, any server with their APIs")]
    lines.append(_arrow(736, top, y + 36))
    return svg(776, y + 56, "A stack: layers around a provider, the outermost first", lines)


def _arrow(x: int, top: int, bottom: int) -> str:
    ends = f'<path d="M{x - 5} {bottom - 8} L{x} {bottom} L{x + 5} {bottom - 8}" fill="none" stroke="#52606d"/>'
    return f'<path d="M{x} {top} V{bottom}" stroke="#52606d"/>{ends}'


CITIES = ("Lima", "Oslo", "Cairo")


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"{city}: 31 degrees. " + "Sunny, with a light wind from the north. " * 8


def span_tree() -> str:
    """Return the picture of the spans of a turn in which old results are cleared and a guard warns."""
    capture = TelemetryCapture()
    calls = [
        Message.assistant(ToolCall(f"call-{number}", "get_weather", f'{{"city": "{city}"}}'))
        for number, city in enumerate(CITIES)
    ]
    client = (
        ChatStack(ScriptedClient([*calls, "Take a light coat."], info=ProviderInfo(name="openai", model="gpt-5-mini")))
        .use(ProgressReporter, agent_name="travel")
        .use(FunctionInvoker, tools=[get_weather])
        .use(ToolResultClearer, trigger={"tokens": 240}, keep={"messages": 1}, counter=CharCounter())
        .use(ContextWindowGuard, max_context_tokens=360, counter=CharCounter())
    ).build(capture.resolve)
    asyncio.run(client.get_response("What should I wear in Lima, Oslo and Cairo?"))
    said = {span.name: span.attributes for span in capture.spans if semconv.SEVERITY in span.attributes}
    rows = list(_rows(capture.tree(), said))
    lines: list[str] = []
    for number, (depth, name, kind, told) in enumerate(rows):
        y, x = 34 + number * 30, 24 + depth * 28
        if depth:
            lines.append(f'<path d="M{x - 16} {y - 24} V{y - 5} H{x - 4}" fill="none" stroke="#9fb3c8"/>')
        lines.append(text(x, y, name, f"code {kind}".strip()))
        if told:
            lines.append(text(330, y, told, kind))
    return svg(776, 34 + len(rows) * 30, "The spans of a turn: tool calls, model calls, an edit, a warning", lines)


def _rows(
    tree: Sequence[Tree], said: Mapping[str, Mapping[str, object]], depth: int = 0
) -> Iterator[tuple[int, str, str, str]]:
    for name, inside in tree:
        about = said.get(name, {})
        kind = {"WARN": "warn", "INFO": "edit"}.get(str(about.get(semconv.SEVERITY, "")), "")
        told = str(about.get(semconv.WARNING_MESSAGE, ""))
        if kind == "edit":
            before, after = about[semconv.COMPACTION_TOKENS_BEFORE], about[semconv.COMPACTION_TOKENS_AFTER]
            told = f"edit: {before} to {after} tokens"
        yield depth, name, kind, f"warning: {told}" if kind == "warn" else told
        yield from _rows(inside, said, depth + 1)


_COLOURS = {"system": "#9aa5b1", "user": "#4098d7", "assistant": "#44b3a6", "tool": "#f0a860"}
_CELL, _STEP = 20, 24


def walk() -> str:
    """Return the picture of the requests of a conversation: two edits, and what a prompt cache can read again."""
    model = ScriptedClient(["Noted."] * 14)
    client = (
        ChatStack(model)
        .use(
            ToolResultClearer, trigger={"tokens": 850}, keep={"messages": 2}, clear_at_least=500, counter=CharCounter()
        )
        .build()
    )
    history = [Message.system("Be brief."), Message.user("Compare the pages of this manual.")]

    async def talk() -> None:
        for number in range(14):
            call = ToolCall(f"call-{number}", "read_page", f'{{"number": {number}}}')
            history.extend([Message.assistant(call), Message.tool(call.id, f"Page {number}. " + "Turn left. " * 40)])
            await client.get_response(history)

    asyncio.run(talk())
    return _walked([request.messages for request in model.requests])


def _walked(requests: Sequence[Sequence[Message]]) -> str:
    lines = [text(24, 30, "call", "small"), text(64, 30, "what is sent, oldest message first", "small")]
    before: Sequence[Message] = ()
    for number, messages in enumerate(requests):
        y = 44 + number * 36
        lines.append(text(24, y + 15, str(number + 1), "small"))
        same = next((n for n, (a, b) in enumerate(zip(before, messages, strict=False)) if a != b), len(before))
        for place, message in enumerate(messages):
            lines.append(_cell(64 + place * _STEP, y, message))
        if same:
            lines.append(f'<rect x="64" y="{y + 24}" width="{same * _STEP - 4}" height="4" fill="#57ae5b"/>')
        before = messages
    bottom = 44 + len(requests) * 36 + 8
    legend = (("system", "system"), ("user", "user"), ("assistant", "assistant"), ("tool", "tool result"))
    x = 64
    for role, name in legend:
        lines.append(f'<rect x="{x}" y="{bottom}" width="14" height="14" rx="3" fill="{_COLOURS[role]}"/>')
        lines.append(text(x + 20, bottom + 12, name, "small"))
        x += 34 + 7 * len(name)
    lines.append(f'<rect x="{x}" y="{bottom}" width="14" height="14" rx="3" {_CLEARED}/>')
    lines.append(text(x + 20, bottom + 12, "cleared tool result", "small"))
    lines.append(f'<rect x="{x + 152}" y="{bottom + 5}" width="20" height="4" fill="#57ae5b"/>')
    lines.append(text(x + 178, bottom + 12, "the same as in the call before: a cache reads it", "small"))
    width = max(64 + max(map(len, requests)) * _STEP + 20, x + 178 + 290)
    return svg(width, bottom + 34, "Fourteen calls of one conversation, with few and large edits", lines)


_CLEARED = 'fill="#fbfbf8" stroke="#f0a860" stroke-dasharray="3 2"'


def _cell(x: int, y: int, message: Message) -> str:
    drawn = _CLEARED if message.annotation is not None else f'fill="{_COLOURS[message.role]}"'
    return f'<rect x="{x}" y="{y}" width="{_CELL}" height="{_CELL}" rx="3" {drawn}/>'


def pictures() -> dict[str, str]:
    """Return all pictures by the names of their files."""
    return {"stack.svg": stack(), "span-tree.svg": span_tree(), "edits.svg": walk()}


def main() -> int:
    """Write the pictures."""
    logging.getLogger("chatstack").setLevel(logging.ERROR)
    FOLDER.mkdir(exist_ok=True)
    for name, drawn in pictures().items():
        (FOLDER / name).write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
