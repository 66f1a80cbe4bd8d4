"""The parts of a message.

Every part is an immutable value. Fields of a provider's that have no field here ride along in ``extra_json``: the text
of a JSON object that holds, under the name of each wire, the fields for it in that API's spelling. They go out over
that wire word for word, and over no other::

    Text(manual, extra_json='{"anthropic": {"cache_control": {"type": "ephemeral"}}}')

The wires of this package are ``openai-chat``, ``openai-responses`` and ``anthropic``. An ``extra_json`` that is no
object of objects is an ``InputError`` when the part is sent.

They hold text and one another, never what could lead back to them: so the garbage collector need not know them
(``gc=False``), which takes 16 bytes off each, and as much off its work.
"""

from __future__ import annotations

import base64
from typing import Any, TypeAlias, cast

import msgspec
from msgspec.structs import force_setattr

from chatstack.values.data_urls import split_data_url
from chatstack.values.errors import InputError
from chatstack.values.fields import check_flag, check_text, shown, wrong_type


class Text(msgspec.Struct, frozen=True, tag="text", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Plain text."""

    text: str
    extra_json: str = ""

    def __post_init__(self) -> None:
        if not (type(self.text) is type(self.extra_json) is str):
            check_text(self, text="text", extra_json="JSON text")


class Image(
    msgspec.Struct,
    frozen=True,
    tag="image",
    omit_defaults=True,
    forbid_unknown_fields=True,
    kw_only=True,
    gc=False,
):
    """A picture: exactly one of ``url``, ``data`` (base64 text, with ``media_type``) and ``file_id``.

    ``Message.user``, ``.assistant`` and ``.tool`` raise ``InputError`` for any other.
    """

    url: str = ""
    data: str = ""
    media_type: str = ""
    file_id: str = ""
    detail: str = ""
    extra_json: str = ""

    def __post_init__(self) -> None:
        check_text(
            self,
            url="text",
            data="base64 text (Image.from_bytes takes bytes)",
            media_type="text",
            file_id="text",
            detail="text",
            extra_json="JSON text",
        )

    @classmethod
    def from_bytes(cls, data: bytes, media_type: str) -> Image:
        """Return a picture sent along with the request, e.g. ``Image.from_bytes(png, "image/png")``.

        Raises ``InputError`` for data of another type, and for empty data.
        """
        image = cls(data=_base64(cls, data), media_type=media_type)
        check_media(image)
        return image

    def __repr__(self) -> str:
        return f"Image({_where(self.url, self.data, self.file_id, self.media_type)})"


class File(
    msgspec.Struct,
    frozen=True,
    tag="file",
    omit_defaults=True,
    forbid_unknown_fields=True,
    kw_only=True,
    gc=False,
):
    """A document: exactly one of ``url``, ``data`` (base64 text), ``text`` and ``file_id``.

    ``Message.user``, ``.assistant`` and ``.tool`` raise ``InputError`` for any other.
    """

    url: str = ""
    data: str = ""
    text: str = ""
    media_type: str = ""
    file_id: str = ""
    name: str = ""
    extra_json: str = ""

    def __post_init__(self) -> None:
        check_text(
            self,
            url="text",
            data="base64 text (File.from_bytes takes bytes)",
            text="text",
            media_type="text",
            file_id="text",
            name="text",
            extra_json="JSON text",
        )

    @classmethod
    def from_bytes(cls, data: bytes, media_type: str, *, name: str = "") -> File:
        """Return a document sent along with the request, e.g. a PDF.

        Raises ``InputError`` for data of another type, and for empty data.
        """
        file = cls(data=_base64(cls, data), media_type=media_type, name=name)
        check_media(file)
        return file

    def __repr__(self) -> str:
        where = _where(self.url, self.data or self.text, self.file_id, self.media_type)
        return f"File({self.name!r}, {where})" if self.name else f"File({where})"


class Reasoning(msgspec.Struct, frozen=True, tag="reasoning", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Reasoning of the model. ``item_json`` is the provider's own item, signature included, sent back as it came.

    Only the provider named in ``provider`` gets it back; the others cannot read it.
    """

    text: str
    item_json: str = ""
    provider: str = ""

    def __post_init__(self) -> None:
        if not (type(self.text) is type(self.item_json) is type(self.provider) is str):
            check_text(self, text="text", item_json="JSON text", provider="text")


class ToolCall(msgspec.Struct, frozen=True, tag="tool_call", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A tool call by the model. ``arguments`` is the JSON text as received."""

    id: str
    name: str
    arguments: str = "{}"
    extra_json: str = ""

    def __post_init__(self) -> None:
        if not (type(self.id) is type(self.name) is type(self.arguments) is type(self.extra_json) is str):
            check_text(self, id="text", name="text", arguments="JSON text", extra_json="JSON text")


class ProviderItem(
    msgspec.Struct, frozen=True, tag="provider_item", omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """An item that only its provider understands (a server-side tool, a compaction), kept and sent back as it came."""

    provider: str
    json: str

    def __post_init__(self) -> None:
        if not (type(self.provider) is type(self.json) is str):
            check_text(self, provider="text", json="JSON text")

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return what reprs show: the type of the item and nothing else in it, as a declared tool may hold a key."""
        try:
            kind = msgspec.json.decode(self.json, type=_Item).type
        except (ValueError, RecursionError):
            kind = ""
        return [("provider", self.provider), ("type", kind), ("json", "...")]

    def __repr__(self) -> str:
        return shown(self)


class _Item(msgspec.Struct):
    type: str = ""


class ToolResult(
    msgspec.Struct, frozen=True, tag="tool_result", omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """The result of a tool call: text, or parts if there is more than text."""

    call_id: str
    name: str = ""
    output: str | tuple[Text | Image | File | ProviderItem, ...] = ""
    is_error: bool = False
    extra_json: str = ""

    def __post_init__(self) -> None:
        if not (type(self.call_id) is type(self.name) is type(self.extra_json) is str and type(self.is_error) is bool):
            check_text(self, call_id="text", name="text", extra_json="JSON text")
            check_flag(self, "is_error")
        if type(self.output) is not str:
            self._check_output(self.output)

    def _check_output(self, output: object) -> None:
        if isinstance(output, str):
            force_setattr(self, "output", str.__str__(output))
            return
        if not isinstance(output, tuple):
            raise wrong_type(self, "output", "text or a tuple of parts", output)
        for position, part in enumerate(cast("tuple[object, ...]", output)):
            if not isinstance(part, Text | Image | File | ProviderItem):
                raise wrong_type(self, f"output[{position}]", "a Text, Image, File or ProviderItem", part)

    @property
    def text(self) -> str:
        """Text of the output, without pictures and files."""
        if isinstance(self.output, str):
            return self.output
        return "".join(part.text for part in self.output if isinstance(part, Text))


Part: TypeAlias = Text | Image | File | Reasoning | ToolCall | ToolResult | ProviderItem
"""A piece of a message's content."""
PART_TYPES = (Text, Image, File, Reasoning, ToolCall, ToolResult, ProviderItem)


def check_media(part: object) -> None:
    """Raise ``InputError`` for a picture or file that no provider takes, or that they would read differently.

    For parts that a caller or a tool gives. Their constructors do not check this: histories that are saved, and those
    of other APIs, stay readable.
    """
    if not isinstance(part, Image | File):
        return
    kind = type(part).__name__
    names = ["url", "data", "file_id"] if isinstance(part, Image) else ["url", "data", "text", "file_id"]
    inline = split_data_url(part.url)
    given = [name for name in names if getattr(part, name).strip() and not (name == "url" and inline and not inline[1])]
    one = f"give exactly one of {', '.join(names[:-1])} and {names[-1]}"
    if len(given) > 1:
        raise InputError(f"{kind}: has both {' and '.join(given)}; {one}")
    if not given and not part.extra_json:  # where a provider's own kind of source may be
        raise InputError(f"{kind}: is empty; {one}")
    if part.data.lstrip()[:5].lower() == "data:":
        raise InputError(f"{kind}: data is a data URL; give the base64 text behind its comma, and media_type")
    if isinstance(part, Image) and part.data and "/" not in part.media_type:
        raise InputError('Image: data needs a media_type, such as "image/png"')


def _base64(kind: type, data: object) -> str:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InputError(
            f"{kind.__name__}.from_bytes: data must be bytes, not {type(data).__name__}; a file's are "
            f"Path(...).read_bytes(), and base64 text goes into {kind.__name__}(data=...)"
        )
    return base64.b64encode(cast("bytes", data)).decode()


def _where(url: str, data: str, file_id: str, media_type: str) -> str:
    """Describe the location of the content, never the content: a data URL or a signed address is not for logs."""
    if data:
        return f"{media_type or 'data'}, {len(data):,} characters"
    if url:
        return "by url"
    return f"file_id={file_id!r}"
