"""Tools: functions, and their declarations for the model."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

import msgspec

from chatstack.client.hints import bound_names, written
from chatstack.client.loose_json import decoded_as
from chatstack.client.options import check_value
from chatstack.client.wiring import name_of
from chatstack.errors import WiringError
from chatstack.tools.output import plain_model
from chatstack.tools.parameters import parameters_of
from chatstack.tools.schemas import declarable, model_of, schema_of, structure_of
from chatstack.values.requests import ToolDeclaration

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""Names that Anthropic accepts; OpenAI takes up to 64 characters. Checked here, as they would only refuse the call."""
_FUNCTIONS = ("func", "coroutine", "function")
"""Fields in which tools of LangChain, and of other libraries, have the function that they were made of."""


@dataclass(frozen=True, slots=True, eq=False)
class Tool(Generic[P, R_co]):
    """A function that a model can call; made by ``@tool``, or by ``Tool.from_schema``. Calling it calls the function.

    ``services`` maps the injected parameters to the types that the container is asked for. ``timeout_seconds`` wins
    over the tool loop's own. An ``idempotent`` tool may be run again if it is unknown whether it ran.
    """

    name: str
    description: str = field(repr=False)
    parameters: str = field(repr=False)
    function: Callable[P, R_co] = field(repr=False)
    arguments: type[msgspec.Struct] | None = field(repr=False)
    """The class that the model's arguments are decoded into; None where any JSON object will do."""
    services: Mapping[str, type] = field(default_factory=dict[str, type], repr=False)
    context_parameter: str | None = field(default=None, repr=False)
    timeout_seconds: float | None = field(default=None, repr=False)
    idempotent: bool = field(default=False, repr=False)

    @classmethod
    def from_schema(
        cls,
        function: Callable[..., T],
        *,
        name: str,
        description: str = "",
        parameters: Mapping[str, object] | None = None,
        timeout_seconds: float | None = None,
        idempotent: bool = False,
    ) -> Tool[..., T]:
        """Make a tool whose parameters are described elsewhere, as JSON schema: a remote one, say.

        The function gets the fields of the model's arguments by name; it checks them itself, against the schema too:
        what is declared is without choices (``anyOf``) between whole objects, which OpenAI and Anthropic refuse; its
        description has them.
        Raises ``WiringError`` for a name that providers would refuse, and for a schema of anything but an object.
        """
        called = _checked_name(function, name)
        _check_running(called, timeout_seconds, idempotent)
        check_value(f"tool {called!r}", "description", description, str)
        schema: Mapping[str, object] = {"type": "object"} if parameters is None else parameters
        if not isinstance(schema, Mapping) or schema.get("type") != "object":  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(
                f"tool {called!r}: parameters must be the JSON schema of an object", parameter="parameters"
            )
        try:
            described = declarable(schema)
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            raise WiringError(
                f"tool {called!r}: its parameters are no JSON schema: {error}", parameter="parameters"
            ) from error
        made: Tool[..., T] = Tool(
            name=called,
            description=description,
            parameters=described,
            function=function,
            arguments=None,
            timeout_seconds=timeout_seconds,
            idempotent=idempotent,
        )
        return made

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        return self.function(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        """True if the function is a coroutine function; others run in a thread of their own."""
        return inspect.iscoroutinefunction(self.function)

    def declaration(self) -> ToolDeclaration:
        """Return the declaration that the model sees."""
        return ToolDeclaration(self.name, self.description, self.parameters)

    def arguments_from(self, json_text: str) -> dict[str, Any]:
        """Return the validated arguments. Raises ``msgspec.ValidationError`` or ``DecodeError``, naming the path.

        Tolerates a code fence around them, a number, list or object in quotes for a parameter that takes no text, and
        ``null`` for none.
        """
        text = json_text.strip() or "{}"
        if text == "null" and not msgspec.json.decode(self.parameters, type=_Required).required:
            text = "{}"
        if self.arguments is None:
            given: dict[str, Any] = decoded_as(dict[str, Any], text)
            for name in bound_names(self.function) & given.keys():
                raise msgspec.ValidationError(f"Object contains unknown field `{name}`")
            return given
        decoded = decoded_as(self.arguments, text, dec_hook=model_of, enc_hook=plain_model)
        return {name: getattr(decoded, name) for name in self.arguments.__struct_fields__}


class _Required(msgspec.Struct):
    required: Any = None


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_seconds: float | None = None,
    idempotent: bool = False,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_seconds: float | None = None,
    idempotent: bool = False,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a function a tool: its name, docstring and type hints become what the model sees. Under ``python -OO``,
    which has no docstrings, pass ``description``.

    Sync or async. ``Annotated[int, "what it is for"]`` describes a parameter; bounds are those of ``msgspec.Meta``, or
    of pydantic's ``Field``. Hints are plain types, dataclasses, ``TypedDict``, ``msgspec.Struct`` and pydantic models.
    A parameter of type ``ToolContext`` or ``Injected[Service]`` is filled in at each call, and not part of the schema;
    nor is one that a ``functools.partial`` has bound, such as a key: the model neither sees it nor can give another.
    Raises ``WiringError`` for a parameter that has no type hint, or one that cannot be described as JSON, for a name
    that providers would refuse, for a generator function, and for anything else that cannot be a tool.
    """
    if function is None:
        return lambda given: _made(given, name, description, timeout_seconds, idempotent)
    return _made(function, name, description, timeout_seconds, idempotent)


def _made(
    function: Callable[P, R],
    name: str | None,
    description: str | None,
    timeout_seconds: float | None,
    idempotent: bool,
) -> Tool[P, R]:
    called = _checked_name(function, name)
    _check_running(called, timeout_seconds, idempotent)
    if not isinstance(description, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        kind = type(description).__name__
        raise WiringError(f"tool {called!r}: description must be text, not {kind}", parameter="description")
    found = parameters_of(function, called)
    arguments = structure_of(called, found.fields)
    return Tool(
        name=called,
        description=description if description is not None else inspect.getdoc(written(function)) or "",
        parameters=schema_of(arguments, called),
        function=function,
        arguments=arguments,
        services=found.services,
        context_parameter=found.context,
        timeout_seconds=timeout_seconds,
        idempotent=idempotent,
    )


def _checked_name(function: object, name: object) -> str:
    if isinstance(function, Tool):
        made = cast("Tool[..., object]", function)
        raise WiringError(f"tool: {made.name!r} is a tool already; pass it on as it is", parameter="tools")
    if not callable(function) or isinstance(function, type):
        kind = f"the class {function.__name__}" if isinstance(function, type) else type(function).__name__
        inside = next((name for name in _FUNCTIONS if callable(getattr(function, name, None))), "")
        remedy = f"; pass the one in its {inside!r}" if inside else ""
        raise WiringError(f"tool: expected a function, got {kind}{remedy}", parameter="tools")
    ran = written(function)
    if inspect.isgeneratorfunction(ran) or inspect.isasyncgenfunction(ran):
        told = "has a 'yield', and a result is read as a whole: return it, as a list if need be"
        raise WiringError(f"tool {name_of(function)!r}: {told}", parameter="tools")
    if not isinstance(name, str | None):
        raise WiringError(f"tool {name_of(function)!r}: name must be text, not {type(name).__name__}", parameter="name")
    called = name_of(function) if name is None else name
    if not _NAME.fullmatch(called):
        raise WiringError(
            f"tool {called!r}: a name is 1 to 128 letters, digits, _ and -; pass @tool(name='...')", parameter="name"
        )
    return called


def _check_running(called: str, seconds: object, idempotent: object) -> None:
    if not isinstance(idempotent, bool):
        raise WiringError(f"tool {called!r}: idempotent={idempotent!r} must be True or False", parameter="idempotent")
    if seconds is None:
        return
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise WiringError(
            f"tool {called!r}: timeout_seconds must be a number, not {type(seconds).__name__}",
            parameter="timeout_seconds",
        )
    if not seconds > 0:
        raise WiringError(
            f"tool {called!r}: timeout_seconds={seconds} must be greater than 0", parameter="timeout_seconds"
        )
