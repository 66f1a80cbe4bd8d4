"""``chatstack demo`` from end to end, as a newcomer runs it: without a key, and without a network."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys

import pytest

from chatstack.client.stack import ChatStack
from chatstack.demo.assistant import STAND_IN_TOKENS
from chatstack.demo.stand_in import StandIn
from chatstack.demo.travel import CITIES, INSTRUCTIONS, TOOLS, get_clothing_advice, get_weather, question
from chatstack.errors import ContextOverflowError
from chatstack.tools.invoker import FunctionInvoker
from chatstack.values.messages import Message
from chatstack.values.requests import ChatOptions
from tests.servers import mock_server

SPANS = "The spans, as a dashboard gets them"
TOKENS = "Tokens of each model call, sent and without the guard"
# A proxy that nobody serves: whoever asks it for the way to loopback does not get there.
NOWHERE = "http://127.0.0.1:9"


def chatstack(*arguments: str, program: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a bare environment, with warnings as errors."""
    bare = {name: os.environ[name] for name in ("PATH", "HOME", "SYSTEMROOT", "TMPDIR") if name in os.environ}
    given = bare | {"NO_COLOR": "1", "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"} | environment
    command = [sys.executable, "-W", "error", *(["-c", program] if program else ["-m", "chatstack"]), *arguments]
    return subprocess.run(command, env=given, capture_output=True, text=True, encoding="utf-8", timeout=60, check=False)


@pytest.fixture(scope="module")
def shown() -> str:
    """What ``chatstack demo`` prints."""
    done = chatstack("demo", HTTP_PROXY=NOWHERE, HTTPS_PROXY=NOWHERE, ALL_PROXY=NOWHERE)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def section(shown: str, begin: str, end: str = "") -> list[str]:
    """The lines below a heading, up to the next one."""
    text = shown.split(begin, 1)[1]
    return (text.split(end, 1)[0] if end else text).splitlines()


def test_it_names_the_stand_in_as_such_and_needs_no_key(shown: str) -> None:
    assert "a stand-in that answers by rules, not a model" in " ".join(shown.split())


def test_nothing_listens_when_it_is_over(shown: str) -> None:
    found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", shown)
    assert found is not None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(found[1])), timeout=5)


def test_every_city_is_planned_with_two_tools_in_three_calls(shown: str) -> None:
    for number, city in enumerate(CITIES, 1):
        assert re.search(
            rf"^ *{number}/12 +{city} +3 model calls, 2 tools, +[\d,]+ tokens in all$", shown, re.MULTILINE
        )


def test_the_warnings_are_seen_live_below_their_city(shown: str) -> None:
    live = section(shown, "The conversation, live", SPANS)
    near, over = ("! context_window_near_limit: ", "! context_window_exceeded: ")
    assert sum(line.lstrip().startswith(near) for line in live) >= 1
    assert sum(line.lstrip().startswith(over) for line in live) >= 1


def test_the_tree_marks_both_warnings_and_the_edit_that_followed(shown: str) -> None:
    tree = section(shown, SPANS, TOKENS)
    near = next(i for i, line in enumerate(tree) if "context_guard  ! WARNING context_window_near_limit" in line)
    over = next(i for i, line in enumerate(tree) if "context_guard  ! WARNING context_window_exceeded" in line)
    assert near < over
    assert 1_200 in numbers(tree[over + 1])
    assert "compact_context truncate  * EDIT" in tree[over + 2]
    before, after = numbers(tree[over + 3])[:2]
    assert after < 1_200 < before
    assert ", pruned" in tree[over + 4]


def test_less_is_sent_than_would_have_been_and_never_more_than_the_guard_allows(shown: str) -> None:
    table = section(shown, TOKENS)
    sent, whole = numbers(next(line for line in table if line.startswith("all calls")))
    assert 0 < sent < whole
    largest_sent, largest_whole = numbers(next(line for line in table if line.startswith("Largest call:")))
    assert largest_sent <= 1_200 < largest_whole


def test_the_table_holds_every_call_and_adds_up(shown: str) -> None:
    table = section(shown, TOKENS)
    rows = [numbers(line.removeprefix(city)) for city in CITIES for line in table if line.startswith(city)]
    assert [len(row) for row in rows] == [6] * 12
    totals = numbers(next(line for line in table if line.startswith("all calls")))
    assert [sum(sum(row[:3]) for row in rows), sum(sum(row[3:]) for row in rows)] == totals


def test_the_tokens_in_the_table_are_those_that_the_server_reported(shown: str) -> None:
    live = section(shown, "The conversation, live", SPANS)
    reported = [numbers(line.split("tools,")[1])[0] for line in live if "model calls" in line]
    (sent, _) = numbers(next(line for line in section(shown, TOKENS) if line.startswith("all calls")))
    assert sum(reported) == sent


def test_without_the_guard_the_stand_in_refuses_the_very_call_that_the_demo_names(shown: str) -> None:
    said = " ".join(shown.split())
    claim = re.search(r"would have ended in (.+?): call (\d+) has ([\d,]+) tokens", said)
    assert claim is not None

    async def converse_unguarded(server: StandIn) -> tuple[str, int | None]:
        history: list[Message] = []
        async with server.client() as provider, ChatStack(provider).use(FunctionInvoker, tools=TOOLS).open() as client:
            for city in CITIES:
                history.append(Message.user(question(city)))
                try:
                    response = await client.get_response(history, options=ChatOptions(instructions=INSTRUCTIONS))
                except ContextOverflowError as refused:
                    return city, refused.actual
                history.extend(response.messages)
        return "", None

    with StandIn(window_tokens=STAND_IN_TOKENS) as server:
        city, actual = asyncio.run(converse_unguarded(server))
    assert (city, server.requests_served + 1, actual) == (claim[1], int(claim[2]), numbers(claim[3])[0])


def test_it_reads_well_in_80_columns_and_without_colour(shown: str) -> None:
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown


def test_quiet_turns_are_folded_unless_all_spans_are_asked_for(shown: str) -> None:
    everything = chatstack("demo", "--all-spans")
    assert everything.returncode == 0
    assert "5 quiet spans" in shown
    assert "quiet span" not in everything.stdout
    assert shown.count("execute_tool get_weather") < 12
    assert everything.stdout.count("execute_tool get_weather") == 12


def test_a_terminal_that_knows_only_ascii_gets_ascii() -> None:
    done = chatstack("demo", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "last call: # sent, . pruned" in done.stdout


def test_another_server_by_base_url_runs_the_same_without_a_stand_in() -> None:
    with StandIn() as server:
        done = chatstack("demo", "--model", "some-model", "--base-url", server.base_url, OPENAI_API_KEY="none")
        assert server.requests_served == 36
    assert (done.returncode, done.stderr) == (0, "")
    assert "answers by rules" not in done.stdout
    assert "chat some-model" in done.stdout


@pytest.mark.server
@pytest.mark.parametrize(
    ("provider", "path"), [("openai", "/v1"), ("openai-responses", "/v1"), ("anthropic", "/anthropic")]
)
def test_every_provider_can_run_it(provider: str, path: str) -> None:
    with mock_server() as server:
        keys = {"OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none"}
        where = ["--provider", provider, "--base-url", server.url + path]
        done = chatstack("demo", "--model", "some-model", *where, **keys)
        asked = len(server.bodies())
    assert (done.returncode, done.stderr) == (0, "")
    whose = f"Model: some-model of {provider.partition('-')[0]} at {server.url.removeprefix('http://')}"
    assert whose in " ".join(done.stdout.split())
    assert asked >= 12
    assert f"tokens in {asked} calls" in " ".join(done.stdout.split())


def test_a_key_in_the_address_of_a_server_is_not_shown() -> None:
    with StandIn() as server:
        address = server.base_url.replace("//", "//user:s3cret@")
        done = chatstack("demo", "--model", "some-model", "--base-url", address, OPENAI_API_KEY="k3y")
    assert done.returncode == 0
    assert "s3cret" not in done.stdout + done.stderr
    assert "k3y" not in done.stdout + done.stderr


def test_a_model_that_refuses_leaves_the_spans_and_one_clear_line() -> None:
    with StandIn(window_tokens=200) as server:
        done = chatstack("demo", "--model", "some-model", "--base-url", server.base_url, OPENAI_API_KEY="none")
    assert done.returncode == 2
    assert "x ERROR ContextOverflowError" in done.stdout
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--model", "gpt-5-mini"], "OPENAI_API_KEY"),
        (["--model", "gpt-5-mini", "--provider", "openai-responses"], "OPENAI_API_KEY"),
        (["--model", "claude-sonnet-4-5", "--provider", "anthropic"], "ANTHROPIC_API_KEY"),
        (["--provider", "anthropic"], "--model"),
        (["--base-url", "http://127.0.0.1:1/v1"], "--model"),
        (["--provider", "nobody", "--model", "m"], "nobody"),
    ],
)
def test_what_is_missing_is_said_in_one_line(arguments: list[str], names: str) -> None:
    done = chatstack("demo", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert names in done.stderr


@pytest.mark.parametrize("package", ["rich", "openai", "opentelemetry.sdk"])
def test_a_missing_extra_is_one_line_that_says_how_to_get_it(package: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; from chatstack.cli import main; sys.exit(main())"
    done = chatstack("demo", program=program)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert package in done.stderr
    assert "pip install 'chatstack-core[all]'" in done.stderr


def test_help_says_what_it_shows_and_that_it_needs_no_key() -> None:
    done = chatstack("demo", "--help")
    assert done.returncode == 0
    assert "no key, no network" in " ".join(done.stdout.split())


def test_the_weather_of_every_city_is_known_and_of_others_is_said_not_to_be() -> None:
    assert [get_weather(city)["city"] for city in CITIES] == list(CITIES)
    assert get_weather(" new YORK ")["temperature"] == 14
    assert "Dubai" in str(get_weather("Atlantis")["error"])


@pytest.mark.parametrize(
    ("temperature", "word"), [(40, "sunscreen"), (35, "t-shirt"), (20, "jacket"), (6, "scarf"), (5, "gloves")]
)
def test_advice_gets_warmer_as_it_gets_colder(temperature: float, word: str) -> None:
    assert word in str(get_clothing_advice(temperature)["clothing_advice"])


def numbers(line: str) -> list[int]:
    return [int(found.replace(",", "")) for found in re.findall(r"\d[\d,]*", line)]
