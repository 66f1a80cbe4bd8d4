"""``maf-compaction``'s strategies for Agent Framework, run by that framework's own ``apply_compaction``.

They are made to keep the prompt cache: a head and a tail of the conversation stay, and of the results between them the
more is cut the later they come. The ceiling is their limit; all else is their default. Those that have the model write
records are not here, as no recorded model has their tool.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

from chatstack.workbench.replay.peers.agent_framework import Compaction, Tools
from chatstack.workbench.replay.peers.layer import PeerStack
from chatstack.workbench.replay.policies import Policy

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it says that it is experimental
    _maf: Any = import_module("maf_compaction")


class Anchored(Compaction):
    """``AnchoredCompactionStrategy``."""

    def strategy_of(self, tools: Tools) -> Any:
        return _maf.AnchoredCompactionStrategy(max_input_tokens=tools.room, tokenizer=tools.tokenizer)


class MinimumGain(Compaction):
    """``MinimumGainAnchoredCompactionStrategy``."""

    def strategy_of(self, tools: Tools) -> Any:
        return _maf.MinimumGainAnchoredCompactionStrategy(max_input_tokens=tools.room, tokenizer=tools.tokenizer)


class UserTurns(Compaction):
    """``UserTurnAnchoredSummarizationCompactionStrategy``."""

    def strategy_of(self, tools: Tools) -> Any:
        return _maf.UserTurnAnchoredSummarizationCompactionStrategy(
            max_input_tokens=tools.room, tokenizer=tools.tokenizer, client=tools.writer
        )


POLICIES = tuple(
    Policy(name, PeerStack(name, opens), about)
    for name, opens, about in (
        ("maf-anchored", Anchored, "maf-compaction: shortens results between head and tail, then drops them"),
        ("maf-minimum-gain", MinimumGain, "maf-compaction: the same, where it saves enough to pay for the cache"),
        ("maf-user-turns", UserTurns, "maf-compaction: summarizes the user's turns between head and tail"),
    )
)
