from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import InputError
from chatstack.providers.extras import encoded_extra, extra_fields, extra_json_of, with_extra
from tests.histories import PROPERTY

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
OBJECTS = st.dictionaries(st.sampled_from("abcd"), JSON, max_size=4)


def test_what_is_not_written_is_kept_under_the_name_of_the_wire() -> None:
    original = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    assert json.loads(extra_json_of(original, {"type": "text", "text": "hi"}, "anthropic")) == {
        "anthropic": {"cache_control": {"type": "ephemeral"}}
    }


def test_of_objects_in_objects_only_the_missing_fields_are_kept() -> None:
    extra = extra_json_of({"function": {"name": "f", "parsed": 1}}, {"function": {"name": "f"}}, "w")
    assert json.loads(extra) == {"w": {"function": {"parsed": 1}}}


def test_nothing_to_keep_is_no_text_at_all() -> None:
    assert extra_json_of({"a": 1}, {"a": 1}, "w") == ""
    assert encoded_extra({}, "w") == ""


def test_what_is_kept_is_only_put_where_nothing_was_written() -> None:
    extra = encoded_extra({"a": "old", "b": {"x": "old", "y": 2}, "c": 3}, "w")
    assert with_extra({"a": 1, "b": {"x": 1}}, extra, "w", "here") == {"a": 1, "b": {"x": 1, "y": 2}, "c": 3}


def test_what_is_left_out_is_not_written() -> None:
    assert with_extra({}, '{"w":{"a":1,"b":2}}', "w", "here", left_out=frozenset({"a"})) == {"b": 2}


@PROPERTY
@given(original=OBJECTS, taken=st.sets(st.sampled_from("abcd")))
def test_reading_and_writing_are_two_halves_of_one_rule(original: dict[str, Any], taken: set[str]) -> None:
    written = {name: value for name, value in original.items() if name in taken}
    assert with_extra(written, extra_json_of(original, written, "w"), "w", "here") == original


@PROPERTY
@given(written=OBJECTS, foreign=OBJECTS)
def test_fields_of_another_wire_have_no_influence(written: dict[str, Any], foreign: dict[str, Any]) -> None:
    extra = json.dumps({"other": foreign})
    assert with_extra(written, extra, "w", "here") == written
    assert extra_fields(extra, "w", "here") == {}


@pytest.mark.parametrize(
    "text",
    ["cache", "[]", '"w"', "null", '{"cache_control":"ephemeral"}', '{"w":null}', '{"w":[]}', '{"w":{},"other":1}'],
)
def test_what_is_no_object_of_objects_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(InputError, match=r'^messages\[3\]: extra_json must be .*: \{"w": \{\.\.\.\}\}$'):
        extra_fields(text, "w", "messages[3]")
