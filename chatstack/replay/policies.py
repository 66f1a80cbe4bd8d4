"""What is compared: named ways of making a stack around a recording, each given the same ceiling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chatstack.client.protocol import ChatClient
from chatstack.client.stack import ChatStack
from chatstack.config.recipes import from_config
from chatstack.context.condensing import ClearThenDrop
from chatstack.context.left_out import LeavesOut
from chatstack.errors import InputError
from chatstack.layers.clearer import ToolResultClearer
from chatstack.layers.guard import ContextWindowGuard
from chatstack.replay.comparisons import RollingMasking, SlidingWindow
from chatstack.replay.measuring import WireCounter


@dataclass(frozen=True, slots=True)
class Policy:
    """A stack with a name. ``stack`` makes it from the ceiling in tokens and the client that stands for the model."""

    name: str
    stack: Callable[[int, ChatClient], ChatStack]


def policies_for(pipelines: Sequence[Path], names: Sequence[str] = ()) -> list[Policy]:
    """The built-in policies, or those of these names, then one for each pipeline file, named after it.

    Raises ``InputError`` for a name that no built-in policy has.
    """
    built_in = {policy.name: policy for policy in BUILT_IN}
    for name in names:
        if name not in built_in:
            raise InputError(f"--policy {name!r}: no such policy; there are {', '.join(built_in)}")
    policies = [built_in[name] for name in dict.fromkeys(names or built_in)]
    taken = set(built_in)
    for path in pipelines:
        name = path.stem if path.stem not in taken else str(path)
        while name in taken:
            name += "'"
        taken.add(name)
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


def _sliding_window(ceiling: int, model: ChatClient) -> ChatStack:
    """The system messages, the task, and the newest units that fit, worked out anew on each call."""
    return ChatStack(model).use(SlidingWindow(ceiling))


def _rolling_masking(ceiling: int, model: ChatClient) -> ChatStack:
    """All but the ten newest results masked, anew on each call, whatever the ceiling."""
    return ChatStack(model).use(RollingMasking(keep=10))


def _batch_clearing(ceiling: int, model: ChatClient) -> ChatStack:
    """All but the three newest results cleared when the ceiling is reached, and remembered."""
    return ChatStack(model).use(
        ToolResultClearer, trigger={"tokens": ceiling}, keep={"messages": 3}, counter=WireCounter.best()
    )


def _ours(ceiling: int, model: ChatClient) -> ChatStack:
    """The recipe that we recommend, its sizes fractions of the ceiling."""
    counter = WireCounter.best()
    return (
        ChatStack(model)
        .use(ClearThenDrop(ceiling), counter=counter)
        .use(ContextWindowGuard, max_context_tokens=ceiling, prune_on_overflow=True, counter=counter)
    )


BUILT_IN = (
    Policy("nothing", _nothing),
    Policy("guard", _guard),
    Policy("sliding-window", _sliding_window),
    Policy("rolling-masking", _rolling_masking),
    Policy("batch-clearing", _batch_clearing),
    Policy("ours", _ours),
)
"""In the order of the table; the first is what the others are compared with."""


def _pipeline(path: Path) -> Callable[[int, ChatClient], ChatStack]:
    """The stack of a config file. Its sizes are its own; the ceiling reaches it as the window of its model.

    Raises ``InputError`` for one that has summaries written: a recording holds none.
    """

    def stack_of(ceiling: int, model: ChatClient) -> ChatStack:
        stack = from_config(path, provider=model)
        built = stack.build()
        for name, layer in zip(built.names, built.layers, strict=True):
            if isinstance(layer, LeavesOut):
                raise InputError(
                    f"--pipeline {path}: {name} asks a model for summaries, and a recording holds none: what they "
                    "would save and lose cannot be replayed; leave that layer out"
                )
        return stack

    return stack_of
