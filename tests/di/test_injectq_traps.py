"""What goes wrong in injectq: here it cannot, or it is said. One test for each trap, which its name tells."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, TypeVar

import pytest
from injectq import CircularDependencyError, DependencyNotFoundError, Inject, InjectionError, InjectQ, inject

from chatstack import (
    FROM_CONTAINER,
    BuiltClient,
    ChatClient,
    ChatFronts,
    ChatRequest,
    ChatStack,
    ContextWindowGuard,
    MessageContextManager,
    TokenCounter,
    WiringError,
    find,
)
from chatstack.client.stream import ChatStream
from chatstack.di.injectq import conversation, install, install_context_manager, resolver
from chatstack.testing import ScriptedClient
from tests.di.app import Journal, Journalled, Words, recipe
from tests.di.installed import container_of, guard_of, in_conversation

T = TypeVar("T")


def test_aget_makes_singletons_anew_but_not_the_client() -> None:
    container = container_of()

    async def run() -> set[ChatClient]:
        return {await container.aget(ChatClient) for _ in range(3)} | {await container.aget(ChatFronts)}

    assert asyncio.run(run()) == {container.get(ChatClient)}


def test_agets_at_once_take_one_another_for_a_cycle_but_not_those_of_the_client() -> None:
    container = container_of()

    async def run() -> list[ChatClient]:
        clients: list[ChatClient] = await asyncio.gather(*(container.aget(ChatClient) for _ in range(1_000)))
        return clients

    assert set(asyncio.run(run())) == {container.get(ChatClient)}
    assert len(container.get(Journal).made) == 1


@dataclass(frozen=True, slots=True, eq=False)
class Box(Generic[T]):
    value: T


@dataclass(frozen=True, slots=True, eq=False)
class Boxed(ChatFronts):
    inner: ChatClient
    _: KW_ONLY
    box: Box[int] = FROM_CONTAINER

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request)


def test_generic_arguments_are_erased_so_a_layer_gets_no_box_at_all_and_that_is_said() -> None:
    container = container_of(recipe().use(Boxed))
    container.bind_instance(Box, Box("text"))
    with pytest.raises(WiringError, match=r"layer 'Boxed': box is required; pass box="):
        in_conversation(container, lambda _: None)


def test_a_string_key_hijacks_parameters_of_its_name_but_not_those_of_layers() -> None:
    container = container_of()
    for name in ("inner", "counter", "memory", "journal", "note", "max_context_tokens", "cls", "stack"):
        container.bind_instance(name, "hijacked")
    guard = guard_of(container.get(ChatClient))
    assert type(guard.counter) is Words
    assert guard.max_context_tokens == 2_000
    assert find(container.get(ChatClient), Journalled).note == ""  # type: ignore[union-attr]


@dataclass(frozen=True, slots=True, eq=False)
class WithFallback(ChatFronts):
    inner: ChatClient
    _: KW_ONLY
    fallback: ChatFronts | None = None

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request)


def with_other(inner: ChatClient, other: ChatClient = FROM_CONTAINER) -> ChatClient:
    return WithFallback(inner, fallback=ScriptedClient() if other is None else None)


def test_a_layer_whose_inner_client_is_autowired_is_a_cycle_but_a_recipe_is_not() -> None:
    container = container_of(recipe().use(WithFallback))
    assert find(container.get(ChatClient), WithFallback).fallback is None  # type: ignore[union-attr]
    assert in_conversation(container, lambda client: find(client, WithFallback)).fallback is None  # type: ignore[union-attr]


def test_a_layer_that_needs_another_client_is_not_given_the_stack_and_that_is_said() -> None:
    container = container_of(recipe().use(with_other))
    with pytest.raises(WiringError, match=r"layer 'with_other': other \(ChatClient\) is required; pass other"):
        in_conversation(container, lambda _: None)
    with pytest.raises(InjectionError, match=r"layer 'with_other': other \(\w+\) is required"):
        container.get(ChatClient)


class Circular(Words):
    def __init__(self, client: ChatClient) -> None:
        self.client = client


def test_a_service_that_needs_the_client_is_a_cycle_and_that_is_said() -> None:
    container = container_of()
    container.bind(TokenCounter, Circular)
    with pytest.raises(CircularDependencyError, match="TokenCounter"):
        container.get(ChatClient)


class Lost(Words):
    def __init__(self, journal: Journal, lost: str) -> None:
        raise AssertionError("never made")


def test_a_service_that_lacks_something_itself_is_not_taken_for_unbound() -> None:
    container = container_of()
    container.bind(TokenCounter, Lost)
    with pytest.raises(DependencyNotFoundError, match="str"):
        in_conversation(container, lambda _: None)


def test_nothing_is_closed_by_injectq_but_a_conversation_closes_its_layers() -> None:
    container = container_of()
    layer = in_conversation(container, lambda client: find(client, Journalled))
    assert container.get(Journal).closed == [layer]


def test_a_request_scope_leaks_to_the_next_request_of_a_thread_but_conversations_do_not() -> None:
    container = container_of()
    layers: list[object] = []

    def request() -> None:
        with container.scope("request"):
            layers.append(in_conversation(container, lambda client: find(client, Journalled)))

    def requests() -> None:
        for _ in range(3):
            request()

    thread = threading.Thread(target=requests)
    thread.start()
    thread.join()
    assert len({id(layer) for layer in layers}) == 3
    assert container.get(Journal).closed == layers


def test_a_nested_scope_of_the_same_name_wipes_the_outer_one_but_neither_client_nor_conversation() -> None:
    container = container_of()

    async def run() -> None:
        async with container.async_scope("request"), conversation(container) as client:
            of_app = container.get(ChatClient)
            async with container.async_scope("request"):
                assert container.get(ChatClient) is of_app
            assert container.get(ChatClient) is of_app
            assert (await client.get_response("still here")).text == "still here"
        assert len(container.get(Journal).closed) == 1

    asyncio.run(run())


def test_siblings_do_not_share_what_is_first_resolved_inside_them_but_they_do_share_the_client() -> None:
    container = container_of()

    async def sibling() -> object:
        async with container.async_scope("request"):
            return container.get(ChatClient)

    async def run() -> tuple[object, object]:
        return await asyncio.gather(sibling(), sibling())

    one, other = asyncio.run(run())
    assert one is other


def test_an_inject_default_keeps_the_first_client_of_the_process_unless_inject_decorates_the_node() -> None:
    @inject
    async def node(client: ChatClient = Inject[ChatClient]) -> ChatClient:  # type: ignore[assignment]
        return client

    one, other = container_of(), container_of()
    for container in (one, other, one):
        with container.context():
            assert asyncio.run(node()) is container.get(ChatClient)


def test_validating_and_compiling_a_container_makes_nothing_and_finds_no_fault_with_ours() -> None:
    container = container_of()
    install_context_manager(container, MessageContextManager())
    container.validate()
    container.compile()
    assert container.get(Journal).made == []


def test_a_container_that_forbids_overriding_takes_one_recipe() -> None:
    container = container_of(allow_override=False)
    install_context_manager(container, MessageContextManager())
    assert isinstance(container.get(ChatClient), BuiltClient)
    assert in_conversation(container, guard_of).max_context_tokens == 2_000


def test_a_manager_class_has_its_constructor_autowired_so_it_is_refused() -> None:
    container = InjectQ()
    with pytest.raises(WiringError, match="manager is the class MessageContextManager itself; pass an instance"):
        install_context_manager(container, MessageContextManager)  # type: ignore[arg-type]


def test_clearing_a_container_forgets_the_recipe() -> None:
    container = container_of()
    container.get(ChatClient)
    container.clear()
    with pytest.raises(WiringError, match="no ChatStack in this container"):
        in_conversation(container, lambda _: None)
    container.bind_instance(Journal, Journal())
    install(container, recipe())
    assert isinstance(container.get(ChatClient), BuiltClient)


def test_a_container_in_the_place_of_its_resolver_is_told_the_resolver() -> None:
    """Its own ``get`` makes what nobody has bound, protocols too, and fails deep inside."""
    container, stack = InjectQ(), ChatStack(ScriptedClient()).use(ContextWindowGuard, max_context_tokens=8_000)
    for given, called in (
        (container, "InjectQ"),
        (container.get, "InjectQ.get"),
        (container.try_get, "InjectQ.try_get"),
    ):
        wrong: Any = given
        with pytest.raises(WiringError) as caught:
            stack.build(wrong)
        assert str(caught.value) == (
            f"build: resolve: expected a function from a type to an instance, got {called}; "
            "pass chatstack.di.injectq.resolver(container)"
        )
    assert stack.build(resolver(container))
