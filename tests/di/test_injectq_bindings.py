"""What injectq hands out that is no service, and what it ignores when it is bound again: it is said, or cannot hurt."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import pytest
from injectq import InjectionError, InjectQ

from chatstack import (
    BuiltClient,
    ChatClient,
    ChatFronts,
    ChatStack,
    ContextMemory,
    SummaryClient,
    Telemetry,
    TokenCounter,
    WiringError,
    find,
)
from chatstack.context.requests.services import ContextServices
from chatstack.di.injectq import install, resolver
from chatstack.testing import ScriptedClient
from tests.di.app import Journal, Journalled, Letters, Words, recipe
from tests.di.installed import container_of, guard_of, in_conversation


def test_factories_are_always_transient_but_the_client_is_not() -> None:
    container = container_of()
    container.bind_factory(Letters, Letters)
    assert container.get(Letters) is not container.get(Letters)
    assert container.get(ChatClient) is container.get(ChatClient)


async def slow_counter() -> TokenCounter:
    return Words()


def entered_counter() -> Generator[TokenCounter]:
    yield Words()


async def slow_entered_counter() -> AsyncGenerator[TokenCounter]:
    yield Words()


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (slow_counter, "the factory of TokenCounter is async, and injectq hands out its coroutine; make the"),
        (entered_counter, "the factory of TokenCounter is a generator, and injectq hands it out as it is; enter it"),
        (slow_entered_counter, "the factory of TokenCounter is a generator"),
        (lambda: Words, "TokenCounter is bound to Words itself, which injectq does not call"),
    ],
    ids=["async", "generator", "async generator", "class"],
)
def test_a_factory_that_gives_no_service_is_said(factory: Callable[[], object], said: str) -> None:
    container = container_of()
    del container[TokenCounter]
    container.bind_factory(TokenCounter, factory)
    with pytest.raises(WiringError, match=said):
        in_conversation(container, lambda _: None)
    with pytest.raises(InjectionError, match=said):
        container.get(ChatClient)


def test_a_function_that_is_bound_is_not_called_and_that_is_said() -> None:
    container = container_of()
    container.bind(TokenCounter, slow_counter)
    with pytest.raises(WiringError, match=r"TokenCounter is bound to slow_counter itself.*bind_factory\(TokenCounter"):
        resolver(container)(TokenCounter)


def test_a_function_may_be_bound_to_what_is_called() -> None:
    class Clock:
        def __call__(self) -> float:
            return 0.0

    def clock() -> float:
        return 1.0

    container = InjectQ()
    container.bind_instance(Clock, clock)
    assert resolver(container)(Clock) is clock


@pytest.mark.parametrize("bound", [Letters(), Letters], ids=["instance", "class"])
def test_a_service_bound_anew_after_its_first_get_is_ignored_and_that_is_said(bound: object) -> None:
    container = container_of()
    container.get(TokenCounter)
    container.bind(TokenCounter, bound)
    assert type(container.get(TokenCounter)) is Words
    with pytest.raises(WiringError, match=r"TokenCounter was bound anew after .* goes on with the Words that it had"):
        in_conversation(container, guard_of)
    with pytest.raises(InjectionError, match="TokenCounter was bound anew"):
        container.get(ChatClient)


@pytest.mark.parametrize(
    ("kind", "service"),
    [
        (TokenCounter, Letters()),
        (Telemetry, Telemetry()),
        (ChatStack, recipe()),
        (SummaryClient, ScriptedClient()),
        (ContextServices, ContextServices()),
        (ContextMemory, ContextMemory()),
    ],
    ids=["bound before", "not bound before", "the recipe", "an option of a layer", "the services", "a part of them"],
)
def test_what_is_bound_after_the_client_was_made_is_ignored_and_that_is_said(kind: type, service: object) -> None:
    container = container_of()
    container.get(ChatClient)
    container.bind_instance(kind, service)
    said = f"{kind.__name__} was bound after the ChatClient of this container had been made.*container.override"
    for asked in (ChatClient, ChatFronts):
        with pytest.raises(InjectionError, match=said):
            container.get(asked)


def test_what_the_client_does_not_ask_for_may_be_bound_at_any_time() -> None:
    container = container_of()
    client = container.get(ChatClient)
    container.bind_instance(Letters, Letters())
    assert container.get(ChatClient) is client


def test_a_recipe_bound_anew_is_what_the_next_conversation_has() -> None:
    container = container_of()
    assert in_conversation(container, lambda client: find(client, Journalled)) is not None
    container.bind_instance(ChatStack, recipe().without("Journalled"))
    assert in_conversation(container, lambda client: find(client, Journalled)) is None


def test_a_recipe_installed_after_the_client_was_handed_out_is_refused() -> None:
    container = container_of()
    container.get(ChatClient)
    with pytest.raises(WiringError, match="this container has handed out its ChatClient already"):
        install(container, recipe().without("Journalled"))
    assert find(container.get(ChatClient), Journalled) is not None


def test_an_override_of_what_has_a_factory_is_ignored_and_that_is_said() -> None:
    container = container_of()
    del container[TokenCounter]
    container.bind_factory(TokenCounter, Words)
    assert type(guard_of(container.get(ChatClient)).counter) is Words
    with container.override(TokenCounter, Letters()):
        with pytest.raises(WiringError, match=r"TokenCounter has a factory, and is bound.*del container.factories"):
            in_conversation(container, guard_of)
        with pytest.raises(InjectionError, match="TokenCounter has a factory"):
            container.get(ChatClient)
    assert type(guard_of(container.get(ChatClient)).counter) is Words


def test_an_override_leaves_the_class_of_the_fake_bound_which_no_layer_gets() -> None:
    container = container_of()
    with container.override(TokenCounter, Letters()):
        assert type(guard_of(container.get(ChatClient)).counter) is Letters
    assert container.has(Letters)
    assert type(guard_of(container.get(ChatClient)).counter) is Words
    assert type(in_conversation(container, guard_of).counter) is Words


def test_a_factory_of_a_client_from_before_does_not_win_over_the_recipe() -> None:
    container, before = InjectQ(), ScriptedClient()
    container.bind_factory(ChatClient, lambda: before)
    container.bind_factory(ChatFronts, lambda: before)
    container.bind_instance(Journal, Journal())
    install(container, recipe())
    assert isinstance(container.get(ChatClient), BuiltClient)
    assert container.get(ChatFronts) is container.get(ChatClient)


def test_strangers_are_made_up_by_injectq_but_not_for_layers() -> None:
    class Stranger:
        def __init__(self) -> None:
            raise AssertionError("made up")

    container = container_of()
    with pytest.raises(LookupError):
        resolver(container)(Stranger)
    guard = guard_of(container.get(ChatClient))
    assert guard.memory is guard_of(container.get(ChatStack).build(resolver(container))).memory
    assert not container.has(ContextMemory)


def test_a_partial_is_a_function_that_is_not_called_either() -> None:
    container: Any = container_of()
    container.bind(TokenCounter, functools.partial(Words))
    with pytest.raises(WiringError, match="TokenCounter is bound to"):
        resolver(container)(TokenCounter)
