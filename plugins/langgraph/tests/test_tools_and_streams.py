"""Tool loops inside and outside of the client, and what is seen of a turn while it runs."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from chatstack import (
    BrokenStreamError,
    ChatOptions,
    ChatStack,
    FunctionInvoker,
    Message,
    MessageContextManager,
    Reasoning,
    ToolCall,
    tool,
)
from chatstack.testing import ScriptedClient
from chatstack_langgraph import GraphChatNode, from_langchain
from tests.graphs import Broken, asking, assert_whole_pairs, graph_of, sent_to, thread


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


def converse(graph: Any) -> list[BaseMessage]:
    async def all_turns() -> list[BaseMessage]:
        for text in TURNS:
            state = await graph.ainvoke(asking(text), thread("t"))
        found: list[BaseMessage] = state["messages"]
        return found

    return asyncio.run(all_turns())


def assert_all_is_there(held: list[BaseMessage], model: ScriptedClient) -> None:
    """Three turns with three rounds of three calls, one of which fails."""
    messages = from_langchain(held, keep_rest=False)
    assert_whole_pairs(messages)
    assert [message.text for message in messages if message.role == "user"] == list(TURNS)
    assert [message for message in messages if message.role == "assistant"] == [
        each if isinstance(each, Message) else Message.assistant(each) for each in ANSWERS
    ]
    assert [result.is_error for message in messages for result in message.results] == [False, False, True] * 3
    for request in model.requests:
        assert_whole_pairs(request.messages)
    assert len(sent_to(model)) < len(messages) - 1


def test_our_tool_loop_inside_the_client() -> None:
    model = ScriptedClient(ANSWERS)
    client = ChatStack(model).use(FunctionInvoker, tools=[tool(look)]).build()
    node = GraphChatNode(client, context_manager=MessageContextManager(1))
    assert_all_is_there(converse(graph_of(node, InMemorySaver())), model)


def test_langgraphs_tool_node_outside_of_it() -> None:
    model = ScriptedClient(ANSWERS)
    declared = ChatOptions(tools=(tool(look).declaration(),))
    builder = StateGraph(MessagesState)
    builder.add_node("chat", GraphChatNode(model, context_manager=MessageContextManager(1), options=declared))
    builder.add_node("tools", ToolNode([look], handle_tool_errors=True))
    builder.add_edge(START, "chat")
    builder.add_conditional_edges("chat", tools_condition)
    builder.add_edge("tools", "chat")
    graph: Any = builder.compile(checkpointer=InMemorySaver())
    assert_all_is_there(converse(graph), model)
    assert [each.name for each in model.requests[0].options.tools] == ["look"]  # type: ignore[union-attr]


def streamed(node: Any, mode: Any = "messages") -> list[Any]:
    async def read() -> list[Any]:
        return [each async for each in graph_of(node).astream(asking("what colour?"), stream_mode=mode)]

    return asyncio.run(read())


def test_tokens_arrive_one_by_one_and_no_message_twice() -> None:
    model = ScriptedClient(ANSWERS)
    client = ChatStack(model).use(FunctionInvoker, tools=[tool(look)]).build()
    told = [message for message, _ in streamed(GraphChatNode(client))]
    chunks = [each for each in told if isinstance(each, AIMessageChunk)]
    assert [each.text for each in chunks if each.text] == ["let", " me", " see", "blue"]
    assert [each["name"] for chunk in chunks for each in chunk.tool_call_chunks] == ["look"] * 3
    first, last = dict.fromkeys(each.id for each in chunks)
    whole = chunks[0]
    for each in chunks[1:]:
        whole = whole + each if each.id == first else whole
    assert isinstance(whole, AIMessageChunk)
    assert [call["args"] for call in whole.tool_calls] == [{"at": "sky"}, {"at": "sea"}, {"at": "sun"}]
    others = [each for each in told if not isinstance(each, AIMessageChunk)]
    assert [type(each) for each in others] == [ToolMessage] * 3
    assert last not in {each.id for each in others}
    assert model.requests[0].stream


def test_what_is_streamed_and_what_the_state_gets_have_the_same_ids() -> None:
    told = streamed(GraphChatNode(ScriptedClient(["it is blue"])), ["messages", "values"])
    chunks = [part[0] for mode, part in told if mode == "messages"]
    said = [part for mode, part in told if mode == "values"][-1]["messages"][-1]
    assert len(chunks) == 3
    assert {each.id for each in chunks} == {said.id}
    assert said.text == "it is blue"


def test_nothing_is_streamed_where_nobody_listens() -> None:
    model = ScriptedClient()
    asyncio.run(graph_of(GraphChatNode(model)).ainvoke(asking("hello")))
    assert not model.requests[0].stream


def test_two_streams_at_once_hear_their_own() -> None:
    class Echo(ScriptedClient):
        async def send(self, request: Any, /) -> Any:
            return await ScriptedClient([f"{request.messages[-1].text} " * 5], delay_seconds=0.001).send(request)

    async def read(text: str) -> set[str]:
        graph = graph_of(GraphChatNode(Echo()))
        parts = [each async for each, _ in graph.astream(asking(text), stream_mode="messages")]
        return {each.text.strip() for each in parts}

    async def both() -> list[set[str]]:
        return await asyncio.gather(read("left"), read("right"))

    left, right = asyncio.run(both())
    assert "left" in left
    assert "right" in right
    assert not left & {"right"}


@pytest.mark.parametrize("fails", [["half an", BrokenStreamError("gone", provider="scripted")], None])
def test_a_turn_that_fails_in_the_middle_is_an_error_of_the_run(fails: Any) -> None:
    model = ScriptedClient([fails or "fine"])
    node = GraphChatNode(model, context_manager=None if fails else Broken())

    async def read() -> list[str]:
        kinds: list[str] = []
        try:
            async for event in graph_of(node).astream_events(asking("hello"), version="v2"):
                kinds.append(event["event"])
        except (BrokenStreamError, AttributeError) as error:
            kinds.append(type(error).__name__)
        return kinds

    kinds = asyncio.run(read())
    assert kinds[-1] == ("BrokenStreamError" if fails else "AttributeError")
    assert kinds.count("on_chat_model_stream") == (1 if fails else 0)
    assert model.open_streams == 0


class Noting(AsyncCallbackHandler):
    """Notes the errors of models."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    async def on_llm_error(self, error: BaseException, **named: Any) -> None:
        self.errors.append(error)


def test_callbacks_hear_of_a_turn_that_failed_and_nothing_of_it_stays_in_the_callers_context() -> None:
    noting = Noting()
    node = GraphChatNode(ScriptedClient([["half an", BrokenStreamError("gone", provider="scripted")]]))

    async def ask() -> bool:
        before = dict(contextvars.copy_context())
        with pytest.raises(BrokenStreamError):
            await node(asking("hello"), {"callbacks": [noting]})
        return dict(contextvars.copy_context()) == before

    assert asyncio.run(ask())
    assert [type(error) for error in noting.errors] == [BrokenStreamError]


def test_a_turn_that_is_cancelled_leaves_nothing_open() -> None:
    model = ScriptedClient(["one two three four"], delay_seconds=0.01)

    async def read() -> None:
        stream = graph_of(GraphChatNode(model)).astream(asking("hello"), stream_mode="messages")
        async for _ in stream:
            break
        await stream.aclose()

    asyncio.run(read())
    assert model.open_streams == 0


def test_what_a_tracer_is_told_of_is_what_was_sent_and_said() -> None:
    model = ScriptedClient(["fine"])

    async def read() -> list[Any]:
        node = GraphChatNode(model, context_manager=MessageContextManager(1))
        history = {"messages": [*asking("old")["messages"], AIMessage("older"), *asking("new")["messages"]]}
        return [each async for each in graph_of(node).astream_events(history, version="v2")]

    events = {each["event"]: each for each in asyncio.run(read()) if "chat_model" in each["event"]}
    assert [each.text for each in events["on_chat_model_start"]["data"]["input"]["messages"][0]] == ["new"]
    assert events["on_chat_model_end"]["data"]["output"].text == "fine"
