"""Strategies of other frameworks as policies: their own code, as it is installed, on the recorded conversations.

Their input is the same for all of them: ``layer.py``. The other modules, one for each distribution, list the
strategies, and how each is set up. None of these is imported before it is asked for, and none has to be there: the
extra ``peers`` brings LangChain and Agent Framework; ``maf-compaction`` (from Python 3.12 on, and bound to one version
of Agent Framework) and ``headroom-ai`` (300 MB) are installed by hand.
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
    "maf-compaction": ("chatstack.workbench.replay.peers.maf_compaction", "0.9"),
    "headroom-ai": ("chatstack.workbench.replay.peers.headroom", "0.42"),
}
"""The module that adapts each distribution, and the oldest version that has the adapted code."""


def peer_policies() -> list[Policy]:
    """Return the policies of the installed peers, in the order of the table above.

    Raises ``InputError`` if none is installed, or one that lacks the compared code.
    """
    found: list[Policy] = []
    missing = missing_peers()
    for distribution, (module, oldest) in _PEERS.items():
        if distribution in missing:
            continue
        try:
            adapter = importlib.import_module(module)
        except (ImportError, AttributeError) as error:
            raise InputError(
                f"peers: {distribution} {version(distribution)} lacks what is compared; wanted is {oldest} or later: "
                f"{error}"
            ) from error
        found += cast("tuple[Policy, ...]", adapter.POLICIES)
    if not found:
        raise InputError(f"peers: none is installed; pip install {' or '.join(map(_wanted, _PEERS))}")
    return found


def missing_peers() -> list[str]:
    """Return the names of the distributions that could be compared, and are not installed."""
    return [distribution for distribution in _PEERS if not _is_installed(distribution)]


def missing_told() -> str:
    """Return a sentence on the peers that are skipped; "" if all are there, or none: that is an error."""
    missing = missing_peers()
    if len(missing) in (0, len(_PEERS)):
        return ""
    return f"peers: not installed, so left out: {', '.join(map(_wanted, missing))}"


def _wanted(distribution: str) -> str:
    return f"'{distribution}>={_PEERS[distribution][1]}'"


def _is_installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True
