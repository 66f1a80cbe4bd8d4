"""Results of MCP tools as parts of messages."""

from __future__ import annotations

import base64
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

_PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Formats that every API with pictures takes."""
_BEGINNINGS = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}
_OTHER_NAMES = {"image/jpg": "image/jpeg", "application/x-pdf": "application/pdf"}


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
    """Return one block as a part. What models cannot read is described, as an API would refuse the conversation."""
    if isinstance(block, TextContent):
        return Text(block.text)
    if isinstance(block, ImageContent | AudioContent):
        return _media(block.data, block.mime_type)
    if isinstance(block, EmbeddedResource):
        held = block.resource
        if isinstance(held, BlobResourceContents):
            return _media(held.blob, held.mime_type or "", str(held.uri))
        return Text(held.text)
    about = ", ".join(each for each in (block.description, block.mime_type) if each)
    return Text(f"{block.name}: {block.uri}" + (f" ({about})" if about else ""))


def _media(data: str, mime_type: str, name: str = "") -> Part:
    """Return data as a picture, a document or text; else a description of it."""
    kind = mime_type.partition(";")[0].strip().lower()
    kind = _OTHER_NAMES.get(kind, kind)
    try:
        content = base64.b64decode(data, validate=True)
        if content and kind in _PICTURES:
            # Servers often name the wrong one, for which Anthropic refuses all that follows.
            kinds = [each for beginning, each in _BEGINNINGS.items() if content.startswith(beginning)]
            return Image(data=data, media_type=kinds[0] if kinds else kind)
        if content and kind == "application/pdf":
            return File(data=data, media_type=kind, name=name)
        if content and (kind.startswith("text/") or kind == "application/json"):
            return Text(content.decode())
        size = f"{len(content)} bytes"
    except ValueError:  # no base64, or no UTF-8
        size = "broken data"
    about = ", ".join(each for each in (name, kind, size) if each)
    return Text(f"[{about}: cannot be shown]")
