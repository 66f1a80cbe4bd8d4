"""Session files of Claude Code: JSONL, a line for each message, or for each block of an answer.

A line names the one before it (``parentUuid``), so going back makes a branch. The lines of one answer share the id of
the message; a result belongs to the call that it names, wherever it hangs in the tree. A sub-agent (``isSidechain``) is
a conversation of its own, in the same file or another; what follows a compaction begins a new one, with the summary
and the messages that were kept. Answers that no model gave (``isApiErrorMessage``, ``<synthetic>``) are left out.

What ``claude -p --output-format stream-json`` writes is read, too: a line with a ``session_id`` that names no other one
follows the line before it of the same session, and of the same sub-agent (``parent_tool_use_id``).

The files hold neither the system prompt nor tool schemas, nor what hooks and reminders added: a request was larger.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import msgspec

from chatstack.providers.converters import from_anthropic
from chatstack.providers.extras import WireObject, object_or_empty, text_in
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
from chatstack.workbench.replay.reading.trees import Path, Turn, TurnTree
from chatstack.workbench.replay.reading.usages import RecordedCall, recorded_call

_SAID = ("user", "assistant")
_OTHERS = frozenset(
    {
        *("summary", "system", "attachment", "progress", "file-history-snapshot", "queue-operation", "turn_end"),
        *("ai-title", "custom-title", "last-prompt", "permission-mode", "mode", "tag", "pr-link"),
        *("agent-name", "agent-color", "agent-setting"),
    }
)
"""Types of lines that hold nothing the model was shown, queued messages among the attachments apart."""
_STREAMED = frozenset({"result", "stream_event"})
"""Types of such lines in a stream, whose other lines name the session."""
_FOREIGN = ("payload", "role", "messages", "input", "request")
_STREAM_SIDE = "parent_tool_use_id"
_NO_MODEL = "<synthetic>"


class ClaudeCode:
    """Reads the lines of session files of Claude Code."""

    def __init__(self, kept: Kept, notes: Notes) -> None:
        self._kept, self._notes = kept, notes
        self._tree = TurnTree()
        self._places: dict[str, int] = {}
        """The turn that each line belongs to, or that a line without one follows, by the line's ``uuid``."""
        self._sides: dict[str, str] = {}
        self._latest: dict[tuple[str, str], str] = {}
        """The latest line of a stream, by session and sub-agent."""
        self._answers: dict[tuple[str, str], int] = {}
        self._calls: dict[tuple[str, str], int] = {}
        self._names: dict[int, tuple[str, str]] = {}
        self._pieces: set[tuple[int, int]] = set()
        self._segments: dict[str, tuple[str, str]] = {}

    def take(self, row: WireObject, line: int) -> bool:
        """Take a line; False for one of another form. Raises ``InputError`` for a message that cannot be read."""
        kind = row.get("type")
        if not isinstance(kind, str) or any(name in row for name in _FOREIGN):
            return False
        is_said = kind in _SAID and "message" in row
        session = text_in(row, "session_id")
        if not (is_said or kind in _OTHERS or "sessionId" in row or (session, "") in self._latest):
            return False
        uuid = text_in(row, "uuid") or str(line)  # a line without one is no parent of another
        if uuid in self._places:
            return True  # a resumed session repeats the lines of the one before
        if not is_said and kind not in _OTHERS and not (session and kind in _STREAMED):
            note(self._notes, f"lines of Claude Code of type {named(kind)}")
        side = text_in(row, "agentId") or "agent" if row.get("isSidechain") is True else text_in(row, _STREAM_SIDE)
        before = self._before(row, side)
        if session:
            self._latest.setdefault((session, ""), "")
            self._latest[session, side] = uuid
        self._places[uuid], self._sides[uuid] = before, side
        if is_said:
            self._places[uuid] = self._said(row, kind, line, side, before)
        elif kind == "attachment":
            self._places[uuid] = self._attached(row, line, before)
        elif row.get("subtype") == "compact_boundary":
            self._places[uuid] = -1
            self._note_segment(row, uuid)
        return True

    def contexts(self) -> Iterator[Context | tuple[int, str]]:
        """Yield a context for each branch, each sub-agent, and each part between compactions."""
        for number, path in enumerate(self._tree.paths(), 1):
            if isinstance(path, int):
                yield 1, f"{path:,} more branches than are read: together they would repeat too many messages"
            else:
                yield self._context(path, number)

    def _before(self, row: WireObject, side: str) -> int:
        """Return the position of the turn that a line follows; -1 where a conversation begins."""
        parent = text_in(row, "parentUuid")
        if "parentUuid" not in row:
            parent = self._latest.get((text_in(row, "session_id"), side), "")
        if row.get("isCompactSummary") is True or self._sides.get(parent) != side:
            return -1
        if parent in self._segments:
            self._copy_segment(parent)
        return self._places[parent]

    def _said(self, row: WireObject, kind: str, line: int, side: str, before: int) -> int:
        message = object_in(row, "message", "")
        is_hidden = row.get("isVisibleInTranscriptOnly") is True and row.get("isCompactSummary") is not True
        if is_hidden or row.get("isApiErrorMessage") is True or message.get("model") == _NO_MODEL:
            return before
        content = message.get("content")
        if not content:
            return before
        content = mended(content, lambda given: from_anthropic([{"role": kind, "content": given}]))
        text: list[WireObject] = [{"type": "text", "text": content}]
        blocks = text if isinstance(content, str) else cast("list[WireObject]", content)
        if kind == "assistant":
            at = self._answered(message, blocks, line, side, before)
        else:
            at = self._given(blocks, line, side, before)
        self._names.setdefault(at, (text_in(row, "sessionId") or text_in(row, "session_id"), side))
        return at

    def _answered(self, message: WireObject, blocks: list[WireObject], line: int, side: str, before: int) -> int:
        """Add an answer, or a piece of one; return the position of its turn."""
        called = text_in(message, "id")
        at = self._answers.get((side, called), -1) if called else -1
        partial = message.get("stop_reason") is None
        call = recorded_call(message.get("usage"), model=text_in(message, "model"), output_is_partial=partial)
        call = call or RecordedCall(model=text_in(message, "model"))
        if at < 0:
            at = self._tree.add(Turn(before, line, call=call))
            self._answers[side, called] = at
        turn = self._tree.turns[at]
        turn.call = call.joined_with(turn.call or call)
        for block in blocks:
            self._add_block(turn, block)
            if block.get("type") == "tool_use":
                self._calls.setdefault((side, text_in(block, "id")), at)
        return at

    def _add_block(self, turn: Turn, block: WireObject) -> None:
        """Add a block, unless it is there: some versions write an answer down again as it grows."""
        text = self._kept.json_of(block)
        piece = (id(turn), hash(text))
        if piece in self._pieces:
            return
        self._pieces.add(piece)
        if block.get("type") == "text" and turn.said:
            last = cast("WireObject", values_of(turn.said[-1:])[0])
            if last.get("type") == "text" and text_in(block, "text").startswith(text_in(last, "text")):
                turn.said[-1] = text
                return
        turn.said.append(text)

    def _given(self, blocks: list[WireObject], line: int, side: str, before: int) -> int:
        """Add results to the turns of their calls, and the rest as a turn; return the position of the last."""
        rest: list[WireObject] = []
        for block in blocks:
            called = (side, text_in(block, "tool_use_id"))
            if block.get("type") == "tool_result" and called in self._calls:
                before = self._calls[called]
                self._tree.turns[before].results.append(self._kept.json_of(block))
            else:
                rest.append(block)
        return self._tree.add(Turn(before, line, [self._kept.json_of(_user(rest))])) if rest else before

    def _attached(self, row: WireObject, line: int, before: int) -> int:
        """Add a message that was queued while the model worked; other attachments are for the user's eyes."""
        fields = object_or_empty(row.get("attachment"))
        prompt = fields.get("prompt")
        if fields.get("type") != "queued_command" or not prompt:
            return before
        prompt = mended(prompt, lambda given: from_anthropic([_user(given)]))
        return self._tree.add(Turn(before, line, [self._kept.json_of(_user(prompt))]))

    def _note_segment(self, row: WireObject, uuid: str) -> None:
        """Note which messages a compaction kept: they stand behind the one that it names, its summary mostly."""
        segment = object_or_empty(object_or_empty(row.get("compactMetadata")).get("preservedSegment"))
        anchor = text_in(segment, "anchorUuid") or uuid
        if anchor != uuid:  # at the boundary itself, the summary would come behind them
            self._segments[anchor] = text_in(segment, "headUuid"), text_in(segment, "tailUuid")

    def _copy_segment(self, anchor: str) -> None:
        """Copy the messages that a compaction kept; what follows the anchor follows them."""
        head, tail = (self._places.get(uuid, -1) for uuid in self._segments.pop(anchor))
        path = self._tree.up_to(tail)
        at = self._places[anchor]
        for position in path[path.index(head) :] if head in path else []:
            turn = self._tree.turns[position]
            self._kept.count(turn.size_bytes)
            at = self._tree.add(msgspec.structs.replace(turn, before=at, call=None))
        self._places[anchor] = at

    def _context(self, path: Path, number: int) -> Context:
        turns = [self._tree.turns[at] for at in path.turns]
        messages: list[object] = []
        calls: list[RecordedCall | None] = []
        for nth, turn in enumerate(turns):
            messages += values_of(turn.given)
            if turn.said:
                messages.append({"role": "assistant", "content": values_of(turn.said)})
                calls.append(turn.call if nth >= path.copied else None)
                messages += _results(turn, is_last=nth == len(turns) - 1)
        session, side = self._names.get(path.turns[path.copied], ("", ""))
        called = "/".join(each for each in (session, side, str(number)) if each)
        size = sum(turn.size_bytes for turn in turns)
        line = turns[path.copied].line
        return Context({"messages": messages}, "messages", called, model_of(calls), line, tuple(calls), size)


def _results(turn: Turn, *, is_last: bool) -> list[object]:
    """Return the message with the results of a turn's calls, each once.

    A call that was interrupted has none. As the next request would be refused without, a client puts one there.
    """
    found = {text_in(cast("WireObject", each), "tool_use_id"): each for each in values_of(turn.results)}
    blocks = cast("list[WireObject]", values_of(turn.said))
    calls = [text_in(block, "id") for block in blocks if block.get("type") == "tool_use"]
    missing = [] if is_last else [call for call in calls if call not in found]
    stubs = [{"type": "tool_result", "tool_use_id": each, "content": MISSING, "is_error": True} for each in missing]
    results = [*found.values(), *stubs]
    return [_user(results)] if results else []


def _user(content: object) -> WireObject:
    return {"role": "user", "content": content}
