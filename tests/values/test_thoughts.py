"""Thinking in the text of an answer."""

from __future__ import annotations

import pytest

from chatstack.values.thoughts import without_thought


@pytest.mark.parametrize(
    "text",
    [
        "<think>hm</think>said",
        "<think>\nhm\n</think>\n\nsaid",
        "\n<thinking>hm, <b>so</b></thinking>\nsaid",
    ],
)
def test_thinking_before_what_is_said_is_taken_away(text: str) -> None:
    assert without_thought(text) == without_thought(text, is_json=True) == "said"


@pytest.mark.parametrize("text", ["hm\n</think>\n\nsaid", "</think>\nsaid"])
def test_before_json_the_first_tag_may_be_missing(text: str) -> None:
    assert without_thought(text, is_json=True) == "said"
    assert without_thought(text) == text


@pytest.mark.parametrize("text", ["<think>", "<think>hm", "<think>hm</thinking>", "<think>hm</think>"])
def test_of_thinking_alone_nothing_is_left(text: str) -> None:
    assert without_thought(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "said",
        "It writes `<think>hm</think>` before it answers.",
        "The tag `</think>` ends it.",
        "An example:\n<think>\nhm\n</think>\nand so on",
        "<thinker>said</thinker>",
    ],
)
def test_tags_in_what_is_said_stay(text: str) -> None:
    assert without_thought(text) == text
