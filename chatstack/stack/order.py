"""The order of layers: what is allowed, but hardly intended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from chatstack.client.protocol import layer_kind, own_attribute

ContextStage: TypeAlias = Literal["shape", "clear", "summarize", "guard"]
"""The place of a context layer among the others, as its class declares in ``stage``; layers without one have none."""


class _Rule(NamedTuple):
    role: str
    """The kind, or the stage, of the layer in the wrong place."""
    side: Literal["outside", "inside"]
    of: str
    """The kind, or the stage, of the layer that it has to be on the other side of."""
    why: str


_COUNTS_FIRST: Final = "it counts what is there before that one's edits"
_RULES: Final = (
    _Rule("context", "outside", "tool_loop", "it sees a turn's first request only, so a long loop can still overflow"),
    _Rule("fallback", "outside", "tool_loop", "its other clients are asked without tools"),
    _Rule("budget", "inside", "tool_loop", "it sees one round at a time, so a turn can still exceed it"),
    _Rule("budget", "inside", "fallback", "it does not see what the other clients cost"),
    _Rule("reporter", "inside", "tool_loop", "it takes each round for a turn"),
    _Rule("reporter", "inside", "context", "that one's edits and warnings are outside of its turns"),
    _Rule("tracer", "outside", "tool_loop", "its span is of all rounds, not of one model call"),
    _Rule("tracer", "outside", "context", "its span is of the request before it was edited"),
    _Rule("tracer", "outside", "fallback", "its span is of all attempts, beside those of the other clients"),
    _Rule("guard", "outside", "edits", _COUNTS_FIRST),
    _Rule("summarize", "outside", "clear", "it summarizes, by a model, what that one would clear for nothing"),
    _Rule("summarize", "outside", "shape", _COUNTS_FIRST),
    _Rule("clear", "outside", "shape", _COUNTS_FIRST),
    *(
        _Rule(stage, "inside", "fallback", "the other clients are asked without it")
        for stage in ("shape", "clear", "summarize")
    ),
)


def misplaced(names: Sequence[str], layers: Sequence[object]) -> Iterator[str]:
    """Yield a warning for each layer in a place that is hardly intended, the outermost layer first."""
    roles = [_roles(layer) for layer in layers]
    for position, name in enumerate(names):
        for rule in _RULES:
            at = _other(rule, position, roles)
            if at is not None:
                there = f"the tool loop {names[at]!r}" if rule.of == "tool_loop" else repr(names[at])
                move = "after" if rule.side == "outside" else "before"
                yield f"layer {name!r} is {rule.side} {there}: {rule.why}; add it {move} {names[at]!r}"
                break


def _roles(layer: object) -> frozenset[str]:
    """Return the kind and the stage of a layer; ``edits`` for each context layer that is no guard."""
    kind, stage = layer_kind(layer), str(own_attribute(layer, "stage") or "")
    return frozenset({kind, stage, "edits" if kind == "context" and stage != "guard" else ""} - {""})


def _other(rule: _Rule, position: int, roles: Sequence[frozenset[str]]) -> int | None:
    """Return the position of the layer that this one is on the wrong side of: the last one to pass. None if there is
    none."""
    if rule.role not in roles[position]:
        return None
    is_outside = rule.side == "outside"
    side = range(len(roles) - 1, position, -1) if is_outside else range(position)
    found = next((at for at in side if rule.of in roles[at]), None)
    if found is not None and rule.role == "guard" and any("guard" in each for each in roles[found + 1 :]):
        return None  # an early guard, with another one where it counts
    return found
