"""Asynchronous dependencies among dependency-injector's providers: what they change, and what they do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, ClassVar, cast

import pytest
from dependency_injector import containers, providers

from chatstack import (
    BuiltClient,
    Summarizer,
    SummaryClient,
    TokenCounter,
    find,
)
from chatstack.di.dependency_injector import chat_client, conversation
from chatstack.testing import ScriptedClient
from tests.di.app import Journal, Provider, Words, recipe


class Opened:
    """Counts how often an HTTP client was opened and closed."""

    def __init__(self) -> None:
        self.providers: list[Provider] = []

    async def open(self) -> AsyncGenerator[Provider]:
        await asyncio.sleep(0)
        self.providers.append(provider := Provider())
        yield provider
        await provider.aclose()


def app_of(opened: Opened) -> Any:
    """A container whose provider, summary client and so whose stack are asynchronous."""

    class App(containers.DeclarativeContainer):
        journal = providers.ThreadSafeSingleton(Journal)
        http = providers.Resource(opened.open)
        stack = providers.ThreadSafeSingleton(recipe, http)
        services: ClassVar[dict[type, providers.Provider[Any]]] = {Journal: journal, SummaryClient: http}
        each = chat_client(stack, services)
        chat = chat_client(stack, services, per_app=True)
        talk = conversation(stack, services)

    return App()


def test_an_async_resource_turns_a_client_into_a_future_which_can_be_awaited() -> None:
    opened = Opened()
    app = app_of(opened)

    async def run() -> None:
        of_app = await app.chat()
        assert isinstance(of_app, BuiltClient)
        assert await app.chat() is of_app
        assert isinstance(await app.each(), BuiltClient)
        assert find(of_app, Summarizer).summary_client is opened.providers[0] is of_app.provider  # type: ignore[union-attr]
        assert (await of_app.get_response("hello")).text == "hello"
        await app.shutdown_resources()

    asyncio.run(run())
    assert [provider.is_closed for provider in opened.providers] == [True]
    assert len(app.journal().made) == 2


def test_an_async_resource_does_not_change_how_a_conversation_is_opened() -> None:
    opened = Opened()
    app = app_of(opened)

    async def run() -> str:
        async with app.talk() as client:
            text: str = (await client.get_response("hello")).text
        await app.shutdown_resources()
        return text

    assert asyncio.run(run()) == "hello"
    with app.http.override(providers.Object(ScriptedClient(["canned"]))):
        app.reset_singletons()

        async def again() -> str:
            async with app.talk() as client:
                text: str = (await client.get_response("hello")).text
                return text

        assert asyncio.run(again()) == "canned"


def test_overriding_an_async_resource_changes_the_shape_of_a_call_unless_async_mode_is_enabled() -> None:
    app = app_of(Opened())
    app.http.override(providers.Object(Provider()))
    assert isinstance(app.chat(), BuiltClient)
    app.chat.enable_async_mode()

    async def run() -> object:
        return await app.chat()

    assert isinstance(asyncio.run(run()), BuiltClient)


def test_a_provider_called_first_while_all_was_synchronous_passes_tasks_on_but_not_to_layers() -> None:
    opened = Opened()

    class App(containers.DeclarativeContainer):
        http = providers.Resource(opened.open)
        stack = providers.Object(recipe().without("Journalled"))
        services = {SummaryClient: http}  # noqa: RUF012
        each = chat_client(stack, services)
        chat = chat_client(stack, services, per_app=True)
        talk = conversation(stack, services)

    app, fake = App(), ScriptedClient()

    def summary_client(client: Any) -> object:
        return find(client, Summarizer).summary_client  # type: ignore[union-attr]

    async def talk() -> object:
        async with app.talk() as client:
            return summary_client(client)

    with app.http.override(providers.Object(fake)):
        assert [summary_client(app.each()), summary_client(app.chat()), asyncio.run(talk())] == [fake] * 3

    async def run() -> None:
        made: tuple[Any, Any] = app.each(), app.chat()  # each is a future now
        assert [summary_client(await each) for each in made] == opened.providers * 2
        assert await talk() is opened.providers[0]
        await cast("Awaitable[None]", app.http.shutdown())

    asyncio.run(run())


def test_tasks_that_first_ask_at_once_get_one_client_and_one_that_gives_up_takes_it_from_nobody() -> None:
    app = app_of(Opened())

    async def run() -> None:
        tasks = [asyncio.ensure_future(app.chat()) for _ in range(100)]
        tasks[0].cancel()
        got = await asyncio.gather(*tasks[1:])
        assert {id(client) for client in got} == {id(await app.chat())}
        assert tasks[0].cancelled()
        await app.shutdown_resources()

    asyncio.run(run())
    assert len(app.journal().made) == 1


def test_a_failed_resource_fails_the_call_and_is_tried_again() -> None:
    opened = Opened()
    app = app_of(opened)
    down = [True]

    async def flaky() -> Provider:
        if down:
            down.pop()
            raise OSError("no route")
        return Provider()

    app.http.override(providers.Factory(flaky))

    async def run() -> None:
        with pytest.raises(OSError, match="no route"):
            await app.chat()
        assert isinstance(await app.chat(), BuiltClient)

    asyncio.run(run())


def test_what_was_asked_for_before_an_error_is_not_left_waiting() -> None:
    async def slow() -> Provider:
        raise AssertionError("never awaited")

    def broken() -> Journal:
        raise OSError("no disk")

    services: dict[type, providers.Provider[Any]] = {
        SummaryClient: providers.Factory(slow),
        Journal: providers.Factory(broken),
    }
    with pytest.raises(OSError, match="no disk"):
        chat_client(providers.Object(recipe()), services)()


def test_a_call_that_fails_has_waited_for_everything_and_leaves_no_task() -> None:
    async def broken() -> Provider:
        raise OSError("no route")

    async def slow() -> Journal:
        await asyncio.sleep(0.01)
        return Journal()

    services: dict[type, providers.Provider[Any]] = {
        SummaryClient: providers.Factory(broken),
        Journal: providers.Factory(slow),
    }
    chat: Any = chat_client(providers.Object(recipe()), services)

    async def run() -> None:
        with pytest.raises(OSError, match="no route"):
            await chat()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_a_conversation_that_is_cancelled_while_it_opens_leaves_no_task_and_takes_nothing_from_others() -> None:
    waiting, ended = asyncio.Event(), []

    async def shared() -> AsyncGenerator[ScriptedClient]:
        await waiting.wait()
        yield ScriptedClient()

    async def own() -> Words:
        try:
            await waiting.wait()
        finally:
            ended.append("own")
        return Words()

    class App(containers.DeclarativeContainer):
        cheap = providers.Resource(shared)
        counter = providers.Factory(own)
        stack = providers.Object(recipe().without("Journalled"))
        talk = conversation(stack, {SummaryClient: cheap, TokenCounter: counter})

    app: Any = App()

    async def talk() -> object:
        async with app.talk() as client:
            return find(client, Summarizer).summary_client  # type: ignore[union-attr]

    async def run() -> None:
        given_up, other = asyncio.ensure_future(talk()), asyncio.ensure_future(talk())
        await asyncio.sleep(0.01)
        given_up.cancel()
        await asyncio.wait([given_up])
        assert given_up.cancelled()
        assert ended == ["own"]
        waiting.set()
        assert await other is await app.cheap()
        await app.cheap.shutdown()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
