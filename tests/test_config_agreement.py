"""The schema accepts exactly what ``from_config`` accepts, over every option and many values, in both directions."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import pytest

from chatstack import ContextMemory, WiringError, from_config
from chatstack.config.options import options_of, service_options
from chatstack.config.recipes import COUNTERS, LAYERS, STORES
from chatstack.config.schema import pipeline_schema
from chatstack.config.spellings import OPTIONS
from chatstack.testing import ScriptedClient
from tests.needed_options import NEEDED

pytestmark = pytest.mark.slow

GUARD: dict[str, object] = {"use": "ContextWindowGuard", "max_context_tokens": 900}
OPENAI = {"use": "openai", "model": "m"}
STORE = {"use": "sqlite", "path": "a.sqlite"}

XPERT = "ContextEditingMiddleware"
UNSAYABLE = ("must be more than mentions=", "must be at most max_tokens=1", "must be less than max_tokens=1")
"""What a schema cannot say: that one value is to be less than another."""

NUMBERS = [0, 1, 5, 5.0, 5.5, 0.05, 0.1, 0.4, 0.5, 1.0, 1.5, 100, 100.5, -1, -0.5, 1e300, 2**63 - 1, 2**63, 10**30]
KINDS = ("tokens", "messages", "fraction")
TABLES: Sequence[object] = [
    *([OPENAI], [OPENAI, {**OPENAI, "x": 1}], [OPENAI, "openai"]),
    *({"use": "table"}, OPENAI, {**OPENAI, "base_url": "x"}, {"use": "chars", "x": 1}),
    *({kind: value} for kind in KINDS for value in (5, 5.0, 0.5, 0, 1, -1, True, None)),
    *({"tokens": 5, "messages": 5}, {"token": 5}),
]
TEXTS = ["", "x", "5", "auto", "pays", "model", "table", "tabel", "claude-4", ":memory:", "yes"]
PLAIN: Sequence[object] = [None, True, False, *NUMBERS, *TEXTS, [], ["a"], ["a", 1], {}]
VALUES: Sequence[object] = [*PLAIN, *TABLES]
TABLED = ("trigger", "keep", "counter", "summary_client", "clients", "store")

DOCUMENTS: Mapping[str, Sequence[object]] = {
    "top": [{key: value} for key in ("memory", "layers", "trace_model_calls", "$schema", "x") for value in VALUES],
    "provider": [
        *({"provider": value} for value in VALUES),
        *({"provider": {**OPENAI, key: value}} for key in ("use", "model", "x") for value in VALUES),
    ],
    "entries": [
        *({"layers": [value]} for value in VALUES),
        *({"layers": [{key: value}]} for key in ("use", "type", "name", "x") for value in VALUES),
        *({"layers": [name]} for name in LAYERS),
        *({"layers": [{"use": name}]} for name in LAYERS),
        *({"layers": [{"use": "Truncate", "name": value}]} for value in VALUES),
        *({"layers": [{"type": XPERT, key: value}]} for key in ("name", "options", "use", "x") for value in VALUES),
    ],
    "prices": [
        {"layers": [{"use": "Budget", "max_cost": 1, "price": {"input": 1, "output": 2, key: value}}]}
        for key in ("input", "output", "cache_read", "cache_write", "model", "x")
        for value in PLAIN
    ],
    "limits of the summarizer": [
        {"layers": [{"use": "Summarizer", "max_tokens": tokens, "max_context_items": items}]}
        for tokens in (None, 5)
        for items in (None, 5)
    ],
    "both spellings": [
        {"layers": [{"use": "ToolResultClearer", **given}]}
        for given in (
            {"excludeTools": ["a"]},
            {"exclude_tools": ["a"]},
            {"excludeTools": ["a"], "exclude_tools": ["a"]},
        )
    ],
    "twice": [
        {"layers": [*first, *second]}
        for name in LAYERS
        for first in ([name], [{"use": name, **NEEDED.get(name, {})}])
        for second in (
            [],
            [name],
            [{"use": name, **NEEDED.get(name, {}), "name": "b"}],
            [{"use": name, "name": None}],
            ["Truncate"],
        )
    ]
    + [
        {"layers": [{"type": XPERT}, each]}
        for each in ("ToolResultClearer", {"type": XPERT}, {"type": XPERT, "name": "b"})
    ],
}


def made(place: tuple[str, str]) -> object:
    return getattr(importlib.import_module(place[0]), place[1])


def of_layer(name: str) -> Iterator[object]:
    options = [each.name for each in options_of(made((LAYERS[name], name)))] + [*OPTIONS.get(name, {}), "x"]
    yield {"layers": [{"use": name, **NEEDED.get(name, {})}]}
    for option in options:
        for value in VALUES if option in TABLED else PLAIN:
            yield {"layers": [{"use": name, **NEEDED.get(name, {}), option: value}]}


def of_services() -> Iterator[object]:
    for name, place in COUNTERS.items():
        for option in [*(each.name for each in service_options(made(place))), "x"]:
            for value in PLAIN:
                yield {"layers": [{**GUARD, "counter": {"use": name, option: value}}]}
    for option in [*(each.name for each in service_options(made(STORES["sqlite"]))), "x"]:
        for value in PLAIN:
            yield {"memory": {"store": {**STORE, option: value}, "scope": "t"}}
    yield {"memory": {"store": STORE}}
    for option in [*(each.name for each in service_options(ContextMemory)), "x"]:
        for value in VALUES if option in TABLED else PLAIN:
            yield {"memory": {option: value}}
            yield {"memory": {"store": STORE, "scope": "t", option: value}}


def disagreements(documents: Iterable[object]) -> list[str]:
    """The documents that only one of them accepts."""
    jsonschema: Any = pytest.importorskip("jsonschema")
    schema = jsonschema.Draft202012Validator(pipeline_schema())
    found: list[str] = []
    verdicts: set[bool] = set()
    for document in documents:
        has_provider = cast("dict[str, object]", document).get("provider") is not None
        told = ""
        try:
            from_config(document, None if has_provider else ScriptedClient())  # type: ignore[arg-type]
        except WiringError as error:
            told = str(error)
        verdicts.add(is_valid := schema.is_valid(document))
        if is_valid is bool(told) and not any(each in told for each in UNSAYABLE):
            found.append(f"{json.dumps(document)}: {told or 'accepted'}")
    assert verdicts == {True, False}, "a table that is accepted, or refused, as a whole compares nothing"
    return found


@pytest.fixture(autouse=True)
def with_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHATSTACK_PLUGINS", "")
    for name in ("OPENAI", "ANTHROPIC"):
        monkeypatch.setenv(f"{name}_API_KEY", "sk-none")


@pytest.mark.parametrize("name", list(DOCUMENTS))
def test_both_accept_the_same_documents(name: str) -> None:
    assert disagreements(DOCUMENTS[name]) == []


@pytest.mark.parametrize("name", LAYERS)
def test_both_accept_the_same_values_of_every_option_of_a_layer(name: str) -> None:
    assert disagreements(of_layer(name)) == []


def test_both_accept_the_same_values_of_every_option_of_a_counter_a_store_and_the_memory() -> None:
    assert disagreements(of_services()) == []
