"""Everything public can be named in a config: what is not known there is told by its name."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator

import chatstack
import chatstack.providers
import chatstack.stores
from chatstack import Strategy
from chatstack.config.recipes import COUNTERS, LAYERS, PROVIDERS, STORES
from chatstack.providers.sdk_provider import SdkProvider

NOT_IN_A_FILE = {
    "BuiltClient": "what a recipe makes",
    "OpenAIProvider": "the base of OpenAI's providers",
    "Strategy": "the base of strategies",
    "TokenCounter": "the base of counters",
}


def public() -> Iterator[tuple[str, type]]:
    for name in chatstack.__all__:
        found = getattr(chatstack, name)
        if isinstance(found, type):
            yield name, found


def in_packages(*packages: str) -> Iterator[type]:
    """The classes that are defined in these packages, but for private ones."""
    for package in packages:
        home = importlib.import_module(package)
        for each in pkgutil.iter_modules(home.__path__, f"{package}."):
            module = importlib.import_module(each.name)
            for name, found in vars(module).items():
                if isinstance(found, type) and found.__module__ == module.__name__ and not name.startswith("_"):
                    yield found


def is_layer(kind: type) -> bool:
    is_around = dataclasses.is_dataclass(kind) and "inner" in {each.name for each in dataclasses.fields(kind)}
    return is_around and callable(getattr(kind, "send", None))


def missing(kinds: Iterator[str], known: set[str]) -> list[str]:
    return sorted(set(kinds) - known - NOT_IN_A_FILE.keys())


def test_every_public_layer_and_strategy_can_be_named() -> None:
    found = (name for name, kind in public() if is_layer(kind) or issubclass(kind, Strategy))
    assert missing(found, set(LAYERS)) == []


def test_every_public_counter_can_be_named() -> None:
    found = (name for name, kind in public() if callable(getattr(kind, "count_message", None)))
    assert missing(found, {name for _, name in COUNTERS.values()}) == []


def test_every_provider_can_be_named() -> None:
    home = chatstack.providers
    packages = [each.name for each in pkgutil.iter_modules(home.__path__, f"{home.__name__}.") if each.ispkg]
    kinds = in_packages(*packages)
    found = (kind.__name__ for kind in kinds if issubclass(kind, SdkProvider))
    assert missing(found, {name for _, name in PROVIDERS.values()}) == []


def test_every_store_of_decisions_can_be_named() -> None:
    methods = ("find", "put", "forget", "aclose")
    kinds = in_packages("chatstack.stores")
    found = (kind.__name__ for kind in kinds if all(callable(getattr(kind, each, None)) for each in methods))
    assert missing(found, {name for _, name in STORES.values()}) == []
