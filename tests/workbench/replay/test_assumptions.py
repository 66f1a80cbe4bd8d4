"""What a replay takes for granted is said: its counter, tools, pause, prices, and who wrote summaries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chatstack import ToolDeclaration
from chatstack.workbench.replay.assumptions import assumptions_of
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.policies import policies_for
from chatstack.workbench.replay.setup import Setup
from tests.workbench.replay.conversations import assistant, conversation, outcome_of, recording, setup_of, talk, user

NOTHING = policies_for([], ["nothing"])
LOOK = ToolDeclaration("look", "Looks.", '{"type":"object"}')


def said(setup: Setup, *models: str) -> str:
    """All of it, of one conversation with each of these models."""
    items = (recording(conversation(user("q"), assistant("a"), model=model)) for model in models)
    return "\n".join(assumptions_of(outcome_of(setup, *items), setup))


def line_of(text: str, word: str) -> str:
    (found,) = (line for line in text.splitlines() if word in line)
    return found


def test_the_counter_is_named_and_what_it_takes_pictures_for() -> None:
    assert "by characters, the same for every policy" in line_of(said(setup_of(*NOTHING), "gpt-4o"), "Sizes")
    assert "counts as 1,000" in line_of(said(setup_of(*NOTHING), "gpt-4o"), "Sizes")


def test_tools_are_named_with_their_size() -> None:
    setup = setup_of(*NOTHING, tools=(LOOK, LOOK))

    assert f"2 tool schemas, {setup.tools_tokens:,} tokens, go out with every call." in said(setup, "gpt-4o")
    assert "Tool schemas count where a recording declares them." in said(setup_of(*NOTHING), "gpt-4o")


def test_the_pause_is_named_with_what_it_does_to_a_cache() -> None:
    none, some = (said(setup_of(*NOTHING, pause_seconds=seconds), "gpt-4o") for seconds in (0, 450.5))

    assert "every call is taken to come while the cache still lives" in line_of(none, "tell the time")
    assert "a cache lives 300 seconds" in line_of(some, "450.5 seconds pass before each call")
    assert "still lives" not in some


def test_prices_are_told_for_each_recorded_model_with_their_source() -> None:
    """A cache that lives longer than five minutes is said to; a lifetime that nobody tells, too."""
    text = said(setup_of(*NOTHING), "gpt-4o", "gpt-5.6", "gemini-2.5-pro")

    assert "input $2.5 a million tokens, a read $1.25, a write $2.5" in line_of(text, "gpt-4o: ")
    assert "under 1,024 tokens is cached, a cache lives 300 seconds (by genai-prices" in line_of(text, "gpt-4o: ")
    assert "no lifetime is published" in line_of(text, "gemini-2.5-pro: ")
    assert "no sum in dollars" not in text


def test_a_model_without_a_price_is_named_and_cut() -> None:
    text = said(setup_of(*NOTHING), "no-such-model", "", "x" * 1_000)

    line = line_of(text, "no sum in dollars")
    assert "no name, no-such-model, " in line
    assert line.endswith(", " + "x" * 60 + ".")


def test_no_more_than_ten_models_are_named() -> None:
    outcome = Outcome([])
    for number in range(30):
        outcome.priced(f"unheard-{number:02}", None)

    text = "\n".join(assumptions_of(outcome, setup_of()))

    assert text.count("unheard-") == 10


def test_a_model_that_is_asked_for_prices_all_of_them() -> None:
    """In the place of the recorded ones, known or not."""
    (nothing,) = NOTHING
    items = [recording(conversation(user("x" * 2_000), assistant("a"), model=model)) for model in ("gpt-4o", "none")]
    setup = setup_of(nothing, model="gpt-4o-mini")

    outcome = outcome_of(setup, *items)

    assert list(outcome.prices) == ["gpt-4o-mini"]
    assert outcome.figures[0].spending.usd == 2 * 2_004 * outcome.prices["gpt-4o-mini"].input.base / 1_000_000
    text = "\n".join(assumptions_of(outcome, setup))
    assert "Prices are those of gpt-4o-mini, whatever model was recorded." in text
    assert "gpt-4o-mini: input $0.15 a million tokens" in text


def test_a_model_that_is_asked_for_and_has_no_price_is_said_to_have_none() -> None:
    setup = setup_of(*NOTHING, model="no-such-model")

    outcome = outcome_of(setup, recording(talk(1)))

    text = "\n".join(assumptions_of(outcome, setup))
    assert "Prices are those of no-such-model" in text
    assert "No price is known of these models, so there is no sum in dollars: no-such-model." in text
    assert outcome.figures[0].spending.usd is None


@pytest.fixture
def summing(tmp_path: Path) -> Setup:
    path = tmp_path / "summing.json"
    path.write_text(json.dumps({"layers": [{"use": "Summarizer", "max_tokens": 800}]}))
    return setup_of(policies_for([path], ["nothing"])[-1])


def test_stand_ins_for_summaries_are_told_where_there_were_any(summing: Setup) -> None:
    def text(turns: int) -> str:
        return "\n".join(assumptions_of(outcome_of(summing, recording(talk(turns))), summing))

    assert "stand-ins of at most 500 tokens" in line_of(text(30), "Summaries")
    assert "written at 5 times that" in line_of(text(30), "Summaries")
    assert "Summaries" not in text(1)
