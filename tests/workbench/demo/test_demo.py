"""``chatstack demo`` from end to end, as a newcomer runs it: without a key, and without a network."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import re
import socket
import subprocess
import sys

import pytest

from chatstack.errors import ChatStackError, ContextOverflowError
from chatstack.providers.registry import PROVIDERS
from chatstack.stack.recipe import ChatStack
from chatstack.tools.invoker import FunctionInvoker
from chatstack.values.messages import Message
from chatstack.values.requests import ChatOptions
from chatstack.workbench.demo import command
from chatstack.workbench.demo.assistant import GUARD_TOKENS, STAND_IN_TOKENS, SUMMARIZE_TOKENS
from chatstack.workbench.demo.stand_in import StandIn
from chatstack.workbench.demo.travel import (
    CITIES,
    INSTRUCTIONS,
    LOOKING_BACK,
    TOOLS,
    get_clothing_advice,
    get_weather,
    question,
)
from tests.servers import mock_server

SPANS = "The spans, as a dashboard gets them"
KNOWN = "What is still known at the end"
TOKENS = "Tokens of each model call, as sent and in full"
ADDED_UP = "all calls"
# A proxy that nobody serves: whoever asks it for the way to loopback does not get there.
NOWHERE = "http://127.0.0.1:9"


def chatstack(*arguments: str, program: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a bare environment, with warnings as errors."""
    bare = {name: os.environ[name] for name in ("PATH", "HOME", "SYSTEMROOT", "TMPDIR") if name in os.environ}
    given = bare | {"NO_COLOR": "1", "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"} | environment
    command = [sys.executable, "-W", "error", *(["-c", program] if program else ["-m", "chatstack"]), *arguments]
    return subprocess.run(
        command, env=given, capture_output=True, text=True, encoding="utf-8", timeout=300, check=False
    )


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


def test_every_city_is_planned_with_two_tools_in_three_calls_and_the_last_question_with_none(shown: str) -> None:
    for number, city in enumerate(CITIES, 1):
        assert re.search(
            rf"^ *{number}/13 +{city} +3 model calls, 2 tools, +[\d,]+ tokens in all$", shown, re.MULTILINE
        )
    assert re.search(r"^ *13/13 +at the end +1 model call, 0 tools, +[\d,]+ tokens in all$", shown, re.MULTILINE)


def test_each_of_the_three_layers_is_seen_at_work_live_and_the_summary_more_than_once(shown: str) -> None:
    live = [line.lstrip() for line in section(shown, "The conversation, live", KNOWN)]
    assert sum(line.startswith("* clear_tool_results: ") for line in live) >= 1
    assert sum(line.startswith("* summarize: ") for line in live) >= 2
    assert sum(line.startswith("! context_window_near_limit: ") for line in live) >= 1


def test_nothing_goes_wrong_but_what_it_is_there_to_show(shown: str) -> None:
    said = {line.lstrip().split(":")[0] for line in section(shown, "The conversation, live", KNOWN) if " ! " in line}
    assert said == {"! context_window_near_limit"}


def test_the_tree_marks_warnings_and_edits_with_what_they_left(shown: str) -> None:
    tree = section(shown, SPANS, TOKENS)
    near = next(i for i, line in enumerate(tree) if "context_guard  ! WARNING context_window_near_limit" in line)
    assert GUARD_TOKENS in numbers(tree[near + 1])
    for edit in ("clear_tool_results", "summarize"):
        at = next(i for i, line in enumerate(tree) if f"compact_context {edit}  * EDIT" in line)
        before, after = numbers(tree[at + 1])[:2]
        assert after < before
    assert any(", edited" in line for line in tree)


def test_the_calls_that_write_a_summary_are_children_of_its_span(shown: str) -> None:
    tree = section(shown, SPANS, TOKENS)
    folds = [i for i, line in enumerate(tree) if "compact_context summarize" in line]
    asked = 0
    for at in folds:
        place = tree[at].index("compact_context")
        below = [line for line in tree[at + 1 :] if "─ " in line]
        mine = list(itertools.takewhile(re.compile(f"^.{{{place}}}.*─ ").match, below))
        assert [line.split("─ ")[1].split("  ")[0] for line in mine] == ["chat stand-in"] * len(mine)
        assert len(mine) >= 1
        asked += len(mine)
    folded, calls = numbers(sentence(shown, "Summaries: "))[:2]
    assert (folded, calls) == (len(folds), asked)


def test_at_the_end_all_cities_and_the_first_temperature_are_known_although_little_was_sent_as_it_was(
    shown: str,
) -> None:
    known = " ".join(" ".join(section(shown, KNOWN, "Summary 2 of 2:")).split())
    assert f"The user: {LOOKING_BACK}" in known
    assert "12 of your cities. They are Dubai, Mumbai, New York" in known
    assert "It was 38 degrees in Dubai." in known
    found = re.search(r"sent (\d+) of (\d+) questions as they were asked; what came of the others", known)
    assert found is not None
    assert int(found[1]) < int(found[2]) == 13


def test_the_summary_is_shown_once_and_holds_the_facts_of_the_first_city(shown: str) -> None:
    summary = " ".join(" ".join(section(shown, "Summary 2 of 2:", SPANS)).split())
    assert "[Summary of earlier messages." in summary
    assert "- Dubai: 38 degrees, clear sky; wear very light, airy clothes, a hat and sunscreen" in summary
    assert shown.count("[Summary of earlier messages.") == 1


def test_without_the_summary_the_same_question_cannot_be_answered() -> None:
    """The stand-in has no memory of its own: what it knows at the end, it knows from the request."""
    asked = [Message.user(question(CITIES[0])), Message.user(LOOKING_BACK)]

    async def ask(server: StandIn) -> str:
        async with server.client() as provider, ChatStack(provider).open() as client:
            return (await client.get_response(asked)).text

    with StandIn() as server:
        said = asyncio.run(ask(server))
    assert "1 of your cities. They are Dubai." in said
    assert "What it was like in Dubai is not in it any more." in said


def test_less_is_sent_than_in_full_summaries_included_and_never_more_than_the_guard_allows(shown: str) -> None:
    table = section(shown, TOKENS)
    sent, whole = numbers(next(line for line in table if line.startswith(ADDED_UP)))
    _, calls, read, written = numbers(sentence(shown, "Summaries: "))[:4]
    assert 0 < sent < sent + read < whole
    assert written > 0 < calls
    largest_sent, largest_whole = numbers(next(line for line in table if line.startswith("Largest call:")))
    assert SUMMARIZE_TOKENS * 0.8 < largest_sent <= GUARD_TOKENS < largest_whole


def test_the_table_holds_every_call_and_adds_up(shown: str) -> None:
    table = section(shown, TOKENS)
    rows = [numbers(line.removeprefix(city)) for city in CITIES for line in table if line.startswith(city)]
    assert [len(row) for row in rows] == [6] * 12
    (last,) = [numbers(line) for line in table if line.startswith("at the end")]
    totals = numbers(next(line for line in table if line.startswith(ADDED_UP)))
    assert [sum(sum(row[:3]) for row in rows) + last[0], sum(sum(row[3:]) for row in rows) + last[1]] == totals


def test_the_tokens_in_the_table_are_those_that_the_server_reported(shown: str) -> None:
    live = section(shown, "The conversation, live", KNOWN)
    reported = [numbers(line.split("tools,")[1])[0] for line in live if "model call" in line]
    (sent, _) = numbers(next(line for line in section(shown, TOKENS) if line.startswith(ADDED_UP)))
    assert sum(reported) == sent


@pytest.mark.slow
def test_in_full_the_stand_in_refuses_the_very_call_that_the_demo_names(shown: str) -> None:
    claim = re.search(r"would have ended in (.+?): call (\d+) has ([\d,]+) tokens", " ".join(shown.split()))
    assert claim is not None

    async def converse_in_full(server: StandIn) -> tuple[str, int | None]:
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
        city, actual = asyncio.run(converse_in_full(server))
    assert (city, server.requests_served + 1, actual) == (claim[1], int(claim[2]), numbers(claim[3])[0])


def test_it_reads_well_in_80_columns_and_without_colour(shown: str) -> None:
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown


@pytest.mark.slow
def test_quiet_turns_are_folded_unless_all_spans_are_asked_for(shown: str) -> None:
    everything = chatstack("demo", "--all-spans")
    assert everything.returncode == 0
    assert "5 quiet spans" in shown
    assert "quiet span" not in everything.stdout
    assert shown.count("execute_tool get_weather") < 12
    assert everything.stdout.count("execute_tool get_weather") == 12


@pytest.mark.slow
def test_a_terminal_that_knows_only_ascii_gets_ascii() -> None:
    done = chatstack("demo", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "last: # sent, . left out" in done.stdout


@pytest.mark.slow
def test_another_server_by_base_url_runs_the_same_without_a_stand_in_and_shows_every_summary() -> None:
    with StandIn() as server:
        done = chatstack("demo", "--model", "some-model", "--base-url", server.base_url, OPENAI_API_KEY="none")
        served = server.requests_served
    assert (done.returncode, done.stderr) == (0, "")
    assert "answers by rules" not in done.stdout
    assert "chat some-model" in done.stdout
    folded, calls = numbers(sentence(done.stdout, "Summaries: "))[:2]
    assert served == 37 + calls
    assert folded >= 2
    for number in range(1, folded + 1):
        assert f"Summary {number} of {folded}:" in done.stdout


@pytest.mark.slow
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
    assert asked >= 13
    assert "context_irreducible" not in done.stdout
    assert asked == calls_of_the_user(done.stdout) + calls_for_summaries(done.stdout)


@pytest.mark.slow
def test_a_key_in_the_address_of_a_server_is_not_shown() -> None:
    with StandIn() as server:
        address = server.base_url.replace("//", "//user:s3cret@")
        done = chatstack("demo", "--model", "some-model", "--base-url", address, OPENAI_API_KEY="k3y")
    assert done.returncode == 0
    assert "s3cret" not in done.stdout + done.stderr
    assert "k3y" not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_model_that_refuses_leaves_the_spans_and_one_clear_line() -> None:
    with StandIn(window_tokens=200) as server:
        done = chatstack("demo", "--model", "some-model", "--base-url", server.base_url, OPENAI_API_KEY="none")
    assert done.returncode == 2
    assert "x ERROR ContextOverflowError" in done.stdout
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
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
    assert "pip install 'chatstack-core[demo]'" in done.stderr


def test_the_extra_of_another_provider_is_named_beside_that_of_the_demo() -> None:
    program = "import sys; sys.modules['anthropic'] = None; from chatstack.cli import main; sys.exit(main())"
    done = chatstack("demo", "--model", "m", "--provider", "anthropic", program=program)
    assert "anthropic is not installed: pip install 'chatstack-core[demo,anthropic]'" in done.stderr


def test_the_extra_is_told_where_it_has_another_name_than_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = PROVIDERS["openai"]._replace(sdk="a_package_that_nobody_has", extra="parley")
    monkeypatch.setattr(command, "PROVIDERS", {**PROVIDERS, "parley": entry})
    told = r"a_package_that_nobody_has is not installed: pip install 'chatstack-core\[demo,parley\]'"
    with pytest.raises(ChatStackError, match=told):
        command.run(argparse.Namespace(model="m", provider="parley", base_url=None, otlp=None))


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


def sentence(shown: str, begin: str) -> str:
    """The sentence of the verdict that begins so, lines joined; "" if there is none."""
    text = " ".join(section(shown, TOKENS))
    return begin + text.split(begin, 1)[1] if begin in text else ""


def calls_of_the_user(shown: str) -> int:
    found = re.search(r"Sent: [\d,]+ tokens in (\d+) calls", sentence(shown, "Sent: "))
    assert found is not None
    return int(found[1])


def calls_for_summaries(shown: str) -> int:
    found = re.search(r"Summaries: \d+ in (\d+) calls? of their own", sentence(shown, "Summaries: "))
    return int(found[1]) if found is not None else 0


def numbers(line: str) -> list[int]:
    return [int(found.replace(",", "")) for found in re.findall(r"\d[\d,]*", line)]
