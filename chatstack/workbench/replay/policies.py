"""Policies: named ways of making a stack around a recording, each given the same ceiling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from chatstack.client.protocol import ChatClient
from chatstack.config.names import NamedEditor
from chatstack.config.recipes import from_config, read
from chatstack.config.spellings import entry_of
from chatstack.context.strategies.condensing import ClearThenDrop
from chatstack.errors import InputError
from chatstack.layers.clearer import ToolResultClearer
from chatstack.layers.guard import ContextWindowGuard
from chatstack.layers.shaper import ToolResultShaper
from chatstack.stack.recipe import ChatStack
from chatstack.tokens.counter import TokenCounter
from chatstack.workbench.replay.comparisons import RollingMasking, SlidingWindow
from chatstack.workbench.replay.measures.measuring import WireCounter
from chatstack.workbench.replay.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Policy:
    """A stack with a name.

    ``stack`` makes it from the ceiling in tokens and the client that stands for the model; it must be picklable if the
    policy is to run in several processes. ``about`` describes it in a few words; ``is_yours`` marks a stack of the
    reader's own; ``left_out`` names its layers, and their options, that a replay does without.
    """

    name: str
    stack: Callable[[int, ChatClient], ChatStack]
    about: str = ""
    is_yours: bool = False
    left_out: tuple[str, ...] = ()


def policies_for(pipelines: Sequence[Path], names: Sequence[str] = ()) -> list[Policy]:
    """Return the built-in policies, or those of these names (``ours`` is ``recommended``), then one for each pipeline
    file, named after it.

    Raises ``InputError`` for a name that no built-in policy has.
    """
    built_in = {policy.name: policy for policy in BUILT_IN}
    names = [_ALIASES.get(name, name) for name in names]
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
        policies.append(_pipeline(name, path))
    return policies


def _pipeline(name: str, path: Path) -> Policy:
    stack = PipelineStack.read(path)
    without = f", without its {', '.join(stack.left_out)}" if stack.left_out else ""
    return Policy(name, stack, f"the stack in {path.name}{without}", is_yours=True, left_out=stack.left_out)


def _counter(model: ChatClient) -> TokenCounter | None:
    """Return the counter that measures the result, too; None where layers are to count by themselves."""
    return None if isinstance(model, Recorder) and model.is_provider else WireCounter.best()


def _nothing(ceiling: int, model: ChatClient) -> ChatStack:
    """Send everything: the baseline of the comparison."""
    return ChatStack(model)


def _guard(ceiling: int, model: ChatClient) -> ChatStack:
    """Prune with our guard at the ceiling."""
    return ChatStack(model).use(
        ContextWindowGuard, max_context_tokens=ceiling, prune_on_overflow=True, counter=_counter(model)
    )


def _sliding_window(ceiling: int, model: ChatClient) -> ChatStack:
    """Keep the system messages, the task, and the newest units that fit, anew on each call."""
    return ChatStack(model).use(SlidingWindow(ceiling))


def _rolling_masking(ceiling: int, model: ChatClient) -> ChatStack:
    """Mask all but the ten newest results, anew on each call, whatever the ceiling."""
    return ChatStack(model).use(RollingMasking(keep=10))


def _batch_clearing(ceiling: int, model: ChatClient) -> ChatStack:
    """Clear all but the three newest results when the ceiling is reached, and remember the decision."""
    return ChatStack(model).use(
        ToolResultClearer, trigger={"tokens": ceiling}, keep={"messages": 3}, counter=_counter(model)
    )


def _recommended(ceiling: int, model: ChatClient) -> ChatStack:
    """Return the recipe that we recommend, its sizes fractions of the ceiling."""
    counter = _counter(model)
    return (
        ChatStack(model)
        .use(ToolResultShaper, max_bytes=bytes_for(ceiling), counter=counter)
        .use(ClearThenDrop(ceiling), counter=counter)
        .use(ContextWindowGuard, max_context_tokens=ceiling, prune_on_overflow=True, counter=counter)
    )


def bytes_for(ceiling: int, bytes_per_token: float = 0.25) -> int:
    """Return the bound of a new tool result, in bytes: so many for each token of the ceiling, 1,000 to 4,000."""
    return max(1_000, min(4_000, round(bytes_per_token * ceiling)))


BUILT_IN = (
    Policy("nothing", _nothing, "sends everything as it is"),
    Policy("guard", _guard, "leaves out the oldest messages that do not fit, and remembers which"),
    Policy("sliding-window", _sliding_window, "sends the newest messages that fit, worked out anew on each call"),
    Policy("rolling-masking", _rolling_masking, "masks all but the ten newest tool results, anew on each call"),
    Policy("batch-clearing", _batch_clearing, "clears all but the three newest tool results at the ceiling"),
    Policy(
        "recommended",
        _recommended,
        "bounds new tool results; clears, then drops, in one deep edit, at the ceiling or once that pays, and "
        "keeps the names that were in it",
    ),
)
"""The built-in policies in the order of the table; the first is the baseline."""
_ALIASES = {"ours": "recommended"}
"""Earlier names of policies."""


_LEFT_OUT = ("tool_loop", "fallback", "budget", "plain")
"""The kinds of layers that a replay does without: each call of the recording is one round, whose tools have run, and
which its model has answered. A tool loop would run the tools again, with all that they do in the world. ``plain``
layers do not change what is sent; a rate limiter among them would wait."""


@dataclass(frozen=True, slots=True)
class PipelineStack:
    """The stack of a config. Its sizes are its own; the ceiling reaches it as the window of its model.

    Nothing outside the replay is touched: no tool is run, the memory is the replay's, whatever store the file names,
    and no provider that it names is called or edits; summaries are written by the replay's stand-in, too. ``left_out``
    names the layers that are not part of it for that, and options of others.
    """

    content: Mapping[str, object]
    left_out: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> PipelineStack:
        """Read a file, here and once: where the stack is built, it may not be there. Raises ``ChatStackError``."""
        recipe = read(path, NamedEditor("", ""), describe=True)  # errors in the file name the place in it
        kept = {key: value for key, value in recipe.content.items() if key not in ("provider", "memory")}
        layers = cast("Sequence[object]", recipe.content.get("layers", ()))
        used, left_out = list[object](), list[str]()
        for layer, spec, kind in zip(layers, recipe.stack.layers, recipe.kinds, strict=True):
            if kind in _LEFT_OUT:
                left_out.append(spec.name)
                continue
            used.append(_without_model(layer))
            left_out += [
                f"{name} of {spec.name}" for name, value in _OF_MODELS.items() if spec.options.get(name) == value
            ]
        return cls({**kept, "layers": used}, tuple(left_out))

    def __call__(self, ceiling: int, model: ChatClient) -> ChatStack:
        return from_config(self.content, provider=model)


_OF_MODELS: Mapping[str, object] = {"native": "on", "cache_aligned": True}
"""Values of options that leave a layer's work to the model that answers, which a recording cannot do."""


def _without_model(layer: object) -> object:
    """Return the layer of a config without the client that writes its summaries, and without those options."""
    if not isinstance(layer, Mapping):
        return layer
    options = entry_of(cast("Mapping[str, object]", layer), "").options
    return {
        name: value
        for name, value in options.items()
        if name != "summary_client" and _OF_MODELS.get(name, ...) != value
    }
