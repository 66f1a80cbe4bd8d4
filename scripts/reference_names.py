"""A public name as Markdown: its docstring, its options with types, ranges and defaults, and its methods."""

from __future__ import annotations

import ast
import collections.abc
import dataclasses
import functools
import importlib
import inspect
import itertools
import re
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from chatstack.client.options import one_of
from chatstack.context.strategy import Strategy
from chatstack.testing import Answer

_CODE = re.compile(r"``([^`]+)``")
_UNITS = {
    "seconds": "seconds",
    "tokens": "tokens",
    "bytes": "bytes",
    "chars": "characters",
    "megabytes": "megabytes",
    "cost": "dollars",
}
_SHOWN_CHARS = 60


def described(found: object, name: str, links: Mapping[str, str], *, homes: str) -> Iterator[str]:
    """Yield the lines about a name, below its heading."""
    if inspect.isclass(found):
        yield from _class(found, name, links)
    elif inspect.isfunction(found):
        yield f"`{_signature(name, found)}`"
        yield ""
        yield markdown(inspect.getdoc(found) or "", links, name)
        yield ""
        yield from _options(found, links)
    else:
        yield markdown(_documented(homes, name), links, name)
        if typing.get_origin(found) in (typing.Union, types.UnionType):
            yield f"\nOne of {_type(found, links)}."
        yield ""


def markdown(text: str, links: Mapping[str, str], own: str = "") -> str:
    """Return a docstring as Markdown, with links to the public names in it."""
    lines: list[str] = []
    for is_code, chunk in itertools.groupby(text.splitlines(), lambda line: line.startswith("    ")):
        if is_code:
            lines += chunk
            continue
        prose = _CODE.sub(lambda code: _linked(" ".join(code[1].split()), links, own), "\n".join(chunk))
        for line in prose.split("\n"):
            if line.startswith("- ") and lines and lines[-1] and not lines[-1].startswith(("- ", " ")):
                lines.append("")  # a list begins behind an empty line
            if line.startswith("Source: ") and lines and lines[-1]:
                lines.append("")
            lines.append(re.sub(r"::$", ":", line))
    return "\n".join(lines)


def _linked(code: str, links: Mapping[str, str], own: str = "") -> str:
    name = code.removesuffix("()").rpartition("chatstack.")[2]
    if name == name.lower() and "_" not in name:
        return f"`{code}`"  # more often a word than the name
    return f"[`{code}`]({links[name]})" if name in links and name != own else f"`{code}`"


def _class(kind: type, name: str, links: Mapping[str, str]) -> Iterator[str]:
    yield markdown(inspect.getdoc(kind) or "", links, name)
    yield ""
    bases = [each for each in kind.__bases__ if each.__name__ in links]
    if bases:
        yield f"Derives from {', '.join(_linked(each.__name__, links) for each in bases)}."
        yield ""
    if issubclass(kind, BaseException):
        if "__init__" in vars(kind):
            yield f"`{_signature(kind.__name__, kind.__init__, drop_first=True)}`"
            yield ""
    elif not getattr(kind, "_is_protocol", False):
        yield from _options(kind, links)
    yield from _members(kind, links)


def _members(kind: type, links: Mapping[str, str]) -> Iterator[str]:
    """Yield a class's own public methods and properties that have something to say; of layers and strategies, whose
    methods the stack calls, none."""
    if not kind.__name__.startswith("Strategy") and _is_stacked(kind):
        return
    inherited = {name for base in kind.__mro__[1:] if base.__name__ in links for name in vars(base)}
    found = [
        (name, member)
        for name, member in vars(kind).items()
        if not name.startswith("_") and name not in inherited and _is_method(member) and inspect.getdoc(member)
    ]
    for name, member in found:
        function = getattr(member, "__func__", member)
        is_property = isinstance(member, property | functools.cached_property)
        shown = name if is_property else _signature(name, function, drop_first=not isinstance(member, staticmethod))
        first, _, rest = (inspect.getdoc(member) or "").partition("\n\n")
        yield f"- `{shown}`: {markdown(first, links)}"
        for paragraph in rest.split("\n\n") if rest and "::" not in first else ():
            yield ""
            yield "\n".join(f"  {line}" for line in markdown(paragraph, links).splitlines())
    if found:
        yield ""


def _is_stacked(kind: type) -> bool:
    return "inner" in getattr(kind, "__dataclass_fields__", {}) or issubclass(kind, Strategy)


def _is_method(member: object) -> bool:
    kinds = (types.FunctionType, classmethod, staticmethod, property, functools.cached_property)
    return isinstance(member, kinds)


def _signature(name: str, function: object, *, drop_first: bool = False) -> str:
    """Return a call with its parameters and short defaults, without their types."""
    parameters = list(inspect.signature(cast("Any", function)).parameters.values())[1 if drop_first else 0 :]
    shown: list[str] = []
    starred = False
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        stars = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
        starred = starred or stars == "*"
        default = "" if each.default is each.empty else f"={_default(each.default).strip('`')}"
        shown.append(f"{stars}{each.name}{default}")
    return f"{name}({', '.join(shown)})"


class _Option(typing.NamedTuple):
    name: str
    hint: object
    default: str


def _options(source: object, links: Mapping[str, str]) -> Iterator[str]:
    rows = list(_rows(source))
    if not rows:
        return
    has_range = any(_range(each) for each in rows)
    yield f"| option | type | {'unit and range | ' if has_range else ''}default |"
    yield f"|---|---|{'---|' if has_range else ''}---|"
    for each in rows:
        between = f" {_range(each)} |" if has_range else ""
        yield f"| `{each.name}` | {_type(each.hint, links)} |{between} {each.default} |"
    yield ""


def _rows(source: object) -> Iterator[_Option]:
    try:
        parameters = inspect.signature(cast("Any", source)).parameters.values()
    except (ValueError, TypeError):
        return
    hints = _hints(source)
    factories = _factories(source)
    for each in parameters:
        if each.name in ("inner", "self") or each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            continue
        default = "required" if each.default is each.empty else _default(each.default)
        if each.name in factories:
            default = _made(factories[each.name])
        yield _Option(each.name, hints.get(each.name, each.annotation), default)


def _hints(source: object) -> Mapping[str, object]:
    made_by = source.__init__ if inspect.isclass(source) else source
    found: dict[str, object] = {}
    for each in (source, made_by):
        try:
            found.update(typing.get_type_hints(cast("Any", each), include_extras=True))
        except (NameError, TypeError):
            continue
    return found


def _factories(source: object) -> Mapping[str, Any]:
    if inspect.isclass(source) and issubclass(source, msgspec.Struct):
        of_struct = msgspec.structs.fields(source)
        made = msgspec.NODEFAULT
        return {each.name: each.default_factory for each in of_struct if each.default_factory is not made}
    if not dataclasses.is_dataclass(source):
        return {}
    fields = dataclasses.fields(source)
    return {each.name: each.default_factory for each in fields if each.default_factory is not dataclasses.MISSING}


def _made(factory: Any) -> str:
    if inspect.isclass(factory) and factory.__module__.startswith("chatstack"):
        return f"a new `{factory.__name__}`"
    return _default(factory())


def _default(value: object) -> str:
    if isinstance(value, frozenset | set):
        value = sorted(cast("Any", value))
    if isinstance(value, Mapping):
        value = dict(cast("Mapping[str, object]", value))
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
        return f"`{value.__name__}`"
    shown = repr(value).replace("'", '"')
    if isinstance(value, msgspec.Struct) and value == type(value)():
        shown = f"{type(value).__name__}()"
    if not shown:
        return "none"
    if " object at 0x" in shown or "<lambda>" in shown:
        return f"a `{type(value).__name__}`"
    return f"`{shown}`" if len(shown) <= _SHOWN_CHARS else "a built-in text" if isinstance(value, str) else "see above"


def _type(hint: object, links: Mapping[str, str]) -> str:
    return " or ".join(dict.fromkeys(_parts(hint, links))).replace("|", "\\|")


def _parts(hint: object, links: Mapping[str, str]) -> Iterator[str]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if one_of(hint) is not None:
        yield str(one_of(hint))
    elif origin is Annotated:
        yield from _parts(arguments[0], links)
    elif origin in (typing.Union, types.UnionType):
        last = [each for each in arguments if each is type(None)]
        for each in [*(each for each in arguments if each is not type(None)), *last]:
            yield from _parts(each, links)
    elif origin is Literal:
        yield from (f"`{each!r}`".replace("'", '"') for each in arguments)
    elif origin in (collections.abc.Callable, collections.abc.Awaitable):
        yield "function"
    elif isinstance(origin, type):
        told = [
            _linked("Answer", links) if each == Answer else _type(each, links) for each in arguments if each is not ...
        ]
        is_ours = origin.__module__.startswith("chatstack")
        name = _linked(origin.__name__, links) if is_ours else origin.__name__.lower()
        says_nothing = set(told) <= {"anything"}
        yield ("class" if origin is type else name) + ("" if says_nothing else " of " + ", ".join(told))
    elif hint is Any or isinstance(hint, typing.TypeVar | typing.ParamSpec):
        yield "anything"
    elif hint is type(None) or hint is None:
        yield "None"
    elif isinstance(hint, typing.ForwardRef):
        yield f"`{hint.__forward_arg__}`"
    elif isinstance(hint, type):
        yield "anything" if hint is object else _linked(hint.__name__, links)
    elif hint is inspect.Parameter.empty:
        yield ""
    else:
        yield f"`{hint}`"


def _range(option: _Option) -> str:
    unit = next((unit for word, unit in _UNITS.items() if word in option.name.split("_")), "")
    if option.name.startswith("chars_per"):
        unit = "characters per token"
    bounds = next((each for each in _metas(option.hint) if _bounds(each)), None)
    takes_numbers = any(kind in (int, float) for kind in _kinds(option.hint))
    return ", ".join(each for each in (unit if takes_numbers else "", _bounds(bounds) if bounds else "") if each)


def _metas(hint: object) -> Iterator[Meta]:
    if typing.get_origin(hint) is Annotated and one_of(hint) is None:
        yield from (each for each in typing.get_args(hint)[1:] if isinstance(each, Meta))
    for each in typing.get_args(hint):
        if typing.get_origin(hint) in (typing.Union, types.UnionType, Annotated):
            yield from _metas(each)


def _kinds(hint: object) -> Iterator[object]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        for each in typing.get_args(hint):
            yield from _kinds(each)
    elif typing.get_origin(hint) is Annotated:
        yield from _kinds(typing.get_args(hint)[0])
    else:
        yield hint


def _bounds(meta: Meta) -> str:
    told = []
    for name, words in (("gt", "above {}"), ("ge", "{} or more"), ("lt", "below {}"), ("le", "{} at most")):
        if (value := getattr(meta, name)) is not None:
            told.append(words.format(value))
    return ", ".join(told)


def _documented(module: str, name: str) -> str:
    """Return the text below an assignment in a module's source."""
    path = Path(cast("str", importlib.import_module(module).__file__))
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for at, statement in enumerate(body[1:], start=1):
        before = body[at - 1]
        targets = before.targets if isinstance(before, ast.Assign) else [getattr(before, "target", None)]
        is_named = any(isinstance(each, ast.Name) and each.id == name for each in targets)
        if is_named and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            return inspect.cleandoc(str(statement.value.value))
    for each in body:
        if isinstance(each, ast.ImportFrom) and each.module and name in {alias.name for alias in each.names}:
            return _documented(each.module, name)
    return ""
