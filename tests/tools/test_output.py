"""What a tool returned can be sent, whatever was in it."""

from __future__ import annotations

import datetime
import decimal
import math
import threading
from collections import ChainMap, UserDict, UserList, UserString, deque
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType

import msgspec
import pydantic
import pytest

from chatstack import File, Image, Text
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


# Pictures, and numbers of other libraries


PICTURE = Image.from_bytes(b"x" * 30, "image/png")


@pytest.mark.parametrize("value", [[PICTURE, "the page"], (PICTURE, "the page")], ids=["list", "tuple"])
def test_a_text_among_parts_is_one_of_them(value: object) -> None:
    assert output_of(value) == (PICTURE, Text("the page"))


def test_texts_alone_stay_a_list() -> None:
    assert output_of(["a", "b"]) == '["a","b"]'


@dataclass
class Page:
    picture: Image


@pytest.mark.parametrize(
    "value",
    [
        {"picture": PICTURE},
        deque([{"picture": PICTURE}]),
        [PICTURE, 5],
        {"deep": [{"er": (File(data="eA==", media_type="text/x"),)}]},
        Page(PICTURE),
    ],
    ids=["dict", "deque", "beside a number", "deep", "dataclass"],
)
def test_a_picture_within_another_value_is_refused_and_never_written_as_text(value: object) -> None:
    with pytest.raises(ToolError, match="a picture or a file within another value"):
        output_of(value)


@pytest.mark.parametrize(
    "value", [Image(), Image(data="", media_type="image/png"), ["see", Image(data="QUJD")], [File(), Text("b")]]
)
def test_a_picture_that_no_provider_takes_is_refused_and_never_part_of_the_history(value: object) -> None:
    with pytest.raises(ToolError, match=r"The result cannot be sent: (Image|File): (is empty|data needs a media_type)"):
        output_of(value)


def test_a_deep_value_is_searched_too() -> None:
    deep: object = {"type": "file"}
    for _ in range(500):
        deep = [deep]
    assert output_of(deep).count("[") == 500


def test_what_only_looks_like_a_picture_is_written() -> None:
    assert output_of({"type": "image", "data": "x"}) == '{"type":"image","data":"x"}'


class Scalar(float):
    """As numpy's float64."""


class Count(int): ...


class Word(str): ...


class Array:
    """As numpy's, and those of its kin."""

    def tolist(self) -> list[float]:
        return [1.0, 2.0]


@pytest.mark.parametrize(
    ("value", "output"),
    [
        (Path("in/a.pdf"), str(Path("in/a.pdf"))),
        (PurePosixPath("caf\udce9.txt"), "caf\ufffd.txt"),
        ([PurePosixPath("a"), PurePosixPath("caf\udce9")], '["a","caf\ufffd"]'),
        ({PurePosixPath("a"): PurePosixPath("b")}, '{"a":"b"}'),
        (UserString("as it is"), "as it is"),
        ([UserString("text")], '["text"]'),
        (deque([1, deque([2])], maxlen=5), "[1,[2]]"),
        (range(3), "[0,1,2]"),
        (UserList([1]), "[1]"),
        (MappingProxyType({"a": UserDict({"b": ChainMap({"c": 1})})}), '{"a":{"b":{"c":1}}}'),
        ([{"a": 1}.keys(), {"a": 1}.values(), {"a": 1}.items()], '[["a"],[1],[["a",1]]]'),
    ],
    ids=ascii,
)
def test_paths_are_text_and_other_mappings_and_sequences_are_as_pythons_own(value: object, output: str) -> None:
    assert output_of(value) == output


class Sealed(bytes): ...


@pytest.mark.parametrize("value", [Sealed(b"x"), [Sealed(b"x")], deque([Sealed(b"x")])], ids=ascii)
def test_bytes_by_another_name_are_no_list_of_numbers(value: object) -> None:
    with pytest.raises(ToolError, match="a Sealed cannot be written as JSON; the tool must return text"):
        output_of(value)


def test_numbers_texts_and_arrays_of_other_libraries_are_written() -> None:
    value = {"mean": Scalar(0.5), "of": Count(3), "in": Word("cm"), "all": Array()}
    assert output_of(value) == '{"mean":0.5,"of":3,"in":"cm","all":[1.0,2.0]}'
    with pytest.raises(ToolError, match="not finite"):
        output_of({"mean": Scalar("nan")})
