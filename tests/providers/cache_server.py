"""Servers with a prompt cache, played to the official SDKs: they keep what a request lets them keep, and report it.

Sizes are characters; time is ``now``, which a test moves. Anthropic's holds prefixes up to marks, finds them up to 20
blocks before a mark, and refuses what the API refuses. OpenAI's holds what it has seen under one key, in whole steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import takewhile
from operator import eq
from typing import Any, ClassVar, TypeAlias

from tests.servers import http_library
from tests.tools.wire_script import (
    Played,
    anthropic_block,
    chat_streamed,
    chat_whole,
    responses_streamed,
    responses_whole,
)

Item: TypeAlias = dict[str, Any]
Answerer: TypeAlias = Callable[[Item], list[Item]]
"""From the body of a request to the blocks, or the message, of its answer."""

UNMARKABLE = ("thinking", "redacted_thinking")
LIFETIMES = {"5m": 300.0, "1h": 3_600.0}


@dataclass(frozen=True)
class Call:
    """A request that arrived, and the account of it."""

    body: Item
    read: int
    written: int
    rest: int

    @property
    def size(self) -> int:
        return self.read + self.written + self.rest


@dataclass
class Server:
    """What both have in common: an HTTP client for the SDK, on no network."""

    answer: Answerer
    now: float = 0.0
    calls: list[Call] = field(default_factory=list[Call])
    raw: list[bytes] = field(default_factory=list[bytes])
    of_openai: ClassVar[bool] = False

    def http_client(self) -> Any:
        http = http_library(of_openai=self.of_openai)

        def answer(request: Any) -> object:
            self.raw.append(request.content)
            played = self.played(json.loads(request.content))
            return http.Response(
                played.status, content=played.body.encode(), headers={"content-type": played.content_type}
            )

        return http.AsyncClient(transport=http.MockTransport(answer))

    def played(self, body: Item) -> Played:
        raise NotImplementedError


def blocks_of(body: Item) -> Iterator[tuple[str, Item]]:
    """All blocks in the order of the prefix, each with the part of the request that it is of."""
    for tool in body.get("tools") or ():
        yield "tools", tool
    system = body.get("system") or []
    for block in [{"type": "text", "text": system}] if isinstance(system, str) else system:
        yield "system", block
    for message in body["messages"]:
        for block in message["content"]:
            yield f"messages.{message['role']}", block


def without_mark(block: Item) -> Item:
    return {name: value for name, value in block.items() if name != "cache_control"}


def marks_of(body: Item) -> list[tuple[int, str]]:
    """Place and lifetime of each mark."""
    marked = [(at, block.get("cache_control")) for at, (_, block) in enumerate(blocks_of(body))]
    found = [(at, mark.get("ttl", "5m")) for at, mark in marked if mark]
    automatic = body.get("cache_control")
    if automatic:
        last = max(at for at, (_, block) in enumerate(blocks_of(body)) if block.get("type") not in UNMARKABLE)
        assert last not in [at for at, _ in found], "an automatic mark on a block that has one"
        found.append((last, automatic.get("ttl", "5m")))
    return found


@dataclass
class AnthropicCache(Server):
    """The Messages API with its cache. ``minimum`` is the shortest prefix that is kept."""

    minimum: int = 0
    held: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """For each prefix when it ends, and its lifetime."""

    def played(self, body: Item) -> Played:
        each = list(blocks_of(body))
        marks = marks_of(body)
        self.check([block for _, block in each], marks)
        prefixes, sizes = [""], [0]
        for part, block in each:
            # Another choice of tools is another beginning of the messages.
            choice = body.get("tool_choice") if part.startswith("messages") else None
            text = json.dumps([part, without_mark(block), *([choice] if choice else [])])
            prefixes.append(prefixes[-1] + text)
            sizes.append(sizes[-1] + len(text))
        found = [end for at, _ in marks for end in range(max(1, at - 18), at + 2) if self.holds(prefixes[end])]
        read = sizes[max(found, default=0)]
        last = max((sizes[at + 1] for at, _ in marks if sizes[at + 1] >= self.minimum), default=0)
        for end in found:
            _, seconds = self.held[prefixes[end]]
            self.held[prefixes[end]] = (self.now + seconds, seconds)
        for at, ttl in marks:
            if sizes[at + 1] >= self.minimum:
                seconds = max(LIFETIMES[ttl], self.held.get(prefixes[at + 1], (0, 0))[1])
                self.held[prefixes[at + 1]] = (self.now + seconds, seconds)
        written = max(0, last - read)
        self.calls.append(Call(body, read, written, sizes[-1] - read - written))
        usage = {"input_tokens": sizes[-1] - read - written, "output_tokens": 5}
        usage |= {"cache_read_input_tokens": read, "cache_creation_input_tokens": written}
        return answered(self.answer(body), usage, stream=body.get("stream", False))

    def holds(self, prefix: str) -> bool:
        return self.held.get(prefix, (-1.0, 0.0))[0] > self.now

    def check(self, blocks: list[Item], marks: list[tuple[int, str]]) -> None:
        """What the API answers with an error 400."""
        assert len(marks) <= 4, "a maximum of 4 blocks with cache_control"
        for at, _ in marks:
            assert blocks[at].get("type") not in UNMARKABLE, "thinking cannot be marked"
            assert blocks[at].get("type") != "text" or blocks[at]["text"].strip(), "empty text cannot be marked"
            assert not blocks[at].get("defer_loading"), "a deferred tool cannot be marked"
        order = [ttl for _, ttl in sorted(marks)]
        assert order == sorted(order, key=lambda ttl: ttl != "1h"), "an hour cannot come behind five minutes"


def answered(content: list[Item], usage: Item, *, stream: bool) -> Played:
    """An answer of Anthropic's, whole or streamed, with that usage."""
    reason = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-5"}
    if not stream:
        return Played(json.dumps({**head, "content": content, "stop_reason": reason, "usage": usage}))
    events: list[Item] = [
        {"type": "message_start", "message": {**head, "content": [], "stop_reason": None, "usage": usage}}
    ]
    for index, block in enumerate(content):
        events += anthropic_block(index, block)
    delta = {"stop_reason": reason, "stop_sequence": None}
    events += [{"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5}}, {"type": "message_stop"}]
    lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
    return Played("".join(lines), "text/event-stream")


@dataclass
class OpenAICache(Server):
    """Chat completions, or Responses where the body has ``input``, with a cache that needs no marks.

    Prefixes are held by key: the calls of one key come to one machine. ``reports_writes`` as GPT-5.6 and later do.
    """

    minimum: int = 0
    lifetime_seconds: float = 300.0
    reports_writes: bool = False
    held: dict[str | None, list[tuple[str, float]]] = field(default_factory=dict[str | None, list[tuple[str, float]]])
    of_openai: ClassVar[bool] = True

    STEP: ClassVar[int] = 128

    def played(self, body: Item) -> Played:
        text = json.dumps([body.get("tools"), body.get("instructions"), body.get("messages", body.get("input"))])[:-2]
        seen = self.held.setdefault(body.get("prompt_cache_key"), [])
        alive = [prefix for prefix, end in seen if end > self.now]
        shared = max((_shared(prefix, text) for prefix in alive), default=0)
        read = shared // self.STEP * self.STEP if shared >= self.minimum else 0
        seen.append((text, self.now + self.lifetime_seconds))
        written = len(text) // self.STEP * self.STEP - read if self.reports_writes else 0
        self.calls.append(Call(body, read, written, len(text) - read - written))
        details = {"cached_tokens": read} | ({"cache_write_tokens": written} if self.reports_writes else {})
        said, stream = self.answer(body), body.get("stream", False)
        if "input" in body:
            usage = {"input_tokens": len(text), "input_tokens_details": details, "output_tokens": 5}
            usage |= {"output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": len(text) + 5}
            played = (responses_streamed if stream else responses_whole)(said)
            counts = json.dumps({"input_tokens": 10, "output_tokens": 10, "total_tokens": 20})
            return replace(played, body=played.body.replace(counts, json.dumps(usage)))
        usage = {"prompt_tokens": len(text), "completion_tokens": 5, "total_tokens": len(text) + 5}
        usage["prompt_tokens_details"] = details
        if not stream:
            return replace(chat_whole(said), body=json.dumps({**json.loads(chat_whole(said).body), "usage": usage}))
        last = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": usage}
        played = chat_streamed(said)
        return replace(played, body=played.body.replace("data: [DONE]", f"data: {json.dumps(last)}\n\ndata: [DONE]"))


def _shared(one: str, other: str) -> int:
    return sum(1 for _ in takewhile(bool, map(eq, one, other)))
