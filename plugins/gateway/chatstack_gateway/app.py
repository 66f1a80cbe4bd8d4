"""The application: its routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Scope

from chatstack.providers.wires import Form
from chatstack_gateway.admission import is_admin, refused
from chatstack_gateway.around import ModelsRoute, counting
from chatstack_gateway.converted import PATHS
from chatstack_gateway.forwarding import ForwardedRoute
from chatstack_gateway.gateway import Gateway
from chatstack_gateway.handling import ModelRoute
from chatstack_gateway.measuring import METRICS_TYPE, flush
from chatstack_gateway.page import HEADERS, PAGE
from chatstack_gateway.settings import Settings
from chatstack_gateway.stacks import RecipeAround
from chatstack_gateway.workers import TELLING_SECONDS

_BEHIND: Mapping[Form, tuple[str, ...]] = {
    "chat": ("/{prefix:path}/v1", "/{prefix:path}"),
    "responses": ("/{prefix:path}/v1",),
    "messages": ("/{prefix:path}/v1",),
}
"""Prefixes of servers that hold several APIs. Paths of other APIs end in ``/messages``, too: those want a version."""
_OWN: Mapping[str, str] = {
    "/chatstack/": "GET",
    "/chatstack/activity": "GET",
    "/chatstack/editing": "GET, PUT",
    "/chatstack/health": "GET",
    "/metrics": "GET",
}
"""The gateway's own paths, and the methods that they take."""
_ANY = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def make_app(settings: Settings, recipe_around: RecipeAround | None = None) -> Starlette:
    """Return the ASGI application of a gateway::

        make_app(Settings(Upstream("https://api.openai.com")), lambda provider: ChatStack(provider).use(...))

    The recipe comes from ``settings.pipeline``, or from code. Raises ``WiringError`` for what cannot work.
    """
    gateway = Gateway.of(settings, recipe_around)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        telling = asyncio.create_task(_telling(gateway))
        try:
            yield
        finally:
            telling.cancel()
            await gateway.aclose()
            await asyncio.to_thread(flush)

    async def editing(request: Request) -> Response:
        return await _editing(gateway, request)

    async def shown(request: Request) -> Response:
        return _shown(gateway, request)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    model_routes = [
        Route(f"{prefix}{path.removeprefix('/v1')}", ModelRoute(gateway, form, path), methods=["POST"])
        for form, path in PATHS.items()
        for prefix in ("/v1", "", *_BEHIND[form])
    ]
    app = Starlette(
        routes=[
            Route("/chatstack/editing", editing, methods=["GET", "PUT"]),
            Route("/chatstack/health", health, methods=["GET"]),
            Route("/chatstack/", shown, methods=["GET"]),
            Route("/chatstack/activity", shown, methods=["GET"]),
            Route("/metrics", shown, methods=["GET"]),
            _OwnRoute("/{path:path}", _unknown, methods=_ANY),
            *model_routes,
            *(_routes_around(gateway, settings.api) if settings.api else ()),
            Route("/v1/{path:path}", ForwardedRoute(gateway), methods=_ANY),
            Route("/{path:path}", ForwardedRoute(gateway), methods=_ANY),
        ],
        lifespan=lifespan,
    )
    app.state.gateway = gateway
    return app


class _OwnRoute(Route):
    """The route of all that is meant for the gateway, misspelt or not. It goes no further, as it may hold the
    administrator's token: so this stands in front of the routes to upstream."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        first = str(scope["path"]).lstrip("/").partition("/")[0]
        return super().matches(scope) if first.lower() in ("chatstack", "metrics") else (Match.NONE, {})


async def _unknown(request: Request) -> Response:
    """Name the right call to somebody who made a wrong one of the gateway's own."""
    path = request.url.path
    methods = _OWN.get(path)
    if methods is not None:
        return JSONResponse({"error": f"{path} takes {methods}"}, 405, {"allow": methods})
    right = [each for each in _OWN if each.strip("/") == path.strip("/").lower()] or _OWN
    return JSONResponse({"error": f"there is no {path} here, but {', '.join(right)}"}, 404)


def _routes_around(gateway: Gateway, api: Form) -> list[Route]:
    """Return the routes around the three that are answered, not forwarded, where upstream speaks one API alone."""
    models = ModelsRoute(gateway)
    found: list[tuple[str, ASGIApp, str]] = [("/models", models, "GET"), ("/models/{model:path}", models, "GET")]
    if api != "messages":
        found.append(("/messages/count_tokens", counting(gateway, "messages"), "POST"))
    if api != "responses":
        found.append(("/responses/input_tokens", counting(gateway, "responses"), "POST"))
    prefixes = ("/v1", "", "/{prefix:path}/v1")
    return [Route(f"{prefix}{path}", app, methods=[method]) for prefix in prefixes for path, app, method in found]


async def _telling(gateway: Gateway) -> None:
    """Tell the other processes of this gateway what this one has done, every two seconds."""
    while gateway.settings.state is not None:
        await asyncio.to_thread(gateway.notices.write)
        await asyncio.sleep(TELLING_SECONDS)


def _shown(gateway: Gateway, request: Request) -> Response:
    """Return the page, its figures, or the metrics, to those who may ask."""
    refusal = refused(gateway.settings, request.scope["headers"], by_browser=True)
    if refusal is not None:
        wanted = {"www-authenticate": 'Basic realm="chatstack gateway: the token is the password"'}
        return Response(refusal.body(None), refusal.status, wanted, "application/json")
    if request.url.path == "/metrics":
        return Response(gateway.notices.metrics(), media_type=METRICS_TYPE)
    if request.url.path.endswith("/activity"):
        return JSONResponse(gateway.notices.activity(), headers=HEADERS)
    return Response(PAGE, media_type="text/html", headers=HEADERS)


async def _editing(gateway: Gateway, request: Request) -> Response:
    """Tell whether editing is on, or turn it on or off: ``{"editing": false}``."""
    if not is_admin(gateway.settings, request.scope["headers"]):
        return JSONResponse({"error": "this wants the administrator's token"}, 403)
    if request.method == "PUT":
        try:
            wanted = (await request.json()).get("editing")
        except (ValueError, AttributeError):
            wanted = None
        if not isinstance(wanted, bool):
            return JSONResponse({"error": 'expected {"editing": true} or {"editing": false}'}, 400)
        gateway.switch.turn(on=wanted)
    return JSONResponse({"editing": not gateway.switch.is_off})
