"""Parameters of MCP tools, by names that every API takes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_NOT_TAKEN = re.compile(r"[^A-Za-z0-9_.-]")
_LONGEST_NAME = 64


def renamed(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, str]]:
    """Return the schema with names of parameters that Anthropic takes, as any other (``$filter``, ``tags[]``) has it
    refuse every request; and the server's own names by the new ones, where these differ."""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    taken = {each: _NOT_TAKEN.sub("_", each)[:_LONGEST_NAME] or "_" for each in properties}
    used = {each for each, name in taken.items() if name == each}
    own: dict[str, str] = {}
    for each, name in taken.items():
        if name != each:
            numbered = (f"{name[:60]}_{number}" for number in range(1, len(taken) + 1))
            taken[each] = next(free for free in (name, *numbered) if free not in used)
            used.add(taken[each])
            own[taken[each]] = each
    if not own:
        return schema, own
    required: Sequence[str] = schema.get("required") or ()
    called = {taken[each]: told for each, told in properties.items()}
    return {**schema, "properties": called, "required": [taken.get(each, each) for each in required]}, own
