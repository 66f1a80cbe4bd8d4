"""The request that goes down the stack, with its options and tool declarations."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec
from msgspec.structs import force_setattr, replace

from chatstack.values.errors import InputError
from chatstack.values.fields import check_text, shown, wrong_type
from chatstack.values.messages import Message
from chatstack.values.native import NativeClearing, NativeCompaction, NativeEdit
from chatstack.values.parts import ProviderItem

_NONE: Mapping[str, object] = MappingProxyType({})


class ToolDeclaration(msgspec.Struct, frozen=True, tag="tool", cache_hash=True, omit_defaults=True):
    """A tool's declaration for the model. ``parameters`` is a JSON schema, as text; "" declares none."""

    name: str
    description: str = ""
    parameters: str = ""
    strict: bool | None = None
    extra_json: str = ""

    def __post_init__(self) -> None:
        check_text(self, name="text", description="text", parameters="a JSON schema as text", extra_json="JSON text")


class OutputSchema(msgspec.Struct, frozen=True, cache_hash=True, omit_defaults=True):
    """The required shape of the answer: ``schema`` is a JSON schema, as text."""

    name: str
    schema: str
    strict: bool | None = None
    description: str = ""

    def __post_init__(self) -> None:
        check_text(self, name="text", schema="a JSON schema as text", description="text")


DeclaredTool: TypeAlias = ToolDeclaration | ProviderItem
"""A tool of the caller's, or one that an API declares by a type of its own (a ``ProviderItem``, sent as it is). Such a
tool runs at the provider, or at the caller, as Anthropic's ``bash`` and OpenAI's ``custom`` tools do."""


def declared_names(tools: Collection[DeclaredTool]) -> frozenset[str]:
    """Return the names by which calls of these tools come."""
    return frozenset(name for each in tools for name in _names_of(each))


def _names_of(tool: DeclaredTool) -> Iterable[str]:
    if isinstance(tool, ToolDeclaration):
        return (tool.name,)
    try:
        return msgspec.json.decode(tool.json, type=_Item).names
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):  # the provider's to refuse
        return ()


class _Item(msgspec.Struct):
    """The names in an item: its own, those within a ``custom`` tool of chat completions, and those in a namespace."""

    name: str = ""
    custom: _Item | None = None
    tools: list[_Item] = []

    @property
    def names(self) -> Iterator[str]:
        within = self.tools or ([self.custom] if self.custom else [])
        for each in within:
            yield from each.names
        if self.name and not within:
            yield self.name


_WANTED: tuple[tuple[str, tuple[type, ...], str], ...] = (
    ("model", (str, NoneType), "text"),
    ("instructions", (str,), "text"),
    ("tools", (tuple,), "a tuple"),
    ("tool_choice", (str, NoneType), "text"),
    ("parallel_tool_calls", (bool, NoneType), "True or False"),
    ("max_tokens", (int, NoneType), "a whole number"),
    ("temperature", (float, int, NoneType), "a number"),
    ("top_p", (float, int, NoneType), "a number"),
    ("stop", (tuple,), "a tuple"),
    ("seed", (int, NoneType), "a whole number"),
    ("reasoning_effort", (str, NoneType), "text"),
    ("output_schema", (OutputSchema, NoneType), "an OutputSchema"),
    ("native_edits", (tuple,), "a tuple"),
    ("extra", (MappingProxyType, Mapping), "a mapping"),
)
_values_of = attrgetter(*(name for name, _, _ in _WANTED))
_KNOWN_TO_FIT: set[tuple[type, ...]] = set()
_MOST_KNOWN = 1_000


if TYPE_CHECKING:
    _NamesItsFields = msgspec.StructMeta
else:

    class _NamesItsFields(msgspec.StructMeta):
        """Metaclass of the options: an unknown one raises ``InputError`` with the nearest name."""

        def __call__(self, *args: object, **fields: object) -> object:
            for name in fields:
                if name not in self.__struct_fields__:
                    raise _unknown_field(self, name)
            return msgspec.StructMeta.__call__(self, *args, **fields)


def _unknown_field(kind: type[msgspec.Struct], name: str) -> InputError:
    close = difflib.get_close_matches(name, kind.__struct_fields__, n=1)
    remedy = f"did you mean {close[0]!r}?" if close else "what only the provider knows belongs in extra={...}"
    return InputError(f"{kind.__name__}: unknown option {name!r}; {remedy}")


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True, metaclass=_NamesItsFields):
    """Options of a request. None leaves a choice to the provider.

    ``tool_choice`` is ``"auto"``, ``"none"``, ``"required"`` or the name of a tool. ``max_tokens`` bounds the answer,
    reasoning included. ``reasoning_effort`` is ``"none"``, ``"minimal"``, ``"low"``, ``"medium"``, ``"high"``,
    ``"xhigh"`` or ``"max"``; where an API lacks that level, its nearest is sent. Any other text goes out as it is.
    ``native_edits`` are left to the provider, which ignores those that its API has not; layers set them. ``extra`` goes
    into the body of the request as it is, in the provider's spelling, and wins over what chatstack would have written
    there. Raises ``InputError`` for a field of the wrong type.
    Options cannot be hashed, because ``extra`` holds any JSON; nor can requests, which hold options.
    """

    model: str | None = None
    instructions: str = ""
    tools: tuple[DeclaredTool, ...] = ()
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    reasoning_effort: str | None = None
    output_schema: OutputSchema | None = None
    native_edits: tuple[NativeEdit, ...] = ()
    extra: Mapping[str, object] = _NONE

    def __post_init__(self) -> None:
        values: tuple[object, ...] = _values_of(self)
        kinds_given = tuple(map(type, values))
        if kinds_given not in _KNOWN_TO_FIT:  # options are made on every call, mostly of the same types
            for (name, kinds, wanted), value in zip(_WANTED, values, strict=True):
                if type(value) not in kinds and (not isinstance(value, kinds) or isinstance(value, bool)):
                    raise wrong_type(self, name, wanted, value)
            if len(_KNOWN_TO_FIT) < _MOST_KNOWN:
                _KNOWN_TO_FIT.add(kinds_given)
        for position, tool in enumerate(self.tools):
            if type(tool) is not ToolDeclaration and type(tool) is not ProviderItem:
                raise _no_declaration(position, tool)
        for position, text in enumerate(self.stop):
            if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise wrong_type(self, f"stop[{position}]", "text", text)
        for position, edit in enumerate(self.native_edits):
            if type(edit) is not NativeClearing and type(edit) is not NativeCompaction:
                raise wrong_type(self, f"native_edits[{position}]", "a NativeClearing or NativeCompaction", edit)
        if self.max_tokens is not None and self.max_tokens < 0:
            raise InputError(f"ChatOptions: max_tokens={self.max_tokens} must not be negative")
        if type(self.extra) is not MappingProxyType:
            force_setattr(self, "extra", MappingProxyType(_own(dict(self.extra))))

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return what reprs show: all fields, but of ``extra`` only the names, as keys travel in it."""
        seen = {"extra": dict.fromkeys(self.extra, "...")}
        return [(name, seen.get(name, getattr(self, name))) for name in self.__struct_fields__]

    def __repr__(self) -> str:
        return shown(self)

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return (_restored, ({**fields, "extra": dict(self.extra)},))

    def but(self, **changes: object) -> ChatOptions:
        """Return the same options with some of them replaced."""
        for name in changes:
            if name not in self.__struct_fields__:
                raise _unknown_field(ChatOptions, name)
        return replace(self, **changes)


def _own(extra: dict[str, object]) -> dict[str, object]:
    """Return the fields with lists and dicts of their own, as the caller may go on to change theirs."""
    try:
        return cast("dict[str, object]", _copied(extra))
    except RecursionError:  # refused where it is sent
        return extra


def _copied(value: object) -> object:
    if isinstance(value, dict):
        return {name: _copied(each) for name, each in cast("dict[str, object]", value).items()}
    return [_copied(each) for each in cast("list[object]", value)] if isinstance(value, list) else value


def refuse_blank(messages: Sequence[Message]) -> None:
    """Raise ``InputError``, naming position and role, if all messages hold nothing but white space: there is nothing to
    ask a model, and some APIs refuse it."""
    if not messages:
        raise InputError("messages: empty; a request needs at least one message")
    for message in messages:
        if not message.is_blank:
            return
    last = f"messages[{len(messages) - 1}]: a blank {messages[-1].role} message"
    raise InputError(f"{last}, and nothing before it; a request needs something to send")


def _no_declaration(position: int, tool: object) -> InputError:
    told = f"ChatOptions: tools[{position}] is a {type(tool).__name__}, not a ToolDeclaration"
    if isinstance(tool, Mapping):
        return InputError(told)
    return InputError(f"{told}; pass functions to FunctionInvoker, or their tool(...).declaration() here")


def _restored(fields: dict[str, Any]) -> ChatOptions:
    return ChatOptions(**fields)


NO_OPTIONS = ChatOptions()
"""Options that leave everything to the provider."""


class ChatRequest(msgspec.Struct, frozen=True):
    """One request on its way down the stack. ``stream`` is the caller's wish to see updates; only providers read it."""

    messages: tuple[Message, ...]
    options: ChatOptions = NO_OPTIONS
    conversation_id: str | None = None
    stream: bool = False

    def __post_init__(self) -> None:
        if type(self.messages) is not tuple:
            raise wrong_type(self, "messages", "a tuple of messages", cast("object", self.messages))
        if type(self.options) is not ChatOptions:
            raise wrong_type(self, "options", "ChatOptions", self.options)
        if type(self.conversation_id) is not NoneType and type(self.conversation_id) is not str:
            check_text(self, conversation_id="text")

    def but(self, **changes: object) -> ChatRequest:
        """Return the same request with some fields replaced: ``request.but(messages=shorter)``."""
        return replace(self, **changes)


def edited_by_provider(options: ChatOptions) -> bool:
    """Return True if the provider is asked to edit the conversation on its side: by a layer, or by the caller."""
    extra = options.extra
    return bool(options.native_edits or extra.get("context_management") or extra.get("truncation") == "auto")
