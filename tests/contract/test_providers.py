"""Every provider of ours keeps the contract over real HTTP, and none can be forgotten."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from chatstack import ChatClient
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from chatstack.providers.registry import PROVIDERS, ProviderEntry
from chatstack.testing import ProviderContract
from chatstack.testing.provider_contract import ModelAnswer, ProviderSettings, ServerRefusal, ServerReply, event_bytes

Fields = dict[str, Any]


def halves(text: str) -> tuple[str, ...]:
    """The text in two pieces, none of them empty."""
    return tuple(piece for piece in (text[: len(text) // 2], text[len(text) // 2 :]) if piece)


def options(given: ProviderSettings) -> Fields:
    return {
        "api_key": given.api_key,
        "base_url": given.base_url,
        "timeout_seconds": given.timeout_seconds,
        "window_tokens": given.window_tokens,
        "max_retries": 0,
    }


def retry_after(said: ServerRefusal) -> Mapping[str, str]:
    return {} if said.retry_after_seconds is None else {"retry-after": f"{said.retry_after_seconds:g}"}


def openai_refusal(said: ServerRefusal) -> ServerReply:
    status, code = {
        "authentication": (401, "invalid_api_key"),
        "rate_limit": (429, "rate_limit_exceeded"),
        "overflow": (400, "context_length_exceeded"),
        "bad_request": (400, "invalid_value"),
        "server": (500, None),
    }[said.kind]
    text = said.message
    if said.limit_tokens is not None:
        text = (
            f"This model's maximum context length is {said.limit_tokens} tokens. However, your messages resulted in "
            f"{said.actual_tokens} tokens. {text}"
        )
    error = {"message": text, "type": "invalid_request_error", "param": None, "code": code}
    return ServerReply.json({"error": error}, status=status, headers=retry_after(said))


class TestOpenAIChatClient(ProviderContract):
    covers = (OpenAIChatClient,)

    def make(self, settings: ProviderSettings) -> ChatClient:
        return OpenAIChatClient(settings.model, **options(settings))

    def answer(self, said: ModelAnswer, *, stream: bool) -> ServerReply:
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in said.calls
        ]
        finish = "content_filter" if said.finish_reason == "refused" else said.finish_reason
        usage = {
            "prompt_tokens": said.usage.input_tokens,
            "completion_tokens": said.usage.output_tokens,
            "total_tokens": said.usage.total_tokens,
            "prompt_tokens_details": {"cached_tokens": said.usage.cache_read_tokens},
        }
        more = {"later_field": said.unknown} if said.unknown else {}
        head = {"id": "c1", "created": 1, "model": "contract-model"}
        if not stream:
            message = {"role": "assistant", "content": said.text or None, **({"tool_calls": calls} if calls else {})}
            choice = {"index": 0, "message": {**message, **more}, "finish_reason": finish}
            return ServerReply.json({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
        deltas: list[Fields] = [
            {"role": "assistant", "content": ""},
            *({"content": each} for each in halves(said.text)),
        ]
        for index, call in enumerate(calls):
            name, arguments = call["function"]["name"], call["function"]["arguments"]  # type: ignore[index]
            first = {**call, "index": index, "function": {"name": name, "arguments": ""}}
            rest = [{"index": index, "function": {"arguments": each}} for each in halves(arguments)]
            deltas += [{"tool_calls": [each]} for each in (first, *rest)]
        deltas += [more] if more else []
        choices: list[Fields] = [{"index": 0, "delta": each, "finish_reason": None} for each in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": finish})
        chunk = {**head, "object": "chat.completion.chunk"}
        chunks = [{**chunk, "choices": [choice], "usage": None} for choice in choices]
        return ServerReply.events(*chunks, {**chunk, "choices": [], "usage": usage}, "[DONE]")

    def refusal(self, said: ServerRefusal) -> ServerReply:
        return openai_refusal(said)

    def failure_in_stream(self) -> bytes:
        return event_bytes({"error": {"message": "down", "type": "server_error", "code": "server_error"}})


class TestOpenAIResponsesClient(ProviderContract):
    covers = (OpenAIResponsesClient,)

    def make(self, settings: ProviderSettings) -> ChatClient:
        return OpenAIResponsesClient(settings.model, **options(settings))

    def answer(self, said: ModelAnswer, *, stream: bool) -> ServerReply:
        items: list[Fields] = []
        if said.unknown:
            items.append({"type": "later_item", "id": "li_1", "field": said.unknown})
        if said.text:
            content = [{"type": "output_text", "text": said.text, "annotations": []}]
            message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
            items.append({**message, "content": content})
        for call in said.calls:
            fields = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
            items.append({"type": "function_call", "id": f"fc_{call.id}", "status": "completed", **fields})
        response = self._response(said, items)
        if not stream:
            return ServerReply.json(response)
        begun = {**response, "status": "in_progress", "output": [], "usage": None}
        events: list[Fields] = [{"type": "response.created", "response": begun}]
        for index, item in enumerate(items):
            events += self._item(index, item)
        end = "incomplete" if response["status"] == "incomplete" else "completed"
        events.append({"type": f"response.{end}", "response": response})
        numbered = ({**each, "sequence_number": number} for number, each in enumerate(events))
        return ServerReply.events(*numbered, is_named=True)

    def _response(self, said: ModelAnswer, items: list[Fields]) -> Fields:
        why = {"length": "max_output_tokens", "refused": "content_filter"}.get(said.finish_reason)
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1.0,
            "model": "contract-model",
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "status": "incomplete" if why else "completed",
            "incomplete_details": {"reason": why} if why else None,
            "output": items,
            "usage": {
                "input_tokens": said.usage.input_tokens,
                "input_tokens_details": {"cached_tokens": said.usage.cache_read_tokens},
                "output_tokens": said.usage.output_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": said.usage.total_tokens,
            },
        }

    def _item(self, index: int, item: Fields) -> list[Fields]:
        at = {"output_index": index}
        deltas: list[Fields] = []
        begun = item
        if item["type"] == "message":
            begun = {**item, "content": [], "status": "in_progress"}
            where = {**at, "item_id": item["id"], "content_index": 0, "logprobs": []}
            texts = halves(item["content"][0]["text"])
            deltas = [{"type": "response.output_text.delta", "delta": each, **where} for each in texts]
        elif item["type"] == "function_call":
            begun = {**item, "arguments": "", "status": "in_progress"}
            where = {**at, "item_id": item["id"]}
            texts = halves(item["arguments"])
            deltas = [{"type": "response.function_call_arguments.delta", "delta": each, **where} for each in texts]
        added = {"type": "response.output_item.added", "item": begun, **at}
        return [added, *deltas, {"type": "response.output_item.done", "item": item, **at}]

    def refusal(self, said: ServerRefusal) -> ServerReply:
        return openai_refusal(said)

    def failure_in_stream(self) -> bytes:
        error = {"type": "error", "code": "server_error", "message": "down", "param": None, "sequence_number": 9}
        return event_bytes(error, is_named=True)


class TestAnthropicChatClient(ProviderContract):
    covers = (AnthropicChatClient,)
    left_out: ClassVar[frozenset[str]] = frozenset({"seed"})

    def make(self, settings: ProviderSettings) -> ChatClient:
        return AnthropicChatClient(settings.model, **options(settings))

    def without_marks(self, body: bytes) -> bytes:
        return re.sub(rb',"cache_control":\{[^}]*\}', b"", body)

    def answer(self, said: ModelAnswer, *, stream: bool) -> ServerReply:
        blocks: list[Fields] = [{"type": "text", "text": said.text}] if said.text else []
        for call in said.calls:
            value = json.loads(call.arguments)
            blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": value})
        if said.unknown:
            blocks.append({"type": "later_block", "field": said.unknown})
        names = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "refused": "refusal"}
        reason, cached = names[said.finish_reason], said.usage.cache_read_tokens
        usage = {"input_tokens": said.usage.input_tokens - cached, "cache_read_input_tokens": cached}
        output = {"output_tokens": said.usage.output_tokens}
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "contract-model"}
        if not stream:
            end = {"stop_reason": reason, "stop_sequence": None}
            return ServerReply.json({**head, "content": blocks, **end, "usage": {**usage, **output}})
        begun: Fields = {**head, "content": [], "stop_reason": None, "stop_sequence": None}
        events: list[Fields] = [{"type": "message_start", "message": {**begun, "usage": {**usage, "output_tokens": 1}}}]
        for index, block in enumerate(blocks):
            events += self._block(index, block)
        delta = {"stop_reason": reason, "stop_sequence": None}
        events.append({"type": "message_delta", "delta": delta, "usage": output})
        return ServerReply.events(*events, {"type": "message_stop"}, is_named=True)

    def _block(self, index: int, block: Fields) -> list[Fields]:
        begun, deltas = block, list[Fields]()
        if block["type"] == "text":
            begun = {**block, "text": ""}
            deltas = [{"type": "text_delta", "text": each} for each in halves(block["text"])]
        elif block["type"] == "tool_use":
            begun = {**block, "input": {}}
            text = json.dumps(block["input"], ensure_ascii=False)
            deltas = [{"type": "input_json_delta", "partial_json": each} for each in halves(text)]
        return [
            {"type": "content_block_start", "index": index, "content_block": begun},
            *({"type": "content_block_delta", "index": index, "delta": each} for each in deltas),
            {"type": "content_block_stop", "index": index},
        ]

    def refusal(self, said: ServerRefusal) -> ServerReply:
        status, kind = {
            "authentication": (401, "authentication_error"),
            "rate_limit": (429, "rate_limit_error"),
            "overflow": (400, "invalid_request_error"),
            "bad_request": (400, "invalid_request_error"),
            "server": (529, "overloaded_error"),
        }[said.kind]
        text = said.message
        if said.kind == "overflow":
            sizes = f": {said.actual_tokens} tokens > {said.limit_tokens} maximum" if said.limit_tokens else ""
            text = f"prompt is too long{sizes}; {text}"
        body = {"type": "error", "error": {"type": kind, "message": text}}
        return ServerReply.json(body, status=status, headers=retry_after(said))

    def failure_in_stream(self) -> bytes:
        error = {"type": "error", "error": {"type": "overloaded_error", "message": "down"}}
        return event_bytes(error, is_named=True)


def not_enrolled(providers: Mapping[str, ProviderEntry]) -> list[str]:
    """The names of the providers that no contract in this module covers."""
    suites = [each for each in globals().values() if isinstance(each, type) and issubclass(each, ProviderContract)]
    covered = {provider for suite in suites for provider in getattr(suite, "covers", ())}
    return sorted(name for name, entry in providers.items() if entry.load() not in covered)


def test_every_provider_is_enrolled() -> None:
    names = not_enrolled(PROVIDERS)
    told = "write class Test...(ProviderContract) with covers = (TheClass,) in tests/contract/test_providers.py"
    assert not names, f"{', '.join(names)}: {told}"


def test_a_provider_that_is_not_enrolled_is_named() -> None:
    forgotten = PROVIDERS["openai"]._replace(module="chatstack.testing", class_name="ScriptedClient")
    assert not_enrolled({"openai": PROVIDERS["openai"], "forgotten": forgotten}) == ["forgotten"]


def test_a_contract_without_its_adapter_says_what_is_missing() -> None:
    class Unfinished(ProviderContract):
        pass

    with pytest.raises(NotImplementedError, match=r"Unfinished: write make\(self, settings\)"):
        Unfinished().test_the_key_is_not_in_a_repr()
    with pytest.raises(NotImplementedError, match=r"Unfinished: write answer\(self, said, \*, stream\)"):
        Unfinished().test_usage_is_reported_once()
    with pytest.raises(NotImplementedError, match=r"Unfinished: write refusal\(self, said\)"):
        Unfinished().test_a_refusal_is_the_error_that_fits()
