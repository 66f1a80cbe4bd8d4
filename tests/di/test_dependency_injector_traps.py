"""What goes wrong in dependency-injector: here it cannot, or it is said. One test for each trap, named for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from dependency_injector import containers, providers
from dependency_injector.wiring import Provide, inject

from chatstack import (
    BuiltClient,
    Calibration,
    ChatClient,
    ChatNode,
    ChatStack,
    ContextMemory,
    ContextWindowGuard,
    Summarizer,
    SummaryClient,
    TokenCounter,
    WiringError,
    find,
)
from chatstack.context.requests.services import ContextServices
from chatstack.di.dependency_injector import chat_client, conversation
from chatstack.testing import ScriptedClient
from tests.di.app import Journal, Journalled, Provider, Words, recipe

LOCAL = (providers.ThreadLocalSingleton, providers.ContextLocalSingleton, providers.ContextLocalResource)
MADE_TWICE = (
    providers.Factory,
    providers.Callable,
    providers.Coroutine,
    providers.Singleton,
    *LOCAL,
)


@pytest.mark.parametrize("make", [chat_client, conversation])
@pytest.mark.parametrize("kind", MADE_TWICE)
def test_what_makes_a_stack_again_by_threads_by_tasks_or_by_calls_is_refused(make: Any, kind: Any) -> None:
    said = f"stack is a providers.{kind.__name__}, which may make it more than once.*use providers.ThreadSafeSingleton"
    with pytest.raises(WiringError, match=f"{make.__name__}: {said}") as failed:
        make(kind(slow_recipe if kind is providers.Coroutine else recipe))
    assert failed.value.parameter == "stack"


@pytest.mark.parametrize("kind", [each for each in MADE_TWICE if each is not providers.Coroutine])
@pytest.mark.parametrize("service", [ContextMemory, Calibration, ContextServices])
def test_what_makes_again_what_a_stack_shares_is_refused(kind: Any, service: type) -> None:
    with pytest.raises(WiringError, match=rf"services\[{service.__name__}\] is a providers.{kind.__name__}"):
        chat_client(providers.Object(recipe()), {service: kind(service)})


async def slow_recipe() -> ChatStack:
    return recipe()


class Bundle:
    def __init__(self) -> None:
        self.stack = recipe().without("Journalled")
        self.stacks = {"one": self.stack}

    def make(self) -> ChatStack:
        return self.stack


@pytest.mark.parametrize(
    ("stack", "kind"),
    [
        (
            lambda: providers.Selector(lambda: "one", one=providers.Object(recipe()), other=providers.Factory(recipe)),
            "Fac",
        ),
        (lambda: providers.Aggregate(one=providers.Factory(recipe)), "Aggregate"),
        (lambda: providers.ThreadSafeSingleton(Bundle).provided.make.call(), "MethodCaller"),
        (lambda: providers.Factory(Bundle).provided.stack, "Factory"),
        (lambda: providers.Factory(Bundle).provided.stacks["one"], "Factory"),
        (lambda: providers.Dependency(default=providers.Callable(recipe)), "Callable"),
    ],
)
def test_what_has_a_stack_from_something_that_makes_it_again_is_refused(stack: Callable[[], Any], kind: str) -> None:
    with pytest.raises(WiringError, match=f"conversation: stack is a providers.{kind}"):
        conversation(stack())


def test_what_always_gives_the_same_stack_is_taken() -> None:
    bundle, one, other = (providers.ThreadSafeSingleton(each) for each in (Bundle, journalless, journalless))
    for stack in (bundle.provided.stack, bundle.provided.stacks["one"], providers.Resource(journalless)):
        chat = chat_client(stack)
        assert memory_of(chat()) is memory_of(chat())
    choice = ["one"]
    chat = chat_client(providers.Selector(lambda: choice[0], one=one, other=other))
    memory = memory_of(chat())
    assert memory_of(chat()) is memory
    choice[0] = "other"
    assert memory_of(chat()) is not memory


def test_what_makes_a_stack_again_is_refused_also_when_it_overrides_or_is_given_later() -> None:
    class Chats(containers.DeclarativeContainer):
        stack: providers.Dependency[ChatStack] = providers.Dependency()
        memory = providers.ThreadSafeSingleton(ContextMemory)
        each = chat_client(stack, {ContextMemory: memory})
        chat = chat_client(stack, {ContextMemory: memory}, per_app=True)

    given, made_again = Chats(stack=providers.Object(journalless())), Chats(stack=providers.Factory(journalless))
    for ask in (given.each, given.chat):
        client = ask()
        with (
            given.memory.override(providers.Factory(ContextMemory)),
            pytest.raises(WiringError, match=r"services\[ContextMemory\] is a providers.Factory"),
        ):
            ask()
        assert memory_of(ask()) is memory_of(client)
    for ask in (made_again.each, made_again.chat):
        with pytest.raises(WiringError, match=r"chat_client: stack is a providers\.Factory"):
            ask()


def journalless() -> ChatStack:
    return recipe().without("Journalled")


def memory_of(client: ChatClient) -> object:
    return find(client, ContextWindowGuard).memory  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "kind", [providers.ThreadSafeSingleton, *(each for each in MADE_TWICE if each is not providers.Coroutine)]
)
def test_other_services_may_be_made_as_often_as_wanted(kind: Any) -> None:
    counters = kind(Words)
    per_app = kind not in LOCAL  # a layer of one client would keep what one thread or context has for itself
    client = chat_client(providers.Object(recipe().without("Journalled")), {TokenCounter: counters}, per_app=per_app)
    assert isinstance(find(client(), ContextWindowGuard).counter, Words)  # type: ignore[union-attr]
    assert (client() is client()) == per_app


def test_a_memory_of_the_container_is_the_one_of_every_client() -> None:
    memory = providers.ThreadSafeSingleton(ContextMemory)
    stack = providers.Object(recipe().without("Journalled"))
    client, other = chat_client(stack, {ContextMemory: memory}), chat_client(stack, {ContextMemory: memory})
    for each in (client(), other()):
        assert find(each, ContextWindowGuard).memory is memory()  # type: ignore[union-attr]


def test_threads_that_ask_at_once_get_one_client() -> None:
    def slow_counter() -> Words:
        time.sleep(0.01)
        return Words()

    class App(containers.DeclarativeContainer):
        counter = providers.Factory(slow_counter)
        journal = providers.ThreadSafeSingleton(Journal)
        stack = providers.ThreadSafeSingleton(recipe)
        chat = chat_client(stack, {Journal: journal, TokenCounter: counter}, per_app=True)

    app, start, got = App(), threading.Barrier(16), []

    def ask() -> None:
        start.wait()
        got.append(app.chat())

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 16
    assert {id(client) for client in got} == {id(app.chat())}
    assert len(app.journal().made) == 1


def test_a_thread_that_has_a_singleton_made_does_not_lock_out_one_that_has_the_client_made() -> None:
    class Handler:
        def __init__(self, client: BuiltClient) -> None:
            self.client = client

    class App(containers.DeclarativeContainer):
        journal = providers.ThreadSafeSingleton(Journal)
        stack = providers.ThreadSafeSingleton(recipe)
        chat = chat_client(stack, {Journal: journal}, per_app=True)
        handler = providers.ThreadSafeSingleton(Handler, chat)

    for _ in range(50):
        app, start = App(), threading.Barrier(2)
        got: list[object] = []

        def ask(ask: Any, start: threading.Barrier = start, got: list[object] = got) -> None:
            start.wait()
            got.append(ask())

        threads = [threading.Thread(target=ask, args=(each,), daemon=True) for each in (app.handler, app.chat)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=300)
        assert len(got) == 2
        assert app.handler().client is app.chat()


def test_built_singletons_do_not_see_overrides_but_the_client_of_an_app_does_however_deep() -> None:
    class App(containers.DeclarativeContainer):
        cheap = providers.ThreadSafeSingleton(ScriptedClient)
        summaries = providers.Factory(lambda client: client, cheap)
        stack = providers.Object(recipe().without("Journalled"))
        chat = chat_client(stack, {SummaryClient: summaries}, per_app=True)
        kept = providers.ThreadSafeSingleton(lambda client: client, chat)

    app, fake = App(), ScriptedClient(["fake"])
    before = app.kept()
    with app.cheap.override(providers.Object(fake)):
        assert app.kept() is before
        assert find(app.chat(), Summarizer).summary_client is fake  # type: ignore[union-attr]
    assert find(app.chat(), Summarizer).summary_client is app.cheap()  # type: ignore[union-attr]


def test_an_unwired_handler_gets_a_marker_for_a_client_and_whoever_takes_it_says_so() -> None:
    class App(containers.DeclarativeContainer):
        chat = chat_client(providers.ThreadSafeSingleton(recipe))

    @inject
    def node(client: Any = Provide[App.chat]) -> ChatNode:
        return ChatNode(client)

    @inject
    def stack(client: Any = Provide[App.chat]) -> ChatStack:
        return ChatStack(client)

    with pytest.raises(WiringError, match=r"client is of type Provide, and no chat client: it has no send"):
        node()
    with pytest.raises(WiringError, match="provider is of type Provide, and no chat client: it has no send"):
        stack()


def test_a_missing_configuration_key_is_none_and_the_layer_says_so() -> None:
    class App(containers.DeclarativeContainer):
        config = providers.Configuration()
        stack = providers.ThreadSafeSingleton(
            lambda limit: ChatStack(Provider()).use(ContextWindowGuard, max_context_tokens=limit), config.limit
        )
        chat = chat_client(stack)

    with pytest.raises(WiringError, match="max_context_tokens=None must be a whole number"):
        App().chat()


def test_a_provider_in_the_place_of_what_it_provides_is_said() -> None:
    with pytest.raises(WiringError, match="provider is of type Factory, and no chat client: it has no send"):
        ChatStack(providers.Factory(Provider))  # type: ignore[arg-type]
    stack = ChatStack(Provider()).use(Summarizer, max_tokens=100, summary_client=providers.Factory(Provider))  # type: ignore[call-overload]
    with pytest.raises(WiringError, match="summary_client is of type Factory, and no chat client"):
        chat_client(providers.Object(stack))()


def test_a_layer_is_not_closed_by_the_container_but_by_its_conversation() -> None:
    class App(containers.DeclarativeContainer):
        journal = providers.ThreadSafeSingleton(Journal)
        stack = providers.ThreadSafeSingleton(recipe)
        talk = conversation(stack, {Journal: journal})

    app = App()

    async def run() -> None:
        async with app.talk() as client:
            app.shutdown_resources()
            assert app.journal().closed == []
        assert app.journal().closed == [find(client, Journalled)]

    asyncio.run(run())
