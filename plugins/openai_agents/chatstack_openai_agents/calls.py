"""A model call of the Agents SDK, as a request of ours, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

from agents import FunctionTool, Handoff, ModelSettings, Tool, UserError
from agents.agent_output import AgentOutputSchemaBase
from agents.items import TResponseInputItem
from agents.models.interface import ModelTracing
from agents.models.openai_responses import Converter
from agents.tracing import get_current_trace

from chatstack import (
    ChatOptions,
    ChatRequest,
    Message,
    OutputSchema,
    ProviderItem,
    ToolDeclaration,
    to_openai_responses,
)
from chatstack.providers.openai.responses_wire import messages_in_place
from chatstack.values.requests import DeclaredTool


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


class Asked:
    """A call with its request, and the items that each message was made from."""

    def __init__(self, call: ModelCall, *, stream: bool) -> None:
        self.call = call
        self.items = [{"role": "user", "content": call.input}] if isinstance(call.input, str) else list(call.input)
        found = list(messages_in_place(self.items))
        self._known = {id(message): self.items[place] for message, place in found}
        trace = get_current_trace()
        group: object = getattr(trace, "group_id", None)
        self.request = ChatRequest(
            tuple(message for message, _ in found),
            options_of(call),
            group if isinstance(group, str) else None,
            stream,
        )

    def call_for(self, sent: ChatRequest) -> ModelCall | None:
        """Return the call with what the layers leave of its input; None for another call than this."""
        if sent.options != self.request.options:
            return None
        if sent.messages is self.request.messages:
            return self.call
        items = [item for message in sent.messages for item in self._items_of(message)]
        return self.call._replace(input=cast("Any", items))

    def _items_of(self, message: Message) -> Sequence[Any]:
        same = self._known.get(id(message))
        if same is not None:
            return same
        made, before = to_openai_responses([message]), self._known.get(id(message.original), ())
        if message.role != "tool" or len(made) != len(before):
            return made
        return [
            {**old, "output": new["output"]} for old, new in zip(before, made, strict=True)
        ]  # its type, id and status


asked_now: ContextVar[Asked | None] = ContextVar("chatstack_asked", default=None)
"""The call that a request is about, for a model of theirs at the bottom of a stack."""


def options_of(call: ModelCall) -> ChatOptions:
    """Return the options of a call: what layers weigh, and what a provider of ours needs."""
    settings, schema = call.model_settings, call.output_schema
    extra: dict[str, Any] = {**dict(cast("Any", settings.extra_body) or {}), **(settings.extra_args or {})}
    held = {"previous_response_id": call.previous_response_id, "conversation": call.conversation_id}
    choice: Any = settings.tool_choice
    shape = None
    if schema is not None and not schema.is_plain_text():
        shape = OutputSchema("final_output", json.dumps(schema.json_schema()), schema.is_strict_json_schema())
    return ChatOptions(
        instructions=call.system_instructions or "",
        tools=tuple(declared(call.tools, call.handoffs)),
        tool_choice=choice if isinstance(choice, str) else None,
        parallel_tool_calls=settings.parallel_tool_calls,
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        reasoning_effort=settings.reasoning.effort if settings.reasoning is not None else None,
        output_schema=shape,
        extra={**extra, **{name: value for name, value in held.items() if value}},
    )


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


def call_of(request: ChatRequest) -> ModelCall:
    """Return a request of ours, of nobody's agent, as a model call."""
    options = request.options
    extra = dict(options.extra)
    previous, conversation = extra.pop("previous_response_id", None), extra.pop("conversation", None)
    settings = ModelSettings(
        temperature=options.temperature,
        top_p=options.top_p,
        max_tokens=options.max_tokens,
        tool_choice=options.tool_choice,
        parallel_tool_calls=options.parallel_tool_calls,
        reasoning=cast("Any", {"effort": options.reasoning_effort} if options.reasoning_effort else None),
        extra_body=extra or None,
    )
    return ModelCall(
        system_instructions=options.instructions or None,
        input=cast("Any", to_openai_responses(request.messages)),
        model_settings=settings,
        tools=[_tool(tool) for tool in options.tools if isinstance(tool, ToolDeclaration)],
        output_schema=None if options.output_schema is None else _Schema(options.output_schema),
        handoffs=[],
        tracing=ModelTracing.DISABLED,
        previous_response_id=cast("str | None", previous),
        conversation_id=cast("str | None", conversation),
        prompt=None,
    )


def _tool(tool: ToolDeclaration) -> Tool:
    async def never(context: object, arguments: str) -> str:
        raise AssertionError(tool.name)  # the stack's tool loop carries it out

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
