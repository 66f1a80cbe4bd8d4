"""What all requests of one gateway share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from chatstack import ChatResponse, ChatStack
from chatstack_gateway.activity import Activity
from chatstack_gateway.exchange import Exchange
from chatstack_gateway.measuring import Meters
from chatstack_gateway.observing import Observer
from chatstack_gateway.recording import Recorder
from chatstack_gateway.refused_edits import RefusedEdits
from chatstack_gateway.settings import Settings
from chatstack_gateway.shadow import Shadow
from chatstack_gateway.sizes import Sizes
from chatstack_gateway.stacks import RecipeAround, Stacks, built, named_upstream
from chatstack_gateway.switch import Switch
from chatstack_gateway.upstream import Connections
from chatstack_gateway.workers import Notices

Listener: TypeAlias = Callable[[Exchange, ChatResponse | None, int], None]
"""Told of each exchange when it is over, with the answer as it was read, if it was, and the status."""


@dataclass(slots=True)
class Gateway:
    """Settings, connections, stacks and counts. Close it at the end."""

    settings: Settings
    connections: Connections
    stacks: Stacks
    switch: Switch
    activity: Activity
    notices: Notices
    observer: Observer | None = None
    recorder: Recorder | None = None
    refused_edits: RefusedEdits = field(default_factory=RefusedEdits)
    open_requests: int = 0
    listeners: list[Listener] = field(default_factory=list[Listener], repr=False)

    @classmethod
    def of(cls, settings: Settings, recipe_around: RecipeAround | None = None) -> Gateway:
        """Make a gateway. Raises ``WiringError`` for a pipeline that cannot work."""
        connections = Connections(settings.upstream, settings.limits)
        names_upstream = settings.pipeline and not settings.observe and recipe_around is None
        window = named_upstream(settings.pipeline)[1] if names_upstream else None
        # What is watched goes on untouched: there is nothing around it.
        around = ChatStack if settings.observe else recipe_around
        stacks = built(settings, connections, around, window_tokens=window)
        activity = Activity()
        notices = Notices(settings.state, activity)
        gateway = cls(settings, connections, stacks, Switch(settings.state), activity, notices)
        gateway.listeners += [activity, Meters(lambda: gateway.open_requests)]
        if settings.observe:
            sizes = Sizes()
            gateway.observer = Observer(Shadow.of(settings.pipeline, sizes, recipe_around), sizes, activity)
            gateway.listeners.append(gateway.observer)
        if settings.record is not None:
            gateway.recorder = Recorder(settings.record)
            gateway.listeners.append(gateway.recorder)
        return gateway

    @property
    def is_shared(self) -> bool:
        """True if what is decided goes into a store that others read."""
        return getattr(self.stacks.recipe.memory, "shared", None) is not None

    def tell(self, exchange: Exchange, response: ChatResponse | None, status: int) -> None:
        """Tell the listeners of an exchange that is over."""
        for listener in self.listeners:
            listener(exchange, response, status)

    async def aclose(self) -> None:
        """Close what watches, then stacks, memory and connections."""
        if self.observer is not None:
            await self.observer.aclose()
        if self.recorder is not None:
            self.recorder.close()
        await self.stacks.aclose()
        await self.connections.aclose()


def check(settings: Settings) -> None:
    """Raise ``WiringError`` for a pipeline that cannot work."""
    if settings.observe:
        Shadow.of(settings.pipeline, Sizes())
    else:
        built(settings, Connections(settings.upstream, settings.limits))
