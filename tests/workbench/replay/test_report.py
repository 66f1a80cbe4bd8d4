"""The table and the JSON: what a policy refused is shown, and never makes it look cheap."""

from __future__ import annotations

import dataclasses
import io
import json
from dataclasses import dataclass
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from chatstack import ChatClient, ChatRequest, ChatStack, ChatStream, ContextWindowGuard
from chatstack.values.requests import ToolDeclaration
from chatstack.workbench.replay import report as schema
from chatstack.workbench.replay.measures.figures import Curve, PolicyFigures
from chatstack.workbench.replay.measures.grounding import Grounding
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.policies import Policy, policies_for
from chatstack.workbench.replay.reading.recordings import BrokenLine
from chatstack.workbench.replay.report import report_json, report_of, with_stories
from chatstack.workbench.replay.setup import Setup
from chatstack.workbench.replay.table import report_table
from tests.workbench.replay.conversations import assistant, conversation, outcome_of, recording, result, setup_of, user

MESSAGES: tuple[dict[str, object], ...] = tuple(
    {"role": ("user", "assistant")[number % 2], "content": "word " * 50} for number in range(8)
)


@dataclass(frozen=True, slots=True, eq=False)
class Forgetful:
    """Leaves out the first round once there is a second."""

    inner: ChatClient

    async def send(self, request: ChatRequest, /) -> ChatStream:
        messages = request.messages
        return await self.inner.send(request.but(messages=messages[:1] + messages[3:]) if messages[4:] else request)


def strict(ceiling: int, model: ChatClient) -> ChatStack:
    return ChatStack(model).use(ContextWindowGuard, max_context_tokens=ceiling, strict=True)


class Replayed:
    """What came of a replay, and what it was told."""

    def __init__(self, outcome: Outcome, setup: Setup) -> None:
        self.outcome = outcome
        self.setup = setup

    @property
    def figures(self) -> list[PolicyFigures]:
        return self.outcome.figures

    @property
    def report(self) -> dict[str, object]:
        """As a program reads it."""
        found = json.loads(report_json(report_of(self.outcome, self.setup)))
        assert isinstance(found, dict)
        return found


def replayed(
    policies: list[Policy], *conversations: tuple[dict[str, object], ...], window: int = 1_000, model: str = "gpt-4o"
) -> Replayed:
    setup = setup_of(*policies, window=window)
    return Replayed(
        outcome_of(setup, *(recording(conversation(*messages, model=model)) for messages in conversations)), setup
    )


def told(replay: Replayed, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(report_table(replay.outcome, replay.setup))
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(printed, str)
    return printed


def rows(replay: Replayed, width: int = 120) -> dict[str, list[str]]:
    """The cells of the table's rows, by policy."""
    return {line.split()[0]: line.split()[1:] for line in told(replay, width).splitlines() if line.split()}


def policy_in(replay: Replayed, name: str) -> dict[str, object]:
    (found,) = (each for each in replay.report["policies"] if each["name"] == name)  # type: ignore[attr-defined]
    assert isinstance(found, dict)
    return found


def call(text: str) -> dict[str, object]:
    """A call with one value in its arguments."""
    function = {"name": "look", "arguments": json.dumps({"at": text})}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": function}]}


FIRST = (4 + len("look") + len('{"at": "first"}')) + (4 + 1_500)
SECOND = (4 + len("look") + len('{"at": "second"}')) + (4 + 1_500)
"""Tokens of the two rounds of ``big_talk``."""


def big_talk() -> tuple[dict[str, object], ...]:
    """Two results of 1,500 characters, and at last a call for what stood in the first."""
    opening = (user("start"), call("first"), result("a", "F1111 ".ljust(1_500, "x")))
    later = (call("second"), result("a", "S2222 ".ljust(1_500, "y")), assistant("so it is"), assistant("and so"))
    return (*opening, *later, call("F1111"))


def test_the_figures_of_sending_everything_by_hand() -> None:
    replay = replayed(policies_for([], ["nothing"]), big_talk(), model="gpt-4o")

    found = policy_in(replay, "nothing")
    calls = [9, 9 + FIRST, 9 + FIRST + SECOND, 9 + FIRST + SECOND + 12, 9 + FIRST + SECOND + 12 + 10]
    assert (found["calls"], found["requests"], found["tokens_sent"]) == (5, 5, sum(calls))
    read = calls[1] + calls[2] + calls[3]
    assert found["tokens_from_cache"] == read
    assert found["tokens_to_cache"] == calls[4] == 3_086
    assert found["tokens_missed"] == 0
    assert (found["prefix_breaks"], found["cost_relative"]) == (0, 1.0)
    # 2.5 dollars for a million, 1.25 for those in the cache; writing costs nothing extra.
    assert found["cost_usd"] == pytest.approx((2.5 * (calls[0] + calls[4]) + 1.25 * read) / 1e6, abs=1e-6)
    assert found["cost_usd_uncached"] == pytest.approx(2.5 * sum(calls) / 1e6, abs=1e-6)
    assert (found["grounding"], found["grounding_values"]) == (1.0, 1)
    assert (found["grounding_far"], found["grounding_far_values"]) == (1.0, 1)


def test_grounding_is_told_three_times() -> None:
    replay = replayed(policies_for([], ["nothing"]), big_talk())
    replay.figures[0].grounding = Grounding(8, 7, 4, 3, 5, 1, 6, 2)

    found = policy_in(replay, "nothing")

    assert (found["grounding"], found["grounding_bare"], found["grounding_attributed"]) == (0.875, 0.625, 0.75)
    assert (found["grounding_far"], found["grounding_far_bare"], found["grounding_far_attributed"]) == (0.75, 0.25, 0.5)


def test_the_figures_of_leaving_out_the_first_round_by_hand() -> None:
    policies = [Policy("forgetful", lambda ceiling, model: ChatStack(model).use(Forgetful))]

    found = policy_in(replayed(policies, big_talk()), "forgetful")

    # From the third call on the first round is missing; only the task, too short to be cached, is where it was.
    sent = [9, 9 + FIRST, 9 + SECOND, 9 + SECOND + 12, 9 + SECOND + 12 + 10]
    assert found["tokens_sent"] == sum(sent)
    assert found["prefix_breaks"] == 1
    assert found["tokens_from_cache"] == sent[2] + sent[3]
    assert found["tokens_missed"] == sent[1]
    cost = 9 + 1.25 * (sent[1] + sent[2] + 12 + 10) + 0.1 * (sent[2] + sent[3])
    everything = 9 + 1.25 * 3_086 + 0.1 * (3 * (9 + FIRST) + 2 * SECOND + 12)
    assert found["cost_relative"] == pytest.approx(cost / everything, abs=1e-6)
    assert (found["grounding"], found["grounding_values"]) == (0.0, 1)
    assert (found["grounding_far"], found["grounding_far_values"]) == (0.0, 1)


def test_where_everything_fits_all_policies_cost_exactly_the_same() -> None:
    ruled: tuple[dict[str, object], ...] = ({"role": "system", "content": "rule " * 400}, *big_talk())
    replay = replayed(policies_for([]), ruled, ruled, window=100_000)

    costs = {each.name: policy_in(replay, each.name)["cost_relative"] for each in replay.figures}
    assert costs == dict.fromkeys(costs, 1.0)
    assert len(costs) >= 4


def test_the_cost_is_beside_everything_though_only_another_policy_runs() -> None:
    both = replayed(policies_for([], ["nothing", "guard"]), MESSAGES, window=150)
    alone = replayed(policies_for([], ["guard"]), MESSAGES, window=150)

    relative = policy_in(alone, "guard")["cost_relative"]
    assert relative == policy_in(both, "guard")["cost_relative"] != 1.0
    assert rows(alone)["guard"][:5] == rows(both)["guard"][:5]


def test_a_policy_that_refuses_calls_has_no_share_and_no_cost() -> None:
    policies = [Policy("nothing", lambda ceiling, model: ChatStack(model)), Policy("strict", strict)]
    replay = replayed(policies, MESSAGES, window=150)

    assert [each.refused for each in replay.figures] == [0, 3]
    cells = rows(replay)
    assert cells["nothing"][:2] == ["100", "1.00"]
    assert cells["strict"][:2] == ["-", "-"]
    assert cells["strict"][-2] == "3"
    found = policy_in(replay, "strict")
    assert (found["cost_relative"], found["cost_usd"], found["cost_usd_uncached"]) == (None, None, None)


def test_what_was_not_measured_or_is_not_known_is_null_and_a_dash() -> None:
    replay = replayed(policies_for([], ["nothing"]), MESSAGES, model="no-such-model")

    found = policy_in(replay, "nothing")
    assert {found[name] for name in ("cost_usd", "cost_usd_uncached", "grounding", "grounding_far")} == {None}
    assert found["cost_relative"] == 1.0
    assert replay.report["prices"] == []
    assert rows(replay)["nothing"][:5] == ["100", "1.00", "0", "-", "-"]


def test_the_prices_that_were_used_are_told_with_their_source() -> None:
    prices: Any = replayed(policies_for([]), MESSAGES).report["prices"]
    (price,) = prices

    assert price.pop("source").startswith("genai-prices ")
    assert price == {
        "model": "gpt-4o",
        "input": 2.5,
        "read": 1.25,
        "write": 2.5,
        "minimum_prefix_tokens": 1_024,
        "lifetime_seconds": 300,
    }


def test_a_hundred_percent_means_all() -> None:
    replay = replayed(policies_for([], ["nothing"]), MESSAGES)
    grounding = replay.figures[0].grounding
    grounding.values, grounding.found, grounding.far_values, grounding.far_found = 100_000, 99_999, 3, 2

    assert rows(replay)["nothing"][3:5] == ["99.9", "66.6"]


@pytest.mark.parametrize("has_faults", [False, True])
def test_the_largest_figures_fit_80_columns_with_the_names_of_the_policies(has_faults: bool) -> None:
    names = ["nothing", "guard", "sliding-window", "rolling-masking", "batch-clearing", "recommended", "a" * 50]
    tools = (ToolDeclaration("look", "x" * 3_000),)
    policies = (Policy(name, lambda ceiling, model: ChatStack(model)) for name in names)
    setup = setup_of(*policies, window=1_000_000, tools=tools)
    replay = Replayed(outcome_of(setup), setup)
    for figures in (replay.outcome.everything, *replay.figures):
        figures.calls, figures.tokens_sent, figures.peak_tokens = 10_071, 142_535_559, 868_167
        figures.over_limit, figures.edits = 9_619, 6_179
        figures.spending.tokens_written, figures.spending.prefix_breaks = 1_000, 9_807
        figures.grounding.values, figures.grounding.found = 1_000, 987
        figures.grounding.far_values, figures.grounding.far_found = 1_000, 456
        figures.refused, figures.invalid_requests = 1_353 * has_faults, 1_207 * has_faults
    replay.figures[0].spending.tokens_written = 12_340

    printed = told(replay)

    figures_told = ["142,535,559", "10,071", "868,167", "9,619", "6,179", "9,807", "98.7", "45.6"]
    for each in [*figures_told, *(["1,353", "1,207"] if has_faults else ["12.34", "rolling-masking"])]:
        assert each in printed
    assert "…" not in printed
    assert max(map(cell_len, printed.splitlines())) <= 80


def test_the_report_says_how_it_was_measured_and_what_was_read() -> None:
    setup = setup_of(*policies_for([], ["nothing"]), tools=(ToolDeclaration("look"),))
    outcome = outcome_of(setup, recording(conversation(*MESSAGES)), BrokenLine("b.jsonl", 3, "not valid JSON"))

    report = report_of(outcome, setup, [f"{number}.jsonl" for number in range(150)], "tools.json")

    expected = {
        "version": 2,
        "counter": "characters",
        "window": 1_000,
        "tools": {"file": "tools.json", "count": 1, "tokens": setup.tools_tokens},
        "file_count": 150,
        "conversations": 1,
        "calls": 4,
        "errors": [{"file": "b.jsonl", "line": 3, "error": "not valid JSON"}],
        "error_count": 1,
        "calls_at": [1, 1, 1, 1],
    }
    assert {name: report[name] for name in expected} == expected
    assert report["files"] == [f"{number}.jsonl" for number in range(100)]
    assert report_of(outcome, setup)["tools"] is None


def test_curves_are_means_and_peaks_and_null_where_all_was_refused() -> None:
    policies = [Policy("nothing", lambda ceiling, model: ChatStack(model)), Policy("strict", strict)]

    replay = replayed(policies, MESSAGES, MESSAGES[:4], ({**MESSAGES[0], "content": "q"}, MESSAGES[1]), window=150)

    assert replay.report["calls_at"] == [3, 2, 1, 1]
    first, more = 254, 508
    assert policy_in(replay, "nothing")["curve"] == {
        "tokens": [round((2 * first + 5) / 3, 1), first + more, first + 2 * more, first + 3 * more],
        "peak": [first, first + more, first + 2 * more, first + 3 * more],
    }
    refused = policy_in(replay, "strict")["curve"]
    assert refused == {"tokens": [round((2 * first + 5) / 3, 1)], "peak": [first]}


def test_a_call_that_only_others_reached_is_null_in_a_curve() -> None:
    curve = Curve()
    curve.add(2, 30, 40)
    replay = replayed(policies_for([], ["nothing"]), MESSAGES)
    replay.figures[0].curve = curve

    assert policy_in(replay, "nothing")["curve"] == {"tokens": [None, None, 30.0], "peak": [None, None, 40]}


def test_half_characters_of_a_recording_come_back_from_the_json() -> None:
    replay = replayed(policies_for([], ["nothing"]), MESSAGES)
    replay.outcome.note(1, BrokenLine("\ud800.jsonl", 1, "\udfff"))

    assert "\ud800" not in report_json(report_of(replay.outcome, replay.setup))
    assert replay.report["errors"] == [{"file": "\ud800.jsonl", "line": 1, "error": "\udfff"}]


def keys_in(value: object) -> set[str]:
    """The names of all fields, at whatever depth; what stands under ``faults`` are not names."""
    if isinstance(value, dict):
        fields = {key: each for key, each in value.items()}
        return set(fields).union(*(keys_in(each) for key, each in fields.items() if key != "faults"))
    return set().union(*map(keys_in, value)) if isinstance(value, list) else set()


def test_every_field_is_documented() -> None:
    replay = replayed(policies_for([], ["nothing"]), big_talk(), model="gpt-4o")
    replay.outcome.note(1, BrokenLine("a.jsonl", 1, "not valid JSON"))
    setup = dataclasses.replace(replay.setup, tools=(ToolDeclaration("look"),))

    fields = keys_in(report_of(replay.outcome, setup, ["a.jsonl"], "tools.json"))

    assert len(fields) > 50
    assert {field for field in fields if f"``{field}``" not in (schema.__doc__ or "")} == set()


def test_the_page_gets_the_stories_and_the_json_does_not() -> None:
    setup = setup_of(*policies_for([], ["nothing", "guard"]), stories=1)
    outcome = outcome_of(setup, *(recording(conversation(*MESSAGES, id=name)) for name in ("one", "two")))
    report = report_of(outcome, setup)

    stories: Any = with_stories(report, outcome)["stories"]
    (story,) = stories

    assert "stories" not in report
    assert (story["id"], story["calls"], len(story["messages"])) == ("one", [1, 3, 5, 7], 8)
    assert [policy["name"] for policy in story["policies"]] == ["nothing", "guard"]
    assert [(call.get("same"), call["states"]) for call in story["policies"][0]["calls"]] == [
        (None, "1k"),
        (1, "2k"),
        (3, "2k"),
        (5, "2k"),
    ]
    assert json.loads(json.dumps(story)) == story
