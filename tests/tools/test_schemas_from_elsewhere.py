"""A schema from elsewhere is declared in a form that no API refuses: one refused tool would refuse every request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chatstack import Tool, WiringError


def declared(parameters: dict[str, Any]) -> dict[str, Any]:
    async def call(**arguments: object) -> object:
        return arguments

    made = Tool.from_schema(call, name="remote", parameters={"type": "object", **parameters})
    found: dict[str, Any] = json.loads(made.declaration().parameters)
    return found


HERE = {"properties": {"kind": {"const": "here"}, "all": {"type": "array"}}, "required": ["kind"]}
THERE = {"properties": {"kind": {"const": "there"}, "at": {"type": "string"}}}
BOTH = {
    "kind": {"anyOf": [{"const": "here", "type": "string"}, {"const": "there", "type": "string"}]},
    "all": {"type": "array", "items": {}},
    "at": {"type": "string"},
}
NOT_HERE = {"kind": {"const": "there", "type": "string"}, "at": {"type": "string"}}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"anyOf": [HERE, THERE]}, {"properties": BOTH}),
        ({"oneOf": [{"$ref": "#/$defs/there"}], "$defs": {"there": THERE}}, {"properties": NOT_HERE}),
        ({"anyOf": [HERE, THERE], "properties": {"kind": {}}}, {"properties": {**BOTH, "kind": {}}}),
        ({"allOf": [HERE, {"if": THERE}], "required": ["n"]}, {"required": ["n", "kind"]}),
        ({"anyOf": [{"required": ["a"]}], "properties": {"a": {}}}, {"properties": {"a": {}}}),
    ],
)
def test_a_choice_between_whole_objects_is_declared_as_one_object(
    given: dict[str, Any], found: dict[str, object]
) -> None:
    """OpenAI and Anthropic refuse each request that declares such a choice at the top, as MCP servers do."""
    schema = declared(given)
    assert schema.keys().isdisjoint({"anyOf", "oneOf", "allOf"})
    assert any(name in schema["description"] for name in given)
    assert {name: schema[name] for name in found} == found
    assert "required" not in schema or "required" in found


@pytest.mark.parametrize(
    "demand", [{"not": {"required": ["a", "b"]}}, {"oneOf": [{"required": ["a"]}]}, {"enum": [{}]}]
)
def test_what_may_not_stand_at_the_top_is_told_in_the_description(demand: dict[str, object]) -> None:
    plain = {"type": "object", "properties": {"a": {}, "b": {}}}
    told = json.dumps(demand, separators=(",", ":"))
    assert declared({**plain, **demand}) == {**plain, "description": told}
    assert declared({**plain, **demand, "description": "It."}) == {**plain, "description": f"It.\n\n{told}"}


def test_a_schema_from_elsewhere_says_what_the_items_of_its_arrays_are() -> None:
    """OpenAI refuses each request that declares an array without; what merely looks like one is left alone."""
    given = {"items": {"type": ["array", "null"]}, "type": {"enum": ["array"], "default": {"type": "array"}}}
    assert declared({"properties": given})["properties"] == {
        "items": {"type": ["array", "null"], "items": {}},
        "type": {"enum": ["array"], "default": {"type": "array"}, "type": "string"},
    }


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"enum": ["a", "b"]}, "string"),
        ({"enum": [1, None, "a"]}, ["integer", "null", "string"]),
        ({"const": True}, "boolean"),
        ({"enum": ["a"], "type": ["string", "null"]}, ["string", "null"]),
    ],
)
def test_a_schema_from_elsewhere_says_of_what_type_its_enums_are(given: dict[str, Any], kind: object) -> None:
    """Kimi refuses each request that declares one without."""
    assert declared({"properties": {"enum": given}})["properties"]["enum"] == {**given, "type": kind}


@pytest.mark.parametrize("parameters", [{"anyOf": True}, {"anyOf": [True]}, {"properties": [1]}])
def test_a_schema_that_is_none_is_refused(parameters: dict[str, object]) -> None:
    with pytest.raises(WiringError, match="no JSON schema"):
        declared(parameters)
