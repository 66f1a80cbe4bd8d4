"""Every layer of ours keeps the contract, and none can be forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Iterable
from types import MappingProxyType

import pytest

import chatstack
from chatstack import (
    Budget,
    ChatClient,
    ChatFronts,
    ChatRequest,
    ChatStack,
    ChatStream,
    ContextWindow,
    ContextWindowGuard,
    Fallback,
    FunctionInvoker,
    Message,
    ModelTracer,
    OldestFirst,
    ProgressEvent,
    ProgressReporter,
    ServerError,
    Summarizer,
    Telemetry,
    ToolLoopError,
    ToolResultClearer,
    ToolResultShaper,
)
from chatstack.client.checks import send_to
from chatstack.context.requests.services import ContextServices
from chatstack.context.strategy import StrategyApplier
from chatstack.layers.shaper import _DuplicateReferrer
from chatstack.layers.window import WindowKeeper
from chatstack.nodes.overheard import Overheard
from chatstack.stack.recipe import BuiltClient
from chatstack.telemetry.events import ProgressKind
from chatstack.testing import LayerContract, ScriptedClient
from chatstack.testing.conversations import ANSWERS, CANARY, HISTORIES, TOOLS
from chatstack.values.native import NativeEdit
from chatstack.workbench.demo.ledger import RequestScale

LIMIT = 240
"""Tokens; most histories of the contract are longer."""


class TestProgressReporter(LayerContract):
    covers = (ProgressReporter,)

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        return ProgressReporter(inner, on_progress=lambda event: None, telemetry=telemetry)


class TestModelTracer(LayerContract):
    covers = (ModelTracer,)

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        return ModelTracer(inner, telemetry=telemetry)


class TestFunctionInvoker(LayerContract):
    covers = (FunctionInvoker,)

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        return FunctionInvoker(inner, tools=TOOLS, telemetry=telemetry)


@pytest.mark.slow
class TestFunctionInvokerAtItsLimit(LayerContract):
    covers = (FunctionInvoker,)
    answers = MappingProxyType({**ANSWERS, "calls": (ANSWERS["calls"][0], ANSWERS["calls"][-1])})

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        return FunctionInvoker(
            inner,
            tools=TOOLS,
            max_tool_calls_per_turn=1,
            max_concurrency=1,
            tool_timeout_seconds=5,
            include_error_details=True,
            telemetry=telemetry,
        )


class TestContextWindowGuardThatWarns(LayerContract):
    covers = (ContextWindowGuard,)
    edits = True  # it repairs

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        return ContextWindowGuard(inner, max_context_tokens=LIMIT, services=ContextServices(telemetry=telemetry))


class TestContextWindowGuardThatPrunes(LayerContract):
    covers = (ContextWindowGuard,)
    edits = True

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        return ContextWindowGuard(
            inner, max_context_tokens=LIMIT, prune_on_overflow=True, services=ContextServices(telemetry=telemetry)
        )


class TestToolResultClearer(LayerContract):
    covers = (ToolResultClearer,)
    edits = True

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        return ToolResultClearer(
            inner,
            trigger={"tokens": LIMIT // 4},
            keep={"messages": 0},
            clear_tool_inputs=True,
            services=ContextServices(telemetry=telemetry),
        )


class EditingProvider:
    """A provider that edits natively, in front of the contract's own client."""

    def __init__(self, inner: ChatClient) -> None:
        self.inner = inner

    def native_problem(self, edit: NativeEdit, /) -> str:
        return ""

    async def edits_natively(self, edit: NativeEdit, model: str = "") -> bool:
        await asyncio.sleep(0)
        return True

    async def send(self, request: ChatRequest, /) -> ChatStream:
        sent = request.but(options=request.options.but(native_edits=()))
        stream = await send_to(self.inner, sent)
        stream.sent = request
        return stream


@pytest.mark.slow
class TestToolResultClearerThatLeavesItToTheProvider(LayerContract):
    covers = (ToolResultClearer,)
    edits = True

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        return ToolResultClearer(
            EditingProvider(inner),
            trigger={"tokens": LIMIT // 4},
            keep={"messages": 0},
            native="auto",
            services=ContextServices(telemetry=telemetry),
        )


@pytest.mark.slow
class TestSummarizerThatLeavesItToTheProvider(LayerContract):
    covers = (Summarizer,)
    edits = True
    # With pinned messages it summarizes here, by the very client that the contract looks at.
    histories = MappingProxyType(
        {name: history for name, history in HISTORIES.items() if not any(each.pinned for each in history)}
    )

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        return Summarizer(
            EditingProvider(inner), max_tokens=LIMIT, native="on", services=ContextServices(telemetry=telemetry)
        )


class TestToolResultShaper(LayerContract):
    covers = (ToolResultShaper,)
    edits = True

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        return ToolResultShaper(inner, max_bytes=40, services=ContextServices(telemetry=telemetry))


class TestADeduplicatingShaper(LayerContract):
    covers = (_DuplicateReferrer,)
    edits = True

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        services = ContextServices(telemetry=telemetry)
        return ToolResultShaper(inner, max_bytes=40, deduplicate=True, services=services)


class TestSummarizer(LayerContract):
    covers = (Summarizer,)
    edits = True

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        writer = ScriptedClient([f"they spoke of the weather {CANARY}"])
        return Summarizer(
            inner,
            max_tokens=LIMIT,
            keep_recent_turns=1,
            summary_client=writer,
            services=ContextServices(telemetry=telemetry),
        )


@pytest.mark.slow
class TestSummarizerWhoseClientFails(LayerContract):
    covers = (Summarizer,)
    edits = True

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        writer = ScriptedClient([ServerError(f"not now {CANARY}")])
        return Summarizer(
            inner,
            max_context_items=3,
            keep_recent_turns=1,
            summary_client=writer,
            services=ContextServices(telemetry=telemetry),
        )


class TestWindowKeeper(LayerContract):
    covers = (WindowKeeper,)
    edits = True

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        writer = ScriptedClient([f"they spoke of the weather {CANARY}"])
        window = ContextWindow(LIMIT, 6, keep_recent_turns=1, max_tool_calls_per_turn=2, summary_client=writer)
        return WindowKeeper(inner, strategy=window, services=ContextServices(telemetry=telemetry))


class TestStrategyApplier(LayerContract):
    covers = (StrategyApplier,)
    edits = True

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        return StrategyApplier(
            inner, strategy=OldestFirst(LIMIT, LIMIT // 2), services=ContextServices(telemetry=telemetry)
        )


class TestBudget(LayerContract):
    covers = (Budget,)

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        return Budget(inner, max_tokens=1_000_000)


class TestFallback(LayerContract):
    covers = (Fallback,)
    recovers = True

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        return Fallback(inner, clients=[ScriptedClient(["never asked"])], services=ContextServices(telemetry=telemetry))


class TestOverheard(LayerContract):
    covers = (Overheard,)

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        return Overheard(inner)


class TestRequestScale(LayerContract):
    covers = (RequestScale,)

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        return RequestScale(inner, weigh=lambda request: None)


class TestAFullStack(LayerContract):
    covers = (BuiltClient,)
    edits = True

    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        services: dict[type, object] = {Telemetry: telemetry}
        return (
            ChatStack(inner)
            .use(ProgressReporter, on_progress=lambda event: None)
            .use(FunctionInvoker, tools=TOOLS)
            .use(ToolResultShaper, max_bytes=40)
            .use(ToolResultClearer, trigger={"tokens": LIMIT // 2}, keep={"messages": 1})
            .use(OldestFirst(LIMIT, LIMIT // 2))
            .use(ContextWindowGuard, max_context_tokens=LIMIT, prune_on_overflow=True)
            .build(services.__getitem__)
        )


def test_no_progress_event_quotes_a_message_or_an_error() -> None:
    heard: list[ProgressEvent] = []

    async def turns() -> None:
        for history in HISTORIES.values():
            for answers in ANSWERS.values():
                stack = ChatStack(ScriptedClient(answers)).use(ProgressReporter, on_progress=heard.append)
                stack = stack.use(FunctionInvoker, tools=TOOLS, max_consecutive_failures=1)
                stack = stack.use(ContextWindowGuard, max_context_tokens=LIMIT, prune_on_overflow=True)
                async with stack.open() as client:
                    with contextlib.suppress(ToolLoopError):
                        await client.get_response(history)

    asyncio.run(turns())
    others = ("iteration", "edit_")  # of the iterative loop, and of a summarizer
    kinds = {kind for kind in typing.get_args(ProgressKind) if not kind.startswith(others)}
    assert {event.kind for event in heard} == kinds
    assert [event for event in heard if CANARY in repr(event)] == []


def layers_in(modules: Iterable[object]) -> set[type]:
    """The classes, defined in these modules, that wrap a client: dataclasses with a field ``inner``, and ``send``."""
    return {
        found
        for module in modules
        for found in vars(module).values()
        if isinstance(found, type)
        and found.__module__ == getattr(module, "__name__", None)
        and dataclasses.is_dataclass(found)
        and not inspect.isabstract(found)
        and "inner" in {field.name for field in dataclasses.fields(found)}
        and callable(getattr(found, "send", None))
    }


OF_OTHERS = tuple(
    f"chatstack.workbench.replay.peers.{name}"
    for name in ("langchain", "agent_framework", "headroom", "maf_compaction")
)


def modules_of_ours() -> list[object]:
    """Every module of the package, save those that take another framework to be imported."""
    found: list[object] = []
    for module in pkgutil.walk_packages(chatstack.__path__, "chatstack."):
        if not module.name.endswith("__main__") and module.name not in OF_OTHERS:
            found.append(importlib.import_module(module.name))
    return found


def suites() -> list[type[LayerContract]]:
    """The contracts in this module."""
    found = [each for each in globals().values() if isinstance(each, type) and issubclass(each, LayerContract)]
    return [each for each in found if each is not LayerContract]


def enrolled() -> set[type]:
    """The layers that some contract in this module covers."""
    return {layer for suite in suites() for layer in getattr(suite, "covers", ())}


class ForgetsToReturn(ChatFronts):
    """A layer of somebody else's, with the mistake that is made most often."""

    def __init__(self, inner: ChatClient) -> None:
        self.inner = inner

    async def send(self, request: ChatRequest, /) -> ChatStream:  # type: ignore[return]
        await self.inner.send(request)


class IsNotAsync(ForgetsToReturn):
    """Gives the stream itself."""

    def send(self, request: ChatRequest, /) -> ChatStream:  # type: ignore[override]
        return ChatStream.opening(lambda: self.inner.send(request))


@pytest.mark.parametrize("suite", suites(), ids=lambda suite: suite.__name__)
def test_a_layer_inside_that_is_not_async_is_named(suite: type[LayerContract]) -> None:
    inner: typing.Any = IsNotAsync(ScriptedClient(["hello"]))
    client = suite().make(inner, Telemetry())
    with pytest.raises(TypeError, match=r"^IsNotAsync: send\(\) is no coroutine function: write 'async def send'"):
        asyncio.run(client.send(ChatRequest((Message.user("hello"),))))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("suite", suites(), ids=lambda suite: suite.__name__)
def test_a_layer_inside_that_gives_no_stream_is_named(suite: type[LayerContract], stream: bool) -> None:
    client = suite().make(ForgetsToReturn(ScriptedClient(["hello"])), Telemetry())
    told = r"^ForgetsToReturn: send\(\) gave a NoneType, not a ChatStream: write 'return await self\.inner"
    with pytest.raises(TypeError, match=told):
        asyncio.run(client.send(ChatRequest((Message.user("hello"),), stream=stream)))


def not_enrolled(layers: set[type]) -> list[str]:
    return sorted(layer.__name__ for layer in layers - enrolled())


def test_every_layer_is_enrolled() -> None:
    missing = not_enrolled(layers_in(modules_of_ours()))
    assert not missing, f"{missing}: write a LayerContract subclass in this file, with `covers = (...,)` and make()"


def test_the_search_finds_the_layers_that_there_are() -> None:
    assert layers_in(modules_of_ours()) >= {ProgressReporter, ModelTracer, FunctionInvoker, ContextWindowGuard}


def test_a_layer_that_is_not_enrolled_is_named() -> None:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Forgotten:
        inner: ChatClient

        async def send(self, request: object, /) -> object:
            return request

    class Module:
        pass

    module = Module()
    module.__name__ = Forgotten.__module__  # type: ignore[attr-defined]
    module.Forgotten = Forgotten  # type: ignore[attr-defined]
    assert not_enrolled(layers_in([module])) == ["Forgotten"]


def test_a_contract_without_make_says_what_is_missing() -> None:
    class Unfinished(LayerContract):
        pass

    with pytest.raises(NotImplementedError, match=r"Unfinished: write make\(self, inner, telemetry\)"):
        Unfinished().test_a_response_may_be_asked_for_again()
