"""Kinds of items of OpenAI's Responses API: what the model does not wait for, and what other servers can read."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from chatstack.providers.extras import WireObject

CUSTOM_CALL = "custom_tool_call"
CALLS = ("function_call", CUSTOM_CALL)
RESULTS = ("function_call_output", "custom_tool_call_output")
_PORTABLE = ("message", *CALLS, *RESULTS)
"""Types of items that mean the same at every server."""
_PREFIXES: Mapping[object, str] = {"message": "msg", "function_call": "fc", CUSTOM_CALL: "ctc"}
"""Beginnings of the ids of items that OpenAI takes; it does not need any."""


def is_async(item: Mapping[str, object]) -> bool:
    """Return True for a call whose result the model does not wait for."""
    is_call = item.get("type") in CALLS and isinstance(item.get("call_id"), str)
    return is_call and item.get("async") is True


def is_late(result: Mapping[str, object], of_async: Collection[str]) -> bool:
    """Return True for the result of an async call, or of none: one that names its tool instead."""
    call_id = result.get("call_id")
    return call_id in of_async if isinstance(call_id, str) else call_id is None and bool(result.get("name"))


def portable(items: list[WireObject]) -> list[WireObject]:
    """Return what another server can read of the items of an answer, or of those behind it: texts, calls and results,
    without the ids of items."""
    kept = [item for item in items if item.get("type", "message") in _PORTABLE]
    return [{name: value for name, value in item.items() if name != "id"} for item in kept]


def with_known_ids(items: list[WireObject]) -> list[WireObject]:
    """Return the items without ids that OpenAI would refuse: other servers give their own to items of its types."""
    return [
        item if _is_known_id(item) else {name: value for name, value in item.items() if name != "id"} for item in items
    ]


def _is_known_id(item: WireObject) -> bool:
    id, prefix = item.get("id", ""), _PREFIXES.get(item.get("type", "message"), "")
    return not id or not prefix or (isinstance(id, str) and id.startswith(prefix) and len(id) <= 64)
