"""The candidates of tuning: typical stacks, each as a config that ``from_config`` reads.

There are three kinds, and for each of their settings some values from low to high: ``ClearThenDrop``,
``ToolResultClearer``, and the guard alone. All of them end in a pruning guard.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from chatstack.workbench.replay.measures.measuring import WireCounter
from chatstack.workbench.replay.policies import bytes_for

Settings: TypeAlias = Mapping[str, float]
LayerConfig: TypeAlias = dict[str, object]
PipelineConfig: TypeAlias = dict[str, list[LayerConfig]]

PAYS = -1.0
"""Stands for ``clear_at_least = "pays"`` among the shares."""
_PRUNE_TO = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_ROOM = (0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
"""Shares of the window at which the guard prunes: the counter of a file may count a little less than the wire has."""
AXES: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "ClearThenDrop": {
        "max_tokens": (0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0),
        "target": (0.2, 0.25, 0.3, 0.35, 0.45, 0.5, 0.6, 0.7, 0.8),
        "keep_recent": (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
        "mentions": (0.0, 0.02, 0.035, 0.05, 0.075, 0.09, 0.11, 0.15),
        "newest_result": (0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 1.0),
        "max_bytes": (0.0, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0),
        "guard": _ROOM,
    },
    "ToolResultClearer": {
        "trigger": (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
        "keep": (1, 2, 3, 4, 6, 8, 12, 16),
        "clear_at_least": (0.0, 0.05, 0.1, 0.2, 0.3, PAYS),
        "prune_to": _PRUNE_TO,
        "guard": _ROOM,
    },
    "ContextWindowGuard": {"prune_to": _PRUNE_TO, "guard": _ROOM},
}
"""The settings of each kind, and the values that are tried.

They are shares of the window, except ``keep``, a number of results, ``max_bytes``, the bound of new results in bytes
for each token of the window (0 for none), and the settings of ``ClearThenDrop``, which are shares of its
``max_tokens``.
"""
_FIRST: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "ClearThenDrop": {
        "max_tokens": (1.0, 0.8, 0.6),
        "target": (0.45, 0.3, 0.6),
        "keep_recent": (0.05, 0.2),
        "mentions": (0.09, 0.05),
        "newest_result": (0.2,),
        "max_bytes": (0.25,),
        "guard": (1.0,),
    },
    "ToolResultClearer": {
        "trigger": (1.0, 0.7, 0.5),
        "keep": (3, 1, 8),
        "clear_at_least": (0.0, 0.2),
        "prune_to": (0.7,),
        "guard": (1.0,),
    },
    "ContextWindowGuard": {"prune_to": (0.7, 0.5, 0.3, 0.9), "guard": (1.0,)},
}
"""The start of the search: the first values of each kind are the defaults of its layers."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One stack to try: a kind, and a value for each of its settings, in the order of ``AXES``."""

    kind: str
    values: tuple[float, ...]

    @property
    def settings(self) -> Settings:
        """The values by name."""
        return MappingProxyType(dict(zip(AXES[self.kind], self.values, strict=True)))

    def neighbours(self, steps: int = 1) -> Iterator[Candidate]:
        """Yield the candidates that are ``steps`` away in one setting, each setting down and up."""
        for at, axis in enumerate(AXES[self.kind].values()):
            place = axis.index(self.values[at])
            for other in (place - steps, place + steps):
                if 0 <= other < len(axis):
                    yield Candidate(self.kind, (*self.values[:at], axis[other], *self.values[at + 1 :]))


def first_candidates() -> list[Candidate]:
    """Return the start of the search: the defaults of each kind, then the rest, the kinds in turn."""
    kinds = [
        [Candidate(kind, values) for values in itertools.product(*settings.values())]
        for kind, settings in _FIRST.items()
    ]
    return [each for row in itertools.zip_longest(*kinds) for each in row if each is not None]


@dataclass(frozen=True, slots=True)
class ConfigWriter:
    """Writes candidates as configs: every size in tokens, for one window.

    ``counter`` is the counter of their layers, by its name in a config; "" for the default, which counts characters.
    Recordings report no usage that could calibrate it, so candidates count as their requests are measured: by the
    tokenizer if the measure does, else by characters.
    """

    window: int
    counter: str

    @classmethod
    def measured_by(cls, counter: WireCounter, window: int) -> ConfigWriter:
        """Return a writer whose layers count as nearly like the measure as a config can say."""
        return cls(window, "tokenizer" if counter.name == "o200k" else "")

    def config(self, candidate: Candidate) -> PipelineConfig:
        """Return the config; it holds no provider, which is passed to ``from_config``."""
        settings = candidate.settings
        layers: list[LayerConfig] = []
        if candidate.kind == "ClearThenDrop":
            if settings["max_bytes"]:
                layers.append({"use": "ToolResultShaper", "max_bytes": bytes_for(self.window, settings["max_bytes"])})
            shares = {name: settings[name] for name in ("target", "keep_recent", "mentions", "newest_result")}
            layers.append({"use": "ClearThenDrop", "max_tokens": self._tokens(settings["max_tokens"]), **shares})
        elif candidate.kind == "ToolResultClearer":
            layers.append(self._clearer(settings))
        guard: LayerConfig = {
            "use": "ContextWindowGuard",
            "max_context_tokens": self._tokens(settings["guard"]),
            "prune_on_overflow": True,
        }
        layers.append(guard | ({"prune_to": settings["prune_to"]} if "prune_to" in settings else {}))
        return {"layers": [layer | ({"counter": self.counter} if self.counter else {}) for layer in layers]}

    def words(self, candidate: Candidate) -> str:
        """Describe the candidate in a few sentences."""
        settings = candidate.settings
        if candidate.kind == "ContextWindowGuard":
            return self._guard_told(settings)
        if candidate.kind == "ToolResultClearer":
            least = settings["clear_at_least"]
            waits = f", if that saves {self._tokens(least):,} or more" if least > 0 else ""
            return (
                f"From {self._tokens(settings['trigger']):,} tokens on it clears all tool results but the newest "
                f"{settings['keep']:.0f}{', once that pays' if least == PAYS else waits}. {self._guard_told(settings)}"
            )
        limit = settings["max_tokens"]
        mentions = f"{self._tokens(limit * settings['mentions']):,}" if settings["mentions"] else "none"
        bound = bytes_for(self.window, settings["max_bytes"])
        return (
            f"{f'New tool results are bounded at {bound:,} bytes. ' if settings['max_bytes'] else ''}"
            f"Above {self._tokens(limit):,} tokens it clears old tool results, then drops the oldest messages, down "
            f"to {self._tokens(limit * settings['target']):,}, of which a list of names in what is gone takes up to "
            f"{mentions}; the newest {self._tokens(limit * settings['keep_recent']):,} stay, and a new result over "
            f"{self._tokens(limit * settings['newest_result']):,} loses its middle. {self._guard_told(settings)}"
        )

    def _guard_told(self, settings: Settings) -> str:
        room = settings["guard"]
        target = f", down to {self._tokens(room * settings['prune_to']):,}" if "prune_to" in settings else ""
        return f"Above {self._tokens(room):,} tokens a guard drops the oldest messages{target}."

    def _clearer(self, settings: Settings) -> LayerConfig:
        least = settings["clear_at_least"]
        return {
            "use": "ToolResultClearer",
            "trigger": {"tokens": self._tokens(settings["trigger"])},
            "keep": {"messages": int(settings["keep"])},
            "clear_at_least": "pays" if least == PAYS else self._tokens(least) if least else 0,
            "max_context_tokens": self.window,
        }

    def _tokens(self, share: float) -> int:
        return max(1, round(share * self.window))
