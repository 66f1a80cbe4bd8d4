"""A stack as a chat model: in agents, in deepagents, alone."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.caches import InMemoryCache
from langchain_core.exceptions import ContextOverflowError as TheirOverflowError
from langchain_core.globals import set_llm_cache
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_tests.unit_tests import ChatModelUnitTests
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from chatstack import (
    ChatStack,
    ContextOverflowError,
    FunctionInvoker,
    Message,
    ProviderInfo,
    Reasoning,
    Text,
    ToolCall,
    ToolResultClearer,
    WiringError,
)
from chatstack.testing import ScriptedClient
from chatstack_langchain import ChatStackModel, LangChainClient, StackMiddleware
from tests.models import ScriptedModel, called

LONG = "word " * 400


def look(place: str) -> str:
    """Look around there."""
    return f"{place}: {LONG}"


def calls(rounds: int) -> list[Any]:
    return [*(Message.assistant(ToolCall(f"c{at}", "look", f'{{"place":"p{at}"}}')) for at in range(rounds)), "done"]


def over(answers: list[Any], **info: Any) -> tuple[ChatStackModel, ScriptedClient]:
    provider = ScriptedClient(answers, info=ProviderInfo(name="openai", model="m", **info))
    stack = ChatStack(provider).use(ToolResultClearer, trigger={"tokens": 1_000}, keep={"messages": 1})
    return ChatStackModel(client=stack.build()), provider


class TestLangChainsOwnContract(ChatModelUnitTests):
    """LangChain's checks of every integration."""

    @property
    def chat_model_class(self) -> Any:
        return ChatStackModel

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"client": ScriptedClient(info=ProviderInfo(name="openai", model="m"))}


@pytest.mark.parametrize("is_async", [True, False])
def test_an_agent_runs_its_tools_and_the_stack_sees_each_call(is_async: bool) -> None:
    model, provider = over(calls(4))
    agent = create_agent(model, [look], system_prompt="Be brief.")
    given: Any = {"messages": [HumanMessage("look")]}
    state = asyncio.run(agent.ainvoke(given)) if is_async else agent.invoke(given)
    results = [each for each in state["messages"] if isinstance(each, ToolMessage)]
    assert len(results) == 4
    assert all(LONG in str(each.content) for each in results)
    last = [each.results[0].text for each in provider.requests[-1].messages if each.results]
    assert LONG in last[-1]
    assert not any(LONG in each for each in last[:-1])
    assert state["messages"][-1].usage_metadata["input_tokens"] > 0
    assert provider.requests[0].messages[0] == Message.system("Be brief.")
    assert provider.requests[0].options.tools[0].name == "look"  # type: ignore[union-attr]


def test_streamed_and_not_are_the_same_message() -> None:
    answer = Message(
        "assistant",
        (
            Reasoning("hm, so"),
            Text("let me see"),
            ToolCall("c1", "look", '{"place":"a"}'),
            ToolCall("c2", "look", "{}"),
        ),
    )

    def bound() -> Any:
        return over([answer])[0].bind_tools([look])

    async def run() -> tuple[AIMessage, list[AIMessageChunk]]:
        return await bound().ainvoke("hi"), [chunk.model_copy(deep=True) async for chunk in bound().astream("hi")]

    whole, chunks = asyncio.run(run())
    streamed, *rest = chunks
    for chunk in rest:
        streamed = streamed + chunk
    for name in (
        "content",
        "tool_calls",
        "invalid_tool_calls",
        "usage_metadata",
        "response_metadata",
        "additional_kwargs",
    ):
        assert getattr(streamed, name) == getattr(whole, name), name
    assert [call["id"] for call in whole.tool_calls] == ["c1", "c2"]
    assert bound().invoke("hi").content == whole.content
    assert [str(chunk.text) for chunk in bound().stream("hi") if chunk.text] == ["let", " me", " see"]


def test_the_content_blocks_of_an_answer_tell_all_of_it() -> None:
    answer = Message("assistant", (Reasoning("hm"), Text("fine"), ToolCall("c1", "look", "{}")))
    blocks = over([answer])[0].bind_tools([look]).invoke("hi").content_blocks
    assert [each["type"] for each in blocks] == ["reasoning", "text", "tool_call"]


def test_arguments_and_signatures_come_back_as_they_were_received() -> None:
    signed = Reasoning("hm", '{"type":"thinking","thinking":"hm","signature":"s"}', "anthropic")
    answer = Message("assistant", (signed, ToolCall("c1", "look", '{"place":"a"}')))
    model, provider = over([answer, "done"])
    create_agent(model, [look]).invoke({"messages": [HumanMessage("look")]})
    assert provider.requests[-1].messages[1] == answer


def test_a_message_that_somebody_changed_keeps_the_change() -> None:
    model, provider = over([Message("assistant", (ToolCall("c1", "look", '{"place":"a"}'),)), "fine"])
    bound = model.bind_tools([look])
    answer = bound.invoke("hi")
    answer.tool_calls[0]["args"] = {"place": "b"}
    bound.invoke([HumanMessage("hi"), answer, ToolMessage("seen", tool_call_id="c1")])
    assert provider.requests[-1].messages[1].calls[0].arguments == '{"place": "b"}'


def test_a_turn_with_tools_of_the_stacks_own_comes_back_as_it_was() -> None:
    provider = ScriptedClient([["I look. ", ToolCall("c1", "look", '{"place":"a"}')], "It is long.", "Bye."])
    client = ChatStack(provider).use(FunctionInvoker, tools=[look]).build()
    agent = create_agent(ChatStackModel(client=client), checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "t-1"}}

    async def run() -> list[str]:
        stream = agent.astream({"messages": [HumanMessage("look")]}, thread, stream_mode="messages")
        return [str(chunk.text) async for chunk, _ in stream if isinstance(chunk, AIMessage)]

    assert "".join(asyncio.run(run())) == "I look. It is long."
    before = provider.requests[-1].messages
    state = agent.invoke({"messages": [HumanMessage("thanks")]}, thread)
    assert provider.requests[-1].messages[: len(before)] == before
    assert [each.role for each in provider.requests[-1].messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert provider.requests[-1].conversation_id == "t-1"
    assert state["messages"][1].text == "I look. It is long."
    assert not state["messages"][1].tool_calls


def test_a_tool_inside_may_pause_the_graph() -> None:
    def ask(question: str) -> str:
        """Ask a person."""
        return f"they said {interrupt(question)}"

    provider = ScriptedClient([Message.assistant(ToolCall("c1", "ask", '{"question":"why?"}'))] * 2 + ["fine"])
    client = ChatStack(provider).use(FunctionInvoker, tools=[ask]).build()
    agent = create_agent(ChatStackModel(client=client), checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "t-1"}}

    async def run() -> Any:
        paused = await agent.ainvoke({"messages": [HumanMessage("go")]}, thread)
        assert paused["__interrupt__"][0].value == "why?"
        return await agent.ainvoke(Command(resume="because"), thread)

    assert asyncio.run(run())["messages"][-1].content == "fine"
    assert provider.requests[-1].messages[-1].results[0].text == "they said because"


def test_structured_output_by_a_tool_and_by_the_provider() -> None:
    class Place(BaseModel):
        """Where it is."""

        name: str

    model, _ = over([Message.assistant(ToolCall("c1", "Place", '{"name":"here"}'))])
    assert create_agent(model, response_format=Place).invoke({"messages": [HumanMessage("?")]})[
        "structured_response"
    ] == Place(name="here")
    assert over([Message.assistant(ToolCall("c1", "Place", '{"name":"here"}'))])[0].with_structured_output(
        Place
    ).invoke("?") == Place(name="here")
    model, provider = over(['{"name": "there"}'])
    model.profile = {"structured_output": True}
    state = create_agent(model, response_format=Place).invoke({"messages": [HumanMessage("?")]})
    assert state["structured_response"] == Place(name="there")
    schema = provider.requests[-1].options.output_schema
    assert schema is not None
    assert schema.name == "Place"


def test_options_reach_the_provider() -> None:
    model, provider = over(["fine"])
    bound = model.bind_tools([look], tool_choice="any", parallel_tool_calls=False, temperature=0.5)
    bound.invoke("hi", stop=["x"], max_tokens=7, service_tier="flex")
    options = provider.requests[-1].options
    assert (options.tool_choice, options.parallel_tool_calls, options.temperature) == ("required", False, 0.5)
    assert (options.stop, options.max_tokens, dict(options.extra)) == (("x",), 7, {"service_tier": "flex"})


def test_an_overflow_is_langchains() -> None:
    model, _ = over([ContextOverflowError(9, 5)])
    with pytest.raises(TheirOverflowError):
        model.invoke("hi")
    with pytest.raises(TheirOverflowError):
        asyncio.run(model.ainvoke("hi"))


def test_a_stream_that_is_dropped_closes_the_stack() -> None:
    model, provider = over(["one two three four"])
    stream = model.stream("hi")
    assert next(stream).text
    stream.close()  # type: ignore[attr-defined]
    assert provider.open_streams == 0


@pytest.fixture
def global_cache() -> Iterator[None]:
    set_llm_cache(InMemoryCache())
    yield
    set_llm_cache(None)


@pytest.mark.usefixtures("global_cache")
def test_models_do_not_answer_for_each_other_from_a_cache_of_langchains() -> None:
    one, other = (ChatStackModel(client=ScriptedClient([f"I am {name}"])) for name in "AB")
    assert (one.invoke("who?").text, other.invoke("who?").text) == ("I am A", "I am B")
    shared = InMemoryCache()
    one, other = (ChatStackModel(client=ScriptedClient([f"I am {name}"]), cache=shared) for name in "AB")
    assert [each.invoke("who?").text for each in (one, other, one)] == ["I am A", "I am B", "I am A"]
    assert len(one.client.requests) == 1


PRINTS_KEYS = """
from chatstack import ChatStack, FunctionInvoker, ToolResultClearer
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack_langchain import ChatStackModel

def look(place: str) -> str:
    return place

def provider(model, **options):
    return AnthropicChatClient(model, api_key="sk-secret", **options)

def key(client):
    model = ChatStackModel(client=client)
    return model.cache, model._get_llm_string()

clears = ChatStack(provider("a")).use(ToolResultClearer, trigger={"tokens": 7}).build()
cases = [
    *(provider("a"), provider("b"), provider("a", base_url="http://localhost:1"), clears),
    provider("a", base_url="http://localhost:2"),
    ChatStack(provider("a")).use(FunctionInvoker, tools=[look]).build(),
]
print([key(each) for each in cases])
"""


def test_a_stack_over_a_provider_of_ours_has_a_key_in_caches_that_other_processes_know() -> None:
    pytest.importorskip("anthropic")  # not with the lowest LangChain
    printed = [subprocess.check_output([sys.executable, "-c", PRINTS_KEYS], text=True) for _ in range(2)]
    (*own, tools), (*again, _) = map(ast.literal_eval, printed)
    assert own == again
    assert len(set(own)) == 5
    assert {cache for cache, _ in own} == {None}
    assert tools[0] is False
    assert "secret" not in printed[0]


def test_what_is_no_client_is_refused() -> None:
    with pytest.raises(WiringError, match="client is of type int, and no chat client"):
        ChatStackModel(client=5)


def test_any_model_of_langchains_is_a_provider() -> None:
    model = ScriptedModel(
        answers=[called(("c1", "look", {"place": "a"}), ("c2", "look", {"place": "b"})), "all is well"]
    )
    client = ChatStack(LangChainClient(model)).use(FunctionInvoker, tools=[look]).build()

    async def run() -> None:
        async with client.get_streaming_response("look") as stream:
            updates = [update async for update in stream]
            response = await stream.response()
        assert "".join(update.text for update in updates) == "all is well" == response.text
        assert [each.role for each in response.messages] == ["assistant", "tool", "tool", "assistant"]

    asyncio.run(run())
    assert [tool["function"]["name"] for tool in model.asked_with[0]["tools"]] == ["look"]


def test_deepagents_works_with_the_model_and_with_the_middleware() -> None:
    create_deep_agent = pytest.importorskip("deepagents").create_deep_agent  # not with the lowest LangChain
    model, provider = over(
        [
            Message.assistant(
                ToolCall("t1", "write_todos", '{"todos": [{"content": "look", "status": "in_progress"}]}')
            ),
            Message.assistant(ToolCall("f1", "write_file", '{"file_path": "/a.txt", "content": "hello"}')),
            Message.assistant(ToolCall("s1", "task", '{"description": "look", "subagent_type": "general-purpose"}')),
            "the subagent has looked",
            "done",
        ],
        window_tokens=200_000,
    )
    state = create_deep_agent(model=model, tools=[look]).invoke({"messages": [HumanMessage("go")]})
    assert state["messages"][-1].content == "done"
    assert "/a.txt" in state["files"]
    assert len(provider.requests) == 5

    theirs = ScriptedModel(answers=[*(called((f"c{at}", "look", {"place": "p"})) for at in range(4)), "done"])
    stack = ChatStack(LangChainClient(theirs)).use(ToolResultClearer, trigger={"tokens": 12_000}, keep={"messages": 1})
    agent = create_deep_agent(model=theirs, tools=[look], middleware=[StackMiddleware(stack)])
    state = agent.invoke({"messages": [HumanMessage("go")]})
    assert state["messages"][-1].content == "done"


def test_items_of_the_responses_api_go_back_to_the_model_as_they_came() -> None:
    items: list[Any] = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"},
        {"type": "text", "text": "I look", "annotations": [], "id": "msg_1"},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": '{"place":"a"}'},
    ]
    call: Any = {"id": "c1", "name": "look", "args": {"place": "a"}}
    model = ScriptedModel(answers=[AIMessage(items, tool_calls=[call]), "fine"])
    client = ChatStack(LangChainClient(model)).use(FunctionInvoker, tools=[look]).build()
    agent = create_agent(ChatStackModel(client=client), [])
    asked: list[Any] = [HumanMessage("look")]
    state = agent.invoke({"messages": asked})
    assert model.received[1][1].content == items
    agent.invoke({"messages": [*state["messages"], HumanMessage("again")]})
    assert model.received[2][1].content == items
    assert model.received[2][: len(model.received[1])] == model.received[1]
