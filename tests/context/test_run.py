"""Runs: which context layers are one at run time, and which services they share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chatstack import ContextMemory, ContextWindow, ContextWindowGuard, Message, Summarizer, ToolResultClearer
from chatstack.client.protocol import ChatClient, chain
from chatstack.client.stream import ChatStream
from chatstack.context.recognising import Recogniser
from chatstack.context.run import ContextLayer, ContextRun
from chatstack.context.services import ContextServices
from chatstack.stack.recipe import ChatStack
from chatstack.stores.sqlite import SQLiteStore
from chatstack.testing import ScriptedClient
from chatstack.tokens.windows import Windows
from chatstack.values.parts import ToolCall
from chatstack.values.requests import ChatRequest


@dataclass(frozen=True)
class Stranger:
    """Somebody's layer, which hands everything on."""

    inner: ChatClient

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request)


class Louder(ContextWindowGuard):
    """A guard of somebody's, with a ``send`` of its own."""

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await super().send(request)


def guarded(inner: ChatClient | None = None, **services: Any) -> ContextWindowGuard:
    inner = inner or ScriptedClient(["fine"])
    return ContextWindowGuard(
        inner, max_context_tokens=1_000, prune_on_overflow=True, services=ContextServices(**services)
    )


def names(run: ContextRun) -> list[str]:
    return [type(layer).__name__ for layer in run.layers]


def layer_in(client: ChatClient) -> ContextLayer:
    return next(each for each in chain(client) if isinstance(each, ContextLayer))


def test_adjacent_context_layers_are_one_run_and_the_rest_is_not() -> None:
    stack = ChatStack(ScriptedClient()).use(ToolResultClearer).use(Summarizer, max_tokens=900)
    run = ContextRun.of(layer_in(stack.use(ContextWindowGuard, max_context_tokens=1_000).build()))
    assert names(run) == ["ToolResultClearer", "Summarizer", "ContextWindowGuard"]
    assert type(run.below).__name__ == "ModelTracer"


def test_a_window_is_its_parts() -> None:
    stack = ChatStack(ScriptedClient()).use(ContextWindow, max_tokens=900)
    run = ContextRun.of(layer_in(stack.use(ContextWindowGuard, max_context_tokens=1_000).build()))
    assert names(run) == ["WindowKeeper", "Summarizer", "StrategyApplier", "ContextWindowGuard"]


def test_a_strangers_layer_ends_a_run() -> None:
    assert names(ContextRun.of(ToolResultClearer(Stranger(guarded())))) == ["ToolResultClearer"]


def test_a_layer_with_a_send_of_its_own_is_sent_to() -> None:
    louder = Louder(ScriptedClient(), max_context_tokens=1_000)
    run = ContextRun.of(ToolResultClearer(louder))
    assert names(run) == ["ToolResultClearer"]
    assert run.below is louder


def test_two_memories_that_were_given_are_two_runs() -> None:
    run = ContextRun.of(
        ToolResultClearer(guarded(memory=ContextMemory()), services=ContextServices(memory=ContextMemory()))
    )
    assert names(run) == ["ToolResultClearer"]


@pytest.mark.parametrize("is_outer", [True, False])
def test_a_memory_that_one_layer_was_given_is_that_of_its_neighbours(is_outer: bool) -> None:
    memory = ContextMemory()
    client = (
        ToolResultClearer(guarded(), services=ContextServices(memory=memory))
        if is_outer
        else ToolResultClearer(guarded(memory=memory))
    )
    run = ContextRun.of(client)
    assert len(run.layers) == 2
    assert run.memory is memory
    assert {id(layer.editing.memory) for layer in run.layers if layer.editing is not None} == {id(memory)}


def test_other_services_that_were_given_stay_where_they_were_given() -> None:
    mine, theirs = Windows(), Windows()
    outer, inner = ContextRun.of(
        ToolResultClearer(guarded(windows=theirs), services=ContextServices(windows=mine))
    ).layers
    assert isinstance(outer, ToolResultClearer)
    assert isinstance(inner, ContextWindowGuard)
    assert outer.windows is mine
    assert inner.windows is theirs
    assert inner.services.calibration is outer.services.calibration


def test_what_a_neighbour_decides_reaches_the_store_of_the_layer_that_was_given_one(tmp_path: Path) -> None:
    async def calls(history: Sequence[Message]) -> list[ChatRequest]:
        model = ScriptedClient(["fine"])
        memory = ContextMemory(store=SQLiteStore(tmp_path / "decisions"), scope="mine")
        client = ToolResultClearer(guarded(model), services=ContextServices(memory=memory))
        await client.get_response(list(history))
        await memory.aclose()
        return model.requests

    history = [Message.user("Go."), *talk(12)]
    first = asyncio.run(calls(history))[-1].messages
    grown = [*history, Message.assistant("fine"), Message.user("And?")]
    second = asyncio.run(calls(grown))[-1].messages
    assert len(first) < len(history)
    assert second[: len(first)] == first


def talk(rounds: int) -> list[Message]:
    messages = []
    for number in range(rounds):
        call = ToolCall(f"c{number}", "look", "{}")
        messages += [Message.assistant(call), Message.tool(call.id, f"tree {number} " * 60, name="look")]
    return [*messages, Message.assistant("I am there."), Message.user("And now?")]


def test_a_request_is_recognised_once_whatever_was_edited(monkeypatch: pytest.MonkeyPatch) -> None:
    """By all layers together: of what is edited, the place is known."""
    lengths: list[int] = []
    recognise = Recogniser.recognise

    def counted(self: Recogniser, messages: tuple[Message, ...], *more: Any) -> Any:
        lengths.append(len(messages))
        return recognise(self, messages, *more)

    monkeypatch.setattr(Recogniser, "recognise", counted)
    model, history = ScriptedClient(["fine"]), [Message.user("Go."), *talk(12)]
    stack = ChatStack(model).use(ToolResultClearer, trigger={"tokens": 900}, keep={"messages": 4})
    client = stack.use(Summarizer, max_tokens=1_000).use(ContextWindowGuard, max_context_tokens=1_200).build()
    came = []
    for _ in range(6):
        came.append(len(history))
        asyncio.run(client.get_response(list(history)))
        history += [Message.assistant("fine"), *talk(2)]
    assert lengths == came
    assert any("cleared" in result.text for message in model.requests[-1].messages for result in message.results)
