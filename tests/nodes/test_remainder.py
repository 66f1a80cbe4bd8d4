"""What one side has and the other has no field for: told as a difference, and only put back where it belongs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatstack import InputError
from chatstack.nodes.remainder import completed, is_deep, json_text, object_in, remainder, same, told_at

PROPERTY = settings(derandomize=True, database=None, deadline=None)
TEXTS = st.one_of(st.sampled_from(["", "sun", "日 ☀", "{}", " "]), st.text(max_size=8))

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.floats(-2, 2), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=8,
)


@PROPERTY
@given(VALUES, VALUES)
def test_any_value_is_made_of_any_other(wanted: Any, plain: Any) -> None:
    assert same(completed(plain, remainder(wanted, plain)), wanted)


@PROPERTY
@given(VALUES)
def test_nothing_is_left_over_between_equals(value: Any) -> None:
    assert remainder(value, value) == {}


@PROPERTY
@given(VALUES, VALUES, VALUES)
def test_it_is_json_and_harmless_on_whatever_it_is_applied_to(wanted: Any, plain: Any, other: Any) -> None:
    rest = remainder(wanted, plain)
    json_text(rest, "here")
    completed(other, rest)
    completed(other, wanted)


def test_an_item_of_a_list_that_has_changed_keeps_its_change() -> None:
    rest = remainder([{"a": 1, "b": 2}, {"a": 3, "b": 4}], [{"a": 1}, {"a": 3}])
    assert completed([{"a": 1}, {"a": 9}], rest) == [{"a": 1, "b": 2}, {"a": 9}]
    assert completed([{"a": 1}], rest) == [{"a": 1, "b": 2}]


def test_numbers_of_different_types_are_different() -> None:
    assert not same(1, True)
    assert not same([1], [1.0])
    assert completed({"a": 1}, remainder({"a": 1.0}, {"a": 1})) == {"a": 1.0}


def test_of_a_long_value_with_one_field_more_only_that_field_is_told() -> None:
    rest = remainder({"parts": [{"data": "x" * 10_000, "note": "n"}]}, {"parts": [{"data": "x" * 10_000}]})
    assert len(json_text(rest, "here")) < 100


@pytest.mark.parametrize("value", [object(), {1: "a"}, (1,), float("nan"), {"a": {2}}])
def test_what_json_does_not_give_back_is_refused_by_place(value: Any) -> None:
    with pytest.raises(InputError, match=r"^here: "):
        json_text(value, "here")


@pytest.mark.parametrize(("depth", "expected"), [(0, False), (99, False), (101, True), (300, True)])
def test_what_is_nested_too_deeply_for_a_checkpoint_is_told(depth: int, expected: bool) -> None:
    value: Any = "x"
    for at in range(depth):
        value = [value] if at % 2 else {"in": value}
    assert is_deep(value) is expected


def test_the_inmost_place_is_told() -> None:
    with (
        pytest.raises(InputError, match=r"^inside: holds what JSON cannot say \(a circle\)$"),
        told_at("outside"),
        told_at("inside"),
    ):
        raise ValueError("a circle")


def test_what_is_too_deep_is_told_without_what_there_is() -> None:
    with (
        pytest.raises(InputError, match=r"^here: .*too deep for JSON; leave it out$"),
        told_at("here", "; leave it out"),
    ):
        raise RecursionError


@pytest.mark.parametrize(
    ("text", "found"), [('{"a": 1}', {"a": 1}), ("", {}), ("[1]", {}), ("half", {}), ("[" * 200_000, {})]
)
def test_text_that_is_no_object_counts_as_an_empty_one(text: str, found: dict[str, Any]) -> None:
    assert object_in(text) == found
