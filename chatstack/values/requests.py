"""What is asked of a client: options, tool declarations, and the request that goes down the stack."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import force_setattr, replace

from chatstack.errors import InputError
from chatstack.values.messages import Message
from chatstack.values.parts import ProviderItem

_NONE: Mapping[str, object] = MappingProxyType({})


class ToolDeclaration(msgspec.Struct, frozen=True, tag="tool", cache_hash=True, omit_defaults=True):
    """A tool as the model sees it. ``parameters`` is a JSON schema, as text; "" declares none."""

    name: str
    description: str = ""
    parameters: str = ""
    strict: bool | None = None
    extra_json: str = ""


class OutputSchema(msgspec.Struct, frozen=True, cache_hash=True, omit_defaults=True):
    """The shape that the answer must have: ``schema`` is a JSON schema, as text."""

    name: str
    schema: str
    strict: bool | None = None
    description: str = ""


DeclaredTool: TypeAlias = ToolDeclaration | ProviderItem
"""A tool of the caller's, or one that runs at the provider (``ProviderItem``: its declaration, as it goes out)."""


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to answer. What is None is left to the provider.

    ``tool_choice`` is ``"auto"``, ``"none"``, ``"required"`` or the name of a tool. ``max_tokens`` bounds the
    answer, reasoning included. ``extra`` goes into the body of the request as it is, in the provider's spelling,
    and wins over what chatstack would have written there.
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
    extra: Mapping[str, object] = _NONE

    def __post_init__(self) -> None:
        for name in ("tools", "stop"):
            if type(getattr(self, name)) is not tuple:
                raise InputError(f"ChatOptions: {name} must be a tuple, not {type(getattr(self, name)).__name__}")
        if self.max_tokens is not None and self.max_tokens < 0:
            raise InputError(f"ChatOptions: max_tokens={self.max_tokens} must not be negative")
        if type(self.extra) is not MappingProxyType:
            force_setattr(self, "extra", MappingProxyType(dict(self.extra)))

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return (_restored, ({**fields, "extra": dict(self.extra)},))

    def but(self, **changes: object) -> ChatOptions:
        """The same options with some of them replaced."""
        return replace(self, **changes)


def _restored(fields: dict[str, Any]) -> ChatOptions:
    return ChatOptions(**fields)


class ChatRequest(msgspec.Struct, frozen=True):
    """One request on its way down the stack. ``stream`` says what the caller wants to see; only providers read it."""

    messages: tuple[Message, ...]
    options: ChatOptions = ChatOptions()
    conversation_id: str | None = None
    stream: bool = False

    def but(self, **changes: object) -> ChatRequest:
        """The same request with some fields replaced: ``request.but(messages=shorter)``."""
        return replace(self, **changes)
