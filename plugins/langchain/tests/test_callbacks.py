"""LangChain's callbacks hear each turn once, whatever answers below."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler, UsageMetadataCallbackHandler, get_usage_metadata_callback
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

from chatstack import ChatStack, Summarizer
from chatstack_langchain import ChatStackModel, LangChainClient, StackMiddleware
from chatstack_langgraph import GraphChatNode
from tests.models import ScriptedModel

LONG = "word " * 60
ANSWER = AIMessage(
    "fine so far",
    usage_metadata={"input_tokens": 30, "output_tokens": 4, "total_tokens": 34},
    response_metadata={"model_name": "m"},
)
QUESTION: Any = {"messages": [HumanMessage("hi")]}


def stack() -> ChatStack:
    return ChatStack(LangChainClient(ScriptedModel(answers=[ANSWER])))


def agent() -> Any:
    return create_agent(ChatStackModel(client=stack().build()))


def graph() -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("chat", GraphChatNode(stack().build()))
    builder.add_edge(START, "chat")
    return builder.compile()


class Heard(BaseCallbackHandler):
    def __init__(self) -> None:
        self.told: list[str] = []

    def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        self.told.append("start")

    def on_llm_new_token(self, token: str, **_: Any) -> None:
        self.told += [token] if token else []

    def on_llm_end(self, *_: Any, **__: Any) -> None:
        self.told.append("end")


async def streamed(runs: Any, heard: Heard) -> None:
    async for _ in runs.astream(QUESTION, {"callbacks": [heard]}, stream_mode="messages"):
        pass


@pytest.mark.parametrize("make", [agent, graph])
def test_tokens_and_events_come_once(make: Callable[[], Any]) -> None:
    heard = Heard()
    asyncio.run(streamed(make(), heard))
    assert heard.told == ["start", "fine", " so", " far", "end"]

    async def events() -> list[str]:
        return [each["event"] async for each in make().astream_events(QUESTION, version="v2")]

    told = asyncio.run(events())
    assert (told.count("on_chat_model_start"), told.count("on_chat_model_end")) == (1, 1)


@pytest.mark.parametrize("make", [agent, graph])
def test_usage_is_counted_once(make: Callable[[], Any]) -> None:
    handler = UsageMetadataCallbackHandler()
    with get_usage_metadata_callback() as counted:
        asyncio.run(make().ainvoke(QUESTION, {"callbacks": [handler]}))
        assert [each["m"]["total_tokens"] for each in (counted.usage_metadata, handler.usage_metadata)] == [34, 34]
        asyncio.run(make().ainvoke(QUESTION))
    assert counted.usage_metadata["m"]["total_tokens"] == 68


def test_usage_of_a_synchronous_run_is_counted_once() -> None:
    with get_usage_metadata_callback() as counted:
        agent().invoke(QUESTION)
    assert counted.usage_metadata["m"]["total_tokens"] == 34


def test_a_summary_of_the_middleware_which_nobody_else_tells_is_heard() -> None:
    layers = stack().use(Summarizer, max_tokens=300, keep_recent_turns=1)
    with_summary = create_agent(ScriptedModel(answers=[ANSWER]), middleware=[StackMiddleware(layers)])
    said = [each for at in range(6) for each in (HumanMessage(f"{at} {LONG}"), AIMessage(f"{at} {LONG}"))]
    heard = Heard()
    with_summary.invoke({"messages": [*said, HumanMessage("and now?")]}, {"callbacks": [heard]})
    assert heard.told == ["start", "end"] * 2
