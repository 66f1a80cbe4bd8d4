"""``chatstack doctor``: what is installed here, what is missing for what, and what is known about a model."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple

from chatstack.cli.terminal import own_version, printable

if TYPE_CHECKING:
    from chatstack.cli import Subparsers
    from chatstack.tokens.prices import Price, Rate

_DISTRIBUTION = "chatstack-core"
_DESCRIPTION = """\
Says what is installed: extras, plugins, keys in the environment; what is
missing, and for what; and with --model, which window and which prices are
known for it. Nothing is called, and no plugin is imported. Values of keys are
not shown.
"""
_EPILOG = """\
examples:
  chatstack doctor
  chatstack doctor --model gpt-5-mini --model claude-sonnet-4-5

next: chatstack demo shows a stack at work, chatstack inspect FILE shows yours
"""
FOR = {
    "openai": "OpenAI, and servers with its API",
    "anthropic": "Anthropic, and servers with its API",
    "otel": "spans and metrics to a dashboard",
    "yaml": "config files in YAML",
    "prices": "windows and prices of models",
    "tokenizer": "exact counts of tokens",
    "cli": "chatstack demo, replay and tune",
    "remote": "recordings behind an address: s3://, https://",
    "injectq": "injectq containers",
    "dependency-injector": "dependency-injector containers",
    "peers": "chatstack replay --peers",
}
"""The purpose of each extra."""
_KEYS = (("OPENAI_API_KEY", "OpenAI"), ("ANTHROPIC_API_KEY", "Anthropic"))
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)\s*(?P<range>[^;\[]*);.*extra == ['\"](?P<extra>[\w-]+)['\"]")


class Requirement(NamedTuple):
    """A package that an extra needs: ``installed`` is its version, "" if it is not there; ``fits`` its range."""

    extra: str
    name: str
    installed: str
    wanted: str
    fits: bool


def register(subparsers: Subparsers) -> None:
    """Add ``doctor`` to the command line."""
    parser = subparsers.add_parser(
        "doctor",
        help="say what is installed, what is missing for what, and what is known about a model",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        type=_name,
        metavar="NAME",
        help="a model whose window and prices to look up; may be given again",
    )
    parser.set_defaults(run=run)


def _name(given: str) -> str:
    if not given.strip():
        raise argparse.ArgumentTypeError("expected the name of a model, got an empty text")
    return given.strip()


def run(args: argparse.Namespace) -> int:
    """Print the report and return 0."""
    for line in report(args.model):
        sys.stdout.write(f"{printable(line)}\n")
    return 0


def report(models: list[str]) -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"chatstack {own_version()} on Python {platform.python_version()}"
    yield ""
    yield "Extras"
    found = requirements()
    for extra, purpose in FOR.items():
        yield f"  {extra:<20} {_state([each for each in found if each.extra == extra]):<34} {purpose}"
    yield ""
    yield "Keys in the environment"
    for name, whose in _KEYS:
        yield f"  {name:<20} {'set' if os.environ.get(name) else 'not set':<34} {whose}"
    yield ""
    yield from _plugins()
    for model in models:
        yield ""
        yield from _model(model)
    yield ""
    yield from _missing(found)
    yield from _not_set()
    if unknown := [model for model in models if not _is_known(model)]:
        yield f"No window or no prices known: {', '.join(unknown)}."


def requirements() -> list[Requirement]:
    """Return what the extras need, by the metadata of the installed distribution; nothing if there is none."""
    try:
        needed = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        needed = []
    found = [_REQUIREMENT.match(each) for each in needed]
    return [
        Requirement(each["extra"], each["name"], version, each["range"].strip(), _fits(version, each["range"]))
        for each in found
        if each is not None and each["name"] != _DISTRIBUTION and each["extra"] in FOR
        for version in [_version(each["name"])]
    ]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _fits(version: str, wanted: str) -> bool:
    """Return False if a version is outside a range of ``>=`` and ``<``; only leading numbers are compared."""
    have = _numbers(version)
    for each in wanted.split(","):
        limit = _numbers(each)
        if (each.strip().startswith(">=") and have < limit) or (each.strip().startswith("<") and have >= limit):
            return False
    return bool(version)


def _numbers(text: str) -> tuple[int, ...]:
    found = re.search(r"\d+(\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


def _state(needed: list[Requirement]) -> str:
    """Return the state of an extra: the version of its first package, or the first one that lacks."""
    for each in needed:
        if not each.installed:
            return "not installed"
        if not each.fits:
            return f"{each.name} {each.installed}, needs {each.wanted}"
    shown = min(needed, key=lambda each: len(each.name), default=None)
    return f"{shown.name} {shown.installed}" if shown else "unknown"


def _plugins() -> Iterator[str]:
    from chatstack import plugins

    yield "Plugins"
    offers = [offer for group in plugins.GROUPS for offer in plugins.available(group)]
    for offer in offers:
        kind = offer.group.removeprefix("chatstack.").removesuffix("s").replace("strategie", "strategy")
        told = offer.source if offer.may_load else f"{offer.source}, kept out by {plugins.ALLOWED}"
        yield f"  {kind} {offer.name}, of {told}"
    if not offers:
        yield "  none; they are optional, and are used where a config file names them"


def _model(model: str) -> Iterator[str]:
    from chatstack.tokens.prices import price_of
    from chatstack.tokens.windows import window_of

    yield model
    window, price = window_of(model), price_of(model)
    yield f"  window       {f'{window:,} tokens' if window else 'not known: give max_context_tokens as a number'}"
    if price is None:
        has_tables = bool(_version("genai-prices"))
        why = "not known" if has_tables else f"not known without pip install '{_DISTRIBUTION}[prices]'"
        yield f"  prices       {why}: Budget(max_cost=...) needs price=..., and chatstack.cost leaves it out"
    else:
        yield from _prices(price)


def _prices(price: Price) -> Iterator[str]:
    yield f"  input        {_dollars(price.input)}"
    yield f"  cache read   {_dollars(price.read)}, from {price.minimum_tokens:,} tokens on"
    yield f"  cache write  {_dollars(price.write)}"
    if price.write_for_an_hour is not None:
        yield f"  for an hour  {_dollars(price.write_for_an_hour)}"
    yield f"  output       {_dollars(price.output)}"
    yield f"  source       {price.provider}:{price.model} of {price.source}"


def _dollars(rate: Rate | None) -> str:
    if rate is None:
        return "not published"
    tiers = "".join(f", ${price.normalize():f} above {start:,} tokens" for start, price in rate.tiers)
    return f"${rate.base.normalize():f} for a million tokens{tiers}"


def _missing(found: list[Requirement]) -> Iterator[str]:
    lacking = [extra for extra in FOR if not all(each.fits for each in found if each.extra == extra)]
    left_out = " (but `peers`, which only `replay --peers` needs)" if "peers" in lacking else ""
    lacking = [extra for extra in lacking if extra != "peers"]  # not in all: only for comparisons
    if not found:
        yield "What the extras need is not known: the metadata of chatstack-core is not there."
    elif lacking:
        yield f"Missing: pip install '{_DISTRIBUTION}[{','.join(lacking)}]' for all that is above."
    else:
        yield f"All extras are installed{left_out}."


def _not_set() -> Iterator[str]:
    unset = [name for name, _ in _KEYS if not os.environ.get(name)]
    if unset:
        yield f"Not set: {', '.join(unset)}."


def _is_known(model: str) -> bool:
    from chatstack.tokens.prices import price_of
    from chatstack.tokens.windows import window_of

    return window_of(model) is not None and price_of(model) is not None
