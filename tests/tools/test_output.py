"""What a tool returned can be sent, whatever was in it."""

from __future__ import annotations

import datetime
import threading

import pydantic
import pytest

from chatstack import File, Text
from chatstack.tools.output import output_of


@pytest.mark.parametrize(
    ("value", "output"),
    [
        ("caf\udce9.txt", "caf\ufffd.txt"),
        (["a", "caf\udce9.txt"], '["a","caf\ufffd.txt"]'),
        ({"caf\udce9": {"ü": [1, None, "\ud83d\ude00"]}}, '{"caf\ufffd":{"ü":[1,null,"😀"]}}'),
        (Text("\udce9"), (Text("\ufffd"),)),
        ([Text("\udce9"), File(text="a", name="\udce9")], (Text("\ufffd"), File(text="a", name="\ufffd"))),
    ],
    ids=ascii,
)
def test_halves_of_characters_are_replaced(value: object, output: object) -> None:
    assert output_of(value) == output


def test_parts_without_any_are_the_same_objects() -> None:
    parts = (Text("Grüße"), File(text="ä", name="ö"))
    output = output_of(list(parts))
    assert isinstance(output, tuple)
    assert all(one is other for one, other in zip(output, parts, strict=True))


def test_a_model_of_pydantics_is_written_as_it_says_itself() -> None:
    class City(pydantic.BaseModel):
        name: str
        seen: datetime.date

    city = City(name="Dubai", seen=datetime.date(2026, 1, 2))
    assert output_of({"city": city}) == '{"city":{"name":"Dubai","seen":"2026-01-02"}}'


def test_what_cannot_be_written_is_named() -> None:
    with pytest.raises(TypeError, match="a lock cannot be written as JSON"):
        output_of(threading.Lock())
