"""The spans of a run as a tree for the terminal, as a dashboard would show them, with the warnings marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import StatusCode
from rich.text import Text
from rich.tree import Tree

from chatstack import semconv
from chatstack.cli.terminal import counted, printable
from chatstack.telemetry.emission import Telemetry

PROJECT = "chatstack-demo"
"""The name of the demo in a dashboard."""

_Children: TypeAlias = Mapping[int, Sequence[ReadableSpan]]


class SpanRecorder:
    """Keeps the spans of its ``telemetry`` in memory; the tracing of the process is not touched."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        about = {"service.name": PROJECT, "openinference.project.name": PROJECT}  # the second is Phoenix's
        provider = TracerProvider(sampler=ALWAYS_ON, resource=Resource.create(about), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.telemetry = Telemetry(tracer_provider=provider, log_warnings=False)  # the tree shows the warnings

    def spans(self) -> tuple[ReadableSpan, ...]:
        """The spans that have ended so far."""
        return self._exporter.get_finished_spans()


def span_tree(spans: Sequence[ReadableSpan], *, titles: Sequence[str] = (), every_turn: bool = True) -> Tree:
    """Return the spans as a tree, one branch per turn, in the order in which they began.

    ``titles`` are the subjects of the turns, in order. Unless ``every_turn``, a turn without edits and warnings is one
    line, except the first, which shows what all turns are like.
    """
    children = _by_parent(spans)
    roots = children.get(0, ())
    found = f"{counted(len(roots), 'turn')}, {counted(len(spans), 'span')}"
    title = f"{found}; ! marks a warning, * an edit of what is sent"
    if not spans:
        title = "no spans were recorded: OTEL_SDK_DISABLED turns them off"
    tree = Tree(Text(title, style="bold"), guide_style="dim")
    for number, root in enumerate(roots):
        about = Text(f"{printable(titles[number])}  ", style="bold") if number < len(titles) else Text()
        below = _descendants(root, children)
        if every_turn or number == 0 or any(_is_worth_a_look(span) for span in (root, *below)):
            _grow(tree, root, children, about)
        else:
            quiet = f"  {_milliseconds(root)}, {counted(len(below), 'quiet span')}"
            tree.add(about + Text(printable(root.name)) + Text(quiet, style="dim"))
    return tree


def _by_parent(spans: Sequence[ReadableSpan]) -> dict[int, list[ReadableSpan]]:
    """Group the spans by the id of their parent, 0 if the parent is not here, each list in order of start."""
    known = {span.context.span_id for span in spans if span.context is not None}
    found: dict[int, list[ReadableSpan]] = {}
    for span in sorted(spans, key=lambda each: each.start_time or 0):
        parent = span.parent.span_id if span.parent is not None and span.parent.span_id in known else 0
        found.setdefault(parent, []).append(span)
    return found


def _descendants(span: ReadableSpan, children: _Children) -> list[ReadableSpan]:
    own = _children_of(span, children)
    return [*own, *(each for child in own for each in _descendants(child, children))]


def _children_of(span: ReadableSpan, children: _Children) -> Sequence[ReadableSpan]:
    return children.get(span.context.span_id, ()) if span.context is not None else ()


def _grow(tree: Tree, span: ReadableSpan, children: _Children, about: Text | None = None) -> None:
    branch = tree.add(_label(span, about or Text()))
    for child in _children_of(span, children):
        _grow(branch, child, children)


def _label(span: ReadableSpan, about: Text) -> Text:
    label = about + Text(printable(span.name))
    code = _said(span, semconv.WARNING_CODE)
    if code:
        label.append(f"  ! WARNING {code}", style="bold yellow")
        label.append(f"\n{_said(span, semconv.WARNING_MESSAGE)}", style="yellow")
    elif _said(span, semconv.COMPACTION_STRATEGY):
        label.append("  * EDIT", style="bold cyan")
        label.append(f"\n{_edit_sizes(span)}", style="cyan")
    else:
        label.append(f"  {', '.join([_milliseconds(span), *_numbers(span)])}", style="dim")
    if span.status.status_code is StatusCode.ERROR:
        label.append(f"  x ERROR {_said(span, semconv.ERROR_TYPE)}", style="bold red")
    return label


def _is_worth_a_look(span: ReadableSpan) -> bool:
    marked = (semconv.WARNING_CODE, semconv.COMPACTION_STRATEGY, semconv.ERROR_TYPE)
    return any(name in (span.attributes or {}) for name in marked)


def _numbers(span: ReadableSpan) -> list[str]:
    """Return the numbers of a span that is no warning and no edit: tokens, rolled-up usage, size of the request.

    The root's tokens are left out: they add up all spans below, and would be read as the size of one call.
    """
    read, written = _count(span, semconv.USAGE_INPUT), _count(span, semconv.USAGE_OUTPUT)
    found: list[str] = []
    if span.parent is not None and (read or written):
        found.append(f"{read:,} tokens in, {written:,} out")
    for name, word in ((semconv.WARNING_COUNT, "warning"), (semconv.EDIT_COUNT, "edit")):
        if number := _count(span, name):
            found.append(counted(number, word))
    if (span.attributes or {}).get(semconv.CONVERSATION_COMPACTED) is True:
        found.append("edited")
    return found


def _edit_sizes(span: ReadableSpan) -> str:
    sizes = [
        f"{_count(span, before):,} -> {_count(span, after):,} {word}"
        for before, after, word in (
            (semconv.COMPACTION_TOKENS_BEFORE, semconv.COMPACTION_TOKENS_AFTER, "tokens"),
            (semconv.COMPACTION_MESSAGES_BEFORE, semconv.COMPACTION_MESSAGES_AFTER, "messages"),
        )
        if _count(span, before) != _count(span, after)
    ]
    for name, done in (
        (semconv.COMPACTION_RESULTS_CLEARED, "cleared"),
        (semconv.COMPACTION_RESULTS_SHORTENED, "shortened"),
        (semconv.COMPACTION_RESULTS_DEDUPLICATED, "deduplicated"),
    ):
        if results := _count(span, name):
            sizes.append(f"{counted(results, 'result')} {done}")
    return ", ".join(sizes)


def _milliseconds(span: ReadableSpan) -> str:
    elapsed = ((span.end_time or 0) - (span.start_time or 0)) / 1e6
    return f"{elapsed:,.0f} ms" if elapsed >= 1 else "<1 ms"


def _said(span: ReadableSpan, name: str) -> str:
    value = (span.attributes or {}).get(name)
    return printable(value) if isinstance(value, str) else ""


def _count(span: ReadableSpan, name: str) -> int:
    value = (span.attributes or {}).get(name)
    return value if isinstance(value, int) else 0
