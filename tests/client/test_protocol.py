"""The protocol: one method, and ways down to what is wrapped."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from chatstack import (
    ChatClient,
    ChatRequest,
    ChatStack,
    ChatStream,
    ContextWindowGuard,
    Fallback,
    InputError,
    ModelTracer,
    ProviderInfo,
    WiringError,
    find,
    named,
)
from chatstack.client.protocol import chain, provider_info
from chatstack.testing import ScriptedClient


@pytest.mark.parametrize("kind", [AsyncMock, MagicMock])
def test_a_mock_is_a_client_with_no_other_inside(kind: type[Any]) -> None:
    mock = kind()
    mock.send = AsyncMock(side_effect=ScriptedClient(["fine"]).send)
    assert list(chain(mock)) == [mock]
    stack = ChatStack(mock).use(ContextWindowGuard, max_context_tokens=1_000).use(Fallback, clients=[mock])
    assert asyncio.run(stack.build().get_response("hello")).text == "fine"


def test_a_client_behind_a_proxy_is_found() -> None:
    class Proxy:
        def __init__(self, of: object) -> None:
            self.__of = of

        def __getattr__(self, name: str) -> object:
            return getattr(self.__of, name)

    provider = ScriptedClient()
    proxy = Proxy(ContextWindowGuard(provider, max_context_tokens=5))
    assert list(chain(proxy)) == [proxy, provider]


class Stranger:
    """Imports and inherits nothing of ours."""

    def __init__(self, inner: object = None) -> None:
        self.inner = inner

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await ScriptedClient(["from a stranger"]).send(request)


@dataclass
class Named(Stranger):
    inner: object = None
    info: object = None


def test_whoever_has_send_is_a_client() -> None:
    assert isinstance(Stranger(), ChatClient)
    assert not isinstance(object(), ChatClient)


def test_a_stranger_works_in_a_stack() -> None:
    client = ChatStack(Stranger()).use(ContextWindowGuard, max_context_tokens=1_000).build()
    assert asyncio.run(client.get_response("hello")).text == "from a stranger"


def test_the_chain_goes_from_the_client_down_to_the_provider() -> None:
    provider = ScriptedClient()
    client = ChatStack(provider).use(ContextWindowGuard, max_context_tokens=1_000).build()
    assert [type(each).__name__ for each in chain(client)] == [
        "BuiltClient",
        "ContextWindowGuard",
        "ModelTracer",
        "ScriptedClient",
    ]


def test_a_chain_that_bites_its_own_tail_ends() -> None:
    one = Stranger()
    other = Stranger(one)
    one.inner = other
    assert list(chain(one)) == [one, other]


def test_find_gets_to_the_outermost_layer_of_a_type() -> None:
    client = (
        ChatStack(ScriptedClient())
        .use(named("outer", ContextWindowGuard), max_context_tokens=2)
        .use(named("inner", ContextWindowGuard), max_context_tokens=1)
        .build()
    )
    found = find(client, ContextWindowGuard)
    assert found is not None
    assert found.max_context_tokens == 2


def test_find_gives_none_for_what_is_not_there() -> None:
    client = ChatStack(ScriptedClient(), trace_model_calls=False).build()
    assert find(client, ModelTracer) is None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (ChatStack(ScriptedClient()), "a ChatStack"),
        (ContextWindowGuard, "the class ContextWindowGuard"),
        (None, "a NoneType"),
    ],
)
def test_finding_a_layer_in_what_is_no_client_says_what_to_give(given: object, told: str) -> None:
    with pytest.raises(WiringError, match=rf"^find: {told} is no client; .* build\(\) returns") as caught:
        find(given, ContextWindowGuard)
    assert caught.value.parameter == "client"


def test_find_gets_to_the_provider_itself() -> None:
    provider = ScriptedClient()
    assert find(ChatStack(provider).build(), ScriptedClient) is provider


def test_the_provider_tells_about_itself_through_any_number_of_layers() -> None:
    info = ProviderInfo(name="openai", model="m", window_tokens=1_000)
    assert provider_info(Stranger(Stranger(ScriptedClient(info=info)))) is info


@pytest.mark.parametrize("info", [None, "openai", {"name": "openai"}])
def test_an_info_of_another_kind_is_not_taken_for_ours(info: object) -> None:
    assert provider_info(Named(info=info)) is None


@pytest.mark.parametrize(
    ("reserved", "told"), [("100", "must be a whole number, not str"), (None, "not NoneType"), (-100, "=-100 must not")]
)
def test_a_default_of_output_tokens_that_is_none_is_refused_where_it_is_written(reserved: Any, told: str) -> None:
    with pytest.raises(InputError, match=f"^ProviderInfo: default_max_tokens.*{told}"):
        ProviderInfo(name="mine", default_max_tokens=reserved)
