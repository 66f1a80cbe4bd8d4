"""JSON as small models write it is read where the type leaves no doubt, and refused as before where it does."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack.client.loose_json import decoded_as, unfenced
from chatstack.testing.generated import JSON_VALUES
from tests.histories import PROPERTY


@dataclass
class Place:
    city: str
    metres: float
    days: list[int]
    warm: bool | None = None


@dataclass
class Event:
    inner: list[Event]
    at: datetime.datetime | None = None
    seats: int | None = None
    lasts: datetime.timedelta | None = None


def read(kind: Any, text: str) -> Any:
    return decoded_as(kind, text)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (float, '"22"', 22.0),
        (float, '"-1.5e3"', -1500.0),
        (int, '"22"', 22),
        (int, "22.0", 22),
        (bool, '"true"', True),
        (bool, '"False"', False),
        (int | None, '"null"', None),
        (list[float], '["1", 2]', [1.0, 2.0]),
        (list[float], '"[1, 2]"', [1.0, 2.0]),
        (Literal[1, 2], '"2"', 2),
        (int | list[int], '"3"', 3),
        (
            Place,
            '{"city": "22", "metres": "22", "days": ["1"], "warm": "true"}',
            Place("22", 22.0, [1], True),
        ),
        (Event, '{"inner": [], "seats": "5"}', Event([], None, 5)),
        (
            Event,
            '{"inner": [{"inner": [], "at": "2026-03-01T10:00:00+01:00"}], "seats": "5", "lasts": "PT90M"}',
            Event(
                [Event([], datetime.datetime(2026, 3, 1, 9, tzinfo=datetime.UTC))], None, 5, datetime.timedelta(0, 5400)
            ),
        ),
    ],
)
def test_text_is_the_number_that_the_type_asks_for(kind: Any, text: str, value: object) -> None:
    found = read(kind, text)
    assert found == value
    assert type(found) is type(value)


class Trip(msgspec.Struct, rename="camel", kw_only=True):
    all_days: list[int] = []
    stays: list[Place] | None = None
    seats: dict[str, int] | None = None
    first: Place | None = None
    big: int = 0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'{"allDays": "[1, 2]"}', Trip(all_days=[1, 2])),
        (r'{"allDays": " [\"1\"]\n", "big": "5", "seats": "{\"a\": 2}"}', Trip(all_days=[1], big=5, seats={"a": 2})),
        (
            r'{"stays": "[{\"city\": \"[1]\", \"metres\": 1, \"days\": []}]", "big": 98765432109876543210}',
            Trip(stays=[Place("[1]", 1.0, [])], big=98765432109876543210),
        ),
        (r'{"first": "{\"city\": \"x\", \"metres\": 1, \"days\": []}"}', Trip(first=Place("x", 1.0, []))),
        ('```json\n{"allDays": "[1]"}\n```', Trip(all_days=[1])),
    ],
)
def test_text_of_a_field_is_the_list_or_object_that_the_type_asks_for(text: str, value: Trip) -> None:
    assert read(Trip, text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int | str, '"22"'),
        (str | None, '"null"'),
        (str, '"true"'),
        (dict[str, str], '{"a": "1"}'),
        (dict[str, list[int] | str], '{"a": "[1]"}'),
    ],
)
def test_text_stays_text_where_the_type_allows_it(kind: Any, text: str) -> None:
    assert read(kind, text) == msgspec.json.decode(text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (float, '"nan"'),
        (float, '"\\u006ean"'),
        (float, '"inf"'),
        (float, '"1e999"'),
        (float, '"22 km"'),
        (float, '""'),
        (int, '"22.5"'),
        (int, "22.5"),
        (bool, '"yes"'),
        (str, "5"),
        (list[str], '"a"'),
        (datetime.datetime, "1700000000"),
        (datetime.timedelta, '"5"'),
        (list[Event], '[{"at": 1700000000, "inner": []}]'),
        (Event, '{"inner": [], "at": "1700000000"}'),
        (Event, '{"inner": [{"inner": [], "lasts": " 5 "}]}'),
        (Event, '{"inner": [{"inner": [], "lasts": 5.5}]}'),
        (dict[str, list[datetime.datetime]], '{"a": ["2026-03-01T10:00:00Z", "-1.5e3"]}'),
        (Place, '{"city": "x", "metres": "far", "days": []}'),
        (dict[str, float | None], '{"a": "nan", "b": "1"}'),
        (dict[str, list[float]], '{"a": ["1", "-Infinity"]}'),
        (set[float], '["nan", 1]'),
        (dict[float, float], '{"1": "nan"}'),
        (dict[float, int], '{"nan": "1"}'),
        (Trip, '{"allDays": "1"}'),
        (Trip, '{"allDays": "1, 2"}'),
        (Trip, '{"allDays": "[1"}'),
        (Trip, '{"allDays": ""}'),
        (Trip, '{"allDays": "{}"}'),
        (Trip, '{"allDays": "[\\"x\\"]"}'),
        (Trip, '{"allDays": "' + "[" * 5_000 + '"}'),
    ],
)
def test_where_there_is_doubt_it_is_refused_as_it_would_have_been(kind: Any, text: str) -> None:
    with pytest.raises(msgspec.ValidationError) as strict:
        msgspec.json.decode(text, type=kind)
    with pytest.raises(msgspec.ValidationError) as caught:
        read(kind, text)
    assert str(caught.value) == str(strict.value)


@dataclass
class Cents:
    amount: int

    def __post_init__(self) -> None:
        self.amount *= 100


@dataclass
class Sale:
    price: Cents
    times: int


def test_a_text_that_stays_one_may_say_nan() -> None:
    kind = msgspec.defstruct("Told", [("said", Any), ("times", int)])
    assert read(kind, '{"said": ["nan"], "times": "2"}') == kind(["nan"], 2)


def test_a_number_in_quotes_changes_nothing_beside_it() -> None:
    assert read(Sale, '{"price": {"amount": 3}, "times": "2"}') == read(Sale, '{"price": {"amount": 3}, "times": 2}')


@PROPERTY
@given(JSON_VALUES)
def test_what_fits_is_read_as_before(value: Any) -> None:
    text = msgspec.json.encode(value).decode()
    assert read(Any, text) == msgspec.json.decode(text)
    assert read(Any, f"```json\n{text}\n```") == msgspec.json.decode(text)


@given(st.text(alphabet="`js on\n{}1", max_size=40))
def test_whatever_is_written_it_is_a_value_or_a_decoding_error(text: str) -> None:
    try:
        read(int, text)
    except msgspec.DecodeError:
        pass


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"a": 1}\n```',
        '```\n{"a": 1}```',
        '  ```JSON \r\n{"a": 1}\r\n```\n',
        'Here it is:\n```json\n{"a": "1"}\n```\nAnything else?',
    ],
)
def test_a_fence_around_it_is_taken_away(text: str) -> None:
    assert read(dict[str, int], text) == {"a": 1}


@pytest.mark.parametrize(
    "text",
    ["", "```", "``````", '```python\n{"a": 1}\n```', "no fence", '```json\n{"a": 1}\n```\n```json\n{"a": 2}\n```'],
)
def test_what_is_no_single_fence_of_json_is_malformed(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        read(dict[str, int], text)


def test_a_fence_within_the_text_of_a_value_stays() -> None:
    inner = msgspec.json.encode({"code": "```json\n1\n```"}).decode()
    assert read(dict[str, str], inner) == {"code": "```json\n1\n```"}
    assert unfenced(f"```json\n{inner}\n```") == f"{inner}\n"


def test_what_does_not_fit_in_a_fence_is_told_by_its_place() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.metres"):
        read(Place, '```json\n{"city": "x", "metres": "far", "days": []}\n```')
