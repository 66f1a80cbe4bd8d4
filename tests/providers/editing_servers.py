"""Servers that edit on their side, on loopback, for the official SDKs: they do what a request asks, and report it.

Sizes are characters of JSON, a token for each four. Anthropic's clears old tool results and compacts, OpenAI's
compacts. Both refuse, with status 400, what does not fit the types of the installed SDKs.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import httpx2
from anthropic.types.beta import BetaCompactionBlockParam, BetaContextManagementConfigParam
from openai.types.responses import ResponseCompactionItemParamParam
from openai.types.responses.response_create_params import ContextManagement
from pydantic import TypeAdapter, ValidationError

from chatstack.testing.provider_server import Delivery, ReceivedRequest, ScriptedServer, ServerReply
from tests.tools.wire_script import anthropic_block

Item: TypeAlias = dict[str, Any]

BETAS = {
    "clear_tool_uses_20250919": "context-management-2025-06-27",
    "clear_thinking_20251015": "context-management-2025-06-27",
    "compact_20260112": "compact-2026-01-12",
}
OF_ANTHROPIC: TypeAdapter[Any] = TypeAdapter(BetaContextManagementConfigParam)
OF_OPENAI: TypeAdapter[Any] = TypeAdapter(list[ContextManagement])
BLOCK: TypeAdapter[Any] = TypeAdapter(BetaCompactionBlockParam)
ITEM: TypeAdapter[Any] = TypeAdapter(ResponseCompactionItemParamParam)


class RefusedError(Exception):
    """What the API answers with status 400."""


@dataclass
class Editing:
    """What both have in common: the answers to come, and what arrived."""

    answers: list[list[Item]] = field(default_factory=lambda: [[{"type": "text", "text": "fine"}]])
    bodies: list[Item] = field(default_factory=list[Item])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    asked: list[str] = field(default_factory=list[str])
    """The addresses that were asked for a model's card."""
    capable: tuple[str, ...] = tuple(BETAS)
    """The edits that the model's card has; no card is given if it is empty."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ScriptedServer]:
        async with ScriptedServer(self.script) as server:
            yield server

    def script(self, request: ReceivedRequest) -> Delivery:
        if "/models/" in request.target:
            self.asked.append(request.target)
            return Delivery(self.card())
        body = json.loads(request.body)
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        try:
            return Delivery(self.played(body, request))
        except (RefusedError, ValidationError) as error:
            refusal = {"type": "invalid_request_error", "message": str(error)}
            return Delivery(ServerReply.json({"type": "error", "error": refusal}, status=400))

    def answer(self) -> list[Item]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def card(self) -> ServerReply:
        if not self.capable:
            return ServerReply.json({"type": "error", "error": {"type": "not_found_error"}}, status=404)
        edits = {each: {"supported": each in self.capable} for each in BETAS}
        known = {"context_management": {"supported": True, **edits}}
        return ServerReply.json({"id": "claude-x", "type": "model", "capabilities": known})

    def played(self, body: Item, request: ReceivedRequest) -> ServerReply:
        raise NotImplementedError


class EditingAnthropic(Editing):
    """The Messages API, with context editing and compaction."""

    def played(self, body: Item, request: ReceivedRequest) -> ServerReply:
        named = set(request.headers.get("anthropic-beta", "").split(","))
        config = body.get("context_management") or {}
        OF_ANTHROPIC.validate_python(config)
        edits = list(config.get("edits") or ())
        for at, edit in enumerate(edits):
            if BETAS[edit["type"]] not in named:
                raise RefusedError(f"context_management: {edit['type']} needs a beta")
            if edit["type"] == "clear_thinking_20251015" and at:
                raise RefusedError("clear_thinking_20251015 must be the first edit")
        messages = self.after_compaction(body["messages"], named)
        size = tokens([body.get("system"), body.get("tools"), messages])
        applied, content = list[Item](), self.answer()
        for edit in edits:
            if edit["type"] == "clear_tool_uses_20250919":
                found = cleared(messages, edit, size)
                if found:
                    applied.append(found)
            elif edit["type"] == "compact_20260112" and size >= edit["trigger"]["value"]:
                if edit["trigger"]["value"] < 50_000:
                    raise RefusedError("trigger: at least 50000")
                content = [{"type": "compaction", "content": f"Summary of {len(messages)} messages."}, *content]
        read = size - sum(each["cleared_input_tokens"] for each in applied)
        usage: Item = {"input_tokens": read, "output_tokens": 5}
        if content[0]["type"] == "compaction":
            spent: Item = {"input_tokens": size, "output_tokens": 9}
            after: Item = {"input_tokens": 40, "output_tokens": 5}
            usage = {**after, "iterations": [{"type": "compaction", **spent}, {"type": "message", **after}]}
        told = {"applied_edits": applied} if edits else None
        return self.streamed(content, usage, told) if body.get("stream") else self.whole(content, usage, told)

    def after_compaction(self, messages: list[Item], named: set[str]) -> list[Item]:
        """What is left of the messages: everything before the newest compaction is ignored."""
        for at in range(len(messages) - 1, -1, -1):
            for number, block in enumerate(messages[at]["content"]):
                if block["type"] == "compaction":
                    BLOCK.validate_python(block)
                    if "compact-2026-01-12" not in named:
                        raise RefusedError("messages: unknown block compaction")
                    return [{**messages[at], "content": messages[at]["content"][number:]}, *messages[at + 1 :]]
        return messages

    def whole(self, content: list[Item], usage: Item, told: Item | None) -> ServerReply:
        reason = "tool_use" if any(each["type"] == "tool_use" for each in content) else "end_turn"
        answer = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "content": content}
        return ServerReply.json({**answer, "stop_reason": reason, "usage": usage, "context_management": told})

    def streamed(self, content: list[Item], usage: Item, told: Item | None) -> ServerReply:
        reason = "tool_use" if any(each["type"] == "tool_use" for each in content) else "end_turn"
        begun: Item = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "content": []}
        begun |= {"stop_reason": None, "usage": {**usage, "output_tokens": 1, "iterations": None}}
        found: list[Item] = [{"type": "message_start", "message": begun}]
        for index, block in enumerate(content):
            found += compaction_events(index, block) if block["type"] == "compaction" else anthropic_block(index, block)
        last = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage, "context_management": told}
        return ServerReply.events(*found, last, {"type": "message_stop"}, is_named=True)


class EditingOpenAI(Editing):
    """The Responses API, with compaction."""

    def played(self, body: Item, request: ReceivedRequest) -> ServerReply:
        config = body.get("context_management") or []
        OF_OPENAI.validate_python(config)
        for item in body["input"]:
            if item.get("type") == "compaction":
                ITEM.validate_python(item)
        size, output = tokens(body["input"]), self.answer()
        for edit in config:
            if edit["compact_threshold"] < 1_000:
                raise RefusedError("compact_threshold: at least 1000")
            if size >= edit["compact_threshold"]:
                made = {"id": f"cmp_{len(self.bodies)}", "type": "compaction", "encrypted_content": "gAAA=="}
                output = [made, *output]
        usage: Item = {"input_tokens": size, "output_tokens": 5, "total_tokens": size + 5}
        usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        answer: Item = {"id": "resp_1", "object": "response", "created_at": 1.0, "model": "m", "status": "completed"}
        answer |= {"output": output, "usage": usage, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        if not body.get("stream"):
            return ServerReply.json(answer)
        found: list[Item] = [
            {"type": "response.created", "response": {**answer, "status": "in_progress", "output": []}}
        ]
        for index, item in enumerate(output):
            found.append({"type": "response.output_item.added", "output_index": index, "item": item})
            if item["type"] == "compaction":
                found.append({"type": "response.compaction.compacting", "output_index": index, "item_id": item["id"]})
            else:
                delta = {"item_id": "i", "output_index": index, "content_index": 0, "logprobs": []}
                text = item["content"][0]["text"]
                found.append({"type": "response.output_text.delta", "delta": text, **delta})
            found.append({"type": "response.output_item.done", "output_index": index, "item": item})
        found.append({"type": "response.completed", "response": answer})
        numbered = [{**each, "sequence_number": number} for number, each in enumerate(found)]
        return ServerReply.events(*numbered, is_named=True)


def compaction_events(index: int, block: Item) -> Iterator[Item]:
    """The events of a compaction: its content comes in one piece."""
    yield {"type": "content_block_start", "index": index, "content_block": {**block, "content": None}}
    delta = {"type": "compaction_delta", "content": block["content"]}
    yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def tokens(content: object) -> int:
    return len(json.dumps(content)) // 4


def cleared(messages: list[Item], edit: Item, size: int) -> Item | None:
    """Clear the old tool results, as Anthropic's guide describes it; return the report."""
    trigger = edit["trigger"]
    calls = {b["id"]: b for m in messages for b in m["content"] if b["type"] == "tool_use"}
    results = [b for m in messages for b in m["content"] if b["type"] == "tool_result"]
    results = [b for b in results if calls[b["tool_use_id"]]["name"] not in edit.get("exclude_tools", ())]
    if trigger["type"] != "input_tokens" or size < trigger["value"]:
        return None
    old = results[: max(0, len(results) - edit["keep"]["value"])]
    saves = sum(tokens(b["content"]) for b in old)
    least = edit.get("clear_at_least", {"value": 0})["value"]
    if not old or saves < least:
        return None
    return {"type": edit["type"], "cleared_tool_uses": len(old), "cleared_input_tokens": saves}


class OnLoopback(httpx2.AsyncBaseTransport):
    """A transport that sends requests to the provider's own host to a server on loopback instead."""

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self._real = httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: Any) -> Any:
        request.url = request.url.copy_with(scheme="http", host="127.0.0.1", port=self._server.port)
        return await self._real.handle_async_request(request)

    async def aclose(self) -> None:
        await self._real.aclose()
