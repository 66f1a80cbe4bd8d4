"""A model's window comes from the published tables, or nobody knows it."""

from __future__ import annotations

import sys

import pytest

from chatstack.tokens.windows import window_of


def test_a_known_model_has_its_window() -> None:
    assert window_of("gpt-4o") == 128_000


def test_a_vendor_before_a_slash_is_understood() -> None:
    assert window_of("openai/gpt-4o") == window_of("gpt-4o")


@pytest.mark.parametrize("model", ["", "/", "no-such-model", "vendor/no-such-model"])
def test_an_unknown_model_has_none(model: str) -> None:
    assert window_of(model) is None


def test_nothing_is_known_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices.data_snapshot", None)

    assert window_of.__wrapped__("gpt-4o") is None
