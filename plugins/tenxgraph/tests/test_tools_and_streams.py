"""Tool loops inside and outside of the client, and what is seen of a turn while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from injectq import InjectQ
from tenxgraph.core.exceptions import NodeError
from tenxgraph.core.graph import StateGraph, ToolNode
from tenxgraph.core.state import AgentState as GraphState
from tenxgraph.core.state import Message as GraphMessage
from tenxgraph.utils import END

from chatstack import (
    BrokenStreamError,
    ChatOptions,
    ChatStack,
    FunctionInvoker,
    InputError,
    Message,
    MessageContextManager,
    Reasoning,
    ToolCall,
    tool,
)
from chatstack.testing import ScriptedClient
from chatstack_tenxgraph import GraphChatNode, from_tenxgraph
from tests.graphs import Broken, asking, assert_whole_pairs, compiled, graph_of, sent_to, state_of


def look(at: str) -> str:
    """Look at something."""
    if at == "sun":
        raise ValueError("too bright")
    return f"{at} is blue"


def calls(round: int) -> list[Any]:
    arguments = ('{"at":"sky"}', '{ "at": "sea" }', '{"at":"sun"}')
    made = [ToolCall(f"c{round}-{number}", "look", text) for number, text in enumerate(arguments)]
    return [Reasoning("hm", '{"type":"thinking","thinking":"hm","signature":"s"}', "anthropic"), "let me see", *made]


ANSWERS = [
    Message.assistant(*calls(0)),
    "blue",
    Message.assistant(*calls(1)),
    Message.assistant(*calls(2)),
    "still blue",
    "yes",
]
TURNS = ("what colour?", "sure?", "really?")


def assert_all_is_there(held: list[GraphMessage], model: ScriptedClient) -> None:
    """Three turns with three rounds of three calls, one of which fails."""
    messages = from_tenxgraph(held, keep_rest=False)
    assert_whole_pairs(messages)
    assert [message.text for message in messages if message.role == "user"] == list(TURNS)
    assert [message for message in messages if message.role == "assistant"] == [
        each if isinstance(each, Message) else Message.assistant(each) for each in ANSWERS
    ]
    failed = [result.is_error for message in messages for result in message.results]
    # The framework's own tool node runs calls together, and adds their results as they come.
    assert [sorted(failed[at : at + 3]) for at in (0, 3, 6)] == [[False, False, True]] * 3
    assert len(failed) == 9
    for request in model.requests:
        assert_whole_pairs(request.messages)
    assert len(sent_to(model)) < len(messages) - 1


async def all_turns(app: Any, database: Path, streams: bool) -> list[GraphMessage]:
    for text in TURNS:
        if streams:
            async for _ in app.astream(asking(text), {"thread_id": "t"}):
                pass
        else:
            await app.ainvoke(asking(text), {"thread_id": "t"})
    found: list[GraphMessage] = (await state_of(database, "t")).context
    return found


@pytest.mark.parametrize("streams", [False, True], ids=["invoked", "streamed"])
def test_our_tool_loop_inside_the_client(streams: bool, tmp_path: Path) -> None:
    model = ScriptedClient(ANSWERS)
    client = ChatStack(model).use(FunctionInvoker, tools=[tool(look)]).build()
    node = GraphChatNode(client, context_manager=MessageContextManager(1))

    async def converse() -> list[GraphMessage]:
        async with graph_of(node, tmp_path / "graph.db") as app:
            return await all_turns(app, tmp_path / "graph.db", streams)

    assert_all_is_there(asyncio.run(converse()), model)


@pytest.mark.parametrize("streams", [False, True], ids=["invoked", "streamed"])
def test_10xgraphs_tool_node_outside_of_it(streams: bool, tmp_path: Path) -> None:
    def next_node(state: GraphState) -> str:
        return "tools" if state.context[-1].tools_calls else END

    model = ScriptedClient(ANSWERS)
    declared = ChatOptions(tools=(tool(look).declaration(),))
    graph: Any = StateGraph(container=InjectQ())
    graph.add_node("chat", GraphChatNode(model, context_manager=MessageContextManager(1), options=declared))
    graph.add_node("tools", ToolNode([look]))
    graph.set_entry_point("chat")
    graph.add_conditional_edges("chat", next_node, {"tools": "tools", END: END})
    graph.add_edge("tools", "chat")

    async def converse() -> list[GraphMessage]:
        async with compiled(graph, tmp_path / "graph.db") as app:
            return await all_turns(app, tmp_path / "graph.db", streams)

    assert_all_is_there(asyncio.run(converse()), model)


def streamed(node: Any) -> list[GraphMessage]:
    async def read() -> list[GraphMessage]:
        async with graph_of(node) as app:
            stream = app.astream(asking("what colour?"), {"thread_id": "t"})
            told = [each.message async for each in stream]  # 10xgraph uses one chunk object again and again
            return [message for message in told if message is not None and message.role != "user"]

    return asyncio.run(read())


def test_deltas_arrive_one_by_one_and_each_message_whole_behind_them() -> None:
    model = ScriptedClient(ANSWERS)
    client = ChatStack(model).use(FunctionInvoker, tools=[tool(look)]).build()
    told = streamed(GraphChatNode(client))
    assert [(each.role, each.delta) for each in told] == [
        *[("assistant", True)] * 4,
        ("assistant", False),
        *[("tool", False)] * 3,
        ("assistant", True),
        ("assistant", False),
    ]
    assert [each.text() for each in told if each.delta] == ["", "let", " me", " see", "blue"]
    assert len({each.message_id for each in told[:5]}) == 1
    assert len({each.message_id for each in told}) == 5
    assert told[-1].usages is not None
    assert model.requests[0].stream


def test_nothing_is_streamed_where_nobody_listens() -> None:
    model = ScriptedClient()

    async def converse() -> None:
        async with graph_of(GraphChatNode(model)) as app:
            await app.ainvoke(asking("hello"), {"thread_id": "t"})

    asyncio.run(converse())
    assert not model.requests[0].stream


@pytest.mark.parametrize("fails", [["half an", BrokenStreamError("gone", provider="scripted")], None])
def test_a_turn_that_fails_in_the_middle_is_an_error_of_the_run(fails: Any) -> None:
    model = ScriptedClient([fails or "fine"])
    with pytest.raises(NodeError) as caught:
        streamed(GraphChatNode(model, context_manager=None if fails else Broken()))
    assert isinstance(caught.value.__cause__, BrokenStreamError if fails else AttributeError)
    assert model.open_streams == 0


def test_a_stream_that_is_left_in_the_middle_ends_the_turn() -> None:
    model = ScriptedClient(["one two three four"], delay_seconds=0.1)

    async def read() -> int:
        node = GraphChatNode(model)
        converter: Any = await node(GraphState(context=asking("hello")["messages"]), {"is_stream": True})
        stream = converter.stream({"thread_id": "t"}, node_name="chat")
        async for message in stream:
            assert message.delta
            break
        assert model.open_streams == 1
        await stream.aclose()
        await asyncio.sleep(0.02)  # 10xgraph's generator leaves closing ours to the event loop
        return len(asyncio.all_tasks())

    assert asyncio.run(read()) == 1
    assert model.open_streams == 0


def test_two_streams_at_once_hear_their_own() -> None:
    async def read(text: str) -> set[str]:
        async with graph_of(GraphChatNode(ScriptedClient([f"{text} " * 5], delay_seconds=0.001))) as app:
            told = [each.message async for each in app.astream(asking("?"), {"thread_id": text})]
            return {message.text().strip() for message in told if message is not None and message.delta} - {""}

    async def both() -> list[set[str]]:
        return await asyncio.gather(read("left"), read("right"))

    assert asyncio.run(both()) == [{"left"}, {"right"}]


def test_a_streamed_turn_is_no_single_message() -> None:
    async def read() -> None:
        node = GraphChatNode(ScriptedClient())
        converter: Any = await node(GraphState(context=asking("hello")["messages"]), {"is_stream": True})
        await converter.invoke()

    with pytest.raises(InputError, match="no single message"):
        asyncio.run(read())
