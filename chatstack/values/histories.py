"""Histories as JSON text, to be kept and read again: versioned, complete, and strict."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, cast

import msgspec

from chatstack.values.errors import InputError
from chatstack.values.interning import interned_json
from chatstack.values.messages import Annotation, Message, annotated
from chatstack.values.mistakes import checked_messages

_VERSION = 1
_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")


class _Header(msgspec.Struct):
    version: object = None


class _History(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    version: int
    messages: tuple[Message, ...]
    annotations: dict[int, Annotation] = {}
    """Annotations by the position of their message: they are no field of it."""


class _Split(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The same, its messages not read yet."""

    version: Literal[1]
    messages: tuple[msgspec.Raw, ...]
    annotations: dict[int, Annotation] = {}


_split = msgspec.json.Decoder(_Split).decode
_read = msgspec.json.Decoder(Message).decode


def to_json(messages: Sequence[Message]) -> str:
    """Return a history as JSON text that ``from_json`` reads, with pins, marks, annotations and provider items::

        Path("talk.json").write_text(to_json(history))

    An edited message is written in its edited form: its original is known in this process only. Raises ``InputError``
    for anything but messages, for one of a subclass with fields of its own, and for text with a lone surrogate in it,
    naming the place.
    """
    given = checked_messages(messages)
    for position, each in enumerate(given):
        if each.__struct_fields__ != Message.__struct_fields__:
            kind = type(each).__name__
            raise InputError(f"messages[{position}]: {kind} has fields of its own, which from_json would not know")
    notes = {position: note for position, each in enumerate(given) if (note := each.annotation) is not None}
    try:
        return msgspec.json.encode(_History(_VERSION, given, notes)).decode()
    except UnicodeEncodeError:
        place = next(position for position, each in enumerate(given) if not _is_whole(each))
    raise InputError(f"messages[{place}]: contains a lone surrogate, which JSON has no form for")


def from_json(text: str | bytes) -> list[Message]:
    """Return the history that ``to_json`` wrote, its messages equal to what they were. Messages that were read before
    are the same objects, where anybody still holds them.

    Raises ``InputError`` that names the place for everything unknown: another version, another kind of part, another
    field, a value of another type. Histories of other libraries are read by ``from_openai_chat``,
    ``from_openai_responses`` and ``from_anthropic``.
    """
    if not isinstance(text, str | bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"from_json: expected JSON text, got {type(text).__name__}")
    text = str.__str__(text) if isinstance(text, str) else text  # a subclass is none that the decoder knows
    messages, notes = _in_pieces(text) or _in_one_piece(text)
    for position, note in notes.items():
        if not 0 <= position < len(messages):
            raise InputError(f"from_json: annotations: there is no message {position}")
        messages[position] = annotated(messages[position], note)
    return messages


def _in_pieces(text: str | bytes) -> tuple[list[Message], dict[int, Annotation]] | None:
    """Return messages and annotations; None if anything is wrong."""
    try:
        split = _split(text)
        return interned_json(split.messages, _read), split.annotations
    except (msgspec.DecodeError, UnicodeError, RecursionError, InputError):
        return None


def _in_one_piece(text: str | bytes) -> tuple[list[Message], dict[int, Annotation]]:
    """Return messages and annotations. Raises ``InputError``, naming the place, which is not known of a piece."""
    wrong = _not_utf8(text)
    if wrong is not None:  # told here, as an exception of the decoder's would hold the text
        raise InputError(f"from_json: not JSON text: no UTF-8 at position {wrong:,}, or half a character")
    try:
        _check_version(msgspec.json.decode(text, type=_Header).version)
        whole = msgspec.json.decode(text, type=_History)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"from_json: {_told(error)}") from error
    return list(whole.messages), whole.annotations


def _not_utf8(text: str | bytes) -> int | None:
    try:
        _ = text.encode() if isinstance(text, str) else text.decode()
    except (UnicodeEncodeError, UnicodeDecodeError) as error:
        return error.start
    return None


def _check_version(version: object) -> None:
    if version is None:
        raise InputError(
            "from_json: no version, so to_json did not write it; from_openai_chat, from_openai_responses and "
            "from_anthropic read messages of these APIs"
        )
    if version != _VERSION or isinstance(version, bool):
        shown = version if isinstance(version, int) else f"of type {type(version).__name__}"
        raise InputError(f"from_json: version {shown} is not known here; this chatstack reads version {_VERSION}")


def _told(error: Exception) -> str:
    """Return the text of a decoder's error, the place first."""
    if not isinstance(error, msgspec.ValidationError):
        return "not JSON text" if not isinstance(error, msgspec.DecodeError) else str(error)
    text = str(error)
    place = _PLACE.search(text)
    return f"{place[1]}: {text[: place.start()]}" if place is not None and place[1] else text


def _is_whole(message: Message) -> bool:
    try:
        msgspec.json.encode(cast("object", message))
    except UnicodeEncodeError:
        return False
    return True
