"""Small session files, made line by line as the programs write them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from chatstack.workbench.replay.reading.contexts import Notes
from chatstack.workbench.replay.reading.forms import conversation_of
from chatstack.workbench.replay.reading.joining import JoinedRecordings
from chatstack.workbench.replay.reading.recordings import BrokenLine, Recording, read_recordings
from chatstack.workbench.replay.reading.sources import sources_from
from chatstack.workbench.replay.reading.usages import RecordedCall

Row = dict[str, Any]


def write(path: Path, rows: Iterable[Row]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def read(path: Path, notes: Notes | None = None) -> list[Recording]:
    """The conversations of a file of which all can be read."""
    with sources_from([path]) as sources:
        items = list(read_recordings(sources, notes=notes))
    assert not [str(item) for item in items if isinstance(item, BrokenLine)]
    return [item for item in items if isinstance(item, Recording)]


def broken(path: Path) -> list[str]:
    with sources_from([path]) as sources:
        return [f"{each.line}: {each.error}" for each in read_recordings(sources) if isinstance(each, BrokenLine)]


def joined(*paths: Path) -> tuple[list[Recording], int]:
    with sources_from(paths) as sources:
        recordings = JoinedRecordings(sources)
        items = [item for item in recordings.read() if isinstance(item, Recording)]
        again = [item for item in recordings.read() if isinstance(item, Recording)]
    assert items == again
    return items, recordings.joined


def told(recording: Recording) -> list[str]:
    """The messages in short: the role and the text, or the calls and the results."""
    short = {"system": "s", "user": "u", "assistant": "a", "tool": "t"}
    return [
        f"{short[message.role]}:{message.text}"
        + "".join(f" ?{call.name}" for call in message.calls)
        + "".join(f" !{result.output}" for result in message.results)
        for message in conversation_of(recording).messages
    ]


def usages(recording: Recording) -> list[tuple[int, int, int, int] | str]:
    """Of each answer the recorded input, cache reads, cache writes and output; or why there are none."""
    return [_usage(call) for call in recording.calls or ()]


def _usage(call: RecordedCall | None) -> tuple[int, int, int, int] | str:
    if call is None:
        return "copied"
    usage = call.usage
    if usage is None:
        return "unknown"
    return usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens, usage.output_tokens


class Claude:
    """The lines of a session of Claude Code, each of which follows the one before unless told otherwise."""

    def __init__(self, session: str = "s1", **beside: Any) -> None:
        self.session, self.beside = session, beside
        self.rows: list[Row] = []
        self.last: str | None = None

    def add(self, kind: str, *, after: str | None = "", **fields: Any) -> str:
        uuid = f"{self.session}-{len(self.rows) + 1}"
        parent = self.last if after == "" else after
        row = {"parentUuid": parent, "isSidechain": False, "sessionId": self.session, "version": "2.1.29"}
        self.rows.append({**row, "type": kind, **self.beside, "uuid": uuid, **fields})
        self.last = uuid
        return uuid

    def user(self, content: Any, **fields: Any) -> str:
        return self.add("user", message={"role": "user", "content": content}, **fields)

    def result(self, call: str, content: Any = "seen", **fields: Any) -> str:
        block = {"type": "tool_result", "tool_use_id": call, "content": content}
        return self.user([block], toolUseResult={"stdout": content}, **fields)

    def answer(
        self, id: str, *blocks: Row | str, usage: Row | None = None, stop: str | None = "end_turn", **fields: Any
    ) -> str:
        content = [{"type": "text", "text": each} if isinstance(each, str) else each for each in blocks]
        message: Row = {
            "id": id,
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5",
            "content": content,
        }
        message |= {"stop_reason": stop, "usage": usage or claude_usage(10, 0, 0, 5)}
        return self.add("assistant", message=message | fields.pop("message", {}), requestId=f"req_{id}", **fields)


def claude_usage(plain: int, read: int, written: int, output: int, hour: int = 0) -> Row:
    return {
        "input_tokens": plain,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "cache_creation": {"ephemeral_5m_input_tokens": written - hour, "ephemeral_1h_input_tokens": hour},
        "output_tokens": output,
        "service_tier": "standard",
    }


def use(call: str, name: str = "Read") -> Row:
    return {"type": "tool_use", "id": call, "name": name, "input": {"path": f"/{call}"}}


class Rollout:
    """The lines of a rollout of Codex."""

    def __init__(self, session: str = "s1", **meta: Any) -> None:
        self.rows: list[Row] = []
        self.totals = [0, 0, 0]
        self.meta(session, **meta)

    def meta(self, session: str, **meta: Any) -> None:
        base = {"text": "You are a coding agent."}
        self.add("session_meta", {"id": session, "cwd": "/w", "base_instructions": base, **meta})

    def add(self, kind: str, payload: Row, **fields: Any) -> None:
        self.rows.append({"timestamp": "2026-11-01T10:00:00.000Z", "type": kind, "payload": payload, **fields})

    def item(self, kind: str, **fields: Any) -> None:
        self.add("response_item", {"type": kind, **fields})

    def event(self, kind: str, **fields: Any) -> None:
        self.add("event_msg", {"type": kind, **fields})

    def turn(self, turn: str, model: str = "gpt-5-codex") -> None:
        self.event("task_started", turn_id=turn, model_context_window=272_000)
        self.add("turn_context", {"turn_id": turn, "cwd": "/w", "model": model, "approval_policy": "never"})

    def user(self, text: str) -> None:
        self.item("message", role="user", content=[{"type": "input_text", "text": text}])
        self.event("user_message", message=text)

    def answer(self, text: str) -> None:
        self.item("message", role="assistant", content=[{"type": "output_text", "text": text}])

    def call(self, call: str, name: str = "shell") -> None:
        self.item("reasoning", summary=[], content=None, encrypted_content="gAAA")
        self.item("function_call", name=name, arguments='{"command":["ls"]}', call_id=call)

    def output(self, call: str, output: Any = "seen") -> None:
        self.item("function_call_output", call_id=call, output=output)

    def counted(self, given: int, cached: int, said: int) -> None:
        self.totals = [total + more for total, more in zip(self.totals, (given, cached, said), strict=True)]
        self.repeat_count(codex_usage(given, cached, said))

    def repeat_count(self, last: Row) -> None:
        info = {
            "total_token_usage": codex_usage(*self.totals),
            "last_token_usage": last,
        }
        self.event("token_count", info=info, rate_limits=None)


def codex_usage(given: int, cached: int, said: int) -> Row:
    usage = {"input_tokens": given, "cached_input_tokens": cached, "output_tokens": said}
    return {**usage, "reasoning_output_tokens": 0, "total_tokens": given + said}
