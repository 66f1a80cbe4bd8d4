"""Layers of every legal shape get their services, however they are made, and their hints are spelt."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from chatstack import (
    FROM_CONTAINER,
    CharCounter,
    ChatClient,
    ChatFronts,
    ChatRequest,
    ChatStack,
    ChatStream,
    ContextMemory,
    ContextWindowGuard,
    TokenCounter,
    WiringError,
    find,
    named,
)
from chatstack.config.options import own_options
from chatstack.testing import ScriptedClient
from tests.client.typed_elsewhere import Costly, Hands, Labelled, Priced, Weighing

COUNTER, MEMORY = CharCounter(chars_per_token=3), ContextMemory()
RESOLVE = {TokenCounter: COUNTER, ContextMemory: MEMORY}.get


def first(source: Any, resolve: Any = RESOLVE, **options: Any) -> Any:
    """Build a stack with this layer, and return it."""
    return ChatStack(ScriptedClient()).use(source, **options).build(resolve).layers[0]


# Hints that cannot be evaluated


def test_a_hint_that_cannot_be_evaluated_leaves_the_others_known() -> None:
    assert first(Weighing).counter is COUNTER
    guard = first(Labelled, max_context_tokens=100)
    assert (guard.counter, guard.services.memory) == (COUNTER, MEMORY)
    with pytest.raises(WiringError, match="Labelled: max_context_tokens='lots' must be a whole number"):
        first(Labelled, max_context_tokens="lots")


def test_what_may_be_a_service_behind_an_unknown_hint_is_told() -> None:
    told = r"layer '{}': price has a type hint that cannot be evaluated \(Decimal.*: name 'Decimal' is not defined\)"
    with pytest.raises(WiringError, match=told.format("Costly")) as caught:
        first(Costly)
    assert caught.value.parameter == "price"
    with pytest.warns(UserWarning, match=told.format("Priced")):
        assert first(Priced).counter is COUNTER


def test_what_is_passed_needs_no_hint() -> None:
    assert first(Costly, price=Decimal(1)).price == 1
    assert first(Priced, price=None).counter is COUNTER


def test_a_service_of_a_local_class_is_an_error_that_says_so() -> None:
    class Service:
        pass

    class Local(Hands):
        def __init__(self, inner: ChatClient, *, service: Service = FROM_CONTAINER) -> None:
            self.inner, self.service = inner, service

    with pytest.raises(WiringError, match=r"service has a type hint .*\(Service: name .* define them at the top of"):
        first(Local, {Service: Service()}.get)


# Shapes


@dataclass(eq=False)
class Counting(Hands):
    inner: ChatClient
    _: KW_ONLY
    counter: TokenCounter = FROM_CONTAINER


class Passing(Counting):
    def __init__(self, inner: ChatClient, *, text: str = "", **options: Any) -> None:
        super().__init__(inner, **options)
        self.text = text


class PassingTwice(Passing):
    def __init__(self, inner: ChatClient, **options: Any) -> None:
        super().__init__(inner, **options)


class Structured(msgspec.Struct):
    inner: ChatClient
    counter: TokenCounter = FROM_CONTAINER

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request)


class MadeByNew(Hands):
    counter: TokenCounter

    def __new__(cls, inner: ChatClient, *, counter: TokenCounter = FROM_CONTAINER) -> MadeByNew:
        made = super().__new__(cls)
        made.inner, made.counter = inner, counter
        return made


@dataclass
class Factory:
    """An object that makes layers, and has no hash."""

    text: str = ""

    def __call__(self, inner: ChatClient, *, counter: TokenCounter = FROM_CONTAINER) -> ChatClient:
        return Counting(inner, counter=counter)


@pytest.mark.parametrize(
    "source",
    [
        *(Counting, Passing, PassingTwice, Structured, MadeByNew, Factory(), Factory().__call__),
        *(functools.partial(Passing, text="x"), named("a", named("b", Counting))),
    ],
    ids=repr,
)
def test_every_shape_gets_its_services(source: Any) -> None:
    assert first(source).counter is COUNTER
    with pytest.raises(WiringError, match=r"counter \(TokenCounter\) is required"):
        first(source, None)


def test_a_layer_of_ours_that_is_derived_from_has_the_services_of_its_stack() -> None:
    class Guard(ContextWindowGuard):
        def __init__(self, inner: ChatClient, *, label: str = "", **options: Any) -> None:
            super().__init__(inner, **options)

    guard = first(Guard, max_context_tokens=100, label="x")
    assert (guard.counter, guard.services.memory) == (COUNTER, MEMORY)
    assert {"label", "max_context_tokens", "counter"} <= {each.name for each in own_options(Guard)}


def test_the_outer_one_of_two_names_counts() -> None:
    assert ChatStack().use(named("a", named("b", Counting))).layers[0].name == "a"
    with pytest.raises(WiringError, match="layer 'a': unknown option 'contur'; did you mean 'counter'"):
        first(named("a", named("b", Counting)), contur=1)


def test_what_a_constructor_gives_its_base_itself_is_asked_of_nobody() -> None:
    own = CharCounter()

    class Own(Counting):
        def __init__(self, inner: ChatClient, **options: Any) -> None:
            super().__init__(inner, counter=own, **options)

    class Default(Counting):
        def __init__(self, inner: ChatClient, **options: Any) -> None:
            options.setdefault("counter", own)
            super().__init__(inner, **options)

    assert first(Own).counter is own
    assert first(Default).counter is own
    assert first(Default, counter=COUNTER).counter is COUNTER


def test_options_that_go_elsewhere_are_not_filled_in() -> None:
    class Elsewhere(Counting):
        def __init__(self, inner: ChatClient, **options: Any) -> None:
            self.inner, self.options = inner, options
            self.counter = CharCounter()

    assert first(Elsewhere, size=1).options == {"size": 1}


def test_options_for_something_else_than_the_base_are_not_filled_in() -> None:
    class Settings(Counting):
        def __init__(self, inner: ChatClient, **settings: Any) -> None:
            super().__init__(inner, counter=COUNTER)
            self.settings = dict(**settings)

    assert first(Settings, size=1).settings == {"size": 1}


def test_an_unknown_hint_with_a_default_is_told_only_where_there_is_a_container() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert first(Priced, None).price is None


class Decorated:
    """A decorator that is an object, and no function."""

    def __init__(self, function: Callable[..., None]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *given: object, **named: object) -> None:
        self._function(*given, **named)

    def __get__(self, instance: object, owner: type) -> Callable[..., None]:
        return self if instance is None else functools.partial(self._function, instance)


def test_a_constructor_that_an_object_decorates_has_its_hints() -> None:
    class Wrapped(Hands):
        @Decorated  # type: ignore[misc]
        def __init__(self, inner: ChatClient, *, counter: TokenCounter = FROM_CONTAINER) -> None:
            self.inner, self.counter = inner, counter

    assert first(Wrapped).counter is COUNTER


def in_a_function(inner: ChatClient, **options: Any) -> ChatClient:
    return Counting(inner, **options)


def behind_another(inner: ChatClient, **options: Any) -> ChatClient:
    return Passing(Structured(inner, **options), counter=COUNTER)


@pytest.mark.parametrize("source", [in_a_function, behind_another])
def test_a_layer_that_lacks_what_a_container_supplies_is_refused_when_the_stack_is_built(
    source: Callable[..., ChatClient],
) -> None:
    with pytest.raises(WiringError, match="counter was not given, and its factory does not name it") as caught:
        first(source)
    assert (caught.value.layer, caught.value.parameter) == (source.__name__, "counter")
    assert find(ChatStack(ScriptedClient()).use(source, counter=COUNTER).build(), ChatFronts) is not None


# What is inside


class Next(ChatFronts):
    def __init__(self, next_client: ChatClient) -> None:
        self.next_client = next_client

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.next_client.send(request)


def elsewhere(_inner: ChatClient) -> ChatClient:
    return ContextWindowGuard(ScriptedClient(), max_context_tokens=100)


@pytest.mark.parametrize("source", [Next, elsewhere])
def test_a_layer_through_which_nobody_gets_to_what_it_wraps_is_warned_of(source: Any) -> None:
    told = f"layer '{source.__name__}': the client that it was given is not its inner.*in an attribute named inner"
    with pytest.warns(UserWarning, match=told) as caught:
        ChatStack(ScriptedClient()).use(source).build()
    assert caught[0].filename == __file__


def test_a_factory_may_make_several_layers_or_none() -> None:
    def several(inner: ChatClient) -> ChatClient:
        return Counting(Counting(inner, counter=COUNTER), counter=COUNTER)

    def none(inner: ChatClient) -> ChatClient:
        return inner

    client = ChatStack(ScriptedClient()).use(several).use(none).build()
    assert client.names == ("several", "ModelTracer")
    assert find(client, ScriptedClient) is client.provider
