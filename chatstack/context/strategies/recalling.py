"""Recalling: tool results that the model has just had given back, which are cleared last, or it would ask again."""

from __future__ import annotations

from chatstack.context.edits.context import Context
from chatstack.context.edits.handles import recall_name

_MOST = 2
"""Maximum number of messages with recalled results that are kept longer than others: the newest ones."""


def recalled_lately(context: Context) -> frozenset[int]:
    """Return the positions of messages with results of the recall tool: the newest ones of the running turn."""
    recall = recall_name(context.request.options.tools)
    found: list[int] = []
    if not recall:
        return frozenset()
    asked: dict[str, str] = {}
    for at in range((context.latest_user or 0), len(context.messages)):
        message = context.messages[at]
        if message.role == "assistant":
            asked = {call.id: call.name for call in message.calls}
        elif any((each.name or asked.get(each.call_id)) == recall for each in message.results):
            found.append(at)
    return frozenset(found[-_MOST:])
