"""Clients that know nothing of a gateway do a job with tools behind one that edits, streamed and not.

What is not installed is skipped; each runs in an environment of its own:
``uv run --isolated --with langchain-openai --with langchain-anthropic pytest tests/test_real_clients.py -k langchain``.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from asks import LONG
from scripted_model import DONE, LOOKS, ScriptedModel
from upstreams import serving, upstream

from chatstack import ChatClient, ChatStack, ClearThenDrop
from chatstack_gateway import Settings, Upstream

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks a server on the internet when it is imported
pytestmark = pytest.mark.filterwarnings("default")
READ: list[int] = []


def look(page: int) -> str:
    """Look at a page."""
    READ.append(page)
    return f"page {page}: {LONG}"


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


TOOL = {
    "name": "look",
    "description": "Look at a page.",
    "parameters": {"type": "object", "properties": {"page": {"type": "integer"}}},
}


@needs("openai")
@pytest.mark.parametrize("stream", [False, True])
def test_openai_chat(stream: bool) -> None:
    import openai

    with gateway() as (url, _):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="k")
        assert [each.id for each in client.models.list()] == ["m"]
        messages: list[Any] = [{"role": "user", "content": "read"}]
        tools: Any = [{"type": "function", "function": TOOL}]
        while True:
            if stream:
                with client.chat.completions.stream(model="m", messages=messages, tools=tools) as events:
                    for _ in events:
                        pass
                    said = events.get_final_completion().choices[0].message
            else:
                said = client.chat.completions.create(model="m", messages=messages, tools=tools).choices[0].message  # type: ignore[assignment]
            messages.append(said.to_dict())
            if not said.tool_calls:
                break
            for call in said.tool_calls:
                result = look(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        assert (said.content, READ) == (DONE, [*range(LOOKS)])


@needs("openai")
@pytest.mark.parametrize("stream", [False, True])
def test_openai_responses(stream: bool) -> None:
    import openai

    with gateway() as (url, _):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="k")
        items: list[Any] = [{"role": "user", "content": "read"}]
        tools: Any = [{"type": "function", **TOOL}]
        while True:
            if stream:
                with client.responses.stream(model="m", input=items, tools=tools, store=False) as events:
                    for _ in events:
                        pass
                    said: Any = events.get_final_response()
            else:
                said = client.responses.create(model="m", input=items, tools=tools, store=False)
            calls = [each for each in said.output if each.type == "function_call"]
            items += [each.to_dict() for each in said.output]
            if not calls:
                break
            for call in calls:
                result = look(**json.loads(call.arguments))
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
        assert (said.output_text, READ) == (DONE, [*range(LOOKS)])


@needs("anthropic")
@pytest.mark.parametrize("stream", [False, True])
def test_anthropic(stream: bool) -> None:
    import anthropic

    with gateway() as (url, _):
        client = anthropic.Anthropic(base_url=url, api_key="k")
        messages: list[Any] = [{"role": "user", "content": "read"}]
        tools: Any = [{"name": "look", "input_schema": TOOL["parameters"]}]
        while True:
            if stream:
                with client.messages.stream(model="m", max_tokens=99, messages=messages, tools=tools) as events:
                    said: Any = events.get_final_message()
            else:
                said = client.messages.create(model="m", max_tokens=99, messages=messages, tools=tools)
            messages.append({"role": "assistant", "content": [each.to_dict() for each in said.content]})
            if said.stop_reason != "tool_use":
                break
            results = [
                {"type": "tool_result", "tool_use_id": each.id, "content": look(**each.input)}
                for each in said.content
                if each.type == "tool_use"
            ]
            messages.append({"role": "user", "content": results})
        assert (said.content[0].text, READ) == (DONE, [*range(LOOKS)])


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


COMMANDS = (
    "seq 1 900",
    "seq 900 1800",
    "printf 'def half(n):\\n    return n / 2\\n' > half.py",
    "python3 -c 'import half; print(half.half(4))'",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat half.py",
)


@needs("minisweagent", "mcp")
def test_a_coding_agent_does_a_job(tmp_path: Path) -> None:
    model = ScriptedModel("bash", [{"command": each} for each in COMMANDS])
    agent = [sys.executable, "-m", "minisweagent.run.mini", "-m", "openai/m", "-t", "write half.py", "-y"]
    with upstream(model) as api, serving(Settings(Upstream(api.url)), clearing) as running:
        told = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{running.url}/v1", "MSWEA_CONFIGURED": "1"}
        told |= {"MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_GLOBAL_CONFIG_DIR": str(tmp_path / "config")}
        done = subprocess.run(
            [*agent, "--exit-immediately", "-o", str(tmp_path / "out.json")],
            cwd=tmp_path,
            env={**os.environ, **told},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=110,
        )
        running.settled()
        assert (tmp_path / "half.py").exists(), done.stdout[-3000:] + done.stderr[-3000:]
        assert model.asked == len(COMMANDS)
        assert running.gateway.activity.outcomes["edited"] > 0


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
