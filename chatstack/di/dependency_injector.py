"""A recipe among the providers of dependency-injector: a client per call or per app, one for each conversation.

    class App(containers.DeclarativeContainer):
        counter = providers.ThreadSafeSingleton(CharCounter)
        stack = providers.ThreadSafeSingleton(make_stack)
        chat = chat_client(stack, {TokenCounter: counter})
        talk = conversation(stack, {TokenCounter: counter})

    app = App()
    client = app.chat()
    async with app.talk() as client: ...        # layers of its own, closed at the end

Layers are not providers: the recipe makes them, and asks ``services`` for what their type hints name. In a test,
override ``stack``, a service, or what comes out, by ``providers.Object`` as everything else.
Needs the extra ``dependency-injector``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias, TypeVar, cast

from dependency_injector import providers

from chatstack.client.stack import BuiltClient, ChatStack
from chatstack.errors import WiringError

T = TypeVar("T")

Services: TypeAlias = "Mapping[type, providers.Provider[Any]]"
"""What layers may ask for by their type hints, and what provides it."""

_Overriding: TypeAlias = "tuple[providers.Provider[object], ...]"
_State: TypeAlias = "frozenset[tuple[providers.Provider[object], _Overriding]]"


def chat_client(
    stack: providers.Provider[ChatStack], services: Services | None = None, *, per_app: bool = False
) -> providers.Factory[BuiltClient]:
    """A provider of clients: a new one for each call, or, ``per_app``, always the same one, threads included.

    New ones share what the recipe shares, its memory above all. The one of an app is made anew when something that it
    was made from has been overridden, or is no longer; ``reset_singletons()`` of the container does so, too. A
    singleton in between that has been made already (the recipe, with the provider in it) stays as it is, as everywhere
    in this library: override the recipe or the service itself, or reset the singletons, also after
    ``shutdown_resources()``.
    Where the stack or a service is asynchronous, the provider gives a future, as every provider does: ``await chat()``;
    after ``app.chat.enable_async_mode()`` it does so whatever they are. Clients are closed by who asked for them.
    Raises ``WiringError`` for a stack, or a service that a stack shares, from a ``Factory`` or another provider that is
    known to make it twice.
    """
    made = _built(stack, services, "chat_client")
    if not per_app:
        return made
    kept = cast("providers.ThreadSafeSingleton[BuiltClient]", providers.ThreadSafeSingleton(_build, *made.args))
    return providers.Factory(_current, kept.provider, providers.ThreadSafeSingleton(_Overrides))


def conversation(
    stack: providers.Provider[ChatStack], services: Services | None = None
) -> providers.Factory[AbstractAsyncContextManager[BuiltClient]]:
    """A provider of conversations: ``async with app.talk() as client``, asynchronous dependencies or not.

    Each has layers of its own, closed at the end; the provider and the services stay open. What has been decided for a
    history is in the recipe's memory, which all conversations share. Raises as ``chat_client`` does.
    """
    return providers.Factory(_conversation, _built(stack, services, "conversation").provider)


def _built(
    stack: providers.Provider[ChatStack], services: Services | None, owner: str
) -> providers.Factory[BuiltClient]:
    """A provider of clients. It gets the other providers, not what they give.

    A provider that is first called while all is synchronous never again waits for its arguments, and would pass a task
    on for a service. So we call them ourselves, and wait where there is something to wait for.
    """
    given = dict(services or {})
    _check(owner, "stack", stack)
    _check_shared(owner, "stack", stack)
    for kind, provider in given.items():
        if not isinstance(kind, type):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(f"{owner}: services has the key {kind!r}; keys are types", parameter="services")
        _check(owner, f"services[{kind.__name__}]", provider)
        if getattr(kind, "shared_by_stack", False):
            _check_shared(owner, f"services[{kind.__name__}]", provider)
    delegates = {kind: provider.provider for kind, provider in given.items()}
    return cast("providers.Factory[BuiltClient]", providers.Factory(_build, stack.provider, providers.Dict(delegates)))


def _build(stack: providers.Provider[ChatStack], services: Services) -> BuiltClient | Awaitable[BuiltClient]:
    found, kinds = _asked((stack, *services.values())), list(services)
    if any(_is_awaited(each) for each in found):
        return asyncio.ensure_future(_build_awaited(found, kinds))
    return _client(found, kinds)


def _asked(those: Iterable[providers.Provider[Any]]) -> list[object]:
    found: list[object] = []
    try:
        for provider in those:
            found.append(provider())
    except BaseException:
        for each in found:
            if asyncio.iscoroutine(each):
                each.close()
        raise
    return found


async def _build_awaited(found: Sequence[object], kinds: Sequence[type]) -> BuiltClient:
    """The same, when everything is there. All are awaited, also if one fails.

    Futures are shielded: others may wait for the same singleton, and who stops waiting here must not cancel it.
    """
    ready = await asyncio.gather(*map(_awaitable, found), return_exceptions=True)
    for each in ready:
        if isinstance(each, BaseException):
            raise each
    return _client(ready, kinds)


def _awaitable(value: object) -> Awaitable[object]:
    if asyncio.isfuture(value):
        return asyncio.shield(value)
    return value if asyncio.iscoroutine(value) else asyncio.sleep(0, value)


def _client(found: Sequence[object], kinds: Sequence[type]) -> BuiltClient:
    stack, *services = found
    if not isinstance(stack, ChatStack):
        raise WiringError(
            f"the provider of the stack gave a {type(stack).__name__}; it should give a ChatStack, not built yet",
            parameter="stack",
        )
    return stack.build(dict(zip(kinds, services, strict=True)).get)


def _is_awaited(value: object) -> bool:
    return asyncio.isfuture(value) or asyncio.iscoroutine(value)


@asynccontextmanager
async def _conversation(made: providers.Provider[BuiltClient]) -> AsyncGenerator[BuiltClient, None]:
    client = made()
    async with await cast("Awaitable[BuiltClient]", client) if _is_awaited(client) else client as opened:
        yield opened


class _Overrides:
    """Which providers were overridden by what when the client of the app was last asked for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.state: _State | None = None


def _current(kept: providers.ThreadSafeSingleton[BuiltClient], before: _Overrides) -> BuiltClient:
    """The client of the app, made anew if it was made with other overrides."""
    with before.lock:
        related = cast("Iterator[providers.Provider[object]]", kept.traverse())
        state = frozenset((each, _overriding(each)) for each in related)
        if before.state is not None and before.state != state:
            kept.reset()
        before.state = state
    client = kept()
    return cast("BuiltClient", asyncio.shield(client)) if asyncio.isfuture(client) else client


def _overriding(provider: providers.Provider[object]) -> _Overriding:
    return cast("_Overriding", provider.overridden)  # pyright: ignore[reportUnknownMemberType]


_MAKE_TWICE = (providers.Factory, providers.Singleton, providers.ThreadLocalSingleton, providers.ContextLocalSingleton)


def _check(owner: str, name: str, provider: object) -> None:
    if not isinstance(provider, providers.Provider):
        kind = f"the class {provider.__name__}" if isinstance(provider, type) else f"a {type(provider).__name__}"
        raise WiringError(
            f"{owner}: {name} is {kind}, and no provider; wrap it in providers.ThreadSafeSingleton", parameter=name
        )


def _check_shared(owner: str, name: str, provider: providers.Provider[T]) -> None:
    """Refuse what makes a recipe, or what recipes share, more than once: each would decide and remember by itself."""
    if isinstance(provider, _MAKE_TWICE):
        raise WiringError(
            f"{owner}: {name} is a providers.{type(provider).__name__}, which may make it more than once, and each "
            "would remember by itself what was decided; use providers.ThreadSafeSingleton",
            parameter=name,
        )
