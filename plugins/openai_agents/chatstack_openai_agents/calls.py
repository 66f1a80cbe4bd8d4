"""A model call of the Agents SDK, as a request of ours, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, NamedTuple, cast

from agents import FunctionTool, Handoff, ModelSettings, Tool, UserError
from agents.agent_output import AgentOutputSchemaBase
from agents.items import TResponseInputItem
from agents.models.interface import ModelTracing
from agents.models.openai_responses import Converter
from openai.types.shared import Reasoning

from chatstack import (
    ChatOptions,
    ChatRequest,
    InputError,
    OutputSchema,
    ProviderItem,
    ToolDeclaration,
    to_openai_responses,
)
from chatstack.values.requests import DeclaredTool

_SAME = ("parallel_tool_calls", "max_tokens", "temperature", "top_p")
"""Names that are the same on both sides."""
_HELD = ("previous_response_id", "conversation")
_WHERE = ("store", "metadata", "extra_headers", "extra_query")
"""Settings that do not shape an answer: they hold for what a layer asks on the way, too."""


class ModelCall(NamedTuple):
    """The arguments that the runner gives a model."""

    system_instructions: str | None
    input: str | list[TResponseInputItem]
    model_settings: ModelSettings
    tools: list[Tool]
    output_schema: AgentOutputSchemaBase | None
    handoffs: list[Handoff[Any, Any]]
    tracing: ModelTracing
    previous_response_id: str | None
    conversation_id: str | None
    prompt: Any

    def run(self, method: Any) -> Any:
        """Call ``get_response`` or ``stream_response`` of a model with these arguments."""
        *given, previous_response_id, conversation_id, prompt = self
        return method(*given, previous_response_id=previous_response_id, conversation_id=conversation_id, prompt=prompt)


def options_of(call: ModelCall) -> ChatOptions:
    """Return the options of a call: what layers weigh, and what a provider of ours needs."""
    settings, schema = call.model_settings, call.output_schema
    held = {"previous_response_id": call.previous_response_id, "conversation": call.conversation_id}
    choice: Any = settings.tool_choice
    shape = None
    if schema is not None and not schema.is_plain_text():
        shape = OutputSchema("final_output", json.dumps(schema.json_schema()), schema.is_strict_json_schema())
    return ChatOptions(
        instructions=call.system_instructions or "",
        tools=tuple(declared(call.tools, call.handoffs)),
        tool_choice=choice if isinstance(choice, str) else None,
        **{name: getattr(settings, name) for name in _SAME},
        reasoning_effort=settings.reasoning.effort if settings.reasoning is not None else None,
        output_schema=shape,
        extra={**_extra_of(settings), **{name: value for name, value in held.items() if value}},
    )


def _extra_of(settings: ModelSettings) -> dict[str, Any]:
    return {**dict(cast("Any", settings.extra_body) or {}), **(settings.extra_args or {})}


def declared(tools: Sequence[Tool], handoffs: Sequence[Handoff[Any, Any]]) -> list[DeclaredTool]:
    """Return the declarations of tools and handoffs, which are tools to a model."""
    found: list[DeclaredTool] = []
    for tool in tools:
        if isinstance(tool, FunctionTool):
            schema = json.dumps(tool.params_json_schema)
            found.append(ToolDeclaration(tool.name, tool.description, schema, tool.strict_json_schema or None))
            continue
        try:
            hosted = Converter.convert_tools([tool], []).tools
        except UserError:  # it is the model's to say what is wrong
            continue
        found.extend(ProviderItem("openai", json.dumps(each, default=str)) for each in hosted)
    for each in handoffs:
        schema = json.dumps(each.input_json_schema)
        found.append(ToolDeclaration(each.tool_name, each.tool_description, schema, each.strict_json_schema or None))
    return found


def call_of(request: ChatRequest, like: ModelSettings) -> ModelCall:
    """Return a request of ours, of nobody's agent, as a model call. It goes where, and is kept as, a call with the
    settings ``like``. Raises ``InputError`` as ``with_options`` does."""
    kept = {name: getattr(like, name, None) for name in _WHERE}
    settings = ModelSettings(**{name: value for name, value in kept.items() if value is not None})
    items = cast("Any", to_openai_responses(request.messages))
    bare = ModelCall(None, items, settings, [], None, [], ModelTracing.DISABLED, None, None, None)
    return with_options(bare, ChatOptions(), request.options)


def with_options(call: ModelCall, before: ChatOptions, after: ChatOptions) -> ModelCall:
    """Return the call with those options that differ; all else stays the object that it is.

    Raises ``InputError`` for another model than the client's, and for a tool of a provider's own that the call has not.
    """
    changed = {name for name in ChatOptions.__struct_fields__ if getattr(before, name) != getattr(after, name)}
    if "model" in changed and after.model is not None:
        raise InputError(f"AgentsModelClient: model={after.model!r}: the model is the client's own")
    fields: dict[str, Any] = {"model_settings": _settings_with(call.model_settings, changed, after)}
    if "instructions" in changed:
        fields["system_instructions"] = after.instructions or None
    if "output_schema" in changed:
        fields["output_schema"] = None if after.output_schema is None else _Schema(after.output_schema)
    if "tools" in changed:
        new = [each for each in after.tools if each not in before.tools]
        kept = [each for each in call.tools if set(declared([each], [])) <= set(after.tools)]
        fields["tools"] = [*kept, *map(_tool, new)]
        fields["handoffs"] = [each for each in call.handoffs if set(declared([], [each])) <= set(after.tools)]
    if "extra" in changed:
        fields["previous_response_id"] = after.extra.get("previous_response_id")
        fields["conversation_id"] = after.extra.get("conversation")
    return call._replace(**fields)


def _settings_with(settings: ModelSettings, changed: Set[str], after: ChatOptions) -> ModelSettings:
    found: dict[str, Any] = {name: getattr(after, name) for name in (*_SAME, "tool_choice") if name in changed}
    if "reasoning_effort" in changed:
        reasoning = (settings.reasoning or Reasoning()).model_copy(update={"effort": after.reasoning_effort})
        found["reasoning"] = reasoning if reasoning != Reasoning() else None
    body = {name: value for name, value in after.extra.items() if name not in _HELD}
    body |= {"stop": list(after.stop)} if after.stop else {}
    body |= {"seed": after.seed} if after.seed is not None else {}
    if changed & {"extra", "stop", "seed"} and body != _extra_of(settings):
        arguments = {name: value for name, value in (settings.extra_args or {}).items() if body.get(name) == value}
        found["extra_args"] = arguments or None
        found["extra_body"] = {name: value for name, value in body.items() if name not in arguments} or None
    return replace(settings, **found)


def _tool(tool: DeclaredTool) -> Tool:
    if not isinstance(tool, ToolDeclaration):
        raise InputError(f"AgentsModelClient: {tool.provider}: a tool of a provider's own cannot be declared there")

    async def never(context: object, arguments: str) -> str:
        raise AssertionError("the stack's tool loop carries it out")

    schema = json.loads(tool.parameters or '{"type": "object", "properties": {}}')
    return FunctionTool(tool.name, tool.description, schema, never, strict_json_schema=bool(tool.strict))


class _Schema(AgentOutputSchemaBase):
    def __init__(self, schema: OutputSchema) -> None:
        self._schema = schema

    def is_plain_text(self) -> bool:
        return False

    def name(self) -> str:
        return self._schema.name

    def json_schema(self) -> dict[str, Any]:
        return cast("dict[str, Any]", json.loads(self._schema.schema))

    def is_strict_json_schema(self) -> bool:
        return bool(self._schema.strict)

    def validate_json(self, json_str: str) -> Any:
        return json.loads(json_str)


def plain(item: object) -> Mapping[str, Any]:
    """Return an item or event of the SDK as a dict."""
    dump = getattr(item, "model_dump", None)
    found: Any = dump(mode="json", exclude_unset=True, warnings=False) if callable(dump) else item
    return cast("Mapping[str, Any]", found)
