"""The examples run as they are printed, and with a client of the reader's own."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from chatstack import Message, ToolCall
from chatstack.context.edits.summaries import OPENING
from chatstack.testing import ScriptedClient
from chatstack.workbench.demo.stand_in import StandIn
from tests.servers import mock_server
from tests.warning_lines import without_warnings

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where a dataclass looks for the types of its fields
    spec.loader.exec_module(module)
    return module


def run(*arguments: str, **environment: str) -> str:
    """What the travel assistant prints, with nothing of this environment."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / "travel_assistant.py"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, without_warnings(done.stderr)) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def forty() -> str:
    """What it prints after forty cities."""
    return run()


def test_the_travel_assistant_runs_by_itself_without_a_key() -> None:
    assert run("--cities", "4").splitlines() == [
        "Dubai has 38 degrees today. I would wear light clothes.",
        "Lisbon has 18 degrees today. I would wear a warm coat.",
        "Oslo has -3 degrees today. I would wear a warm coat.",
        "Nairobi has 25 degrees today. I would wear light clothes.",
        "In this conversation I can see 4 of your cities. They are Dubai, Lisbon, Oslo, Nairobi. "
        "It was 38 degrees in Dubai.",
        "",
        "0 summaries took 0 tokens in and 0 out.",
    ]


@pytest.mark.slow
def test_after_forty_cities_all_of_them_and_the_first_temperature_are_known_from_summaries(forty: str) -> None:
    cities = list(example("travel_assistant").TEMPERATURES)
    assert len(cities) == 40
    assert forty.splitlines()[40] == (
        f"In this conversation I can see 40 of your cities. They are {', '.join(cities)}. It was 38 degrees in Dubai."
    )
    written = forty.count(OPENING)
    told = re.search(r"^(\d+) summaries took ([\d,]+) tokens in and ([\d,]+) out\.$", forty, re.MULTILINE)
    assert told is not None
    assert int(told[1]) == written >= 2
    assert int(told[2].replace(",", "")) > int(told[3].replace(",", "")) > 0


@pytest.mark.slow
def test_each_summary_of_the_travel_assistant_holds_all_that_the_one_before_held(forty: str) -> None:
    told = [set(re.findall(r"^- (\w+: -?\d+ degrees)", summary, re.MULTILINE)) for summary in forty.split(OPENING)[1:]]
    assert all(earlier < later for earlier, later in itertools.pairwise(told))
    assert "Dubai: 38 degrees" in told[0]


@pytest.mark.slow
def test_every_request_of_the_travel_assistant_stays_within_its_window() -> None:
    travel = example("travel_assistant")
    window = travel.WINDOW.max_tokens

    async def planned(stand_in: StandIn) -> list[str]:
        async with stand_in.client() as provider, travel.assistant(provider, []).open() as client:
            answers, _ = await travel.plan(client, list(travel.TEMPERATURES))
            return list(answers)

    # A stand-in that would refuse a longer one; the requests for summaries are in pieces that fit, too.
    with StandIn(window_tokens=window) as stand_in:
        answers = asyncio.run(planned(stand_in))
    assert len(answers) == 41
    assert all(answers)


def test_the_travel_assistant_plans_with_any_client() -> None:
    travel = example("travel_assistant")
    call = Message.assistant(ToolCall("c1", "get_weather", '{"city": "Oslo"}'))
    provider = ScriptedClient([call, "Oslo is cold.", "So is Lima.", "Two; it was cold."])
    summaries: list[str] = []
    client = travel.assistant(provider, summaries).build()
    answers, overhead = asyncio.run(travel.plan(client, ["Oslo", "Lima"]))
    assert answers == ["Oslo is cold.", "So is Lima.", "Two; it was cold."]
    assert (summaries, overhead.total_tokens) == ([], 0)
    assert [message.role for message in provider.requests[2].messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert provider.requests[1].messages[-1].results[0].text == '{"city":"Oslo","temperature":-3}'


@pytest.mark.slow
def test_the_travel_assistant_runs_on_another_server_by_its_address() -> None:
    with StandIn() as server:
        said = run("--cities", "2", "--model", "m", "--base-url", server.base_url, OPENAI_API_KEY="none")
        assert server.requests_served == 7
    assert said.startswith("Dubai has 38 degrees today.")


@pytest.mark.slow
@pytest.mark.server
def test_the_travel_assistant_runs_on_the_other_provider() -> None:
    with mock_server() as server:
        where = ["--provider", "anthropic", "--base-url", server.anthropic_url]
        said = run("--cities", "2", "--model", "m", *where, ANTHROPIC_API_KEY="none")
        assert {record["path"] for record in server.records()} == {"/anthropic/v1/messages"}
    assert said.endswith("0 summaries took 0 tokens in and 0 out.\n")
