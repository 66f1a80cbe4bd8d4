"""Runs: which context layers are one at run time, and which services they share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chatstack import (
    CharCounter,
    ChatOptions,
    ClearThenDrop,
    ContextMemory,
    ContextWindow,
    ContextWindowGuard,
    Message,
    Summarizer,
    ToolDeclaration,
    ToolResultClearer,
    Truncate,
)
from chatstack.client.protocol import ChatClient, chain
from chatstack.client.stream import ChatStream
from chatstack.context.histories.conversations import Form
from chatstack.context.histories.history import History
from chatstack.context.histories.recognising import Recogniser
from chatstack.context.passage import Arrived
from chatstack.context.requests.asking import Asking
from chatstack.context.requests.services import ContextServices
from chatstack.context.run import ContextLayer, ContextRun
from chatstack.stack.recipe import ChatStack
from chatstack.stores.sqlite import SQLiteStore
from chatstack.testing import ScriptedClient
from chatstack.tokens.calibration import Calibration
from chatstack.tokens.counter import TokenCounter
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


class Tight(ContextWindowGuard):
    """A guard of somebody's, with a constructor of its own."""

    def __init__(self, inner: ChatClient) -> None:
        super().__init__(inner, max_context_tokens=1_000, prune_on_overflow=True)
        object.__setattr__(self, "told", "mine")


def test_a_layer_with_a_constructor_of_its_own_adopts_services_too() -> None:
    client = ToolResultClearer(Tight(ScriptedClient(["fine"])))
    assert asyncio.run(client.get_response("Go.")).text == "fine"
    _, tight = ContextRun.of(client).layers
    assert vars(tight) == {"told": "mine"}
    assert tight.editing is not None
    assert tight.memory is tight.editing.memory is client.memory


def test_tools_stay_forbidden_where_the_history_is_kept_at_the_provider() -> None:
    model = ScriptedClient(["fine"])
    client = ChatStack(model).use(ContextWindow, max_tokens=4_000, max_tool_calls_per_turn=1).build()
    options = ChatOptions(tools=(ToolDeclaration("look", parameters="{}"),), extra={"previous_response_id": "r1"})
    asyncio.run(client.get_response([Message.user("Go."), *talk(2)[:-2]], options=options))
    assert model.requests[-1].options.tool_choice == "none"


class Twice(ContextWindowGuard):
    """A guard of somebody's, which hands on twice."""

    def passed(self, arrived: Arrived) -> Asking[ChatStream]:
        yield from arrived.as_is(arrived.request)
        return (yield from arrived.as_is(arrived.request))


def test_a_request_that_is_handed_on_again_arrives_as_it_did_before() -> None:
    model, inner = ScriptedClient(["fine", "fine"]), ContextServices(memory=ContextMemory())
    guard = ContextWindowGuard(model, max_context_tokens=500, prune_on_overflow=True, services=inner)
    client: Any = Truncate(max_tokens=900).as_layer()(Twice(guard, max_context_tokens=2_000))
    made: list[Form] = []
    derived = inner.memory.derived
    recognised = derived.recognised
    derived.recognised = lambda seen, form, messages: made.append(form) or recognised(seen, form, messages)  # type: ignore[method-assign, func-returns-value]
    asyncio.run(client.get_response([Message.user("Go."), *talk(12)]))
    assert model.requests[0].messages == model.requests[1].messages
    assert len(set(made)) == 1


def test_what_is_derived_of_a_history_grows_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers by original and others, behind several that leave messages out: none takes the place of another."""
    made: list[History] = []
    derive = History.derived
    monkeypatch.setattr(History, "derived", lambda self, *given: made.append(self) or derive(self, *given))  # type: ignore[func-returns-value]
    stack = (
        ChatStack(ScriptedClient(["fine"]))
        .use(ClearThenDrop, max_tokens=1_500, mentions=0.05)
        .use(Truncate, max_tokens=900)
    )
    stack = stack.use(ToolResultClearer, trigger={"tokens": 500}, keep={"messages": 2}).use(
        Summarizer, max_tokens=5_000
    )
    client = stack.use(ContextWindowGuard, max_context_tokens=400, prune_on_overflow=True).build()
    history, calls = [Message.user("Go."), *talk(30)[:-2]], []
    for number in range(12):
        made.clear()
        asyncio.run(client.get_response(list(history)))
        calls.append(len(made))
        call = ToolCall(f"d{number}", "look", "{}")
        history += [Message.assistant(call), Message.tool(call.id, "a tree", name="look")]
    assert calls[0] > 2
    assert calls.count(0) > 6, "a new one is made behind a new edit only"


def test_conversations_with_one_beginning_leave_few_derived_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, history = ContextMemory(), [Message.user("Go."), *talk(12)]
    made: list[History] = []
    derive = History.derived
    monkeypatch.setattr(History, "derived", lambda self, *given: made.append(self) or derive(self, *given))  # type: ignore[func-returns-value]
    stack = ChatStack(ScriptedClient(["fine"]), memory=memory).use(Truncate, max_tokens=900)
    client = stack.use(ContextWindowGuard, max_context_tokens=800, prune_on_overflow=True).build()
    for number in range(40):
        asyncio.run(client.get_response(history, conversation_id=f"talk {number}"))
    assert len(made) == 40
    assert all(len(each.forms) <= 16 for each in made)


def test_forgetting_a_conversation_gives_back_what_was_derived() -> None:
    memory, history = ContextMemory(), [Message.user("Go."), *talk(12)]
    stack = ChatStack(ScriptedClient(["fine"]), memory=memory).use(Truncate, max_tokens=900)
    client = stack.use(ContextWindowGuard, max_context_tokens=800, prune_on_overflow=True).build()
    asyncio.run(client.get_response(history, conversation_id="mine"))
    asyncio.run(client.get_response(history, conversation_id="yours"))
    (known,) = memory._recogniser.histories()
    before, names = known.held_bytes, {each.who for each in known.forms}
    memory.forget(conversation_id="mine")
    assert {each.who for each in known.forms} == names - {memory.names.by_id("mine")}
    assert known.held_bytes < before


def test_a_report_is_learnt_once_for_each_counter() -> None:
    learnt: list[TokenCounter] = []

    class Counted(Calibration):
        def learn(self, model: str, counter: TokenCounter, estimated: int, reported: int) -> None:
            learnt.append(counter)

    ours, theirs = CharCounter(4), CharCounter(3)
    services: dict[str, Any] = {"services": ContextServices(calibration=Counted())}
    client: Any = ContextWindowGuard(ScriptedClient(["fine"]), max_context_tokens=9_000, counter=ours, **services)
    client = ContextWindowGuard(client, max_context_tokens=9_000, counter=theirs, **services)
    client = ToolResultClearer(client, trigger={"tokens": 900}, keep={"messages": 4}, counter=ours, **services)
    asyncio.run(client.get_response([Message.user("Go."), *talk(12)]))
    assert sorted(map(repr, learnt)) == sorted(map(repr, [ours, theirs]))
