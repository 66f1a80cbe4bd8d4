"""Messages: immutable; an edited message keeps its original."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CoroutineType
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec.structs import force_setattr, replace

from chatstack.values.errors import InputError
from chatstack.values.fields import check_flag, check_text
from chatstack.values.handles import handle_of
from chatstack.values.parts import (
    PART_TYPES,
    File,
    Image,
    Part,
    ProviderItem,
    Text,
    ToolCall,
    ToolResult,
    check_media,
)
from chatstack.values.surrogates import lone_surrogate_in

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Mark: TypeAlias = Literal["", "summary", "repair"]

_ROLES = frozenset({"system", "user", "assistant", "tool"})
_MARKS = ("", "summary", "repair")
_OTHER_NAMES = {"human": "user", "ai": "assistant", "model": "assistant", "developer": "system", "function": "tool"}


class Annotation(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Record of an edit: the strategy, the message's tokens before, the handles of the tool results whose content was
    removed, and the ids of the calls whose arguments were.

    For a summary: the tokens it replaces, the model that wrote it, the version of the prompt, and its cost.
    """

    strategy: str
    tokens_before: int = 0
    handles: tuple[str, ...] = ()
    call_ids: tuple[str, ...] = ()
    model: str = ""
    prompt_version: str = ""
    input_tokens: int = 0
    output_tokens: int = 0


class _Hidden:
    """Attributes of a message that are no fields: never encoded, compared, hashed or shown, and not copied.

    They are slots, as a dict would be the largest part of a short message. ``_size``, ``_soft`` and ``_digest`` are
    caches of ``sizes.py`` and ``digests.py`` in ``context/histories/``, unset until something is computed. ``_shaped``
    is None on a message that ``shaped`` made, that message on those edited from it, and unset on all others.
    """

    __slots__ = ("_annotation", "_digest", "_original", "_shaped", "_size", "_soft")

    _annotation: Annotation | None
    _original: Message | None
    _shaped: Message | None


class Message(
    _Hidden, msgspec.Struct, frozen=True, cache_hash=True, omit_defaults=True, forbid_unknown_fields=True, weakref=True
):
    """One message of a conversation.

    Made by ``Message.system("...")``, ``.user``, ``.assistant`` and ``.tool``, which refuse pictures and files that no
    provider takes. ``pinned`` messages are never edited away. ``mark`` is set on messages that a layer put in; the
    caller's own have none. Raises ``InputError`` for text that contains a lone surrogate: it could not be sent. A
    provider cleans its model's own answers, so ``Message("assistant", ...)`` does not check; ``Message.assistant``
    does.
    """

    role: Role
    parts: tuple[Part, ...]
    pinned: bool = False
    mark: Mark = ""
    extra_json: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "_original", None)
        force_setattr(self, "_annotation", None)
        role, parts = self.role, self.parts
        if not isinstance(role, str) or role not in _ROLES:  # pyright: ignore[reportUnnecessaryIsInstance]
            meant = _OTHER_NAMES.get(role) if isinstance(role, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
            remedy = f"; write {meant!r}" if meant else ""
            given = type(role).__name__ if type(role).__hash__ is None else repr(role)  # a list may hold text
            raise InputError(f"Message: role={given} is not one of {', '.join(sorted(_ROLES))}{remedy}")
        if not (type(role) is type(self.extra_json) is str and type(self.pinned) is bool and self.mark in _MARKS):
            check_text(self, role="text", mark="text", extra_json="JSON text")
            check_flag(self, "pinned")
            if self.mark not in _MARKS:
                raise InputError(f"Message: mark={self.mark!r} is not one of {', '.join(map(repr, _MARKS))}")
        if type(parts) is not tuple:
            kind = type(parts).__name__
            made = "tool(call_id, output)" if role == "tool" else f"{role}('...')"
            raise InputError(f"Message: parts must be a tuple of parts, not {kind}; try Message.{made}")
        for part in parts:
            if type(part) is Text and part.text.isascii():
                continue  # nearly all of them: nothing more to check
            if type(part) is ToolResult and type(part.output) is str and part.output.isascii():
                continue
            if role != "assistant" or type(part) not in PART_TYPES:
                self._check_parts()
                return

    def _check_parts(self) -> None:
        for position, part in enumerate(self.parts):  # here alone: counting above took a fifth of making a message
            if type(part) not in PART_TYPES:
                raise InputError(f"Message: parts[{position}] is a {type(part).__name__}, not a part{_remedy(part)}")
            if self.role != "assistant":
                _refuse_half_characters(part, f"parts[{position}]")

    @classmethod
    def system(cls, text: str, *, pinned: bool = False) -> Message:
        """Return a message of instructions to the model."""
        return cls("system", (_text("system", text),), pinned)

    @classmethod
    def user(cls, *content: str | Text | Image | File, pinned: bool = False) -> Message:
        """Return a message of the user: text, pictures, files."""
        return cls("user", _parts("user", content), pinned)

    @classmethod
    def assistant(cls, *content: str | Part, pinned: bool = False) -> Message:
        """Return a message of the model: text, reasoning, tool calls."""
        parts = _parts("assistant", content)
        for position, part in enumerate(parts):
            if type(part) is not Text or not part.text.isascii():
                _refuse_half_characters(part, f"parts[{position}]")
        return cls("assistant", parts, pinned)

    @classmethod
    def tool(
        cls,
        call_id: str,
        output: str | tuple[Text | Image | File | ProviderItem, ...],
        *,
        name: str = "",
        is_error: bool = False,
    ) -> Message:
        """Return a message with the result of the tool call of that id."""
        for part in output if isinstance(output, tuple) else ():
            check_media(part)
        return cls("tool", (ToolResult(call_id, name, output, is_error),))

    @property
    def text(self) -> str:
        """All text parts, concatenated."""
        return "".join(part.text for part in self.parts if type(part) is Text)

    @property
    def is_blank(self) -> bool:
        """True if it holds only white space: no picture, file, call or result, and no field of a provider's."""
        for part in self.parts:
            if type(part) is not Text or (part.text and not part.text.isspace()):
                return False
        return not self.extra_json

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Its tool calls, in order."""
        return tuple(part for part in self.parts if type(part) is ToolCall)

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """Its tool results, in order."""
        return tuple(part for part in self.parts if type(part) is ToolResult)

    @property
    def original(self) -> Message:
        """The message from which this one was edited, over any number of edits; itself if it never was. In this process
        only."""
        return self._original or self

    @property
    def annotation(self) -> Annotation | None:
        """Annotation by the edit that made this message; never on a wire, and never compared."""
        found = self._annotation
        if found is None or found.handles or found.call_ids or self._original is None:
            return found
        return _completed(found, self, self._original)

    def edited(self, *, annotation: Annotation | None = None, **changes: object) -> Message:
        """Return the same message with some fields replaced; it keeps its original."""
        parts = changes.get("parts")
        if len(changes) == 1 and _is_plain_result(parts):
            edited = _copied(self)
            force_setattr(edited, "parts", parts)
            force_setattr(edited, "_annotation", None)
        else:
            edited = replace(self, **changes)
        force_setattr(edited, "_original", self._original or self)
        if self._original is not None:
            before = as_shaped(self)
            if before is not self._original:
                force_setattr(edited, "_shaped", before)
        annotation = annotation or self._annotation
        if annotation is not None:
            force_setattr(edited, "_annotation", annotation)
        return edited

    def __reduce__(self) -> tuple[Any, ...]:
        return (Message, (self.role, self.parts, self.pinned, self.mark, self.extra_json))

    def __copy__(self) -> Message:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Message:
        return self


_copied = cast("Callable[[Message], Message]", getattr(msgspec.Struct, "__copy__"))  # noqa: B009 - not in its stubs
"""Copy the fields of a message without checking them again: an edit that clears many results was a quarter checks."""


def _is_plain_result(parts: object) -> bool:
    """Return True if these are parts that need no check: one tool result of ASCII text, as most edits put in."""
    if type(parts) is not tuple:
        return False
    made = cast("tuple[object, ...]", parts)
    part = made[0] if len(made) == 1 else None
    return type(part) is ToolResult and type(part.output) is str and part.output.isascii()


def shaped(message: Message, parts: tuple[Part, ...], annotation: Annotation) -> Message:
    """Return a message with its results bounded once and for all. Layers further in take it for what came; only its
    original tells what was left out."""
    made = message.edited(parts=parts, annotation=annotation)
    force_setattr(made, "_shaped", None)
    return made


def as_shaped(message: Message) -> Message:
    """Return the message as it came to the layers that edit conversations: as it was shaped, else its original."""
    before: Message | bool | None = getattr(message, "_shaped", False)
    if before is False:
        return message.original
    return message if before is None else cast("Message", before)


def was_edited(message: Message) -> bool:
    """Return True if a message was made by editing another, other than by shaping it."""
    return message._original is not None and as_shaped(message) is not message  # pyright: ignore[reportPrivateUsage]


def relink(edited: Mapping[int, Message], messages: Sequence[Message], start: int) -> None:
    """Link edited messages to other originals, which are equal to theirs, so that theirs need not be kept: to those of
    ``messages`` at their positions, counted from ``start``. If the first one has that original, all have."""
    for position, message in edited.items():
        if message.original is messages[start + position].original:
            return
        break
    for position, message in edited.items():
        now = messages[start + position]
        before = now._original  # pyright: ignore[reportPrivateUsage]
        force_setattr(message, "_original", before or now)
        if before is not None and as_shaped(now) is now and as_shaped(message) is not message:
            force_setattr(message, "_shaped", now)


def _completed(annotation: Annotation, message: Message, original: Message) -> Annotation:
    """Return the annotation with all that an edit took out of a message, its parts in their places. Edits leave that to
    whoever asks: the handle of a result takes as long as clearing it."""
    if len(message.parts) != len(original.parts):
        return annotation
    taken = [old for new, old in zip(message.parts, original.parts, strict=True) if new != old]
    handles = tuple(dict.fromkeys([handle_of(part) for part in taken if type(part) is ToolResult]))
    call_ids = tuple([part.id for part in taken if type(part) is ToolCall])
    return replace(annotation, handles=handles, call_ids=call_ids) if handles or call_ids else annotation


def last_edit_of(message: Message) -> Annotation | None:
    """Return the annotation of a message without what has not been worked out of it: it costs nothing."""
    return message._annotation  # pyright: ignore[reportPrivateUsage]


def annotated_by(strategy: str, messages: Iterable[Message]) -> Iterator[int]:
    """Return the positions of the messages that this strategy has edited."""
    for position, message in enumerate(messages):
        annotation = message._annotation  # pyright: ignore[reportPrivateUsage]
        if annotation is not None and annotation.strategy == strategy:
            yield position


def annotated(message: Message, annotation: Annotation) -> Message:
    """Return a copy with that annotation which counts as unedited, e.g. for a message read from a file."""
    copy = replace(message)
    force_setattr(copy, "_annotation", annotation)
    return copy


def _text(role: str, text: object) -> Text:
    if not isinstance(text, str):
        raise InputError(f"Message.{role}: expected text, got {type(text).__name__}{_remedy(text)}")
    return Text(text)


def _parts(role: str, content: tuple[str | Part, ...]) -> tuple[Part, ...]:
    found: list[Part] = []
    for position, item in enumerate(content):
        if isinstance(item, str):
            found.append(Text(item))
        elif type(item) in PART_TYPES:
            check_media(item)
            found.append(item)
        else:
            kind = type(item).__name__
            raise InputError(f"Message.{role}: argument {position} is a {kind}, not text or a part{_remedy(item)}")
    return tuple(found)


def _remedy(found: object) -> str:
    """Return advice for a value that is no part, "; ..."; "" if there is none."""
    if isinstance(found, CoroutineType):
        return "; await it first"
    if isinstance(found, str):
        return "; write Text(text), or Message.user(text)"
    if isinstance(found, list | tuple):
        return "; several are several arguments: Message.user(*parts)"
    return "; from_openai_chat([...]) makes messages of OpenAI's dicts" if isinstance(found, dict) else ""


def _refuse_half_characters(part: Part, where: str) -> None:
    if isinstance(part, Text):
        _refuse_half_character(part.text, f"{where}.text")
    elif isinstance(part, File):
        _refuse_half_character(part.text, f"{where}.text")
        _refuse_half_character(part.name, f"{where}.name")
    elif isinstance(part, ToolResult):
        if isinstance(part.output, str):
            _refuse_half_character(part.output, f"{where}.output")
            return
        for position, each in enumerate(part.output):
            _refuse_half_characters(each, f"{where}.output[{position}]")


def _refuse_half_character(text: str, where: str) -> None:
    position = lone_surrogate_in(text)
    if position is not None:
        raise InputError(
            f"Message: {where} has half a character (a lone surrogate) at position {position}, which cannot be sent; "
            "text.encode('utf-8', 'replace').decode() gives text that can"
        )
