"""Mentions: which words are worth keeping, and in which order."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given

from chatstack import Image, Message, Text, ToolCall, ToolResult
from chatstack.context.strategies.mentions import Gone
from tests.histories import PROPERTY, histories


def words_of(gone: Sequence[Message]) -> Gone:
    words = Gone()
    words.add(gone, range(len(gone)))
    return words


def names_in(gone: Sequence[Message], left: Sequence[Message], most: int = 1_000) -> list[str]:
    words = words_of(gone)
    return [word for word in words.mentions(left, most) if words.is_name(word)]


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
    assert names_in([result(f"and then {name}, again")], []) == [name]


@pytest.mark.parametrize("word", ["weather", "Weather", "12345", "/12345", "42", "ab_", "(...)", "日本語", ""])
def test_plain_words_and_short_numbers_are_no_names(word: str) -> None:
    assert names_in([result(f"the {word} today")], []) == []


def test_names_stand_before_other_words_and_those_that_were_said_before_those_that_were_returned() -> None:
    gone = [result("the weather, the weather, see a_name"), Message.user("sunshine"), asked(city="Dubai")]
    assert words_of(gone).mentions([], 9) == ["Dubai", "a_name", "sunshine", "weather"]
    assert words_of(gone).mentions([Message.user("weather")], 3) == ["Dubai", "a_name", "sunshine"]


def test_short_numbers_are_no_words() -> None:
    assert words_of([result("line 12345 of 42 in /12345")]).mentions([], 9) == ["line"]


def test_a_plain_word_that_the_model_itself_has_used_is_a_name() -> None:
    assert names_in([asked(city="Dubai"), result("the weather in Dubai is fine")], []) == ["Dubai"]
    assert names_in([asked(city="Dubai")], [result("fine")]) == ["Dubai"]


@pytest.mark.parametrize("name", ["/testbed/setup.py", "./run_it.sh", "../lib/main.py", "~/notes.txt"])
def test_a_path_keeps_the_sign_that_it_starts_with(name: str) -> None:
    assert names_in([result(f"see ({name}): it is there")], []) == [name]


def test_an_option_that_the_model_has_used_keeps_its_dashes() -> None:
    assert names_in([asked(command="pytest --verbose -x")], []) == ["--verbose", "pytest"]


def test_what_follows_the_signs_of_an_address_or_of_another_word_is_no_path() -> None:
    assert set(names_in([result("https://example.org/a_page and in the end.../what")], [])) == {
        "example.org/a_page",
        "end.../what",
    }


def test_a_plain_word_in_backquotes_is_a_name_when_it_was_said_and_not_when_it_was_returned() -> None:
    assert names_in([Message.assistant("then `aggregate` goes first"), result("the `collect` phase")], []) == [
        "aggregate"
    ]
    assert names_in([Message.user("no `closing quote\nand aggregate`")], []) == []


def test_of_names_that_were_only_returned_a_short_one_stands_for_fewer_times() -> None:
    long_name = "the_name_of_" + "x" * 20
    gone = [result(f"short_1 {long_name}"), result(long_name)]
    assert names_in(gone, []) == ["short_1", long_name]
    assert names_in([*gone, *[result(long_name)] * 5], []) == [long_name, "short_1"]


def test_a_piece_of_a_name_before_it_is_not_listed() -> None:
    path = asked(path="src/parts/main.py")
    gone = [path, path, asked(name="parts"), result("main.py src/parts parts/mai")]
    assert names_in(gone, []) == ["src/parts/main.py", "parts/mai"]


def test_a_name_stays_where_a_longer_one_follows_it() -> None:
    gone = [asked(name="main.py"), asked(name="main.py"), asked(path="src/app/main.py")]
    assert names_in(gone, []) == ["main.py", "src/app/main.py"]


def test_what_is_very_long_is_data_and_no_name() -> None:
    gone = [asked(text=f"{'a1' * 50} {'b2' * 51}")]
    assert names_in(gone, []) == ["a1" * 50]


def test_no_more_are_listed_than_wanted() -> None:
    gone = [result("a_first"), result("a_first b_second"), result("c_third")]
    assert names_in(gone, [], most=2) == ["a_first", "c_third"]
    assert names_in(gone, [], most=0) == names_in(gone, [], most=-1) == []


def test_what_is_still_in_sight_is_not_listed() -> None:
    gone = [result("see a_first and a_second and a_third")]
    left = [Message.user("a_first"), asked(name="a_second")]
    assert names_in(gone, left) == ["a_third"]


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
    assert [name for name in names_in(gone, []) if "_" in name] == expected


def test_of_names_told_equally_often_the_one_told_last_comes_first() -> None:
    gone = [result("early_late_1"), result("the_middle_1"), result("the_middle_1"), result("early_late_1")]
    assert names_in(gone, []) == ["early_late_1", "the_middle_1"]


def test_values_in_arguments_are_read_as_values() -> None:
    given_now = asked(
        text="first_line\nsecond_line", nested={"deep": ["in_a_list", {"more": "in_there"}]}, number=12345678
    )
    names = names_in([given_now], [])
    assert {"first_line", "second_line", "in_a_list", "in_there", "12345678"} == set(names)


def test_arguments_that_are_no_json_are_read_as_text() -> None:
    cut_off = Message.assistant("", ToolCall("c", "look", '{"path": "src/cut_off'))
    assert names_in([cut_off], []) == ["path", "src/cut_off"]
    deep = "[" * 100_000
    assert names_in([Message.assistant("", ToolCall("c", "look", deep))], []) == []


def test_text_of_a_result_in_parts_is_read_and_pictures_are_not() -> None:
    output = (Text("see a_name"), Image(url="https://example.org/another_name.png"))
    assert names_in([Message("tool", (ToolResult("c", "look", output),))], []) == ["a_name"]


def test_of_a_very_long_text_the_beginning_is_read() -> None:
    assert names_in([result("first_name " + "x " * 150_000 + "last_name")], []) == ["first_name"]


@PROPERTY
@given(histories())
def test_words_are_in_what_is_gone_in_nothing_that_is_left_and_each_is_there_once(messages: list[Message]) -> None:
    half = len(messages) // 2
    gone, left = messages[:half], messages[half:]
    words = words_of(gone).mentions(left, 1_000)
    assert len(words) == len(set(words))
    assert not set(words) & set(words_of(left).mentions([], 1_000))
    assert words == words_of(gone).mentions(left, 1_000)
