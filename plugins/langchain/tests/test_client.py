"""A chat model of LangChain's as the provider of a stack."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from chatstack import ChatClient, ChatStack, Message, Summarizer
from chatstack.testing.provider_contract import ModelAnswer, ProviderSettings, ServerReply
from chatstack.testing.provider_requests import RequestContract
from chatstack_langchain import LangChainClient
from tests.models import ScriptedModel

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
