"""Halves of characters are found, and can be replaced."""

from __future__ import annotations

import pytest

from chatstack.values.surrogates import lone_surrogate_in, without_lone_surrogates


@pytest.mark.parametrize(
    ("text", "position", "clean"),
    [
        ("", None, ""),
        ("plain", None, "plain"),
        ("Grüße 你好 😀", None, "Grüße 你好 😀"),
        ("a\ud800b", 1, "a\ufffdb"),
        ("caf\udce9.txt", 3, "caf\ufffd.txt"),
        ("cut \ud83d", 4, "cut \ufffd"),
        ("\udc80\udc80", 0, "\ufffd\ufffd"),
        ("\ud83d\ude00!", 0, "😀!"),
        ("\ud800\ud83d\ude00é", 0, "\ufffd😀é"),
    ],
    ids=ascii,
)
def test_a_lone_surrogate_is_found_and_replaced(text: str, position: int | None, clean: str) -> None:
    assert lone_surrogate_in(text) == position
    assert without_lone_surrogates(text) == clean
    assert without_lone_surrogates(text).encode().decode() == clean


def test_text_without_any_is_given_back_itself() -> None:
    text = "Grüße" * 10
    assert without_lone_surrogates(text) is text
