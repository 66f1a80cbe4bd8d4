"""The beginning and the end of a text, and how much is left out between them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack.context.edits.excerpts import head_and_tail, is_excerpt
from tests.histories import PROPERTY

TEXTS = st.text(st.sampled_from("ab \n日é😀[]"), max_size=400)


def pieces(text: str) -> tuple[str, int, int, str]:
    """Head, how much is left out, of how much, and tail."""
    found = re.fullmatch(r"(.*?)\n?\[([\d,]+) of ([\d,]+) bytes left out\]\n?(.*)", text, re.DOTALL)
    assert found is not None
    gone, total = (int(each.replace(",", "")) for each in found.group(2, 3))
    return found[1], gone, total, found[4]


def test_a_text_that_fits_stays_as_it_is() -> None:
    text = "x" * 100
    assert head_and_tail(text, 100) is text
    assert head_and_tail(text, 99) != text
    assert head_and_tail("", 0) == ""


def test_two_thirds_are_its_beginning_and_one_third_its_end() -> None:
    head, gone, total, tail = pieces(head_and_tail("".join(map(str, range(10_000))), 3_000))
    assert (head[:6], tail[-8:]) == ("012345", "99989999")
    assert abs(len(head) - 2 * len(tail)) <= 3
    assert (len(head) + gone + len(tail), total) == (38_890, 38_890)


def test_it_is_cut_between_lines_where_there_are_any() -> None:
    lines = [f"line {number} of the log" for number in range(1_000)]
    head, _, _, tail = pieces(head_and_tail("\n".join(lines), 1_000))
    assert head.split("\n") == lines[: len(head.split("\n"))]
    assert tail.split("\n") == lines[-len(tail.split("\n")) :]


def test_one_long_line_is_cut_between_characters() -> None:
    head, gone, total, tail = pieces(head_and_tail("日本" * 1_000, 500))
    assert set(head + tail) == {"日", "本"}
    assert len((head + tail).encode()) + gone == total == 6_000


def test_a_call_that_gives_all_of_it_back_is_named() -> None:
    text = head_and_tail("x" * 1_000, 200, recall="recall(handle='ab')")
    assert "bytes left out; recall(handle='ab') gives them back]\n" in text
    assert len(text) <= 200


@pytest.mark.parametrize("most", [-5, 0, 1, 10])
def test_where_there_is_no_room_for_anything_only_the_length_is_told(most: int) -> None:
    assert head_and_tail("x" * 1_000, most) == "[1,000 of 1,000 bytes left out]"


@PROPERTY
@given(TEXTS, st.integers(40, 500))
def test_it_is_never_longer_than_asked_for_and_made_of_the_text_alone(text: str, most: int) -> None:
    short = head_and_tail(text, most)
    assert len(short.encode()) <= most
    assert head_and_tail(text, most) == short
    if short != text:
        assert is_excerpt(short, text)
        assert len(short.encode()) < len(text.encode())


def test_what_tells_another_length_or_another_text_is_no_excerpt() -> None:
    text = "".join(map(str, range(1_000)))
    short = head_and_tail(text, 200)
    assert not is_excerpt(short, text + "x")
    assert not is_excerpt(short.replace("012", "021"), text)
    assert not is_excerpt(text, text)
