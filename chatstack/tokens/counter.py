"""Token counters: estimates by characters, VideoSDK's token table, and exact counts by a tokenizer."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import operator
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from chatstack.client.options import PositiveFloat, check_arguments
from chatstack.errors import WiringError
from chatstack.tokens.loading import is_on_a_loop, off_the_loop
from chatstack.values.data_urls import split_data_url
from chatstack.values.messages import Message
from chatstack.values.parts import File, Image, Part, ProviderItem, Reasoning, Text, ToolCall, ToolResult
from chatstack.values.requests import ChatOptions, ToolDeclaration

_IMAGE_TOKENS = 1_000
"""Tokens of an image: between the providers' prices for one of 1,024 pixels, 765 at OpenAI and 1,400 at Anthropic."""
_PAGE_TOKENS = 2_000
_PAGE_BYTES = 75_000
"""Tokens of a PDF page, its text and image, by Anthropic's guide; the bytes of a page are a guess."""


CALL_TOKENS = 5
"""Overhead of a tool call, and of a result, in tokens."""
SEALED = re.compile(r"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/=_-]{256,}")
"""A picture, a sound or encrypted text within a provider's item. Anchored at the start of a run, or every character in
it would be tried."""
SEALED_MOST = 2_000
"""Maximum cost of one of them in tokens, whatever its bytes."""
_SEALED_READ = 6 * SEALED_MOST
"""Characters of it that are counted, as six are a token at the most."""
_PIECE = 40_000
"""Characters that the tokenizer takes at once: it refuses more than 200,000 tokens, and four bytes may be four."""


class TokenCounter(ABC):
    """Counts tokens. A counter of your own needs ``count_text``; the rest adds up the parts of a message.

    Counts are whole numbers, never negative, and never count the bytes of a picture or a file as text: a counter that
    returns anything else fails the call with a ``WiringError`` that names it. ``source`` says whether they are
    ``counted`` or ``estimated``. A ``version`` that is raised makes decisions which were kept under its counts void.
    """

    source: ClassVar[str] = "estimated"
    message_tokens: ClassVar[int] = 4
    is_cheap: ClassVar[bool] = False
    """True if counting a message again costs no more than a cache look-up."""

    async def prepare(self) -> None:  # noqa: B027 - most have nothing to load
        """Load tables off the event loop; layers await it before they count."""

    @abstractmethod
    def count_text(self, text: str) -> int:
        """Tokens of a text."""

    def count_part(self, part: Part) -> int:
        """Tokens of one part of a message."""
        if isinstance(part, Text):
            return self.count_text(part.text)
        if isinstance(part, ToolCall):
            return self.count_text(part.name) + self.count_text(part.arguments) + CALL_TOKENS
        if isinstance(part, ToolResult):
            return self.count_text(part.name) + self._count_output(part) + CALL_TOKENS
        if isinstance(part, Reasoning):
            return self.count_text(part.item_json or part.text)
        if isinstance(part, Image):
            return _IMAGE_TOKENS
        if isinstance(part, File):
            return self._count_file(part)
        return self._count_item(part.json)

    def count_message(self, message: Message) -> int:
        """Tokens of a message, its frame included."""
        total, extra = self.message_tokens, message.extra_json
        for part in message.parts:
            size = self.count_part(part)
            total += size if type(size) is int and size >= 0 else whole_count(self, "count_part", size)
            extra += getattr(part, "extra_json", "")
        return total + self._count_item(extra) if extra else total

    def count_options(self, options: ChatOptions) -> int:
        """Tokens of the options: instructions, tool schemas, the shape of the answer."""
        total = self.count_text(options.instructions) + self.message_tokens if options.instructions else 0
        for tool in options.tools:
            if isinstance(tool, ToolDeclaration):
                total += self.count_text(tool.name + tool.description + tool.parameters) + self.message_tokens
            else:
                total += self._count_item(tool.json)
        if options.output_schema is not None:
            total += self.count_text(options.output_schema.schema)
        return total

    def _count_output(self, result: ToolResult) -> int:
        if isinstance(result.output, str):
            return self.count_text(result.output)
        return sum(map(self.count_part, result.output))

    def _count_item(self, item: str) -> int:
        """Tokens of JSON that only its provider reads: its text, and a bounded price for each run of encoded data."""
        runs = SEALED.findall(item)
        if not runs:
            return self.count_text(item)
        sealed = sum(min(self.count_text(run[:_SEALED_READ]), SEALED_MOST) for run in runs)
        return sealed + self.count_text(SEALED.sub("", item))

    def _count_file(self, file: File) -> int:
        if file.text:
            return self.count_text(file.text)
        media_type, data = split_data_url(file.url) or (file.media_type, file.data)
        size_bytes = len(data) * 3 // 4
        if media_type.startswith("text/"):
            return size_bytes // 4
        return max(1, size_bytes // _PAGE_BYTES) * _PAGE_TOKENS


def whole_count(counter: TokenCounter, method: str, size: object) -> int:
    """Return a counter's result. Raises ``WiringError``, naming the counter, if it is no number of tokens: a negative
    one would hide an overflow, and NaN compares as if everything fitted."""
    if type(size) is int and size >= 0:
        return size
    try:
        found = -1 if isinstance(size, bool) else operator.index(size)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    except TypeError:
        found = -1
    if found >= 0:
        return found
    kind, shown = type(counter).__name__, repr(size) if isinstance(size, int | float) else type(size).__name__
    raise WiringError(
        f"{kind}: {method} gave {shown[:40]}; a count of tokens is a whole number, 0 or more", parameter="counter"
    )


def _utf8_length(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


class CharCounter(TokenCounter):
    """Characters divided by ``chars_per_token``; outside ASCII, bytes of UTF-8, or Chinese would count four times
    too low."""

    is_cheap: ClassVar[bool] = True
    version: ClassVar[int] = 2

    def __init__(self, chars_per_token: PositiveFloat = 4) -> None:
        check_arguments(CharCounter, chars_per_token=chars_per_token)
        self.chars_per_token = chars_per_token

    def count_text(self, text: str) -> int:
        return int((len(text) if text.isascii() else _utf8_length(text)) / self.chars_per_token)

    def count_message(self, message: Message) -> int:
        if type(self) is not CharCounter:  # a subclass may count parts in its own way
            return super().count_message(message)
        total, extra, per_token = self.message_tokens, message.extra_json, self.chars_per_token
        for part in message.parts:
            if type(part) is Text:
                texts: tuple[str, ...] = (part.text,)
                extra += part.extra_json
            elif type(part) is ToolCall:
                texts, total = (part.name, part.arguments), total + CALL_TOKENS
                extra += part.extra_json
            elif type(part) is ToolResult and type(part.output) is str:
                texts, total = (part.name, part.output), total + CALL_TOKENS
                extra += part.extra_json
            else:
                total += self.count_part(part)
                extra += getattr(part, "extra_json", "")
                continue
            for text in texts:
                total += int((len(text) if text.isascii() else _utf8_length(text)) / per_token)
        return total + self._count_item(extra) if extra else total

    def __repr__(self) -> str:
        return f"CharCounter(chars_per_token={self.chars_per_token:g})"


@functools.lru_cache(maxsize=64)
def char_counter(chars_per_token: float) -> CharCounter:
    """Return the shared counter for that ratio. Layers without a counter of their own share it, so that a message is
    counted once, however many layers and builds of a stack ask."""
    return CharCounter(chars_per_token)


class TableCounter(TokenCounter):
    """The token table of VideoSDK's context window: text ``len // 4``, an image 300, a call and a result 5 more than
    the fourths of their name and content, and 4 for every item.

    An item is a message's text and pictures together, each call, and each result. Source: VideoSDK's context window,
    "Token Estimation".
    """

    is_cheap: ClassVar[bool] = True

    def count_text(self, text: str) -> int:
        return len(text) // 4

    def count_part(self, part: Part) -> int:
        if isinstance(part, Image):
            return 300
        if isinstance(part, Reasoning | ProviderItem):
            return 0
        return super().count_part(part)

    def count_message(self, message: Message) -> int:
        tools = sum(isinstance(part, ToolCall | ToolResult) for part in message.parts)
        has_content = any(isinstance(part, Text | Image | File) for part in message.parts)
        items = tools + (1 if has_content or not tools else 0)
        return 4 * items + sum(map(self.count_part, message.parts))

    def __repr__(self) -> str:
        return "TableCounter()"


class TokenizerCounter(TokenCounter):
    """Exact counts of text by the tokenizer of OpenAI's models (o200k); near enough for most others.

    Needs the extra ``tokenizer``. Its tables take half a second to load: made on a running event loop, it leaves that
    to ``prepare``, or to the first count.
    """

    source: ClassVar[str] = "counted"
    message_tokens: ClassVar[int] = 3
    version: ClassVar[int] = 2

    def __init__(self) -> None:
        if importlib.util.find_spec("bpe_openai") is None:
            raise WiringError("TokenizerCounter: needs the package bpe-openai; pip install 'chatstack-core[tokenizer]'")
        self._encode = _encode if is_on_a_loop() else _o200k()

    async def prepare(self) -> None:
        if self._encode is _encode:
            is_made = _made_o200k.cache_info().currsize > 0
            self._encode = _o200k() if is_made else await off_the_loop(_o200k)

    def count_text(self, text: str) -> int:
        # Each cut adds one token at the most.
        return sum(len(self._encode(text[at : at + _PIECE])) for at in range(0, len(text), _PIECE))

    def __reduce__(self) -> tuple[type[TokenizerCounter], tuple[()]]:
        return TokenizerCounter, ()  # the tokenizer itself cannot be pickled

    def __repr__(self) -> str:
        return "TokenizerCounter()"


_making = threading.Lock()


def _o200k() -> Callable[[str], Sequence[int]]:
    """Return the tokenizer, made once: it takes ten megabytes."""
    with _making:
        return _made_o200k()


@functools.cache
def _made_o200k() -> Callable[[str], Sequence[int]]:
    package = importlib.import_module("bpe_openai")
    encode: Callable[[str], Sequence[int]] = package.get_encoding("o200k_base").encode_ordinary
    return encode


def _encode(text: str) -> Sequence[int]:
    return _o200k()(text)
