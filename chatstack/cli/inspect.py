"""``chatstack inspect``: the stack that a config file describes, in its order, with every option."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import textwrap
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from chatstack import semconv
from chatstack.cli.terminal import counted, printable
from chatstack.errors import WiringError

if TYPE_CHECKING:
    from chatstack.cli import Subparsers
    from chatstack.config.options import Option
    from chatstack.config.recipes import Recipe
    from chatstack.stack.entries import LayerSpec

_COLUMNS = 80
_INDENT = 3
_DESCRIPTION = """\
Shows the stack that a config file (TOML, YAML or JSON) describes: its layers in
their order, outermost first, and every option with its value. What the file
sets is marked, with the default beside it. Nothing is asked of a model, and no
provider is made, so that no key is needed; plugins and tools that the file
names are imported. A file that is wrong is an error that says where.
"""


def register(subparsers: Subparsers) -> None:
    """Add ``inspect`` to the command line."""
    parser = subparsers.add_parser(
        "inspect",
        help="show the stack that a config file describes, with every option",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.epilog = "next: chatstack replay TALKS --pipeline FILE tells what it does to your talks"
    parser.add_argument("file", metavar="FILE", help="the config: .toml, .yaml, .yml or .json")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the stack; 0 if it can be built. Raises ``WiringError`` for a file that is no config."""
    from chatstack.config.recipes import read

    recipe = read(cast("str", args.file), describe=True)
    for line in described(recipe):
        sys.stdout.write(f"{line}\n")
    return 0


def described(recipe: Recipe) -> Iterator[str]:
    """Yield the stack in lines of at most 80 characters, free of control sequences."""
    from chatstack.client.wiring import name_of

    specs = recipe.stack.layers
    yield from _wrapped(f"{recipe.where}: {counted(len(specs), 'layer')}, outermost first")
    yield "* is what the file sets; all else is as it is by default"
    for number, (spec, offer) in enumerate(zip(specs, recipe.offers, strict=True), start=1):
        kind = name_of(spec.source)
        called = kind if spec.name == kind else f"{spec.name} ({kind})"
        yield ""
        yield from _wrapped(f"{number}. {called}{f', plugin {offer.source}' if offer is not None else ''}")
        yield from _layer(spec)
    yield ""
    if recipe.stack.trace_model_calls and not any(name_of(spec.source) == "ModelTracer" for spec in specs):
        yield f"{len(specs) + 1}. ModelTracer, which build() puts around the provider"
        yield ""
    yield from _memory(recipe.content)
    yield from _wrapped(f"provider: {_provider(recipe)}")
    yield from _remarks(recipe)


def _layer(spec: LayerSpec) -> Iterator[str]:
    from chatstack.config.options import options_of
    from chatstack.config.schema import summary

    yield from _wrapped(summary(spec.source), _INDENT, hanging=0)
    known = {option.name: option for option in options_of(spec.source)}
    rows = [(name, option) for name, option in known.items() if name in spec.options or not _is_hidden(option)]
    width = max((len(name) for name, _ in rows), default=0)
    for name, option in rows:
        is_set = name in spec.options
        value = _value(spec.options[name], option) if is_set else _unset(option)
        default = f"  (default {_default(option)})" if is_set and _default(option) else ""
        start = f"{' ' * _INDENT}{'*' if is_set else ' '} {name.ljust(width)}  "
        yield printable(f"{start}{_cut(value, _COLUMNS - len(start) - len(default))}{default}")
    for name in spec.options:
        if name not in known:
            yield from _wrapped(f"* {name}  (set)", _INDENT)


def _is_hidden(option: Option) -> bool:
    """Return True for optional services that all layers of a stack share: a file has no option for them."""
    from chatstack.config.options import REQUIRED

    return option.form == "service" and option.default is not REQUIRED


def _value(value: object, option: Option) -> str:
    """Return a value that the file sets, unless it may be a secret; of tools, their names."""
    from chatstack.client.wiring import name_of
    from chatstack.config.options import takes_tools
    from chatstack.tools.tool import Tool

    if takes_tools(option) and isinstance(value, list | tuple):
        tools = cast("Sequence[object]", value)
        return _spelt([each.name if isinstance(each, Tool) else name_of(each) for each in tools])
    return "(set, not shown)" if option.hides(value) else _spelt(value)


def _unset(option: Option) -> str:
    from chatstack.config.options import REQUIRED

    if option.form == "code":
        return "none  (given in code)"
    if option.form == "service":
        kind: object = option.hint
        return f"from the container: {getattr(kind, '__name__', kind)}"
    if option.secret == "any":  # a field kept out of a repr may have its default from the environment
        return "(not shown)"
    return "(not set)" if option.default is REQUIRED else _spelt(option.default)


def _default(option: Option) -> str:
    """Return the default if it may be shown and is short enough to stand beside a value, else ""."""
    from chatstack.config.options import REQUIRED

    is_told = option.default is not REQUIRED and option.form != "code" and option.secret != "any"
    text = _spelt(option.default) if is_told else ""
    return text if len(text) <= 24 else ""


def _spelt(value: object) -> str:
    """Return a value as a file spells it; of an object, its repr, or a placeholder if that raises."""
    from chatstack.config.values import shown

    if value is None:
        return "none"
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return shown(value)


def _memory(content: Mapping[str, object]) -> Iterator[str]:
    """Yield the memory section of the file; of a store, only its name: an address may hold a password."""
    from chatstack.config.options import service_options
    from chatstack.context.memory.memory import ContextMemory

    section = content.get("memory")
    if not isinstance(section, Mapping):
        return
    options = dict(cast("Mapping[str, object]", section))
    store = options.pop("store", None)
    known = {each.name: each for each in service_options(ContextMemory)}
    told = [f"{name} {_value(value, known[name])}" for name, value in options.items()]
    if store is not None:
        name = cast("Mapping[str, object]", store).get("use") if isinstance(store, Mapping) else store
        told.insert(0, f"store {name}")
    yield from _wrapped(f"memory: {', '.join(told)}")


def _provider(recipe: Recipe) -> str:
    if recipe.content.get("provider") is None:
        return "none in the file; it is passed in code: from_config(file, provider)"
    section = recipe.content["provider"]
    is_placed = isinstance(section, Mapping) and cast("Mapping[str, object]", section).get("base_url") is not None
    theirs = "its key comes" if is_placed else "where it is, and its key, come"
    return f"{recipe.stack.provider!r}; {theirs} from the environment"


def _remarks(recipe: Recipe) -> Iterator[str]:
    """Yield what building the stack reports: warnings about the order, and services that a container must provide."""
    with warnings.catch_warnings(record=True) as caught, _without_lines():
        warnings.simplefilter("always")
        try:
            recipe.stack.build()
        except WiringError as error:  # everything else has been built by now
            yield ""
            yield from _wrapped(f"to be given by a container, or in code: {error}")
    for each in caught:
        yield ""
        yield from _wrapped(f"warning: {each.message}")


@contextmanager
def _without_lines() -> Generator[None]:
    """Keep warnings out of the standard logging: they are printed here."""
    logger = logging.getLogger(semconv.SCOPE)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _wrapped(text: str, indent: int = 0, hanging: int = 2) -> Iterator[str]:
    space = " " * indent
    yield from textwrap.wrap(printable(text), _COLUMNS, initial_indent=space, subsequent_indent=space + " " * hanging)


def _cut(text: str, columns: int) -> str:
    text = printable(text)
    return text if len(text) <= columns else f"{text[: columns - 3]}..."
