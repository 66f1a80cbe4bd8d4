"""What is overridden below singletons that have been made reaches every client, and goes when the override ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dependency_injector import containers, providers

from chatstack import (
    BuiltClient,
    ChatClient,
    ChatResponse,
    ChatStack,
    ContextMemory,
    ContextWindowGuard,
    Summarizer,
    SummaryClient,
    TokenCounter,
    find,
)
from chatstack.di.dependency_injector import chat_client, conversation
from chatstack.testing import ScriptedClient
from tests.di.app import Letters, Provider, Words


def guarded(provider: ChatClient, counter: TokenCounter, memory: ContextMemory | None = None) -> ChatStack:
    return ChatStack(provider, memory=memory).use(ContextWindowGuard, max_context_tokens=2_000, counter=counter)


class App(containers.DeclarativeContainer):
    """A recipe, and a summary client, that are singletons; and what they are made from."""

    settings = providers.Object("real")
    provider = providers.ThreadSafeSingleton(Provider)
    counter = providers.ThreadSafeSingleton(Words)
    stack = providers.ThreadSafeSingleton(guarded, provider, counter)
    other_stack = providers.ThreadSafeSingleton(guarded, provider, counter)
    each = chat_client(stack)
    chat = chat_client(stack, per_app=True)
    talk = conversation(stack)
    other = chat_client(other_stack)


def of_a_conversation(app: Any) -> BuiltClient:
    async def run() -> BuiltClient:
        async with app.talk() as client:
            assert isinstance(client, BuiltClient)
            return client

    return asyncio.run(run())


ASK: dict[str, Callable[[Any], Any]] = {
    "each": lambda app: app.each(),
    "of the app": lambda app: app.chat(),
    "conversation": of_a_conversation,
}


def guard_of(client: ChatClient) -> ContextWindowGuard:
    guard = find(client, ContextWindowGuard)
    assert guard is not None
    return guard


@pytest.mark.parametrize("ask", ASK.values(), ids=ASK)
@pytest.mark.parametrize("before", [*ASK.values(), lambda app: app.stack(), lambda _: None], ids=[*ASK, "stack", "no"])
def test_what_is_overridden_in_a_recipe_reaches_a_client_whatever_was_asked_for_before_and_goes_at_the_end(
    ask: Callable[[Any], Any], before: Callable[[Any], Any]
) -> None:
    app, fake, letters = App(), ScriptedClient(), Letters()
    before(app)
    with app.provider.override(providers.Object(fake)):
        assert ask(app).provider is fake
        assert isinstance(guard_of(ask(app)).counter, Words)
        with app.counter.override(providers.Object(letters)):
            assert ask(app).provider is fake
            assert guard_of(ask(app)).counter is letters
        assert isinstance(guard_of(ask(app)).counter, Words)
    assert ask(app).provider is app.provider()
    assert guard_of(ask(app)).counter is app.counter()


def test_all_clients_of_an_app_are_made_from_the_same_in_an_override_and_after_it() -> None:
    app = App()
    for override in (None, Provider(), None):
        if override is not None:
            app.provider.override(providers.Object(override))
        else:
            app.provider.reset_override()
        clients = [ask(app) for ask in (*ASK.values(), *ASK.values())]
        assert {id(client.provider) for client in clients} == {id(app.provider())}
        assert len({id(guard_of(client).memory) for client in clients}) == 1
        assert app.stack().provider is app.provider()


def test_decisions_outlive_a_recipe_that_is_made_anew() -> None:
    app = App()
    memory = guard_of(app.chat()).memory
    with app.provider.override(providers.Object(ScriptedClient())):
        assert {id(guard_of(ask(app)).memory) for ask in ASK.values()} == {id(memory)}
    assert {id(guard_of(ask(app)).memory) for ask in ASK.values()} == {id(memory)}


class WithMemory(App):
    memory = providers.ThreadSafeSingleton(ContextMemory)
    stack = providers.ThreadSafeSingleton(guarded, App.provider, App.counter, memory)
    each = chat_client(stack)
    chat = chat_client(stack, per_app=True)
    talk = conversation(stack)


@pytest.mark.parametrize("ask", ASK.values(), ids=ASK)
def test_a_memory_goes_only_if_it_is_what_has_been_overridden(ask: Callable[[Any], Any]) -> None:
    app, fake = WithMemory(), ContextMemory()
    memory, stack = app.memory(), app.stack()
    assert guard_of(ask(app)).memory is memory
    with app.provider.override(providers.Object(ScriptedClient())):
        assert guard_of(ask(app)).memory is memory
        with app.memory.override(providers.Object(fake)):
            assert guard_of(ask(app)).memory is fake
            assert guard_of(stack.build()).memory is memory
    assert guard_of(ask(app)).memory is memory


def test_a_recipe_that_is_overridden_itself_has_its_own_memory() -> None:
    app, other = App(), guarded(ScriptedClient(), Words())
    memory = guard_of(app.chat()).memory
    with app.stack.override(providers.Object(other)):
        assert guard_of(app.chat()).memory is guard_of(other.build()).memory is not memory
    assert guard_of(app.chat()).memory is memory


def test_a_singleton_that_does_not_depend_on_what_is_overridden_stays() -> None:
    app = App()
    app.chat()
    kept = app.counter(), app.provider()
    with app.counter.override(providers.Object(Letters())):
        app.chat()
        assert app.provider() is kept[1]
    app.chat()
    assert (app.counter(), app.provider()) == kept


def test_an_override_that_another_client_has_seen_does_not_stay_either() -> None:
    class Shared(App):
        summaries = providers.ThreadSafeSingleton(lambda provider: provider, App.provider)
        each = chat_client(App.stack, {SummaryClient: summaries})
        other = chat_client(App.other_stack, {SummaryClient: summaries})

    app, fake = Shared(), ScriptedClient()
    app.stack.override(providers.Object(ChatStack(Provider()).use(Summarizer, max_tokens=100)))
    app.other_stack.override(providers.Object(ChatStack(Provider()).use(Summarizer, max_tokens=100)))

    def summaries(client: ChatClient) -> object:
        return find(client, Summarizer).summary_client  # type: ignore[union-attr]

    assert summaries(app.each()) is app.provider()
    with app.provider.override(providers.Object(fake)):
        assert summaries(app.other()) is fake
    assert summaries(app.each()) is app.provider()


def test_what_is_overridden_when_the_container_is_made_is_no_change() -> None:
    @containers.override(App)
    class _Faked(containers.DeclarativeContainer):
        counter = providers.ThreadSafeSingleton(Letters)

    try:
        app = App(provider=providers.Object(ScriptedClient()))
    finally:
        App.reset_override()
    stack = app.stack()
    assert guard_of(app.chat()).memory is guard_of(stack.build()).memory
    assert app.stack() is stack
    assert isinstance(guard_of(app.chat()).counter, Letters)


def test_an_override_below_a_dependency_of_a_container_within_reaches_its_clients() -> None:
    class Chats(containers.DeclarativeContainer):
        model: providers.Dependency[ChatClient] = providers.Dependency()
        stack = providers.ThreadSafeSingleton(guarded, model, App.counter)
        chat = chat_client(stack, per_app=True)

    class Outer(containers.DeclarativeContainer):
        name = providers.Object("real")
        model = providers.ThreadSafeSingleton(lambda name: ScriptedClient([name]), name)
        chats = providers.Container(Chats, model=model)

    def said(chats: Any) -> str:
        answer: ChatResponse = asyncio.run(chats.chat().get_response("who?"))
        return answer.text

    outer: Any = Outer()
    stack = outer.chats.stack()
    assert said(outer.chats) == "real"
    assert outer.chats.stack() is stack
    with outer.name.override("fake"):
        assert said(outer.chats) == "fake"
    with outer.chats.model.override(ScriptedClient(["given"])):
        assert said(outer.chats) == "given"
    assert said(outer.chats) == "real"

    late: Any = Chats()
    late.model.provided_by(ScriptedClient(["late"]))
    stack = late.stack()
    assert said(late) == "late"
    assert late.stack() is stack

    alone: Any = Chats()
    for name in ("one", "other"):
        with alone.model.override(ScriptedClient([name])):
            assert said(alone) == name


@pytest.mark.parametrize("kind", [providers.ThreadLocalSingleton, providers.ContextLocalSingleton])
def test_each_thread_has_its_own_singletons_made_anew(kind: Any) -> None:
    name = providers.Object("real")
    summaries = kind(lambda name: ScriptedClient([name]), name)
    stack = ChatStack(Provider()).use(Summarizer, max_tokens=100)
    each = chat_client(providers.Object(stack), {SummaryClient: summaries})
    asked: list[tuple[str, object]] = []
    turn = threading.Barrier(2)

    def ask() -> None:
        client: Any = find(each(), Summarizer).summary_client  # type: ignore[union-attr]
        asked.append((asyncio.run(client.get_response("who?")).text, client))

    def thread() -> None:
        for _ in range(4):
            turn.wait()
            ask()
            turn.wait()

    other = threading.Thread(target=thread, daemon=True)
    other.start()

    def both() -> list[str]:
        ask()
        turn.wait()
        turn.wait()
        return [said for said, _ in asked[-2:]]

    assert both() == ["real", "real"]
    with name.override("fake"):
        assert both() == ["fake", "fake"]
    assert both() == ["real", "real"]
    assert both() == ["real", "real"]
    other.join(timeout=300)
    assert asked[-1][1] is asked[-3][1] is not asked[-2][1]


class Counted(providers.ThreadSafeSingleton[Any]):
    """Counts how often somebody looks at what it depends on."""

    looks = 0

    @property
    def related(self) -> Iterator[Any]:
        Counted.looks += 1
        yield from super().related


@pytest.mark.parametrize("per_app", [False, True])
def test_as_long_as_nothing_changes_each_provider_is_looked_at_once_for_a_client_and_nothing_made(
    per_app: bool,
) -> None:
    made: list[str] = []

    def making(name: str, make: Callable[..., object]) -> Callable[..., object]:
        def maker(*those: object) -> object:
            made.append(name)
            return make(*those)

        return maker

    provider = Counted(making("provider", Provider))
    counter = Counted(making("counter", Words))
    stack = Counted(making("stack", guarded), provider, counter)
    chat = chat_client(stack, {TokenCounter: counter}, per_app=per_app)
    for _ in range(2):
        chat()
    before = Counted.looks
    for _ in range(100):
        chat()
    assert Counted.looks - before == 3 * 100
    assert sorted(made) == ["counter", "provider", "stack"]


@pytest.mark.slow
def test_threads_that_ask_while_something_is_overridden_and_restored_leave_no_fake_behind() -> None:
    app, fake = App(), ScriptedClient()
    real = app.provider()
    stop, strange = threading.Event(), list[ChatClient]()

    def ask() -> None:
        while not stop.is_set():
            strange.extend(client for client in (app.chat(), app.each()) if client.provider not in (fake, real))

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        with app.provider.override(providers.Object(fake)):
            assert app.chat().provider is fake
        assert app.each().provider is real
        assert app.chat().provider is real
    stop.set()
    for thread in threads:
        thread.join(timeout=300)
    assert not any(thread.is_alive() for thread in threads)
    assert strange == []
