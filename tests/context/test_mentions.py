"""Mentions: which names are worth keeping, and in which order."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from chatstack import Image, Message, Text, ToolCall, ToolResult
from chatstack.context.mentions import mentions_in
from tests.histories import PROPERTY, histories


def result(text: str) -> Message:
    return Message.tool("c", text)


def asked(**arguments: object) -> Message:
    return Message.assistant("", ToolCall("c", "look", json.dumps(arguments)))


@pytest.mark.parametrize(
    "name",
    [
        "src/app/main.py",
        "user_settings",
        "v1.2.3",
        "readUser",
        "HTTPServer",
        "requests.get",
        "1234567",
        "2026-11-22",
        "a_b1",
    ],
)
def test_what_looks_like_an_identifier_is_a_name(name: str) -> None:
    assert mentions_in([result(f"and then {name}, again")], []) == [name]


@pytest.mark.parametrize("word", ["weather", "Weather", "12345", "42", "ab_", "(...)", "日本語", ""])
def test_plain_words_and_short_numbers_are_none(word: str) -> None:
    assert mentions_in([result(f"the {word} today")], []) == []


def test_a_plain_word_that_the_model_itself_has_used_is_a_name() -> None:
    assert mentions_in([asked(city="Dubai"), result("the weather in Dubai is fine")], []) == ["Dubai"]
    assert mentions_in([asked(city="Dubai")], [result("fine")]) == ["Dubai"]


def test_what_is_still_in_sight_is_not_listed() -> None:
    gone = [result("see a_first and a_second and a_third")]
    left = [Message.user("a_first"), asked(name="a_second")]
    assert mentions_in(gone, left) == ["a_third"]


def test_what_the_model_used_most_comes_first_then_what_was_spoken_of_then_the_newest() -> None:
    gone = [
        result("a_returned b_returned"),
        result("b_returned"),
        Message.user("a_spoken"),
        Message.assistant("a_spoken b_spoken"),
        asked(name="a_used"),
        asked(name="b_used"),
        asked(name="b_used again"),
        result("c_returned"),
    ]
    expected = ["b_used", "a_used", "a_spoken", "b_spoken", "b_returned", "c_returned", "a_returned"]
    assert [name for name in mentions_in(gone, []) if "_" in name] == expected


def test_of_names_told_equally_often_the_one_told_last_comes_first() -> None:
    gone = [result("early_and_late"), result("middle_name"), result("middle_name"), result("early_and_late")]
    assert mentions_in(gone, []) == ["early_and_late", "middle_name"]


def test_values_in_arguments_are_read_as_values() -> None:
    given_now = asked(
        text="first_line\nsecond_line", nested={"deep": ["in_a_list", {"more": "in_there"}]}, number=12345678
    )
    names = mentions_in([given_now], [])
    assert {"first_line", "second_line", "in_a_list", "in_there", "12345678"} == set(names)


def test_arguments_that_are_no_json_are_read_as_text() -> None:
    cut_off = Message.assistant("", ToolCall("c", "look", '{"path": "src/cut_off'))
    assert mentions_in([cut_off], []) == ["path", "src/cut_off"]
    deep = "[" * 100_000
    assert mentions_in([Message.assistant("", ToolCall("c", "look", deep))], []) == []


def test_text_of_a_result_in_parts_is_read_and_pictures_are_not() -> None:
    output = (Text("see a_name"), Image(url="https://example.org/another_name.png"))
    assert mentions_in([Message("tool", (ToolResult("c", "look", output),))], []) == ["a_name"]


def test_of_a_very_long_text_the_beginning_is_read() -> None:
    assert mentions_in([result("first_name " + "x " * 150_000 + "last_name")], []) == ["first_name"]


@PROPERTY
@given(histories())
def test_names_are_in_what_is_gone_in_nothing_that_is_left_and_each_is_there_once(messages: list[Message]) -> None:
    half = len(messages) // 2
    gone, left = messages[:half], messages[half:]
    names = mentions_in(gone, left)
    assert len(names) == len(set(names))
    assert not set(names) & set(mentions_in(left, []))
    assert names == mentions_in(gone, left)
