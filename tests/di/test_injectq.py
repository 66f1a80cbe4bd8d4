"""A recipe in an injectq container: per app, per conversation, in nodes, and changed in tests."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest
from injectq import Inject, InjectionError, InjectQ, inject

from chatstack import (
    BuiltClient,
    ChatClient,
    ChatFronts,
    ChatRequest,
    ChatStack,
    ContextWindowGuard,
    Message,
    ProgressReporter,
    Summarizer,
    SummaryClient,
    Telemetry,
    TokenCounter,
    ToolResultClearer,
    WiringError,
    find,
)
from chatstack.client.stream import ChatStream
from chatstack.di.injectq import conversation, install, resolver
from chatstack.testing import ScriptedClient, TelemetryCapture
from tests.di.app import Journal, Journalled, Letters, Provider, Words, recipe
from tests.di.installed import container_of, in_conversation


def test_each_layer_gets_its_own_dependencies_from_the_container() -> None:
    container, cheap, capture = container_of(), ScriptedClient(["a summary"]), TelemetryCapture()
    container.bind_instance(SummaryClient, cheap)
    container.bind_instance(Telemetry, capture.telemetry)
    client = container.get(ChatClient)
    guard, clearer = find(client, ContextWindowGuard), find(client, ToolResultClearer)
    summarizer, reporter = find(client, Summarizer), find(client, ProgressReporter)
    assert guard is not None
    assert clearer is not None
    assert summarizer is not None
    assert reporter is not None
    assert guard.counter is clearer.counter is container.get(TokenCounter)
    assert summarizer.summary_client is cheap
    assert reporter.telemetry is capture.telemetry
    assert asyncio.run(client.get_response("hello")).text == "hello"
    assert capture.tree() == [("invoke_agent chat", [("chat script", [])])]


def test_the_client_is_made_when_it_is_first_asked_for_with_what_is_bound_by_then() -> None:
    container = InjectQ()
    install(container, recipe())
    journal = Journal()
    container.bind_instance(Journal, journal)
    assert journal.made == []
    client = container.get(ChatClient)
    assert [layer.journal for layer in journal.made] == [journal]
    assert isinstance(client, BuiltClient)


def test_everybody_gets_the_client_of_the_app() -> None:
    container = container_of()
    client = container.get(ChatClient)

    def node(proxy: ChatClient = Inject[ChatClient], fronts: ChatFronts = Inject[ChatFronts]) -> bool:  # type: ignore[assignment]
        return bool(proxy) and proxy.send == client.send and fronts.send == client.send

    @inject
    async def injected(given: ChatClient = Inject[ChatClient], fronts: ChatFronts = Inject[ChatFronts]) -> bool:  # type: ignore[assignment]
        return given is client and fronts is client

    with container.context():
        assert node()
        assert asyncio.run(injected())
    assert container[ChatClient] is container.get(ChatFronts) is client
    assert asyncio.run(container.aget(ChatClient)) is client
    assert len(container.get(Journal).made) == 1


def test_threads_that_ask_at_once_get_one_client() -> None:
    container, start, got = container_of(), threading.Barrier(16), []

    def ask() -> None:
        start.wait()
        got.append(container.get(ChatClient))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 16
    assert {id(client) for client in got} == {id(container.get(ChatClient))}
    assert len(container.get(Journal).made) == 1


def test_a_conversation_has_layers_of_its_own_which_are_closed_and_leaves_the_provider_open() -> None:
    provider = Provider()
    container = container_of(recipe(provider))
    journal = container.get(Journal)
    of_app = container.get(ChatClient)

    async def run() -> None:
        async with conversation(container) as one, conversation(container) as other:
            assert len({id(find(each, Journalled)) for each in (one, other, of_app)}) == 3
            assert find(one, ContextWindowGuard).memory is find(of_app, ContextWindowGuard).memory  # type: ignore[union-attr]
            assert journal.closed == []
        assert {id(layer) for layer in journal.closed} == {id(find(one, Journalled)), id(find(other, Journalled))}
        assert (await of_app.get_response("still here")).text == "still here"

    asyncio.run(run())
    assert not provider.is_closed


def test_a_conversation_that_fails_is_closed() -> None:
    container = container_of()

    async def run() -> None:
        async with conversation(container):
            raise RuntimeError("the network")

    with pytest.raises(RuntimeError, match="the network"):
        asyncio.run(run())
    assert len(container.get(Journal).closed) == 1


@pytest.mark.slow
def test_a_thousand_conversations_at_once_see_only_their_own() -> None:
    container = container_of(recipe(Provider(delay_seconds=0)))

    async def talk(number: int) -> str:
        async with conversation(container) as client:
            history = [Message.user(f"{number}a")]
            history += (await client.get_response(history)).messages
            history.append(Message.user(f"{number}b"))
            return (await client.get_response(history)).text

    async def run() -> list[str]:
        return await asyncio.gather(*(talk(number) for number in range(1_000)))

    assert asyncio.run(run()) == [f"{number}a {number}b" for number in range(1_000)]
    journal = container.get(Journal)
    assert len(journal.made) == len(journal.closed) == 1_000


def test_the_last_recipe_that_is_installed_before_the_first_get_counts() -> None:
    container = container_of()
    install(container, recipe().without("Summarizer"))
    assert find(container.get(ChatClient), Summarizer) is None


def test_a_test_overrides_a_layer_in_a_fresh_container() -> None:
    client = container_of(recipe().override("Journalled", note="faked")).get(ChatClient)
    assert find(client, Journalled).note == "faked"  # type: ignore[union-attr]


def test_a_test_overrides_a_layer_in_the_container_of_the_app() -> None:
    container = container_of()
    before = container.get(ChatClient)
    with container.override(ChatStack, recipe().without("Journalled")):
        assert find(container.get(ChatClient), Journalled) is None
        assert container.get(ChatClient) is container.get(ChatClient)
    assert find(container.get(ChatClient), Journalled) is not None
    assert find(before, Journalled) is not None


def test_a_test_overrides_a_dependency_also_after_the_client_was_made() -> None:
    container = container_of()
    container.get(ChatClient)

    def counter() -> object:
        return find(container.get(ChatClient), ContextWindowGuard).counter  # type: ignore[union-attr]

    async def counter_of_a_conversation() -> object:
        async with conversation(container) as client:
            return find(client, ContextWindowGuard).counter  # type: ignore[union-attr]

    fake = Letters()
    with container.override(TokenCounter, fake):
        assert counter() is fake
        assert asyncio.run(counter_of_a_conversation()) is fake
    assert isinstance(counter(), Words)
    assert isinstance(asyncio.run(counter_of_a_conversation()), Words)


class Bare:
    """A client that knows nothing of the fronts."""

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await ScriptedClient(["bare"]).send(request)


@pytest.mark.parametrize("kind", [ChatClient, ChatFronts])
@pytest.mark.parametrize("was_asked", [False, True])
def test_a_fake_under_either_type_reaches_everybody_until_the_override_ends(kind: type, was_asked: bool) -> None:
    container, fake = container_of(), ScriptedClient(["canned"])
    if was_asked:
        assert isinstance(container.get(ChatClient), BuiltClient)
    resolve = resolver(container)
    with container.override(kind, fake):
        assert container.get(ChatClient) is container.get(ChatFronts) is fake
        assert asyncio.run(container.aget(ChatClient)) is asyncio.run(container.aget(ChatFronts)) is fake
        assert resolve(ChatClient) is resolve(ChatFronts) is fake
        assert in_conversation(container, lambda client: cast("object", client)) is fake
    assert isinstance(container.get(ChatClient), BuiltClient)
    assert container.get(ChatFronts) is container.get(ChatClient)
    assert find(in_conversation(container, lambda client: client), Journalled) is not None
    with pytest.raises(LookupError):
        resolve(kind)


def test_a_fake_is_left_open_by_a_conversation_and_no_layer_is_made() -> None:
    container, fake = container_of(), Provider()
    with container.override(ChatClient, fake):
        in_conversation(container, lambda client: client)
        assert container.get(Journal).made == []
    assert not fake.is_closed


def test_a_fake_that_has_only_send_has_the_fronts_where_they_are_asked_for() -> None:
    container, fake = container_of(), Bare()

    async def run() -> list[str]:
        async with conversation(container) as client:
            return [(await each.get_response("hello")).text for each in (client, container.get(ChatFronts))]

    with container.override(ChatClient, fake):
        assert container.get(ChatClient) is fake
        assert asyncio.run(run()) == ["bare", "bare"]


def test_a_fake_of_a_client_is_no_recipe_where_none_is_installed() -> None:
    container = InjectQ()
    with container.override(ChatClient, ScriptedClient()), pytest.raises(WiringError, match="no ChatStack in this"):
        in_conversation(container, lambda client: client)


def test_what_a_layer_cannot_do_without_is_named_with_the_layer() -> None:
    container = InjectQ()
    install(container, recipe())

    async def run() -> None:
        async with conversation(container):
            raise AssertionError("never")

    text = "layer 'Journalled': journal .Journal. is required; pass journal=... to .use.., or bind it"
    with pytest.raises(WiringError, match=text) as failed:
        asyncio.run(run())
    assert (failed.value.layer, failed.value.parameter) == ("Journalled", "journal")
    with pytest.raises(InjectionError, match=text):
        container.get(ChatClient)


def test_a_failed_build_is_tried_again() -> None:
    container = InjectQ()
    install(container, recipe())
    with pytest.raises(InjectionError):
        container.get(ChatClient)
    container.bind_instance(Journal, Journal())
    assert isinstance(container.get(ChatClient), BuiltClient)


def test_an_error_inside_a_service_is_not_taken_for_its_absence() -> None:
    container = container_of()

    def broken() -> TokenCounter:
        raise KeyError(TokenCounter)

    del container[TokenCounter]
    container.bind_factory(TokenCounter, broken)
    with pytest.raises(InjectionError, match="Failed to invoke factory"):
        resolver(container)(TokenCounter)
    with pytest.raises(InjectionError, match="Failed to invoke factory"):
        container.get(ChatClient)


def test_a_conversation_needs_an_installed_recipe() -> None:
    async def run() -> None:
        async with conversation(InjectQ()):
            raise AssertionError("never")

    with pytest.raises(WiringError, match=r"no ChatStack in this container: call install\(container, stack\) first"):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("stack", "named"), [(recipe().without("Journalled").build(), "a BuiltClient"), (ChatStack, "the class ChatStack")]
)
def test_what_is_no_recipe_is_not_installed(stack: Any, named: str) -> None:
    with pytest.raises(WiringError, match=f"install: stack is {named}.*; pass a ChatStack, not built yet"):
        install(InjectQ(), stack)


def test_a_recipe_overridden_by_a_built_client_is_told() -> None:
    container = container_of()
    with container.override(ChatStack, ScriptedClient()), pytest.raises(WiringError, match="bound to a ScriptedClient"):
        asyncio.run(conversation(container).__aenter__())
