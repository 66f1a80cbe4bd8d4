"""The counter of a layer that was given none."""

from __future__ import annotations

import pytest

from chatstack import (
    CharCounter,
    ChatClient,
    ChatStack,
    ContextWindowGuard,
    Summarizer,
    ToolResultClearer,
    Truncate,
    find,
)
from chatstack.client.protocol import ProviderInfo
from chatstack.context.run import ContextLayer
from chatstack.context.strategy import StrategyApplier
from chatstack.layers.fallback import Fallback
from chatstack.providers.openai import OpenAIChatClient
from chatstack.providers.registry import PROVIDERS
from chatstack.testing import ScriptedClient
from chatstack.tokens.counter import char_counter
from chatstack.tokens.default import default_counter
from chatstack.tokens.estimating import EstimatingCounter


def provider(name: str, model: str = "", address: str = "") -> ScriptedClient:
    return ScriptedClient(["fine"], info=ProviderInfo(name=name, model=model, server_address=address))


CLAUDE = EstimatingCounter.of("anthropic", "claude-sonnet-4-5")
OPENAI = EstimatingCounter.of("openai", "gpt-4o")


def claude() -> ScriptedClient:
    return provider("anthropic", "claude-sonnet-4-5")


def counter_of(layer: ContextLayer) -> object:
    assert layer.editing is not None
    return layer.editing.counter


def test_every_provider_of_ours_is_known() -> None:
    names = {entry.provider for entry in PROVIDERS.values()}
    assert names
    for name in names:
        told = f"{name}: add it to _KNOWN of chatstack/tokens/default.py"
        assert isinstance(default_counter(provider(name)), EstimatingCounter), told


@pytest.mark.parametrize(
    ("name", "model", "dialect"),
    [
        ("openai", "gpt-4o", "openai"),
        ("openai", "gpt-5-mini", "openai-reasoning"),
        ("anthropic", "claude-opus-4-1", "claude-4"),
        ("aws.bedrock", "us.anthropic.claude-sonnet-4-20250514-v1:0", "claude-4"),
        ("gcp.gemini", "gemini-3-pro", "generic"),
    ],
)
def test_a_known_providers_own_model_decides(name: str, model: str, dialect: str) -> None:
    counter = default_counter(provider(name, model))
    assert isinstance(counter, EstimatingCounter)
    assert counter.dialect == dialect


@pytest.mark.parametrize(
    ("address", "model", "dialect"),
    [
        ("api.openai.com", "our-fine-tune", "openai"),
        ("eu.api.openai.com", "gpt-4o", "openai"),
        ("ours.openai.azure.com", "our-deployment", "openai"),
        ("ours.services.ai.azure.com", "our-deployment", "openai"),
        ("localhost", "qwen2.5-7b-instruct", "generic"),
        ("localhost", "llama3.2:3b", "generic"),
        ("api.mistral.ai", "mistral-small-latest", "generic"),
        ("api.deepseek.com", "deepseek-chat", "generic"),
        ("notopenai.com", "", "generic"),
        ("localhost", "gpt-4o", "openai"),
        ("llm.example", "openai/gpt-5-mini", "openai-reasoning"),
        ("llm.example", "o4-mini", "openai-reasoning"),
        ("llm.example", "anthropic/claude-haiku-4.5", "claude-4.5"),
    ],
)
def test_elsewhere_openais_api_does_not_make_a_model_openais(address: str, model: str, dialect: str) -> None:
    """Many servers speak it; only at OpenAI and Azure is a model of any name OpenAI's."""
    counter = default_counter(provider("openai", model, address))
    assert isinstance(counter, EstimatingCounter)
    assert counter.dialect == dialect


def test_a_client_for_a_server_of_ones_own_is_counted_by_its_model() -> None:
    local = OpenAIChatClient("qwen2.5-7b-instruct", api_key="k", base_url="http://localhost:11434/v1")
    assert default_counter(local) is EstimatingCounter.of("", "qwen2.5-7b-instruct")
    assert default_counter(OpenAIChatClient("our-fine-tune", api_key="k")) is OPENAI


class Stranger:
    """A client that says nothing of itself."""

    send = ScriptedClient(["fine"]).send


@pytest.mark.parametrize("client", [ScriptedClient(["fine"]), provider("acme", "gpt-4o"), provider(""), Stranger()])
def test_of_a_provider_that_is_not_known_characters_are_counted(client: ChatClient) -> None:
    assert default_counter(client) is char_counter(4)


def test_a_ratio_that_is_given_holds_whatever_the_provider() -> None:
    assert default_counter(claude(), 3) is char_counter(3)
    assert counter_of(ContextWindowGuard(claude(), max_context_tokens=100, chars_per_token=4)) is char_counter(4)


LAYERS = [
    lambda inner, **options: ContextWindowGuard(inner, max_context_tokens=100, **options),
    lambda inner, **options: ToolResultClearer(inner, trigger={"tokens": 100}, **options),
    lambda inner, **options: Summarizer(inner, max_tokens=1_000, **options),
    lambda inner, **options: StrategyApplier(inner, strategy=Truncate(max_tokens=100), **options),
]


@pytest.mark.parametrize("make", LAYERS)
def test_every_context_layer_counts_as_the_provider_unless_a_counter_is_given(make: object) -> None:
    assert callable(make)
    mine = CharCounter(2)
    assert counter_of(make(claude())) is CLAUDE
    assert counter_of(make(ScriptedClient(["fine"]))) is char_counter(4)
    assert counter_of(make(claude(), counter=mine)) is mine


def test_a_built_stack_chooses_as_layers_by_hand_do() -> None:
    built = (
        ChatStack(claude())
        .use(ToolResultClearer, trigger={"tokens": 100})
        .use(Summarizer, max_tokens=1_000)
        .use(Truncate, max_tokens=100)
        .use(ContextWindowGuard, max_context_tokens=100)
        .build()
    )
    by_hand = ToolResultClearer(ContextWindowGuard(claude(), max_context_tokens=100), trigger={"tokens": 100})
    for kind in (ToolResultClearer, Summarizer, StrategyApplier, ContextWindowGuard):
        layer = find(built, kind)
        assert isinstance(layer, ContextLayer)
        assert counter_of(layer) is CLAUDE
    assert counter_of(by_hand) is CLAUDE
    inner = by_hand.inner
    assert isinstance(inner, ContextWindowGuard)
    assert counter_of(inner) is CLAUDE


def test_what_a_container_supplies_comes_first() -> None:
    mine = CharCounter(2)
    stack = ChatStack(claude()).use(ContextWindowGuard, max_context_tokens=100)
    guard = find(stack.build(lambda kind: mine if kind.__name__ == "TokenCounter" else None), ContextWindowGuard)
    assert guard is not None
    assert counter_of(guard) is mine


def test_around_a_fallback_the_first_client_decides() -> None:
    """Each client behind it has a guard of its own, which goes by that client."""
    fallback = Fallback(provider("openai", "gpt-4o"), clients=[claude()])
    assert counter_of(ToolResultClearer(fallback, trigger={"tokens": 100})) is OPENAI
