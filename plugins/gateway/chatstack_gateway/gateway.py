"""What all requests of one gateway share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from chatstack import ChatResponse
from chatstack_gateway.exchange import Exchange
from chatstack_gateway.refused_edits import RefusedEdits
from chatstack_gateway.settings import Settings
from chatstack_gateway.stacks import RecipeAround, Stacks, built, named_upstream
from chatstack_gateway.switch import Switch
from chatstack_gateway.upstream import Connections

Listener: TypeAlias = Callable[[Exchange, ChatResponse | None, int], None]
"""Told of each exchange when it is over, with the answer as it was read, if it was, and the status."""


@dataclass(slots=True)
class Gateway:
    """Settings, connections, stacks and counts. Close it at the end."""

    settings: Settings
    connections: Connections
    stacks: Stacks
    switch: Switch
    refused_edits: RefusedEdits = field(default_factory=RefusedEdits)
    open_requests: int = 0
    listeners: list[Listener] = field(default_factory=list[Listener])

    @classmethod
    def of(cls, settings: Settings, recipe_around: RecipeAround | None = None) -> Gateway:
        """Make a gateway. Raises ``WiringError`` for a pipeline that cannot work."""
        connections = Connections(settings.upstream, settings.limits)
        names_upstream = settings.pipeline and not settings.observe and recipe_around is None
        window = named_upstream(settings.pipeline)[1] if names_upstream else None
        stacks = built(settings, connections, recipe_around, window_tokens=window)
        return cls(settings, connections, stacks, Switch(settings.state))

    @property
    def is_shared(self) -> bool:
        """True if what is decided goes into a store that others read."""
        return getattr(self.stacks.recipe.memory, "shared", None) is not None

    async def aclose(self) -> None:
        """Close stacks, memory and connections."""
        await self.stacks.aclose()
        await self.connections.aclose()
