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
from chatstack.values.responses import Usage
from chatstack_gateway.exchange import Exchange

logger = logging.getLogger("chatstack.gateway")

_SECRETS = frozenset({"authorization", "authorization_token", "api_key", "headers"})
"""Fields of tools that run at the provider (MCP servers), by which their keys travel in a body."""
_HOLDERS = ("tools", "mcp_servers")


class Recorder:
    """Writes what passes to one file, readable by its owner alone. Headers are not among it."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            name = f"recorded-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}.jsonl"
            self._file = os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        except OSError as error:
            raise WiringError(f"--record {folder}: {error.strerror}") from error
        self._writing = ThreadPoolExecutor(1, "chatstack-recording")
        self._has_failed = False

    def __call__(self, exchange: Exchange, response: ChatResponse | None, status: int) -> None:
        """Write an exchange that is over: the request as it came, and the answer, if there was one."""
        asyncio.get_running_loop().run_in_executor(self._writing, self._write, exchange, response, status)

    def close(self) -> None:
        """Write what is left, and close the file."""
        self._writing.shutdown()
        os.close(self._file)

    def _write(self, exchange: Exchange, response: ChatResponse | None, status: int) -> None:
        row: dict[str, object] = {
            "at": time.time(),
            "status": status,
            "outcome": exchange.outcome,
            "request": without_secrets(exchange.body.value),
        }
        if response is not None:
            row["response"] = answer_of(exchange.form, response)
        try:
            os.write(self._file, json.dumps(row).encode() + b"\n")
        except OSError as error:
            if not self._has_failed:
                logger.warning("exchanges cannot be recorded: %s", error.strerror)
            self._has_failed = True


def answer_of(form: Form, response: ChatResponse) -> dict[str, object]:
    """Return an answer as its API would give it whole."""
    items = write_messages(form, response.messages)
    usage = _usage_of(form, response.usage)
    about: dict[str, object] = {"id": response.id, "model": response.model, "usage": usage}
    if form == "chat":
        return {**about, "choices": [{"index": 0, "message": items[-1] if items else None}]}
    if form == "responses":
        return {**about, "output": items}
    content = [block for item in items for block in cast("list[object]", item["content"])]
    return {**about, "role": "assistant", "content": content}


def _usage_of(form: Form, usage: Usage) -> dict[str, object]:
    if form == "messages":
        plain = max(0, usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens)
        return {
            "input_tokens": plain,
            "cache_read_input_tokens": usage.cache_read_tokens,
            "cache_creation_input_tokens": usage.cache_write_tokens,
            "output_tokens": usage.output_tokens,
        }
    taken, said = ("prompt", "completion") if form == "chat" else ("input", "output")
    details = {"cached_tokens": usage.cache_read_tokens, "cache_write_tokens": usage.cache_write_tokens}
    return {
        f"{taken}_tokens": usage.input_tokens,
        f"{said}_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        f"{taken}_tokens_details": details,
        f"{said}_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


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
