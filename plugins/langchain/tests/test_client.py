"""A chat model of LangChain's as the provider of a stack."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.caches import InMemoryCache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from chatstack import ChatClient, ChatOptions, ChatStack, Message, Summarizer, ToolDeclaration, Usage
from chatstack.testing.provider_contract import ModelAnswer, ProviderSettings, ServerReply
from chatstack.testing.provider_requests import RequestContract
from chatstack_langchain import ChatStackModel, LangChainClient, StackMiddleware
from tests.models import ScriptedModel, called

LONG = "word " * 60


class ModelOverHttp(BaseChatModel):
    """Sends what it is asked to the server of the contract."""

    url: str

    @property
    def _llm_type(self) -> str:
        return "over-http"

    def bind_tools(self, tools: Any, *, tool_choice: Any = None, **kwargs: Any) -> Any:
        return self.bind(tools=tools, **kwargs)

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        said = [[each.type, each.content, getattr(each, "tool_calls", None)] for each in messages]
        body = json.dumps({"messages": said, **kwargs}).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url, body)) as response:
            return ChatResult(generations=[ChatGeneration(message=AIMessage(json.load(response)["says"]))])


class Requests(RequestContract):
    def make(self, settings: ProviderSettings) -> ChatClient:
        return LangChainClient(ModelOverHttp(url=settings.base_url))

    def answer(self, said: ModelAnswer, *, stream: bool) -> ServerReply:
        return ServerReply.json({"says": said.text})


@pytest.mark.parametrize(
    "check",
    [
        Requests.test_the_history_arrives_in_its_order,
        Requests.test_instructions_arrive,
        Requests.test_tools_arrive,
        Requests.test_the_same_request_is_the_same_bytes,
    ],
)
def test_requests_arrive_as_the_contract_of_providers_says(check: Any) -> None:
    check(Requests())


def test_a_summary_is_asked_for_with_its_instructions() -> None:
    model = ScriptedModel(answers=["they counted"])
    stack = ChatStack(LangChainClient(model)).use(Summarizer, max_tokens=300, keep_recent_turns=1).build_sync()
    with stack as client:
        said = [(Message.user(f"{at} {LONG}"), Message.assistant(f"{at} {LONG}")) for at in range(6)]
        client.get_response([*(each for pair in said for each in pair), Message.user("and now?")])
    (instructions, *_), _ = model.received
    assert instructions.type == "system"
    assert "summary" in instructions.text.lower()


def test_an_answer_from_langchains_cache_needs_no_usage() -> None:
    model = ScriptedModel(answers=["fine", "other"], cache=InMemoryCache())
    with ChatStack(LangChainClient(model)).build_sync() as client:
        answers = [client.get_response("hi") for _ in range(2)]
    assert [(each.text, each.usage) for each in answers] == [("fine", Usage())] * 2
    assert len(model.received) == 1
    agent = create_agent(model, middleware=[StackMiddleware(ChatStack(LangChainClient(model)))])
    for _ in range(2):
        assert agent.invoke({"messages": [HumanMessage("hi", id="1")]})["messages"][-1].text == "fine"


def test_a_model_that_takes_tools_alone_is_given_them() -> None:
    class TakesToolsAlone(ScriptedModel):
        def bind_tools(self, tools: Any) -> Any:  # type: ignore[override]
            return self.bind(tools=tools)

    model = TakesToolsAlone(answers=["fine"])
    with ChatStack(LangChainClient(model)).build_sync() as client:
        client.get_response("hi", options=ChatOptions(tools=(ToolDeclaration("look"),)))
    assert [each["function"]["name"] for each in model.asked_with[0]["tools"]] == ["look"]


def test_a_model_that_answers_a_plain_call_with_a_chunk_is_asked_once() -> None:
    model = ScriptedModel(answers=[AIMessageChunk("one"), "two"])
    with ChatStack(LangChainClient(model)).build_sync() as client:
        assert client.get_response("hi").text == "one"
    assert len(model.received) == 1


class StreamsWholeCalls(ScriptedModel):
    """Streams each call at once, as some integrations do: without an index, or all with the same one."""

    index: int | None

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        answer = self._next(messages, kwargs)
        yield ChatGenerationChunk(message=AIMessageChunk(answer.content))
        for call in answer.tool_calls:
            piece = tool_call_chunk(name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=self.index)
            yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=[piece]))


@pytest.mark.parametrize("index", [None, 0])
def test_parallel_calls_that_a_model_streams_whole_run_once_each(index: int | None) -> None:
    paid: list[str] = []

    def pay(whom: str) -> str:
        """Pay."""
        paid.append(whom)
        return "paid"

    both = called(("a", "pay", {"whom": "Ann"}), ("b", "pay", {"whom": "Bob"}))
    provider = LangChainClient(StreamsWholeCalls(answers=[both, "done"], index=index))
    agent = create_agent(ChatStackModel(client=ChatStack(provider).build()), [pay])
    updates = agent.stream({"messages": [HumanMessage("pay both")]}, stream_mode="messages")
    assert [chunk.text for chunk, _ in updates if isinstance(chunk, AIMessageChunk)][-2:] == ["done", ""]
    assert sorted(paid) == ["Ann", "Bob"]


def test_pieces_of_calls_that_a_model_streams_in_turn_stay_apart() -> None:
    class InTurn(ScriptedModel):
        def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            for index, id, name, args in (
                *((4, "a", "pay", '{"whom": '), (7, "b", "pay", '{"whom": ')),
                *((4, None, None, '"Ann"}'), (7, None, None, '"Bob"}')),
            ):
                piece = tool_call_chunk(name=name, args=args, id=id, index=index)
                yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=[piece]))

    with ChatStack(LangChainClient(InTurn(answers=[]))).build_sync() as client:
        stream = client.get_streaming_response("pay")
        deltas = [each.call_delta for each in stream if each.call_delta is not None]
    assert [each.index for each in deltas] == [0, 1, 0, 1]
    assert "".join(each.arguments for each in deltas if each.index == 1) == '{"whom": "Bob"}'
