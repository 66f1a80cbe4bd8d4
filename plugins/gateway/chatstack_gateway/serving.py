"""The server: uvicorn, told what a gateway wants of it, in one process or several."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.supervisors import Multiprocess

from chatstack_gateway.protocol import Protocol
from chatstack_gateway.settings import Settings

logger = logging.getLogger("chatstack.gateway")

_ARGUMENTS, _STATE = "CHATSTACK_GATEWAY_ARGUMENTS", "CHATSTACK_GATEWAY_STATE"
"""Variables by which a worker is told what the command was told. Secrets are in variables of their own already."""


def config_of(settings: Settings, app: ASGIApp | str) -> uvicorn.Config:
    """Return uvicorn's configuration: no headers of its own, no log of addresses and queries, and open answers get
    their time after SIGTERM."""
    return uvicorn.Config(
        app,
        factory=isinstance(app, str),
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        ws="none",
        http=cast("type[asyncio.Protocol]", partial(Protocol, head_seconds=settings.limits.head_seconds)),
        timeout_keep_alive=75,
        # A worker that does not answer within it is killed, with all its open answers: a busy machine is no reason.
        timeout_worker_healthcheck=60,
        timeout_graceful_shutdown=max(1, round(settings.limits.drain_seconds)),
    )


def serve(settings: Settings, arguments: Sequence[str]) -> int:
    """Serve until told to stop, and return the exit code. ``arguments`` are those that the settings were made of."""
    _log()
    if settings.workers > 1:
        return _several(settings, arguments)
    server = _Server(settings)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, server.handle_exit)  # as SIGTERM; it would end all open answers
    server.run()
    return 0 if server.started else 2


def worker() -> ASGIApp:
    """Return the application of one of several processes, for uvicorn."""
    from chatstack_gateway.command import settings_from

    _log()
    _end_with_supervisor()
    settings = settings_from(json.loads(os.environ[_ARGUMENTS]))
    return _made(replace(settings, state=Path(os.environ[_STATE])))


def _several(settings: Settings, arguments: Sequence[str]) -> int:
    from chatstack_gateway.gateway import check

    check(settings)  # here, or each worker would fail by itself, again and again
    folder = tempfile.mkdtemp(prefix="chatstack-gateway-")
    os.environ.update({_ARGUMENTS: json.dumps(list(arguments)), _STATE: folder})
    config = config_of(settings, "chatstack_gateway.serving:worker")
    try:
        bound = config.bind_socket()
        _say_where(settings, bound)
        _Supervisor(config, sockets=[bound]).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _say_where(settings: Settings, bound: socket.socket) -> None:
    what = "watching" if settings.observe else "editing"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    port = bound.getsockname()[1]  # the one that the system chose, for --port 0
    logger.info("%s requests to %s at http://%s:%s", what, settings.upstream.host, host, port)


class _Server(uvicorn.Server):
    """uvicorn's server. Once it listens, it says where."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(config_of(settings, _made(settings)))
        self._settings = settings

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            _say_where(self._settings, self.servers[0].sockets[0])


class _Supervisor(Multiprocess):
    """uvicorn's supervisor. Told to stop, it lets nobody connect and wait while the workers' open answers end."""

    def terminate_all(self) -> None:
        for each in self.sockets:
            each.close()
        super().terminate_all()


def _end_with_supervisor() -> None:
    """Drain and end this worker when its supervisor is gone: nobody could stop it any more, and it holds the port.

    It may be gone already: what multiprocessing knows of the parent tells that as well, the parent's id would not.
    """
    supervisor = multiprocessing.parent_process()
    if supervisor is None:
        return

    def watch() -> None:
        supervisor.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True, name="chatstack-supervisor-watch").start()


def _made(settings: Settings) -> ASGIApp:
    from chatstack_gateway.app import make_app
    from chatstack_gateway.measuring import set_up

    set_up()
    return make_app(settings)


def _log() -> None:
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.INFO)
    server = logging.getLogger("uvicorn.error")
    server.setLevel(logging.WARNING)
    server.addFilter(_tells_a_fault)


def _tells_a_fault(record: logging.LogRecord) -> bool:
    """Return False for the traceback of what was cancelled. Only the end of the server does that: uvicorn says so, and
    how many answers were open."""
    error = record.exc_info[1] if record.exc_info else None
    is_lifespan = record.getMessage().rstrip().endswith("CancelledError")  # told as text
    return not (is_lifespan or isinstance(error, asyncio.CancelledError))
