"""A server for an SDK's own tests: it answers each call with an example of the type that the SDK is about to read.

Those tests are written for a mock server that reads the API's description, which the source distribution has not. What
an answer has to look like is known to the SDK as well: ``noting`` tells the server with each request, which makes the
smallest value of it, or, of the three APIs that a stack goes around, an answer that says something.
"""

from __future__ import annotations

import datetime
import enum
import json
import threading
import types
import typing
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pydantic

from chatstack.testing.provider_server import event_bytes

_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
_CHAT = {"id": "c", "created": 1, "model": "m"}
_TEXT = {"type": "output_text", "text": "fine", "annotations": []}
_ITEM = {"type": "message", "id": "i", "role": "assistant", "status": "completed", "content": [_TEXT]}
_TOKENS = {"input_tokens": 1, "output_tokens": 1}
_MESSAGE = {"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": None, "stop_sequence": None}

_SAID: dict[str, dict[str, Any]] = {
    "/chat/completions": {
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "fine", "refusal": None},
                "logprobs": None,
            }
        ],
        "usage": _USAGE,
    },
    "/responses": {"status": "completed", "output": [_ITEM]},
    "/v1/messages": {"content": [{"type": "text", "text": "fine"}], "stop_reason": "end_turn"},
}
_EVENTS: dict[str, list[dict[str, Any]]] = {
    "/chat/completions": [
        {
            **_CHAT,
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}],
        }
    ],
    "/responses": [
        {"type": "response.created", "response": {"id": "r", "object": "response", "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**_ITEM, "content": []}},
        {"type": "response.output_item.done", "output_index": 0, "item": _ITEM},
        {
            "type": "response.completed",
            "response": {"id": "r", "object": "response", "status": "completed", "model": "m", "output": [_ITEM]},
        },
    ],
    "/v1/messages": [
        {"type": "message_start", "message": {**_MESSAGE, "content": [], "usage": _TOKENS}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "fine"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": _TOKENS},
        {"type": "message_stop"},
    ],
}


def example(kind: Any, depth: int = 0) -> Any:
    """Return the smallest value of a type, as JSON has it: what is not required is left out, lists hold one item."""
    kind = getattr(kind, "__value__", kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return example(args[0], depth)
    if origin is typing.Literal:
        return args[0]
    if origin in (typing.Union, types.UnionType):
        return None if type(None) in args else example(args[0], depth)
    if origin in (list, typing.Sequence) or kind is list:
        return [example(args[0], depth + 1)] if args and depth < 8 else []
    if isinstance(origin or kind, type):
        return _of_class(origin or kind, kind, depth)
    return "string"


def _of_class(kind: type, whole: Any, depth: int) -> Any:
    if issubclass(kind, pydantic.BaseModel):
        known = typing.cast("type[pydantic.BaseModel]", whole if isinstance(whole, type) else kind)
        needed = {name: each for name, each in known.model_fields.items() if each.is_required()}
        return {each.alias or name: example(each.annotation, depth + 1) for name, each in needed.items()}
    if issubclass(kind, enum.Enum):
        return next(iter(kind)).value
    simple: tuple[tuple[type, Any], ...] = (
        (bool, True), (int, 0), (float, 0.5), (dict, {}), (datetime.datetime, "2026-01-01T00:00:00Z"),
        (datetime.date, "2026-01-01"), (type(None), None),
    )  # fmt: skip
    return next((value for each, value in simple if issubclass(kind, each)), "string")


class StandIn:
    """The server. ``kinds`` are what is read of the answers, by method and path."""

    def __init__(self) -> None:
        self.kinds: dict[tuple[str, str], Any] = {}
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                form, told = owner.answered(self.command, self.path.partition("?")[0], body)
                self.send_response(200)
                self.send_header("Content-Type", form)
                self.send_header("Content-Length", str(len(told)))
                self.end_headers()
                self.wfile.write(told)

            def handle(self) -> None:
                with suppress(ConnectionError):  # a client that has seen enough
                    super().handle()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            setattr(Handler, f"do_{method}", Handler.answer)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Return where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answered(self, method: str, path: str, body: bytes) -> tuple[str, bytes]:
        """Return the media type and the body of an answer."""
        if path in _EVENTS and b'"stream":true' in body.replace(b" ", b""):
            events = [event_bytes(each, is_named=True) for each in _EVENTS[path]]
            end = b"" if path == "/v1/messages" else event_bytes("[DONE]")
            return "text/event-stream", b"".join([*events, end])
        kind = self.kinds.get((method, path), object)
        if kind in (str, bytes, type(None)) or (not isinstance(kind, type) and typing.get_origin(kind) is None):
            return "application/octet-stream", b""
        told = example(kind)
        if path in _SAID and method == "POST":
            told = {**told, **_SAID[path]}
        return "application/json", json.dumps(told).encode()


def noting(stand_in: StandIn, kind: type) -> None:
    """Make clients of a class say to the server what they are about to read."""
    bare = kind.request  # type: ignore[attr-defined]

    def request(self: Any, cast_to: Any, options: Any, **named: Any) -> Any:
        path = options.url.partition("?")[0]
        stand_in.kinds[(options.method.upper(), path)] = cast_to
        return bare(self, cast_to, options, **named)

    kind.request = request  # type: ignore[attr-defined]
