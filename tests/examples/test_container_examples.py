"""The examples of containers run as they are printed; and what a test of such an app overrides."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import pytest
from dependency_injector import providers
from opentelemetry.sdk.trace import TracerProvider

from chatstack import (
    ChatClient,
    ChatStack,
    ContextWindowGuard,
    ProgressReporter,
    Summarizer,
    Telemetry,
    TokenCounter,
    ToolResultClearer,
    find,
)
from chatstack.di.injectq import conversation, install
from chatstack.testing import ScriptedClient
from tests.di.app import Letters
from tests.warning_lines import without_warnings

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("name", ["injectq_app", "dependency_injector_app"])
def test_an_app_runs_by_itself_without_a_key(name: str) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, env={}, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, without_warnings(done.stderr)) == (0, "")
    *answers, edits = done.stdout.splitlines()
    cities = ("Rome", *example(name).CITIES)
    assert len(answers) == len(cities)
    for answer, city in zip(answers, cities, strict=True):
        assert answer.startswith(f"{city} has {10 + len(city)} degrees")
    assert edits == "edits: compact_context clear_tool_results, compact_context summarize"


class Opened:
    """Takes the place of the stand-in: its clients know whether they were closed."""

    def __init__(self) -> None:
        self.closed: list[bool] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert all(self.closed), "the server goes last"

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[ScriptedClient]:
        number = len(self.closed)
        self.closed.append(False)
        yield ScriptedClient(["Warm."])
        self.closed[number] = True


@pytest.mark.parametrize("name", ["injectq_app", "dependency_injector_app"])
def test_the_http_clients_of_an_app_are_closed_at_the_end(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    app, opened = example(name), Opened()
    app.__dict__["StandIn"] = lambda: opened
    asyncio.run(app.main())
    assert opened.closed == [True, True]
    assert capsys.readouterr().out.count("Warm.") == 1 + len(app.CITIES)


def check_wiring(client: ChatClient, summaries: ChatClient, counter: TokenCounter, telemetry: Telemetry) -> None:
    """Each layer has what is its own."""
    clearer, summarizer = find(client, ToolResultClearer), find(client, Summarizer)
    guard, reporter = find(client, ContextWindowGuard), find(client, ProgressReporter)
    assert clearer is not None
    assert summarizer is not None
    assert guard is not None
    assert reporter is not None
    assert guard.counter is clearer.counter is summarizer.counter is counter
    assert summarizer.summary_client is summaries
    assert guard.telemetry is clearer.telemetry is summarizer.telemetry is reporter.telemetry is telemetry


class TestInjectqApp:
    app = example("injectq_app")

    def container(self, provider: ChatClient | None = None) -> Any:
        return self.app.make_container(provider or ScriptedClient(["Warm."]), ScriptedClient(), TracerProvider())

    def test_each_layer_has_its_own_dependencies_once_per_app_and_once_per_conversation(self) -> None:
        container = self.container()
        of_app = container.get(ChatClient)

        async def run() -> None:
            async with conversation(container) as client:
                assert find(client, ContextWindowGuard) is not find(of_app, ContextWindowGuard)
                for each in (client, of_app):
                    services = (container.get(kind) for kind in (self.app.SummaryClient, TokenCounter, Telemetry))
                    check_wiring(each, *services)

        asyncio.run(run())

    def test_its_node_and_its_conversation_answer(self) -> None:
        container = self.container(ScriptedClient(["Warm.", "Mild.", "Cold."]))

        async def run() -> tuple[str, list[str]]:
            with container.context():
                once = await self.app.ask_once("Rome")
            return once, await self.app.talk(container, ("Oslo", "Lima"))

        assert asyncio.run(run()) == ("Warm.", ["Mild.", "Cold."])

    def test_a_test_overrides_one_layer(self) -> None:
        container, stack = self.container(), self.app.make_stack(ScriptedClient())
        install(container, stack.override("ContextWindowGuard", max_context_tokens=50, strict=True))
        guard = find(container.get(ChatClient), ContextWindowGuard)
        assert guard is not None
        assert (guard.max_context_tokens, guard.strict) == (50, True)
        assert type(guard.counter) is self.app.CharCounter

    def test_a_test_overrides_one_dependency(self) -> None:
        container, fake = self.container(), Letters()
        with container.override(TokenCounter, fake):
            guard = find(container.get(ChatClient), ContextWindowGuard)
        assert guard is not None
        assert guard.counter is fake


class TestDependencyInjectorApp:
    module = example("dependency_injector_app")

    def app(self) -> Any:
        app = self.module.App(config={"max_context_tokens": 600})
        app.provider.override(providers.Object(ScriptedClient(["Warm."])))
        app.summaries.override(providers.Object(ScriptedClient()))
        return app

    def test_each_layer_has_its_own_dependencies_once_per_app_and_once_per_conversation(self) -> None:
        app = self.app()
        of_app = app.chat()
        assert app.chat() is of_app

        async def run() -> None:
            async with app.talk() as client:
                assert find(client, ContextWindowGuard) is not find(of_app, ContextWindowGuard)
                for each in (client, of_app):
                    check_wiring(each, app.summaries(), app.counter(), app.telemetry())

        asyncio.run(run())

    def test_its_handler_and_its_conversation_answer(self) -> None:
        app = self.app()
        app.provider.override(providers.Object(ScriptedClient(["Warm.", "Mild.", "Cold."])))

        async def run() -> tuple[str, list[str]]:
            once = await self.module.ask_once(app.chat(), "Rome")
            async with app.talk() as client:
                return once, await self.module.talk(client, ("Oslo", "Lima"))

        assert asyncio.run(run()) == ("Warm.", ["Mild.", "Cold."])

    def test_a_test_overrides_one_layer(self) -> None:
        app = self.app()
        stack: ChatStack = app.stack()
        with app.stack.override(providers.Object(stack.override("ContextWindowGuard", strict=True))):
            guard = find(app.chat(), ContextWindowGuard)
        assert guard is not None
        assert (guard.max_context_tokens, guard.strict) == (600, True)
        assert guard.counter is app.counter()

    def test_a_test_overrides_one_dependency(self) -> None:
        app, fake = self.app(), Letters()
        app.chat()
        with app.counter.override(providers.Object(fake)):
            guard = find(app.chat(), ContextWindowGuard)
        assert guard is not None
        assert guard.counter is fake
