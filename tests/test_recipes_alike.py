"""One recipe in five spellings (code, TOML, YAML, JSON, a dict) is one stack, with one repr."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chatstack import (
    Budget,
    CharCounter,
    ChatStack,
    ClearThenDrop,
    ContextWindow,
    ContextWindowGuard,
    EstimatingCounter,
    Fallback,
    FunctionInvoker,
    LayerSpec,
    ModelTracer,
    OldestFirst,
    ProgressReporter,
    Summarizer,
    TableCounter,
    ToolResultClearer,
    ToolResultShaper,
    Truncate,
    from_config,
    named,
)
from chatstack.config import recipes as config
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient

TOML = """
provider = { use = "openai", model = "gpt-5-mini" }

[[layers]]
use = "ProgressReporter"
agent_name = "travel"

[[layers]]
use = "Budget"
max_tokens = 200_000
max_cost = 0.5
per = "conversation"

[[layers]]
use = "FunctionInvoker"
max_tool_calls_per_turn = 20
tool_timeout_seconds = 2.5

[[layers]]
use = "ToolResultShaper"
max_bytes = 6_000
per_tool = { read_page = 12_000 }
never = ["plan"]

[[layers]]
use = "ToolResultClearer"
trigger = { fraction = 0.5 }
keep = { tokens = 2_000 }
exclude_tools = ["healthcheck", "ping"]
placeholder = "[{tool}: {tokens} tokens cleared]"
clear_tool_inputs = ["search"]
token_count_method = "model"
clear_at_least = "pays"
max_context_tokens = 8_000
native = "auto"
counter = { use = "estimating", dialect = "openai" }

[[layers]]
use = "Summarizer"
max_tokens = 120_000
keep_recent_turns = 2
summary_client = { use = "anthropic", model = "claude-haiku-4-5" }

[[layers]]
use = "ContextWindow"
max_tokens = 4_000
max_context_items = 40
max_tool_calls_per_turn = 10
summary_client = { use = "openai", model = "gpt-5-nano" }
counter = "table"

[[layers]]
use = "ClearThenDrop"
max_tokens = 100_000
target = 0.4

[[layers]]
use = "Truncate"
name = "cut"
max_context_items = 30

[[layers]]
use = "OldestFirst"
max_tokens = 90_000
target_tokens = 60_000
counter = { use = "chars", chars_per_token = 3 }

[[layers]]
use = "ContextWindowGuard"
max_context_tokens = 128_000
warning_threshold = 0.75
prune_on_overflow = true
chars_per_token = 3.5

[[layers]]
use = "Fallback"
counter = "chars"

[[layers.clients]]
use = "anthropic"
model = "claude-haiku-4-5"

[[layers.clients]]
use = "openai"
model = "local"
base_url = "http://127.0.0.1:8000/v1"
window_tokens = 16_000

[[layers]]
use = "ModelTracer"
"""

YAML = """
provider: {use: openai, model: gpt-5-mini}
layers:
  - use: ProgressReporter
    agent_name: travel
  - {use: Budget, max_tokens: 200000, max_cost: 0.5, per: conversation}
  - use: FunctionInvoker
    max_tool_calls_per_turn: 20
    tool_timeout_seconds: 2.5
  - use: ToolResultShaper
    max_bytes: 6000
    per_tool: {read_page: 12000}
    never: [plan]
  - use: ToolResultClearer
    trigger: {fraction: 0.5}
    keep: {tokens: 2000}
    exclude_tools: [healthcheck, ping]
    placeholder: "[{tool}: {tokens} tokens cleared]"
    clear_tool_inputs: [search]
    token_count_method: model
    clear_at_least: pays
    max_context_tokens: 8000
    native: auto
    counter: {use: estimating, dialect: openai}
  - use: Summarizer
    max_tokens: 120_000
    keep_recent_turns: 2
    summary_client: {use: anthropic, model: claude-haiku-4-5}
  - use: ContextWindow
    max_tokens: 4000
    max_context_items: 40
    max_tool_calls_per_turn: 10
    summary_client: {use: openai, model: gpt-5-nano}
    counter: table
  - {use: ClearThenDrop, max_tokens: 100000, target: 0.4}
  - {use: Truncate, name: cut, max_context_items: 30}
  - use: OldestFirst
    max_tokens: 90000
    target_tokens: 60000
    counter: {use: chars, chars_per_token: 3}
  - use: ContextWindowGuard
    max_context_tokens: 128000
    warning_threshold: 0.75
    prune_on_overflow: true
    chars_per_token: 3.5
  - use: Fallback
    counter: chars
    clients:
      - {use: anthropic, model: claude-haiku-4-5}
      - {use: openai, model: local, base_url: "http://127.0.0.1:8000/v1", window_tokens: 16000}
  - ModelTracer
"""

RECIPE: dict[str, object] = {
    "provider": {"use": "openai", "model": "gpt-5-mini"},
    "layers": [
        {"use": "ProgressReporter", "agent_name": "travel"},
        {"use": "Budget", "max_tokens": 200_000, "max_cost": 0.5, "per": "conversation"},
        {"use": "FunctionInvoker", "max_tool_calls_per_turn": 20, "tool_timeout_seconds": 2.5},
        {"use": "ToolResultShaper", "max_bytes": 6_000, "per_tool": {"read_page": 12_000}, "never": ["plan"]},
        {
            "use": "ToolResultClearer",
            "trigger": {"fraction": 0.5},
            "keep": {"tokens": 2_000},
            "exclude_tools": ["healthcheck", "ping"],
            "placeholder": "[{tool}: {tokens} tokens cleared]",
            "clear_tool_inputs": ["search"],
            "token_count_method": "model",
            "clear_at_least": "pays",
            "max_context_tokens": 8_000,
            "native": "auto",
            "counter": {"use": "estimating", "dialect": "openai"},
        },
        {
            "use": "Summarizer",
            "max_tokens": 120_000,
            "keep_recent_turns": 2,
            "summary_client": {"use": "anthropic", "model": "claude-haiku-4-5"},
        },
        {
            "use": "ContextWindow",
            "max_tokens": 4_000,
            "max_context_items": 40,
            "max_tool_calls_per_turn": 10,
            "summary_client": {"use": "openai", "model": "gpt-5-nano"},
            "counter": "table",
        },
        {"use": "ClearThenDrop", "max_tokens": 100_000, "target": 0.4},
        {"use": "Truncate", "name": "cut", "max_context_items": 30},
        {
            "use": "OldestFirst",
            "max_tokens": 90_000,
            "target_tokens": 60_000,
            "counter": {"use": "chars", "chars_per_token": 3},
        },
        {
            "use": "ContextWindowGuard",
            "max_context_tokens": 128_000,
            "warning_threshold": 0.75,
            "prune_on_overflow": True,
            "chars_per_token": 3.5,
        },
        {
            "use": "Fallback",
            "counter": "chars",
            "clients": [
                {"use": "anthropic", "model": "claude-haiku-4-5"},
                {
                    "use": "openai",
                    "model": "local",
                    "base_url": "http://127.0.0.1:8000/v1",
                    "window_tokens": 16_000,
                },
            ],
        },
        "ModelTracer",
    ],
}


def from_code() -> ChatStack:
    return (  # type: ignore[no-any-return]
        ChatStack(OpenAIChatClient("gpt-5-mini"))  # type: ignore[call-overload]
        .use(ProgressReporter, agent_name="travel")
        .use(Budget, max_tokens=200_000, max_cost=0.5, per="conversation")
        .use(FunctionInvoker, max_tool_calls_per_turn=20, tool_timeout_seconds=2.5)
        .use(ToolResultShaper, max_bytes=6_000, per_tool={"read_page": 12_000}, never=["plan"])
        .use(
            ToolResultClearer,
            trigger={"fraction": 0.5},
            keep={"tokens": 2_000},
            exclude_tools=["healthcheck", "ping"],
            placeholder="[{tool}: {tokens} tokens cleared]",
            clear_tool_inputs=["search"],
            token_count_method="model",
            clear_at_least="pays",
            max_context_tokens=8_000,
            native="auto",
            counter=EstimatingCounter("openai"),
        )
        .use(
            Summarizer, max_tokens=120_000, keep_recent_turns=2, summary_client=AnthropicChatClient("claude-haiku-4-5")
        )
        .use(
            ContextWindow,
            max_tokens=4_000,
            max_context_items=40,
            max_tool_calls_per_turn=10,
            summary_client=OpenAIChatClient("gpt-5-nano"),
            counter=TableCounter(),
        )
        .use(ClearThenDrop, max_tokens=100_000, target=0.4)
        .use(named("cut", Truncate), max_context_items=30)
        .use(OldestFirst, max_tokens=90_000, target_tokens=60_000, counter=CharCounter(3))
        .use(
            ContextWindowGuard,
            max_context_tokens=128_000,
            warning_threshold=0.75,
            prune_on_overflow=True,
            chars_per_token=3.5,
        )
        .use(
            Fallback,
            counter=CharCounter(),
            clients=[
                AnthropicChatClient("claude-haiku-4-5"),
                OpenAIChatClient("local", base_url="http://127.0.0.1:8000/v1", window_tokens=16_000),
            ],
        )
        .use(ModelTracer)
    )


SPELLINGS = ("toml", "yaml", "json", "dict")
SERVICES = ("counter", "summary_client", "clients")


@pytest.fixture(autouse=True)
def with_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI", "ANTHROPIC"):
        monkeypatch.setenv(f"{name}_API_KEY", "sk-none")
        monkeypatch.delenv(f"{name}_BASE_URL", raising=False)


def spelt(spelling: str, folder: Path) -> ChatStack:
    if spelling == "dict":
        return from_config(RECIPE)
    path = folder / f"pipeline.{spelling}"
    path.write_text({"toml": TOML, "yaml": YAML, "json": json.dumps(RECIPE)}[spelling])
    return from_config(path)


def compared(spec: LayerSpec) -> tuple[object, ...]:
    """An entry by value: counters and clients, which compare by identity, by their type and repr."""
    options = {name: value for name, value in spec.options.items() if name not in SERVICES}
    services = {name: (type(spec.options[name]), repr(spec.options[name])) for name in SERVICES if name in spec.options}
    return spec.name, spec.source, options, services


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_the_stack_from_code(spelling: str, tmp_path: Path) -> None:
    """A config makes a float of a whole number where one is wanted: write 600.0 in ``from_code``, too."""
    ours, theirs = from_code(), spelt(spelling, tmp_path)

    assert repr(theirs) == repr(ours)
    assert repr(theirs.build()) == repr(ours.build())
    assert [compared(each) for each in theirs.layers] == [compared(each) for each in ours.layers]


def test_the_recipe_has_every_layer_that_a_config_can_name() -> None:
    sources = {spec.source.__name__ for spec in from_code().layers}  # type: ignore[union-attr]

    differ = sorted(sources ^ set(config.LAYERS))
    assert not differ, f"{differ}: TOML, YAML, RECIPE and from_code() in this file have to have them, as LAYERS has"


def test_the_repr_tells_recipes_apart() -> None:
    ours = from_code()
    for spec in ours.layers:
        assert repr(ours.without(spec.name)) != repr(ours)
        for option, value in spec.options.items():
            others = (3, 0.5, {"messages": 2}, "text", False)
            other = next(each for each in others if repr(each) != repr(value))
            changed = ours.override(spec.name, **{option: other})  # type: ignore[arg-type]
            assert repr(changed) != repr(ours), (spec.name, option)


@pytest.mark.parametrize("spelling", ["toml", "yaml", "json", "dict"])
def test_reading_a_recipe_twice_gives_equal_layers(spelling: str, tmp_path: Path) -> None:
    assert [compared(each) for each in spelt(spelling, tmp_path).layers] == [
        compared(each) for each in spelt(spelling, tmp_path).layers
    ]


XPERT_JSON = """\
{ "type": "ContextEditingMiddleware", "options": { "trigger": { "tokens": 100000 }, "keep": { "messages": 3 }, \
"excludeTools": ["healthcheck"], "placeholder": "[cleared]", "clearToolInputs": false, "tokenCountMethod": "approx" } }
"""


def test_the_block_of_xperts_plugin_is_the_clearer_from_code(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.json"
    path.write_text(f'{{"provider": {{"use": "openai", "model": "m"}}, "layers": [{XPERT_JSON}]}}')
    ours = ChatStack(OpenAIChatClient("m")).use(
        ToolResultClearer,
        trigger={"tokens": 100_000},
        keep={"messages": 3},
        exclude_tools=["healthcheck"],
        placeholder="[cleared]",
        clear_tool_inputs=False,
        token_count_method="approx",
    )

    theirs = from_config(path)

    assert repr(theirs) == repr(ours)
    assert repr(theirs.build()) == repr(ours.build())
