"""Good inputs of the parsers, one of each form: what the fuzzers begin with."""

from __future__ import annotations

from typing import Any

from chatstack import Message, ToolCall
from chatstack.loop.journal import (
    AnswerBrokeOff,
    Entry,
    IterationEnded,
    IterationStarted,
    ModelAnswered,
    ToolEnded,
    ToolStarted,
)
from chatstack.loop.results import IterationRecord
from chatstack.values.parts import ToolResult
from chatstack.values.responses import Usage

_CHAT_CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
_CHAT_USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "total_tokens": 15,
    "prompt_tokens_details": {"cached_tokens": 3},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
CHAT_ANSWER: dict[str, Any] = {
    "id": "a",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "so", "tool_calls": [_CHAT_CALL], "reasoning_content": "hm"},
            "finish_reason": "tool_calls",
        }
    ],
    "usage": _CHAT_USAGE,
}
_CHUNK = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m"}
CHAT_CHUNKS: tuple[dict[str, Any], ...] = (
    {**_CHUNK, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "so "}}]},
    {**_CHUNK, "choices": [{"index": 0, "delta": {"tool_calls": [_CHAT_CALL]}}]},
    {**_CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    {**_CHUNK, "choices": [], "usage": _CHAT_USAGE},
)
_ITEMS: list[dict[str, Any]] = [
    {"id": "r", "type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x"},
    {
        "id": "o",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "so", "annotations": []}],
    },
    {"id": "f", "type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}", "status": "completed"},
]
RESPONSES_ANSWER: dict[str, Any] = {
    "id": "a",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "status": "completed",
    "output": _ITEMS,
    "usage": {
        "input_tokens": 10,
        "output_tokens": 5,
        "total_tokens": 15,
        "input_tokens_details": {"cached_tokens": 3},
        "output_tokens_details": {"reasoning_tokens": 1},
    },
}
RESPONSES_EVENTS: tuple[dict[str, Any], ...] = (
    {"type": "response.created", "sequence_number": 0, "response": {**RESPONSES_ANSWER, "status": "in_progress"}},
    {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": _ITEMS[1]},
    {
        "type": "response.output_text.delta",
        "sequence_number": 2,
        "output_index": 0,
        "item_id": "o",
        "content_index": 0,
        "delta": "so",
        "logprobs": [],
    },
    {
        "type": "response.function_call_arguments.delta",
        "sequence_number": 3,
        "output_index": 1,
        "item_id": "f",
        "delta": "{}",
    },
    *(
        {"type": "response.output_item.done", "sequence_number": 4 + at, "output_index": at, "item": item}
        for at, item in enumerate(_ITEMS)
    ),
    {"type": "response.completed", "sequence_number": 9, "response": RESPONSES_ANSWER},
)
_BLOCKS: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "text", "text": "so"},
    {"type": "tool_use", "id": "c1", "name": "look", "input": {"a": 1}},
]
MESSAGES_ANSWER: dict[str, Any] = {
    "id": "a",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": _BLOCKS,
    "stop_reason": "tool_use",
    "usage": {
        "input_tokens": 10,
        "output_tokens": 5,
        "cache_read_input_tokens": 3,
        "cache_creation": {"ephemeral_5m_input_tokens": 1, "ephemeral_1h_input_tokens": 1},
    },
    "context_management": {"applied_edits": [{"type": "clear_tool_uses_20250919", "cleared_input_tokens": 5}]},
}
MESSAGES_EVENTS: tuple[dict[str, Any], ...] = (
    {"type": "message_start", "message": {**MESSAGES_ANSWER, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "so"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {**_BLOCKS[2], "input": {}}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a": 1}'}},
    {"type": "content_block_stop", "index": 1},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}},
    {"type": "message_stop"},
)
ERRORS = (
    b'{"error": {"message": "prompt is too long: 208656 tokens > 200000 maximum", "type": "invalid_request_error"}}',
    b'{"error": {"message": "slow", "code": 429, "metadata": {"raw": "{\\"error\\": \\"down\\"}"}}}',
    b'{"error": {"type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 5, "code": 400}}',
    b'[{"error": {"message": "no", "status": "INVALID_ARGUMENT"}}]',
    b'{"detail": "no"}',
)
SENTENCES = (
    b"This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    b"input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000",
    b"the request (9,001 tokens) exceeds the available context size (8,192 tokens)",
    b"input length (9000) exceeds the model's maximum context length of (8192)",
    b"Sat, 21 Nov 2026 10:00:00 GMT",
    b"2.5",
)
CHAT_HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {
        "role": "user",
        "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "http://x"}}],
    },
    {"role": "assistant", "content": None, "tool_calls": [{k: v for k, v in _CHAT_CALL.items() if k != "index"}]},
    {"role": "tool", "tool_call_id": "c1", "content": "d"},
]
RESPONSES_HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
    *_ITEMS,
    {"type": "function_call_output", "call_id": "c1", "output": "d"},
]
MESSAGES_HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": _BLOCKS},
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "d"}],
    },
]
CONFIG: dict[str, Any] = {
    "layers": [
        "ProgressReporter",
        {"use": "FunctionInvoker", "max_tool_calls_per_turn": 5},
        {"use": "ToolResultClearer", "trigger": {"tokens": 1000}, "keep": {"messages": 3}, "exclude_tools": ["a"]},
        {"use": "ContextWindowGuard", "name": "guard", "max_context_tokens": 8000, "prune_on_overflow": True},
    ],
    "trace_model_calls": True,
}
TOML = b"""
trace_model_calls = true

[[layers]]
use = "ToolResultClearer"
trigger = { fraction = 0.5 }
max_context_tokens = 8_000
keep = { messages = 3 }

[[layers]]
use = "ContextWindowGuard"
max_context_tokens = 8000
warning_threshold = 0.7
"""
YAML = b"""
layers:
  - use: Summarizer
    max_tokens: 4_000
    keep_recent_turns: 2
  - {use: ContextWindowGuard, max_context_tokens: 8000, prune_on_overflow: true}
  - use: Budget
    max_tokens: &many 100000
"""
ENTRIES: tuple[Entry, ...] = (
    IterationStarted(0, (Message.user("a"),), state={"a": [1, None]}),
    ModelAnswered((Message.assistant("b", ToolCall("c", "look")),), Usage(1, 1), Usage(), "tool_calls", "m"),
    AnswerBrokeOff(Usage(1), Usage()),
    ToolStarted(0, 0),
    ToolEnded(0, 0, ToolResult("c", "look", "d")),
    IterationEnded(IterationRecord(iteration=0, text="b"), ()),
)
