"""The schema of a type tells a model the form of a time, wherever it stands, and what is told is taken."""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from typing import Annotated, Any, Generic, NamedTuple, TypedDict, TypeVar

import msgspec
import pytest
from msgspec import Meta

from chatstack import tool
from chatstack.client.json_schemas import described
from chatstack.client.parsing import shape_of

T = TypeVar("T")
MOMENT = {"type": "string", "format": "date-time"}
TIME = {"type": "string", "format": "time"}
NULL = {"type": "null"}
At = datetime.datetime
Opens = datetime.time


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (At, MOMENT),
        (Opens, TIME),
        (Opens | None, {"anyOf": [TIME, NULL]}),
        (int | At | list[Opens], {"anyOf": [{"type": "integer"}, MOMENT, {"type": "array", "items": TIME}]}),
        (list[At], {"type": "array", "items": MOMENT}),
        (set[Opens], {"type": "array", "items": TIME, "uniqueItems": True}),
        (tuple[Opens, ...], {"type": "array", "items": TIME}),
        (
            tuple[int, At],
            {
                "type": "array",
                "minItems": 2,
                "maxItems": 2,
                "prefixItems": [{"type": "integer"}, MOMENT],
                "items": False,
            },
        ),
        (
            dict[str, list[At]],
            {"type": "object", "additionalProperties": {"type": "array", "items": MOMENT}},
        ),
        (Annotated[At, Meta(description="when")], {**MOMENT, "description": "when"}),
        (Annotated[At | None, Meta(description="when")], {"anyOf": [MOMENT, NULL], "description": "when"}),
        (Annotated[At, Meta(tz=True)], MOMENT),
        (Annotated[Opens, Meta(tz=True)], TIME),
        (Annotated[At, Meta(extra_json_schema={"format": "of my own"})], {"type": "string", "format": "of my own"}),
    ],
    ids=str,
)
def test_a_time_has_a_format(kind: Any, schema: dict[str, Any]) -> None:
    assert described(kind) == (schema, {})


@pytest.mark.parametrize("kind", [At, Opens], ids=str)
def test_a_time_that_may_have_no_zone_does_not_ask_for_one(kind: Any) -> None:
    schema, _ = described(Annotated[kind, Meta(tz=False)])
    assert schema.get("format") in (None, "partial-time")


@pytest.mark.parametrize("kind", [str, str | int, datetime.date, datetime.timedelta, dict[str, Any], Any], ids=str)
def test_the_schemas_of_all_others_are_as_msgspec_makes_them(kind: Any) -> None:
    (schema,), definitions = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    assert described(kind) == (schema, definitions)


@dataclass
class Slot(Generic[T]):
    value: T
    at: At
    before: Slot[T] | None = None


class Visit(TypedDict, total=False):
    at: At


class Span(NamedTuple):
    name: str
    start: At
    end: At


class Row(msgspec.Struct, array_like=True, tag="row"):
    at: At
    name: str = ""


class Opening(msgspec.Struct, tag="opening", rename="camel"):
    opens_at: Opens


class Closing(msgspec.Struct, tag="closing"):
    at: list[At]


class Never(msgspec.Struct, tag="never"):
    """Without a field."""


def test_the_fields_of_every_kind_of_class_have_formats() -> None:
    class All(msgspec.Struct):
        visit: Visit
        span: Span
        row: Row
        change: Opening | Closing | Never | None
        slot: Slot[Opens]
        same: Slot[At]

    _, found = described(list[All])
    assert found["Visit"]["properties"]["at"] == MOMENT
    assert found["Span"]["prefixItems"] == [{"type": "string"}, MOMENT, MOMENT]
    assert found["Row"]["prefixItems"] == [{"enum": ["row"]}, MOMENT, {"type": "string", "default": ""}]
    assert found["Opening"]["properties"] == {"type": {"enum": ["opening"]}, "opensAt": TIME}
    assert found["Closing"]["properties"]["at"] == {"type": "array", "items": MOMENT}
    assert found["Slot_time_"]["properties"]["value"] == TIME
    assert found["Slot_datetime_"]["properties"]["value"] == MOMENT
    assert [found[name]["properties"]["at"] for name in ("Slot_time_", "Slot_datetime_")] == [MOMENT, MOMENT]


def test_classes_of_one_name_have_each_their_own_formats() -> None:
    def made(kind: Any) -> Any:
        return msgspec.defstruct("Same", [("at", kind)], module=f"of_{kind.__name__}")

    _, found = described(tuple[made(At), made(Opens), made(str)])  # type: ignore[misc]
    assert [each["properties"]["at"] for each in found.values()] == [MOMENT, TIME, {"type": "string"}]


# What models read, and what is made of what they write


def test_tools_and_output_types_tell_the_formats_and_openais_strict_mode_takes_them() -> None:
    @tool
    def book(at: At, opens: Opens | None = None) -> str:
        return f"{at} {opens}"

    assert json.loads(book.parameters)["properties"] == {
        "at": MOMENT,
        "opens": {"anyOf": [TIME, NULL], "default": None},
    }
    shape = shape_of(Slot[Opens]).schema
    assert shape.strict
    assert json.loads(shape.schema)["properties"]["value"] == TIME


MOMENTS = ["2026-11-28T10:00:00Z", "2026-11-28T10:00:00.5+02:00", "2026-11-28t10:00:00z", "2026-11-28T10:00:00"]
TIMES = ["10:00:00Z", "10:00:00.25-05:00", "10:00:00"]


@pytest.mark.parametrize(("name", "text"), [*(("at", each) for each in MOMENTS), *(("opens", each) for each in TIMES)])
def test_what_has_the_format_is_taken_and_so_is_a_time_without_a_zone(name: str, text: str) -> None:
    @tool
    def book(at: At | None = None, opens: Opens | None = None) -> None: ...

    taken = book.arguments_from(json.dumps({name: text}))[name]
    assert taken == type(taken).fromisoformat(text.upper())


@pytest.mark.parametrize("text", ["2026-11-28", "2026-11-28T10:00", "tomorrow at ten"])
def test_what_has_another_format_is_refused_by_the_name_of_the_one_that_was_told(text: str) -> None:
    @tool
    def book(at: At) -> None: ...

    with pytest.raises(msgspec.ValidationError, match=r"Invalid RFC3339 encoded datetime - at `\$.at`"):
        book.arguments_from(json.dumps({"at": text}))
