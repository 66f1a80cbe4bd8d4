"""Native edits of Anthropic's: context editing and compaction, both ways. Pure functions; the SDK is not imported.

Context editing clears on the server, anew for each request: the caller's history stays whole. A compaction is a block
in the answer; the API ignores everything before the newest one that it is sent back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

from chatstack.providers.extras import WireObject, field_of, objects_in
from chatstack.values.native import AppliedEdit, NativeClearing, NativeCompaction, NativeEdit
from chatstack.values.usage import LARGEST

CLEAR_TOOL_USES: Final = "clear_tool_uses_20250919"
CLEAR_THINKING: Final = "clear_thinking_20251015"
COMPACT: Final = "compact_20260112"

_EDITING_BETA: Final = "context-management-2025-06-27"
_COMPACTION_BETA: Final = "compact-2026-01-12"
_ON_DEMAND_BETA: Final = "compact-2026-09-04"
"""The beta of compactions that a request of their own has made: these are signed."""
_FIRST_COMPACTION: Final = 50_000
"""Lowest trigger of a compaction, in tokens, by Anthropic's guide."""

HOST: Final = "api.anthropic.com"
"""The server that is known to edit; what others do is for their owners to say, by ``native="on"``."""


def edit_type(edit: NativeEdit) -> str:
    """Return the API's name of an edit."""
    return CLEAR_TOOL_USES if isinstance(edit, NativeClearing) else COMPACT


def problem_with(edit: NativeEdit) -> str:
    """Return what the API would refuse of an edit, in words; "" if it takes it."""
    if isinstance(edit, NativeCompaction) and edit.trigger_tokens < _FIRST_COMPACTION:
        return f"Anthropic compacts from {_FIRST_COMPACTION:,} tokens on, not from {edit.trigger_tokens:,}"
    return ""


def is_capable(card: Mapping[str, object], edit: NativeEdit) -> bool:
    """Return True if a model's card (``capabilities`` of the models endpoint) says that it has this edit."""
    found: object = card
    for name in ("capabilities", "context_management", edit_type(edit), "supported"):
        found = field_of(found, name)
    return found is True


def ask_for_edits(body: WireObject, edits: Sequence[NativeEdit]) -> None:
    """Put edits into the body of a request, and the betas that they need, as those of compactions in its messages.

    What the caller has written there stays: an edit of the same type counts in the place of ours, and one that clears
    thinking goes first, as the API demands.
    """
    betas = _betas_of_messages(body)
    given = body.get("context_management")
    if edits and (given is None or isinstance(given, Mapping)):
        config = cast("WireObject", given or {})
        asked = objects_in(config.get("edits"))
        known = {each.get("type") for each in asked}
        asked += [_to_wire(each) for each in edits if edit_type(each) not in known]
        asked.sort(key=lambda each: each.get("type") != CLEAR_THINKING)
        body["context_management"] = {**config, "edits": asked}
        betas += [_COMPACTION_BETA if isinstance(each, NativeCompaction) else _EDITING_BETA for each in edits]
    named = body.get("betas") or ()
    if betas and isinstance(named, str | list | tuple):  # anything else is refused where the header is made
        names = [named] if isinstance(named, str) else cast("Sequence[str]", named)
        body["betas"] = [*names, *(each for each in dict.fromkeys(betas) if each not in names)]


def drop_clearing_of_thinking(body: WireObject) -> None:
    """Take the edit that clears thinking out of a body without thinking, where the API refuses it."""
    edits = objects_in(field_of(body.get("context_management"), "edits"))
    left = [each for each in edits if each.get("type") != CLEAR_THINKING]
    if len(left) < len(edits):
        config = cast("WireObject", body.pop("context_management"))
        if left:
            body["context_management"] = {**config, "edits": left}


def applied_edits(told: object) -> tuple[AppliedEdit, ...]:
    """Return the edits that an answer reports (its ``context_management``)."""
    return tuple(
        AppliedEdit(
            str(edit.get("type") or ""),
            _count(edit, "cleared_input_tokens"),
            _count(edit, "cleared_tool_uses"),
            _count(edit, "cleared_thinking_turns"),
        )
        for edit in objects_in(field_of(told, "applied_edits"))
    )


def _to_wire(edit: NativeEdit) -> WireObject:
    wire: WireObject = {"type": edit_type(edit), "trigger": {"type": "input_tokens", "value": edit.trigger_tokens}}
    if isinstance(edit, NativeClearing):
        wire["keep"] = {"type": "tool_uses", "value": edit.keep_results}
        if edit.clear_at_least:
            wire["clear_at_least"] = {"type": "input_tokens", "value": edit.clear_at_least}
        if edit.exclude_tools:
            wire["exclude_tools"] = list(edit.exclude_tools)
        inputs = edit.clear_tool_inputs
        if inputs:
            wire["clear_tool_inputs"] = inputs if isinstance(inputs, bool) else list(inputs)
    return wire


def _betas_of_messages(body: Mapping[str, object]) -> list[str]:
    """Return the betas without which the API does not know the compactions in these messages."""
    found: dict[str, None] = {}
    for message in objects_in(body.get("messages")):
        for block in objects_in(message.get("content")):
            if block.get("type") == "compaction":
                found[_ON_DEMAND_BETA if block.get("signature") else _COMPACTION_BETA] = None
    return list(found)


def _count(edit: Mapping[str, object], name: str) -> int:
    value = edit.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST else 0
