"""Tools, their choice and the form of the answer on Anthropic's wire, to and from our options. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from chatstack.providers.anthropic.blocks import PROVIDER, WIRE
from chatstack.providers.extras import WireObject, decoded_object, encoded, encoded_extra, with_extra
from chatstack.values.parts import ProviderItem
from chatstack.values.requests import ChatOptions, DeclaredTool, OutputSchema, ToolDeclaration

_SIMPLE_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
_SCHEMA_NAME = "answer"
_EFFORTS: Mapping[str | None, str | None] = {"none": None, "minimal": "low"}
"""Efforts that the API has under another name, or by saying nothing: unasked, no model reasons."""
_BOUNDS = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern"}
    | {"minItems", "maxItems", "uniqueItems", "default", "contentEncoding"}
)


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
    if options.output_schema is not None:
        schema = decoded_object(options.output_schema.schema, "output_schema.schema")
        if options.output_schema.strict is not None:  # made from a type, so that whoever asked checks the answer
            schema = _in_words(schema)
        config["format"] = {"type": "json_schema", "schema": schema}
    return config


def _in_words(schema: WireObject) -> WireObject:
    """Return the schema with its bounds moved into descriptions, as Anthropic's own SDK does: the API refuses the
    keywords."""
    told = ", ".join(f"{name}: {schema[name]}" for name in schema if name in _BOUNDS)
    found = {name: value for name, value in schema.items() if name not in _BOUNDS}
    if told:
        found["description"] = "\n\n".join(
            [*([str(found["description"])] if "description" in found else []), f"{{{told}}}"]
        )
    for name in ("properties", "$defs"):
        if name in found:
            below = cast("Mapping[str, WireObject]", found[name])
            found[name] = {each: _in_words(value) for each, value in below.items()}
    if "anyOf" in found:
        found["anyOf"] = [_in_words(each) for each in cast("list[WireObject]", found["anyOf"])]
    if isinstance(found.get("items"), dict):
        found["items"] = _in_words(cast("WireObject", found["items"]))
    return found


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
