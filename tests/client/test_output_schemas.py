"""The schema that a type becomes: what it says, and whether OpenAI's strict mode takes it."""

from __future__ import annotations

import itertools
import json
import typing
from typing import Any, cast

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pydantic
import pytest
from openai.lib._pydantic import to_strict_json_schema

from chatstack.client.parsing import shape_of
from tests.client.shapes import (
    LOOSE,
    STRICT,
    Bounded,
    Cat,
    Flight,
    Owner,
    Parent,
    Place,
    Route,
    Train,
)

EVERY = pytest.mark.parametrize(
    ("kind", "text", "value"), [pytest.param(*each, id=str(each[0])) for each in (*STRICT, *LOOSE)]
)
WORDS = {
    *("type", "title", "description", "enum", "const", "anyOf", "$ref", "$defs", "properties", "required", "items"),
    *("additionalProperties", "minItems", "maxItems", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("multipleOf", "pattern", "format"),
}


def schema_of(kind: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shape_of(kind).schema.schema)
    return found


@EVERY
def test_what_is_asked_for_is_what_is_understood(kind: Any, text: str, value: object) -> None:
    schema = schema_of(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(text), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([], schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**json.loads(text), "unasked": 1}, schema)


@EVERY
def test_the_root_is_an_object_that_is_no_union(kind: Any, text: str, value: object) -> None:
    schema = schema_of(kind)
    assert schema["type"] == "object"
    assert schema.keys() <= {"type", "title", "description", "properties", "required", "additionalProperties", "$defs"}


def demanded(schema: Any, place: str = "$") -> list[str]:
    """Where a schema is not what OpenAI's strict mode demands."""
    wrong = [f"{place}: {word}" for word in schema.keys() - WORDS]
    if not schema.keys() & {"type", "anyOf", "$ref"}:
        wrong.append(f"{place}: of no type")
    if "$ref" in schema and len(schema) > 1:
        wrong.append(f"{place}: something beside $ref")
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            wrong.append(f"{place}: free keys")
        if sorted(schema.get("required", [])) != sorted(schema.get("properties", "?")):
            wrong.append(f"{place}: not all are required")
    if schema.get("type") == "array" and not isinstance(schema.get("items"), dict):
        wrong.append(f"{place}: items of no type")
    inner = [
        *schema.get("properties", {}).items(),
        *schema.get("$defs", {}).items(),
        *enumerate(schema.get("anyOf", [])),
        *enumerate(schema.get("prefixItems", [])),
    ]
    inner += [("{}", schema["additionalProperties"])] if schema.get("additionalProperties") else []
    inner += [("[]", schema["items"])] if isinstance(schema.get("items"), dict) else []
    return wrong + [each for name, below in inner for each in demanded(below, f"{place}.{name}")]


@pytest.mark.parametrize("kind", [kind for kind, _, _ in STRICT], ids=str)
def test_where_it_says_strict_it_is_what_strict_mode_demands(kind: Any) -> None:
    assert shape_of(kind).schema.strict is True
    assert demanded(schema_of(kind)) == []


@pytest.mark.parametrize("kind", [kind for kind, _, _ in LOOSE], ids=str)
def test_where_strict_mode_would_refuse_it_is_not_asked_for(kind: Any) -> None:
    assert shape_of(kind).schema.strict is False
    assert demanded(schema_of(kind)) != []


def texts(count: int, size: int) -> Any:
    return typing.Literal[tuple(f"{number:0{size}}" for number in range(count))]


@pytest.mark.parametrize(
    ("kind", "is_strict"),
    [
        (texts(1_000, 9), True),
        (texts(1_001, 9), False),
        (msgspec.defstruct("Two", [("a", texts(500, 9)), ("b", texts(501, 9))]), False),
        (texts(250, 99), True),
        (texts(251, 99), False),
        (msgspec.defstruct("Wide", [(f"field_{number}", int) for number in range(5_000)]), True),
        (msgspec.defstruct("Wider", [(f"field_{number}", int) for number in range(5_001)]), False),
        (msgspec.defstruct("Long", [(f"field_{number:0100}", int) for number in range(1_200)]), False),
    ],
    ids=itertools.count(),
)
def test_what_is_too_large_for_strict_mode_is_not_asked_for_in_it(kind: Any, is_strict: bool) -> None:
    assert shape_of(kind).schema.strict is is_strict


@pytest.mark.parametrize("kind", [Cat, Parent, Bounded])
def test_it_is_what_the_sdk_of_openai_makes_of_a_model(kind: Any) -> None:
    is_model = issubclass(kind, pydantic.BaseModel)
    assert schema_of(kind) == to_strict_json_schema(kind if is_model else pydantic.TypeAdapter(kind))


@EVERY
def test_a_union_is_any_of_its_members_wherever_it_stands(kind: Any, text: str, value: object) -> None:
    assert [each for each in demanded(schema_of(kind)) if each.endswith((": oneOf", ": discriminator"))] == []


@pytest.mark.parametrize(
    ("kind", "items"),
    [
        (list, {}),
        (list[Any], {}),
        (tuple[int, int], {"type": "integer"}),
        (tuple[int, str, int], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (
            list[tuple[int, int]],
            {"type": "array", "prefixItems": [{"type": "integer"}] * 2, "items": {"type": "integer"}},
        ),
    ],
)
def test_an_array_says_what_its_items_are(kind: Any, items: dict[str, Any]) -> None:
    """OpenAI refuses a schema with an array that does not, and reads no ``prefixItems``."""
    found = schema_of(kind)["properties"]["value"]["items"]
    assert {name: value for name, value in found.items() if name not in ("minItems", "maxItems")} == items


def test_descriptions_and_bounds_reach_the_provider() -> None:
    train = schema_of(Train)["properties"]
    assert train["line"] == {"type": "integer", "minimum": 1, "description": "its number"}
    assert train["at"] == {"anyOf": [{"$ref": "#/$defs/Place"}], "description": "where it leaves"}
    assert schema_of(Place)["description"] == "Where something is."
    assert schema_of(Owner)["properties"]["pet"]["description"] == "cat or dog"


def test_what_may_be_null_is_asked_for_and_is_not_left_out() -> None:
    assert schema_of(Route)["required"] == ["start", "stops", "note"]


def test_a_schema_has_a_name_that_providers_take() -> None:
    class Größe(pydantic.BaseModel):
        a: int

    assert shape_of(Größe).schema.name == "Gr_e"
    assert shape_of(dict[str, int]).schema.name == "dict"
    assert shape_of(cast("Any", Flight | Train)).schema.name == "answer"
    assert shape_of(type("A" * 99, (Place,), {})).schema.name == "A" * 64


def test_the_same_type_is_described_once_and_in_the_same_bytes() -> None:
    assert shape_of(Owner) is shape_of(Owner)
    assert shape_of(cast("Any", typing.Literal[1])).schema != shape_of(cast("Any", typing.Literal[True])).schema
