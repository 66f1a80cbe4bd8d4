"""Settings of the Agents SDK's agents: for their models below layers, and for providers of ours."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest
from agents import Agent, AgentOutputSchema, ModelSettings, Runner, WebSearchTool
from agents.exceptions import ModelBehaviorError
from agents.models.interface import ModelTracing
from agents.testing import ScriptedModel, assistant_message, function_call
from openai.types.shared import Reasoning

from chatstack import (
    ChatOptions,
    ChatRequest,
    ChatStack,
    FunctionInvoker,
    InputError,
    Message,
    ProviderItem,
    Summarizer,
)
from chatstack.providers.openai.responses import OpenAIResponsesClient
from chatstack.providers.openai.responses_options import request_to_wire
from chatstack.testing import ScriptedClient
from chatstack_openai_agents import AgentsModelClient, StackModel
from chatstack_openai_agents.calls import ModelCall
from chatstack_openai_agents.settings import options_for
from tests.test_models import Weather, look, recall, run


def all_settings(**others: Any) -> ModelSettings:
    return ModelSettings(
        temperature=0.3,
        frequency_penalty=0.5,
        verbosity="low",
        store=False,
        metadata={"user": "u1"},
        reasoning=Reasoning(effort="low", summary="auto"),
        response_include=["reasoning.encrypted_content"],
        extra_headers={"x-tenant": "t"},
        extra_body={"service_tier": "flex"},
        extra_args={"safety_identifier": "s"},
        **others,
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_layer_that_changes_options_leaves_all_other_settings_and_tools(stream: bool) -> None:
    model = ScriptedModel([[function_call("recall", {"name": "ann"}, call_id="r1")], [assistant_message("it was ann")]])
    stack = ChatStack(AgentsModelClient(model)).use(FunctionInvoker, tools=[recall])
    hosted, other = WebSearchTool(), Agent(name="other")
    given = all_settings(tool_choice="required")
    agent = Agent(
        name="a", model=StackModel(stack.build()), tools=[look, hosted], handoffs=[other], model_settings=given
    )
    agent.output_type = Weather
    with suppress(ModelBehaviorError):  # the answer has another form than the type
        asyncio.run(run(agent, "who?", stream=stream))
    first, second = model.calls
    assert first.model_settings == given
    assert second.model_settings == replace(given, tool_choice=None)
    for each in (first, second):
        assert [tool.name for tool in each.tools] == ["look", "web_search", "recall"]
        assert each.tools[1] is hosted
        assert [handoff.agent_name for handoff in each.handoffs] == ["other"]
        assert each.output_schema is not None


def test_options_of_a_request_go_to_the_model_or_are_refused() -> None:
    model = ScriptedModel([[assistant_message("fine")]])
    client = AgentsModelClient(model)
    options = ChatOptions(seed=3, stop=("END",), reasoning_effort="high", extra={"service_tier": "flex"})
    asyncio.run(client.get_response("hi", options=options))
    settings = model.calls[0].model_settings
    assert settings.extra_body == {"service_tier": "flex", "seed": 3, "stop": ["END"]}
    assert settings.reasoning is not None
    assert settings.reasoning.effort == "high"
    hosted = ProviderItem("openai", '{"type": "web_search"}')
    for wrong in (ChatOptions(model="other"), ChatOptions(tools=(hosted,))):
        with pytest.raises(InputError, match="AgentsModelClient"):
            asyncio.run(client.get_response("hi", options=wrong))


def test_a_summary_is_kept_as_the_call_is() -> None:
    model = ScriptedModel([[assistant_message("We spoke of the sea.")], [assistant_message("fine")]])
    stack = ChatStack(AgentsModelClient(model)).use(Summarizer, max_tokens=2_000, keep_recent_turns=1)
    items: list[Any] = [
        {"role": "user" if n % 2 == 0 else "assistant", "content": f"{n} " + "sea " * 500} for n in range(9)
    ]
    agent = Agent(name="a", model=StackModel(stack.build()), tools=[look], model_settings=all_settings())
    asyncio.run(Runner.run(agent, items))
    summary, call = (each.model_settings for each in model.calls)
    assert call == all_settings()
    assert (summary.store, summary.metadata, summary.extra_headers) == (False, {"user": "u1"}, {"x-tenant": "t"})
    assert not model.calls[0].tools


@pytest.mark.filterwarnings("default")
def test_settings_reach_a_provider_of_ours_or_are_warned_of() -> None:
    model = ScriptedClient(["fine"])
    agent = Agent(name="a", model=StackModel(model), model_settings=all_settings())
    with pytest.warns(UserWarning, match=r"extra_headers, reasoning.summary: no place in the request"):
        asyncio.run(Runner.run(agent, "hi"))
    options = model.requests[0].options
    assert (options.temperature, options.reasoning_effort) == (0.3, "low")
    assert options.extra == {
        "frequency_penalty": 0.5,
        "verbosity": "low",
        "store": False,
        "metadata": {"user": "u1"},
        "include": ["reasoning.encrypted_content"],
        "service_tier": "flex",
        "safety_identifier": "s",
    }


def test_the_responses_api_gets_verbosity_and_reasoning_as_it_has_them() -> None:
    client = OpenAIResponsesClient(model="gpt-5-mini", api_key="k")
    settings = ModelSettings(verbosity="low", reasoning=Reasoning(effort="low", summary="auto"))
    schema = AgentOutputSchema(Weather)
    call = ModelCall(None, "hi", settings, [], schema, [], ModelTracing.DISABLED, None, None, None)
    body = request_to_wire(ChatRequest((Message.user("hi"),), options_for(call, client)))
    assert body["reasoning"] == {"effort": "low", "summary": "auto"}
    text = cast("Any", body["text"])
    assert (text["verbosity"], text["format"]["name"]) == ("low", "final_output")
