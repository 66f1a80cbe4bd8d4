"""Services of tools: their providers are asked at each call, so that what is one user's own reaches nobody else."""

from __future__ import annotations

import asyncio
import inspect
from contextvars import ContextVar
from typing import Any

import pytest
from dependency_injector import providers

from chatstack import ChatStack, FunctionInvoker, Injected, Message, TokenCounter, ToolCall, WiringError, tool
from chatstack.di.dependency_injector import chat_client
from chatstack.testing import ScriptedClient
from tests.di.app import Journal, Letters, Provider, recipe

logged_in: ContextVar[str] = ContextVar("logged_in")


class User:
    def __init__(self) -> None:
        self.name = logged_in.get("nobody")


@tool
async def my_orders(user: Injected[User]) -> str:
    """The orders of the user."""
    return f"orders of {user.name}"


def shop() -> ChatStack:
    """Two calls in each turn, of as many turns as are wanted."""
    calls = Message.assistant(ToolCall("1", "my_orders", "{}"), ToolCall("2", "my_orders", "{}"))
    return ChatStack(ScriptedClient([calls, "done"] * 3)).use(FunctionInvoker, tools=[my_orders])


async def asked_by(name: str, chat: Any) -> list[object]:
    logged_in.set(name)
    client = chat()
    answer = await (await client if inspect.isawaitable(client) else client).get_response("What did I order?")
    return [each.output for message in answer.messages for each in message.results]


@pytest.mark.parametrize("per_app", [True, False])
@pytest.mark.parametrize("kind", [providers.Factory, providers.ContextLocalSingleton])
def test_a_tool_gets_the_service_of_whoever_asks(kind: Any, per_app: bool) -> None:
    chat = chat_client(providers.Object(shop()), {User: kind(User)}, per_app=per_app)

    async def run() -> None:
        if per_app:
            chat()  # at the start of the app, where nobody is logged in
        for name in ("Ana", "Bo"):
            assert await asyncio.create_task(asked_by(name, chat)) == [f"orders of {name}"] * 2

    asyncio.run(run())


async def user_of_a_session() -> User:
    await asyncio.sleep(0)
    return User()


def test_a_tool_gets_what_an_asynchronous_provider_gives_for_each_call() -> None:
    chat: Any = chat_client(providers.Object(shop()), {User: providers.Coroutine(user_of_a_session)}, per_app=True)

    async def run() -> None:
        await chat()
        for name in ("Ana", "Bo"):
            assert await asyncio.create_task(asked_by(name, chat)) == [f"orders of {name}"] * 2

    asyncio.run(run())


def test_a_tool_that_is_cancelled_while_it_waits_for_an_asynchronous_service_takes_it_from_nobody() -> None:
    async def run() -> None:
        may_open, opening = asyncio.Event(), asyncio.Event()

        async def slow_user() -> User:
            opening.set()
            await may_open.wait()
            return User()

        user: Any = providers.Factory(User)
        client: Any = chat_client(providers.Object(shop()), {User: user})()
        with user.override(providers.ThreadSafeSingleton(slow_user)):
            one = asyncio.create_task(asked_by("Ana", lambda: client))
            await opening.wait()
            one.cancel()
            await asyncio.gather(one, return_exceptions=True)
            may_open.set()
            assert (await user()).name == "Ana"

    asyncio.run(run())


def test_an_override_of_a_service_reaches_the_tools_of_a_client_that_is_there_already() -> None:
    user = providers.Factory(User)
    client: Any = chat_client(providers.Object(shop()), {User: user})()
    fake = User()
    fake.name = "a fake"
    with user.override(providers.Object(fake)):
        assert asyncio.run(asked_by("Ana", lambda: client)) == ["orders of a fake"] * 2
    assert asyncio.run(asked_by("Ana", lambda: client)) == ["orders of Ana"] * 2


def test_layers_of_one_client_share_what_its_providers_gave_for_it() -> None:
    client: Any = chat_client(
        providers.Object(recipe(Provider())),
        {Journal: providers.Factory(Journal), TokenCounter: providers.Factory(Letters)},
    )()
    assert len({id(each.counter) for each in client.layers if getattr(each, "counter", None)}) == 1


@pytest.mark.parametrize("kind", [providers.ThreadLocalSingleton, providers.ContextLocalSingleton])
def test_a_layer_of_one_client_for_the_app_is_refused_what_one_thread_or_context_has_for_itself(kind: Any) -> None:
    journal = kind(Journal)
    with pytest.raises(WiringError, match=rf"services\[Journal\] is a providers.{kind.__name__}.*leave out per_app"):
        chat_client(providers.Object(recipe()), {Journal: journal}, per_app=True)()
    chat_client(providers.Object(recipe()), {Journal: journal})()
    chosen = providers.Selector(lambda: "one", one=journal)
    with pytest.raises(WiringError, match=rf"services\[Journal\] is a providers.{kind.__name__}"):
        chat_client(providers.Object(recipe()), {Journal: chosen}, per_app=True)()
