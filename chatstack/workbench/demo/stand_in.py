"""A server that stands in for a model: OpenAI's chat completions on loopback, answered by rules.

It is a real HTTP server, so clients behave as with a real one: the official SDK, streaming, usage, and the refusal of a
request that is longer than its window. The answers come from ``rules``.
"""

from __future__ import annotations

import json
import socketserver
import sys
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from chatstack.providers.extras import object_or_empty
from chatstack.workbench.demo.rules import BadRequestError, Json, Reply, count_tokens, reply_to

if TYPE_CHECKING:
    from chatstack.providers.openai import OpenAIChatClient

MODEL = "stand-in"
_LARGEST_BODY = 8 * 2**20


class StandIn:
    """Serves on a free port of 127.0.0.1 in a ``with`` block, or from ``start`` to ``close``.

    ``base_url`` is the address for an OpenAI client.

    ``window_tokens`` is the longest request it accepts, by its own count. ``seconds_per_word`` is its pace when it
    streams. ``requests_served`` counts the answers.
    """

    def __init__(self, *, window_tokens: int = 8192, seconds_per_word: float = 0.0) -> None:
        self.window_tokens = window_tokens
        self.seconds_per_word = seconds_per_word
        self.requests_served = 0
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def base_url(self) -> str:
        """The server's address, while it is running."""
        if self._server is None:
            raise RuntimeError("the stand-in is not running: use it in a with block, or call start()")
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[OpenAIChatClient]:
        """Return a client for it over the official SDK. Needs the extra ``openai``, and no key."""
        from openai import DefaultAsyncHttpxClient

        from chatstack.providers.openai import OpenAIChatClient

        # Straight to loopback: a proxy from the environment would only be in the way.
        async with DefaultAsyncHttpxClient(trust_env=False) as direct:
            yield OpenAIChatClient(MODEL, base_url=self.base_url, api_key="none", http_client=direct)

    def start(self) -> Self:
        """Serve from now on, in a thread, and return the server itself."""
        self._server = _Server(self)
        # Seconds between two checks whether the server should stop, so the longest time that closing can take.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="stand-in", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop serving. May be called again."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._server = self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Server(socketserver.ThreadingTCPServer):
    # Not http.server's own class: that one looks up the host's name, which can take seconds.
    daemon_threads = True

    def __init__(self, stand_in: StandIn) -> None:
        self.stand_in = stand_in
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that hangs up; print a traceback for anything else."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    # HTTP 1.0, the default: every connection ends with its answer, so none is left open when the server stops.
    @property
    def _stand_in(self) -> StandIn:
        return cast("_Server", self.server).stand_in

    def do_GET(self) -> None:
        if self.path.rstrip("/") != "/v1/models":
            self._send_error(404, f"there is nothing at {self.command} on this path", code="not_found")
            return
        model = {
            "id": MODEL,
            "object": "model",
            "created": 0,
            "owned_by": "chatstack",
            "context_length": self._stand_in.window_tokens,
        }
        self._send_json(200, {"object": "list", "data": [model]})

    def do_POST(self) -> None:
        body = self._body()
        if self.path.rstrip("/") != "/v1/chat/completions":
            self._send_error(404, f"there is nothing at {self.command} on this path", code="not_found")
            return
        if body is None:
            self._send_error(400, "the body is not a JSON object", code="invalid_json")
            return
        used, window = count_tokens(body), self._stand_in.window_tokens
        if used > window:
            self._send_error(
                400,
                f"This model's maximum context length is {window} tokens. However, your messages resulted in "
                f"{used} tokens. Please reduce the length of the messages.",
                code="context_length_exceeded",
                parameter="messages",
            )
            return
        try:
            reply = reply_to(body)
        except BadRequestError as error:
            self._send_error(400, str(error), code="invalid_messages", parameter="messages")
            return
        self._stand_in.requests_served += 1
        model, most = str(body.get("model") or MODEL), body.get("max_completion_tokens") or body.get("max_tokens")
        answer = _Answer(reply, model, prompt_tokens=used, max_tokens=most if isinstance(most, int) else None)
        if body.get("stream"):
            self._send_stream(answer, with_usage=_wants_usage(body))
        else:
            self._send_json(200, answer.whole())

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the terminal belongs to the demo."""

    def _body(self) -> Json | None:
        stated = self.headers.get("Content-Length") or ""
        length = int(stated) if stated.isdecimal() else 0
        if not 0 < length <= _LARGEST_BODY:
            return None
        try:
            found: object = json.loads(self.rfile.read(length))
        except ValueError:
            return None
        return cast("Json", found) if isinstance(found, dict) else None

    def _send_stream(self, answer: _Answer, *, with_usage: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for chunk in answer.chunks(with_usage=with_usage):
            self._write(f"data: {json.dumps(chunk)}\n\n")
            time.sleep(self._stand_in.seconds_per_word)
        self._write("data: [DONE]\n\n")

    def _send_json(self, status: int, body: Json) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _send_error(self, status: int, message: str, *, code: str, parameter: str | None = None) -> None:
        kind = "invalid_request_error"
        self._send_json(status, {"error": {"message": message, "type": kind, "param": parameter, "code": code}})

    def _write(self, text: str) -> None:
        self.wfile.write(text.encode())
        self.wfile.flush()


class _Answer:
    """One reply in the forms of chat completions: whole, or as the chunks of a stream."""

    def __init__(self, reply: Reply, model: str, *, prompt_tokens: int, max_tokens: int | None) -> None:
        self._arguments = json.dumps(reply.arguments)
        self._is_cut = max_tokens is not None and len(reply.text) > 4 * max_tokens
        self._reply = replace(reply, text=reply.text[: 4 * max_tokens]) if max_tokens is not None else reply
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._call_id = f"call_{uuid.uuid4().hex[:24]}"
        self._created = int(time.time())

    def whole(self) -> Json:
        message: dict[str, object] = {"role": "assistant", "content": self._reply.text or None}
        if self._reply.call:
            message["tool_calls"] = [self._call(self._arguments)]
        choice = {"index": 0, "message": message, "finish_reason": self._finish, "logprobs": None}
        return self._envelope("chat.completion", [choice]) | {"usage": self._usage()}

    def chunks(self, *, with_usage: bool) -> Iterator[Json]:
        yield self._chunk({"role": "assistant", "content": None if self._reply.call else ""})
        if self._reply.call:
            middle = len(self._arguments) // 2
            yield self._chunk({"tool_calls": [{"index": 0} | self._call(self._arguments[:middle])]})
            rest = {"index": 0, "function": {"arguments": self._arguments[middle:]}}
            yield self._chunk({"tool_calls": [rest]})
        for position, word in enumerate(self._reply.text.split(" ") if self._reply.text else ()):
            yield self._chunk({"content": word if position == 0 else f" {word}"})
        yield self._chunk({}, self._finish)
        if with_usage:
            yield self._envelope("chat.completion.chunk", []) | {"usage": self._usage()}

    @property
    def _finish(self) -> str:
        return "tool_calls" if self._reply.call else "length" if self._is_cut else "stop"

    def _call(self, arguments: str) -> dict[str, object]:
        function = {"name": self._reply.call, "arguments": arguments}
        return {"id": self._call_id, "type": "function", "function": function}

    def _chunk(self, delta: Json, finish: str | None = None) -> Json:
        return self._envelope("chat.completion.chunk", [{"index": 0, "delta": delta, "finish_reason": finish}])

    def _envelope(self, kind: str, choices: Sequence[Json]) -> dict[str, object]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model, "choices": choices}

    def _usage(self) -> Json:
        written = max(1, len(self._reply.text + self._reply.call + (self._arguments if self._reply.call else "")) // 4)
        prompt = self._prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def _wants_usage(body: Json) -> bool:
    return object_or_empty(body.get("stream_options")).get("include_usage") is True
