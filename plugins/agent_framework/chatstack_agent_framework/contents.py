"""Messages of Agent Framework as ours, and ours as theirs. A message of theirs is always one message of ours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Any

import msgspec
from agent_framework import Content
from agent_framework import Message as TheirMessage

from chatstack import File, Image, InputError, Message, ProviderItem, Reasoning, Text, ToolCall, ToolResult
from chatstack.values.data_urls import data_url
from chatstack.values.messages import Role
from chatstack.values.parts import Part

FRAMEWORK = "agent-framework"
"""The provider of items that have no part of ours: approvals, tools that run at a service."""
_KEPT = "chatstack"
"""Key in ``additional_properties`` of one content of a message, for what theirs has no field for."""
_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "assistant": "assistant", "tool": "tool"}


class Counterparts:
    """Messages and contents of theirs, by what was made from them: it is held, so that nothing new gets its id."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Message | Part, Any]] = {}

    def note(self, ours: Message | Part, theirs: TheirMessage | Content) -> None:
        """Note what a message or a part was made from."""
        self._known[id(ours)] = ours, theirs

    def of(self, ours: Message | Part) -> Any:
        """Return what this very message or part was made from; None for any other."""
        return self._known.get(id(ours), (None, None))[1]


_NONE = Counterparts()
counterparts_now: ContextVar[Counterparts] = ContextVar("chatstack_counterparts", default=_NONE)
"""The counterparts of the request under way, where a client of theirs is at the bottom of a stack."""


def from_theirs(message: TheirMessage, counterparts: Counterparts | None = None) -> Message:
    """Return the message as ours. Into ``counterparts`` goes what it was made from."""
    role = _ROLES.get(message.role, "user")
    read = part_of if role == "assistant" else _given
    found = [(part, content) for content in message.contents if (part := read(content)) is not None]
    plain = Message(role, tuple(part for part, _ in found))
    kept = _kept_in(message, plain)
    if counterparts is None:
        return kept or plain
    for part, content in found if kept is None else _contents_in(kept, found):
        counterparts.note(part, content)
    counterparts.note(kept or plain, message)
    return kept or plain


def _contents_in(kept: Message, found: Iterable[tuple[Part, Content]]) -> Iterable[tuple[Part, Content]]:
    """Yield the parts of a message of a model with the contents that say them, of which ``found`` has the plain parts;
    not with the one that holds the message, which is another one once it is edited."""
    shown = [(part, plain) for part in kept.parts if (plain := _plain(part)) is not None]
    for (part, expected), (plain, content) in zip(shown, found, strict=False):
        if plain == expected and _KEPT not in content.additional_properties:
            yield part, content


def to_theirs(message: Message, counterparts: Counterparts) -> TheirMessage:
    """Return the message as theirs: the one that it was made from, unless it was edited; of that, what was not."""
    same: TheirMessage | None = counterparts.of(message)
    if same is not None:
        return same
    made = (counterparts.of(part) or content_of(part) for part in message.parts)
    contents = [content for content in made if content is not None]
    before: TheirMessage | None = counterparts.of(message.original)
    if before is None:
        return TheirMessage(message.role, contents)
    return TheirMessage(
        before.role,
        contents,
        author_name=before.author_name,
        message_id=before.message_id,
        additional_properties=before.additional_properties,
    )


def part_of(content: Content) -> Part | None:
    """Return a content as a part of ours; None for reported usage."""
    match content.type:
        case "usage":
            return None
        case "text":
            return Text(_clean(content.text or ""))
        case "text_reasoning":
            item = {} if content.protected_data is None else {"protected_data": content.protected_data}
            return Reasoning(_clean(content.text or ""), json.dumps(item) if item else "", FRAMEWORK if item else "")
        case "function_call":
            return ToolCall(content.call_id or "", content.name or "", arguments_of(content))
        case "function_result":
            return ToolResult(content.call_id or "", "", _output(content), content.exception is not None)
        case "data" | "uri":
            return _media(content)
        case _:
            return ProviderItem(FRAMEWORK, json.dumps(content.to_dict(), default=str))


def _given(content: Content) -> Part | None:
    """Return what a user or a tool gives as a part: a file that lies at the provider, too."""
    if content.type != "hosted_file":
        return part_of(content)
    where: dict[str, str] = {"file_id": content.file_id or "", "media_type": content.media_type or ""}
    return Image(**where) if where["media_type"].startswith("image/") else File(**where, name=content.name or "")


def content_of(part: Part, *, informational: bool = False) -> Content | None:
    """Return a part of ours as a content; None for an item that only its provider understands. ``informational`` is a
    call that nobody is to carry out."""
    if isinstance(part, Text):
        return Content.from_text(part.text)
    if isinstance(part, Reasoning):
        item: dict[str, Any] = json.loads(part.item_json) if part.item_json and part.provider == FRAMEWORK else {}
        return Content.from_text_reasoning(text=part.text, protected_data=item.get("protected_data"))
    if isinstance(part, ToolCall):
        return Content.from_function_call(
            part.id, part.name, arguments=part.arguments, informational_only=informational
        )
    if isinstance(part, ToolResult):
        output = part.output if isinstance(part.output, str) else [c for c in map(content_of, part.output) if c]
        return Content.from_function_result(part.call_id, result=output, exception="error" if part.is_error else None)
    if isinstance(part, ProviderItem):
        return Content.from_dict(json.loads(part.json)) if part.provider == FRAMEWORK else None
    return _media_content(part)


def kept_of(message: Message) -> dict[str, Any]:
    """Return the properties for a content of the message, by which ``from_theirs`` finds what theirs has no field for:
    signatures, items of providers."""
    says_all = tuple(map(_plain, message.parts)) == message.parts and not message.extra_json
    return {} if says_all else {_KEPT: msgspec.to_builtins(message)}


def _plain(part: Part) -> Part | None:
    """Return what theirs says of a part."""
    content = content_of(part)
    return None if content is None else part_of(content)


def _kept_in(theirs: TheirMessage, plain: Message) -> Message | None:
    """Return the message of a model that theirs was made from, if it still says the same."""
    kept = next((c.additional_properties[_KEPT] for c in theirs.contents if _KEPT in c.additional_properties), None)
    if kept is None or plain.role not in ("assistant", "tool"):
        return None
    try:
        message = msgspec.convert(kept, Message)
    except (msgspec.ValidationError, InputError, RecursionError):
        return None
    return message if _said(message) == _said(plain) and not (message.pinned or message.mark) else None


def _said(message: Message) -> tuple[object, ...]:
    calls = [(each.id, each.name, each.arguments) for each in message.calls]
    return message.role, message.text, calls, [(each.call_id, each.output) for each in message.results]


def arguments_of(call: Content) -> str:
    """Return the arguments of a call as JSON text."""
    if isinstance(call.arguments, str):
        return call.arguments
    return json.dumps(dict(call.arguments or {}), default=str)


def _output(content: Content) -> str | tuple[Text | Image | File | ProviderItem, ...]:
    items: Sequence[Content] = content.items or ()
    if all(item.type == "text" for item in items):
        return _clean(content.result if isinstance(content.result, str) else json.dumps(content.result, default=str))
    return tuple(part for part in map(_given, items) if isinstance(part, (Text, Image, File, ProviderItem)))


def _media(content: Content) -> Part:
    uri, media_type = content.uri or "", content.media_type or ""
    head, comma, data = uri.partition(";base64,")
    embedded = bool(comma) and head.startswith("data:")
    where: dict[str, Any] = {"data": data} if embedded else {"url": uri}
    name: object = content.additional_properties.get("filename")
    if media_type.startswith("image/"):
        return Image(**where, media_type=media_type)
    return File(**where, media_type=media_type, name=name if isinstance(name, str) else "")


def _media_content(part: Image | File) -> Content:
    name = part.name if isinstance(part, File) else ""
    if part.file_id:
        return Content.from_hosted_file(part.file_id, media_type=part.media_type or None, name=name or None)
    if isinstance(part, File) and part.text:
        return Content.from_text(part.text)
    named = {"filename": name} if name else {}
    uri = part.url or data_url(part.media_type, part.data)
    return Content.from_uri(uri, media_type=part.media_type or "image/*", additional_properties=named)


def _clean(text: str) -> str:
    """Return text that can be sent: a lone surrogate is replaced."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
