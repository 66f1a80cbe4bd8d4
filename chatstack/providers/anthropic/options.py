"""Tools, their choice and the form of the answer on Anthropic's wire, to and from our options. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from chatstack.errors import InputError
from chatstack.providers.anthropic.blocks import PROVIDER, WIRE
from chatstack.providers.extras import WireObject, decoded_object, encoded, encoded_extra, with_extra
from chatstack.values.parts import ProviderItem
from chatstack.values.requests import ChatOptions, DeclaredTool, OutputSchema, ToolDeclaration

_SIMPLE_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
_SCHEMA_NAME = "answer"
_EFFORTS: Mapping[str | None, str | None] = {"none": None, "minimal": "low"}
"""Efforts that the API has under another name, or by saying nothing: unasked, no model reasons."""
_KEYWORDS = frozenset(
    {"type", "title", "description", "enum", "const", "anyOf", "allOf", "$ref", "$defs", "properties", "required"}
    | {"additionalProperties", "items", "format"}
)
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
"""Keywords and string formats of JSON schema that the API takes, as Anthropic's own SDK has them."""


def tool_to_wire(tool: DeclaredTool) -> WireObject | None:
    """Return the tool as it goes out; None for one of another provider."""
    if isinstance(tool, ProviderItem):
        return decoded_object(tool.json, "options.tools") if tool.provider == PROVIDER else None
    where = f"tool {tool.name!r}"
    wire: WireObject = {"name": tool.name}
    if tool.description:
        wire["description"] = tool.description
    wire["input_schema"] = (
        decoded_object(tool.parameters, where) if tool.parameters else {"type": "object", "properties": {}}
    )
    if tool.strict is not None:
        wire["strict"] = tool.strict
    return with_extra(wire, tool.extra_json, WIRE, where)


def tool_from_wire(wire: WireObject) -> DeclaredTool:
    """Return a function as a declaration, a tool of any other type as an item that goes back as it came."""
    name, schema, strict = wire.get("name"), wire.get("input_schema"), wire.get("strict")
    if wire.get("type") not in (None, "custom") or not isinstance(name, str) or not isinstance(schema, Mapping):
        return ProviderItem(PROVIDER, encoded(wire))
    taken = {"name", "description", "input_schema", "strict"}
    rest = {field: value for field, value in wire.items() if field not in taken and value is not None}
    return ToolDeclaration(
        name,
        str(wire.get("description") or ""),
        encoded(cast("object", schema)),
        strict if isinstance(strict, bool) else None,
        encoded_extra(rest, WIRE),
    )


def choice_to_wire(options: ChatOptions) -> WireObject | None:
    """Return the object that holds ``tool_choice`` and ``parallel_tool_calls``; None if nothing is to be said."""
    choice, parallel = options.tool_choice, options.parallel_tool_calls
    if choice is None and parallel is not False:
        return None
    simple = _SIMPLE_CHOICES.get(choice or "auto")
    wire: WireObject = {"type": simple} if simple else {"type": "tool", "name": choice}
    if parallel is not None and simple != "none":
        wire["disable_parallel_tool_use"] = not parallel
    return wire


def choice_from_wire(rest: WireObject) -> dict[str, object]:
    """Return ``tool_choice`` and ``parallel_tool_calls``; whatever they cannot express stays in ``rest``."""
    choice = rest.get("tool_choice")
    if not isinstance(choice, Mapping):
        return {}
    fields = dict(cast("Mapping[str, object]", choice))
    kind, name = fields.pop("type", None), fields.pop("name", None)
    disabled = fields.pop("disable_parallel_tool_use", None)
    simple = {wire: ours for ours, wire in _SIMPLE_CHOICES.items()}.get(str(kind))
    ours = simple or (name if kind == "tool" and name not in _SIMPLE_CHOICES else None)
    if fields or ours is None or not isinstance(disabled, bool | None):
        return {}
    del rest["tool_choice"]
    return {"tool_choice": ours, "parallel_tool_calls": None if disabled is None else not disabled}


def output_config(options: ChatOptions) -> WireObject:
    """Return the effort and the form of the answer; empty if neither is given."""
    effort = _EFFORTS.get(options.reasoning_effort, options.reasoning_effort)
    config: WireObject = {} if effort is None else {"effort": effort}
    wanted = options.output_schema
    if wanted is not None:
        schema = decoded_object(wanted.schema, "output_schema.schema")
        if wanted.strict is not None:  # made from a type, so that whoever asked checks the answer
            for where, each in _schemas_in(schema, wanted.name):
                if not wanted.strict:
                    _refuse_unsaid(each, where)
                _put_in_words(each)
        config["format"] = {"type": "json_schema", "schema": schema}
    return config


def _schemas_in(schema: WireObject, where: str) -> Iterator[tuple[str, WireObject]]:
    """Yield a schema and those inside it, each with its place."""
    yield where, schema
    for name, above in (("properties", f"{where}."), ("$defs", "")):
        for each, below in cast("Mapping[str, WireObject]", schema.get(name, {})).items():
            yield from _schemas_in(below, above + each)
    for below in cast("list[WireObject]", schema.get("anyOf", [])):
        yield from _schemas_in(below, where)
    if isinstance(schema.get("items"), dict):
        yield from _schemas_in(cast("WireObject", schema["items"]), f"{where}[]")


def _refuse_unsaid(schema: WireObject, where: str) -> None:
    """Raise ``InputError`` for what the API refuses, and no words could say: the answer would lack it."""
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        raise InputError(
            f"output_type: {where} has free keys, as a dict has, which Anthropic does not take; "
            "write a list of objects, each with a key and a value"
        )
    if "prefixItems" in schema:
        raise InputError(
            f"output_type: {where} is a tuple, which Anthropic does not take; "
            "write a class with a field for each item, or a list"
        )


def _put_in_words(schema: WireObject) -> None:
    """Move what the API refuses, as bounds, into the description, as Anthropic's own SDK does."""
    kept = _KEYWORDS if schema.get("format") in _FORMATS else _KEYWORDS - {"format"}
    moved = {name: schema.pop(name) for name in [*schema] if name not in kept}
    if moved:
        before = [str(schema["description"])] if "description" in schema else []
        told = ", ".join(f"{name}: {value}" for name, value in moved.items())
        schema["description"] = "\n\n".join([*before, f"{{{told}}}"])


def output_config_from_wire(rest: WireObject) -> dict[str, object]:
    """Return ``reasoning_effort`` and ``output_schema``; whatever they cannot express stays in ``rest``."""
    config = rest.get("output_config")
    if not isinstance(config, Mapping):
        return {}
    left = dict(cast("Mapping[str, object]", config))
    fields: dict[str, object] = {}
    effort = left.get("effort")
    if isinstance(effort, str) and effort not in _EFFORTS:
        fields["reasoning_effort"] = left.pop("effort")
    form = left.get("format")
    if isinstance(form, Mapping) and cast("WireObject", form).keys() == {"type", "schema"}:
        fields["output_schema"] = OutputSchema(_SCHEMA_NAME, encoded(cast("WireObject", left.pop("format"))["schema"]))
    rest.pop("output_config")
    if left:
        rest["output_config"] = left
    return fields
