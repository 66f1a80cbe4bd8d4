"""Everything public can be named: what config, schema, reference or contract does not know is told by its name."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import chatstack
import chatstack.providers
import chatstack.stores
from chatstack import Strategy
from chatstack.config.recipes import COUNTERS, LAYERS, PROVIDERS, STORES
from chatstack.config.schema import pipeline_schema
from chatstack.providers.sdk_provider import SdkProvider
from chatstack.testing import StoreContract
from tests.contract.test_layers import enrolled
from tests.stores import test_store_contract

NOT_IN_A_FILE = {
    "BuiltClient": "what a recipe makes",
    "OpenAIProvider": "the base of OpenAI's providers",
    "Strategy": "the base of strategies",
    "TokenCounter": "the base of counters",
}
NAMES = {*LAYERS, *PROVIDERS, *COUNTERS, *STORES}


def public() -> Iterator[tuple[str, type]]:
    for name in chatstack._HOME_OF:
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


def missing(kinds: Iterable[str], known: Iterable[str]) -> list[str]:
    return sorted(set(kinds) - set(known) - NOT_IN_A_FILE.keys())


def test_every_public_layer_and_strategy_can_be_named() -> None:
    found = (name for name, kind in public() if is_layer(kind) or issubclass(kind, Strategy))
    lacking = missing(found, LAYERS)
    assert not lacking, f"{lacking}: add them to LAYERS in chatstack/config/recipes.py"


def test_every_public_counter_can_be_named() -> None:
    found = (name for name, kind in public() if callable(getattr(kind, "count_message", None)))
    assert missing(found, {name for _, name in COUNTERS.values()}) == []


def test_every_provider_can_be_named() -> None:
    home = chatstack.providers
    packages = [each.name for each in pkgutil.iter_modules(home.__path__, f"{home.__name__}.") if each.ispkg]
    kinds = in_packages(*packages)
    found = (kind.__name__ for kind in kinds if issubclass(kind, SdkProvider))
    assert missing(found, {name for _, name in PROVIDERS.values()}) == []


def test_every_store_of_decisions_can_be_named_and_keeps_the_contract() -> None:
    methods = ("find", "put", "forget", "aclose")
    kinds = in_packages("chatstack.stores")
    found = {kind.__name__ for kind in kinds if all(callable(getattr(kind, each, None)) for each in methods)}
    suites = [each for each in vars(test_store_contract).values() if isinstance(each, type)]
    covered = {each.__name__.removeprefix("Test") for each in suites if issubclass(each, StoreContract)}
    assert missing(found, {name for _, name in STORES.values()}) == []
    assert missing(found, covered) == []


def test_every_layer_that_can_be_named_keeps_the_contract() -> None:
    named = {name: getattr(importlib.import_module(module), name) for name, module in LAYERS.items()}
    layers = {name for name, kind in named.items() if not issubclass(kind, Strategy)}
    assert missing(layers, {kind.__name__ for kind in enrolled()}) == []


def test_the_schema_knows_every_name() -> None:
    schema = json.dumps(pipeline_schema())
    assert missing(NAMES, re.findall(r'"const": "([^"]+)"', schema)) == []


def test_the_table_in_the_reference_has_every_name_and_no_other() -> None:
    page = Path(__file__).parents[1] / "docs" / "reference" / "config.md"
    _, _, rest = page.read_text(encoding="utf-8").partition("| named in a file |")
    rows = [row.split("|")[1] for row in rest.partition("\n\n")[0].splitlines()[2:]]
    told = [name for row in rows for name in re.findall("`([^`]+)`", row)]
    assert sorted(told) == sorted(set(told)), "a name stands there twice"
    assert not set(NAMES) - set(told), f"run 'uv run poe reference': {sorted(set(NAMES) - set(told))}"
    assert not set(told) - set(NAMES), f"no config can name: {sorted(set(told) - set(NAMES))}"
