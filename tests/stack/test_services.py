"""What the layers of one stack share."""

from __future__ import annotations

import copy
import pickle
from dataclasses import asdict, replace
from typing import Any, ClassVar

import pytest

import chatstack
from chatstack import Budget, ChatStack, ContextMemory, ContextServices, ContextWindowGuard, Summarizer, Telemetry, find
from chatstack.client.protocol import ChatClient
from chatstack.errors import WiringError
from chatstack.stack.services import SharedServices
from chatstack.testing import ScriptedClient


class Shared:
    shared_by_stack: ClassVar[bool] = True


class Better(Shared):
    pass


class Plain:
    pass


def test_a_shared_service_is_made_once_and_on_demand() -> None:
    resolve = SharedServices().behind(None)
    assert resolve(Shared) is resolve(Shared)


def test_every_resolver_of_the_same_services_hands_out_the_same() -> None:
    services = SharedServices()
    assert services.behind(None)(Shared) is services.behind(lambda kind: (_ for _ in ()).throw(LookupError(kind)))(
        Shared
    )


def test_a_class_that_is_not_shared_is_not_made() -> None:
    with pytest.raises(LookupError) as caught:
        SharedServices().behind(None)(Plain)
    assert caught.value.args == (Plain,)


def test_what_is_given_comes_first_then_the_container() -> None:
    bound, given = Shared(), Shared()
    services = SharedServices()
    services.behind(None)(Shared)
    assert services.behind({Shared: bound}.__getitem__)(Shared) is bound
    assert services.behind({Shared: bound}.__getitem__, given)(Shared) is given


PUBLIC = [getattr(chatstack, name) for name in chatstack._HOME_OF]
SHARED = [each for each in PUBLIC if isinstance(each, type) and hasattr(each, "shared_by_stack")]


@pytest.mark.parametrize("kind", SHARED)
def test_a_shared_service_is_its_own_copy_and_not_pickled(kind: type[Any]) -> None:
    service = kind()
    assert copy.copy(service) is copy.deepcopy({"a": [service]})["a"][0] is service
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(WiringError, match=f"{kind.__name__}: cannot be pickled, .*; build one in each process"):
            pickle.dumps(service, protocol)


def test_a_layer_as_a_dict_has_the_services_themselves() -> None:
    budget = Budget(ScriptedClient(), max_tokens=5)
    assert asdict(budget)["spending"] is budget.spending


def test_something_else_in_the_place_of_a_shared_service_is_refused_when_the_stack_is_built() -> None:
    stack = ChatStack(ScriptedClient()).use(ContextWindowGuard, max_context_tokens=100)
    with pytest.raises(WiringError, match="gave a str for Telemetry; bind an instance of Telemetry"):
        stack.build(lambda kind: "not that" if kind is Telemetry else None)
    with pytest.raises(WiringError, match="gave the class ContextMemory itself"):
        stack.build({ContextMemory: ContextMemory}.get)


def test_what_was_given_stands_for_what_it_derives_from() -> None:
    better = Better()
    resolve = SharedServices().behind(None, better)
    assert resolve(Shared) is better
    assert resolve(Better) is better


def test_an_error_from_inside_the_container_surfaces() -> None:
    def broken(kind: type) -> object:
        raise RuntimeError("no database")

    with pytest.raises(RuntimeError, match="no database"):
        SharedServices().behind(broken)(Shared)


def test_the_repr_names_what_is_shared() -> None:
    services = SharedServices()
    assert repr(services) == "SharedServices()"
    services.behind(None)(Shared)
    assert repr(services) == "SharedServices(Shared)"


# The services of context layers

STACK = ChatStack(ScriptedClient()).use(Summarizer, max_tokens=900).use(ContextWindowGuard, max_context_tokens=1_000)


def services_of(client: ChatClient) -> list[ContextServices]:
    layers = [find(client, Summarizer), find(client, ContextWindowGuard)]
    return [layer.services for layer in layers if layer is not None]


def test_context_layers_have_one_services_object_and_the_next_build_has_its_parts() -> None:
    first, second = services_of(STACK.build())
    again, _ = services_of(STACK.override("Summarizer", max_tokens=800).build())
    assert first is second
    assert again.memory is first.memory
    assert again.attempts is first.attempts


def test_a_container_binds_the_services_as_one() -> None:
    bound = ContextServices(memory=ContextMemory(max_megabytes=7))
    assert services_of(STACK.build({ContextServices: bound}.get)) == [bound, bound]


def test_a_container_binds_their_parts_by_their_own_types() -> None:
    memory, telemetry = ContextMemory(), Telemetry()
    services, _ = services_of(STACK.build({ContextMemory: memory, Telemetry: telemetry}.get))
    assert services.memory is memory
    assert services.telemetry is telemetry


def test_what_one_build_was_given_is_not_kept_for_the_next() -> None:
    memory = ContextMemory()
    STACK.build({ContextMemory: memory}.get)
    services, _ = services_of(STACK.build())
    assert services.memory is not memory


def test_a_memory_that_the_recipe_names_wins_over_the_container() -> None:
    own, bound = ContextMemory(), ContextMemory()
    stack = replace(STACK, memory=own)
    in_all = ContextServices(memory=bound)
    for services in (
        {ContextMemory: bound},
        {ContextServices: in_all},
        {ContextServices: in_all, ContextMemory: bound},
    ):
        assert {each.memory for each in services_of(stack.build(services.get))} == {own}
    first, second = services_of(stack.build({ContextServices: in_all}.get))
    assert first.windows is second.windows is in_all.windows
    assert services_of(STACK.build({ContextServices: in_all}.get)) == [in_all, in_all]


def test_a_recipe_with_another_memory_leaves_the_first_one_its_own() -> None:
    one, other = ContextMemory(), ContextMemory()
    stack = replace(STACK, memory=one)
    changed = replace(stack, memory=other)
    assert {each.memory for each in services_of(stack.build())} == {one}
    assert {each.memory for each in services_of(changed.build())} == {other}
    assert {each.memory for each in services_of(replace(changed, memory=None).build())}.isdisjoint({one, other})
