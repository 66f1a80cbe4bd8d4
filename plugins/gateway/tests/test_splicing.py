"""Edits in a request's own text: what no layer touched keeps its bytes, and the rest means what the layers made."""

from __future__ import annotations

from typing import Any

import pytest
from answers import ITEMS
from recorded import DATA, FORMS, SPELLINGS, rows

from chatstack import ChatRequest, Message, ToolResult, to_openai_responses
from chatstack.providers.wires import read_request, write_request
from chatstack_gateway.positions import Body, UneditableError, elements, scan
from chatstack_gateway.splicing import spliced

recorded = pytest.mark.skipif(not DATA.exists(), reason="the recorded provider exchanges are not on this machine")
SUMMARY = Message("assistant", Message.assistant("what was said").parts, mark="summary")


def opened(form: Any, body: bytes) -> tuple[Body, ChatRequest]:
    found = scan(body.decode())
    return found, read_request(form, found.value)


def cleared(messages: tuple[Message, ...]) -> tuple[Message, ...] | None:
    """The oldest tool result cleared."""
    for position, message in enumerate(messages):
        if message.results and message.results[0].text:
            parts = tuple(
                ToolResult(part.call_id, part.name, "[cleared \u2026]", part.is_error, part.extra_json)
                if isinstance(part, ToolResult)
                else part
                for part in message.parts
            )
            return (*messages[:position], message.edited(parts=parts), *messages[position + 1 :])
    return None


def dropped(messages: tuple[Message, ...]) -> tuple[Message, ...] | None:
    """The second message dropped, with all that belongs to it."""
    start = 2 if messages[0].role == "system" else 1
    end = start + 1
    while end < len(messages) and messages[end].role == "tool":
        end += 1
    return (*messages[:start], *messages[end:]) if end < len(messages) - 1 else None


def summed_up(messages: tuple[Message, ...]) -> tuple[Message, ...] | None:
    """A summary in the place of the second message."""
    left = dropped(messages)
    at = 2 if messages[0].role == "system" else 1
    return None if left is None else (*left[:at], SUMMARY, *left[at:])


def bodies(form: str) -> list[tuple[str, Any]]:
    if form == "responses":
        found = []
        for row in rows("openai-chat"):
            items = to_openai_responses(read_request("chat", row["request"]).messages)
            found.append((row["id"], {"model": "m", "input": items, "store": False}))
        return found
    return [(row["id"], row["request"]) for row in rows(next(kind for kind, each in FORMS.items() if each == form))]


@recorded
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("edit", [cleared, dropped, summed_up])
@pytest.mark.parametrize("form", ["chat", "messages", "responses"])
def test_an_edit_leaves_all_else_as_it_was(form: Any, edit: Any, spelling: str) -> None:
    edits, refused = 0, []
    for name, value in bodies(form):
        body, came = opened(form, SPELLINGS[spelling](value))
        messages = edit(came.messages) if came.messages else None
        if messages is None:
            continue
        wanted = came.but(messages=messages)
        try:
            text = spliced(form, body, came, wanted)
        except UneditableError as error:
            refused.append((name, str(error)))
            continue
        edits += 1
        after = scan(text)
        assert write_request(form, read_request(form, after.value)) == write_request(form, wanted), name
        untouched = {key: body.text[spot.start : spot.end] for key, spot in body.fields.items() if key != ITEMS[form]}
        for key, spot in after.fields.items():
            if key != ITEMS[form]:
                assert text[spot.start : spot.end] == untouched.pop(key), name
        assert not untouched
        before = elements(body.text, body.fields[ITEMS[form]])
        now = elements(text, after.fields[ITEMS[form]])
        same = {body.text[each.start : each.end] for each in before}
        changed = [text[each.start : each.end] for each in now if text[each.start : each.end] not in same]
        assert len(changed) <= 2, name
        for one, other in zip(before, now, strict=False):
            if body.text[one.start : one.end] != text[other.start : other.end]:
                break
            assert one.start == other.start, f"{name}: the prefix has moved"
    assert not refused
    assert edits >= 9
