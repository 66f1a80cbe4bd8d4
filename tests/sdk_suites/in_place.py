"""A pytest plugin for an SDK's own tests: every asynchronous client that they make is a wrapped one.

``CHATSTACK_SDK`` names the SDK, ``CHATSTACK_IN_PLACE`` what is put around it: nothing, ``empty`` (a stack without a
layer) or ``layers`` (a tool loop, a guard and a tracer below every trigger). A client becomes what ``wrap`` makes of it
as soon as it has been made, so copies and helpers of the SDK's get it, too. What came of each test, and which calls
went through the stack's ``send``, is written to the file ``CHATSTACK_OUTCOMES``.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from chatstack import ChatStack, ContextWindowGuard, FunctionInvoker, Telemetry, wrap
from chatstack.client.stream import ChatStream
from chatstack.providers.wrapping import sdk_clients
from chatstack.providers.wrapping.turns import Turn, current_turn
from chatstack.testing import TelemetryCapture
from chatstack.values.requests import ChatRequest

SDK = os.environ.get("CHATSTACK_SDK", "")
PLACE = os.environ.get("CHATSTACK_IN_PLACE", "")
ENDS = {"openai": ("/chat/completions", "/responses"), "anthropic": ("/v1/messages",)}
"""How the addresses end whose calls a stack goes around."""

outcomes: dict[str, str] = {}
calls: dict[str, Counter[str]] = {}
"""Of each test, calls of these APIs: ``sent`` by the stack's innermost client; over the network ``through`` the stack
and ``past`` it; and those past it that ``wrap`` leaves alone, as they are ``malformed``."""
_running = ""
_is_wrapping = False
_seams: list[object] = []


def count(what: str) -> None:
    calls.setdefault(_running, Counter())[what] += 1


def stack() -> tuple[ChatStack, Any]:
    """Return the stack to put in, and what resolves its services."""
    if PLACE == "empty":
        return ChatStack(trace_model_calls=False), None
    capture = TelemetryCapture()
    layers = ChatStack().use(FunctionInvoker, tools=[]).use(ContextWindowGuard, max_context_tokens=50_000_000)
    return layers, {Telemetry: capture.telemetry}.__getitem__


def put_around(kind: type) -> None:
    """Make each client of a class a wrapped one, once all of its class's ``__init__`` are through."""
    bare: Callable[..., None] = kind.__init__  # type: ignore[misc]

    @functools.wraps(bare)
    def init(self: Any, *given: Any, **named: Any) -> None:
        global _is_wrapping
        bare(self, *given, **named)
        is_copy = any(named.get("http_client") is each for each in _seams)
        if type(self) is not kind or _is_wrapping or is_copy:
            return
        _is_wrapping = True
        try:
            recipe, resolve = stack()
            made: Any = wrap(self, recipe, resolve=resolve)
        finally:
            _is_wrapping = False
        _seams.append(made._client)
        self.__dict__.update(made.__dict__)

    kind.__init__ = init  # type: ignore[misc]


def all_of(kind: type) -> list[type]:
    found: list[type] = [kind]
    subclasses: list[type] = kind.__subclasses__()
    for below in subclasses:
        found += all_of(below)
    return found


def count_sends() -> None:
    """Count what goes over the network to the APIs that a stack goes around, and what came to the innermost send."""
    http = importlib.import_module("httpx2").AsyncClient
    send, provider_send, turn_of = http.send, sdk_clients.WrappedClient.send, sdk_clients._turn_of

    async def sent(self: Any, request: Any, **options: Any) -> Any:
        if request.method == "POST" and request.url.path.rstrip("/").endswith(ENDS[SDK]):
            count("past" if current_turn() is None else "through")
        return await send(self, request, **options)

    async def innermost(self: Any, request: ChatRequest, /) -> ChatStream:
        count("sent")
        return await provider_send(self, request)

    def turned(request: Any, *given: Any) -> Turn | None:
        turn = turn_of(request, *given)
        if turn is None and request.method == "POST" and request.url.path.rstrip("/").endswith(ENDS[SDK]):
            count("malformed")
        return turn

    http.send = sent
    sdk_clients._turn_of = turned  # type: ignore[assignment]
    sdk_clients.WrappedClient.send = innermost  # type: ignore[method-assign]


def put_in_place() -> None:
    module = importlib.import_module(SDK)
    for extra in ("lib.bedrock", "lib.azure", "lib.aws"):  # subclasses that are imported when asked for
        try:
            importlib.import_module(f"{SDK}.{extra}")
        except ImportError:
            continue
    count_sends()
    if PLACE:
        for kind in all_of(module.AsyncOpenAI if SDK == "openai" else module.AsyncAnthropic):
            put_around(kind)


def pytest_unconfigure() -> None:
    server.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    global _running
    _running = item.nodeid
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        kept = outcomes.get(report.nodeid)
        outcomes[report.nodeid] = kept if kept == "failed" else report.outcome


def pytest_sessionfinish() -> None:
    Path(os.environ["CHATSTACK_OUTCOMES"]).write_text(json.dumps({"outcomes": outcomes, "calls": calls}))


if SDK:  # before their conftest.py is read, which asks where the server is
    stand_in = importlib.import_module("stand_in")
    base = importlib.import_module(f"{SDK}._base_client")
    server = stand_in.StandIn()
    os.environ["TEST_API_BASE_URL"] = server.url
    for each in (base.SyncAPIClient, base.AsyncAPIClient):
        stand_in.noting(server, each)
    put_in_place()
