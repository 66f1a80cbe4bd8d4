"""What a tool returned can be sent, whatever was in it."""

from __future__ import annotations

import datetime
import decimal
import math
import threading

import msgspec
import pydantic
import pytest

from chatstack import File, Text
from chatstack.errors import ToolError
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


class Reading(msgspec.Struct):
    value: float
    data: bytes = b""


class Measured(pydantic.BaseModel):
    value: float


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, [1.0, math.nan], {"deep": [{"er": (math.inf,)}]}, Measured(value=math.nan)],
    ids=repr,
)
def test_a_number_that_is_not_finite_is_refused_and_never_written_as_null(value: object) -> None:
    with pytest.raises(ToolError, match=r"a number that is not finite \(NaN or infinite\)"):
        output_of(value)


@pytest.mark.parametrize(
    "value",
    [b"x", bytearray(b"x"), memoryview(b"x"), [b"x"], {"deep": [{"er": b"x"}]}, Reading(1.0, b"x"), ["\ud83d", b"x"]],
    ids=lambda value: type(value).__name__,
)
def test_bytes_are_refused_and_never_written_as_base64(value: object) -> None:
    with pytest.raises(ToolError, match=r"The result holds (bytes|bytearray|memoryview), for which JSON has no form"):
        output_of(value)


def test_a_number_beyond_what_json_readers_know_is_no_nan() -> None:
    with pytest.raises(ValueError, match="4300 digits"):
        output_of([10**5_000])


@pytest.mark.parametrize(
    ("value", "output"),
    [
        ([None, 0.1, 1e16, 1e300, -0.0], "[null,0.1,1e16,1e300,-0.0]"),
        ({1: {2.5: {True}}}, '{"1":{"2.5":[true]}}'),
        (decimal.Decimal("NaN"), '"NaN"'),
    ],
)
def test_what_json_has_a_form_for_is_written_as_it_was(value: object, output: str) -> None:
    assert output_of(value) == output
