"""Digests: how a history is recognised in another process, or when it was forgotten here.

Two kinds. The *exact* one stands for a message as it is on the wire. The *soft* one stands for what callers keep of a
message when they send it again: white space folded and arguments as JSON values, without ids, reasoning and provider
fields. Chains of soft digests tell whether a history holds an answer; exact ones tell what a summary is about.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import cast

import msgspec
from msgspec.structs import force_setattr

from chatstack.values.messages import Message
from chatstack.values.parts import ProviderItem, Reasoning, Text, ToolCall, ToolResult

_SIZE = 16
_LONGEST_ARGUMENTS = 100_000
"""Characters; longer arguments are compared as text."""
_pack = msgspec.msgpack.Encoder().encode
_pack_sorted = msgspec.msgpack.Encoder(order="deterministic").encode
_read_json = msgspec.json.Decoder().decode
_blake2b = hashlib.blake2b
_LEFT_OUT_OF_ANSWERS = (Reasoning, ProviderItem)
_BLANKS = "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f"
"""What ``str.split`` parts at in ASCII, beside the space."""
_DIGITS = re.compile(r"\d+")


def written(value: object) -> bytes:
    """A value as bytes, the same ones in every process; also where text in it contains a lone surrogate."""
    try:
        return _pack(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode()


def digest(message: Message) -> bytes:
    """A digest of what the message is on the wire, and of its pin; worked out once per object, and kept on it.

    A message that is pinned later is another one: what was decided about it before must not be replayed.
    """
    known = message.__dict__.get("_digest")
    if known is not None:
        return cast("bytes", known)
    found = _blake2b(
        written((message.role, message.parts, message.extra_json, message.pinned)), digest_size=_SIZE
    ).digest()
    force_setattr(message, "_digest", found)
    return found


def soft_digest(message: Message) -> bytes:
    """A digest of what a caller keeps of a message; worked out once per object, and kept on it.

    Answers come back with their white space stripped, their arguments encoded anew, their reasoning and ids left out.
    """
    known = message.__dict__.get("_soft")
    if known is not None:
        return cast("bytes", known)
    parts, text = message.parts, ""
    if len(parts) == 1 and type(parts[0]) is Text:  # most of them
        text, parts = parts[0].text, ()
    texts: list[str] = []
    others: list[object] = []
    for part in parts:
        kind = type(part)
        if kind is Text:
            texts.append(cast("Text", part).text)
        elif kind is ToolCall:
            call = cast("ToolCall", part)
            others.append(("call", call.name, _values_of(call.arguments)))
        elif kind is ToolResult:
            result = cast("ToolResult", part)
            others.append(("result", result.output, result.is_error))
        elif message.role != "assistant" or kind not in _LEFT_OUT_OF_ANSWERS:
            others.append(part)
    text = text or "".join(texts)
    if message.role == "assistant":
        text = _folded(text)
    found = _blake2b(written((message.role, message.pinned, text, others)), digest_size=_SIZE).digest()
    force_setattr(message, "_soft", found)
    return found


def _values_of(arguments: str) -> bytes | str:
    """The arguments of a call as bytes that depend on their values alone; the text itself if it is no JSON."""
    if len(arguments) > _LONGEST_ARGUMENTS:
        return arguments
    try:
        return _pack_sorted(_read_json(arguments))
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return arguments


def _folded(text: str) -> str:
    """Return the text with its white space folded: ``" ".join(text.split())``, several times as fast."""
    if not text.isascii():
        return " ".join(text.split())
    for blank in _BLANKS:
        text = text.replace(blank, " ")
    while "  " in text:
        text = text.replace("  ", " ")
    return text.strip(" ")


def head_digest(systems: tuple[Message, ...], instructions: str | None) -> bytes:
    """A digest of what stands above a conversation: its system messages and instructions. Folds white space and
    numbers, so that a date or a time there does not make another conversation of it on every call."""
    texts = [message.text for message in systems]
    if instructions:
        texts.append(instructions)
    folded = [" ".join(_DIGITS.sub("0", text).split()) for text in texts]
    return _blake2b(written(folded), digest_size=_SIZE).digest()


def first_link(key: bytes) -> bytes:
    """The beginning of a hash chain; a ``key`` makes digests that say nothing to whoever has not got it."""
    return _blake2b(b"", digest_size=_SIZE, key=key).digest()


def next_link(link: bytes, message: Message, key: bytes) -> bytes:
    """The link that stands for all messages up to this one, compared softly, and for nothing else."""
    return _blake2b(link + soft_digest(message), digest_size=_SIZE, key=key).digest()


def subject_digest(messages: tuple[Message, ...]) -> bytes:
    """A digest of exactly these messages, in this order."""
    return _blake2b(b"".join(map(digest, messages)), digest_size=_SIZE).digest()
