"""Tools: a function, and how the model sees it."""

from __future__ import annotations

import copy
import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Annotated, Any, Generic, ParamSpec, TypeVar, overload

import msgspec

from chatstack.client.wiring import name_of, service_type
from chatstack.errors import WiringError
from chatstack.values.messages import Message
from chatstack.values.requests import ToolDeclaration

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""What OpenAI and Anthropic take as a name; what they refuse would only show with the first call."""


class _Inject:
    def __repr__(self) -> str:
        return "Injected"


_INJECT = _Inject()

Injected = Annotated[T, _INJECT]
"""``db: Injected[Database]`` on a tool: given by the container when the tool runs, not part of the schema."""


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool may know of its call: annotate a parameter with it. Not part of the schema.

    ``messages`` is the request that the model answered with this call, ``round`` the model call of the turn.
    """

    conversation_id: str | None
    call_id: str
    tool_name: str
    round: int
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Tool(Generic[P, R]):
    """A function that a model can call; made by ``@tool``. Calling it calls the function.

    ``services`` maps the injected parameters to what they ask the container for; ``timeout_seconds`` wins over the
    tool loop's own.
    """

    name: str
    description: str = field(repr=False)
    parameters: str = field(repr=False)
    function: Callable[P, R] = field(repr=False)
    arguments: type[msgspec.Struct] = field(repr=False)
    services: Mapping[str, type] = field(default_factory=dict[str, type], repr=False)
    context_parameter: str | None = field(default=None, repr=False)
    timeout_seconds: float | None = field(default=None, repr=False)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function; others run in a thread."""
        return inspect.iscoroutinefunction(self.function)

    def declaration(self) -> ToolDeclaration:
        """How the model sees it."""
        return ToolDeclaration(self.name, self.description, self.parameters)

    def arguments_from(self, json_text: str) -> dict[str, Any]:
        """The validated arguments. Raises ``msgspec.ValidationError`` or ``DecodeError``, naming the path."""
        decoded = msgspec.json.decode(json_text.strip() or "{}", type=self.arguments)
        return {name: getattr(decoded, name) for name in self.arguments.__struct_fields__}


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, timeout_seconds: float | None = None
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_seconds: float | None = None,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a function a tool: its name, docstring and type hints become what the model sees.

    Sync or async. ``Annotated[int, "what it is for"]`` describes a parameter. A parameter of type ``ToolContext`` or
    ``Injected[Service]`` is filled in when it runs, and no part of the schema. Raises ``WiringError`` for a parameter
    that has no type hint, or one that cannot be described as JSON, and for a name that providers would refuse.
    """
    if function is None:
        return lambda given: _made(given, name, description, timeout_seconds)
    return _made(function, name, description, timeout_seconds)


def _made(
    function: Callable[P, R], name: str | None, description: str | None, timeout_seconds: float | None
) -> Tool[P, R]:
    called = name or name_of(function)
    if not callable(function):
        raise WiringError(f"tool: expected a function, got {type(function).__name__}", parameter="tools")
    if not _NAME.fullmatch(called):
        raise WiringError(
            f"tool {called!r}: a name is up to 128 letters, digits, _ and -; pass @tool(name='...')", parameter="name"
        )
    if timeout_seconds is not None and not timeout_seconds > 0:
        raise WiringError(
            f"tool {called!r}: timeout_seconds={timeout_seconds} must be greater than 0", parameter="timeout_seconds"
        )
    fields, services, context_parameter = _sorted_parameters(function, called)
    arguments = msgspec.defstruct(called, fields, kw_only=True, forbid_unknown_fields=True)
    return Tool(
        name=called,
        description=description if description is not None else inspect.getdoc(_written(function)) or "",
        parameters=_schema(arguments, called),
        function=function,
        arguments=arguments,
        services=services,
        context_parameter=context_parameter,
        timeout_seconds=timeout_seconds,
    )


_Field = tuple[str, Any] | tuple[str, Any, Any]


def _sorted_parameters(
    function: Callable[..., object], called: str
) -> tuple[list[_Field], dict[str, type], str | None]:
    """Which parameters the model fills in, and which are filled in here."""
    try:
        hints = typing.get_type_hints(_written(function), include_extras=True)
    except (NameError, TypeError) as error:
        raise WiringError(f"tool {called!r}: a type hint cannot be resolved: {error}") from error
    fields: list[_Field] = []
    services: dict[str, type] = {}
    context_parameter: str | None = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
            raise WiringError(f"tool {called!r}: parameter {parameter} cannot be filled in by name")
        hint = hints.get(parameter.name)
        if hint is None:
            raise WiringError(
                f"tool {called!r}: parameter {parameter.name!r} has no type hint; the model needs one",
                parameter=parameter.name,
            )
        if service_type(hint) is ToolContext:
            context_parameter = parameter.name
        elif _INJECT in getattr(hint, "__metadata__", ()):
            services[parameter.name] = typing.get_args(hint)[0]
        elif parameter.default is inspect.Parameter.empty:
            fields.append((parameter.name, _described(hint)))
        else:
            fields.append((parameter.name, _described(hint), _default(parameter.default)))
    return fields, services, context_parameter


def _written(function: Callable[..., object]) -> Callable[..., object]:
    """Where hints and docstring stand: behind a partial, or at the ``__call__`` of an object."""
    if isinstance(function, functools.partial):
        return _written(function.func)
    return function if inspect.isroutine(function) else type(function).__call__


def _described(hint: Any) -> Any:
    """``Annotated[T, "text"]`` as the description that msgspec puts into the schema; bounds in ``Meta`` stay."""
    metadata: tuple[object, ...] = getattr(hint, "__metadata__", ())
    texts = [each for each in metadata if isinstance(each, str)]
    if not texts:
        return hint
    rest = tuple(each for each in metadata if not isinstance(each, str))
    return Annotated[(typing.get_args(hint)[0], *rest, msgspec.Meta(description=texts[0]))]


def _default(value: object) -> object:
    """A default that msgspec takes: what can change is copied for every call."""
    if _can_change(value):
        return msgspec.field(default_factory=lambda: copy.deepcopy(value))
    return value


def _can_change(value: object) -> bool:
    return isinstance(value, list | dict | set | msgspec.Struct) or is_dataclass(value)


def _schema(arguments: type[msgspec.Struct], called: str) -> str:
    try:
        (top,), components = msgspec.json.schema_components((arguments,), ref_template="#/$defs/{name}")
    except TypeError as error:
        raise WiringError(f"tool {called!r}: a parameter cannot be described as JSON: {error}") from error
    own = components.pop(top["$ref"].rsplit("/", 1)[-1])
    own.pop("title", None)
    if components:
        own["$defs"] = components
    return msgspec.json.encode(own).decode()
