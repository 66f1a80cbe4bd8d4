"""Answers that a model refuses: told by a model of LangChain's, and told to LangChain."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import langchain.agents.middleware
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from pydantic import BaseModel

from chatstack import ChatRequest, ChatStack, ChatUpdate, Message, ProviderInfo, ProviderItem, Text
from chatstack.client.answers import updates_of
from chatstack.providers.foreign import ForeignClient
from chatstack_langchain import ChatStackModel, LangChainClient
from tests.models import ScriptedModel

NO = "I may not."
BLOCK = {"type": "refusal", "refusal": NO}
COMPLETIONS = AIMessage("", additional_kwargs={"refusal": NO}, response_metadata={"finish_reason": "stop"})
RESPONSES = AIMessage([{**BLOCK, "id": "msg_1"}], response_metadata={"status": "completed"})
ANTHROPIC = AIMessage("Well", response_metadata={"stop_reason": "refusal"})
THEIRS = [COMPLETIONS, RESPONSES, ANTHROPIC]
ITEM = {"type": "message", "id": "msg_1", "content": [BLOCK]}
OURS = [
    (Message("assistant", (), extra_json=json.dumps({"openai-chat": {"refusal": NO}})), NO),
    (Message("assistant", (ProviderItem("openai", json.dumps(ITEM)),)), NO),
    (Message("assistant", (Text("Well"),)), ""),
]


class Refusing(ForeignClient):
    """Refuses in those words."""

    info = ProviderInfo(name="openai", model="m")

    def __init__(self, said: Message) -> None:
        self.said = said
        self.requests: list[ChatRequest] = []

    async def _updates(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        self.requests.append(request)
        for update in updates_of(self.said, finish_reason="refused"):
            yield update


def refusing(said: Message) -> tuple[ChatStackModel, Refusing]:
    provider = Refusing(said)
    return ChatStackModel(client=ChatStack(provider).build()), provider


@pytest.mark.parametrize("theirs", THEIRS)
def test_a_model_below_that_refuses_is_heard_and_gets_its_answer_back_as_it_came(theirs: AIMessage) -> None:
    model = ScriptedModel(answers=[theirs, "fine"])
    with ChatStack(LangChainClient(model)).build_sync() as client:
        answer = client.get_response("do it")
        assert answer.finish_reason == "refused"
        client.get_response([Message.user("do it"), *answer.messages, Message.user("please")])
    back = model.received[-1][1]
    assert (back.content, back.additional_kwargs) == (theirs.content, theirs.additional_kwargs)


@pytest.mark.parametrize(("said", "words"), OURS)
def test_a_refused_answer_ends_with_langchains_block_streamed_or_not(said: Message, words: str) -> None:
    block = {"type": "refusal", "refusal": words}
    model, provider = refusing(said)
    whole = model.invoke("do it")
    assert (whole.content[-1], whole.text) == (block, said.text)
    model.invoke([HumanMessage("do it"), whole, HumanMessage("please")])
    assert provider.requests[-1].messages[1] == said
    first, *rest = refusing(said)[0].stream("do it")
    streamed: Any = first
    for chunk in rest:
        streamed += chunk
    assert isinstance(streamed, AIMessageChunk)
    assert (streamed.content, streamed.additional_kwargs) == (whole.content, whole.additional_kwargs)


@pytest.mark.parametrize("theirs", THEIRS)
def test_a_refusal_of_a_model_below_is_one_block(theirs: AIMessage) -> None:
    answer = ChatStackModel(client=LangChainClient(ScriptedModel(answers=[theirs]))).invoke("do it")
    blocks = [each for each in answer.content if isinstance(each, dict)]
    assert [each["refusal"] for each in blocks] == ["" if theirs is ANTHROPIC else NO]


def test_langchain_raises_its_own_error_for_a_refusal() -> None:
    layer: Any = getattr(langchain.agents.middleware, "ModelRefusalMiddleware", None)
    if layer is None:
        pytest.skip("this version of langchain has no word for refusals")
    from langchain_core.exceptions import ModelRefusalError

    class Answer(BaseModel):
        """An answer."""

        text: str

    said, _ = OURS[0]
    with pytest.raises(ModelRefusalError, match=NO):
        create_agent(refusing(said)[0], middleware=[layer()]).invoke({"messages": [HumanMessage("do it")]})
    with pytest.raises(ModelRefusalError, match=NO):
        refusing(said)[0].with_structured_output(Answer).invoke("do it")
