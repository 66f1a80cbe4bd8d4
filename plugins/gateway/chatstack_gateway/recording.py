"""Exchanges on disk, in full: a line of JSON for each, as ``chatstack replay`` and ``chatstack tune`` read them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

from chatstack import ChatResponse, WiringError
from chatstack.providers.wires import Form, write_messages
from chatstack_gateway.answer_terms import usage_of
from chatstack_gateway.exchange import Exchange

logger = logging.getLogger("chatstack.gateway")

_SECRETS = frozenset({"authorization", "authorization_token", "api_key", "headers"})
"""Fields of tools that run at the provider (MCP servers), by which their keys travel in a body."""
_HOLDERS = ("tools", "mcp_servers")
_MOST_BYTES = 64 * 1024 * 1024
"""Bytes of the bodies that wait to be written."""


class Recorder:
    """Writes what passes to one file, readable by its owner alone. Headers are not among it."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            name = f"recorded-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}.jsonl"
            self._path = folder / name
            self._file = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        except OSError as error:
            raise WiringError(f"--record {folder}: {error.strerror}") from error
        self._writing = ThreadPoolExecutor(1, "chatstack-recording")
        self._has_failed = False
        self._waiting_bytes = 0
        self.left_out = 0
        """Exchanges that were not written, because the disk was too slow for them."""

    def __call__(self, exchange: Exchange, response: ChatResponse | None, status: int) -> None:
        """Write an exchange that is over: the request as it came, and the answer, if there was one."""
        size = len(exchange.raw)
        if self._waiting_bytes and self._waiting_bytes + size > _MOST_BYTES:
            self.left_out += 1
            if self.left_out == 1:
                logger.warning("exchanges are left out of the recording: the disk is too slow")
            return
        self._waiting_bytes += size
        writing = asyncio.get_running_loop().run_in_executor(self._writing, self._write, exchange, response, status)
        writing.add_done_callback(lambda _: self._written(size))

    def close(self) -> None:
        """Write what is left, and close the file."""
        self._writing.shutdown()
        os.close(self._file)

    def _written(self, size: int) -> None:
        self._waiting_bytes -= size

    def _write(self, exchange: Exchange, response: ChatResponse | None, status: int) -> None:
        row: dict[str, object] = {
            "at": time.time(),
            "status": status,
            "outcome": exchange.outcome,
            "request": without_secrets(exchange.body.value),
        }
        if response is not None:
            row["response"] = answer_of(exchange.form, response)
        line = json.dumps(row).encode() + b"\n"
        begun = os.fstat(self._file).st_size
        try:
            while line:
                line = line[os.write(self._file, line) :]  # a disk that gets full takes a part
        except OSError as error:
            os.ftruncate(self._file, begun)  # the next line would go on behind half a one
            if not self._has_failed:
                logger.warning("exchanges cannot be recorded in %s: %s", self._path, error.strerror)
            self._has_failed = True
        else:
            self._has_failed = False


def answer_of(form: Form, response: ChatResponse) -> dict[str, object]:
    """Return an answer as its API would give it whole."""
    items = write_messages(form, response.messages)
    usage = usage_of(form, response.usage)
    about: dict[str, object] = {"id": response.id, "model": response.model, "usage": usage}
    if form == "chat":
        return {**about, "choices": [{"index": 0, "message": items[-1] if items else None}]}
    if form == "responses":
        return {**about, "output": items}
    content = [block for item in items for block in cast("list[object]", item["content"])]
    return {**about, "role": "assistant", "content": content}


def without_secrets(body: dict[str, object]) -> dict[str, object]:
    """Return a body without the keys that tools of other servers carry in it."""
    found = dict(body)
    for name in _HOLDERS:
        held = found.get(name)
        if isinstance(held, list):
            found[name] = [_scrubbed(each) for each in cast("list[object]", held)]
    return found


def _scrubbed(value: object) -> object:
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, object]", value)
    return {name: "(left out)" if name in _SECRETS and each else each for name, each in fields.items()}
