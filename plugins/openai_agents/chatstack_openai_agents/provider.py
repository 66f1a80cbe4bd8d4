"""A model provider of the Agents SDK: layers around whatever model is asked for."""

from __future__ import annotations

from dataclasses import replace

from agents import Model, ModelProvider, MultiProvider

from chatstack import ChatStack, WiringError
from chatstack.client.wiring import Resolver
from chatstack.stack.recipe import NO_PROVIDER
from chatstack_openai_agents.client import AgentsModelClient
from chatstack_openai_agents.model import StackModel


class StackModelProvider(ModelProvider):
    """Puts a recipe's layers around the models of a run, those of agents that are handed to included::

        RunConfig(model_provider=StackModelProvider(ChatStack().use(ContextWindowGuard, ...)))

    ``provider`` looks the models up by their names; the SDK's own one by default. Only agents whose model is a name, or
    the default, ask a provider: a ``Model`` instance is wrapped by ``StackModel(stack.build())`` with
    ``ChatStack(AgentsModelClient(model))``. Decisions are shared by all of its models. Raises ``WiringError`` for a
    recipe that has a provider.
    """

    def __init__(
        self, stack: ChatStack, provider: ModelProvider | None = None, *, resolve: Resolver | None = None
    ) -> None:
        if not isinstance(stack, ChatStack) or stack.provider is not NO_PROVIDER:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(
                "StackModelProvider: stack: pass ChatStack().use(...), without a provider", parameter="stack"
            )
        self._stack = stack
        self._provider = provider or MultiProvider()
        self._resolve = resolve

    def get_model(self, model_name: str | None) -> Model:
        """Return the model of that name, with the layers around it."""
        model = self._provider.get_model(model_name)
        return StackModel(replace(self._stack, provider=AgentsModelClient(model)).build(self._resolve))

    async def aclose(self) -> None:
        """Close the provider that looks models up."""
        await self._provider.aclose()
