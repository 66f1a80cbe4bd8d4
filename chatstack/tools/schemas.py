"""The JSON schema of a tool's parameters, and the class that the model's arguments are decoded into."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import msgspec

from chatstack.client.json_schemas import add_types, described
from chatstack.errors import WiringError

Field: TypeAlias = tuple[str, Any] | tuple[str, Any, Any]
"""A parameter: its name, its type hint and, if it has one, its default."""


_REMEDY = "use plain types, a dataclass, a TypedDict, a msgspec.Struct or a pydantic model"


_CHOICES = ("allOf", "anyOf", "oneOf")
_NOT_AT_TOP = (*_CHOICES, "not", "enum")
"""Keywords that OpenAI and Anthropic refuse at the top of a tool's schema, and take anywhere below it."""


def structure_of(called: str, fields: list[Field]) -> type[msgspec.Struct]:
    """Return the class into which the model's arguments are decoded."""
    try:
        return msgspec.defstruct(called, fields, kw_only=True, forbid_unknown_fields=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise WiringError(f"tool {called!r}: its parameters cannot be used: {error}") from error


def schema_of(arguments: type[msgspec.Struct], called: str) -> str:
    """Return the JSON schema of these arguments. Raises ``WiringError`` where JSON cannot describe one."""
    models: dict[str, Any] = {}
    try:
        top, components = described(arguments, functools.partial(_model_schema, models))
        _add_definitions(components, models)
    except Exception as error:  # an annotation is code, so it may raise anything
        raise WiringError(f"tool {called!r}: {_indescribable(arguments, error)}") from error
    own = components.pop(top["$ref"].rsplit("/", 1)[-1])
    own.pop("title", None)
    if components:
        own["$defs"] = components
    add_types(own)
    return msgspec.json.encode(own).decode()


def declarable(schema: Mapping[str, object]) -> str:
    """Return an object's schema from elsewhere as OpenAI and Anthropic take it, who refuse the whole request for a
    combination of schemas at its top, and OpenAI for an object without properties and an array without items.

    The properties of all choices become its own, and what they demand is told in its description: whoever gets the
    arguments has to check which go together.
    """
    made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema))
    add_types(made)
    own = dict(made.get("properties") or {})  # many remote tools without parameters have none
    moved: dict[str, Any] = {word: made.pop(word) for word in _NOT_AT_TOP if word in made}
    forms: dict[str, list[Any]] = {}
    for word in _CHOICES:
        choices = cast("list[Any]", moved.get(word) or [])
        for choice in [_resolved(each, made) for each in choices]:
            for name, each in dict(choice.get("properties") or {}).items():
                if name not in own and each not in forms.setdefault(name, []):
                    forms[name].append(each)
            if word == "allOf" and choice.get("required"):
                made["required"] = list(dict.fromkeys([*made.get("required", []), *choice["required"]]))
    made["properties"] = own | {name: each[0] if len(each) == 1 else {"anyOf": each} for name, each in forms.items()}
    if moved:
        told = msgspec.json.encode(moved).decode()
        made["description"] = f"{made['description']}\n\n{told}" if made.get("description") else told
    return msgspec.json.encode(made).decode()


def _resolved(choice: Any, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return one of a schema's choices, by its reference if it is one."""
    word, _, name = str(choice.get("$ref", "")).removeprefix("#/").partition("/")
    found: Mapping[str, Any] = schema.get(word, {}).get(name, choice)
    return found


def _indescribable(arguments: type[msgspec.Struct], error: Exception) -> str:
    """Return which parameter's type has no schema by itself, and what to use; what the error says where none is."""
    for field in msgspec.structs.fields(arguments):
        try:
            described(field.type, functools.partial(_model_schema, {}))
        except Exception as own:  # noqa: BLE001 - likewise
            where = f"parameter {field.encode_name!r} ({getattr(field.type, '__name__', field.type)})"
            if str(own).startswith("Type unions"):
                told = "could be one of several classes, which only a tag tells apart"
                return f"{where} {told}; use msgspec.Structs with a tag, or a pydantic model that holds either"
            if str(own).startswith("Can only set"):  # as of Annotated[int | None, Meta(ge=1)]
                told = str(own).split(" - ")[0]
                return f"{where} has a bound that does not fit its type: {told}; annotate the one that it is for"
            return f"{where} cannot be described as JSON; {_REMEDY}"
    told = str(error).split(" - ")[0].split("\n")[0].rstrip(".")
    return f"a parameter ({told}) cannot be described as JSON; {_REMEDY}"


def _model_schema(models: dict[str, Any], kind: Any) -> dict[str, Any]:
    """Return the schema of a pydantic model; the definitions it refers to go into ``models``."""
    if not hasattr(kind, "model_json_schema"):
        raise NotImplementedError  # msgspec then names the type it does not know
    schema: dict[str, Any] = kind.model_json_schema()
    _add_definitions(models, schema.pop("$defs", {}))
    return schema


def _add_definitions(known: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, schema in more.items():
        if known.setdefault(name, schema) != schema:
            raise TypeError(f"two classes are called {name}")


def model_of(kind: Any, value: object) -> object:
    """Return the pydantic model. Raises ``ValueError`` for the first value that does not fit."""
    try:
        model: object = kind.model_validate_json(msgspec.json.encode(value))
    except ValueError as error:
        first = cast("Any", error).errors(include_url=False, include_context=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")) from error
    return model
