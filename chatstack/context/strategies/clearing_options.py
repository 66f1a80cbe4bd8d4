"""The options of clearing tool results, declared once for the layer and for its strategy."""

# No postponed annotations: constructors made of these fields elsewhere must not have to know the names.
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from chatstack.client.options import NonNegativeInt, OneOf, PositiveInt, Share, ShareOrZero, check_options
from chatstack.context.edits.handles import PLACEHOLDER, check_placeholder

Trigger: TypeAlias = Annotated[
    Mapping[str, int | float], OneOf(tokens=PositiveInt, messages=PositiveInt, fraction=Share)
]
Keep: TypeAlias = Annotated[
    Mapping[str, int | float], OneOf(tokens=NonNegativeInt, messages=NonNegativeInt, fraction=ShareOrZero)
]
ToolNames: TypeAlias = Annotated[Sequence[str], Meta(description="a list of tool names")]


# Without slots: a layer has slots of its own, and Python lays out those of one base only.
@dataclass(frozen=True, kw_only=True, eq=False)
class ClearingOptions:
    """The moment for clearing tool results, the choice of them, and what takes their place."""

    trigger: Trigger = field(default_factory=lambda: {"tokens": 100_000})
    keep: Keep = field(default_factory=lambda: {"messages": 3})
    exclude_tools: ToolNames = ()
    placeholder: str = PLACEHOLDER
    clear_tool_inputs: bool | ToolNames = False
    clear_at_least: NonNegativeInt | Literal["pays"] = 0

    def __post_init__(self) -> None:
        """Check all options, and copy those that the caller could still change."""
        check_options(self)
        check_placeholder(type(self).__name__, self.placeholder)
        inputs = self.clear_tool_inputs
        for name, value in (
            ("trigger", dict(self.trigger)),
            ("keep", dict(self.keep)),
            ("exclude_tools", _each_once(self.exclude_tools)),
            ("clear_tool_inputs", inputs if isinstance(inputs, bool) else _each_once(inputs)),
        ):
            object.__setattr__(self, name, value)

    @cached_property
    def _when(self) -> tuple[str, float]:
        """The unit and the size of the trigger."""
        return next(iter(self.trigger.items()))

    @cached_property
    def _stays(self) -> tuple[str, float]:
        """The unit and the size of what stays."""
        return next(iter(self.keep.items()))


def _each_once(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names in an order that does not depend on the caller's."""
    return tuple(sorted(set(names)))
