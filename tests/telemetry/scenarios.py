"""How each warning comes about: real stacks over a scripted model, and what is told of them, as plain values."""

from __future__ import annotations

import asyncio
import itertools
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias

from chatstack import (
    BuiltClient,
    ChatOptions,
    ChatStack,
    ChatStream,
    ContextMemory,
    ContextWindowGuard,
    LayerOrderWarning,
    Message,
    ModelTracer,
    OldestFirst,
    Plan,
    ProgressEvent,
    ProgressFeed,
    ProgressReporter,
    ServerError,
    Strategy,
    Summarizer,
    ToolCall,
    ToolResultClearer,
)
from chatstack.context.edits.context import Context
from chatstack.errors import ContextOverflowError
from chatstack.semconv import WarningCode
from chatstack.testing import Answer, CapturedSpan, ScriptedClient, TelemetryCapture
from chatstack.tokens.counter import TokenCounter

Front: TypeAlias = Literal["whole", "streamed"]
Root: TypeAlias = Literal["reporter", "tracer", "none"]
FRONTS: tuple[Front, ...] = ("whole", "streamed")
ID = "c-1"
_ONLY_STREAMED = ("gen_ai.request.stream", "gen_ai.response.time_to_first_chunk", "seconds")
_METRICS = [f"chatstack.{each}" for each in ("warnings", "edits", "compaction.tokens_removed", "context.utilization")]


class Words(TokenCounter):
    """A token is a word, so that the numbers that are told can be counted by hand."""

    message_tokens = 0

    def count_text(self, text: str) -> int:
        return len(text.split())

    def __repr__(self) -> str:
        return "Words()"


WORDS = Words()


def user(count: int, word: str = "sun") -> Message:
    """A user message of that many tokens."""
    return Message.user(" ".join([word] * count))


def said(count: int, word: str = "sun") -> Message:
    """An answer of that many tokens."""
    return Message.assistant(" ".join([word] * count))


def look() -> str:
    """Looks."""
    return "sun " * 12


CALL = Message.assistant(ToolCall("call-1", "look"))
"""Seven tokens; its result has eighteen."""


@dataclass(frozen=True)
class Scenario:
    """A stack, what it is asked, and what is told of the last question.

    ``code`` is "" for an edit. ``attributes`` are those of the span beside what each such span has, ``inside`` the
    names of the spans in it. ``codes`` are all that the turn is warned of, if more than that one; ``error`` is what was
    rejected or failed, ``raises`` what the turn ends with, ``round`` where it comes.
    """

    code: WarningCode | Literal[""]
    stack: ChatStack
    message: str
    attributes: Mapping[str, object]
    asked: Sequence[Sequence[Message]] = ((user(9),),)
    span: str = "context_guard"
    inside: tuple[str, ...] = ()
    error: str = ""
    codes: tuple[WarningCode, ...] = ()
    edits: int = 0
    raises: type[Exception] | None = None
    round: int = 0
    options: ChatOptions | None = None
    feed: ProgressFeed | None = None
    follower: object = None


@dataclass(frozen=True)
class Told:
    """All that was told of one turn."""

    capture: TelemetryCapture
    heard: Sequence[ProgressEvent]

    def path(self, span_id: int | None) -> tuple[str, ...]:
        """The names of the spans from the root down to that one."""
        known, found = {each.span_id: each for each in self.capture.spans}, list[str]()
        while span_id is not None:
            found.append(known[span_id].name)
            span_id = known[span_id].parent_id
        return tuple(reversed(found))

    def warned(self, code: str) -> CapturedSpan:
        """The one span that carries that warning."""
        found = [each for each in self.capture.spans if each.attributes.get("chatstack.warning.code") == code]
        assert len(found) == 1, f"{len(found)} spans say {code}, of {self.capture.tree()}"
        return found[0]

    @property
    def traces(self) -> set[int]:
        """The ids of all traces."""
        return {each.trace_id for each in self.capture.spans} | {each.trace_id for each in self.capture.logs}

    def everything(self) -> dict[str, object]:
        """All of it without ids and times, and without what says that it was streamed."""
        capture = self.capture
        return {
            "spans": [
                (self.path(each.span_id), each.kind, each.status, each.status_text, _kept(each.attributes), each.events)
                for each in capture.spans
            ],
            "traces": len(self.traces),
            "logs": [
                (each.event_name, each.severity, each.body, dict(each.attributes), self.path(each.span_id))
                for each in capture.logs
            ],
            "metrics": {name: capture.metric(name) for name in _METRICS},
            "heard": [(e.kind, e.name, e.round, e.message, e.error, _kept(e.numbers)) for e in self.heard],
        }


def _kept(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name not in _ONLY_STREAMED}


def behind(stack: ChatStack, source: Any, **options: Any) -> ChatStack:
    """The recipe with one more layer, outermost."""
    (spec,) = replace(stack, layers=()).use(source, **options).layers
    return replace(stack, layers=(spec, *stack.layers))


def told(scenario: Scenario, front: Front, *, root: Root = "reporter", foreign: bool = False) -> Told:
    """Play a scenario, with a root of ours, the call's own span outermost, or neither; ``foreign``: inside a span of
    somebody else."""
    heard, capture = list[ProgressEvent](), TelemetryCapture()
    for messages in scenario.asked:
        heard, capture, stack = list[ProgressEvent](), TelemetryCapture(), scenario.stack
        if root == "reporter":
            given = {} if scenario.feed is None else {"feed": scenario.feed}
            stack = behind(stack, ProgressReporter, on_progress=heard.append, **given)
        elif root == "tracer":
            stack = behind(stack, ModelTracer)
        with warnings.catch_warnings():
            if root == "tracer":  # outermost on purpose, which is warned of
                warnings.simplefilter("ignore", LayerOrderWarning)
            client = stack.build(capture.resolve)
        capture.clear()
        with capture.telemetry.tracer.start_as_current_span("foreign") if foreign else nullcontext():
            asyncio.run(_asked(client, messages, scenario, front))
    return Told(capture, heard)


async def _asked(client: BuiltClient, messages: Sequence[Message], scenario: Scenario, front: Front) -> None:
    async with client:
        try:
            if front == "whole":
                await client.get_response(messages, options=scenario.options, conversation_id=ID)
            else:
                await read(client.get_streaming_response(messages, options=scenario.options, conversation_id=ID))
        except Exception as error:
            if scenario.raises is None or not isinstance(error, scenario.raises):
                raise
            return
    assert scenario.raises is None, "nothing was raised"


async def read(stream: ChatStream) -> None:
    """Read a stream to its end, each step in a task, and so in a context, of its own."""

    async def step() -> object:
        return await anext(stream, None)

    async with stream:
        while await asyncio.create_task(step()) is not None:
            pass


# How each warning comes about


@dataclass(frozen=True)
class Greedy(Strategy):
    """A plugin's strategy that leaves nothing, from that many messages on."""

    least: int = 1
    name = "greedy"

    def plan(self, context: Context) -> Plan | None:
        count = len(context.messages)
        return Plan(strategy=self.name, reason="no", drop=tuple(range(count))) if count >= self.least else None


def broken_store(answers: int = 0) -> Any:
    """A store of decisions that answers so many times, and then no more."""
    asked = itertools.count()

    async def find(owner: str, links: Sequence[bytes]) -> None:
        if next(asked) >= answers:
            raise ConnectionError("redis://:hunter2@127.0.0.1")

    async def other(*given: object) -> None: ...

    return SimpleNamespace(find=find, put=other, forget=other, aclose=other)


FULL = "at 130%: about 13 of 10 tokens"
GREEDY = "the plan of 'greedy' was not applied: the latest user message, at 0, is dropped; nothing is left to send"
INEFFECTIVE = "about {} tokens are left, still at the trigger: no tool result is left that may be cleared"
NOT_COUNTED = 'token_count_method="model", but the provider does not count, or could not be asked: sizes are estimates'
NO_SUMMARY = (
    "no summary: the call failed with ServerError; it is tried again in 15 seconds at the earliest; the history stays "
    "as it is"
)
NO_WINDOW = (
    "ContextWindowGuard: nobody knows the window of this model: nothing is guarded; give the limit as a number, or the "
    "provider its window_tokens"
)
REPAIRED = "1 results without a call, 0 calls without a result"
SERVER_HELD = "the history lies at the provider (previous_response_id or conversation): nothing is weighed or edited"
STORE_FAILS = "the store of decisions fails (ConnectionError); it is left alone for 5 seconds, then tried again"
SHORTENED = "1 shortened: new tool results of 18 tokens are too large, and became 12; at 2"
STUCK = (
    "cannot fit: about 13 tokens, 3 above the limit of 10, and nothing more may be removed; largest: user "
    "message at 0 (13 tokens)"
)
UNSTABLE = (
    "a history of 13 messages began differently twice running (is its head rewritten, or a window slid over it, before "
    "it gets here?): no edit can be kept for it, nor a prompt cache used; it is edited only where a limit forces it"
)
CLEAR, SUMMARIZE, REPLAY = (f"compact_context {each}" for each in ("clear_tool_results", "summarize", "replay"))


def model(*answers: Answer, memory: ContextMemory | None = None) -> ChatStack:
    """A stack of nothing but a model that counts words."""
    return ChatStack(ScriptedClient(answers or ("fine",), counter=WORDS), memory=memory)


def guarded(stack: ChatStack | None = None, *, max_context_tokens: object = 10, **options: Any) -> ChatStack:
    """A guard with room for ten tokens, unless told otherwise."""
    options["max_context_tokens"] = max_context_tokens
    return (stack or model()).use(ContextWindowGuard, counter=WORDS, **options)


def clearing(tokens: int, stack: ChatStack | None = None, **options: Any) -> ChatStack:
    """A clearer that looks at contexts from that size on."""
    return (stack or model()).use(ToolResultClearer, trigger={"tokens": tokens}, counter=WORDS, **options)


def summarizing(most: int, stack: ChatStack | None = None) -> ChatStack:
    """A summarizer of so many items, with a client to write that is down."""
    writer = ScriptedClient([ServerError("no")])
    return (stack or model()).use(Summarizer, max_context_items=most, summary_client=writer, counter=WORDS)


def weighed(tokens: int, limit: int, action: str) -> dict[str, object]:
    """What a guard says of a context."""
    numbers = {
        "input_tokens": tokens,
        "window_tokens": limit,
        "threshold": 0.8,
        "utilization": round(tokens / limit, 4),
    }
    about = {f"chatstack.context.{name}": each for name, each in numbers.items()}
    return {"chatstack.guard.action": action, "chatstack.context.token_source": "estimated", **about}


def of_edits(strategy: str, **numbers: object) -> dict[str, object]:
    """What is said of an edit, or of none."""
    return {f"chatstack.compaction.{name}": value for name, value in {"strategy": strategy, **numbers}.items()}


def of_the_guard() -> dict[str, Scenario]:
    over: WarningCode = "context_window_exceeded"
    stuck: WarningCode = "context_irreducible"
    pruning = guarded(prune_on_overflow=True)
    long, loose, pruned = [[user(13)]], [[user(3), said(7), user(3)]], ("compact_context truncate",)
    warns, rejects, action = weighed(13, 10, "warn"), weighed(13, 10, "reject"), {"chatstack.guard.action": "warn"}
    raised, refused = ContextOverflowError, "ContextOverflowError"
    held, share = ChatOptions(extra={"previous_response_id": "r-1"}), "fits at 90%: about 9 of 10 tokens"
    return {
        "near": Scenario("context_window_near_limit", guarded(), share, weighed(9, 10, "warn")),
        "exceeded": Scenario(over, guarded(), f"sent as it is {FULL}", warns, long),
        "pruned": Scenario(over, pruning, f"pruned {FULL}", weighed(13, 10, "prune"), loose, inside=pruned, edits=1),
        "rejected": Scenario(
            over, guarded(strict=True), f"refused {FULL}", rejects, long, error=refused, raises=raised
        ),
        "stuck": Scenario(stuck, pruning, STUCK, warns, long, codes=(over, stuck)),
        "window unknown": Scenario("window_unknown", guarded(max_context_tokens="auto"), NO_WINDOW, action),
        "bypassed": Scenario("context_layers_bypassed", guarded(), SERVER_HELD, action, options=held),
    }


def of_editing() -> dict[str, Scenario]:
    numbers = of_edits("repair", reason=REPAIRED, messages_before=3, messages_after=2, tokens_before=12, tokens_after=6)
    orphan, place = [[user(3), Message.tool("gone", "rain"), user(3)]], "compact_context repair"
    talk = [make(2, f"word{number}") for number in range(8) for make in (said, user)]
    moving = [[Message.user(f"it is {hour} o'clock"), *talk[: 8 + 2 * hour]] for hour in range(3)]
    length, wide = {"chatstack.compaction.messages_before": 13}, guarded(max_context_tokens=999)
    long, failed = [[user(3), *[said(9), user(3)] * 4]], of_edits("summarize", messages_before=9, tokens_before=51)
    down, cleared = ("chat script",), of_edits("clear_tool_results")
    eager, greedy, refused = model().use(Greedy()), "compact_context greedy", "plan_rejected"
    left, asking = of_edits("clear_tool_results", tokens_after=9), clearing(10, token_count_method="model")
    return {
        "repaired": Scenario("messages_repaired", guarded(), f"the history had {REPAIRED}", numbers, orphan, place),
        "plan": Scenario("plan_rejected", eager, GREEDY, of_edits("greedy"), span=greedy, error=refused),
        "unstable": Scenario("prefix_unstable", wide, UNSTABLE, length, moving, REPLAY),
        "ineffective": Scenario("edit_ineffective", clearing(5), INEFFECTIVE.format(9), left, span=CLEAR),
        "estimated": Scenario("token_count_estimated", asking, NOT_COUNTED, cleared, span=CLEAR),
        "shortened": shortening(model(), [user(3), CALL, Message.tool("call-1", look(), name="look")]),
        "no summary": Scenario(
            "summarizer_failed", summarizing(4), NO_SUMMARY, failed, long, SUMMARIZE, down, "ServerError"
        ),
    }


def shortening(stack: ChatStack, asked: Sequence[Message]) -> Scenario:
    """The result of a tool, eighteen tokens, is too large for what is left of 25."""
    numbers = of_edits("truncate", tool_results_shortened=1, tokens_before=18, tokens_after=12)
    stack, place = stack.use(OldestFirst(25, 20), counter=WORDS), "compact_context shorten"
    return Scenario("tool_result_shortened", stack, SHORTENED, numbers, [asked], place, edits=1)


def of_services() -> dict[str, Scenario]:
    feed, lost = ProgressFeed(), "2 progress events were not delivered: the listener is too slow, or raised"
    slow = feed.events(ID, capacity=1)
    store = guarded(model(memory=ContextMemory(store=broken_store(), scope="tenant-1")))
    short, dropped = [[user(3)]], {"chatstack.progress.dropped": 2}
    return {
        "store": Scenario("store_unavailable", store, STORE_FAILS, of_edits("replay"), short, REPLAY),
        "progress": Scenario("progress_dropped", model(), lost, dropped, short, "progress", feed=feed, follower=slow),
    }


def scenarios() -> dict[str, Scenario]:
    """All of them, fresh: a stack remembers what it has warned of."""
    return {**of_the_guard(), **of_editing(), **of_services()}
