"""Results of MCP tools as parts of messages."""

from __future__ import annotations

import json
from collections.abc import Sequence

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
)

from chatstack import File, Image, Text

Part = Text | Image | File


def output_of(result: CallToolResult) -> str | list[Part]:
    """Return a result as the model gets it: text where it holds nothing else, else its parts in order."""
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    parts = [part_of(each) for each in result.content]
    return text_of(parts) if all(isinstance(each, Text) for each in parts) else parts


def text_of(parts: Sequence[Part]) -> str:
    """Return the text in these parts."""
    return "\n".join(each.text for each in parts if isinstance(each, Text))


def part_of(block: ContentBlock) -> Part:
    """Return one block as a part. What models cannot read is described."""
    if isinstance(block, TextContent):
        return Text(block.text)
    if isinstance(block, ImageContent):
        return Image(data=block.data, media_type=block.mime_type)
    if isinstance(block, AudioContent):
        return File(data=block.data, media_type=block.mime_type)
    if isinstance(block, EmbeddedResource):
        return _resource(block)
    about = ", ".join(each for each in (block.description, block.mime_type) if each)
    return Text(f"{block.name}: {block.uri}" + (f" ({about})" if about else ""))


def _resource(block: EmbeddedResource) -> Part:
    resource, kind = block.resource, block.resource.mime_type or ""
    if not isinstance(resource, BlobResourceContents):
        return Text(resource.text)
    if kind.startswith("image/"):
        return Image(data=resource.blob, media_type=kind)
    return File(data=resource.blob, media_type=kind or "application/octet-stream", name=str(resource.uri))
