"""Rows that log a request beside its response: the conversation is the request's, with the answer behind it.

``{"request": {...}, "response": {...}}``, with whatever a proxy writes beside. Either is the body itself, an object
with the body in ``body`` or ``json``, or the JSON text of one of these. A response without an answer (an error, a
stream in pieces) leaves the request alone: its answer is in the next request of the conversation.
"""

from __future__ import annotations

import json
from typing import cast

from chatstack.providers.extras import WireObject

_BODIES = ("body", "json")
_ITEMS = ("messages", "input")
_TOLD = {"usage": "usage", "id": "answer_id", "service_tier": "answer_tier"}
"""Fields of an answer, and their names in the request that it is put behind."""


def unwrapped(row: WireObject) -> WireObject | None:
    """Return the body of the logged request, with answer, its ``usage``, its id (``answer_id``) and its service tier
    (``answer_tier``); None for an object that is no such row."""
    request = body_in(row.get("request"), _ITEMS)
    if request is None:
        return None
    name = next(name for name in _ITEMS if name in request)
    answer = _answer(row.get("response"))
    if answer:
        given = request[name]
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        if isinstance(items, list):
            told = {key: (body_in(row.get("response"), (key,)) or {}).get(key) for key in _TOLD}
            listed = [*cast("list[object]", items), *answer]
            request = {**request, name: listed, **{called: told[key] for key, called in _TOLD.items()}}
    return request if "id" in request or "id" not in row else {**request, "id": row["id"]}


def asks_for_embeddings(row: WireObject) -> bool:
    """Return True for the body of a request for embeddings, or a row that logs one: its ``input`` is no chat."""
    body = row if "input" in row else body_in(row.get("request"), ("input",))
    if body is None or "messages" in body:
        return False
    given = body["input"]
    items = cast("list[object]", given) if isinstance(given, list) else []
    return "encoding_format" in body or not all(isinstance(item, dict) for item in items[:1])


def body_in(logged: object, names: tuple[str, ...]) -> WireObject | None:
    """Return the object under one of these names: as it was logged, or inside a proxy's envelope."""
    for _ in range(3):  # an envelope in JSON text, its body, and that in JSON text
        if isinstance(logged, str):
            try:
                logged = json.loads(logged)  # not by msgspec, which refuses lone surrogates
            except (ValueError, RecursionError):
                return None
        if not isinstance(logged, dict):
            return None
        fields = cast("WireObject", logged)
        if any(name in fields for name in names):
            return fields
        logged = next((fields[name] for name in _BODIES if name in fields), None)
    return None


def _answer(logged: object) -> list[object]:
    """Return the answer as the next request has it: a chat message, an Anthropic message, output items of Responses."""
    body = body_in(logged, ("choices", "content", "output"))
    if body is None:
        return []
    choices, output = body.get("choices"), body.get("output")
    if isinstance(choices, list) and choices:
        first = cast("list[object]", choices)[0]
        message = cast("WireObject", first).get("message") if isinstance(first, dict) else None
        return [cast("object", message)] if isinstance(message, dict) else []
    if isinstance(output, list):
        return cast("list[object]", output)
    if body.get("role") == "assistant" and body.get("content"):
        return [{"role": "assistant", "content": body["content"]}]
    return []
