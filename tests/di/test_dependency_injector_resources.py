"""After a shutdown nobody gets a client with something closed: it is made anew, or an error says what to do."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import pytest
from dependency_injector import containers, providers

from chatstack import (
    ChatClient,
    ChatStack,
    ContextWindowGuard,
    Summarizer,
    SummaryClient,
    WiringError,
    find,
)
from chatstack.di.dependency_injector import chat_client, conversation
from tests.di.app import Provider


def opened(_: object = None) -> Generator[Provider]:
    provider = Provider()
    yield provider
    provider.is_closed = True


async def opened_slowly(_: object = None) -> AsyncGenerator[Provider]:
    await asyncio.sleep(0)
    for provider in opened():
        yield provider


def guarded(provider: ChatClient) -> ChatStack:
    stack = ChatStack(provider).use(Summarizer, max_tokens=1_000)
    return stack.use(ContextWindowGuard, max_context_tokens=2_000)


def app_of(open_: Callable[..., Any]) -> Any:
    """A recipe, and a summary client, with HTTP clients that are resources."""

    class App(containers.DeclarativeContainer):
        settings = providers.Object("real")
        http = providers.Resource(open_, settings)
        cheap = providers.Resource(open_, settings)
        stack = providers.ThreadSafeSingleton(guarded, http)
        summaries = providers.ThreadSafeSingleton(lambda client: client, cheap)
        services = {SummaryClient: summaries}  # noqa: RUF012
        each = chat_client(stack, services)
        chat = chat_client(stack, services, per_app=True)
        talk = conversation(stack, services)

    return App()


async def _talk(app: Any) -> Any:
    async with app.talk() as client:
        return client


async def done(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


ASK: dict[str, Callable[[Any], Any]] = {
    "each": lambda app: app.each(),
    "of the app": lambda app: app.chat(),
    "conversation": _talk,
}


def clients_of(client: ChatClient) -> list[Provider]:
    summaries: Any = find(client, Summarizer).summary_client  # type: ignore[union-attr]
    return [client.provider, summaries]  # type: ignore[attr-defined]


def memory_of(client: ChatClient) -> object:
    return find(client, ContextWindowGuard).memory  # type: ignore[union-attr]


@pytest.mark.parametrize("open_", [opened, opened_slowly])
@pytest.mark.parametrize("ask", ASK.values(), ids=ASK)
@pytest.mark.parametrize("is_opened_by_hand", [False, True])
def test_after_a_shutdown_a_client_is_made_anew_with_open_resources_and_the_same_memory(
    ask: Callable[[Any], Any], open_: Callable[..., Any], is_opened_by_hand: bool
) -> None:
    app = app_of(open_)

    async def run() -> None:
        before = await done(ask(app))
        await done(app.shutdown_resources())
        assert [each.is_closed for each in clients_of(before)] == [True, True]
        if is_opened_by_hand:
            await done(app.init_resources())
        after = await done(ask(app))
        assert [each.is_closed for each in clients_of(after)] == [False, False]
        assert (
            clients_of(await done(ask(app))) == clients_of(after) == [await done(app.http()), await done(app.cheap())]
        )
        assert memory_of(after) is memory_of(before)
        await done(app.shutdown_resources())

    asyncio.run(run())


@pytest.mark.parametrize("open_", [opened, opened_slowly])
@pytest.mark.parametrize("ask", ASK.values(), ids=ASK)
def test_a_client_that_is_asked_for_first_after_a_shutdown_has_no_closed_resource_from_a_singleton(
    ask: Callable[[Any], Any], open_: Callable[..., Any]
) -> None:
    app = app_of(open_)

    async def run() -> None:
        await done(app.stack())
        await done(app.summaries())
        await done(app.http.shutdown())
        await done(app.cheap.shutdown())
        assert [each.is_closed for each in clients_of(await done(ask(app)))] == [False, False]
        await done(app.shutdown_resources())

    asyncio.run(run())


@pytest.mark.parametrize("open_", [opened, opened_slowly])
def test_singletons_that_were_made_before_the_first_client_stay_as_long_as_their_resources_are_open(
    open_: Callable[..., Any],
) -> None:
    app = app_of(open_)

    async def run() -> None:
        await done(app.init_resources())
        stack = await done(app.stack())
        for ask in ASK.values():
            assert memory_of(await done(ask(app))) is memory_of(stack.build())
        assert await done(app.stack()) is stack
        await done(app.shutdown_resources())

    asyncio.run(run())


@pytest.mark.parametrize("open_", [opened, opened_slowly])
@pytest.mark.parametrize("ask", ASK.values(), ids=ASK)
def test_what_is_overridden_below_an_open_resource_cannot_reach_it_which_is_said_until_it_is_shut_down(
    ask: Callable[[Any], Any], open_: Callable[..., Any]
) -> None:
    app = app_of(open_)

    async def run() -> None:
        await done(ask(app))
        with app.settings.override("fake"):
            for _ in range(2):
                with pytest.raises(
                    WiringError, match=f"the resource of {open_.__name__} is open, and was opened before"
                ):
                    await done(ask(app))
            await done(app.shutdown_resources())
            of_the_fake = await done(ask(app))
        with pytest.raises(
            WiringError, match="or while it was overridden; shut it down first, or override the resource"
        ):
            await done(ask(app))
        with app.http.override(providers.Object(Provider())), app.cheap.override(providers.Object(Provider())):
            await done(ask(app))
        await done(app.shutdown_resources())
        assert {each.is_closed for each in clients_of(of_the_fake)} == {True}
        assert {each.is_closed for each in clients_of(await done(ask(app)))} == {False}
        await done(app.shutdown_resources())

    asyncio.run(run())


def test_a_resource_that_uses_one_that_was_shut_down_alone_is_said() -> None:
    class App(containers.DeclarativeContainer):
        pool = providers.Resource(opened)
        http = providers.Resource(opened, pool)
        chat = chat_client(providers.ThreadSafeSingleton(guarded, http))

    app = App()
    app.chat()
    app.pool.shutdown()
    with pytest.raises(WiringError, match="that it depends on was overridden, or shut down"):
        app.chat()
    app.http.shutdown()
    assert not app.chat().provider.is_closed  # type: ignore[attr-defined]


def test_a_singleton_stays_though_a_resource_that_it_might_use_has_never_been_opened() -> None:
    class App(containers.DeclarativeContainer):
        http, spare = providers.Resource(opened), providers.Resource(opened)
        stack = providers.ThreadSafeSingleton(guarded, providers.Selector(lambda: "http", http=http, spare=spare))
        each = chat_client(stack)
        chat = chat_client(stack, per_app=True)

    app = App()
    client, stack = app.chat(), app.stack()
    app.each()
    app.http.override(app.http())
    app.each()
    changed = app.stack()
    app.each()
    assert app.chat().provider is client.provider
    assert stack is not changed is app.stack()
