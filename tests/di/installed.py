"""An injectq container with a recipe installed, and what tests look at in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from injectq import InjectQ

from chatstack import (
    BuiltClient,
    ChatClient,
    ChatStack,
    ContextWindowGuard,
    TokenCounter,
    find,
)
from chatstack.di.injectq import conversation, install
from tests.di.app import Journal, Words, recipe

T = TypeVar("T")


def container_of(stack: ChatStack | None = None, **options: bool) -> InjectQ:
    container = InjectQ(None, **options)
    container.bind_instance(Journal, Journal())
    container.bind(TokenCounter, Words)
    install(container, stack or recipe())
    return container


def guard_of(client: ChatClient) -> ContextWindowGuard:
    guard = find(client, ContextWindowGuard)
    assert guard is not None
    return guard


def in_conversation(container: InjectQ, look: Callable[[BuiltClient], T]) -> T:
    async def run() -> T:
        async with conversation(container) as client:
            return look(client)

    return asyncio.run(run())
