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
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias, cast

from chatstack.di.extras import needs_extra

with needs_extra("chatstack.di.dependency_injector", "dependency_injector", "dependency-injector"):
    from dependency_injector import providers

from chatstack.di.kept import Provider, Watch, derived, effective
from chatstack.errors import WiringError
from chatstack.stack.recipe import BuiltClient, ChatStack

Services: TypeAlias = "Mapping[type[Any], providers.Provider[Any]]"
"""Types that layers may ask for by their type hints, and their providers."""


def chat_client(
    stack: providers.Provider[ChatStack], services: Services | None = None, *, per_app: bool = False
) -> providers.Factory[BuiltClient]:
    """Return a provider of clients: a new one for each call, or, ``per_app``, one singleton for all threads.

    New clients share what the recipe shares, its memory above all. Everything that a client is made from is made anew
    when a provider below it is overridden, when an override ends, or when a resource that it uses is shut down: the
    singletons concerned are reset, as ``reset_singletons()`` would. A recipe that is made anew keeps the memory that it
    had. A singleton that is first called while a provider below it is overridden, and not by a client, keeps what it
    made then.

    If the stack or a service is asynchronous, the provider gives a future, as every provider does: ``await chat()``;
    after ``app.chat.enable_async_mode()`` it always does so. Clients are closed by whoever asked for them.

    A tool's ``Injected[...]`` service is asked for at each call, and awaited; layers keep what they were made with.

    Raises ``WiringError`` for a stack, or a service that a stack shares, from a ``Factory`` or another provider that is
    known to make it more than once; and, when called, for an open resource that was opened with dependencies that have
    changed since, and for a layer of a ``per_app`` client that would keep what one thread or context has for itself.
    """
    watched = _watched(stack, services, "chat_client", per_app=per_app)
    return cast("providers.Factory[BuiltClient]", providers.Factory(_shielded, watched))


def conversation(
    stack: providers.Provider[ChatStack], services: Services | None = None
) -> providers.Factory[AbstractAsyncContextManager[BuiltClient]]:
    """Return a provider of conversations: ``async with app.talk() as client``, asynchronous dependencies or not.

    Each has layers of its own, closed at the end; the provider and the services stay open. Decisions made for a history
    are in the recipe's memory, which all conversations share. Raises as ``chat_client`` does.
    """
    return providers.Factory(_conversation, _watched(stack, services, "conversation"))


def _watched(
    stack: providers.Provider[ChatStack], services: Services | None, owner: str, *, per_app: bool = False
) -> providers.Provider[Watch]:
    """Return a provider of a ``Watch``. It gets the other providers themselves, not what they give.

    A provider that is first called while everything is synchronous never again waits for its arguments, and would pass
    a task on instead of a service. So we call the providers ourselves, and await what has to be awaited.
    """
    given = dict(services or {})
    _check(owner, "stack", stack)
    for kind, provider in given.items():
        if not isinstance(kind, type):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(f"{owner}: services has the key {kind!r}; keys are types", parameter="services")
        _check(owner, f"services[{kind.__name__}]", provider)
    _check_all_shared(owner, stack, given)
    delegates = {kind: provider.provider for kind, provider in given.items()}
    make: Any = providers.ThreadSafeSingleton if per_app else providers.Factory
    watch: Any = Watch(make(_build, owner, per_app, stack.provider, providers.Dict(delegates)))
    return cast("providers.Provider[Watch]", watch.provider)


def _build(owner: str, per_app: bool, stack: Provider, services: Services) -> BuiltClient | Awaitable[BuiltClient]:
    _check_all_shared(owner, stack, services)  # and what overrides them
    supply = _Supply(owner, services, per_app=per_app)
    found = _asked((stack, *(services[kind] for kind in supply.kinds)))
    if any(_is_awaited(each) for each in found):
        return asyncio.ensure_future(_build_awaited(found, stack, supply))
    return _client(found, stack, supply)


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


async def _build_awaited(found: Sequence[object], stack: Provider, supply: _Supply) -> BuiltClient:
    """Build the client when all dependencies are there. All are awaited, even if one fails.

    Futures are shielded: others may wait for the same singleton, and a caller that is cancelled here must not cancel
    it.
    """
    ready = await asyncio.gather(*map(_awaitable, found), return_exceptions=True)
    for each in ready:
        if isinstance(each, BaseException):
            raise each
    return _client(ready, stack, supply)


def _awaitable(value: object) -> Awaitable[object]:
    if asyncio.isfuture(value):
        return asyncio.shield(value)
    return value if asyncio.iscoroutine(value) else asyncio.sleep(0, value)


def _client(found: Sequence[object], provider: Provider, supply: _Supply) -> BuiltClient:
    stack, *services = found
    if not isinstance(stack, ChatStack):
        raise WiringError(
            f"the provider of the stack gave a {type(stack).__name__}; it should give a ChatStack, not built yet",
            parameter="stack",
        )
    return supply.build(derived(provider, stack), services)


class _Supply:
    """Services for a stack: while it is built, those at hand; later, what their providers give then.

    What a stack shares remains the same. A later future or coroutine is for tools, which await it.
    """

    def __init__(self, owner: str, services: Services, *, per_app: bool) -> None:
        self._owner = owner
        self._services = services
        self._is_built = False
        self._given: dict[type, object] = {}
        self.kinds = [kind for kind in services if not (per_app and _local(services[kind]))]
        """The types whose providers are asked for the build. What is another one in each context is not asked in that
        of the build, which later ones may inherit from."""

    def build(self, stack: ChatStack, given: Iterable[object]) -> BuiltClient:
        """Build the stack with what the providers gave for it."""
        self._given = dict(zip(self.kinds, given, strict=True))
        client = stack.build(self._resolve)
        self._given = {kind: each for kind, each in self._given.items() if _is_shared(kind)}
        self._is_built = True
        return client

    def _resolve(self, kind: type) -> object:
        if kind in self._given or kind not in self._services:
            return self._given.get(kind)
        if not self._is_built:
            raise _would_keep(self._owner, kind, self._services[kind])
        found: object = self._services[kind]()
        return asyncio.shield(found) if asyncio.isfuture(found) else found


def _is_awaited(value: object) -> bool:
    return asyncio.isfuture(value) or asyncio.iscoroutine(value)


def _shielded(watch: Watch) -> BuiltClient | Awaitable[BuiltClient]:
    """Return the client or a shielded future of it: a caller that is cancelled must not cancel the others."""
    client: Any = watch.ask()
    return asyncio.shield(client) if asyncio.isfuture(client) else client


@asynccontextmanager
async def _conversation(watch: Watch) -> AsyncGenerator[BuiltClient, None]:
    client: Any = watch.ask()
    async with await client if _is_awaited(client) else client as opened:
        yield opened


def _check(owner: str, name: str, provider: object) -> None:
    if not isinstance(provider, providers.Provider):
        kind = f"the class {provider.__name__}" if isinstance(provider, type) else f"a {type(provider).__name__}"
        raise WiringError(
            f"{owner}: {name} is {kind}, and no provider; wrap it in providers.ThreadSafeSingleton", parameter=name
        )


_LOCAL = (providers.ThreadLocalSingleton, providers.ContextLocalSingleton, providers.ContextLocalResource)
_MAKE_AGAIN = (
    providers.Factory,
    providers.Callable,
    providers.Aggregate,
    providers.MethodCaller,
    providers.List,
    providers.Dict,
    providers.Singleton,
    *_LOCAL,
)
_GET_FROM = (providers.AttributeGetter, providers.ItemGetter, providers.ProvidedInstance)


def _check_all_shared(owner: str, stack: Provider, services: Services) -> None:
    """Refuse providers that make a recipe, or what recipes share, more than once: each would decide by itself."""
    _check_shared(owner, "stack", stack)
    for kind, provider in services.items():
        if _is_shared(kind):
            _check_shared(owner, f"services[{kind.__name__}]", provider)


def _is_shared(kind: type) -> bool:
    return getattr(kind, "shared_by_stack", False)


def _check_shared(owner: str, name: str, provider: Provider) -> None:
    for each in _givers(provider):
        if isinstance(each, _MAKE_AGAIN):
            raise WiringError(
                f"{owner}: {name} is a providers.{type(each).__name__}, which may make it more than once, and each "
                "would remember by itself what was decided; use providers.ThreadSafeSingleton, or providers.Object",
                parameter=name,
            )


def _local(provider: Provider) -> Provider | None:
    """Return the provider if it gives another value in each thread or context, else None."""
    return next((each for each in _givers(provider) if isinstance(each, _LOCAL)), None)


def _would_keep(owner: str, kind: type, provider: Provider) -> WiringError:
    name = f"services[{kind.__name__}]"
    return WiringError(
        f"{owner}: {name} is a providers.{type(_local(provider)).__name__}, and a layer of one client for all would "
        f"keep the first that it gives; leave out per_app, or take it in a tool, as Injected[{kind.__name__}]",
        parameter=name,
    )


def _givers(provider: Provider) -> Iterator[Provider]:
    """Yield the providers from which the value may come."""
    provider = effective(provider)
    if isinstance(provider, providers.Selector):
        for each in cast("Mapping[str, Provider]", provider.providers).values():
            yield from _givers(each)
    elif isinstance(provider, _GET_FROM):
        yield from _givers(cast("Provider", cast("Any", provider).provides))
    else:
        yield provider
