"""A policy that has summaries written gets a stand-in for whoever writes them, and pays for it."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from pathlib import Path

import pytest

from chatstack import ChatOptions, ChatRequest, Message
from chatstack.context.edits.summaries import OPENING, summary_request
from chatstack.context.edits.transcripts import Entry
from chatstack.workbench.replay.measures.figures import PolicyFigures
from chatstack.workbench.replay.policies import Policy, policies_for
from chatstack.workbench.replay.reading.recordings import Recording
from chatstack.workbench.replay.summaries import SUMMARY_TOKENS, StandInWriter, SummaryCost, stand_in_summary
from tests.workbench.replay.conversations import (
    CHARACTERS,
    assistant,
    conversation,
    outcome_of,
    recording,
    result,
    setup_of,
    user,
)


def pipeline(path: Path, layer: str = "Summarizer", more: dict[str, object] | None = None, **options: object) -> Policy:
    """A stack from a file; ``more`` stands beside its layers."""
    path.write_text(json.dumps({"layers": [{"use": layer, "max_tokens": 1_000, **options}], **(more or {})}))
    return policies_for([path], ["nothing"])[-1]


def figures_of(policy: Policy, *items: Recording, window: int = 100_000) -> PolicyFigures:
    (figures,) = outcome_of(setup_of(policy, window=window), *items).figures
    return figures


def asked(writer: StandInWriter, request: ChatRequest) -> Message:
    async def ask() -> Message:
        return (await (await writer.send(request)).response()).messages[0]

    return asyncio.run(ask())


def long_talk() -> Recording:
    """A value in what is folded, and a last call that takes it."""
    messages = [user("task")]
    for number in range(8):
        text = f"F{number}{number}{number}{number} ".ljust(2_000, "x")
        messages += [assistant(None, f"c{number}"), result(f"c{number}", text)]
    asking = assistant(None, "last")
    asking["tool_calls"][0]["function"]["arguments"] = '{"at": "F0000"}'  # type: ignore[index]
    return recording(conversation(*messages, asking))


def test_a_stand_in_reads_all_that_it_is_sent_and_writes_what_it_may() -> None:
    writer = StandInWriter(CHARACTERS)
    request = ChatRequest((Message.user("x" * 96),), ChatOptions(instructions="i" * 46, max_tokens=20))

    answer = asked(writer, request)

    assert answer.text == "the old way was and is so on it all the old way was and is so on it all"
    assert writer.asked == [SummaryCost(100 + 50, len(answer.text))]


@pytest.mark.parametrize(("most", "words"), [(None, SUMMARY_TOKENS), (8_000, SUMMARY_TOKENS), (64, 64)])
def test_a_summary_has_500_tokens_or_as_many_as_are_allowed(most: int | None, words: int) -> None:
    answer = asked(StandInWriter(CHARACTERS), ChatRequest((Message.user("q"),), ChatOptions(max_tokens=most)))

    assert answer.text == stand_in_summary(words)
    assert len(answer.text.split()) == words


def test_the_same_summary_costs_the_same_though_its_delimiter_is_drawn_anew() -> None:
    writer = StandInWriter(setup_of().counter.best())
    for _ in range(20):
        asked(
            writer,
            summary_request(
                "sum it up", [Entry("user", "hi")] * 50, "", max_tokens=99, model=None, conversation_id=None
            ),
        )

    assert len(set(writer.asked)) == 1


def test_what_a_summary_costs_by_hand(tmp_path: Path) -> None:
    """A task of 8 tokens, a round of 6,024 and an answer of 6; then a question of 5. To the layer, which counts for
    itself, that is more than its limit, so the round is folded."""
    policy = pipeline(tmp_path / "sum.json", max_tokens=1_515, keep_recent_turns=1, max_summary_tokens=64)

    figures, larger = (
        figures_of(
            policy,
            recording(
                conversation(
                    user("task"),
                    assistant(None, "a"),
                    result("a", "one " * size),
                    assistant("so"),
                    user("b"),
                    assistant("end"),
                )
            ),
        )
        for size in (1_500, 1_505)
    )

    spending, written = figures.spending, len(stand_in_summary(64))
    summary = 4 + len(OPENING) + 1 + written
    assert (figures.edits, figures.requests, figures.tokens_sent) == (1, 3, 8 + 6_032 + 8 + summary + 11)
    assert (spending.tokens_read, spending.tokens_written, spending.tokens_plain) == (0, 6_032, 8 + 8 + summary + 11)
    read = spending.summary_input
    assert spending.summary_output == written
    assert 6_000 < read == larger.spending.summary_input - 20  # with what the writer is told to do
    assert spending.cost == 125 * 6_032 + 100 * (8 + 8 + summary + 11 + read) + 500 * written
    # 2.5 dollars for a million, with the cache too, as writing costs nothing extra, and 10 for what is written.
    dollars = (Decimal("2.5") * (figures.tokens_sent + read) + 10 * written) / 1_000_000
    assert spending.usd == spending.usd_uncached == dollars


@pytest.mark.parametrize("layer", ["Summarizer", "ContextWindow"])
def test_values_that_were_folded_are_lost(layer: str, tmp_path: Path) -> None:
    """The stand-in holds nothing of them."""
    figures = figures_of(pipeline(tmp_path / "sum.json", layer), long_talk())

    assert figures.edits > 0
    assert (figures.grounding.values, figures.grounding.found) == (1, 0)
    assert (figures.grounding.far_values, figures.grounding.far_found) == (1, 0)
    assert (figures.invalid_requests, figures.refused) == (0, 0)


def test_who_writes_by_the_file_is_not_made_and_needs_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    named = {"use": "openai", "model": "gpt-5-mini"}
    plain = figures_of(pipeline(tmp_path / "plain.json"), long_talk())

    figures = figures_of(pipeline(tmp_path / "named.json", summary_client=named, more={"provider": named}), long_talk())

    assert figures.spending == plain.spending
    assert figures.spending.summary_output > 0


def test_the_store_of_the_file_is_neither_made_nor_read(tmp_path: Path) -> None:
    store = {"use": "sqlite", "path": str(tmp_path / "decisions.db")}
    policy = pipeline(tmp_path / "kept.json", more={"memory": {"scope": "mine", "store": store}})

    figures = figures_of(policy, long_talk())

    assert figures.edits > 0
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]


def test_a_conversation_pays_for_its_own_summaries(tmp_path: Path) -> None:
    """Also where another one began alike."""
    policy = pipeline(tmp_path / "sum.json")
    once = figures_of(policy, long_talk())

    twice = figures_of(policy, long_talk(), long_talk())

    assert twice.spending.summary_input == 2 * once.spending.summary_input
    assert twice.edits == 2 * once.edits
