"""The examples run as they are printed, and with a client of the reader's own."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from chatstack import ChatStack, FunctionInvoker, Message, ToolCall
from chatstack.testing import ScriptedClient

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_travel_assistant_runs_by_itself_without_a_key() -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / "travel_assistant.py")]
    done = subprocess.run(command, env={}, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "Dubai has 38 degrees today. I would wear light clothes.",
        "Lisbon has 18 degrees today. I would wear a warm coat.",
        "Oslo has -3 degrees today. I would wear a warm coat.",
        "Nairobi has 25 degrees today. I would wear light clothes.",
    ]


def test_the_travel_assistant_plans_with_any_client() -> None:
    travel = example("travel_assistant")
    call = Message.assistant(ToolCall("c1", "get_weather", '{"city": "Oslo"}'))
    provider = ScriptedClient([call, "Oslo is cold.", "So is Lima."])
    client = ChatStack(provider).use(FunctionInvoker, tools=[travel.get_weather]).build()
    assert asyncio.run(travel.plan(client, ["Oslo", "Lima"])) == ["Oslo is cold.", "So is Lima."]
    assert [message.role for message in provider.requests[-1].messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert provider.requests[1].messages[-1].results[0].text == '{"city":"Oslo","temperature":-3}'
