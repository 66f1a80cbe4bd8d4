"""Strategies of other frameworks as policies: their own code, as it is installed, on the recorded conversations.

What they are given is the same for all of them: ``layer.py``. Which there are, and how each is set up, is said beside
its policy: ``langchain.py``, ``agent_framework.py``. Neither framework is imported before it is asked for.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import cast

from chatstack.errors import InputError
from chatstack.workbench.replay.policies import Policy

_PEERS = {
    "langchain": ("chatstack.workbench.replay.peers.langchain", "1.3"),
    "agent-framework-core": ("chatstack.workbench.replay.peers.agent_framework", "1.20"),
}
"""By the name of the distribution: the module that adapts it, and the oldest version that has what is adapted."""


def peer_policies() -> list[Policy]:
    """The policies of those peers that are installed, LangChain's first, then Agent Framework's.

    Raises ``InputError`` where none is installed, or one that lacks what is compared.
    """
    found: list[Policy] = []
    for distribution, (module, oldest) in _PEERS.items():
        try:
            installed = version(distribution)
        except PackageNotFoundError:
            continue
        try:
            adapter = importlib.import_module(module)
        except (ImportError, AttributeError) as error:
            raise InputError(
                f"peers: {distribution} {installed} lacks what is compared; wanted is {oldest} or later: {error}"
            ) from error
        found += cast("tuple[Policy, ...]", adapter.POLICIES)
    if not found:
        names = " or ".join(f"'{distribution}>={oldest}'" for distribution, (_, oldest) in _PEERS.items())
        raise InputError(f"peers: none is installed; pip install {names}")
    return found
