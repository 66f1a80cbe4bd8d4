"""The stacks of a gateway: the pipeline around each of the three wires, and around each the bare way past it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from chatstack import ChatClient, ChatStack, ProgressReporter, WiringError, from_config
from chatstack.client.protocol import layer_kind
from chatstack.config.names import NamedProvider
from chatstack.config.recipes import read
from chatstack.providers.wires import Form
from chatstack.stack.recipe import BuiltClient
from chatstack_gateway.converted import ConvertingProvider
from chatstack_gateway.provider import WireProvider
from chatstack_gateway.settings import Settings, Upstream
from chatstack_gateway.upstream import Connections

RecipeAround: TypeAlias = Callable[[ChatClient], ChatStack]
"""A function from the gateway's provider to the recipe around it: a pipeline in code."""

FORMS: tuple[Form, ...] = ("chat", "responses", "messages")
_ADDRESSES = {
    "openai": "https://api.openai.com/v1",
    "openai-responses": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
}
_REFUSED = {
    "tool_loop": "the caller runs the tools",
    "fallback": "another provider's answer is not in the caller's wire",
    "stack": "a stack of its own has a provider of its own",
}
_TAKEN = frozenset({"base_url", "window_tokens", "timeout_seconds", "stall_seconds"})


@dataclass(frozen=True, slots=True)
class Stacks:
    """Built clients, by wire: ``edited`` goes through the pipeline, ``bare`` has its spans and metrics alone."""

    edited: Mapping[Form, BuiltClient]
    bare: Mapping[Form, BuiltClient]
    recipe: ChatStack

    async def aclose(self) -> None:
        """End the background work of the layers, and close the memory."""
        for client in (*self.edited.values(), *self.bare.values()):
            await client.aclose()
        memory = self.recipe.memory
        close = getattr(memory, "aclose", None)
        if close is not None:
            await close()


def named_upstream(pipeline: str) -> tuple[Upstream, int | None]:
    """Return the server that a pipeline's provider names, and the window that it states. Raises ``WiringError``."""
    named = read(pipeline, describe=True).stack.provider
    if not isinstance(named, NamedProvider) or named.use not in _ADDRESSES:
        known = ", ".join(_ADDRESSES)
        raise WiringError(f"{pipeline}: provider: the gateway needs one of {known}, or --upstream URL")
    foreign = sorted(named.options.keys() - _TAKEN - {"use", "model"})
    if foreign:
        raise WiringError(f"{pipeline}: provider.{foreign[0]}: has no meaning here: requests go on as they came")
    window = named.options.get("window_tokens")
    address = str(named.options.get("base_url") or _ADDRESSES[named.use])
    return Upstream(address), window if isinstance(window, int) else None


def built(
    settings: Settings,
    connections: Connections,
    recipe_around: RecipeAround | None = None,
    *,
    window_tokens: int | None = None,
) -> Stacks:
    """Build the stacks. Raises ``WiringError`` for a pipeline that cannot stand in front of somebody else's app."""
    providers: dict[Form, WireProvider] = {
        form: _provider(form, settings, connections, window_tokens) for form in FORMS
    }
    first = providers[FORMS[0]]
    if recipe_around is not None:
        stack = recipe_around(first)
    else:
        stack = from_config(settings.pipeline, first) if settings.pipeline else ChatStack(first)
    recipe = _reported(stack)
    bare = replace(recipe, layers=tuple(each for each in recipe.layers if each.source is ProgressReporter))
    bares: dict[Form, BuiltClient] = {
        form: replace(bare, provider=provider).build() for form, provider in providers.items()
    }
    edited: dict[Form, BuiltClient] = {
        form: check_layers(replace(recipe, provider=provider).build()) for form, provider in providers.items()
    }
    return Stacks(edited, bares, recipe)


def _provider(form: Form, settings: Settings, connections: Connections, window_tokens: int | None) -> WireProvider:
    if settings.api in (None, form):
        return WireProvider(form, settings, connections, window_tokens=window_tokens)
    return ConvertingProvider(form, settings.api, settings, connections, window_tokens=window_tokens)


def _reported(stack: ChatStack) -> ChatStack:
    """Return the recipe with a reporter outermost, which opens the root of each request's spans, if it has none."""
    kinds = {layer_kind(each) for each in stack.build().layers}
    if "reporter" in kinds:
        return stack
    reporter = replace(stack, layers=()).use(ProgressReporter).layers
    return replace(stack, layers=(*reporter, *stack.layers))


def check_layers(client: BuiltClient) -> BuiltClient:
    """Return the client. Raises ``WiringError`` for a layer that cannot work in front of somebody else's app."""
    for name, layer in zip(client.names, client.layers, strict=True):
        why = _REFUSED.get(layer_kind(layer))
        if why is not None:
            raise WiringError(f"layer {name!r} cannot work in a gateway: {why}", layer=name)
    return client
