"""Strategies of other frameworks as policies: their own code, as it is installed, on the recorded conversations.

Their input is the same for all of them: ``layer.py``. The modules ``langchain.py`` and ``agent_framework.py`` list the
strategies, and how each is set up. Neither framework is imported before it is asked for.
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
"""The module that adapts each distribution, and the oldest version that has the adapted code."""


def peer_policies() -> list[Policy]:
    """Return the policies of the installed peers, LangChain's first, then Agent Framework's.

    Raises ``InputError`` if none is installed, or one that lacks the compared code.
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
