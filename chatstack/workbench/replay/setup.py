"""The settings of a replay."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from chatstack.values.requests import ChatOptions, DeclaredTool
from chatstack.workbench.replay.measures.measuring import WireCounter
from chatstack.workbench.replay.policies import Policy


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of a replay. They can be pickled, as they go to every process.

    ``window`` is the ceiling of every policy, in tokens of ``counter``. ``tools``, if any, go out with every call,
    instead of the tools that a recording declares. ``model`` is the model whose prices count, instead of the recorded
    ones. ``pause_seconds`` pass before each call: a prompt cache with a shorter lifetime is cold then. ``long_cache``
    means caches that live an hour, and the price of writing to those. ``stories`` is the number of conversations
    reported call by call.

    ``shared_memory``: each policy keeps its memory, and all that it learns, from one conversation to the next; figures
    depend on their order then, and one process has to replay them all. ``own_counter``: layers count as they would by
    themselves, not by ``counter``, and are told the true size of each request, as a provider tells it. ``groups`` is
    the number of groups of conversations whose figures are kept apart, too.
    """

    policies: tuple[Policy, ...]
    _: KW_ONLY
    window: int
    counter: WireCounter
    tools: tuple[DeclaredTool, ...] = ()
    model: str = ""
    pause_seconds: float = 0.0
    long_cache: bool = False
    stories: int = 0
    shared_memory: bool = False
    own_counter: bool = False
    groups: int = 0

    @property
    def tools_tokens(self) -> int:
        """Size of ``tools`` in tokens."""
        return self.counter.count_options(ChatOptions(tools=self.tools)) if self.tools else 0
