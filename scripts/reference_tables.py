"""The generated tables of the reference: what a config can name, all signals, and the command line."""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import get_args

from chatstack import semconv
from chatstack.cli import COMMANDS, command_parser
from chatstack.config.recipes import COUNTERS, LAYERS, PROVIDERS, STORES
from scripts import meanings
from scripts.reference_names import markdown


def names_in_a_config(links: Mapping[str, str]) -> str:
    """Return the table of what a config file can name."""
    kinds: tuple[tuple[str, Mapping[str, tuple[str, str]]], ...] = (
        ("layer", {name: (module, name) for name, module in LAYERS.items()}),
        ("provider", PROVIDERS),
        ("counter", COUNTERS),
        ("store", STORES),
    )
    here = {name: link.removeprefix("config.md") for name, link in links.items()}
    lines = ["", "## Names in a file", "", "| named in a file | kind | what it is |", "|---|---|---|"]
    for kind, names in kinds:
        for name, (module, attribute) in names.items():
            doc = inspect.getdoc(getattr(importlib.import_module(module), attribute)) or ""
            first = re.split(r"(?<=[.:]) ", " ".join(doc.partition("\n\n")[0].split()))[0].rstrip(":.")
            lines.append(f"| `{name}` | {kind} | [`{attribute}`]({here[attribute]}): {markdown(first, {})} |")
    return "\n".join(lines)


def signals() -> str:
    """Return the page of warnings, spans, attributes and metrics."""
    codes = sorted(get_args(semconv.WarningCode))
    lines = [
        "# Warnings, spans, attributes, metrics",
        "",
        "All names of the core that a dashboard gets; those of plugins are in their READMEs. Names that begin with",
        "`gen_ai` follow OpenTelemetry's GenAI conventions.",
        "",
        "## Warnings",
        "",
        "Each is a span with `chatstack.severity` = `WARN`, a log record, a line of the logger `chatstack`, a counter,",
        "and a progress event. A warning is no error: the span's status stays unset, unless a request was refused here",
        "or a summary failed.",
        "",
        "| code | means | what to do |",
        "|---|---|---|",
        *(f"| `{code}` | {meanings.WARNINGS[code][0]} | {meanings.WARNINGS[code][1]} |" for code in codes),
        "",
        "## Spans",
        "",
        "| name | kind | opened by | what it is |",
        "|---|---|---|---|",
        *(f"| `{name}` | {' | '.join(told)} |" for name, told in meanings.SPANS.items()),
        "",
        "## Attributes and events",
        "",
        "| name | what it says |",
        "|---|---|",
        *(f"| `{name}` | {meanings.ATTRIBUTES[name]} |" for name in sorted(attributes())),
        "",
        "## Metrics",
        "",
        "| name | kind | unit | what is measured |",
        "|---|---|---|---|",
        *(
            f"| `{name}` | {meanings.METRICS[name][0]} | `{unit}` | {meanings.METRICS[name][1]} |"
            for name, unit in metrics()
        ),
    ]
    return "\n".join(lines)


def attributes() -> set[str]:
    """Return the names of all attributes and events."""
    own = {name: value for name, value in vars(semconv).items() if name.isupper() and isinstance(value, str)}
    return {value for name, value in own.items() if name != "SCOPE"}


def metrics() -> list[tuple[str, str]]:
    """Return the names and units of all metrics."""
    own = {name: value for name, value in vars(semconv).items() if name.isupper() and not name.startswith("_")}
    found = [value for value in own.values() if isinstance(value, tuple)]
    return sorted((str(name), str(unit)) for name, unit, *_ in found)


def command_line() -> str:
    """Return the page of the command line."""
    lines = [
        "# Command line",
        "",
        "Exit codes: 0 all well, 1 done but not everything could be read, 2 nothing done: an argument, a file, a",
        "missing package, nowhere to write to. Errors are one line.",
    ]
    for name in sorted(COMMANDS):
        lines += ["", f"## chatstack {name}", "", *_command(command_parser(name))]
    return "\n".join(lines)


def _command(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield from (parser.description or "").rstrip().splitlines()
    yield ""
    actions = [
        each for each in parser._actions if each.help != argparse.SUPPRESS and "--help" not in each.option_strings
    ]
    if actions:
        yield "| argument | what it is |"
        yield "|---|---|"
    for action in actions:
        shown = ", ".join(action.option_strings) or str(action.metavar)
        values = f" {_value(action)}" if action.option_strings and action.nargs != 0 else ""
        yield f"| `{shown}{values}` | {(action.help or '').replace('|', chr(92) + '|')} |"
    if parser.epilog:
        yield ""
        yield "```text"
        yield from parser.epilog.rstrip().splitlines()
        yield "```"


def _value(action: argparse.Action) -> str:
    if action.metavar is not None:
        return str(action.metavar)
    return "{" + ",".join(map(str, action.choices or ())) + "}"
