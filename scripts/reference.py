"""The pages of ``docs/reference``, made from docstrings, signatures and type hints: ``uv run poe reference``.

``tests/docs/test_reference.py`` fails while the pages are not what this script makes, or lack a public name.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import chatstack
from chatstack import errors
from chatstack.providers.registry import PROVIDERS
from scripts.reference_names import described, markdown
from scripts.reference_tables import command_line, names_in_a_config, signals

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"


class Section(NamedTuple):
    """A page: its title, a sentence, and the modules whose public names are on it."""

    title: str
    about: str
    modules: tuple[str, ...]


_CLIENTS = {
    module: tuple(each.class_name for each in PROVIDERS.values() if each.module == module)
    for module in dict.fromkeys(entry.module for entry in PROVIDERS.values())
}
"""The clients of the providers, by where they are imported from."""
SECTIONS: Mapping[str, Section] = {
    "stacks": Section(
        "Stacks and clients",
        "The recipe of a stack, the client that it builds, and what a client is.",
        ("chatstack.stack.", "chatstack.client."),
    ),
    "layers": Section(
        "Layers",
        "Layers go into a stack by `.use()`. The first one listed is the outermost.",
        ("chatstack.layers.", "chatstack.tools.invoker", "chatstack.telemetry.tracer"),
    ),
    "strategies": Section(
        "Strategies and decisions",
        "Strategies decide which messages are sent, and the memory keeps their decisions.",
        ("chatstack.context.",),
    ),
    "messages": Section(
        "Messages, requests and answers",
        "Immutable values. A history is a list of `Message`.",
        ("chatstack.values.", "chatstack.providers.converters"),
    ),
    "tools": Section("Tools", "Functions that a model can call.", ("chatstack.tools.",)),
    "loops": Section("Iterative loops", "A loop without a history, and its workspace.", ("chatstack.loop.",)),
    "nodes": Section("Nodes of a graph", "A client, or context layers, inside a graph.", ("chatstack.nodes.",)),
    "tokens": Section(
        "Tokens, windows and prices", "Counters of tokens, windows of models, and prices.", ("chatstack.tokens.",)
    ),
    "telemetry": Section(
        "Telemetry and progress", "Spans, logs and metrics, and events in this process.", ("chatstack.telemetry.",)
    ),
    "errors": Section("Errors", "All of them derive from `ChatStackError`.", ("chatstack.errors",)),
    "config": Section("Config files", "A recipe in a file.", ("chatstack.config.",)),
    "providers": Section(
        "Providers",
        "Clients over the official SDKs. Keys come from the environment where none is given.",
        (*_CLIENTS, "chatstack.providers.wrapping."),
    ),
    "containers": Section(
        "Containers",
        "Adapters for two containers. Any other needs nothing but `stack.build(resolve)`.",
        ("chatstack.di.injectq", "chatstack.di.dependency_injector"),
    ),
    "stores": Section(
        "Stores",
        "For decisions and journals that outlive a process.",
        ("chatstack.stores.sqlite", "chatstack.stores.sqlite_journal"),
    ),
    "testing": Section(
        "Testing",
        "A scripted model, a capture of telemetry, and contracts to subclass, for tests of your own.",
        ("chatstack.testing",),
    ),
    "live": Section("Live view", "Progress in a terminal. Needs the extra `cli`.", ("chatstack.live",)),
}
_OTHERS = {
    **_CLIENTS,
    "chatstack.di.injectq": ("install", "install_context_manager", "conversation", "resolver"),
    "chatstack.di.dependency_injector": ("chat_client", "conversation"),
    "chatstack.stores.sqlite": ("SQLiteStore",),
    "chatstack.stores.sqlite_journal": ("SQLiteJournal",),
    "chatstack.live": ("LiveView",),
}
"""Public names outside of ``chatstack`` itself, by where they are imported from."""


class Name(NamedTuple):
    """A public name: where it is imported from, and the page that it is on."""

    home: str
    name: str
    page: str

    def load(self) -> object:
        return getattr(importlib.import_module(self.home), self.name)


def public_names() -> list[Name]:
    """Return every public name with its page. Raises ``KeyError`` for one that no section takes."""
    homes = {name: module for module, names in vars(chatstack)["_HOMES"].items() for name in names}
    found = [Name("chatstack", name, _page_of(homes[name])) for name in sorted(homes)]
    testing = importlib.import_module("chatstack.testing")
    others = {**_OTHERS, "chatstack.testing": tuple(testing.__all__)}
    return found + [Name(home, name, _page_of(home)) for home, names in others.items() for name in names]


def _page_of(module: str) -> str:
    fitting = [
        (len(start), page)
        for page, section in SECTIONS.items()
        for start in section.modules
        if module == start or module.startswith(start)
    ]
    if not fitting:
        raise KeyError(f"{module}: no section of scripts/reference.py has it")
    return max(fitting)[1]


def pages() -> dict[str, str]:
    """Return the text of every page by its file's name."""
    names = public_names()
    links = {each.name: f"{each.page}.md#{_anchor(each, names)}" for each in reversed(names)}
    made = {f"{page}.md": _page(page, names, links) for page in SECTIONS}
    made["config.md"] += names_in_a_config(links)
    made["signals.md"] = signals()
    made["command-line.md"] = command_line()
    made["index.md"] = _index(names, links)
    return {name: f"{text.rstrip()}\n" for name, text in made.items()}


def _page(page: str, names: list[Name], links: Mapping[str, str]) -> str:
    section = SECTIONS[page]
    lines = [f"# {section.title}", "", section.about, ""]
    here = {name: link.removeprefix(f"{page}.md") for name, link in links.items()}
    if page == "errors":
        lines += [markdown(inspect.getdoc(errors) or "", {}).partition("\n\n")[2], ""]
    for each in sorted(names, key=lambda each: (each.home, each.name.lower(), each.name)):
        if each.page == page:
            lines += _entry(each, names, here)
    return "\n".join(lines)


def _heading(name: Name, names: list[Name]) -> str:
    """Return a heading whose anchor nothing else on the page has."""
    alike = [each for each in names if each.page == name.page and each.name.lower() == name.name.lower()]
    if alike[0] == name:
        return name.name
    return f"{name.name} of {name.home.rpartition('.')[2]}" if alike[0].name == name.name else f"{name.name} (function)"


def _anchor(name: Name, names: list[Name]) -> str:
    return re.sub(r"[() ]+", "-", _heading(name, names).lower()).strip("-")


def _entry(name: Name, names: list[Name], links: Mapping[str, str]) -> Iterator[str]:
    yield f"## {_heading(name, names)}"
    yield ""
    yield f"`from {name.home} import {name.name}`"
    yield ""
    yield from described(name.load(), name.name, links, homes=_sources(name))


def _sources(name: Name) -> str:
    """Return the module whose source documents a name that is no class or function."""
    homes: dict[str, str] = {each: module for module, names in vars(chatstack)["_HOMES"].items() for each in names}
    return homes.get(name.name, name.home)


def _index(names: list[Name], links: Mapping[str, str]) -> str:
    lines = [
        "# Reference",
        "",
        "Made from the docstrings of the code by `uv run poe reference`: every public name, with options, defaults,",
        "units and errors. A test fails while a name is missing here.",
        "",
        "| page | names |",
        "|---|---|",
    ]
    for page, section in SECTIONS.items():
        here = sorted({each.name for each in names if each.page == page}, key=lambda name: (name.lower(), name))
        told = ", ".join(f"[`{name}`]({links[name]})" for name in here)
        lines.append(f"| [{section.title}]({page}.md) | {told} |")
    lines += [
        "| [Warnings, spans, attributes, metrics](signals.md) | all names that a dashboard gets |",
        "| [Command line](command-line.md) | all commands and their options |",
    ]
    return "\n".join(lines)


def main() -> int:
    """Write the pages, and remove those that there are no more."""
    FOLDER.mkdir(exist_ok=True)
    made = pages()
    for old in FOLDER.glob("*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
