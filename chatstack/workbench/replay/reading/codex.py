"""Rollout files of Codex: JSONL, Responses items in order, with events beside.

A context begins with the session and anew after each compaction, with what replaced the history; turns that were rolled
back are in the context before alone. A session that was forked from another begins with a copy of it: its own calls are
those from the first turn on whose id is younger than the session's. Usage comes as events (``token_count``), for the
answer before; repeated events are told by an unchanged total.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import msgspec

from chatstack.errors import InputError
from chatstack.providers.converters import from_openai_responses
from chatstack.providers.extras import WireObject, object_or_empty, text_in
from chatstack.providers.openai.responses_wire import item_type
from chatstack.workbench.replay.reading.contexts import (
    MISSING,
    Context,
    Kept,
    Notes,
    mended,
    model_of,
    named,
    note,
    object_in,
    values_of,
)
from chatstack.workbench.replay.reading.usages import RecordedCall, recorded_call

_TYPES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_OTHERS = frozenset({"world_state", "token_usage_record"})
"""Types of lines that hold nothing the model was shown."""
_BARE = frozenset(
    {
        *("message", "reasoning", "local_shell_call", "web_search_call"),
        *("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
    }
)
"""Items that versions of 2025 wrote as they are."""
_INPUT_ROLES = ("user", "system", "developer")
_NEVER_SENT = ("ghost_snapshot", "compaction_trigger", "other")
_TIME_ORDERED = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_CALLS = ("function_call", "custom_tool_call")
_POINTER_BYTES = 8


class _Part(msgspec.Struct, frozen=True):
    """A context that has ended: its items, and its calls."""

    items: tuple[bytes, ...]
    calls: tuple[RecordedCall | None, ...]
    id: str
    model: str
    instructions: str
    line: int


class Codex:
    """Reads the lines of rollout files of Codex."""

    def __init__(self, kept: Kept, notes: Notes) -> None:
        self._kept, self._notes = kept, notes
        self._begun = False
        self._done: list[_Part] = []
        self._begin("", 1)

    def _begin(self, called: str, line: int) -> None:
        self._id, self._line, self._number = called, line, 0
        self._first = len(self._done)
        self._fork = self._copying = self._saw_turns = self._saw_copied_turns = False
        self._model = self._instructions = ""
        self._total: object = None
        self._turns: list[int] = []
        self._restart([])

    def _restart(self, items: Sequence[tuple[bytes, bool]]) -> None:
        """Begin a context with these items, whose answers are no calls of it."""
        self._kept.count(_POINTER_BYTES * len(items))  # a file with a million compactions ends here
        self._items: list[bytes] = []
        self._said: list[bool] = []
        self._calls: list[RecordedCall | None] = []
        """The call of each answer, a run of items that the model wrote; None for a copied one."""
        self._new = 0
        for text, is_said in items:
            self._append(text, is_said, None)

    def take(self, row: WireObject, line: int) -> bool:
        """Take a line; False for one of another form. Raises ``InputError`` for one that cannot be read."""
        kind = row.get("type")
        if "record_type" in row and self._begun:
            return True  # a state of versions of 2025
        if isinstance(kind, str) and "payload" in row:
            if kind not in _TYPES and not self._begun:
                return False
            self._begun = True
            self._take(kind, row, line)
            return True
        if self._begun and isinstance(kind, str) and kind in _BARE and "timestamp" not in row:
            self._add(row)  # versions of 2025 wrote the items as they are
            return True
        if not self._begun and kind is None and {"id", "timestamp", "instructions"} <= row.keys():
            self._begun = True
            self._meta(row, line)
            return True
        return False

    def contexts(self) -> Iterator[Context | tuple[int, str]]:
        """Yield the contexts: a session's first, and one after each compaction or rollback."""
        self._end()
        for part in self._done:
            body: WireObject = {"input": _whole(part.items)}
            if part.instructions:
                body["instructions"] = part.instructions
            size = sum(map(len, part.items))
            yield Context(body, "responses", part.id, part.model, part.line, part.calls, size)

    def _take(self, kind: str, row: WireObject, line: int) -> None:
        if kind not in _TYPES:
            if kind not in _OTHERS:
                note(self._notes, f"lines of Codex of type {named(kind)}")
            return
        payload = object_in(row, "payload", "")
        if kind == "session_meta":
            self._meta(payload, line)
        elif kind == "response_item":
            self._add(payload)
        elif kind == "compacted":
            self._compacted(payload, line)
        else:
            self._note_turn(payload)
            if kind == "turn_context":
                self._model = text_in(payload, "model") or self._model
            else:
                self._event(payload, line)

    def _meta(self, payload: WireObject, line: int) -> None:
        called = text_in(payload, "id")
        if self._id and called == self._id:
            return
        if self._id and self._fork and not self._copying and not self._saw_turns:
            self._copying = True  # the session that it was forked from follows
            return
        if self._id and self._copying:
            return
        if self._id:
            self._end()
        self._begin(called, line)
        source = payload.get("source")
        self._fork = bool(payload.get("forked_from_id") or payload.get("parent_thread_id")) or isinstance(source, dict)
        base = payload.get("base_instructions")
        given = cast("WireObject", base).get("text") if isinstance(base, dict) else payload.get("instructions")
        self._instructions = given if isinstance(given, str) else ""

    def _note_turn(self, payload: Mapping[str, object]) -> None:
        """Note a turn's id: with the first that is younger than the session, a fork's own part begins."""
        turn = text_in(payload, "turn_id")
        if turn and _TIME_ORDERED.fullmatch(turn) and _TIME_ORDERED.fullmatch(self._id):
            if not self._copying:
                self._saw_turns = True
            elif turn > self._id:
                self._forget_copied()
                self._copying, self._saw_turns = False, True
            else:
                self._saw_copied_turns = True

    def _forget_copied(self) -> None:
        """Make no calls of what was copied from another session."""
        self._calls = [None] * len(self._calls)
        self._new = 0
        del self._done[self._first :]

    def _add(self, payload: WireObject) -> None:
        """Add an item of the history."""
        item = _readable(payload)
        if item.get("type") in _NEVER_SENT:
            return
        item = cast("WireObject", mended(item, lambda given: from_openai_responses([given])))
        self._append(self._kept.json_of(item), is_output(item), RecordedCall(model=self._model))

    def _append(self, item: bytes, is_said: bool, call: RecordedCall | None) -> None:
        """Append an item to the history. The first one that the model wrote behind any other begins an answer."""
        if is_said and not (self._said and self._said[-1]):
            self._calls.append(call)
            self._new += call is not None
        self._items.append(item)
        self._said.append(is_said)

    def _event(self, payload: WireObject, line: int) -> None:
        kind = payload.get("type")
        if kind == "token_count":
            self._counted(payload.get("info"))
        elif kind == "user_message":
            self._turns.append(max(0, len(self._items) - 1))
        elif kind == "thread_rolled_back":
            self._rolled_back(payload.get("num_turns"), line)

    def _counted(self, info: object) -> None:
        """Give the answer before its usage."""
        fields = object_or_empty(info)
        total = fields.get("total_token_usage")
        call = recorded_call(fields.get("last_token_usage"), model=self._model)
        if call is None or total == self._total:
            return
        self._total = total
        last = self._calls[-1] if self._calls else None
        if last is not None and last.usage is None:
            self._calls[-1] = call
        elif not self._copying:
            note(self._notes, "reports of usage by Codex for calls that it did not write down, as compactions")

    def _compacted(self, payload: WireObject, line: int) -> None:
        """Begin a context with what took the place of the history."""
        replacement = payload.get("replacement_history")
        if isinstance(replacement, list):
            objects: list[object] = [each for each in cast("list[object]", replacement) if isinstance(each, dict)]
            listed = list(map(_readable, objects))
            sent: object = [item for item in listed if item.get("type") not in _NEVER_SENT]
            sent = mended(sent, lambda given: from_openai_responses(cast("list[object]", given)))
            given = cast("list[WireObject]", sent)
            items = [(self._kept.json_of(item), is_output(item)) for item in given]
        else:
            summary = {"type": "message", "role": "user", "content": text_in(payload, "message")}
            items = [(text, False) for text in self._items if _is_input_message(text)]
            items.append((self._kept.json_of(summary), False))
        self._end()
        self._line, self._turns = line, []
        self._restart(items)

    def _rolled_back(self, turns: object, line: int) -> None:
        """Begin a context without the last turns."""
        if not isinstance(turns, int) or isinstance(turns, bool) or not 0 < turns <= len(self._turns):
            note(self._notes, "rollbacks by Codex of turns that are not in the file")
            return
        self._end()
        start = self._turns[-turns]
        self._line, self._turns = line, self._turns[:-turns]
        self._restart(list(zip(self._items[:start], self._said[:start], strict=True)))

    def _end(self) -> None:
        """Keep the context, if it has calls of its own."""
        if self._copying and self._saw_copied_turns:
            self._forget_copied()  # a fork that made no calls
        elif self._copying and self._new:
            note(self._notes, "forks of a Codex session whose own part cannot be told: all was taken for it")
        if not self._new:
            return
        self._number += 1
        called = f"{self._id or 'codex'}/{self._number}"
        calls = tuple(self._calls)
        model = model_of(calls) or self._model
        self._done.append(_Part(tuple(self._items), calls, called, model, self._instructions, self._line))


def _whole(texts: Sequence[bytes]) -> list[object]:
    """Return the items, with a result for every call that was interrupted: the next request would be refused without.

    A call at the end has been answered by nobody yet.
    """
    items = cast("list[WireObject]", values_of(texts))
    answered = {text_in(item, "call_id") for item in items if not is_output(item)}
    found: list[object] = []
    missing: list[WireObject] = []
    for item in items:
        if not is_output(item):
            found += missing
            missing = []
        found.append(item)
        kind, call = item.get("type"), text_in(item, "call_id")
        if kind in _CALLS and call not in answered:
            missing.append({"type": f"{kind}_output", "call_id": call, "output": MISSING})
    return found


def _is_input_message(text: bytes) -> bool:
    (item,) = cast("list[WireObject]", values_of([text]))
    return item_type(item) == "message" and item.get("role") in _INPUT_ROLES


def is_output(item: Mapping[str, object]) -> bool:
    """Return True for an item that a model wrote, False for one that it was given."""
    kind = item_type(item)
    if kind == "message":
        return item.get("role", "assistant") not in _INPUT_ROLES
    return not (isinstance(kind, str) and kind.endswith(("_output", "_response")))


def _readable(given: object) -> WireObject:
    """Return an item as the API has it: some of Codex's are older, or hold a result in an object of its own."""
    item = cast("WireObject", given)
    output, action = item.get("output"), item.get("action")
    if isinstance(output, dict):
        item = {**item, "output": cast("WireObject", output).get("content") or ""}
    if item.get("type") != "local_shell_call":
        return item
    if not isinstance(action, dict):
        raise InputError("action: expected an object")
    call = text_in(item, "call_id") or text_in(item, "id")
    return {"type": "function_call", "call_id": call, "name": "local_shell", "arguments": json.dumps(action)}
