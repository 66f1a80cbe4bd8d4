"""A tool's parameters: what the model fills in, what the container gives, and the context of the call."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import re
import types
import typing
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from chatstack.client.constraints import as_msgspec_says, check_models
from chatstack.client.hints import bare, bound_names, hints_of, members, takes_none, unknown_hints, written
from chatstack.client.wiring import service_type
from chatstack.errors import WiringError
from chatstack.tools.schemas import Field
from chatstack.values.messages import Message

T = TypeVar("T")


class _Inject:
    def __repr__(self) -> str:
        return "Injected"


_INJECT = _Inject()

Injected = Annotated[T, _INJECT]
"""Annotation of a tool's parameter, ``db: Injected[Database]``: the container supplies it at each call; it is not in
the schema. ``db: Injected[Database] | None = None`` keeps its default where the container has none."""


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context of a tool call: annotate a parameter with it. Not part of the schema.

    ``messages`` is the request that the model answered with this call. ``round`` counts the turn's model calls; in an
    iterative loop, the iterations.
    """

    conversation_id: str | None
    call_id: str
    tool_name: str
    round: int
    messages: tuple[Message, ...]


class Parameters(NamedTuple):
    """The fields for the model, the services to inject, and the parameter for the context, if there is one."""

    fields: list[Field]
    services: dict[str, type]
    context: str | None


def parameters_of(function: Callable[..., object], called: str) -> Parameters:
    """Return a function's parameters by who fills them in. Raises ``WiringError``, naming tool and parameter."""
    signature, hints = _signature(function, called)
    fields: list[Field] = []
    services: dict[str, type] = {}
    context: str | None = None
    bound = bound_names(function)
    for name, parameter in signature.parameters.items():
        if name in bound:
            continue
        refused = functools.partial(_refused, called, name)
        _check_form(parameter, refused)
        if name not in hints:
            is_unbound = not fields and not services and context is None and name in ("self", "cls")
            remedy = "make a tool of the bound method, tool(thing.method)" if is_unbound else "the model needs one"
            raise refused(f"has no type hint; {remedy}")
        hint = hints[name]
        if service_type(hint) is ToolContext:
            if context is not None:
                raise refused(f"is a ToolContext, as {context!r} is; one of them is enough")
            context = name
        elif (injected := _injected(hint, refused)) is not None:
            services[name] = _service(injected, refused)
        else:
            fields.append(_field(parameter, hint, refused))
    return Parameters(fields, services, context)


def has_default(function: Callable[..., object], name: str) -> bool:
    """Return True if the function can be called without that parameter."""
    return inspect.signature(function).parameters[name].default is not inspect.Parameter.empty


def _refused(called: str, parameter: str, why: str) -> WiringError:
    return WiringError(f"tool {called!r}: parameter {parameter!r} {why}", parameter=parameter)


def _signature(function: Callable[..., object], called: str) -> tuple[inspect.Signature, dict[str, Any]]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:  # some functions written in C have no signature
        raise WiringError(f"tool {called!r}: its parameters are not known: {error}") from error
    try:
        hints, unknown = dict(hints_of(source := written(function))), unknown_hints(source)
    except Exception as error:  # an annotation is code, so it may raise anything
        raise WiringError(f"tool {called!r}: a type hint cannot be resolved: {error}") from error
    for name, told in unknown.items():
        if name in signature.parameters:  # what it returns has no schema
            remedy = "import what it names outside of TYPE_CHECKING"
            raise _refused(called, name, f"has a type hint that cannot be resolved, {told}; {remedy}")
    return signature, hints


def _check_form(parameter: inspect.Parameter, refused: Callable[[str], WiringError]) -> None:
    if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        is_starred = parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
        fault = "takes any number of arguments" if is_starred else "is positional-only"
        raise refused(f"{fault}; tools need named parameters")


def _injected(hint: object, refused: Callable[[str], WiringError]) -> object | None:
    """Return the hint that a container is asked for; None for a parameter that the model fills in."""
    choices = [hint] if _is_injected(hint) else [each for each in members(hint) if each is not types.NoneType]
    if len(choices) == 1 and _is_injected(choices[0]):
        return bare(choices[0])
    if _mentions_injected(hint):  # the model could make up a service
        raise refused(f"is {hint}; Injected[...] stands alone, or beside None")
    return None


def _is_injected(hint: object) -> bool:
    return _INJECT in getattr(hint, "__metadata__", ())


def _mentions_injected(hint: object) -> bool:
    return hint is _INJECT or any(map(_mentions_injected, typing.get_args(hint)))


def _service(hint: object, refused: Callable[[str], WiringError]) -> type:
    kind = service_type(hint)
    if kind is None:
        raise refused(f"is Injected[{hint}], which no container can give; name a class")
    return kind


def _field(parameter: inspect.Parameter, hint: Any, refused: Callable[[str], WiringError]) -> Field:
    if parameter.name.startswith("__"):  # a class has such names otherwise, or not at all
        raise refused("has a name that Python keeps for itself; rename it")
    try:
        told = as_msgspec_says(hint)
        check_models(hint)
    except (TypeError, ValueError, RecursionError, re.error) as error:
        raise refused(str(error)) from error
    value: object = parameter.default
    if value is inspect.Parameter.empty:
        return parameter.name, told
    if value is None and hint is not Any and not takes_none(hint):
        told = told | None  # what people write as ``limit: int = None``
    return parameter.name, told, _default(value, refused)


def _default(value: object, refused: Callable[[str], WiringError]) -> object:
    """Return the default in a form that msgspec takes; a mutable one is copied for every call."""
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no form to show it in
        return msgspec.field(default_factory=lambda: value)
    if value is msgspec.UNSET:
        return value
    if not _can_change(value):
        return _shown(value, refused)
    try:
        copy.deepcopy(value)
    except Exception as error:  # a class may refuse with any exception
        raise refused(f"has a default that cannot be copied for every call: {error}") from error
    return msgspec.field(default_factory=lambda: copy.deepcopy(value))


def _shown(value: object, refused: Callable[[str], WiringError]) -> object:
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        kind = type(value)
        remedy = ": write Annotated[..., Field(...)] = ..." if kind.__module__.startswith("pydantic.") else f": {error}"
        raise refused(f"has a default ({kind.__name__}) that cannot be written as JSON{remedy}") from error
    return value


def _can_change(value: object) -> bool:
    is_model = hasattr(value, "model_dump") and not isinstance(value, type)
    return is_model or isinstance(value, list | dict | set | bytearray | msgspec.Struct) or is_dataclass(value)
