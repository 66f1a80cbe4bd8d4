"""Requests of one wire for an upstream that speaks another one, as far as the two can say the same.

What cannot be said is an ``UnsayableError`` that names the field. What has no effect on the answer's content (marks for
a cache, metadata, where a request is to be kept) is left out, and so is reasoning, which only its provider can read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

from msgspec.structs import replace

from chatstack import ChatOptions, ChatRequest, File, Image, Message, ProviderItem, Reasoning, Text, ToolResult
from chatstack.errors import InputError
from chatstack.providers.anthropic.native import drop_clearing_of_thinking
from chatstack.providers.extras import WireObject, extra_fields, object_or_empty
from chatstack.providers.openai.chat_results import with_joined_texts, with_text_results
from chatstack.providers.wires import PROVIDERS, Form, write_request
from chatstack.values.parts import Part
from chatstack.values.requests import OutputSchema
from chatstack_gateway.events import decoded
from chatstack_gateway.places import ITEMS, SYSTEM, places_of
from chatstack_gateway.positions import UneditableError, written
from chatstack_gateway.refusals import Refusal

ANTHROPIC = "messages"
_API = {"chat": "OpenAI's chat completions", "responses": "OpenAI's Responses", "messages": "Anthropic's Messages"}
_SAYS_NOTHING: tuple[object, ...] = (None, False, 0, "", [], {})
"""Values by which a field asks for nothing."""
_NO_EFFECT = frozenset(
    {"metadata", "user", "store", "service_tier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"}
    | {"safety_identifier", "cache_control", "stream_options", "inference_geo", "thinking", "prediction"}
    | {"client_metadata", "usage"}  # of Codex; of clients of OpenRouter, which ask for the cost by it
)
_SHARED = ("metadata", "user", "store", "service_tier", "prompt_cache_key", "safety_identifier", "top_logprobs")
"""Fields that both of OpenAI's wires have."""
_DEFAULTS: Mapping[str, Sequence[object]] = {
    "n": (1,),
    "modalities": (["text"],),
    "truncation": ("disabled",),
    "include": (["reasoning.encrypted_content"],),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto",),
    "logit_bias": ({},),
    "verbosity": ("medium",),
    "speed": ("standard",),
}
_SEEN = ("context", "citations", "input_examples")
"""Fields of Anthropic's documents and tools that the model is shown, or that ask for something."""
_REASONING = {"effort", "summary", "generate_summary", "context"}
_ANY_JSON = {"type": "json_object"}
_HOTTEST = 1.0


class UnsayableError(Exception):
    """A request with something that upstream's API has no form for."""

    def __init__(self, field: str, api: Form, why: str = "") -> None:
        super().__init__(f"{field}: {why or 'has no form'} in {_API[api]}, which this gateway's upstream speaks")
        self.field = field

    @property
    def refusal(self) -> Refusal:
        """The answer that tells it."""
        return Refusal(400, str(self), "unsupported_value", is_final=True, param=self.field)


def convertible(
    came: Form, api: Form, request: ChatRequest, body: Mapping[str, object], *, model: str = ""
) -> ChatRequest:
    """Return the request, read from that body, as the other API can be asked it; ``model`` stands in the place of the
    caller's. Raises ``UnsayableError``."""
    rest = dict(request.options.extra)
    drop_clearing_of_thinking(rest)  # as that of earlier answers does not go on
    schema = _schema(came, rest, request.options.output_schema, api)
    kept = _kept(came, api, rest)
    options = request.options.but(
        extra=kept,
        output_schema=schema,
        model=model or request.options.model,
        reasoning_effort=_effort(request.options, rest, api),
    )
    _check_options(options, api)
    for position, tool in enumerate(options.tools):
        if isinstance(tool, ProviderItem):
            raise UnsayableError(f"tools[{position}].type", api)
        _check_extra(tool.extra_json, f"tools[{position}]", api)
    names = _Names(came, body, request.messages)
    messages = [
        _message(each, partial(names.of, position), came, api) for position, each in enumerate(request.messages)
    ]
    return request.but(messages=tuple(each for each in messages if each.parts), options=options)


def body_of(api: Form, request: ChatRequest) -> dict[str, object]:
    """Return the body for upstream. Raises ``UnsayableError``."""
    try:
        body = write_request(api, request)
    except InputError as error:
        field, _, why = str(error).partition(": ")
        raise UnsayableError(field, api, f"{why};" if why else "") from error
    if api == "chat":  # a tool's result is text there: pictures stand in a user message behind it
        items = cast("list[WireObject]", body["messages"])
        body["messages"] = with_joined_texts(with_text_results(items))
    if api == "responses":
        body.setdefault("store", False)  # the caller has the history
        if "verbosity" in body:  # beside the schema of the answer, which a layer may have changed
            body["text"] = {**object_or_empty(body.get("text")), "verbosity": body.pop("verbosity")}
    return body


def _kept(came: Form, api: Form, rest: dict[str, object]) -> dict[str, object]:
    """Return the fields beside the known ones that go on."""
    kept: dict[str, object] = {}
    for name, value in rest.items():
        says_nothing = value in _SAYS_NOTHING or value in _DEFAULTS.get(name, ())
        is_openai = ANTHROPIC not in (came, api)
        if is_openai and (name in _SHARED or (name == "verbosity" and not says_nothing)):
            kept[name] = value
        elif is_openai and name == "tool_choice" and (allowed := _allowed_tools(value, api)):
            kept[name] = allowed
        elif came == "chat" and api == "responses" and name == "response_format" and value == _ANY_JSON:
            kept["text"] = {"format": value}
        elif came == "responses" and api == "chat" and name == "text" and value == {"format": _ANY_JSON}:
            kept["response_format"] = _ANY_JSON
        elif says_nothing or name in _NO_EFFECT:
            continue
        elif name in ("max_tokens", "max_completion_tokens", "stop", "input", "tools") and came != ANTHROPIC:
            continue  # another spelling of what is an option of ours
        elif name != "reasoning" or _foreign(value, _REASONING):
            raise UnsayableError(name, api)
    return kept


def _allowed_tools(choice: object, api: Form) -> dict[str, object]:
    """Return a choice among some of the tools in the form of OpenAI's other API; nothing for any other choice."""
    fields = object_or_empty(choice)
    told = object_or_empty(fields.get("allowed_tools")) or fields  # nested in chat completions
    tools = told.get("tools")
    each_of = [object_or_empty(each) for each in cast("list[object]", tools)] if isinstance(tools, list) else []
    names = [each.get("name") or object_or_empty(each.get("function")).get("name") for each in each_of]
    if fields.get("type") != "allowed_tools" or any(each.get("type") != "function" for each in each_of):
        return {}
    if api == "responses":
        flat = [{"type": "function", "name": name} for name in names]
        return {"type": "allowed_tools", "mode": told.get("mode"), "tools": flat}
    nested = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": told.get("mode"), "tools": nested}}


def _check_extra(extra_json: str, where: str, api: Form) -> None:
    """Raise ``UnsayableError`` for a field of Anthropic's that would be lost."""
    for name, value in extra_fields(extra_json, "anthropic", where).items():
        if name in _SEEN and value not in (*_SAYS_NOTHING, {"enabled": False}):
            raise UnsayableError(f"{where}.{name}", api)


def _schema(came: Form, rest: dict[str, object], known: OutputSchema | None, api: Form) -> OutputSchema | None:
    """Return the schema of the answer, with what says it taken out of ``rest``."""
    if came == "chat" and known is not None:
        rest.pop("response_format", None)
    if came == "messages" and not _foreign(rest.get("output_format"), {"type", "schema"}):  # its earlier name
        return OutputSchema("answer", written(cast("dict[str, object]", rest.pop("output_format"))["schema"]))
    if came != "responses" or not isinstance(rest.get("text"), dict):
        return known
    text = dict(cast("dict[str, object]", rest.pop("text")))
    form = text.pop("format", None)
    verbosity = text.pop("verbosity", None)
    if api == ANTHROPIC and verbosity not in (None, "medium"):
        raise UnsayableError("text.verbosity", api)
    rest["verbosity"] = verbosity
    if not isinstance(form, dict) or form == {"type": "text"}:
        return known
    fields = cast("dict[str, object]", form)
    if fields == _ANY_JSON:
        rest["text"] = {"format": form}
        return known
    if fields.get("type") != "json_schema":
        raise UnsayableError("text.format", api)
    strict, told = fields.get("strict"), fields.get("description")
    return OutputSchema(
        str(fields.get("name") or "answer"),
        written(fields.get("schema")),
        strict if isinstance(strict, bool) else None,
        told if isinstance(told, str) else "",
    )


def _effort(options: ChatOptions, rest: Mapping[str, object], api: Form) -> str | None:
    told = object_or_empty(rest.get("reasoning")).get("effort")  # in chat completions: OpenRouter's form
    effort = told if options.reasoning_effort is None and isinstance(told, str) else options.reasoning_effort
    return "xhigh" if effort == "max" and api != ANTHROPIC else effort


def _check_options(options: ChatOptions, api: Form) -> None:
    if api == ANTHROPIC:
        if options.seed is not None:
            raise UnsayableError("seed", api)
        if options.temperature is not None and options.temperature > _HOTTEST:
            raise UnsayableError("temperature", api, f"{options.temperature:g} is more than the 1 that is highest")
    if api == "responses":
        for name in ("stop", "seed"):
            if getattr(options, name) not in (None, ()):
                raise UnsayableError(name, api)


class _Names:
    """The places of messages and parts in the caller's body, as its fields are named."""

    def __init__(self, came: Form, body: Mapping[str, object], messages: Sequence[Message]) -> None:
        self._field = ITEMS[came]
        items = body.get(self._field)
        try:
            self._places = places_of(came, cast("list[object]", items), messages) if isinstance(items, list) else []
        except UneditableError:
            self._places = []

    def of(self, message: int, part: int) -> str:
        """Return the name of a part's place."""
        if message >= len(self._places):
            return self._field
        place = self._places[message]
        if place.first == SYSTEM:
            return f"system[{part}]"
        if place.end - place.first > 1:
            return f"{self._field}[{place.first + part}]" if part < place.end - place.first else self._field
        block = place.blocks[part] if part < len(place.blocks) else part
        return f"{self._field}[{place.first}].content[{block}]"


def _message(message: Message, where: Callable[[int], str], came: Form, api: Form) -> Message:
    """Return a message without reasoning, with what chat completions say beside its parts. Raises ``UnsayableError``
    for a part that has no form there."""
    parts = [
        _part(part, where(position), came, api)
        for position, part in enumerate(message.parts)
        if not isinstance(part, Reasoning)
    ]
    beside = extra_fields(message.extra_json, "openai-chat", "message")
    refusal, name = beside.get("refusal"), beside.get("name")
    if refusal and isinstance(refusal, str):
        parts.append(Text(refusal))
    if name and isinstance(name, str) and message.role in ("system", "user"):
        first = parts[0] if parts else None
        parts[:1] = [Text(f"{name}: {first.text}")] if isinstance(first, Text) else [Text(f"{name}:"), *parts[:1]]
    if all(one is other for one, other in zip(parts, message.parts, strict=False)) and len(parts) == len(message.parts):
        return message
    return replace(message, parts=tuple(parts))


def _part(part: Part, where: str, came: Form, api: Form) -> Part:
    if isinstance(part, ProviderItem):
        text = refusal_in(part)
        if text is None:
            raise UnsayableError(where, api, "is an item of its own API; it has no form")
        return Text(text)
    if isinstance(part, File):
        _check_extra(part.extra_json, where, api)
    if isinstance(part, Image | File) and part.file_id and PROVIDERS[came] != PROVIDERS[api]:
        raise UnsayableError(where, api, "a file at another provider has no form")
    if api == "chat" and ((isinstance(part, File) and part.url) or (isinstance(part, Image) and part.file_id)):
        raise UnsayableError(where, api, "a file by url, or a picture by its id, has no form")
    if isinstance(part, ToolResult):
        return _result(part, where, came, api)
    return part


def _result(result: ToolResult, where: str, came: Form, api: Form) -> ToolResult:
    """Return a result as the other API takes it: OpenAI has no field for a failure, which the text then says."""
    output = result.output
    if not isinstance(output, str):
        for position, each in enumerate(output):
            _part(each, f"{where}.content[{position}]", came, api)
        texts = [each.text for each in output if isinstance(each, Text)]
        if api == "chat" and len(texts) == len(output):  # many servers refuse a list of texts, or read nothing of it
            output = "\n".join(texts)
            result = replace(result, output=output)
    if not result.is_error or api == ANTHROPIC or result.text.lstrip().lower().startswith("error"):
        return result
    said: str | tuple[Text | Image | File | ProviderItem, ...]
    said = f"Error: {output}" if isinstance(output, str) else (Text("Error:"), *output)
    return ToolResult(result.call_id, result.name, said, is_error=True)


def refusal_in(item: ProviderItem) -> str | None:
    """Return the words of a model that refused, from its item; None for any other item."""
    fields = object_or_empty(decoded(item.json.encode()))
    content = fields.get("content")
    for each in (fields, *map(object_or_empty, cast("list[object]", content) if isinstance(content, list) else [])):
        if each.get("type") == "refusal":
            return str(each.get("refusal") or "")
    return None


def _foreign(value: object, known: set[str]) -> bool:
    """Return True if an object has other fields than these."""
    return not isinstance(value, dict) or not cast("dict[str, object]", value).keys() <= known
