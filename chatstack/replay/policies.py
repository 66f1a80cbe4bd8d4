"""What is compared: named ways of making a stack around a recording, each given the same ceiling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chatstack.client.protocol import ChatClient
from chatstack.client.stack import ChatStack
from chatstack.config import from_config
from chatstack.layers.guard import ContextWindowGuard
from chatstack.replay.measuring import WireCounter


@dataclass(frozen=True, slots=True)
class Policy:
    """A stack with a name. ``stack`` makes it from the ceiling in tokens and the client that stands for the model."""

    name: str
    stack: Callable[[int, ChatClient], ChatStack]


def policies_for(pipelines: Sequence[Path]) -> list[Policy]:
    """The built-in policies, then one for each pipeline file, named after it."""
    policies = [Policy("nothing", _nothing), Policy("guard", _guard)]
    for path in pipelines:
        taken = {policy.name for policy in policies}
        name = path.stem if path.stem not in taken else str(path)
        while name in taken:
            name += "'"
        policies.append(Policy(name, _pipeline(path)))
    return policies


def _nothing(ceiling: int, model: ChatClient) -> ChatStack:
    """Send everything: what the others are compared with."""
    return ChatStack(model)


def _guard(ceiling: int, model: ChatClient) -> ChatStack:
    """Our guard, pruning at the ceiling, with the very counter by which it is measured."""
    return ChatStack(model).use(
        ContextWindowGuard, max_context_tokens=ceiling, prune_on_overflow=True, counter=WireCounter.best()
    )


def _pipeline(path: Path) -> Callable[[int, ChatClient], ChatStack]:
    """The stack of a config file. Its sizes are its own; the ceiling reaches it as the window of its model."""
    return lambda ceiling, model: from_config(path, provider=model)
