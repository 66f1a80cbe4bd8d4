"""A request as the JSON body that Gemini takes. Pure functions; the SDK is not imported."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import cast

from chatstack.client.json_schemas import schemas_in
from chatstack.errors import InputError
from chatstack.providers.extras import WireObject, decoded_object, with_extra
from chatstack.values.messages import Message
from chatstack.values.parts import ProviderItem
from chatstack.values.requests import ChatOptions, ChatRequest, ToolDeclaration
from chatstack_gemini.contents import contents_of
from chatstack_gemini.parts import PROVIDER, WIRE, written

_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_LEVELS = {"max": "XHIGH", "none": "MINIMAL"}
"""Thinking levels that the API has under another name: Gemini 3 and later think always."""
_NO_MINIMAL = ("-pro", "gemini-3.7-")
"""Parts of the names of models that refuse the level MINIMAL; LOW is their least."""
_BUDGETS = {
    "none": 0,
    **dict.fromkeys(("minimal", "low"), 1_024),
    "medium": 8_192,
    **dict.fromkeys(("high", "xhigh", "max"), 24_576),
}
"""Efforts as tokens for models before Gemini 3, which refuse a level: as Google's endpoint in OpenAI's form has it."""
_PRO_BUDGETS = {"none": 128, **dict.fromkeys(("xhigh", "max"), 32_768)}
"""What Gemini 2.5 Pro has otherwise: its least, as it thinks always, and its most."""
_OLD_MODELS = ("gemini-1", "gemini-2")
"""Models before Gemini 3."""


def request_to_wire(request: ChatRequest, model: str) -> WireObject:
    """Return the body of the request to that model. ``options.extra`` wins, field by field, save over a choice of no
    tools.

    Raises ``InputError`` for what the API has no form for.
    """
    options = request.options
    if options.parallel_tool_calls is False:
        raise InputError("options.parallel_tool_calls=False: Gemini has no switch for it; leave it out")
    leading = len(list(takewhile(_is_instruction, request.messages)))
    system: list[WireObject] = [{"text": options.instructions}] if options.instructions.strip() else []
    system += [part for message in request.messages[:leading] for part in written(message.parts)]
    known: dict[str, object] = {
        "contents": contents_of(request.messages, leading, is_signed=demands_signatures(model))
        or [{"role": "user", "parts": [{"text": "Begin."}]}],
        "systemInstruction": {"parts": system} if system else None,
        "tools": _tools(options) or None,
        "toolConfig": _tool_config(options),
        "generationConfig": _generation_config(options, model) or None,
    }
    body = _merged({name: value for name, value in known.items() if value is not None}, options.extra)
    if options.tool_choice == "none" and known["toolConfig"]:
        body["toolConfig"] = {**cast("WireObject", body["toolConfig"]), **cast("WireObject", known["toolConfig"])}
    return body


def _is_instruction(message: Message) -> bool:
    """Return True for a system message that the system instruction can hold: it takes nothing but text."""
    return message.role == "system" and all("text" in part for part in written(message.parts))


def demands_signatures(model: str) -> bool:
    """Return True for a model that refuses calls without a thought signature: Gemini 3 and later."""
    return not model.rpartition("/")[2].startswith(_OLD_MODELS)


def _tools(options: ChatOptions) -> list[WireObject]:
    declared = [_declaration(tool) for tool in options.tools if isinstance(tool, ToolDeclaration)]
    tools: list[WireObject] = [{"functionDeclarations": declared}] if declared else []
    tools += [
        decoded_object(tool.json, "options.tools")
        for tool in options.tools
        if isinstance(tool, ProviderItem) and tool.provider == PROVIDER
    ]
    return tools


def _declaration(tool: ToolDeclaration) -> WireObject:
    where = f"tool {tool.name!r}"
    wire: WireObject = {"name": tool.name}
    if tool.description:
        wire["description"] = tool.description
    if tool.parameters:
        wire["parametersJsonSchema"] = _schema(tool.parameters, where)
    return with_extra(wire, tool.extra_json, WIRE, where)


def _schema(text: str, where: str) -> WireObject:
    """Return a JSON schema with each constant as the enum of one value: the API passes over ``const``."""
    schema = decoded_object(text, where)
    left = [schema]
    while left:
        each = left.pop()
        if "const" in each:
            each["enum"] = [each.pop("const")]
        left += schemas_in(each)
    return schema


def _tool_config(options: ChatOptions) -> WireObject | None:
    """Return the choice of tools; ``VALIDATED`` holds calls to their schemas, where a tool is strict.

    Raises ``InputError`` where a call is demanded and all tools run at Google's.
    """
    declared = [tool for tool in options.tools if isinstance(tool, ToolDeclaration)]
    choice = options.tool_choice
    if not declared and "tools" not in options.extra:
        if choice in (None, "auto", "none") or not _tools(options):
            return None
        told = "Gemini can be made to call declared tools only, and all of these run at Google's"
        raise InputError(f"options.tool_choice={choice!r}: {told}")
    if choice in (None, "auto") and any(tool.strict for tool in declared):
        return {"functionCallingConfig": {"mode": "VALIDATED"}}
    if choice is None:
        return None
    if choice in _MODES:
        return {"functionCallingConfig": {"mode": _MODES[choice]}}
    return {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": [choice]}}


def _generation_config(options: ChatOptions, model: str) -> WireObject:
    config: dict[str, object] = {
        "maxOutputTokens": options.max_tokens,
        "temperature": options.temperature,
        "topP": options.top_p,
        "stopSequences": list(options.stop) or None,
        "seed": options.seed,
        "thinkingConfig": _thinking(options.reasoning_effort, model),
    }
    if options.output_schema is not None:
        config["responseMimeType"] = "application/json"
        config["responseJsonSchema"] = _schema(options.output_schema.schema, "output_schema.schema")
    return {name: value for name, value in config.items() if value is not None}


def _thinking(effort: str | None, model: str) -> WireObject | None:
    """Return the effort in the form that the model takes: a level since Gemini 3, a budget before."""
    if effort is None:
        return None
    if not demands_signatures(model):
        budgets = _BUDGETS | _PRO_BUDGETS if "-pro" in model else _BUDGETS
        if effort in budgets:
            return {"thinkingBudget": budgets[effort]}
    level = _LEVELS.get(effort, effort.upper())
    if level == "MINIMAL" and any(name in model for name in _NO_MINIMAL):
        level = "LOW"
    return {"thinkingLevel": level}


def _merged(written: WireObject, extra: Mapping[str, object]) -> WireObject:
    """Return ``written``, overlaid by ``extra``; objects in both are merged field by field."""
    whole = dict(written)
    for name, value in extra.items():
        mine = whole.get(name)
        if isinstance(mine, dict) and isinstance(value, Mapping):
            whole[name] = _merged(cast("WireObject", mine), cast("Mapping[str, object]", value))
        else:
            whole[name] = value
    return whole
