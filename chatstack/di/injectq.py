"""A recipe in an injectq container: one client for the app, one for each conversation, context managers for nodes.

    container = InjectQ()
    container.bind_instance(TokenCounter, CharCounter())
    install(container, stack)

    client = container.get(ChatClient)                  # one for the app; or Inject[ChatClient], Inject[ChatFronts]
    async with conversation(container) as client: ...   # layers of its own, closed at the end

Layers are not autowired: the recipe makes them, and asks the container for what their type hints name. In a test,
``install`` a changed recipe into a fresh container, or change one within ``with container.override(...)``.
Needs the extra ``injectq``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

from chatstack.di.extras import needs_extra

with needs_extra("chatstack.di.injectq", "injectq", "injectq"):
    from injectq import InjectQ

from chatstack.client.fronts import ChatFronts
from chatstack.client.protocol import ChatClient
from chatstack.client.wiring import Resolver, ask, is_bound, name_of
from chatstack.context.memory.memory import ContextMemory
from chatstack.context.strategy import Strategy
from chatstack.errors import WiringError
from chatstack.layers.summarizing import SummaryClient
from chatstack.nodes.managers import BaseContextManager, StackContextManager, StrategyContextManager
from chatstack.stack.recipe import BuiltClient, ChatStack
from chatstack.telemetry.emission import Telemetry
from chatstack.tokens.counter import TokenCounter

T = TypeVar("T")


def resolver(container: InjectQ) -> Resolver:
    """Return the resolver for ``ChatStack.build`` and ``open``: it gives what is bound in the container, nothing else.

    A class that is not bound is not constructed. A stack that is installed here is not given to its own layers when one
    asks for a ``ChatClient``, but an override of it is. Raises ``WiringError`` for what injectq hands out but is no
    service: a coroutine, a generator, a function or class that was bound as it is, or a value that was bound anew
    without effect.
    """

    def resolve(kind: type) -> object:
        is_the_stack = kind in _CLIENTS and container.has(_AppClient) and not _is_overridden(container)
        if is_the_stack or not container.has(kind):
            raise LookupError(kind)
        _check_one_binding(container, kind)
        return _checked(container, kind, cast("object", container.get(kind)))

    return resolve


def install(container: InjectQ, stack: ChatStack) -> None:
    """Bind the recipe as ``ChatStack``, and one client of it, made on first use, as ``ChatClient``.

    The client is bound as ``ChatFronts`` as well, the type that has ``get_response``. ``get``, ``aget`` and ``Inject``
    give the same one in all threads, made with the bindings of that moment. Binding any of them anew later on is an
    error at the next ``get``, because injectq would go on with the old value. Use ``container.override``: the client is
    then made anew within the block and after it. An override of ``ChatClient`` or ``ChatFronts`` applies to the other
    one, too, and to ``resolver`` and ``conversation``.

    Services and the provider are closed by whoever made them. With threads, leave the container ``thread_safe``, as it
    is by default, and use ``get``: ``aget`` is for the tasks of one event loop.

    A faulty recipe raises injectq's ``InjectionError`` with our message in it. Raises ``WiringError`` when the client
    of an earlier recipe has been handed out already.
    """
    if not isinstance(stack, ChatStack):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise WiringError(f"install: stack is {_named(stack)}; pass a ChatStack, not built yet", parameter="stack")
    _bind_once(container, ChatClient, _AppClient, lambda resolve: _stack(resolve).build(resolve), unless=ChatFronts)
    _bind_giving(container, ChatFronts, lambda: _with_fronts(container.get(ChatClient)))
    # Transient, so that injectq caches nothing: a recipe bound later, but before the first get, is the one that counts.
    container.bind(ChatStack, stack, scope="transient", allow_concrete=False)


def install_context_manager(container: InjectQ, manager: BaseContextManager[Any] | Strategy | ChatStack) -> None:
    """Bind the context manager that nodes get as ``Inject[BaseContextManager]``.

    ``manager`` is a manager, a strategy, or a recipe of context layers. The last two are made into a manager on first
    use, with the services bound in the container: ``TokenCounter``, ``ContextMemory``, ``Telemetry``,
    ``SummaryClient``. Binding one of these anew later on is an error, as for ``install``. Raises ``WiringError`` for
    anything else, or when another manager has been handed out.
    """
    if isinstance(manager, type) or not isinstance(manager, BaseContextManager | Strategy | ChatStack):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise WiringError(
            f"install_context_manager: manager is {_named(manager)}; pass an instance of chatstack's "
            "BaseContextManager, a Strategy, or a ChatStack of context layers",
            parameter="manager",
        )
    _bind_once(container, BaseContextManager, _AppManager, lambda resolve: _manager(manager, resolve))


@asynccontextmanager
async def conversation(container: InjectQ) -> AsyncGenerator[BuiltClient, None]:
    """Open a client with fresh layers, closed at the end; the provider and the services stay open.

    Decisions made for a history are in the recipe's memory, which all conversations share. Injectq's scopes are not
    used. While ``ChatClient`` or ``ChatFronts`` is overridden, the override is yielded, and is not closed. Raises
    ``WiringError`` when nothing is installed, or a layer lacks a service.
    """
    resolve = resolver(container)
    if _is_overridden(container):
        yield cast("BuiltClient", resolve(ChatFronts))  # the override's type is the caller's business
        return
    async with _stack(resolve).open(resolve) as client:
        yield client


class _Made:
    """A value made once for the app, and a snapshot of the bindings that went into it."""

    def __init__(self, container: InjectQ, kind: type, make: Callable[[Resolver], object]) -> None:
        self._container = container
        self._kind = kind
        self._bound: dict[type, object] = {}
        resolve = resolver(container)

        def noted(asked: type) -> object:
            self._bound[asked] = _binding(container, asked)
            return resolve(asked)

        self._value = make(noted)

    def value(self) -> object:
        """Return the value. Raises ``WiringError`` when something that went into it has been bound anew."""
        for kind, bound in self._bound.items():
            if _binding(self._container, kind) is not bound:
                raise WiringError(
                    f"{kind.__name__} was bound after the {self._kind.__name__} of this container had been made, which "
                    "goes on with what was there before; bind it before the first get, in a fresh container, or use "
                    f"`with container.override({kind.__name__}, ...)`"
                )
        return self._value


class _AppClient(_Made):
    """The key of the app's client."""


class _AppManager(_Made):
    """The key of the app's context manager."""


class _HandedOut:
    """The types that a container has handed out."""

    def __init__(self) -> None:
        self.kinds: set[type] = set()


def _bind_once(
    container: InjectQ,
    kind: type[Any],
    key: type[_Made],
    make: Callable[[Resolver], object],
    *,
    unless: type[Any] | None = None,
) -> None:
    """Bind a kind to a value that is made once, kept in the container's own singletons under a private key.

    If another kind, ``unless``, is bound to something that is not ours, the value of that binding is given instead.

    A factory would be called each time, and win over every ``override``; a singleton class would be made anew by each
    ``aget``. So the kind is a transient class, whose instances are what the synchronous ``get`` has for the key.
    """
    if not container.has(_HandedOut):
        container.bind(_HandedOut, _HandedOut(), scope="transient")
    handed_out: _HandedOut = container.get(_HandedOut)
    if kind in handed_out.kinds:
        raise WiringError(
            f"this container has handed out its {kind.__name__} already, and whoever has it keeps it; install into a "
            "fresh container, or before the first get, or use `with container.override(ChatStack, ...)`"
        )

    def value() -> object:
        if unless is not None and not _is_ours(container, unless):
            return container.get(unless)
        made: _Made = container.get(key)
        handed_out.kinds.add(kind)
        return made.value()

    container.bind(key, _class_giving(f"App{kind.__name__}", lambda: key(container, kind, make)))
    _bind_giving(container, kind, value)


def _bind_giving(container: InjectQ, kind: type[Any], give: Callable[[], object]) -> None:
    """Bind a kind to the function's result, computed each time. Unlike a factory, it can be overridden."""
    if kind in container.factories:
        del container.factories[kind]  # a factory would win
    container.bind(kind, _class_giving(kind.__name__, give), scope="transient")


class _Given:
    """The base of the classes that are bound here."""


def _class_giving(name: str, give: Callable[[], object]) -> type[_Given]:
    """Return a class that gives the function's result when it is called: injectq calls the classes that are bound."""

    def made(_: type) -> object:
        return give()

    return type(name, (_Given,), {"__new__": made, "__module__": __name__})


_CLIENTS = (ChatClient, ChatFronts)  # no BuiltClient: ``bind_instance("other", built)`` would bind that class anew


def _is_overridden(container: InjectQ) -> bool:
    """Return True if a stack is installed and its client is overridden, or bound over, as either type."""
    return container.has(_AppClient) and not all(_is_ours(container, kind) for kind in _CLIENTS)


def _is_ours(container: InjectQ, kind: type) -> bool:
    binding = _binding(container, kind)
    bound: object = getattr(binding, "implementation", None)
    return isinstance(bound, type) and issubclass(bound, _Given)


def _with_fronts(client: ChatClient) -> ChatFronts:
    return client if isinstance(client, ChatFronts) else ChatStack(client, trace_model_calls=False).build()


def _binding(container: InjectQ, kind: type) -> object:
    """Return the binding of a kind, or None. Injectq has no public way to ask."""
    registry = container._registry  # pyright: ignore[reportPrivateUsage]
    return registry.get_factory(kind) or registry.get_binding(kind)


def _check_one_binding(container: InjectQ, kind: type) -> None:
    """Refuse a kind with both a factory and another binding: injectq takes the factory, even over ``override``."""
    registry = container._registry  # pyright: ignore[reportPrivateUsage]
    if registry.has_factory(kind) and registry.has_binding(kind):
        name = kind.__name__
        raise WiringError(
            f"{name} has a factory, and is bound, or overridden, as something else, which injectq ignores; remove the "
            f"factory, `del container.factories[{name}]`, or the other, `del container[{name}]`"
        )


def _checked(container: InjectQ, kind: type, found: object) -> object:
    """Return the value if it can be the service. Injectq hands out coroutines, generators, functions, old values."""
    name = kind.__name__
    if inspect.iscoroutine(found):
        found.close()
        raise WiringError(
            f"the factory of {name} is async, and injectq hands out its coroutine; make the {name} first, and "
            f"`container.bind_instance({name}, ...)`"
        )
    if inspect.isgenerator(found) or inspect.isasyncgen(found):
        raise WiringError(
            f"the factory of {name} is a generator, and injectq hands it out as it is; enter it in an exit stack of "
            f"your app, and `container.bind_instance({name}, ...)`"
        )
    if isinstance(found, type) or (_is_function(found) and not _is_callable(kind)):
        shown = name_of(found)
        raise WiringError(
            f"{name} is bound to {shown} itself, which injectq does not call; "
            f"`container.bind_factory({name}, {shown})`, or bind what it gives"
        )
    if _is_stale(container, kind, found):
        raise WiringError(
            f"{name} was bound anew after injectq had handed it out, and injectq goes on with the "
            f"{type(found).__name__} that it had; bind it before the first get, in a fresh container, or use "
            f"`with container.override({name}, ...)`"
        )
    return found


def _is_function(value: object) -> bool:
    return inspect.isroutine(value) or isinstance(value, functools.partial)


def _is_callable(kind: type) -> bool:
    return any("__call__" in each.__dict__ for each in kind.__mro__)


def _is_stale(container: InjectQ, kind: type, found: object) -> bool:
    """Return True if the value is not what the kind is bound to now."""
    registry = container._registry  # pyright: ignore[reportPrivateUsage]
    binding = registry.get_binding(kind)
    if binding is None or registry.has_factory(kind):
        return False
    bound: object = binding.implementation
    if not isinstance(bound, type):
        return found is not bound
    makes_its_own = cast("object", bound.__new__) is object.__new__
    return makes_its_own and type(found) is not bound


def _stack(resolve: Resolver) -> ChatStack:
    found = ask(resolve, ChatStack)
    if not is_bound(found):
        raise WiringError("no ChatStack in this container: call install(container, stack) first", parameter="stack")
    if not isinstance(found, ChatStack):
        raise WiringError(f"ChatStack is bound to {_named(found)}; bind a ChatStack, not built yet", parameter="stack")
    return found


def _manager(manager: BaseContextManager[Any] | Strategy | ChatStack, resolve: Resolver) -> BaseContextManager[Any]:
    if isinstance(manager, ChatStack):
        return StackContextManager(manager, resolve=resolve)
    if isinstance(manager, Strategy):
        return StrategyContextManager(
            manager,
            counter=_service(resolve, TokenCounter),  # type: ignore[type-abstract]
            memory=_service(resolve, ContextMemory),
            telemetry=_service(resolve, Telemetry),
            client=_service(resolve, SummaryClient),  # type: ignore[type-abstract]
        )
    return manager


def _service(resolve: Resolver, kind: type[T]) -> T | None:
    found = ask(resolve, kind)
    return cast("T", found) if is_bound(found) else None


def _named(value: object) -> str:
    return f"the class {value.__name__} itself" if isinstance(value, type) else f"a {type(value).__name__}"
