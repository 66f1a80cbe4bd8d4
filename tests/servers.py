"""Real servers for tests: each listens on loopback on a free port, and is stopped by whoever started it."""

from __future__ import annotations

import importlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_START_SECONDS = 300.0


@dataclass(frozen=True)
class MockServer:
    """A running ``llmock serve``. What it does next is scripted with ``script``."""

    url: str

    @property
    def openai_url(self) -> str:
        """What to pass to an OpenAI client as ``base_url``."""
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        """What to pass to an Anthropic client as ``base_url``."""
        return f"{self.url}/anthropic"

    def script(self, *behaviors: dict[str, object]) -> None:
        """Forget everything, then queue behaviours for the requests to come."""
        self.reset()
        if behaviors:
            self._call("POST", "/_llmock/scenario", {"behaviors": list(behaviors)})

    def reset(self) -> None:
        """Forget recorded requests and queued behaviours."""
        self._call("POST", "/_llmock/reset", {})

    def bodies(self) -> list[dict[str, object]]:
        """The bodies of all requests since the last reset, oldest first; retries count."""
        return [each["body"] for each in self.records()]  # type: ignore[misc]

    def records(self) -> list[dict[str, object]]:
        """All requests since the last reset, with status and body."""
        answer = self._call("GET", "/_llmock/requests")
        found = answer["requests"]
        assert isinstance(found, list)
        return found

    def _call(self, method: str, path: str, body: dict[str, object] | None = None) -> dict[str, object]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        with urllib.request.urlopen(request, timeout=300) as answer:
            decoded = json.loads(answer.read())
        assert isinstance(decoded, dict)
        return decoded


@contextmanager
def mock_server(*, context_window: int | None = None, response_style: str = "varied") -> Iterator[MockServer]:
    """Start ``llmock serve`` on a free port and stop it at the end."""
    port = free_port()
    options = ["--port", str(port), "--log-level", "error", "--response-style", response_style]
    if context_window is not None:
        options += ["--context-window", str(context_window)]
    command = [sys.executable, "-c", "from llmock.cli import app; app()", "serve", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    with stopped_at_the_end(process):
        _wait_for(process, f"{url}/health")
        yield MockServer(url)


@contextmanager
def stopped_at_the_end(process: subprocess.Popen[bytes], seconds: float = 10) -> Iterator[None]:
    """Ask it to end, and make it end if it does not in that time."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def http_library(*, of_openai: bool = True) -> Any:
    """The HTTP library that an SDK takes a client of: for openai, its major version decides; Anthropic has one only."""
    import openai

    return importlib.import_module("httpx" if of_openai and openai.__version__.startswith("2.") else "httpx2")


def answering_with(
    body: bytes | AsyncIterator[bytes],
    content_type: str = "application/json",
    *,
    status: int = 200,
    of_openai: bool = True,
) -> Any:
    """An HTTP client for an SDK, on no network, that answers every request with these bytes or pieces."""
    http = http_library(of_openai=of_openai)

    def answer(request: object) -> object:
        return http.Response(status, content=body, headers={"content-type": content_type})

    return http.AsyncClient(transport=http.MockTransport(answer))


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


@contextmanager
def silent_server() -> Iterator[str]:
    """A server that accepts connections and never answers; gives its base url."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def _wait_for(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server stopped at once, with code {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise TimeoutError(f"the server did not answer within {_START_SECONDS:g} seconds")
