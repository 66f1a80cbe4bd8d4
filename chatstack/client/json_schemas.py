"""JSON schemas of types, as msgspec makes them, with the forms of times that it leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import msgspec
from msgspec import inspect

Schema: TypeAlias = dict[str, Any]

_TIMES: dict[tuple[type, bool | None], tuple[str, str]] = {
    (inspect.DateTimeType, None): ("format", "date-time"),
    (inspect.TimeType, None): ("format", "time"),
    (inspect.DateTimeType, False): (
        "pattern",
        r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?$",
    ),
}
"""Forms that msgspec reads and does not tell, by type and ``tz``: else a model writes "10:00", or a date alone. It is a
pattern where a moment has no time zone, as no format of JSON schema is for that."""
_TYPES: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_BELOW = (("item_type", "items"), ("value_type", "additionalProperties"))
_NAMED = ("properties", "$defs", "definitions", "patternProperties")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else")
"""Keywords that hold schemas: by name, in a list, and one."""


def described(kind: Any, hook: Callable[[type], Schema] | None = None) -> tuple[Schema, dict[str, Schema]]:
    """Return the JSON schema of a type, and the definitions that it refers to as ``#/$defs/...``.

    ``hook`` gives the schema of a class that msgspec does not know. Raises whatever an annotation raises.
    """
    kinds = list(types_in(kind))
    structures = [each for each in kinds if hasattr(each, "fields")]
    (schema, *references), definitions = msgspec.json.schema_components(
        (kind, *(each.cls for each in structures)), schema_hook=hook, ref_template="#/$defs/{name}"
    )
    _tell_times(kinds[0], schema)
    for structure, reference in zip(structures, references, strict=True):
        own = definitions[reference["$ref"].rsplit("/", 1)[-1]]
        places = list(own["properties"].values()) if "properties" in own else own["prefixItems"]
        for field, place in zip(reversed(structure.fields), reversed(places), strict=False):  # the first may be a tag
            _tell_times(field.type, place)
    return schema, definitions


def add_types(schema: Schema) -> None:
    """Say in every array what its items are, and in every enum of what type, with the same meaning: OpenAI refuses a
    request that declares an array without, and reads no ``prefixItems``; Kimi refuses an enum without, Gemini passes
    over it."""
    values = cast("list[object]", schema.get("enum", [schema["const"]] if "const" in schema else []))
    if values and "type" not in schema and all(type(each) in _TYPES for each in values):
        types = sorted({_TYPES[type(each)] for each in values})
        schema["type"] = types[0] if len(types) == 1 else types
    kind = schema.get("type")
    if "array" in (kind if isinstance(kind, list) else [kind]) and not isinstance(schema.get("items"), dict):
        ahead = cast("list[Schema]", schema.get("prefixItems") or [])
        choices = [each for position, each in enumerate(ahead) if each not in ahead[:position]]
        schema["items"] = {"anyOf": choices} if len(choices) > 1 else dict(*choices)
    for below in schemas_in(schema):
        add_types(below)


def schemas_in(schema: Schema) -> list[Schema]:
    """Return the schemas that stand in a schema, one level down."""
    found: list[object] = [schema.get(word) for word in _SINGLE]
    for word in _NAMED:
        found += dict(schema.get(word) or {}).values()
    for word in _LISTED:
        found += list(schema.get(word) or [])
    return [cast("Schema", each) for each in found if isinstance(each, dict)]


def types_in(kind: Any) -> Iterator[Any]:
    """Yield what ``msgspec.inspect`` says of a type, and of each type in it."""
    left: list[object] = [inspect.type_info(kind)]
    seen: dict[int, object] = {}
    while left:
        each = left.pop()
        if isinstance(each, tuple):
            left.extend(cast("tuple[object, ...]", each))
        elif isinstance(each, inspect.Type | inspect.Field) and id(each) not in seen:
            seen[id(each)] = each  # a type may hold itself
            left.extend(getattr(each, name) for name in each.__struct_fields__)
            if isinstance(each, inspect.Type):
                yield each


def _tell_times(kind: Any, schema: Schema) -> None:
    """Add the forms of times to the schema of a type that msgspec has just made, down to the classes in it."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    said = _TIMES.get(cast("Any", (type(kind), getattr(kind, "tz", None))))
    if said is not None and schema.get("type") == "string":
        schema.setdefault(*said)
    for part, word in _BELOW:
        if hasattr(kind, part) and isinstance(schema.get(word), dict):
            _tell_times(getattr(kind, part), schema[word])
    if isinstance(kind, inspect.TupleType) and "prefixItems" in schema:  # in a union it meets the others' places, too
        for each, place in zip(kind.item_types, cast("Sequence[Schema]", schema["prefixItems"]), strict=True):
            _tell_times(each, place)
    if isinstance(kind, inspect.UnionType):
        for each in kind.types:
            for place in cast("Sequence[Schema]", schema.get("anyOf", ())):  # of each kind of JSON there is one at most
                _tell_times(each, place)
