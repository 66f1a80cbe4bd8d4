"""Containers that need nothing of ours: a function from a type to an instance, and ``build`` or ``open``."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import dishka
import pytest
import svcs

from chatstack import BuiltClient, ChatClient, ChatStack, ContextWindowGuard, TokenCounter, WiringError, find
from chatstack.client.wiring import Resolver
from tests.di.app import Journal, Journalled, Letters, Provider, Words, recipe


def svcs_resolver(registry: svcs.Registry, container: svcs.Container) -> Resolver:
    return lambda kind: container.get(kind) if kind in registry else None


def svcs_registry(stack: ChatStack) -> svcs.Registry:
    registry = svcs.Registry()
    registry.register_value(Journal, Journal())
    registry.register_factory(TokenCounter, Words)
    registry.register_value(ChatStack, stack)

    async def conversation(container: svcs.Container) -> AsyncIterator[ChatClient]:
        async with container.get(ChatStack).open(svcs_resolver(registry, container)) as client:
            yield client

    registry.register_factory(ChatClient, conversation)
    return registry


async def asked_in_svcs(registry: svcs.Registry) -> BuiltClient:
    async with svcs.Container(registry) as container:
        client: object = await container.aget_abstract(ChatClient)
        assert isinstance(client, BuiltClient)
        assert (await client.get_response("hello")).text == "hello"
        assert container.get(Journal).closed == []
        again: object = await container.aget_abstract(ChatClient)
        assert again is client
        return client


def test_a_recipe_in_svcs_has_its_services_and_is_closed_with_its_container() -> None:
    provider = Provider()
    registry = svcs_registry(recipe(provider))
    client = asyncio.run(asked_in_svcs(registry))
    assert isinstance(find(client, ContextWindowGuard).counter, Words)  # type: ignore[union-attr]
    assert svcs.Container(registry).get(Journal).closed == [find(client, Journalled)]
    assert not provider.is_closed


def test_a_layer_and_a_dependency_are_overridden_in_svcs() -> None:
    registry = svcs_registry(recipe().override("Journalled", note="faked"))
    registry.register_factory(TokenCounter, Letters)
    client = asyncio.run(asked_in_svcs(registry))
    assert isinstance(find(client, ContextWindowGuard).counter, Letters)  # type: ignore[union-attr]
    assert find(client, Journalled).note == "faked"  # type: ignore[union-attr]


class Services(dishka.Provider):
    """One recipe and its services for the app, one client for each request, which is a conversation."""

    @dishka.provide(scope=dishka.Scope.APP)
    def counter(self) -> TokenCounter:
        return Words()

    @dishka.provide(scope=dishka.Scope.APP)
    def journal(self) -> Journal:
        return Journal()

    @dishka.provide(scope=dishka.Scope.APP)
    def stack(self) -> ChatStack:
        return recipe()

    @dishka.provide(scope=dishka.Scope.REQUEST)
    async def conversation(self, stack: ChatStack, container: dishka.AsyncContainer) -> AsyncIterator[ChatClient]:
        # What a sync resolver cannot wait for is asked for first.
        ready: dict[type, object] = {kind: await container.get(kind) for kind in (TokenCounter, Journal)}
        async with stack.open(ready.get) as client:
            yield client


class Faked(dishka.Provider):
    @dishka.provide(scope=dishka.Scope.APP, override=True)
    def counter(self) -> TokenCounter:
        return Letters()

    @dishka.provide(scope=dishka.Scope.APP, override=True)
    def stack(self) -> ChatStack:
        return recipe().override("Journalled", note="faked")


@pytest.mark.parametrize(("fakes", "counter", "note"), [((), Words, ""), ((Faked(),), Letters, "faked")])
def test_a_recipe_in_dishka_has_its_services_and_is_closed_with_its_scope(
    fakes: tuple[dishka.Provider, ...], counter: type, note: str
) -> None:
    async def run() -> None:
        container = dishka.make_async_container(Services(), *fakes)
        async with container() as request, container() as other:
            client, its_neighbour = await request.get(ChatClient), await other.get(ChatClient)
            assert isinstance(client, BuiltClient)
            assert client is await request.get(ChatClient)
            assert client is not its_neighbour
            assert (await client.get_response("hello")).text == "hello"
        journal = await container.get(Journal)
        assert set(journal.closed) == {find(client, Journalled), find(its_neighbour, Journalled)}
        assert isinstance(find(client, ContextWindowGuard).counter, counter)  # type: ignore[union-attr]
        assert find(client, Journalled).note == note  # type: ignore[union-attr]
        await container.close()

    asyncio.run(run())


def test_a_resolver_of_a_sync_container_says_what_it_has_not() -> None:
    registry = svcs.Registry()
    container = svcs.Container(registry)
    with pytest.raises(WiringError, match=r"layer 'Journalled': journal \(\w+\) is required"):
        recipe().build(svcs_resolver(registry, container))


CONTAINERS = ("injectq", "dependency_injector", "svcs", "dishka")


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        ("import chatstack\nfor name in chatstack.__all__: getattr(chatstack, name)", []),
        ("import chatstack.di", []),
        ("import chatstack.di.injectq", ["injectq"]),
        ("import chatstack.di.dependency_injector", ["dependency_injector"]),
    ],
)
def test_a_container_is_imported_by_its_own_module_alone(code: str, loaded: list[str]) -> None:
    script = f"{code}\nimport sys\nprint(*[name for name in {CONTAINERS!r} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert ran.stdout.split() == loaded
