"""MCP servers as of 2025, line by line, for what no server of an SDK does: one over HTTP, which tests tell what to
answer, and ``raw_servers.py NOTE`` over stdio, which dies when it is asked for its tools and finds no note, and writes
there that it has ended."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LOOK: dict[str, Any] = {"name": "look", "inputSchema": {"type": "object"}}


def answer_to(request: dict[str, Any], **answers: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request: one of these, by the last word of its method; one with ``error`` is an error."""
    began = {"capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "1"}}
    known = {
        "initialize": {"protocolVersion": "2025-06-18", **began},
        "list": {"tools": [LOOK]},
        "call": {"content": [{"type": "text", "text": "seen"}]},
        **answers,
    }
    result = known.get(request["method"].rpartition("/")[2])
    if result is None:
        result = {"error": {"code": -32601, "message": "no such method"}}
    return {"jsonrpc": "2.0", "id": request["id"], **(result if "error" in result else {"result": result})}


class RawServer(ThreadingHTTPServer):
    """Answers calls as ``answers`` says. A request with a session that is not in ``sessions`` gets a 404. The first
    call gets the ``stream`` instead, if there is one, and no more. ``arguments`` are those of the last call."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, dict[str, Any]] = {}
        self.sessions: list[str] = []
        self.calls = 0
        self.arguments: dict[str, Any] = {}
        self.not_found: dict[str, Any] | None = None
        self.stream: bytes | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/mcp"


@contextmanager
def raw_server() -> Iterator[RawServer]:
    with RawServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: RawServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *given: Any) -> None:
        return

    def do_GET(self) -> None:
        self._reply(405)

    def do_DELETE(self) -> None:
        self._reply(200)

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        session = self.headers.get("mcp-session-id")
        if request["method"] == "initialize":
            self.server.sessions.append(f"session-{len(self.server.sessions)}")
            self._reply(200, answer_to(request), {"mcp-session-id": self.server.sessions[-1]})
        elif session is not None and session not in self.server.sessions:
            self._reply(404, self.server.not_found)
        elif "id" not in request:
            self._reply(202)
        elif request["method"] == "tools/call":
            self.server.calls += 1
            self.server.arguments = request["params"].get("arguments", {})
            stream, self.server.stream = self.server.stream, None
            if stream is None:
                self._reply(200, answer_to(request, **self.server.answers))
            else:
                self._reply(200, stream, {"Content-Type": "text/event-stream"})
        else:
            self._reply(200, answer_to(request, **self.server.answers))

    def _reply(
        self, status: int, said: dict[str, Any] | bytes | None = None, headers: dict[str, str] | None = None
    ) -> None:
        body = said if isinstance(said, bytes) else b"" if said is None else json.dumps(said).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    note = Path(sys.argv[1])
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["method"] == "tools/list" and not note.exists():
            note.touch()
            sys.exit(1)
        if "id" in asked:
            sys.stdout.write(f"{json.dumps(answer_to(asked))}\n")
            sys.stdout.flush()
    note.write_text("ended")
