"""Messages of Pydantic AI as ours, and what a stack leaves of them as theirs again.

Each part of a ``ModelRequest`` is a message of ours, and each ``ModelResponse`` is one. What no layer has edited goes
back as the object that it is, with all its fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

from pydantic import ValidationError
from pydantic_ai.messages import (
    BinaryContent,
    CachePoint,
    DocumentUrl,
    FileUrl,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UploadedFile,
    UserPromptPart,
)

from chatstack import File, Image, InputError, Message, Part, ProviderItem, Reasoning, Text, ToolCall
from chatstack.context.edits.summaries import OPENING
from chatstack.values.data_urls import data_url

WIRE = "chatstack"
FRAMEWORK = "pydantic-ai"
"""The provider of items that have no part of ours."""
Content: TypeAlias = "Text | Image | File | ProviderItem"
Source: TypeAlias = "tuple[ModelMessage, ModelRequestPart | None]"
"""Where a message of ours comes from: their message, and the part of a request."""


class Converted:
    """A history of Pydantic AI's as ours, which remembers what each message of ours stands for. ``system`` is whose
    files are named by their ids in messages that come from elsewhere."""

    def __init__(self, history: Sequence[ModelMessage], system: str = "") -> None:
        self._system = system
        self._sources: dict[int, Source] = {}
        found: list[Message] = []
        for message in history:
            if isinstance(message, ModelResponse):
                found.append(self._noted(from_response(message), message, None))
            else:
                found += [self._noted(from_part(part), message, part) for part in message.parts]
        self.messages = tuple(found)

    def theirs(self, messages: Sequence[Message]) -> list[ModelMessage]:
        """Return Pydantic AI's messages for what layers left of this history."""
        found: list[ModelMessage] = []
        group: list[ModelRequestPart] = []
        whose: ModelRequest | None = None
        for message in messages:
            source, part = self._sources.get(id(message.original), (None, None))
            if message.role == "assistant":
                found += _closed(whose, group)
                whose, group = None, []
                found.append(_edited_response(cast("ModelResponse | None", source), message))
                continue
            request = source if isinstance(source, ModelRequest) else None
            if request is not whose and request is not None:
                found += _closed(whose, group)
                whose, group = request, []
            group += self._request_parts(part, message)
        return [*found, *_closed(whose, group)]

    def _request_parts(self, part: ModelRequestPart | None, message: Message) -> list[ModelRequestPart]:
        """Return the part that it came from, with what an edit changed; new ones for a message of a layer's."""
        if part is not None:
            if message is message.original:
                return [part]
            left = message.results[0].output if message.results else message.parts
            return [cast("ModelRequestPart", replace(cast("Any", part), content=self._content(left, _items_of(part))))]
        if message.role == "system":
            return [SystemPromptPart(message.text)]
        results = [ToolReturnPart(each.name, self._content(each.output), each.call_id) for each in message.results]
        said = [each for each in message.parts if isinstance(each, Text | Image | File)]
        return [*results, UserPromptPart(self._content(said))] if said else [*results]

    def _content(self, said: str | Sequence[Part], before: Iterable[Any] = ()) -> str | list[Any]:
        """Return content for what a message says: the items that it said ``before``, where these still say it."""
        if isinstance(said, str):
            return said
        known: dict[Part, Any] = {part: each for each in before for part in _ours([each])}
        found = [known.get(part) or _item_of(part, self._system) for part in said]
        content = [each for each in found if each is not None]
        return content[0] if len(content) == 1 and isinstance(content[0], str) else content or ""

    def _noted(self, ours: Message, message: ModelMessage, part: ModelRequestPart | None) -> Message:
        self._sources[id(ours)] = (message, part)
        return ours


def to_theirs(messages: Sequence[Message], system: str) -> list[ModelMessage]:
    """Return Pydantic AI's messages for ours, for a model of that system."""
    return Converted([], system).theirs(messages)


def conversation_of(messages: Sequence[ModelMessage]) -> str | None:
    """Return the conversation's id, which the last request has; None where there is none."""
    last = next((each for each in reversed(messages) if isinstance(each, ModelRequest)), None)
    return getattr(last, "conversation_id", None)


def from_part(part: ModelRequestPart) -> Message:
    """Return our message for a part of a request."""
    if isinstance(part, UserPromptPart):
        return Message("user", tuple(_ours(_items_of(part))))
    if isinstance(part, ToolReturnPart):
        failed = getattr(part, "outcome", "success") not in ("success", None)
        output = tuple(_ours(_items_of(part))) if part.files else part.model_response_str()
        return Message.tool(part.tool_call_id, output, name=part.tool_name, is_error=failed)
    if part.part_kind in ("retry-prompt", "retry-feedback"):  # the first one is deprecated, and still in histories
        retried = cast("Any", part)
        if getattr(retried, "tool_name", None) is None:
            return Message.user(retried.model_response())
        return Message.tool(retried.tool_call_id, retried.model_response(), name=retried.tool_name, is_error=True)
    if isinstance(part, SystemPromptPart):
        return Message.system(part.content)
    content = getattr(part, "content", None) or ""
    if part.part_kind == "compaction":  # written by a model, of what users and tools said: no word of the system's
        return Message.user(f"{OPENING}\n{content}", pinned=True)
    return Message.system(str(content), pinned=True)  # the framework's own notes


def from_response(response: ModelResponse) -> Message:
    """Return our message for a response."""
    return Message("assistant", tuple(map(_response_part, response.parts)))


def to_response_parts(given: Iterable[Part]) -> list[ModelResponsePart]:
    """Return the parts of a response for those of a message of the model's."""
    parts: list[ModelResponsePart] = []
    for part in given:
        if isinstance(part, Text):
            parts.append(TextPart(part.text))
        elif isinstance(part, Reasoning):
            parts.append(_thinking(part))
        elif isinstance(part, ToolCall):
            parts.append(ToolCallPart(part.name, part.arguments, part.id))
    return parts


def _thinking(part: Reasoning) -> ThinkingPart:
    if not part.item_json:
        return ThinkingPart(part.text)
    # Under a name of ours, so that no model of theirs takes it for its own.
    return ThinkingPart(part.text, provider_name=WIRE, provider_details={WIRE: [part.item_json, part.provider]})


def _response_part(part: ModelResponsePart) -> Part:
    if isinstance(part, TextPart):
        return Text(part.content)
    if isinstance(part, ToolCallPart):
        return ToolCall(part.tool_call_id, part.tool_name, part.args_as_json_str())
    if isinstance(part, ThinkingPart):
        kept = (part.provider_details or {}).get(WIRE)
        return Reasoning(part.content, *kept) if kept else Reasoning(part.content)
    content: object = getattr(part, "content", None)
    return ProviderItem(FRAMEWORK, json.dumps({"type": part.part_kind, "content": content}, default=str))


def _items_of(part: ModelRequestPart) -> Sequence[Any]:
    """Return what a part of a request holds, item by item."""
    if isinstance(part, ToolReturnPart):
        return part.content_items(mode="str")
    if isinstance(part, UserPromptPart):
        return [part.content] if isinstance(part.content, str) else part.content
    return ()


def _ours(items: Iterable[Any]) -> Iterator[Content]:
    for each in items:
        if isinstance(each, str):
            yield Text(each)
        elif isinstance(each, TextContent):
            yield Text(each.content)
        elif isinstance(each, BinaryContent):
            kind = Image if each.is_image else File
            yield kind(data=each.base64, media_type=each.media_type)
        elif isinstance(each, UploadedFile):
            kind = Image if each.media_type.startswith("image/") else File
            yield kind(file_id=each.file_id, media_type=each.media_type)
        elif isinstance(each, ImageUrl):
            yield Image(url=each.url)
        elif isinstance(each, FileUrl):
            yield File(url=each.url)
        elif not isinstance(each, CachePoint):
            yield ProviderItem(FRAMEWORK, json.dumps({"type": type(each).__name__}))


def _closed(whose: ModelRequest | None, parts: list[ModelRequestPart]) -> list[ModelMessage]:
    if not parts:
        return []
    if whose is None:
        return [ModelRequest(parts)]
    same = len(parts) == len(whose.parts) and all(a is b for a, b in zip(parts, whose.parts, strict=True))
    return [whose if same else replace(whose, parts=parts)]


def _item_of(part: Part, system: str) -> Any:
    """Return an item of content for a part; None for one that has none."""
    if isinstance(part, Text):
        return part.text
    if not isinstance(part, Image | File):
        return None
    if part.file_id:
        kind = part.media_type or ("image/*" if isinstance(part, Image) else None)
        try:
            return UploadedFile(part.file_id, cast("Any", system), media_type=kind)
        except ValidationError as error:
            raise InputError(f"PydanticAIClient: {part.file_id}: {system or 'the model'} keeps no files") from error
    if part.data:
        return BinaryContent.from_data_uri(data_url(part.media_type, part.data))
    if isinstance(part, File):
        return part.text or DocumentUrl(part.url)
    return ImageUrl(part.url)


def _edited_response(response: ModelResponse | None, message: Message) -> ModelResponse:
    if response is None:
        return ModelResponse(to_response_parts(message.parts))
    if message is message.original:
        return response
    arguments = {call.id: call.arguments for call in message.calls}
    parts = [
        replace(part, args=arguments[part.tool_call_id]) if isinstance(part, ToolCallPart) else part
        for part in response.parts
        if not isinstance(part, ToolCallPart) or part.tool_call_id in arguments
    ]
    if message.text != from_response(response).text:
        parts = [TextPart(message.text), *(part for part in parts if not isinstance(part, TextPart))]
    return replace(response, parts=parts)
