"""How a layer gets what its constructor asks for, and what is said when that cannot be."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, Optional

import pytest

from chatstack import ChatClient, ChatFronts, ChatRequest, ChatStack, ChatStream, Resolver, WiringError, named
from chatstack.client.wiring import as_types, ask, is_bound, name_of, nearest, service_type, wire
from chatstack.testing import ScriptedClient


class Clock:
    pass


class Store:
    pass


class Through(ChatFronts):
    """A layer does nothing but hand on."""

    inner: ChatClient

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request)


@dataclass(eq=False)
class Timed(Through):
    inner: ChatClient
    _: KW_ONLY
    clock: Clock
    limit: int
    mode: Literal["a", "b"] = "a"
    store: Store | None = None
    resolve: Resolver | None = None
    label: str = field(default="x")


def nothing(kind: type) -> object:
    raise LookupError(kind)


def container(**bound: object) -> Resolver:
    return {type(value): value for value in bound.values()}.__getitem__


def made(resolve: Resolver = nothing, **options: object) -> Timed:
    layer = wire(Timed, ScriptedClient(), options, name="timed", resolve=resolve)
    assert isinstance(layer, Timed)
    return layer


def test_inner_comes_first_then_options_by_name_then_hints_then_defaults() -> None:
    clock, store = Clock(), Store()
    layer = made(container(clock=clock, store=store), limit=3)
    assert (layer.clock, layer.store, layer.limit, layer.mode, layer.label) == (clock, store, 3, "a", "x")
    assert isinstance(layer.inner, ScriptedClient)


def test_an_option_wins_over_the_container() -> None:
    mine = Clock()
    assert made(container(clock=Clock()), clock=mine, limit=3).clock is mine


def test_an_optional_service_that_is_not_bound_keeps_its_default() -> None:
    assert made(container(clock=Clock()), limit=3).store is None


def test_a_layer_that_asks_for_the_resolver_gets_it() -> None:
    resolve = container(clock=Clock())
    assert made(resolve, limit=3).resolve is resolve


def test_without_a_container_a_layer_that_can_do_without_the_resolver_is_not_given_one() -> None:
    options = {"limit": 3, "clock": Clock()}
    layer = wire(Timed, ScriptedClient(), options, name="timed", resolve=nothing, has_resolver=False)
    assert isinstance(layer, Timed)
    assert layer.resolve is None


def test_a_misspelt_option_names_layer_option_and_what_was_meant() -> None:
    with pytest.raises(WiringError) as caught:
        made(clock=Clock(), limt=3)
    assert str(caught.value) == "layer 'timed': unknown option 'limt'; did you mean 'limit'?"
    assert (caught.value.layer, caught.value.parameter) == ("timed", "limt")


def test_an_unknown_option_that_is_near_nothing_lists_what_is_known() -> None:
    with pytest.raises(WiringError) as caught:
        made(zzzzzz=3)
    assert "known: clock, label, limit, mode, resolve, store" in str(caught.value)


def test_inner_is_no_option() -> None:
    with pytest.raises(WiringError, match="unknown option 'inner'"):
        made(inner=ScriptedClient())


def test_nothing_to_give_for_a_service_names_layer_parameter_type_and_remedy() -> None:
    with pytest.raises(WiringError) as caught:
        made(limit=3)
    assert str(caught.value) == (
        "layer 'timed': clock (Clock) is required; pass clock=... to .use(), or bind it in the container"
    )
    assert (caught.value.layer, caught.value.parameter) == ("timed", "clock")


def test_without_a_container_the_remedy_is_to_have_one() -> None:
    with pytest.raises(WiringError, match="build with a resolver that has it"):
        wire(Timed, ScriptedClient(), {"limit": 3}, name="timed", resolve=nothing, has_resolver=False)


def test_nothing_to_give_for_a_plain_value_does_not_speak_of_containers() -> None:
    with pytest.raises(WiringError) as caught:
        made(clock=Clock())
    assert str(caught.value) == "layer 'timed': limit is required; pass limit=... to .use()"


def test_an_error_from_inside_a_service_surfaces() -> None:
    class Broken(Exception):
        pass

    def resolve(kind: type) -> object:
        raise Broken(kind.__name__)

    with pytest.raises(Broken, match="Clock"):
        made(resolve, limit=3)


def test_a_lookup_error_about_something_else_surfaces_too() -> None:
    def resolve(kind: type) -> object:
        raise KeyError("DATABASE_URL")

    with pytest.raises(KeyError, match="DATABASE_URL"):
        made(resolve, limit=3)


def test_what_a_layer_raises_about_its_values_is_its_own() -> None:
    def picky(inner: ChatClient, *, limit: int) -> ChatClient:
        raise WiringError(f"picky: limit={limit} is too small")

    with pytest.raises(WiringError, match="limit=1 is too small"):
        wire(picky, ScriptedClient(), {"limit": 1}, name="picky", resolve=nothing)


def test_a_type_error_from_inside_a_layer_stays_what_it_is() -> None:
    def broken(inner: ChatClient) -> ChatClient:
        return len(5)  # type: ignore[arg-type,return-value]

    with pytest.raises(TypeError, match="has no len"):
        wire(broken, ScriptedClient(), {}, name="broken", resolve=nothing)


def test_a_factory_that_takes_no_inner_is_no_layer() -> None:
    def no_parameters() -> ChatClient:
        return ScriptedClient()

    def keyword_only(*, limit: int) -> ChatClient:
        return ScriptedClient()

    for factory in (no_parameters, keyword_only):
        with pytest.raises(WiringError, match=f"{factory.__name__}: takes no inner client"):
            wire(factory, ScriptedClient(), {}, name="f", resolve=nothing)


def test_a_function_is_a_layer_too() -> None:
    def timed(inner: ChatClient, clock: Clock) -> ChatClient:
        return Timed(inner, clock=clock, limit=1)

    clock = Clock()
    layer = wire(timed, ScriptedClient(), {}, name="timed", resolve=container(clock=clock))
    assert isinstance(layer, Timed)
    assert layer.clock is clock


def test_what_a_partial_has_bound_is_asked_of_nobody() -> None:
    clock = Clock()
    layer = wire(functools.partial(Timed, clock=clock), ScriptedClient(), {"limit": 2}, name="t", resolve=nothing)
    assert isinstance(layer, Timed)
    assert (layer.clock, layer.limit) == (clock, 2)
    bound = functools.partial(Timed, clock=clock, limit=2)
    over = wire(bound, ScriptedClient(), {}, name="t", resolve=container(clock=Clock()))
    assert isinstance(over, Timed)
    assert over.clock is clock


def test_a_factory_that_takes_anything_is_given_anything() -> None:
    def open_ended(inner: ChatClient, **options: object) -> ChatClient:
        return Timed(inner, clock=Clock(), limit=len(options))

    layer = wire(open_ended, ScriptedClient(), {"a": 1, "b": 2}, name="open", resolve=nothing)
    assert isinstance(layer, Timed)
    assert layer.limit == 2


@pytest.mark.parametrize(
    ("hint", "kind"),
    [
        (Clock, Clock),
        (Clock | None, Clock),
        (Optional[Clock], Clock),  # noqa: UP045
        (Clock | Store, None),
        (int, None),
        (str | None, None),
        (Literal["a"], None),
        (Callable[..., object], None),
        (list[int], None),
        (None, None),
    ],
)
def test_only_classes_that_are_no_plain_values_are_asked_for(hint: object, kind: type | None) -> None:
    assert service_type(hint) is kind


def test_asking_tells_unbound_from_bound_also_by_the_get_of_a_mapping() -> None:
    assert not is_bound(ask(nothing, Clock))
    nobody: dict[type, object] = {}
    assert not is_bound(ask(nobody.get, Clock))
    assert is_bound(ask({Clock: Clock()}.get, Clock))


@pytest.mark.parametrize(
    ("value", "name"),
    [(Timed, "Timed"), (nothing, "nothing"), (functools.partial(Timed, limit=3), "Timed"), (Clock(), "Clock")],
)
def test_a_layer_is_called_like_its_class_or_function(value: object, name: str) -> None:
    assert name_of(value) == name


def test_the_nearest_name_is_a_hint_and_the_list_is_the_next_best() -> None:
    assert nearest("gurad", ["guard", "tracer"]) == "did you mean 'guard'?"
    assert nearest("xyz", ["guard", "tracer"]) == "known: guard, tracer"
    assert nearest("xyz", []) == "there are none"


def test_an_instance_stands_for_its_class_and_those_that_it_derives_from() -> None:
    class Better(Clock):
        pass

    assert as_types(Better()) == (Better, Clock)


def test_a_factory_that_gives_no_client_fails_at_build() -> None:
    async def forgets(inner: ChatClient) -> ChatClient:
        return inner

    for factory, kind in ((lambda inner: None, "of type NoneType"), (forgets, "a coroutine")):
        told = f"^layer 'made': what its factory returned is {kind}, and no chat client"
        with pytest.raises(WiringError, match=told):
            ChatStack(ScriptedClient()).use(named("made", factory)).build()  # type: ignore[arg-type,call-overload]


def test_the_repr_of_a_recipe_shows_no_text_that_a_factory_was_given() -> None:
    def keyed(inner: ChatClient, api_key: str, retries: int) -> ChatClient:
        return inner

    stack = ChatStack(ScriptedClient()).use(keyed, api_key="sk-secret", retries=3)
    assert "sk-secret" not in repr(stack)
    assert "api_key=..., retries=3" in repr(stack)
