# /// script
# requires-python = ">=3.11"
# dependencies = ["chatstack-core"]
#
# [tool.uv.sources]
# chatstack-core = { path = "../..", editable = true }
# ///
"""The server of ``soak.py``: OpenAI's chat completions over plain HTTP/1.1, one request in twenty of which fails.

It prints its port. Where tools are declared and the user has just spoken, it calls one; else it answers in words. What
fails, and how, is drawn by a generator that starts from a fixed seed.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

WORDS = ("file", "module", "import", "class", "def", "return", "value", "error", "warning", "test", "build", "path")
FAULTS = 0.05
STATUSES: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "rate limit": (429, {"message": "slow down", "code": "rate_limit_exceeded"}),
    "server": (500, {"message": "down", "type": "server_error"}),
    "refused": (400, {"message": "no", "type": "invalid_request_error"}),
    "overflow": (400, {"message": "Your input exceeds the context window", "code": "context_length_exceeded"}),
}
BREAKS = ("cut", "noise", "stall", "no end", "dropped")
_random = random.Random(7)


def deltas(body: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str | None]]:
    """Yield the deltas of an answer, each with its finish reason."""
    if body.get("tools") and body["messages"][-1]["role"] == "user" and _random.random() < 0.7:
        number = _random.randrange(1_000_000)
        function = {"name": "look_up", "arguments": json.dumps({"number": number})}
        call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
        yield {"role": "assistant", "tool_calls": [call]}, None
        yield {}, "tool_calls"
        return
    for _ in range(8):
        yield {"content": " ".join(_random.choices(WORDS, k=6)) + " "}, None
    yield {}, "stop"


def usage_of(length: int) -> dict[str, int]:
    return {"prompt_tokens": length // 4, "completion_tokens": 60, "total_tokens": length // 4 + 60}


def whole(body: Mapping[str, Any], length: int) -> bytes:
    """Return an answer that comes at once."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    reason = None
    for delta, finish in deltas(body):
        message["content"] += delta.get("content", "")
        if "tool_calls" in delta:
            message["tool_calls"] = delta["tool_calls"]
        reason = finish or reason
    choice = {"index": 0, "message": message, "finish_reason": reason}
    answer = {"id": "a", "object": "chat.completion", "model": body["model"], "created": 1, "choices": [choice]}
    return json.dumps(answer | {"usage": usage_of(length)}).encode()


def events(body: Mapping[str, Any], length: int) -> Iterator[bytes]:
    """Yield the events of a streamed answer."""
    head = {"id": "a", "object": "chat.completion.chunk", "model": body["model"], "created": 1}
    for delta, finish in deltas(body):
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        yield f"data: {json.dumps(head | {'choices': [choice]})}\n\n".encode()
    yield f"data: {json.dumps(head | {'choices': [], 'usage': usage_of(length)})}\n\n".encode()
    yield b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def reply(status: int, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def answer(writer: asyncio.StreamWriter, body: Mapping[str, Any], length: int) -> bool:
    """Answer one request. Return False if the connection is to be closed."""
    fault = _random.choice((*STATUSES, *BREAKS)) if _random.random() < FAULTS else ""
    if fault in STATUSES:
        status, error = STATUSES[fault]
        writer.write(reply(status, json.dumps({"error": error}).encode()))
        return True
    if fault == "dropped":
        return False
    if not body.get("stream"):
        writer.write(reply(200, b"<html>" if fault == "noise" else whole(body, length)))
        return True
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for number, event in enumerate(events(body, length)):
        if fault and number == 1:
            if fault == "cut":
                return False
            if fault == "noise":
                writer.write(chunk(b"data: {nonsense\n\n"))
            elif fault == "stall":
                await writer.drain()
                await asyncio.sleep(5)
            break
        writer.write(chunk(event))
    writer.write(b"0\r\n\r\n")
    return True


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection."""
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        goes_on = True
        while goes_on:
            head = await reader.readuntil(b"\r\n\r\n")
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
            length = int(fields.get(b"content-length", b"0"))
            if length:
                goes_on = await answer(writer, json.loads(await reader.readexactly(length)), length)
            else:  # what the model's window is, for one
                writer.write(reply(404, b"{}"))
            await writer.drain()
    writer.close()


async def main() -> None:
    listening = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20)
    print(listening.sockets[0].getsockname()[1], flush=True)
    async with listening:
        await listening.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
