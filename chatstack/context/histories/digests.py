"""Digests, by which a history is recognised in another process, or after it was forgotten here.

There are two kinds. The *exact* digest covers a message as it is on the wire. The *soft* digest covers what callers
keep of a message when they send it again: white space folded and arguments as JSON values, without ids, reasoning and
provider fields. Hash chains of soft digests identify the beginnings of a history, in a memory with a store; without one
the chains are of hashes. Exact digests identify the messages that a summary covers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import cast, overload

import msgspec
from msgspec.structs import force_setattr

from chatstack.values.handles import written
from chatstack.values.messages import Message
from chatstack.values.parts import ProviderItem, Reasoning, Text, ToolCall, ToolResult

_SIZE = 16
_HASH_SIZE = 8
_LONGEST_ARGUMENTS = 100_000
"""Maximum length, in characters, of arguments that are parsed; longer ones are compared as text."""
_pack_sorted = msgspec.msgpack.Encoder(order="deterministic").encode
_read_json = msgspec.json.Decoder().decode
_blake2b = hashlib.blake2b
_LEFT_OUT_OF_ANSWERS = (Reasoning, ProviderItem)
_BLANKS = "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f"
"""The ASCII characters at which ``str.split`` splits, beside the space."""
_SHORT = 200
"""Length, in characters, up to which splitting a text is as fast as looking for each of the blanks."""
_DIGITS = re.compile(r"\d+")


def digest(message: Message) -> bytes:
    """Return a digest of the message on the wire, and of its pin; computed once per object, and cached on it.

    The pin is included so that decisions about a message are not replayed once it is pinned.
    """
    known = getattr(message, "_digest", None)
    if known is not None:
        return cast("bytes", known)
    found = _blake2b(
        written((message.role, message.parts, message.extra_json, message.pinned)), digest_size=_SIZE
    ).digest()
    force_setattr(message, "_digest", found)
    return found


def soft_digest(message: Message) -> bytes:
    """Return a digest of what a caller keeps of a message; computed once per object, and cached on it.

    Callers may send answers back with stripped white space, arguments encoded anew, and no reasoning or ids.
    """
    known = getattr(message, "_soft", None)
    if known is not None:
        return cast("bytes", known)
    found = _blake2b(written(_kept_of(message)), digest_size=_SIZE).digest()
    force_setattr(message, "_soft", found)
    return found


def soft_hash(message: Message) -> int:
    """Return a hash of what a caller keeps of a message, valid in this process only: a tenth of the work of a digest,
    for what stays here."""
    return hash(_kept_of(message))


def _kept_of(message: Message) -> tuple[object, ...]:
    """Return what a caller keeps of a message."""
    parts, text = message.parts, ""
    if len(parts) == 1:  # most of them
        only = parts[0]
        if type(only) is ToolResult:
            return message.role, message.pinned, "", (("result", only.output, only.is_error),)
        if type(only) is Text:
            text, parts = only.text, ()
    others: list[object] = []
    for part in parts:
        if type(part) is Text:
            text += part.text
        elif type(part) is ToolCall:
            others.append(("call", part.name, _values_of(part.arguments)))
        elif type(part) is ToolResult:
            others.append(("result", part.output, part.is_error))
        elif message.role != "assistant" or type(part) not in _LEFT_OUT_OF_ANSWERS:
            others.append(part)
    if message.role == "assistant" and text:
        text = _folded(text)
    return message.role, message.pinned, text, tuple(others)


def _values_of(arguments: str) -> bytes | str:
    """Return the arguments of a call as bytes that depend on their values only; the text itself if it is no JSON."""
    if len(arguments) > _LONGEST_ARGUMENTS:
        return arguments
    try:
        return _pack_sorted(_read_json(arguments))
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return arguments


def _folded(text: str) -> str:
    """Return the text with its white space folded: ``" ".join(text.split())``, several times as fast for long ones."""
    if len(text) < _SHORT or not text.isascii():
        return " ".join(text.split())
    for blank in _BLANKS:
        text = text.replace(blank, " ")
    while "  " in text:
        text = text.replace("  ", " ")
    return text.strip(" ")


def head_digest(systems: tuple[Message, ...], instructions: str | None) -> bytes:
    """Return a digest of a conversation's head: its system messages and instructions. White space and numbers are
    folded, so that a date or a time there does not make a new conversation on every call."""
    texts = [message.text for message in systems]
    if instructions:
        texts.append(instructions)
    folded = [" ".join(_DIGITS.sub("0", text).split()) for text in texts]
    return _blake2b(written(folded), digest_size=_SIZE).digest()


def first_link(key: bytes) -> bytes:
    """Return the start of a hash chain; with a ``key``, only its holders can compute the digests."""
    return _blake2b(b"", digest_size=_SIZE, key=key).digest() if key else b""


def next_link(link: bytes, message: Message, key: bytes) -> bytes:
    """Return the next link of a hash chain: the prefix hash of all messages up to this one, of what callers keep.

    Without a key there is no store, and no other process to find it: then it is a hash of Python's, for a third of what
    the digests of a link take, and half of its bytes.
    """
    return next_links(link, (message,), key)[0]


def next_links(link: bytes, messages: Sequence[Message], key: bytes) -> list[bytes]:
    """Return the next links of a hash chain, one for each message.

    In one loop: the first edit of a history makes all of them, which took a fifth of it by a call for each.
    """
    if key:
        return [
            link := _blake2b(link + soft_digest(message), digest_size=_SIZE, key=key).digest() for message in messages
        ]
    found: list[bytes] = []
    for message in messages:
        link = hash((link, hash(_kept_of(message)))).to_bytes(_HASH_SIZE, "little", signed=True)
        found.append(link)
    return found


class Links(Sequence[bytes]):
    """The links of a hash chain, in one piece of memory: objects of their own would take four times as much."""

    __slots__ = ("_digests", "_size", "first", "last", "length")

    def __init__(self) -> None:
        self._digests = bytearray()
        self._size = _SIZE
        self.first = self.last = b""
        self.length = 0

    def extend(self, links: Sequence[bytes]) -> None:
        """Add the next links."""
        if not links:
            return
        if not self.length:
            self.first, self._size = links[0], len(links[0])
        self.last = links[-1]
        self._digests += b"".join(links)
        self.length += len(links)

    def cut(self, length: int) -> Links:
        """Return a chain of the first links, at most that many."""
        made = Links()
        if min(length, self.length) > 0:
            made.first, made._size, made.length = self.first, self._size, min(length, self.length)
            made._digests = self._digests[: made.length * self._size]
            made.last = made[-1]
        return made

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        if at < 0:
            at += self.length
        found = bytes(self._digests[at * self._size : (at + 1) * self._size]) if at >= 0 else b""
        if not found:
            raise IndexError("no such link")
        return found


def subject_digest(messages: tuple[Message, ...]) -> bytes:
    """Return a digest of exactly these messages, in this order."""
    return _blake2b(b"".join(map(digest, messages)), digest_size=_SIZE).digest()
