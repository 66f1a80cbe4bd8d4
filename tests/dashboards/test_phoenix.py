"""What Phoenix has of the travel assistant, by its API and on its pages. Needs ``CHATSTACK_PHOENIX``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from tests.dashboards import phoenix_server, phoenix_travels
from tests.dashboards.phoenix_server import Phoenix, Span
from tests.warning_lines import without_warnings

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(3_600),  # the first test waits until Phoenix is up
    pytest.mark.skipif(not phoenix_server.PYTHON, reason="CHATSTACK_PHOENIX names no Python that has arize-phoenix"),
]
NEAR, EXCEEDED = "context_window_near_limit", "context_window_exceeded"
TALKS, SPOKEN, SCRIPT = "conversations", "captured", "travel-assistant"
PAGE = phoenix_travels.EXAMPLE.parent / "dashboards" / "phoenix.md"
FOUND = {
    "parent_id is None and attributes['chatstack']['warning']['count'] >= 1": 3,
    f"'{EXCEEDED}' in attributes['chatstack']['warnings']": 1,
    "parent_id is None and attributes['chatstack']['context']['utilization'] > 0.8": 5,
    "parent_id is None and attributes['chatstack']['context']['tokens_left_out'] > 0": 3,
    "parent_id is None and attributes['chatstack']['edit']['count'] >= 1": 1,
    "parent_id is None and session.id == 'world-tour'": 11,
    "attributes['chatstack']['severity'] == 'WARN'": 3,
    "attributes['chatstack']['severity'] == 'WARN' and session.id == 'world-tour'": 3,
    f"attributes['chatstack']['warning']['code'] == '{EXCEEDED}'": 1,
    "span_kind == 'GUARDRAIL'": 3,
    "attributes['chatstack']['compaction']['strategy'] == 'truncate'": 1,
    "attributes['gen_ai']['conversation']['compacted'] == True": 9,
}
"""Each filter of the page, and how many spans of the conversations it finds."""
LEFT_OUT = ("messages_sent", "messages", "tokens_left_out")
CITIES = 16
"""As many as it takes the example to fold its conversation once."""


@dataclass(frozen=True)
class Exported:
    """The conversations as they left this process, and as they arrived."""

    sent: Sequence[ReadableSpan]
    arrived: Sequence[Span]

    @property
    def roots(self) -> list[Span]:
        return [span for span in self.arrived if span.parent_id is None]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Phoenix]:
    with phoenix_server.phoenix(tmp_path_factory.mktemp("phoenix")) as running:
        yield running


@pytest.fixture(scope="module")
def talks(server: Phoenix) -> Exported:
    """Several conversations with a guard, one of which gets too long for it."""
    sent = phoenix_travels.run_conversations(server.url, TALKS)
    return Exported(sent, server.arrived(TALKS, len(sent)))


@pytest.fixture(scope="module")
def spoken(server: Phoenix) -> Exported:
    """The same, with the text of the messages."""
    sent = phoenix_travels.run_conversations(server.url, SPOKEN, capture="span_only")
    return Exported(sent, server.arrived(SPOKEN, len(sent)))


@pytest.fixture(scope="module")
def script(server: Phoenix) -> list[Span]:
    """The roots of the example, run as its page says."""
    command = [sys.executable, "-W", "error", str(phoenix_travels.EXAMPLE), "--cities", str(CITIES)]
    done = subprocess.run([*command, "--export", server.url], env={}, capture_output=True, timeout=300, check=False)
    assert (done.returncode, without_warnings(done.stderr.decode())) == (0, "")
    return server.arrived(SCRIPT, CITIES + 1, parent_id="null")


def test_each_operation_is_recognised_for_what_it_is(talks: Exported) -> None:
    kinds = {(span.name.split()[0], span.kind) for span in talks.arrived}
    assert kinds == {
        ("invoke_agent", "AGENT"),
        ("chat", "LLM"),
        ("execute_tool", "TOOL"),
        ("context_guard", "GUARDRAIL"),
        ("compact_context", "CHAIN"),
    }
    assert {span.status for span in talks.arrived} == {"UNSET"}


def test_the_warned_spans_are_found_by_their_severity_in_the_conversation_that_got_too_long(
    server: Phoenix, talks: Exported
) -> None:
    warned = server.spans(TALKS, attribute="chatstack.severity:WARN")
    assert [span.attributes["chatstack.warning.code"] for span in warned] == [NEAR, EXCEEDED, NEAR]
    assert {span.attributes["session.id"] for span in warned} == {phoenix_travels.LONG}
    roots = {root.trace_id: root for root in talks.roots}
    assert [span.parent_id for span in warned] == [roots[span.trace_id].id for span in warned]
    (edit,) = server.spans(TALKS, attribute="chatstack.severity:INFO")
    assert (edit.name, edit.parent_id) == ("compact_context truncate", warned[1].id)


def test_the_warnings_are_rolled_up_onto_the_roots_and_no_other(server: Phoenix, talks: Exported) -> None:
    rolled_up = server.spans(TALKS, parent_id="null", attribute="chatstack.warning.count:1")
    assert [list(span.attributes["chatstack.warnings"]) for span in rolled_up] == [[NEAR], [EXCEEDED], [NEAR]]
    warned = server.spans(TALKS, attribute="chatstack.severity:WARN")
    assert [span.trace_id for span in rolled_up] == [span.trace_id for span in warned]
    quiet = [root for root in talks.roots if root.trace_id not in {span.trace_id for span in warned}]
    assert len(quiet) == phoenix_travels.TURNS - 3
    assert all("chatstack.warning.count" not in root.attributes for root in quiet)


def test_the_list_of_traces_says_whose_conversation_it_is_and_what_is_wrong_within_twenty_characters(
    talks: Exported,
) -> None:
    shown = [(root.attributes["input.value"], root.attributes.get("output.value", "")) for root in talks.roots]
    assert [asked for asked, _ in shown[:4]] == [
        "lisbon-weekend, 1 message",
        "nordic-trip, 1 message",
        "nordic-trip, 7 messages",
        "world-tour, 1 message",
    ]
    assert [told[:20] for _, told in shown if told] == [
        "WARN fits at 80%: ab",
        "WARN pruned at 102%:",
        "WARN fits at 81%: ab",
        "45 of 65 messages se",
    ]
    (exceeded,) = (told for _, told in shown if EXCEEDED in told)
    assert "1,019 of 1,000 tokens" in exceeded


def test_the_list_of_sessions_says_what_is_left_out_now(server: Phoenix, talks: Exported) -> None:
    sessions = server.sessions(TALKS)
    last = next(root for root in reversed(talks.roots) if root.attributes["session.id"] == phoenix_travels.LONG)
    sent, came, tokens = (last.attributes[f"chatstack.context.{name}"] for name in LEFT_OUT)
    said = f"{sent:,} of {came:,} messages sent, about {tokens:,} tokens left out"
    assert sent < came
    assert sessions[phoenix_travels.LONG] == ("world-tour, 1 message", said)
    assert sessions["nordic-trip"] == ("nordic-trip, 1 message", "")


@pytest.mark.parametrize("condition", FOUND)
@pytest.mark.usefixtures("talks")
def test_the_filters_of_the_page_find_what_they_say(server: Phoenix, condition: str) -> None:
    assert len(server.where(TALKS, condition)) == FOUND[condition]


def test_there_is_no_other_filter_on_the_page() -> None:
    section = PAGE.read_text().partition("## Find it")[2]
    assert set(re.findall(r"^\|.+\| `(.+)` \|$", section, re.MULTILINE)) == set(FOUND)


@pytest.mark.usefixtures("talks")
def test_a_conversation_in_which_nothing_is_wrong_has_no_warning(server: Phoenix) -> None:
    warned = "attributes['chatstack']['severity'] == 'WARN'"
    assert server.where(TALKS, "session.id == 'nordic-trip'")
    assert not server.where(TALKS, f"{warned} and session.id == 'nordic-trip'")


def test_every_span_of_a_turn_is_in_its_conversation(talks: Exported) -> None:
    whose = {root.trace_id: root.attributes["session.id"] for root in talks.roots}
    assert all(span.attributes.get("session.id") == whose[span.trace_id] for span in talks.arrived)


def test_the_tokens_of_a_project_and_of_each_conversation_are_those_of_its_model_calls(
    server: Phoenix, talks: Exported
) -> None:
    found = server.tokens(TALKS)
    assert found.total == _tokens(talks.sent)
    assert found.total > (10_000, 100)
    ids = {_said(span, "gen_ai.conversation.id") for span in talks.sent}
    assert dict(found.by_conversation) == {
        each: _tokens([span for span in talks.sent if _said(span, "gen_ai.conversation.id") == each]) for each in ids
    }


def test_no_text_of_a_message_arrives_unless_it_is_captured(talks: Exported, spoken: Exported) -> None:
    said = ("what should I wear", "light clothes", "get_weather(", '"temperature"', "Answer in two sentences")
    assert not [text for text in said if text in str(talks.arrived)]
    captured = str(spoken.arrived)
    assert [text for text in said if text in captured] == ["what should I wear", "light clothes", *said[3:]]


def test_captured_messages_are_messages_to_phoenix(spoken: Exported) -> None:
    call = next(span for span in spoken.arrived if span.kind == "LLM")
    assert call.attributes["llm.input_messages.0.message.role"] == "system"
    assert "Lisbon" in call.attributes["llm.input_messages.1.message.content"]


def test_a_warning_is_in_the_list_also_when_text_is_captured(spoken: Exported) -> None:
    (exceeded,) = (root for root in spoken.roots if EXCEEDED in root.attributes.get("chatstack.warnings", ()))
    assert exceeded.attributes["input.value"] == "What is the weather in Athens, and what should I wear there?"
    assert exceeded.attributes["output.value"].startswith("WARN pruned at 102%")
    assert "Athens has 22 degrees" in exceeded.attributes["output.value"]


def test_the_example_exports_its_fold_and_what_led_to_it(server: Phoenix, script: list[Span]) -> None:
    assert {root.attributes["session.id"] for root in script} == {"trip"}
    assert [root.attributes["chatstack.warnings"] for root in script if "chatstack.warnings" in root.attributes] == [
        [NEAR]
    ]
    (fold,) = server.spans(SCRIPT, name="compact_context summarize")
    calls = server.spans(SCRIPT, parent_id=fold.id, span_kind="LLM")
    assert len(calls) >= 1
    assert {call.attributes["session.id"] for call in calls} == {"trip"}


def test_the_code_on_the_page_sends_a_turn(server: Phoenix) -> None:
    (code,) = re.findall(r"^```python\n(.+?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert "http://127.0.0.1:6006" in code
    ours = code.replace("http://127.0.0.1:6006", server.url)
    subprocess.run([sys.executable, "-W", "error", "-c", ours], timeout=300, check=True)
    (root,) = server.arrived("my-assistant", 1, parent_id="null")
    assert (root.name, root.attributes["session.id"]) == ("invoke_agent my-assistant", "c-42")


@pytest.mark.usefixtures("talks", "script")
def test_the_pages_show_the_conversation_that_got_too_long_and_why(server: Phoenix, tmp_path: Path) -> None:
    (root,) = _roots_of(server, EXCEEDED)
    (warned,) = server.spans(TALKS, attribute=f"chatstack.warning.code:{EXCEEDED}")
    read = partial(phoenix_server.page_text, folder=tmp_path)
    listed = read(server.traces_page(TALKS), until="WARN pruned at 102%")
    assert "world-tour, 49 messages" in listed
    assert "WARN pruned at 102%" in listed
    for span in (root, warned):
        assert f"about 1,019 of 1,000 tokens ({EXCEEDED})" in read(server.span_page(span), until=EXCEEDED)
    assert "WARN pruned" not in read(server.traces_page(SCRIPT), until="trip, ")


@pytest.mark.usefixtures("talks")
def test_a_picture_can_be_taken_of_them(server: Phoenix, tmp_path: Path) -> None:
    """It is written to the folder ``CHATSTACK_PICTURES``, if that is set: the one in the README is made so."""
    (root,) = _roots_of(server, EXCEEDED)
    listed = phoenix_server.picture(server.traces_page(TALKS), tmp_path / "list.png", height=960)
    opened = phoenix_server.picture(server.span_page(root), tmp_path / "opened.png", height=800)
    folder = Path(os.environ.get("CHATSTACK_PICTURES", tmp_path))
    both = phoenix_server.both_pictures(listed, opened, folder / "phoenix.png")
    assert 50_000 < both.stat().st_size < 250_000


def _roots_of(server: Phoenix, code: str) -> list[Span]:
    """The turns in which that was warned of."""
    ids = server.where(TALKS, f"'{code}' in attributes['chatstack']['warnings']")
    return [span for span in server.spans(TALKS, parent_id="null") if span.id in ids]


def _said(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {}).get(name)


def _tokens(spans: Sequence[ReadableSpan]) -> tuple[int, int]:
    """What the model calls among them have read and written."""
    total: Counter[str] = Counter()
    for span in spans:
        if _said(span, "gen_ai.operation.name") == "chat":
            total["in"] += _said(span, "gen_ai.usage.input_tokens")
            total["out"] += _said(span, "gen_ai.usage.output_tokens")
    return total["in"], total["out"]
