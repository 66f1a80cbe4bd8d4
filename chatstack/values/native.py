"""Native edits: what a provider is asked to edit on its side, and what it says that it has edited."""

from __future__ import annotations

from typing import TypeAlias, cast

import msgspec

from chatstack.values.errors import InputError
from chatstack.values.fields import wrong_type
from chatstack.values.messages import Message
from chatstack.values.parts import ProviderItem


class NativeClearing(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the provider to clear old tool results from ``trigger_tokens`` of input on, all but the newest
    ``keep_results``.

    Results of ``exclude_tools`` stay. ``clear_tool_inputs`` clears the arguments of the calls, too, or of those of some
    tools. An edit that would save less than ``clear_at_least`` tokens is not made. Set by ``ToolResultClearer``.
    """

    trigger_tokens: int
    keep_results: int = 3
    exclude_tools: tuple[str, ...] = ()
    clear_tool_inputs: bool | tuple[str, ...] = False
    clear_at_least: int = 0

    def __post_init__(self) -> None:
        _check_counts(self, trigger_tokens=1, keep_results=0, clear_at_least=0)


class NativeCompaction(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the provider to compact the conversation from ``trigger_tokens`` of input on. Set by
    ``Summarizer``."""

    trigger_tokens: int

    def __post_init__(self) -> None:
        _check_counts(self, trigger_tokens=1)


NativeEdit: TypeAlias = NativeClearing | NativeCompaction
"""An edit that a layer leaves to the provider."""


class AppliedEdit(msgspec.Struct, frozen=True, omit_defaults=True):
    """An edit that the provider reports with its answer: ``type`` in its spelling, and how much was cleared of the
    input."""

    type: str
    cleared_tokens: int = 0
    cleared_results: int = 0
    cleared_thinking_turns: int = 0


def compaction_in(message: Message) -> ProviderItem | None:
    """Return the compaction that a message holds: the provider's own summary, which stands for everything before it.
    None if there is none, or it says that it failed."""
    for part in message.parts:
        if type(part) is ProviderItem and _is_compaction(part):
            return part
    return None


def server_of(message: Message) -> str:
    """Return the one server that can read the items of an answer; "" if it names none."""
    if not message.extra_json:
        return ""
    try:
        return _extra_fields(message.extra_json).of_responses.server
    except (msgspec.DecodeError, RecursionError):
        return ""


class _OfResponses(msgspec.Struct):
    server: str = ""


class _Extra(msgspec.Struct):
    """The fields of an ``extra_json`` that tell the server; those of other wires may have such names, too."""

    of_responses: _OfResponses = msgspec.field(default_factory=_OfResponses, name="openai-responses")


_extra_fields = msgspec.json.Decoder(_Extra).decode


def _is_compaction(item: ProviderItem) -> bool:
    if '"compaction"' not in item.json:
        return False
    try:
        fields = msgspec.json.decode(item.json)
    except (msgspec.DecodeError, RecursionError):
        return False
    if not isinstance(fields, dict) or cast("dict[str, object]", fields).get("type") != "compaction":
        return False
    # Anthropic: null content is a failed compaction, and ignored. OpenAI's has encrypted content alone.
    return any(cast("dict[str, object]", fields).get(name) for name in ("content", "encrypted_content"))


def _check_counts(value: msgspec.Struct, **least: int) -> None:
    for name, lowest in least.items():
        found: object = getattr(value, name)
        if type(found) is not int:
            raise wrong_type(value, name, "a whole number", found)
        if found < lowest:
            raise InputError(f"{type(value).__name__}: {name}={found} must be at least {lowest}")
