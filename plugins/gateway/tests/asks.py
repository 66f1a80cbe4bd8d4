"""Requests of the three wires, long enough for layers to edit."""

from __future__ import annotations

import json
from typing import Any

from chatstack import Message, ToolCall
from chatstack.providers.wires import write_messages

LONG = "0123456789 " * 300


def history(turns: int, *, last: str = "and now?") -> list[Message]:
    """A task, then calls of a tool with long results, then a question."""
    found = [Message.user("please look")]
    for turn in range(turns):
        found += [
            Message.assistant(f"looking {turn}", ToolCall(f"t{turn}", "look", json.dumps({"page": turn}))),
            Message.tool(f"t{turn}", f"page {turn}: {LONG}", name="look"),
        ]
    return [*found, Message.assistant("looked"), Message.user(last)]


def body(form: Any, messages: list[Message], **fields: object) -> bytes:
    items = write_messages(form, messages)
    name = "input" if form == "responses" else "messages"
    return json.dumps({"model": "m", "max_tokens": 99, name: items, "odd": [1.0], **fields}, indent=1).encode()
