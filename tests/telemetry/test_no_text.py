"""Where content is not captured, no word of a conversation is told: not by a span, a log record, a metric, a progress
event, a Python warning or the logging of this package; wherever in the conversation it stood, and whatever failed."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest

from chatstack import (
    ChatClient,
    ChatFronts,
    ChatOptions,
    ChatRequest,
    ChatStack,
    ChatStream,
    ContextMemory,
    ContextWindowGuard,
    File,
    FunctionInvoker,
    Image,
    Message,
    Part,
    Plan,
    ProgressEvent,
    ProgressReporter,
    ProviderItem,
    Reasoning,
    ServerError,
    Strategy,
    Summarizer,
    ToolCall,
    ToolDeclaration,
    ToolError,
    ToolResultClearer,
)
from chatstack.context.edits.context import Context
from chatstack.context.strategies.condensing import ClearThenDrop
from chatstack.context.strategies.pruning import OldestFirst
from chatstack.errors import ContextOverflowError, ProviderError
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from chatstack.testing import Answer, ScriptedClient, TelemetryCapture
from tests.telemetry.scenarios import FRONTS, Front, behind, broken_store

MARKER = "marker-9b1d"
VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


def long(word: str) -> str:
    return f"{MARKER} {word} " * 20


def call(number: int, name: str = "look", arguments: str = f'{{"what": "{MARKER}"}}') -> ToolCall:
    return ToolCall(f"c{number}", name, arguments)


def look(what: str) -> str:
    """Looks."""
    return long(what)


def broken(what: str) -> str:
    """Fails, with an error that quotes."""
    raise ValueError(f"{MARKER}: no {what}")


def quoting(what: str) -> dict[Any, str]:
    """Gives what cannot be written."""
    return {("a", MARKER): MARKER, "b": what}


def refusing(what: str) -> str:
    """Fails, and tells the model why."""
    raise ToolError(f"{MARKER}: no {what}")


HISTORY = (
    Message.system(long("be brief")),
    Message.user(long("the task"), Image(url=f"https://example.org/{MARKER}.png"), File(text=MARKER, name=MARKER)),
    *(
        message
        for number in range(6)
        for message in (
            Message.assistant(Reasoning(long("hm"), f'{{"signature": "{MARKER}"}}', "scripted"), call(number)),
            Message.tool(f"c{number}", long("it is sunny"), name="look"),
            Message.assistant(long("sunny"), ProviderItem("scripted", f'{{"search": "{MARKER}"}}')),
            Message.user(long("and tomorrow?")),
        )
    ),
)
ORPHANS = (
    Message.user(long("hello")),
    Message.tool("gone", long("rain"), name=MARKER),
    Message.assistant(call(1, MARKER)),
    Message.user(long("hello?")),
)
OPTIONS = ChatOptions(
    instructions=long("be polite"), tools=(ToolDeclaration("theirs", long("Books."), json.dumps({MARKER: MARKER})),)
)


@dataclass(frozen=True)
class Quoting(Strategy):
    """A plugin's strategy that quotes the conversation in what its plan must not hold, or fails with it."""

    how: str
    name = "quoting"

    def plan(self, context: Context) -> Plan | None:
        text, last = context.messages[-1].text, len(context.messages) - 1
        if self.how == "fails":
            raise ValueError(text)
        if self.how == "is none":
            return text  # type: ignore[return-value]
        if self.how == "positions":
            return Plan(strategy=self.name, reason=text, drop=(text,))  # type: ignore[arg-type]
        if self.how == "takes the question":
            return Plan(strategy=self.name, reason=text, drop=(last,))
        if self.how == "takes results":
            return Plan(strategy=self.name, reason=text, drop=(3,), insert=((0, Message.assistant(text)),))
        return None


@dataclass(frozen=True)
class Telling(Strategy):
    """A plugin's strategy whose plan passes, and quotes where it says what it is."""

    how: str
    name = "telling"

    def plan(self, context: Context) -> Plan | None:
        text = context.messages[-1].text
        if self.how == "excess":
            return None
        told = (self.name, f"because of {text}") if self.how == "reason" else (text, "too long")
        return Plan(strategy=told[0], reason=told[1], drop=(4,))

    def excess(self, context: Context) -> str:
        return context.messages[-1].text if self.how == "excess" else ""


class Failing(ChatFronts):
    """A layer that fails with an error that quotes."""

    def __init__(self, inner: ChatClient) -> None:
        self.inner = inner

    async def send(self, request: ChatRequest, /) -> ChatStream:
        raise ValueError(request.messages[-1].text)


class Uncounted(ScriptedClient):
    """A provider whose API for counting and for its window fails with an error that quotes."""

    async def count_tokens(self, request: ChatRequest, /) -> int | None:
        raise ServerError(request.messages[-1].text)

    async def window_tokens(self, model: str = "") -> int | None:
        raise ServerError(long("who knows"))


@dataclass(frozen=True)
class Case:
    """A stack, what it is asked, and what is told of it, so that it is known to have come that far."""

    stack: Callable[[], ChatStack]
    told: str
    messages: Sequence[Message] = HISTORY
    options: ChatOptions = field(default_factory=lambda: OPTIONS)


def model(*answers: Answer) -> ChatStack:
    return ChatStack(ScriptedClient(answers or (long("fine"),)))


def tools(*answers: Answer, **options: Any) -> ChatStack:
    return model(*answers).use(FunctionInvoker, tools=[look, broken, refusing, quoting], **options)


def summarizing(*answers: Answer) -> ChatStack:
    return model().use(Summarizer, max_tokens=900, summary_client=ScriptedClient(answers))


def guarded(stack: ChatStack, limit: int = 900, **options: Any) -> ChatStack:
    return stack.use(ContextWindowGuard, max_context_tokens=limit, **options)


def shared() -> ChatStack:
    memory = ContextMemory(store=broken_store(), scope="tenant-1")
    return guarded(ChatStack(ScriptedClient(), memory=memory), prune_on_overflow=True)


ALL_KINDS: list[str | Part] = [
    Reasoning(long("hm")),
    long("let me"),
    call(1),
    call(2, "broken"),
    call(3, "refusing"),
    call(4, MARKER),
]
INVALID: list[str | Part] = [
    call(5, "look", f'{{"what": "{MARKER}'),
    call(6, "look", json.dumps({MARKER: MARKER})),
    call(7, "look", MARKER),
]
CASES = {
    "an answer": Case(model, "chat script"),
    "tools": Case(lambda: tools([*ALL_KINDS, *INVALID], long("fine")), "_OTHER"),
    "tools, in detail": Case(lambda: tools([call(1, "broken")], "fine", include_error_details=True), "ValueError"),
    "tools, unwritable": Case(lambda: tools([call(1, "quoting")], "fine"), "tool_result_unwritable"),
    "tools, invented": Case(lambda: tools([call(1, MARKER)], max_consecutive_failures=9), "repeated_tool_call"),
    "tools, too many": Case(lambda: tools([call(1)], max_tool_calls_per_turn=1), "tool_loop_limit_reached"),
    "tools, all failing": Case(lambda: tools([call(1, "broken")]), "ToolLoopError"),
    "refused": Case(lambda: model(ServerError(long("quoted"))), "ServerError"),
    "refused by a stranger": Case(lambda: model(RuntimeError(long("quoted"))), "RuntimeError"),
    "broken off": Case(lambda: model([long("well"), RuntimeError(long("quoted"))]), "RuntimeError"),
    "a layer that fails": Case(lambda: model().use(Failing), "ValueError"),
    "cleared": Case(lambda: model().use(ToolResultClearer, trigger={"tokens": 900}, keep={"messages": 1}), "edits"),
    "cleared, inputs too": Case(
        lambda: model().use(ToolResultClearer, trigger={"tokens": 900}, clear_tool_inputs=True), "edits"
    ),
    "not counted": Case(
        lambda: ChatStack(Uncounted()).use(
            ToolResultClearer, trigger={"tokens": 900}, token_count_method="model", keep={"fraction": 0.1}
        ),
        "token_count_estimated",
    ),
    "summarized": Case(lambda: summarizing(long("short")[:90]), "compact_context summarize"),
    "not summarized, an error": Case(lambda: summarizing(RuntimeError(long("quoted"))), "summarizer_failed"),
    "not summarized, cut off": Case(lambda: summarizing([long("short"), "length"]), "summarizer_failed"),
    "not summarized, too long": Case(lambda: summarizing(long("long") * 100), "summarizer_failed"),
    "not summarized, called a tool": Case(lambda: summarizing([call(1)]), "summarizer_failed"),
    "condensed": Case(lambda: model().use(ClearThenDrop(900)), "clear_then_drop"),
    "pruned": Case(lambda: guarded(model(), prune_on_overflow=True, strict=True), "compact_context truncate"),
    "shortened": Case(
        lambda: tools([call(1)], "fine").use(OldestFirst(100, 80)),
        "tool_result_shortened",
        (Message.user(MARKER),),
    ),
    "rejected": Case(lambda: guarded(model(), strict=True), "ContextOverflowError"),
    "too long": Case(
        lambda: guarded(model(ContextOverflowError(3_000, 900, message=MARKER), "fine"), 9_000, prune_on_overflow=True),
        "as too long",
    ),
    "repaired": Case(lambda: guarded(model()), "messages_repaired", ORPHANS),
    "store": Case(shared, "store_unavailable"),
    **{
        f"a plan that {how}": Case(lambda how=how: model().use(Quoting(how)), "plan_rejected")  # type: ignore[misc]
        for how in ("is none", "positions", "takes the question", "takes results")
    },
    "a strategy that fails": Case(lambda: model().use(Quoting("fails")), "ValueError"),
}


def leaks(case: Case, front: Front, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was told of a case that quotes, by whoever told it."""
    capture, heard = TelemetryCapture(), list[ProgressEvent]()
    stack = behind(case.stack(), ProgressReporter, on_progress=heard.append)

    async def run() -> None:
        async with stack.build(capture.resolve) as client:
            try:
                if front == "whole":
                    await client.get_response(case.messages, options=case.options)
                else:
                    await client.get_streaming_response(case.messages, options=case.options).response()
            except Exception:  # noqa: BLE001 - it is what is told of it that matters
                pass

    with warnings.catch_warnings(record=True) as warned, caplog.at_level(logging.DEBUG, "chatstack"):
        warnings.simplefilter("always")
        asyncio.run(run())
    assert case.told in capture.said()
    assert capture.open_spans == ()
    assert heard
    records = [repr(vars(each)) for each in caplog.records if each.name.startswith("chatstack")]
    told = [*capture.said().splitlines(), *map(repr, heard), *(str(each.message) for each in warned), *records]
    return [each for each in told if MARKER in each]


@pytest.fixture(autouse=True)
def no_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("name", list(CASES))
def test_no_word_of_a_conversation_is_told(name: str, front: Front, caplog: pytest.LogCaptureFixture) -> None:
    assert leaks(CASES[name], front, caplog) == []


@pytest.mark.parametrize("front", FRONTS)
def test_what_is_searched_for_would_be_found(
    front: Front, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "SPAN_AND_EVENT")
    found = leaks(CASES["tools"], front, caplog)
    assert {each.split("(")[0] for each in found} == {"CapturedSpan", "CapturedLog"}


# What a server says of a request, through the official SDKs

QUOTED = {"message": long("your prompt was"), "type": "invalid_request_error", "code": MARKER, "param": MARKER}
BODIES: dict[str, tuple[int, str, str]] = {
    "refused": (400, "application/json", json.dumps({"type": "error", "error": QUOTED})),
    "overloaded": (529, "application/json", json.dumps({"type": "error", "error": QUOTED})),
    "a page": (502, "text/html", f"<html>{MARKER}</html>"),
    "no JSON": (200, "application/json", f'{{"choices": [{{"message": "{MARKER}'),
    "no answer": (200, "application/json", json.dumps({MARKER: MARKER})),
    "an error in the stream": (200, "text/event-stream", f"event: error\ndata: {json.dumps({'error': QUOTED})}\n\n"),
    "noise in the stream": (200, "text/event-stream", f'data: {{"choices": "{MARKER}\n\n'),
}


def served(kind: Any, body: tuple[int, str, str]) -> ChatClient:
    """A provider of ours over an SDK whose server says that, whatever it is asked; on no network."""
    is_old = kind is not AnthropicChatClient and openai.__version__.startswith("2.")
    http = importlib.import_module("httpx" if is_old else "httpx2")
    status, content_type, text = body
    answer = http.Response(status, text=text, headers={"content-type": content_type})

    def reply(request: Any) -> Any:
        return answer

    over = http.AsyncClient(transport=http.MockTransport(reply))
    client: ChatClient = kind("m", api_key="k", http_client=over, max_retries=0)
    return client


@pytest.mark.sampled(3)
@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("body", list(BODIES))
@pytest.mark.parametrize("kind", [OpenAIChatClient, OpenAIResponsesClient, AnthropicChatClient])
def test_no_word_that_a_server_quotes_is_told(
    kind: type[ChatClient], body: str, front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    asked = [Message.user(long("hello"))]
    case = Case(lambda: ChatStack(served(kind, BODIES[body])), "error.type", asked, ChatOptions(max_tokens=9))
    assert leaks(case, front, caplog) == []
    with pytest.raises(ProviderError) as refused:
        asyncio.run(case.stack().build().get_response(asked, options=case.options))
    assert MARKER not in f"{refused.value} {refused.value!r}"


# What a plugin's strategy writes about itself


@pytest.mark.parametrize("how", ["reason", "strategy", "excess"])
@pytest.mark.parametrize("front", FRONTS)
def test_no_word_that_a_strategy_quotes_is_told(how: str, front: Front, caplog: pytest.LogCaptureFixture) -> None:
    told = "edit_ineffective" if how == "excess" else "chatstack.edits"
    assert leaks(Case(lambda: model().use(Telling(how)), told), front, caplog) == []
