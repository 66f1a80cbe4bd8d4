"""Messages of any API in the form of chat completions, so that all are measured alike."""

from __future__ import annotations

from typing import TypeAlias, cast

from msgspec.structs import replace

from chatstack.providers.extras import decoded_object
from chatstack.providers.openai.chat_parts import PROVIDER
from chatstack.providers.openai.chat_wire import messages_to_wire
from chatstack.values.messages import Message
from chatstack.values.parts import File, Image, Part, ProviderItem, Text, ToolResult

_Output: TypeAlias = tuple[Text | Image | File | ProviderItem, ...]


def wire_of(message: Message) -> list[dict[str, object]]:
    """Return the wire messages of a message.

    Reasoning that another API keeps is left out: it is not billed again. Other items of such an API count as their
    JSON, and a picture or a file that has only a name there as one with an address.
    """
    parts = tuple(_said(part, message.role) for part in message.parts)
    if any(said is not part for said, part in zip(parts, message.parts, strict=True)):
        message = replace(message, parts=parts)
    return messages_to_wire((message,))


def _said(part: Part, role: str) -> Part:
    """Return the part, or a substitute of the size to measure."""
    if isinstance(part, ProviderItem):
        return part if part.provider == PROVIDER and _has_a_place(part, role) else Text(part.json)
    if isinstance(part, Image) and part.file_id:
        return Image(url=part.file_id)
    if isinstance(part, File) and part.url:
        return File(file_id=part.url, name=part.name)
    if isinstance(part, ToolResult) and not isinstance(part.output, str):
        output = cast("_Output", tuple(_said(each, "") for each in part.output))
        return part if output == part.output else replace(part, output=output)
    return part


def _has_a_place(item: ProviderItem, role: str) -> bool:
    """Return True if chat completions can hold the item.

    Beside tool results they hold nothing, in an assistant's message a refusal, elsewhere any content.
    """
    if role == "assistant":
        return decoded_object(item.json, "item").get("type") == "refusal"
    return role != "tool"
