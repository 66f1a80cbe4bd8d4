"""The parsers of outside data, each as a function of bytes, with what may come out of it beside a value.

The suite (``test_fuzz.py``) and the coverage-guided script (``guided.py``) go by this list.
"""

from __future__ import annotations

import asyncio
import functools
import json
import sqlite3
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from chatstack import (
    Allowed,
    ChatRequest,
    ChatStackError,
    LayerOrderWarning,
    Message,
    ToolCall,
    from_anthropic,
    from_config,
    from_json,
    from_openai_chat,
    from_openai_responses,
    to_json,
)
from chatstack.client.loose_json import decoded_as
from chatstack.context.edits.records import Edit, Insertion, Record
from chatstack.context.edits.summaries import summary_message
from chatstack.context.memory.stored import RecordError, restored, stored
from chatstack.errors import InputError, ProviderError, StoreError, UnusableRecordError, WiringError
from chatstack.loop.journal import ToolStarted
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.failures import failure
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from chatstack.providers.retry_after import retry_after_seconds
from chatstack.providers.sdk_provider import SdkProvider
from chatstack.stores.sqlite import SQLiteStore
from chatstack.stores.sqlite_journal import SQLiteJournal
from chatstack.testing import ScriptedClient
from chatstack.values.messages import Annotation
from chatstack.values.parts import ToolResult
from chatstack.workbench.replay.reading.forms import conversation_of
from chatstack.workbench.replay.reading.joining import JoinedRecordings
from chatstack.workbench.replay.reading.recordings import Recording
from chatstack.workbench.replay.reading.sources import sources_from
from tests.fuzz import seeds
from tests.workbench.replay.test_atif import SMALL
from tests.workbench.replay.test_chains import CHAIN
from tests.workbench.replay.test_claude_code import whole as whole_session
from tests.workbench.replay.test_codex import whole as whole_rollout


@dataclass(frozen=True)
class Target:
    """A parser: ``parse`` raises nothing but ``errors``. ``seeds`` are good inputs, which others are made of.

    ``long`` gives inputs of a size, as bad as one can think of: the time for one may not grow with the square.
    """

    name: str
    parse: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    errors: tuple[type[Exception], ...] = (ChatStackError,)
    long: Mapping[str, Callable[[int], bytes]] = field(default_factory=dict)


def _dumped(value: object) -> bytes:
    return json.dumps(value).encode()


def _lines(*values: object) -> bytes:
    return b"\n".join(map(_dumped, values))


# Answers, through the official SDKs, which read bytes and events


def _provider(kind: Callable[..., SdkProvider[Any]], *, status: int, streamed: bool) -> Callable[[bytes], object]:
    sent: list[bytes] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        is_events = streamed and status == 200
        headers = {"content-type": "text/event-stream" if is_events else "application/json"}
        return httpx2.Response(status, content=sent[-1], headers=headers)

    @functools.cache
    def client() -> SdkProvider[Any]:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
        return kind("m", api_key="k", base_url="http://127.0.0.1", http_client=http, max_retries=0, stall_seconds=None)

    async def ask() -> object:
        async with await client().send(ChatRequest((Message.user("hello"),), stream=streamed)) as stream:
            return await stream.response()

    def parse(data: bytes) -> object:
        sent[:] = [data]
        return asyncio.run(ask())

    return parse


def _events(*events: Mapping[str, object], done: bool = False) -> bytes:
    named = (f"event: {each['type']}\n" if "type" in each else "" for each in events)
    text = "".join(f"{name}data: {json.dumps(each)}\n\n" for name, each in zip(named, events, strict=True))
    return (text + ("data: [DONE]\n\n" if done else "")).encode()


def _answers() -> list[Target]:
    wires = {
        "chat completions": (OpenAIChatClient, seeds.CHAT_ANSWER, _events(*seeds.CHAT_CHUNKS, done=True)),
        "responses": (OpenAIResponsesClient, seeds.RESPONSES_ANSWER, _events(*seeds.RESPONSES_EVENTS)),
        "messages": (AnthropicChatClient, seeds.MESSAGES_ANSWER, _events(*seeds.MESSAGES_EVENTS)),
    }
    found: list[Target] = []
    long = {
        "one event": lambda size: b"data: " + b"[" * size + b"\n\n",
        "events": lambda size: b"data: {}\n\n" * (size // 10),
        "digits": lambda size: b'data: {"id": ' + b"9" * size + b"}\n\n",
    }
    for name, (kind, whole, events) in wires.items():
        provider = functools.partial(_provider, kind)
        found += [
            Target(f"answer: {name}", provider(status=200, streamed=False), (_dumped(whole),), (ProviderError,)),
            Target(f"events: {name}", provider(status=200, streamed=True), (events,), (ProviderError,), long),
            Target(f"error: {name}", provider(status=400, streamed=False), seeds.ERRORS, (ProviderError,)),
        ]
    return found


def _refused(data: bytes) -> object:
    text = data.decode("utf-8", "replace")
    retry_after_seconds({"Retry-After": text, "retry-after-ms": text}, text)
    for status in (0, 400, 413, 429, 500):
        error = failure("x", status=status, body={"error": {"message": text}}, text=text, streaming=not status)
        assert text not in str(error) or len(text) < 40
    return failure("x", status=400, body=data)


# Histories


def _json(parse: Callable[[Any], object]) -> Callable[[bytes], object]:
    def parsed(data: bytes) -> object:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return None
        return parse(value)

    return parsed


def _history(data: bytes) -> object:
    found = from_json(data)
    assert from_json(to_json(found)) == found
    return found


# Configs


def _config(ending: str) -> Callable[[bytes], object]:
    allowed = Allowed(providers=())

    def parse(data: bytes) -> object:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"pipeline{ending}")
            path.write_bytes(data)
            with warnings.catch_warnings():  # layers in another order are said to be that, and built
                warnings.simplefilter("ignore", LayerOrderWarning)
                return from_config(path, ScriptedClient(), allowed=allowed).build()

    return parse


# Recordings


def _recordings(data: bytes) -> object:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "session.jsonl")
        path.write_bytes(data)
        with sources_from([path]) as sources:
            items = list(JoinedRecordings(sources).read())
    found = [each for each in items if isinstance(each, Recording)]
    for each in found:
        try:
            conversation_of(each)
        except InputError:  # the replay counts it as broken
            pass
    return found


# Stores and journals

_CALL = Message.assistant("b", ToolCall("c", "look"))
_MESSAGES = (Message.user("a"), _CALL, Message.tool("c", "d", name="look"), Message.user("e"))
_ANNOTATION = Annotation("summarize")
_SUMMARY = Insertion(1, summary_message("so far", _ANNOTATION), _ANNOTATION)
_RECORD = stored(Record((1, 2), (), (_SUMMARY,)), _MESSAGES)
_CLEARED = Edit(2, (ToolResult("c", "look", "[cleared]"),), None, None, Annotation("clear"))
_EDITED = stored(Record((), (_CLEARED,), ()), _MESSAGES)


def _journal(data: bytes) -> object:
    async def read(path: Path) -> object:
        journal = SQLiteJournal(path)
        try:
            await journal.append("run", 0, ToolStarted(0, 0))
            with sqlite3.connect(path) as connection:
                connection.execute("UPDATE entries SET entry = ?", (data,))
            connection.close()
            return await journal.entries("run")
        finally:
            await journal.aclose()

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(read(Path(folder, "runs.db")))


@functools.cache
def _database() -> bytes:
    async def made(path: Path) -> None:
        store = SQLiteStore(path)
        await store.put("owner", b"link", _RECORD)
        await store.aclose()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "store.db")
        asyncio.run(made(path))
        return path.read_bytes()


def _store(data: bytes) -> object:
    async def read(path: Path) -> object:
        store = SQLiteStore(path)
        try:
            found = await store.find("owner", [b"link"])
            await store.put("owner", b"another", b"record")
            return found
        finally:
            await store.aclose()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "store.db")
        path.write_bytes(data)
        return asyncio.run(read(path))


class _Arguments(msgspec.Struct):
    city: str
    days: int = 1
    nested: dict[str, _Arguments | None] = {}


def _nested(size: int) -> bytes:
    return b'{"a":' * (size // 5) + b"1" + b"}" * (size // 5)


_TEXT_LONG: Mapping[str, Callable[[int], bytes]] = {
    "digits": lambda size: b"maximum context length is " + b"9" * size + b" tokens",
    "digits and commas": lambda size: b"9," * (size // 2),
    "beginnings": lambda size: b"maximum context length is 9 tokens " * (size // 35),
    "words": lambda size: b"input length " * (size // 13) + b"exceeds the " * (size // 12),
    "quotations": lambda size: b'"error": \'' + b"\\'message\\': \" " * (size // 14),
    "spaces": lambda size: b"too large for " + b" " * size + b" model. max size: x",
    "nested": _nested,
}


def targets() -> list[Target]:
    """Return all of them."""
    forms = (whole_session().rows, whole_rollout().rows, [SMALL], CHAIN)
    return [
        *_answers(),
        Target("error texts", _refused, (*seeds.ERRORS, *seeds.SENTENCES), (), _TEXT_LONG),
        Target("messages of ours", _history, (to_json(_MESSAGES).encode(),), (InputError,), {"nested": _nested}),
        Target("messages of chat completions", _json(from_openai_chat), (_dumped(seeds.CHAT_HISTORY),), (InputError,)),
        Target("items of responses", _json(from_openai_responses), (_dumped(seeds.RESPONSES_HISTORY),), (InputError,)),
        Target("messages of anthropic", _json(from_anthropic), (_dumped(seeds.MESSAGES_HISTORY),), (InputError,)),
        Target(
            "arguments of tools",
            lambda data: decoded_as(_Arguments, data.decode("utf-8", "surrogateescape")),
            (b'{"city": "Dubai", "days": "3"}', b'```json\n{"city": "x", "nested": {"a": null}}\n```'),
            (msgspec.DecodeError, UnicodeError, RecursionError),
            {"fences": lambda size: b"```" * (size // 3), "nested": _nested},
        ),
        Target("config: JSON", _config(".json"), (_dumped(seeds.CONFIG),), (WiringError,), {"nested": _nested}),
        Target("config: TOML", _config(".toml"), (seeds.TOML,), (WiringError,)),
        Target("config: YAML", _config(".yaml"), (seeds.YAML,), (WiringError,)),
        Target(
            "recordings",
            _recordings,
            (*(_lines(*each) for each in forms), _lines(*(row for each in forms for row in each))),
            (InputError,),
            {"one line": _nested, "lines": lambda size: b'{"messages": []}\n' * (size // 17)},
        ),
        Target("a stored decision", lambda data: restored(data, _MESSAGES), (_RECORD, _EDITED), (RecordError,)),
        Target("a store's file", _store, (_database(),), (StoreError, UnusableRecordError)),
        Target("an entry of a journal", _journal, tuple(map(msgspec.json.encode, seeds.ENTRIES)), (StoreError,)),
    ]
