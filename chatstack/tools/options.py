"""Validation of the options that all tool-running layers share, at construction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from chatstack.client.wiring import Resolver, wrong
from chatstack.errors import WiringError
from chatstack.tools.execution import Approval
from chatstack.tools.parameters import has_default
from chatstack.tools.tool import Tool, tool


class RunsTools(Protocol):
    """A layer that runs tools: the tool loop, the iterative loop."""

    @property
    def tools(self) -> Sequence[Tool[..., Any] | Callable[..., object]]: ...
    @property
    def approve(self) -> Approval | None: ...
    @property
    def propagate(self) -> tuple[type[Exception], ...]: ...
    @property
    def resolve(self) -> Resolver | None: ...


def checked_tools(owner: RunsTools, *, own_services: tuple[type, ...] = ()) -> tuple[Tool[..., Any], ...]:
    """Return the owner's tools, with functions made into tools. Raises ``WiringError``, naming its class and the
    parameter.

    ``own_services`` are given to tools without a container.
    """
    name, given, propagate = type(owner).__name__, owner.tools, owner.propagate
    if not isinstance(given, Sequence) or isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise wrong(name, "tools", given, "a list of functions")
    if owner.approve is not None and not callable(owner.approve):  # pyright: ignore[reportUnnecessaryComparison]
        raise wrong(name, "approve", owner.approve, "a function of a ToolCall and its ToolContext")
    if owner.resolve is not None and not callable(owner.resolve):  # pyright: ignore[reportUnnecessaryComparison]
        raise wrong(name, "resolve", owner.resolve, "a function from a type to an instance")
    if not _are_exceptions(propagate):
        raise wrong(name, "propagate", propagate, "a tuple of exception classes")
    tools = tuple(cast("Tool[..., Any]", each) if isinstance(each, Tool) else tool()(each) for each in given)
    names = [each.name for each in tools]
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise WiringError(
            f"{name}: two tools are called {twice!r}; rename one with @tool(name=...)", layer=name, parameter="tools"
        )
    for each in tools:
        wanted = [
            kind.__name__
            for name, kind in each.services.items()
            if not issubclass(kind, own_services) and not has_default(each.function, name)
        ]
        if wanted and owner.resolve is None:
            told = f"tool {each.name!r} needs {', '.join(wanted)} injected"
            raise WiringError(f"{name}: {told}; give it a resolver (resolve=)", layer=name, parameter="resolve")
    return tools


def _are_exceptions(given: object) -> bool:
    return isinstance(given, tuple) and all(
        isinstance(each, type) and issubclass(each, Exception) for each in cast("tuple[object, ...]", given)
    )
