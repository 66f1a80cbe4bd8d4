"""Answers of the three APIs, as they come."""

from __future__ import annotations

import json
from typing import Any

SAID = {"type": "message", "id": "m1", "role": "assistant", "status": "completed"}
RESPONSE = {
    "id": "r1",
    "object": "response",
    "status": "completed",
    "model": "m",
    "output": [{**SAID, "content": [{"type": "output_text", "text": "hello", "annotations": []}]}],
    "usage": {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7},
}
WHOLE: dict[str, Any] = {
    "chat": {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    },
    "messages": {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 2},
    },
    "responses": RESPONSE,
}
STREAMS: dict[str, list[bytes]] = {
    "chat": [
        b'data: {"id":"c1","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"he"}}]}\n\n',
        b': a comment\n\ndata:  {"something": "new",  "choices":[]}\n\n',
        b'data: {"id":"c1","choices":[{"index":0,"delta":{"content":"llo"},"fin',
        b'ish_reason":"stop"}]}\r\n\r\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\ndata: [DONE]\n\n',
    ],
    "messages": [
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"m1","type":"message","role":"assistant",'
        b'"model":"m","content":[],"usage":{"input_tokens":5,"output_tokens":1}}}\n\n',
        b'event: ping\ndata: {"type": "ping"}\n\nevent: brand_new\ndata: {"type":"brand_new","x":[1,  2]}\n\n',
        b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"text",'
        b'"text":""}}\n\n',
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta",',
        b'"text":"hello"}}\n\n',
        b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n',
        b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
        b'"usage":{"output_tokens":2}}\n\n',
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    ],
    "responses": [
        b'event: response.created\ndata: {"type":"response.created","response":{"id":"r1","status":"in_progress"}}\n\n',
        b'event: response.brand_new\ndata: {"type":"response.brand_new","x":  1}\n\n',
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","output_index":0,'
        b'"delta":"hello"}\n\n',
        b"event: response.completed\ndata: "
        + json.dumps({"type": "response.completed", "response": RESPONSE}).encode(),
        b"\n\n",
    ],
}
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
ITEMS = {"chat": "messages", "messages": "messages", "responses": "input"}
