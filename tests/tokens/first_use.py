"""A program that tests run: uses what loads tables for the first time, on an event loop; prints which thread did."""

from __future__ import annotations

import asyncio
import importlib.abc
import json
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Sequence
from types import ModuleType
from typing import Any

from chatstack import (
    AgentState,
    Budget,
    ChatOptions,
    ChatStack,
    ClearThenDrop,
    ContextWindowGuard,
    IterativeContext,
    IterativeLoop,
    MemoryWorkspace,
    Message,
    ProviderInfo,
    StrategyContextManager,
    Summarizer,
    TokenizerCounter,
    Truncate,
    Windows,
)
from chatstack.config.recipes import from_config
from chatstack.testing import ScriptedClient

WATCHED = ("genai_prices.data_snapshot", "bpe_openai")
MODEL = "gpt-4o"
importers: list[str] = []


class Watch(importlib.abc.MetaPathFinder):
    """Notes who imports what is watched, and lets it be imported. Looking whether it is installed is no import."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        callers = [frame.name for frame in traceback.extract_stack()]
        if name in WATCHED and "_find_and_load" in callers:
            importers.append(threading.current_thread().name)


def model() -> ScriptedClient:
    return ScriptedClient(["fine"], info=ProviderInfo(name="openai", model=MODEL))


async def window() -> object:
    windows = Windows()
    before = windows.known(model())
    windows.bound(model(), None, refused=1_000, taken=900)
    return [before, await windows.of(model()), windows.known(model())]


async def guard() -> object:
    stack = ChatStack(model()).use(ContextWindowGuard, max_context_tokens="auto")
    async with stack.open() as client:
        return (await client.get_response("hello")).text


async def summary() -> object:
    history = [make("some word " * 20) for _ in range(20) for make in (Message.user, Message.assistant)]
    stack = ChatStack(model()).use(Summarizer, max_tokens=1_500, keep_recent_turns=2, summary_client=model())
    return (await stack.build().get_response([*history, Message.user("and now?")])).text


async def budget() -> object:
    return (await ChatStack(model()).use(Budget, max_cost=1).build().get_response("hello")).text


async def loop() -> object:
    made = IterativeLoop(model(), instructions="work", prompt=lambda _: "go", max_cost=1)
    return (await made.run(IterativeContext(workspace=MemoryWorkspace()))).reason


async def tokenizer() -> object:
    config: Any = {"layers": [{"use": "ContextWindowGuard", "max_context_tokens": 9, "counter": "tokenizer"}]}
    stacks = [from_config(config, model()), ChatStack(model()).use(ContextWindowGuard, max_context_tokens=9)]
    stacks[1] = stacks[1].override("ContextWindowGuard", counter=TokenizerCounter())
    return [(await stack.build().get_response("hello")).text for stack in stacks]


async def by_hand() -> object:
    """Trimming synchronously cannot wait: on a loop it holds that up, as it says, and answers all the same."""
    state = AgentState([Message.user("hello")])
    counted = StrategyContextManager(Truncate(max_tokens=9), counter=TokenizerCounter())
    return [
        each.trim_context(state) is state
        for each in (StrategyContextManager(ClearThenDrop(), options=ChatOptions(model=MODEL)), counted)
    ]


USES: dict[str, Callable[[], Awaitable[object]]] = {
    each.__name__: each for each in (window, guard, summary, budget, loop, tokenizer, by_hand)
}


async def main(name: str) -> None:
    sys.meta_path.insert(0, Watch())
    said = await USES[name]()
    print(json.dumps({"said": said, "on_the_loop": threading.current_thread().name in importers, "by": len(importers)}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
