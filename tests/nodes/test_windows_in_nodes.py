"""A context window, or a whole stack of context layers, as the context manager of a node."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from chatstack import (
    AgentState,
    ChatNode,
    ChatOptions,
    ChatStack,
    ClearThenDrop,
    ContextMemory,
    ContextWindow,
    ContextWindowGuard,
    FunctionInvoker,
    LayerOrderWarning,
    Message,
    ProgressReporter,
    ServerError,
    StackContextManager,
    StrategyContextManager,
    Summarizer,
    Telemetry,
    ToolCall,
    ToolDeclaration,
    ToolResultClearer,
    WiringError,
    tool,
)
from chatstack.stores.sqlite import SQLiteStore
from chatstack.testing import ScriptedClient, TelemetryCapture
from tests.strangers import DropsThanks, ToldToEdit

LIMIT = 300


@dataclass
class Trip(AgentState):
    """A state of somebody's own."""

    cities: list[str] = field(default_factory=list)


def turns(count: int) -> list[Message]:
    return [
        each
        for number in range(count)
        for each in (Message.user(f"question {number} " + "x" * 60), Message.assistant(f"answer {number} " + "y" * 60))
    ]


def writer(*answers: str | BaseException) -> ScriptedClient:
    return ScriptedClient(answers or ["they spoke of the weather"])


def window(summary_client: ScriptedClient | None, **options: object) -> ContextWindow:
    return ContextWindow(LIMIT, keep_recent_turns=1, summary_client=summary_client, **options)  # type: ignore[arg-type]


def marks(messages: object) -> list[str]:
    assert isinstance(messages, list | tuple)
    return [message.mark for message in messages if message.mark]


def test_a_node_trims_with_a_window_for_that_call_only() -> None:
    model, writes = ScriptedClient(["fine"]), writer()
    node = ChatNode(model, context_manager=window(writes))
    state = Trip([*turns(8), Message.user("and now?")], cities=["Lima"])
    after = asyncio.run(node(state))
    assert marks(model.requests[0].messages) == ["summary"]
    assert after.messages == [*state.messages, Message.assistant("fine")]
    assert after.cities == ["Lima"]
    assert type(after) is Trip


def test_over_many_turns_the_state_stays_whole_and_summaries_are_folded() -> None:
    model = ScriptedClient(["fine " * 12])
    writes = writer(*(f"summary {number}" for number in range(99)))
    node = ChatNode(model, context_manager=window(writes))

    async def talk() -> AgentState:
        state = AgentState()
        for number in range(30):
            asked = Message.user(f"question {number} " + "x" * 60)
            state = await node(AgentState([*state.messages, asked]))
        return state

    state = asyncio.run(talk())
    assert len(state.messages) == 60
    assert marks(state.messages) == []
    assert [marks(request.messages) for request in model.requests[-5:]] == [["summary"]] * 5
    assert len(writes.requests) < 15
    for before, after in zip(writes.requests, writes.requests[1:], strict=False):
        number = writes.requests.index(before)
        assert f"summary so far]\nsummary {number}\n" in after.messages[0].text


def test_a_window_without_a_client_of_its_own_asks_the_model_of_the_node() -> None:
    model = ScriptedClient(["they spoke of the weather", "fine"])
    after = asyncio.run(ChatNode(model, context_manager=window(None))(AgentState([*turns(8), Message.user("now?")])))
    assert len(model.requests) == 2
    assert model.requests[0].options.max_tokens is not None
    assert marks(model.requests[1].messages) == ["summary"]
    assert after.messages[-1].text == "fine"


def test_the_summary_is_written_behind_the_tool_loop_of_the_nodes_client() -> None:
    @tool
    def look() -> str:
        """Look."""
        return "sunny"

    model = ScriptedClient(["they spoke of the weather", Message.assistant(ToolCall("c", "look")), "fine"])
    client = ChatStack(model).use(ProgressReporter).use(FunctionInvoker, tools=[look]).build()
    asyncio.run(ChatNode(client, context_manager=window(None))(AgentState([*turns(8), Message.user("now?")])))
    assert [bool(request.options.tools) for request in model.requests] == [False, True, True]


def test_a_summary_that_fails_lets_the_truncation_work() -> None:
    model, capture = ScriptedClient(["fine"]), TelemetryCapture()
    services: dict[type, object] = {Telemetry: capture.telemetry}
    node = ChatNode(model, context_manager=window(writer(ServerError("no"))), resolve=services.__getitem__)
    history = [*turns(8), Message.user("now?")]
    after = asyncio.run(node(AgentState(history)))
    sent = model.requests[0].messages
    assert (sent[0], sent[-1]) == (history[0], history[-1])
    assert len(sent) < len(history)
    assert len(after.messages) == len(history) + 1
    assert list(capture.warnings) == ["summarizer_failed"]


def test_a_manager_with_a_window_must_be_awaited() -> None:
    manager = StrategyContextManager(window(writer()))
    with pytest.raises(WiringError, match=r"StrategyContextManager: trim_context cannot wait .*await atrim_context"):
        manager.trim_context(AgentState(turns(8)))
    trimmed = asyncio.run(manager.atrim_context(AgentState([*turns(8), Message.user("now?")])))
    assert marks(trimmed.messages) == ["summary"]


def test_a_manager_with_a_window_and_nobody_to_write_summaries_fails_when_it_is_made() -> None:
    with pytest.raises(WiringError, match=r"ContextWindow has no model .*summary_client=.*client=") as error:
        StrategyContextManager(window(None))
    assert error.value.parameter == "client"


def test_a_managers_client_writes_the_summaries_of_a_window_that_has_none() -> None:
    client = writer()
    manager = StrategyContextManager(window(None), client=client)
    trimmed = asyncio.run(manager.atrim_context(AgentState([*turns(8), Message.user("now?")])))
    assert marks(trimmed.messages) == ["summary"]
    assert len(client.requests) == 1


def test_a_window_without_limits_needs_nobody_and_trims_nothing() -> None:
    state = AgentState(turns(50))
    assert asyncio.run(StrategyContextManager(ContextWindow()).atrim_context(state)) is state


def test_managers_that_share_a_store_pay_for_a_summary_once(tmp_path: Path) -> None:
    writes = writer()
    state = AgentState([*turns(8), Message.user("now?")])

    async def trim() -> AgentState:
        memory = ContextMemory(store=SQLiteStore(tmp_path / "decisions.sqlite"), scope="tenant")
        try:
            return await StrategyContextManager(window(writes), memory=memory).atrim_context(state)
        finally:
            await memory.aclose()

    one, other = asyncio.run(trim()), asyncio.run(trim())
    assert one.messages == other.messages
    assert len(writes.requests) == 1


def layers(provider: ScriptedClient) -> ChatStack:
    return (
        ChatStack(provider)
        .use(ToolResultClearer, trigger={"tokens": 200}, keep={"messages": 1})
        .use(Summarizer, max_tokens=LIMIT, keep_recent_turns=1)
        .use(ContextWindowGuard, max_context_tokens=2 * LIMIT, prune_on_overflow=True)
    )


def rounds(count: int) -> list[Message]:
    calls = [(Message.assistant(ToolCall(f"c{n}", "look")), Message.tool(f"c{n}", f"{n} " * 50)) for n in range(count)]
    return [Message.user("task"), *(message for each in calls for message in each)]


def test_a_whole_stack_is_a_manager_whose_provider_only_writes_summaries() -> None:
    provider = writer()
    manager = StackContextManager(layers(provider))
    state = AgentState([*rounds(12), Message.assistant("so"), Message.user("now?")])
    trimmed = asyncio.run(manager.atrim_context(state))
    assert marks(trimmed.messages) == ["summary"]
    assert len(provider.requests) == 1
    assert "0 0 0 " in provider.requests[0].messages[0].text
    assert len(state.messages) == 27


def test_a_stack_as_a_manager_decides_the_same_way_again() -> None:
    provider = writer()
    manager = StackContextManager(layers(provider))

    async def twice() -> tuple[AgentState, AgentState]:
        history = [*rounds(12), Message.assistant("so"), Message.user("now?")]
        return (
            await manager.atrim_context(AgentState(history)),
            await manager.atrim_context(AgentState([*history, Message.assistant("ok"), Message.user("more")])),
        )

    first, second = asyncio.run(twice())
    assert second.messages[: len(first.messages)] == first.messages
    assert len(provider.requests) == 1


def test_a_stack_as_a_manager_leaves_the_state_itself_where_nothing_is_due() -> None:
    state = AgentState(turns(1))
    assert asyncio.run(StackContextManager(layers(writer())).atrim_context(state)) is state


def test_a_stack_as_a_manager_must_be_awaited() -> None:
    with pytest.raises(WiringError, match=r"StackContextManager: trim_context cannot wait .* layer 'Summarizer' may"):
        StackContextManager(layers(writer())).trim_context(AgentState(turns(1)))


def test_only_context_layers_can_be_a_manager() -> None:
    stack = layers(writer()).use(FunctionInvoker)
    with (
        pytest.warns(LayerOrderWarning),
        pytest.raises(WiringError, match="layer 'FunctionInvoker' is no context layer"),
    ):
        StackContextManager(stack)


def test_a_strangers_context_layer_can_be_a_manager_and_is_told_how() -> None:
    stack = ChatStack(ScriptedClient())
    with pytest.raises(WiringError, match=r'if it does no more than that, say so in its class: kind = "context"; else'):
        StackContextManager(stack.use(DropsThanks))
    state = AgentState([Message.user("hello"), Message.user("thanks")])
    trimmed = asyncio.run(StackContextManager(stack.use(ToldToEdit)).atrim_context(state))
    assert [each.text for each in trimmed.messages] == ["hello"]


def test_a_built_client_is_no_stack() -> None:
    with pytest.raises(WiringError, match="stack is a BuiltClient; pass a ChatStack, not built yet"):
        StackContextManager(layers(writer()).build())  # type: ignore[arg-type]


def test_a_manager_says_nothing_of_tools_that_it_cannot_forbid() -> None:
    capture = TelemetryCapture()
    options = ChatOptions(tools=(ToolDeclaration("look"),))
    manager = StrategyContextManager(
        window(writer(), max_tool_calls_per_turn=2), telemetry=capture.telemetry, options=options
    )
    asyncio.run(manager.atrim_context(AgentState(rounds(5))))
    assert list(capture.warnings) == []


class TellingClient(ScriptedClient):
    """A provider whose API tells the window."""

    asked = 0

    async def window_tokens(self, model: str = "") -> int | None:
        self.asked += 1
        await asyncio.sleep(0)
        return 1_000


def clearing(provider: ScriptedClient, **options: object) -> ChatStack:
    given: dict[str, Any] = {"trigger": {"tokens": 200}, "keep": {"messages": 1}, **options}
    return ChatStack(provider).use(ToolResultClearer, **given)


def test_a_stack_that_has_nothing_to_wait_for_trims_at_once() -> None:
    provider = TellingClient()
    stack = clearing(provider).use(ContextWindowGuard, max_context_tokens=LIMIT, prune_on_overflow=True)
    manager, state = StackContextManager(stack), AgentState(rounds(40))
    at_once = manager.trim_context(state)
    alone = ChatStack(provider, layers=stack.layers)  # with a memory of its own
    assert at_once.messages == asyncio.run(StackContextManager(alone).atrim_context(state)).messages
    assert len(at_once.messages) < len(state.messages)
    assert provider.requests == []


def test_a_stack_that_trims_at_once_decides_the_same_way_when_awaited() -> None:
    manager = StackContextManager(clearing(TellingClient()))
    first = manager.trim_context(AgentState(rounds(12)))
    history = [*rounds(12), Message.assistant("so"), Message.user("more")]
    assert (
        list(asyncio.run(manager.atrim_context(AgentState(history))).messages)[: len(first.messages)] == first.messages
    )


def test_what_trims_at_once_asks_no_api_also_where_the_head_keeps_changing() -> None:
    provider = TellingClient()
    manager = StackContextManager(clearing(provider))
    for number in range(5):
        history = [Message.system(f"it is {number} o'clock"), *rounds(12 + number)]
        manager.trim_context(AgentState(history))
    assert provider.asked == 0


@pytest.mark.parametrize(
    "stack",
    [
        ChatStack(TellingClient()).use(ClearThenDrop()),
        ChatStack(TellingClient()).use(ContextWindowGuard, max_context_tokens="auto"),
        clearing(TellingClient(), trigger={"fraction": 0.5}),
        clearing(TellingClient(), token_count_method="model"),
    ],
)
def test_a_layer_that_may_ask_the_provider_must_be_awaited(stack: ChatStack) -> None:
    with pytest.raises(WiringError, match=f"trim_context cannot wait .* layer '{stack.layers[0].name}' may have to"):
        StackContextManager(stack).trim_context(AgentState(turns(1)))
    assert asyncio.run(StackContextManager(stack).atrim_context(AgentState(turns(1)))).messages == turns(1)


def test_a_shared_memory_must_be_awaited(tmp_path: Path) -> None:
    memory = ContextMemory(store=SQLiteStore(tmp_path / "decisions.sqlite"), scope="nodes")
    stack = ChatStack(ScriptedClient(), memory=memory).use(ToolResultClearer)
    with pytest.raises(WiringError, match="cannot wait for a model or a store, as layer 'ToolResultClearer' may"):
        StackContextManager(stack).trim_context(AgentState(turns(1)))
