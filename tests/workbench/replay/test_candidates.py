"""What tuning tries: stacks that a file can say, and files that are the very stack that was measured."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from chatstack import ChatStack, ContextWindowGuard, ToolResultClearer, ToolResultShaper
from chatstack.config.recipes import from_config
from chatstack.context.strategies.condensing import ClearThenDrop
from chatstack.testing import ScriptedClient
from chatstack.tokens.counter import CharCounter, TokenizerCounter
from chatstack.workbench.replay.measures.measuring import WireCounter
from chatstack.workbench.replay.policies import PipelineStack, bytes_for
from chatstack.workbench.replay.tuning.candidates import (
    AXES,
    PAYS,
    Candidate,
    ConfigWriter,
    first_candidates,
)
from chatstack.workbench.replay.tuning.pipeline_files import SUFFIXES, pipeline_text

WINDOW = 1_000
WRITER = ConfigWriter(WINDOW, "")
OURS = first_candidates()[0]
"""What is there if nobody tunes."""


def some_candidates() -> list[Candidate]:
    chosen = random.Random(11)
    return [
        *first_candidates(),
        *(
            Candidate(kind, tuple(chosen.choice(axis) for axis in axes.values()))
            for kind, axes in AXES.items()
            for _ in range(40)
        ),
    ]


def test_the_search_begins_with_what_each_kind_does_by_default() -> None:
    model = ScriptedClient(["fine"])
    guard: dict[str, Any] = {"max_context_tokens": WINDOW, "prune_on_overflow": True}
    shaped = ChatStack(model).use(ToolResultShaper, max_bytes=bytes_for(WINDOW))
    ours = shaped.use(ClearThenDrop(WINDOW)).use(ContextWindowGuard, **guard)
    clearer = ChatStack(model).use(ToolResultClearer, trigger={"tokens": WINDOW}, max_context_tokens=WINDOW)
    alone = ChatStack(model).use(ContextWindowGuard, **guard)

    first = [repr(PipelineStack(WRITER.config(each))(WINDOW, model).build()) for each in first_candidates()[:3]]

    assert first == [repr(each.build()) for each in (ours, clearer.use(ContextWindowGuard, **guard), alone)]
    assert len(set(first_candidates())) == len(first_candidates())


def test_a_neighbour_differs_in_one_setting_by_so_many_steps() -> None:
    for candidate in some_candidates():
        for steps in (1, 2):
            for other in candidate.neighbours(steps):
                (changed,) = [name for name, value in candidate.settings.items() if other.settings[name] != value]
                axis = AXES[candidate.kind][changed]
                apart = axis.index(other.settings[changed]) - axis.index(candidate.settings[changed])
                assert abs(apart) == steps
                assert candidate in other.neighbours(steps)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("counter", ["", "tokenizer"])
def test_every_file_is_the_very_stack_that_was_measured(tmp_path: Path, suffix: str, counter: str) -> None:
    model, path = ScriptedClient(["fine"]), tmp_path / f"mine{suffix}"
    for candidate in some_candidates()[:: 17 if counter else 1]:  # making a tokenizer takes long
        config = ConfigWriter(12_345, counter).config(candidate)
        path.write_text(pipeline_text(config, suffix, ["tuned on [[layers]] \x1b[31m\n= #: 'a'", "x " * 200]))

        assert repr(from_config(path, model)) == repr(PipelineStack(config)(1, model))


def test_the_layers_count_by_the_tokenizer_where_the_measure_does_and_else_by_characters() -> None:
    by_tokenizer = WireCounter(TokenizerCounter(), "o200k")
    for counter, named in ((by_tokenizer, {"tokenizer"}), (WireCounter(CharCounter(4), "characters/4"), {None})):
        layers = ConfigWriter.measured_by(counter, WINDOW).config(OURS)["layers"]
        assert {layer.get("counter") for layer in layers} == named


def test_words_tell_the_sizes_in_tokens() -> None:
    writer = ConfigWriter(10_000, "")
    assert "New tool results are bounded at 2,500 bytes. Above 10,000 tokens it clears" in writer.words(OURS)
    assert "down to 4,500, of which" in writer.words(OURS)
    pays = Candidate("ToolResultClearer", (0.5, 4, PAYS, 0.7, 0.9))
    assert writer.words(pays) == (
        "From 5,000 tokens on it clears all tool results but the newest 4, once that pays. Above 9,000 tokens a guard "
        "drops the oldest messages, down to 6,300."
    )
