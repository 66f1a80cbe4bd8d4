"""A recipe among dependency-injector's providers: per call, per app, per conversation, and changed in tests."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, ClassVar

import pytest
from dependency_injector import containers, providers
from dependency_injector.wiring import Provide, inject

from chatstack import (
    BuiltClient,
    ChatClient,
    ChatFronts,
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
    from_config,
)
from chatstack.di.dependency_injector import chat_client, conversation
from chatstack.testing import ScriptedClient, TelemetryCapture
from tests.di.app import Journal, Journalled, Letters, Provider, Words, recipe


class App(containers.DeclarativeContainer):
    provider = providers.ThreadSafeSingleton(Provider)
    counter = providers.ThreadSafeSingleton(Words)
    journal = providers.ThreadSafeSingleton(Journal)
    cheap = providers.ThreadSafeSingleton(ScriptedClient)
    capture = providers.ThreadSafeSingleton(TelemetryCapture)
    stack = providers.ThreadSafeSingleton(recipe, provider)
    services: ClassVar[dict[type, providers.Provider[Any]]] = {
        TokenCounter: counter,
        Journal: journal,
        SummaryClient: cheap,
        Telemetry: capture.provided.telemetry,
    }
    each = chat_client(stack, services)
    chat = chat_client(stack, services, per_app=True)
    talk = conversation(stack, services)


def counter_of(client: ChatClient) -> TokenCounter | None:
    guard = find(client, ContextWindowGuard)
    assert guard is not None
    return guard.counter


def test_each_layer_gets_its_own_dependencies_from_the_providers() -> None:
    app = App()
    client = app.chat()
    guard, clearer = find(client, ContextWindowGuard), find(client, ToolResultClearer)
    summarizer, reporter = find(client, Summarizer), find(client, ProgressReporter)
    assert guard is not None
    assert clearer is not None
    assert summarizer is not None
    assert reporter is not None
    assert guard.counter is clearer.counter is app.counter()
    assert summarizer.summary_client is app.cheap()
    assert reporter.telemetry is app.capture().telemetry
    assert asyncio.run(client.get_response("hello")).text == "hello"
    assert app.capture().tree() == [("invoke_agent chat", [("chat script", [])])]


def test_a_client_is_new_for_each_call_unless_it_is_one_for_the_app() -> None:
    app = App()
    one, other = app.each(), app.each()
    assert find(one, Journalled) is not find(other, Journalled)
    assert find(one, ContextWindowGuard).memory is find(other, ContextWindowGuard).memory  # type: ignore[union-attr]
    assert app.chat() is app.chat()
    assert app.journal().made[2:] == [find(app.chat(), Journalled)]


def test_each_container_has_a_client_of_its_own() -> None:
    one, other = App(), App()
    assert one.chat() is one.chat()
    assert one.chat() is not other.chat()
    assert one.chat().provider is one.provider()
    assert other.chat().provider is other.provider()


def test_nothing_is_made_before_it_is_asked_for() -> None:
    app = App()
    assert app.journal().made == []
    app.talk()
    assert app.journal().made == []


def test_a_conversation_has_layers_of_its_own_which_are_closed_and_leaves_the_provider_open() -> None:
    app = App()
    journal, of_app = app.journal(), app.chat()

    async def run() -> None:
        async with app.talk() as one, app.talk() as other:
            assert len({id(find(each, Journalled)) for each in (one, other, of_app)}) == 3
            assert find(one, ContextWindowGuard).memory is find(of_app, ContextWindowGuard).memory  # type: ignore[union-attr]
            assert journal.closed == []
        assert {id(layer) for layer in journal.closed} == {id(find(one, Journalled)), id(find(other, Journalled))}
        assert (await of_app.get_response("still here")).text == "still here"

    asyncio.run(run())
    assert not app.provider().is_closed


def test_a_conversation_that_fails_is_closed() -> None:
    app = App()

    async def run() -> None:
        async with app.talk():
            raise RuntimeError("the network")

    with pytest.raises(RuntimeError, match="the network"):
        asyncio.run(run())
    assert len(app.journal().closed) == 1


@pytest.mark.slow
def test_a_thousand_conversations_at_once_see_only_their_own() -> None:
    app = App()
    app.provider.override(providers.Object(Provider(delay_seconds=0)))
    app.capture.override(providers.Object(type("Silent", (), {"telemetry": Telemetry()})))

    async def talk(number: int) -> str:
        async with app.talk() as client:
            history = [Message.user(f"{number}a")]
            history += (await client.get_response(history)).messages
            history.append(Message.user(f"{number}b"))
            return (await client.get_response(history)).text

    async def run() -> list[str]:
        return await asyncio.gather(*(talk(number) for number in range(1_000)))

    assert asyncio.run(run()) == [f"{number}a {number}b" for number in range(1_000)]
    assert len(app.journal().made) == len(app.journal().closed) == 1_000


def test_a_test_overrides_a_layer() -> None:
    app = App()
    before = app.chat()
    with app.stack.override(providers.Object(app.stack().override("Journalled", note="faked"))):
        for client in (app.each(), app.chat()):
            assert find(client, Journalled).note == "faked"  # type: ignore[union-attr]
        assert app.chat() is app.chat()
    assert find(app.chat(), Journalled).note == ""  # type: ignore[union-attr]
    assert find(before, Journalled).note == ""  # type: ignore[union-attr]


def test_a_test_overrides_a_dependency_also_after_the_client_was_made() -> None:
    app, fake = App(), Letters()
    app.chat()

    async def of_a_conversation() -> TokenCounter | None:
        async with app.talk() as client:
            return counter_of(client)

    with app.counter.override(providers.Object(fake)):
        assert [counter_of(app.chat()), counter_of(app.each()), asyncio.run(of_a_conversation())] == [fake] * 3
        assert app.chat() is app.chat()
    assert isinstance(counter_of(app.chat()), Words)
    assert isinstance(asyncio.run(of_a_conversation()), Words)


def test_a_test_overrides_a_dependency_of_a_whole_container() -> None:
    @containers.override(App)
    class Faked(containers.DeclarativeContainer):
        counter = providers.ThreadSafeSingleton(Letters)

    try:
        assert isinstance(counter_of(App().chat()), Letters)
    finally:
        App.reset_override()
    assert isinstance(counter_of(App().chat()), Words)


def test_a_test_overrides_the_client_and_the_conversation_themselves() -> None:
    app, scripted = App(), ScriptedClient(["canned"])
    other = ChatStack(scripted).open()

    async def run() -> str:
        async with app.talk() as client:
            return (await client.get_response("hello")).text

    with app.chat.override(providers.Object(scripted)), app.talk.override(providers.Object(other)):
        canned: object = app.chat()
        assert canned is scripted
        assert asyncio.run(run()) == "canned"
    assert isinstance(app.chat(), BuiltClient)


def test_a_handler_that_is_wired_gets_the_client() -> None:
    @inject
    def handler(client: ChatFronts = Provide[App.chat]) -> ChatFronts:
        return client

    @inject
    async def slow_handler(client: ChatFronts = Provide[App.chat]) -> ChatFronts:
        return client

    app, here = App(), sys.modules[__name__]
    here.__dict__.update(handler=handler, slow_handler=slow_handler)
    app.wire(modules=[here])
    try:
        assert here.__dict__["handler"]() is app.chat()
        assert asyncio.run(here.__dict__["slow_handler"]()) is app.chat()
    finally:
        app.unwire()
        del here.__dict__["handler"], here.__dict__["slow_handler"]


def test_a_container_of_its_own_for_chat_depends_on_a_recipe_from_outside() -> None:
    class Chats(containers.DeclarativeContainer):
        stack = providers.Dependency(instance_of=ChatStack)
        counter = providers.Dependency(instance_of=TokenCounter)  # type: ignore[type-abstract]
        chat = chat_client(stack, {TokenCounter: counter}, per_app=True)

    class Outer(containers.DeclarativeContainer):
        counter = providers.ThreadSafeSingleton(Words)
        stack = providers.ThreadSafeSingleton(lambda: recipe().without("Journalled"))
        chats = providers.Container(Chats, stack=stack, counter=counter)

    outer = Outer()
    client = outer.chats.chat()
    assert client is outer.chats.chat()
    assert counter_of(client) is outer.counter()
    fake = Letters()
    with outer.counter.override(providers.Object(fake)):
        assert counter_of(outer.chats.chat()) is fake


def test_a_recipe_comes_from_the_configuration_with_its_layers_in_order() -> None:
    class Configured(containers.DeclarativeContainer):
        config = providers.Configuration(strict=True)
        stack = providers.ThreadSafeSingleton(from_config, config.chat, provider=providers.Factory(Provider))
        chat = chat_client(stack, per_app=True)

    layers = ["ProgressReporter", {"use": "ContextWindowGuard", "max_context_tokens": 700}]
    client = Configured(config={"chat": {"layers": layers}}).chat()
    assert client.names == ("ProgressReporter", "ContextWindowGuard", "ModelTracer")
    assert find(client, ContextWindowGuard).max_context_tokens == 700  # type: ignore[union-attr]


def test_services_may_be_left_out() -> None:
    stack = recipe().without("Journalled")
    assert isinstance(counter_of(chat_client(providers.Object(stack))()), TokenCounter | None)
    assert chat_client(providers.Object(stack))().provider is stack.provider


def test_what_a_layer_cannot_do_without_is_named_with_the_layer() -> None:
    stack = providers.Object(recipe())

    async def run() -> None:
        async with conversation(stack)():
            raise AssertionError("never")

    text = r"layer 'Journalled': journal \(Journal\) is required; pass journal=... to .use\(\), or bind it"
    for ask in (chat_client(stack), chat_client(stack, per_app=True), lambda: asyncio.run(run())):
        with pytest.raises(WiringError, match=text) as failed:
            ask()
        assert (failed.value.layer, failed.value.parameter) == ("Journalled", "journal")


def test_an_error_inside_a_service_is_not_taken_for_its_absence() -> None:
    def broken() -> Journal:
        raise KeyError(Journal)

    app = App()
    with app.journal.override(providers.Factory(broken)):
        for ask in (app.each, app.chat):
            with pytest.raises(KeyError):
                ask()
    assert isinstance(app.chat(), BuiltClient)


@pytest.mark.parametrize("make", [chat_client, conversation])
@pytest.mark.parametrize(
    ("stack", "services", "said"),
    [
        (recipe(), {}, "stack is a ChatStack, and no provider; wrap it in providers.ThreadSafeSingleton"),
        (ChatStack, {}, "stack is the class ChatStack, and no provider"),
        (providers.Object(recipe()), {TokenCounter: Words()}, r"services\[TokenCounter\] is a Words, and no provider"),
        (
            providers.Object(recipe()),
            {"counter": providers.Object(1)},
            "services has the key 'counter'; keys are types",
        ),
    ],
)
def test_what_is_no_provider_is_refused(make: Any, stack: Any, services: Any, said: str) -> None:
    with pytest.raises(WiringError, match=f"{make.__name__}: {said}"):
        make(stack, services)


def test_a_provider_that_gives_no_recipe_is_told() -> None:
    with pytest.raises(
        WiringError, match="the provider of the stack gave a ScriptedClient; it should give a ChatStack"
    ):
        chat_client(providers.Object(ScriptedClient()))()  # type: ignore[arg-type]
