"""The JSON schema of configs: it takes what ``from_config`` takes, and refuses what is misspelt."""

from __future__ import annotations

import functools
import json
import tomllib
from typing import Any

import pytest

from chatstack import WiringError, from_config
from chatstack.cli import main
from chatstack.client.hints import takes_none
from chatstack.config import recipes as config
from chatstack.config.options import options_of
from chatstack.config.schema import pipeline_schema
from chatstack.testing import ScriptedClient
from tests.plugin_fixtures import COUNTER, LAYER, Shop
from tests.plugin_fixtures import shop as shop  # a fixture
from tests.test_recipes_alike import RECIPE, TOML, XPERT_JSON

GUARD: dict[str, object] = {"use": "ContextWindowGuard", "max_context_tokens": 900}
STORE = {"use": "sqlite", "path": "a.sqlite"}

GOOD: dict[str, object] = {
    "everything": RECIPE,
    "toml": tomllib.loads(TOML),
    "nothing": {},
    "names": {"layers": ["ProgressReporter", "FunctionInvoker", "ToolResultClearer", "Truncate", "ModelTracer"]},
    "xpert": {"layers": [json.loads(XPERT_JSON)]},
    "their spelling of options": {"layers": [{"use": "ToolResultClearer", "excludeTools": ["a"]}]},
    "auto": {"layers": [{**GUARD, "max_context_tokens": "auto"}]},
    "null": {"layers": [{"use": "FunctionInvoker", "max_concurrency": None}]},
    "counters": {
        "layers": [
            {**GUARD, "name": str(number), "counter": counter}
            for number, counter in enumerate(["chars", "table", {"use": "estimating", "dialect": "claude-4"}])
        ]
    },
    "memory": {"memory": {"store": STORE, "scope": "t", "max_entries": 5}},
    "no store": {"memory": {"max_messages": 5}},
    "for editors": {"$schema": "pipeline.schema.json", "trace_model_calls": False},
}
BAD: dict[str, object] = {
    "key at the top": {"layer": []},
    "no list": {"layers": "ModelTracer"},
    "unknown layer": {"layers": ["ContextWindowGard"]},
    "unknown layer in a table": {"layers": [{"use": "ContextWindowGard", "max_context_tokens": 5}]},
    "no use": {"layers": [{"max_context_tokens": 5}]},
    "unknown option": {"layers": [{**GUARD, "max_context_token": 5}]},
    "missing option": {"layers": ["ContextWindowGuard"]},
    "missing option in a table": {"layers": [{"use": "OldestFirst", "max_tokens": 5}]},
    "wrong type": {"layers": [{**GUARD, "prune_on_overflow": "yes"}]},
    "text for a number": {"layers": [{**GUARD, "max_context_tokens": "900"}]},
    "two triggers": {"layers": [{"use": "ToolResultClearer", "trigger": {"tokens": 5, "messages": 3}}]},
    "no trigger": {"layers": [{"use": "ToolResultClearer", "trigger": {}}]},
    "unknown trigger": {"layers": [{"use": "ToolResultClearer", "trigger": {"token": 5}}]},
    "wrong choice": {"layers": [{"use": "ToolResultClearer", "token_count_method": "exact"}]},
    "xpert, misspelt": {"layers": [{"type": "ContextEditingMiddleware", "options": {"trigger": {"token": 5}}}]},
    "tools": {"layers": [{"use": "FunctionInvoker", "tools": ["os.system"]}]},
    "empty name": {"layers": [{**GUARD, "name": ""}]},
    "unknown counter": {"layers": [{**GUARD, "counter": "tabel"}]},
    "unknown option of a counter": {"layers": [{**GUARD, "counter": {"use": "chars", "per_token": 3}}]},
    "base_url": {"layers": [{"use": "Summarizer", "max_tokens": 9, "summary_client": {"base_url": "x"}}]},
    "store without scope": {"memory": {"store": STORE}},
    "store without path": {"memory": {"store": "sqlite", "scope": "t"}},
    "unknown store": {"memory": {"store": {"use": "sqlit", "path": "a"}, "scope": "t"}},
    "service": {"layers": [{**GUARD, "telemetry": {}}]},
    "no budget": {"layers": [{"use": "Budget", "per": "turn"}]},
    "text for dollars": {"layers": [{"use": "Budget", "max_cost": "5"}]},
    "nobody to fall back upon": {"layers": [{"use": "Fallback", "clients": []}]},
    "a name for a client": {"layers": [{"use": "Fallback", "clients": ["gpt-5"]}]},
    "no clients": {"layers": ["Fallback"]},
    "tracing": {"trace_model_calls": "no"},
}


def errors(recipe: object, schema: dict[str, object] | None = None) -> list[str]:
    """What is wrong with it, by the schema without plugins if none is given."""
    written = plain_schema() if schema is None else json.dumps(schema)
    return [each.message for each in validator_of(written).iter_errors(recipe)]


@functools.cache
def plain_schema() -> str:
    return json.dumps(pipeline_schema())


@functools.cache
def validator_of(schema: str) -> Any:
    jsonschema: Any = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(json.loads(schema))
    return jsonschema.Draft202012Validator(json.loads(schema))


@pytest.fixture(autouse=True)
def with_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-none")


@pytest.mark.parametrize("name", GOOD)
def test_what_is_right_validates_and_can_be_read(name: str) -> None:
    from_config(GOOD[name], provider=ScriptedClient())  # type: ignore[arg-type]

    assert errors(GOOD[name]) == []


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_does_not_validate_and_cannot_be_read(name: str) -> None:
    with pytest.raises(WiringError):
        from_config(BAD[name], provider=ScriptedClient())  # type: ignore[arg-type]

    assert errors(BAD[name]) != []


@pytest.mark.parametrize("key", ["base_url", "api_key"])
def test_a_provider_with_an_address_or_a_key_does_not_validate(key: str) -> None:
    provider = {"use": "openai", "model": "m"}

    assert errors({"provider": provider}) == []
    assert errors({"provider": {**provider, key: "x"}}) != []


@pytest.mark.parametrize("name", sorted(config.LAYERS))
def test_every_option_that_a_config_can_hold_is_in_the_schema_and_no_other(name: str) -> None:
    import importlib

    source = getattr(importlib.import_module(config.LAYERS[name]), name)
    options = options_of(source)
    definitions: Any = json.loads(plain_schema())["$defs"]

    known = {each.name for each in options if each.form in ("plain", "counter", "client", "clients")}
    known |= {each.name for each in options if takes_none(each.hint) or each.default == ()}  # that there is none
    theirs = {each for each in definitions[name]["properties"] if not each.islower()}
    assert set(definitions[name]["properties"]) - theirs == known | {"use", "name"}
    assert definitions[name]["description"].endswith(".")


def test_the_command_prints_the_schema_of_what_is_built_in_where_no_plugin_may_be_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHATSTACK_PLUGINS", "")

    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == pipeline_schema()


def test_the_command_adds_the_names_of_plugins_and_imports_none(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.install(
        "acme",
        {"layers: redact": "acme_redact:Redactor", "counters: words": "acme_words:Words", "layers: Truncate": "x:y"},
        {"acme_redact": LAYER, "acme_words": COUNTER},
    )

    assert main(["schema"]) == 0

    schema = json.loads(capsys.readouterr().out)
    recipe = {"layers": ["redact", {"use": "redact", "words": ["x"]}, {**GUARD, "counter": {"use": "words", "n": 1}}]}
    assert not shop.was_imported("acme_redact")
    assert not shop.was_imported("acme_words")
    assert errors(recipe, schema) == []
    assert errors(recipe, pipeline_schema()) != []
    assert errors({"layers": [{"use": "Truncate", "max_token": 5}]}, schema) != []
