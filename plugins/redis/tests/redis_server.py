"""A real Redis server for tests: on loopback, on a free port, in a folder of its own, and stopped at the end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

_START_SECONDS = 30.0


class RedisServer:
    """A server that can be stopped, frozen, and started again on the same port."""

    def __init__(self, binary: str, folder: str, options: tuple[str, ...]) -> None:
        self.port = free_port()
        self.folder = folder
        self._command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", folder]
        self._command += ["--save", "", "--appendonly", "no", *options]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self, *, password: str | None = None) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"redis-server stopped at once, with code {self._process.returncode}")
            try:
                self.asked("PING", password=password)
            except redis.ConnectionError:
                time.sleep(0.02)
            else:
                return
        raise TimeoutError(f"redis-server did not answer within {_START_SECONDS:g} seconds")

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kill(self) -> None:
        """It ends at once, as a machine does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def freeze(self) -> None:
        """It accepts connections, as the kernel does that, and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def asked(self, *command: str | bytes | float, password: str | None = None) -> Any:
        """The answer to a command, by a connection of its own."""
        with redis.Redis(port=self.port, password=password, socket_timeout=10) as client:
            return client.execute_command(*command)  # type: ignore[no-untyped-call, unused-ignore]


@contextmanager
def redis_server(*options: str, password: str | None = None) -> Iterator[RedisServer]:
    """Start one, and stop it. Skips where the program is not installed; on CI that is a failure."""
    binary = shutil.which("redis-server")
    if binary is None:
        missing = "redis-server is not installed (on Debian: apt-get install redis-server)"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(binary, folder, options)
        try:
            server.start(password=password)
            yield server
        finally:
            server.stop()


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port
