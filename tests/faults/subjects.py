"""The layers under fault, each in a stack of its own, and some stacks of several."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from chatstack import (
    AgentState,
    Budget,
    ChatNode,
    ChatResponse,
    ChatStack,
    ContextWindow,
    ContextWindowGuard,
    Fallback,
    FunctionInvoker,
    IterativeContext,
    IterativeLoop,
    IterativeResult,
    MemoryWorkspace,
    Message,
    OldestFirst,
    ProgressReporter,
    Summarizer,
    ToolCall,
    ToolResultClearer,
    ToolResultShaper,
)
from chatstack.client.fronts import ChatFronts
from tests.faults.world import World

LIMIT = 240
"""Tokens; the history is longer."""


def history() -> list[Message]:
    """Return a conversation over which every context layer has something to do."""
    messages = [Message.system("be brief")]
    for number in range(5):
        what = f"number {number} " * 8
        call = ToolCall(f"r{number}", "lookup", f'{{"what": "{number}"}}')
        messages += [
            Message.user(f"how is {what}"),
            Message.assistant("let me see", call),
            Message.tool(call.id, f"sunny at {what}" * 3, name="lookup"),
            Message.assistant(f"it is sunny at {what}"),
        ]
    return [*messages, Message.user("and now?")]


Ask: TypeAlias = Callable[[Sequence[Message], bool, list[str]], Awaitable[ChatResponse | IterativeResult]]
"""Ask for an answer to these messages, streamed or not; the list collects the text that was streamed."""


@dataclass(frozen=True)
class Subject:
    """Something to call, with a name. ``has`` says which faults concern it."""

    name: str
    has: frozenset[str]
    open: Callable[[World], AbstractAsyncContextManager[Ask]]


def _in_stack(name: str, layers: Callable[[ChatStack, World], ChatStack], *has: str) -> Subject:
    @asynccontextmanager
    async def opened(world: World) -> AsyncGenerator[Ask]:
        async with layers(ChatStack(world.model), world).open(world.resolve) as client:
            yield partial(_ask, client, world)

    return Subject(name, frozenset(has), opened)


async def _ask(
    client: ChatFronts, world: World, messages: Sequence[Message], stream: bool, heard: list[str]
) -> ChatResponse:
    if not stream:
        return await client.get_response(messages, conversation_id="c", timeout_seconds=world.timeout_seconds)
    async with client.get_streaming_response(
        messages, conversation_id="c", timeout_seconds=world.timeout_seconds
    ) as answer:
        async for update in answer:
            heard.append(update.text)
        return await answer.response()


@asynccontextmanager
async def _bare(world: World) -> AsyncGenerator[Ask]:
    yield partial(_ask, world.model, world)


@asynccontextmanager
async def _node(world: World) -> AsyncGenerator[Ask]:
    manager = OldestFirst(LIMIT, LIMIT // 2)
    limit = world.timeout_seconds
    node = ChatNode(world.model, context_manager=manager, resolve=world.resolve, timeout_seconds=limit)

    async def ask(messages: Sequence[Message], stream: bool, heard: list[str]) -> ChatResponse:
        return await node.answer(AgentState(tuple(messages)), conversation_id="c")

    yield ask


@asynccontextmanager
async def _loop(world: World) -> AsyncGenerator[Ask]:
    loop = IterativeLoop(
        world.model,
        "be brief",
        lambda context: "and now?",
        tools=_tools(world),
        tool_timeout_seconds=world.tool_timeout_seconds,
        telemetry=world.telemetry,
        resolve=world.resolve,
    )

    async def ask(messages: Sequence[Message], stream: bool, heard: list[str]) -> IterativeResult:
        async with asyncio.timeout(world.timeout_seconds):
            return await loop.run(IterativeContext(workspace=MemoryWorkspace()))

    yield ask


def _tools(world: World) -> list[Callable[..., Awaitable[object]]]:
    async def lookup(what: str) -> object:
        """Look something up."""
        return await world.tool()

    return [lookup]


def _invoker(stack: ChatStack, world: World) -> ChatStack:
    return stack.use(FunctionInvoker, tools=_tools(world), tool_timeout_seconds=world.tool_timeout_seconds)


def _reporter(stack: ChatStack, world: World) -> ChatStack:
    return stack.use(ProgressReporter, on_progress=world.listener)


def _clearer(stack: ChatStack, world: World) -> ChatStack:
    return stack.use(ToolResultClearer, trigger={"tokens": 2 * LIMIT}, keep={"messages": 1})


def _guard(stack: ChatStack, world: World) -> ChatStack:
    return stack.use(ContextWindowGuard, max_context_tokens=LIMIT, prune_on_overflow=True)


def _summarizer(stack: ChatStack, world: World) -> ChatStack:
    return stack.use(Summarizer, max_tokens=LIMIT, keep_recent_turns=1, summary_client=world.writer)


def _full(stack: ChatStack, world: World) -> ChatStack:
    stack = _invoker(_reporter(stack, world), world).use(ToolResultShaper, max_bytes=100)
    return _guard(_summarizer(_clearer(stack, world), world), world)


SUBJECTS = (
    Subject("nothing", frozenset(), _bare),
    _in_stack("ModelTracer", lambda stack, world: stack),
    _in_stack("ProgressReporter", _reporter, "listener"),
    _in_stack("FunctionInvoker", _invoker, "tools"),
    _in_stack("ToolResultShaper", lambda stack, world: stack.use(ToolResultShaper, max_bytes=100), "context"),
    _in_stack("ToolResultClearer", _clearer, "context"),
    _in_stack("Summarizer", _summarizer, "context", "summary"),
    _in_stack(
        "Summarizer without a client",
        lambda stack, world: stack.use(Summarizer, max_tokens=LIMIT, keep_recent_turns=1),
        "context",
    ),
    _in_stack(
        "Summarizer ahead of need",
        lambda stack, world: stack.use(
            Summarizer, max_tokens=900, keep_recent_turns=1, prepare_at=0.2, summary_client=world.writer
        ),
        *("context", "summary"),
    ),
    _in_stack(
        "ContextWindow",
        lambda stack, world: stack.use(
            ContextWindow, max_tokens=LIMIT, keep_recent_turns=1, summary_client=world.writer
        ),
        *("context", "summary"),
    ),
    _in_stack("ContextWindowGuard", _guard, "context"),
    _in_stack("OldestFirst", lambda stack, world: stack.use(OldestFirst(LIMIT, LIMIT // 2)), "context"),
    _in_stack("Budget", lambda stack, world: stack.use(Budget, max_tokens=1_000_000)),
    _in_stack("Fallback", lambda stack, world: stack.use(Fallback, clients=[world.other]), "context"),
    _in_stack("a whole stack", _full, "context", "tools", "summary", "listener"),
    Subject("ChatNode", frozenset({"context"}), _node),
    Subject("IterativeLoop", frozenset({"tools"}), _loop),
)
