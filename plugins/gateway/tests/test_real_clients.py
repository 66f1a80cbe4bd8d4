"""Clients that know nothing of a gateway do a job with tools behind one that edits, streamed and not.

What is not installed is skipped; each runs in an environment of its own:
``uv run --isolated --with langchain-openai --with langchain-anthropic pytest tests/test_real_clients.py -k langchain``.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import os
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from jobs import JOBS, READ, TOOL, look
from scripted_model import DONE, LOOKS, ScriptedModel
from upstreams import serving, upstream

from chatstack import ChatClient, ChatStack, ClearThenDrop
from chatstack_gateway import Settings, Upstream

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks a server on the internet when it is imported
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def collect() -> Iterator[None]:
    """Collect here what some clients leave open, not within some later import, which it would break."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def clearing(provider: ChatClient) -> ChatStack:
    return ChatStack(provider).use(ClearThenDrop, max_tokens=2_000)


def needs(*modules: str) -> pytest.MarkDecorator:
    missing = [each for each in modules if importlib.util.find_spec(each) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


@contextmanager
def gateway(model: ScriptedModel | None = None, *, edits: bool = True) -> Iterator[tuple[str, ScriptedModel]]:
    """A gateway before a scripted model. At the end, the job is done, and requests were edited on the way."""
    model = model or ScriptedModel()
    READ.clear()
    with upstream(model) as api, serving(Settings(Upstream(api.url)), clearing) as running:
        yield running.url, model
        running.settled()
        outcomes = running.gateway.activity.outcomes
        assert model.asked == len(model.arguments) + 1
        assert (outcomes["edited"] > 0) == edits, outcomes
        assert set(outcomes) <= {"edited", "as it came"}, outcomes


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wire", JOBS)
def test_the_sdks_of_python(wire: str, stream: bool) -> None:
    with gateway() as (url, _):
        assert (JOBS[wire](url, stream), READ) == (DONE, [*range(LOOKS)])


def test_the_models_are_those_of_upstream() -> None:
    with (
        upstream(ScriptedModel()) as api,
        serving(Settings(Upstream(api.url)), clearing) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="k") as client,
    ):
        assert [each.id for each in client.models.list()] == ["m"]


@needs("langchain_openai", "langchain_anthropic")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
def test_langchain(wire: str, stream: bool) -> None:
    from langchain_anthropic import ChatAnthropic  # type: ignore[import-not-found]
    from langchain_core.messages import HumanMessage, ToolMessage  # type: ignore[import-not-found]
    from langchain_core.tools import tool  # type: ignore[import-not-found]
    from langchain_openai import ChatOpenAI  # type: ignore[import-not-found]

    with gateway() as (url, _):
        if wire == "messages":
            model = ChatAnthropic(model="m", base_url=url, api_key="k", max_tokens=99, streaming=stream)
        else:
            is_responses = wire == "responses"
            model = ChatOpenAI(
                model="m", base_url=f"{url}/v1", api_key="k", streaming=stream, use_responses_api=is_responses
            )
        model, messages = model.bind_tools([tool(look)]), [HumanMessage("read")]
        while (said := model.invoke(messages)).tool_calls:
            messages += [
                said,
                *(ToolMessage(look(**each["args"]), tool_call_id=each["id"]) for each in said.tool_calls),
            ]
        text = said.text if isinstance(said.text, str) else said.text()
        assert (text, READ) == (DONE, [*range(LOOKS)])


@needs("pydantic_ai")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
def test_pydantic_ai(wire: str, stream: bool) -> None:
    from pydantic_ai import Agent  # type: ignore[import-not-found]
    from pydantic_ai.models.anthropic import AnthropicModel  # type: ignore[import-not-found]
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # type: ignore[import-not-found]
    from pydantic_ai.providers.anthropic import AnthropicProvider  # type: ignore[import-not-found]
    from pydantic_ai.providers.openai import OpenAIProvider  # type: ignore[import-not-found]

    async def run(model: Any) -> str:
        agent = Agent(model, tools=[look])
        if not stream:
            return str((await agent.run("read")).output)
        async with agent.run_stream("read") as result:
            return str(await result.get_output())

    with gateway() as (url, _):
        if wire == "messages":
            model = AnthropicModel("m", provider=AnthropicProvider(base_url=url, api_key="k"))
        else:
            kind = OpenAIChatModel if wire == "chat" else OpenAIResponsesModel
            model = kind("m", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="k"))
        assert (asyncio.run(run(model)), READ) == (DONE, [*range(LOOKS)])


@needs("agents")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wire", ["chat", "responses"])
def test_openai_agents(wire: str, stream: bool) -> None:
    from agents import (  # type: ignore[import-not-found]
        Agent,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)

    async def run(url: str) -> str:
        kind = OpenAIChatCompletionsModel if wire == "chat" else OpenAIResponsesModel
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="k")
        agent = Agent(name="a", model=kind(model="m", openai_client=client), tools=[function_tool(look)])
        if not stream:
            return str((await Runner.run(agent, "read")).final_output)
        result = Runner.run_streamed(agent, "read")
        async for _ in result.stream_events():
            pass
        return str(result.final_output)

    with gateway() as (url, _):
        assert (asyncio.run(run(url)), READ) == (DONE, [*range(LOOKS)])


@needs("agent_framework")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wire", ["chat", "responses"])
def test_agent_framework(wire: str, stream: bool) -> None:
    import agent_framework.openai as theirs  # type: ignore[import-not-found]
    from agent_framework import Agent  # type: ignore[import-not-found]

    names = ("OpenAIChatCompletionClient",) if wire == "chat" else ("OpenAIChatClient", "OpenAIResponsesClient")
    kind = next(getattr(theirs, each) for each in names if hasattr(theirs, each))

    async def run(url: str) -> str:
        agent = Agent(kind(model="m", api_key="k", base_url=f"{url}/v1"), tools=[look])
        if not stream:
            return str((await agent.run("read")).text)
        return "".join([update.text or "" async for update in agent.run("read", stream=True)])

    # By its own choice the history of Responses lies at the provider, where nothing can be edited.
    with gateway(edits=wire == "chat") as (url, _):
        said = asyncio.run(run(url))
        assert (said.startswith(DONE), READ) == (True, [*range(LOOKS)])


@needs("litellm", "mcp")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wire", ["chat", "messages"])
def test_litellm(wire: str, stream: bool) -> None:
    import litellm  # type: ignore[import-not-found]

    with gateway() as (url, _):
        model, base = ("openai/m", f"{url}/v1") if wire == "chat" else ("anthropic/m", url)
        messages: list[Any] = [{"role": "user", "content": "read"}]
        tools = [{"type": "function", "function": TOOL}]
        while True:
            answer = litellm.completion(
                model=model, api_base=base, api_key="k", messages=messages, tools=tools, stream=stream, max_tokens=99
            )
            if stream:
                answer = litellm.stream_chunk_builder(list(answer), messages=messages)
            said = answer.choices[0].message
            messages.append(said.model_dump(exclude_none=True))
            if not said.tool_calls:
                break
            for call in said.tool_calls:
                result = look(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        assert (said.content, READ) == (DONE, [*range(LOOKS)])


NODE = shutil.which("node")
NODE_MODULES = os.environ.get("CHATSTACK_NODE_MODULES", "")
"""A folder in which ``npm install openai @anthropic-ai/sdk`` was run."""


@pytest.mark.skipif(not NODE or not NODE_MODULES, reason="no node, or CHATSTACK_NODE_MODULES is not set")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
def test_the_sdks_of_node(wire: str, stream: bool) -> None:
    with gateway() as (url, _):
        script = Path(__file__).with_name("node_client.mjs")
        copied = Path(NODE_MODULES) / "node_client.mjs"
        copied.write_text(script.read_text())
        command = [str(NODE), str(copied), url, wire, "stream" if stream else "whole"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"text": DONE, "read": [*range(LOOKS)]}
