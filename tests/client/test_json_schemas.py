"""The schema of a type tells a model the form of a time, wherever it stands, and what is told is taken."""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, Generic, NamedTuple, TypedDict, TypeVar, get_args

import msgspec
import pytest
from msgspec import Meta

from chatstack import tool
from chatstack.client.json_schemas import described
from chatstack.client.parsing import shape_of

T = TypeVar("T")
MOMENT = {"type": "string", "format": "date-time"}
TIME = {"type": "string", "format": "time"}
WITHOUT_ZONE = {
    "type": "string",
    "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?$",
}
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
            tuple[At] | None,
            {
                "anyOf": [
                    {"type": "array", "minItems": 1, "maxItems": 1, "prefixItems": [MOMENT], "items": False},
                    NULL,
                ]
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
        (Annotated[At, Meta(tz=False)], WITHOUT_ZONE),
        (list[Annotated[At, Meta(tz=False)] | None], {"type": "array", "items": {"anyOf": [WITHOUT_ZONE, NULL]}}),
        (Annotated[At, Meta(tz=False, extra_json_schema={"pattern": "2$"})], {"type": "string", "pattern": "2$"}),
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


EVERY_FIELD_OF_META = {
    "gt": Annotated[int, Meta(gt=1)],
    "ge": Annotated[float, Meta(ge=1)],
    "lt": Annotated[int, Meta(lt=1)],
    "le": Annotated[int, Meta(le=1)],
    "multiple_of": Annotated[int, Meta(multiple_of=3)],
    "pattern": Annotated[str, Meta(pattern="^a+$")],
    "min_length": Annotated[dict[str, int], Meta(min_length=2)],
    "max_length": Annotated[list[int], Meta(max_length=2)],
    "tz": Annotated[datetime.time, Meta(tz=False)],
    "title": Annotated[int, Meta(title="Rooms")],
    "description": Annotated[int, Meta(description="how many")],
    "examples": Annotated[int, Meta(examples=[1])],
    "extra_json_schema": Annotated[int, Meta(extra_json_schema={"deprecated": True})],
    "extra": Annotated[int, Meta(extra={"mine": 1})],
}


@pytest.mark.parametrize(("name", "kind"), EVERY_FIELD_OF_META.items(), ids=EVERY_FIELD_OF_META)
def test_a_tool_says_what_msgspec_says_of_each_field_of_meta(name: str, kind: Any) -> None:
    def take(value: Any, list_of: Any) -> None: ...

    take.__annotations__ |= {"value": kind, "list_of": list[kind]}
    said = json.loads(tool(take).parameters)["properties"]
    wanted = msgspec.json.schema(kind)
    assert (wanted == msgspec.json.schema(type_of(kind))) is (name == "extra"), "which is for programs"
    assert said == {"value": wanted, "list_of": {"type": "array", "items": wanted}}


def type_of(kind: Any) -> Any:
    return get_args(kind)[0]


def test_no_field_of_meta_is_left_out_of_these() -> None:
    assert set(EVERY_FIELD_OF_META) == {name for name in dir(Meta) if not name.startswith("_")}


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
    assert shape_of(Annotated[At, Meta(tz=False)]).schema.strict


MOMENTS = ["2026-11-28T10:00:00Z", "2026-11-28T10:00:00.5+02:00", "2026-11-28t10:00:00z", "2026-11-28T10:00:00"]
TIMES = ["10:00:00Z", "10:00:00.25-05:00", "10:00:00"]


@pytest.mark.parametrize(("name", "text"), [*(("at", each) for each in MOMENTS), *(("opens", each) for each in TIMES)])
def test_what_has_the_format_is_taken_and_so_is_a_time_without_a_zone(name: str, text: str) -> None:
    @tool
    def book(at: At | None = None, opens: Opens | None = None) -> None: ...

    taken = book.arguments_from(json.dumps({name: text}))[name]
    assert taken == type(taken).fromisoformat(text.upper())


@pytest.mark.parametrize("text", ["2026-11-28T10:00:00", "2026-11-28T10:00:00.5", "2026-11-28T10:00:00.123456789"])
def test_what_has_the_pattern_of_a_moment_without_a_zone_is_taken(text: str) -> None:
    @tool
    def book(at: Annotated[At, Meta(tz=False)]) -> None: ...

    assert re.search(json.loads(book.parameters)["properties"]["at"]["pattern"], text)
    assert book.arguments_from(json.dumps({"at": text}))["at"].tzinfo is None


@pytest.mark.parametrize("text", [*MOMENTS[:3], "2026-11-28", "2026-11-28T10:00"])
def test_what_has_a_zone_or_is_no_moment_has_not_that_pattern_and_is_refused(text: str) -> None:
    @tool
    def book(at: Annotated[At, Meta(tz=False)]) -> None: ...

    assert not re.search(json.loads(book.parameters)["properties"]["at"]["pattern"], text)
    with pytest.raises(msgspec.ValidationError, match="datetime"):
        book.arguments_from(json.dumps({"at": text}))


@pytest.mark.parametrize("text", ["2026-11-28", "2026-11-28T10:00", "tomorrow at ten"])
def test_what_has_another_format_is_refused_by_the_name_of_the_one_that_was_told(text: str) -> None:
    @tool
    def book(at: At) -> None: ...

    with pytest.raises(msgspec.ValidationError, match=r"Invalid RFC3339 encoded datetime - at `\$.at`"):
        book.arguments_from(json.dumps({"at": text}))
