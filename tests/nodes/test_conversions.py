"""Conversions of another framework's messages: equal ones are the same objects of ours."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import InputError, Message
from chatstack.nodes.conversions import Conversions

Raw = dict[str, object]


class Counting:
    """A converter that counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, raw: Raw) -> Message:
        self.count += 1
        return Message.user(str(raw["text"]))


def test_equal_messages_are_one_object_and_one_that_is_changed_in_place_is_another() -> None:
    convert = Counting()
    known = Conversions(convert, dict[str, object])
    raw: Raw = {"text": "hello"}
    first = known.of(raw)
    assert known.of(raw) is first
    assert known.of({"text": "hello"}) is first
    raw["text"] = "well"
    assert known.of(raw).text == "well"
    assert known.of({"text": "hello"}) is first
    assert convert.count == 2


def test_what_cannot_be_encoded_is_converted_each_time() -> None:
    convert = Counting()
    known = Conversions(convert, dict[str, object])
    for odd in (object(), 1 << 80, [[]]):
        assert known.of({"text": "hello", "odd": odd}).text == "hello"
    assert known.of({"text": "hello", "odd": object()}) == known.of({"text": "hello", "odd": object()})
    assert convert.count == 5


def test_no_more_is_kept_than_the_bytes_that_are_allowed() -> None:
    convert = Counting()
    known = Conversions(convert, dict[str, object], max_bytes=1_000)
    raws: list[Raw] = [{"text": f"{number} " + "x" * 200} for number in range(10)]
    made = [known.of(raw) for raw in raws]
    assert known.of(raws[-1]) is made[-1]
    assert convert.count == 10
    assert known.of(raws[0]) is not made[0]
    large = known.of({"text": "x" * 2_000})
    assert known.of({"text": "x" * 2_000}) == large
    assert known.of(raws[-1]) == made[-1]


def test_an_error_of_the_converter_surfaces_and_is_not_kept() -> None:
    def refuse(raw: Raw) -> Message:
        raise InputError("no")

    known = Conversions(refuse, dict[str, object])
    for _ in range(2):
        with pytest.raises(InputError):
            known.of({"text": "x"})


def test_threads_share_one_object() -> None:
    known = Conversions(Counting(), dict[str, object])
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: known.of({"text": str(number % 5)}), range(500)))
    assert len({id(each) for each in found}) == 5


CONTENT = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(CONTENT, max_size=12))
def test_every_message_gets_the_conversion_of_its_own_content(contents: list[object]) -> None:
    known: Conversions[Raw, str] = Conversions(lambda raw: repr(raw["text"]), dict[str, object])
    for content in [*contents, *contents]:
        assert known.of({"text": content}) == repr(content)
