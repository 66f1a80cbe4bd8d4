"""Services of one container for the functions that are nodes of one graph.

``Inject[T]`` as a default is a proxy that keeps the first object it ever resolves, for the whole process, and that asks
whichever container was activated last. ``injected(container)`` fills such parameters in on every call, from that
container. Give every graph a container of its own: ``StateGraph(container=InjectQ())``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import ParamSpec, TypeVar, cast, get_args, get_type_hints

from injectq import Inject, InjectQ

from chatstack import WiringError

P = ParamSpec("P")
R = TypeVar("R")


def injected(container: InjectQ) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator for nodes: parameters whose default is ``Inject[T]`` are filled in from that container.

    Nodes may be coroutine functions, plain ones, and asynchronous generators. ``None`` where nothing is bound for a
    type and the parameter may be None. Raises ``WiringError``, naming node, parameter and type, where it may not be,
    when it is called.
    """
    if not isinstance(container, InjectQ):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise WiringError(f"injected: container is a {type(container).__name__}; pass the graph's InjectQ")

    def decorate(node: Callable[P, R]) -> Callable[P, R]:
        asked, signature = asked_for(node), inspect.signature(node)

        @functools.wraps(node)
        def filled_in(*args: P.args, **kwargs: P.kwargs) -> R:
            given = signature.bind_partial(*args, **kwargs).arguments
            for name, kind in asked.items():
                if name not in given:
                    kwargs[name] = _service(container, kind, node, name)
            return node(*args, **kwargs)

        # 10xgraph calls what is no coroutine function in a thread.
        return inspect.markcoroutinefunction(filled_in) if inspect.iscoroutinefunction(node) else filled_in

    return decorate


def asked_for(node: Callable[..., object]) -> dict[str, type]:
    """The parameters of a function whose default is ``Inject[T]``, and each T."""
    found: dict[str, type] = {}
    for name, parameter in inspect.signature(node).parameters.items():
        default: object = parameter.default
        if is_proxy(default):
            found[name] = _kind_of(default)
    return found


def is_proxy(value: object) -> bool:
    """Whether that is a default of injectq's. ``isinstance`` would resolve it."""
    return type(value) is Inject


def resolved(value: object) -> object:
    """What an ``Inject[T]`` proxy stands for in the container that is active now; any other value as it is."""
    if not is_proxy(value):
        return value
    container, kind = InjectQ.get_instance(), _kind_of(value)
    return container.get(kind) if container.has(kind) else None


def _kind_of(proxy: object) -> type:
    return cast("type", vars(proxy)["service_type"])


def _service(container: InjectQ, kind: type, node: Callable[..., object], name: str) -> object:
    if container.has(kind):
        found = cast("object", container.get(kind))
        if not inspect.iscoroutine(found):
            return found
        found.close()
        raise WiringError(
            f"the factory of {kind.__name__} is async, and injectq hands out its coroutine; make the {kind.__name__} "
            f"first, and container.bind_instance({kind.__name__}, ...)",
            parameter=name,
        )
    if _may_be_none(node, name):
        return None
    called = getattr(node, "__name__", repr(node))
    raise WiringError(
        f"node {called!r}: nothing is bound for parameter {name!r}, a {kind.__name__}; "
        f"container.bind_instance({kind.__name__}, ...), or allow None",
        layer=called,
        parameter=name,
    )


def _may_be_none(node: Callable[..., object], name: str) -> bool:
    plain = inspect.unwrap(node)
    annotation: object = inspect.get_annotations(plain).get(name)
    only = SimpleNamespace(__annotations__={name: annotation})
    try:  # that one alone: the others may name what is only there for type checkers
        hint = get_type_hints(only, globalns=getattr(plain, "__globals__", {})).get(name)
    except NameError:
        return "None" in str(annotation) or "Optional" in str(annotation)
    return type(None) in get_args(hint)
