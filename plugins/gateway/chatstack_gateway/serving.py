"""The server: uvicorn, told what a gateway wants of it."""

from __future__ import annotations

import logging

import uvicorn
from starlette.types import ASGIApp

from chatstack_gateway.settings import Settings

logger = logging.getLogger("chatstack.gateway")


def config_of(settings: Settings, app: ASGIApp) -> uvicorn.Config:
    """Return uvicorn's configuration: no headers of its own, no log of addresses and queries, and open answers get
    their time after SIGTERM."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        ws="none",
        http="httptools",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, round(settings.limits.drain_seconds)),
    )


def serve(settings: Settings) -> int:
    """Serve until told to stop, and return the exit code."""
    from chatstack_gateway.app import make_app
    from chatstack_gateway.measuring import set_up

    set_up()
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    server = uvicorn.Server(config_of(settings, make_app(settings)))
    what = "watching" if settings.observe else "editing"
    logger.info("%s requests to %s at http://%s:%s", what, settings.upstream.host, settings.host, settings.port)
    server.run()
    return 0 if server.started else 2
