"""A stack from a file or a dict is the stack from code; what is wrong is told with its place in the file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from types import ModuleType

import pytest

from chatstack import ChatClient, ChatRequest, ChatStack, ChatStream, ModelTracer, WiringError, config, find
from chatstack.config import from_config
from chatstack.layers.guard import ContextWindowGuard
from chatstack.layers.progress import ProgressReporter
from chatstack.testing import ScriptedClient

TOML = """
[[layers]]
use = "ProgressReporter"
agent_name = "travel"

[[layers]]
use = "ContextWindowGuard"
name = "window"
max_context_tokens = 4000
prune_on_overflow = true

[[layers]]
use = "ModelTracer"
"""
YAML = """
layers:
  - use: ProgressReporter
    agent_name: travel
  - use: ContextWindowGuard
    name: window
    max_context_tokens: 4000
    prune_on_overflow: true
  - ModelTracer
"""
RECIPE = {
    "layers": [
        {"use": "ProgressReporter", "agent_name": "travel"},
        {"use": "ContextWindowGuard", "name": "window", "max_context_tokens": 4000, "prune_on_overflow": True},
        "ModelTracer",
    ]
}


class Notebook:
    """A service that only a container has."""


@dataclass(frozen=True, slots=True, eq=False)
class Noter:
    inner: ChatClient
    _: KW_ONLY
    notebook: Notebook
    tags: tuple[str, ...] = ()
    render: Callable[[str], str] | None = None

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request)


@dataclass(frozen=True)
class Halver:
    """A strategy: a value that gives the layer which applies it."""

    share: float

    def as_layer(self) -> Callable[[ChatClient], ChatClient]:
        if self.share > 1:
            raise ValueError("share is a part of one")
        return lambda inner: inner


@pytest.fixture
def more_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("more_layers")
    module.Noter, module.Halver = Noter, Halver  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "more_layers", module)
    monkeypatch.setattr(config, "LAYERS", {**config.LAYERS, "Noter": "more_layers", "Halver": "more_layers"})


def wrong(recipe: object) -> str:
    with pytest.raises(WiringError) as caught:
        from_config(recipe, provider=ScriptedClient())  # type: ignore[arg-type]
    return str(caught.value)


def wrong_layer(**layer: object) -> str:
    return wrong({"layers": ["ModelTracer", layer]})


def file(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", TOML),
        ("a.yaml", YAML),
        ("a.yml", YAML),
        ("a.json", json.dumps(RECIPE)),
        ("a.JSON", json.dumps(RECIPE)),
    ],
)
def test_code_dict_and_every_kind_of_file_give_the_same_stack(tmp_path: Path, name: str, text: str) -> None:
    provider = ScriptedClient()
    stack = (
        ChatStack(provider)
        .use(ProgressReporter, agent_name="travel")
        .use(ContextWindowGuard, name="window", max_context_tokens=4000, prune_on_overflow=True)
        .use(ModelTracer)
    )

    path = file(tmp_path, name, text)
    found = [from_config(path, provider=provider), from_config(str(path), provider), from_config(RECIPE, provider)]

    assert {repr(each) for each in found} == {repr(stack)}
    assert {repr(each.build()) for each in found} == {repr(stack.build())}
    guard = find(found[0].build(), ContextWindowGuard)
    assert guard is not None
    assert guard.max_context_tokens == 4000


def test_no_layers_are_a_bare_provider() -> None:
    provider = ScriptedClient()

    assert from_config({}, provider=provider).layers == ()
    assert from_config({}, provider=provider).provider is provider


def test_a_provider_that_is_passed_takes_the_place_of_the_one_in_the_config() -> None:
    provider = ScriptedClient()

    assert from_config({"provider": {"use": "openai", "model": "m"}}, provider=provider).provider is provider


def test_a_provider_is_made_by_name_and_model(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("some_provider")
    module.Made = lambda model: ScriptedClient([model])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_provider", module)
    monkeypatch.setattr(config, "PROVIDERS", {"openai": ("some_provider", "Made")})

    made = from_config({"provider": {"use": "openai", "model": "gpt-5-mini"}}).provider

    assert isinstance(made, ScriptedClient)
    assert made.answers == ["gpt-5-mini"]


@pytest.mark.parametrize(
    ("section", "told"),
    [
        (None, "config: no provider: add one ({use, model}), or pass provider=..."),
        ("openai", "config: provider: expected a table of names and values, got a str"),
        ({"use": "opena", "model": "m"}, "config: provider.use: 'opena' is no provider; did you mean 'openai'?"),
        ({"use": "openai"}, "config: provider.model: expected the name of a model, got None"),
        (
            {"use": "openai", "model": "m", "base_url": "x"},
            "config: provider: unknown key 'base_url'; known: model, use",
        ),
        ({"use": "openai", "model": "m", "api_key": "x"}, "config: provider: unknown key 'api_key'; known: model, use"),
    ],
)
def test_a_provider_section_says_use_and_model_and_nothing_else(section: object, told: str) -> None:
    with pytest.raises(WiringError) as caught:
        from_config({} if section is None else {"provider": section})

    assert str(caught.value) == told


def test_an_error_names_file_layer_and_option(tmp_path: Path) -> None:
    path = file(tmp_path, "pipeline.toml", TOML.replace("4000", "-1"))

    with pytest.raises(WiringError) as caught:
        from_config(path, provider=ScriptedClient())

    assert str(caught.value).startswith(f"{path}: layers[1].max_context_tokens: max_context_tokens=-1 must be ")
    assert (caught.value.layer, caught.value.parameter) == ("window", "max_context_tokens")


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        (
            {"use": "ContextWindowGuard", "max_context_token": 5},
            "config: layers[1].max_context_token: unknown option of ContextWindowGuard; "
            "did you mean 'max_context_tokens'?",
        ),
        ({"use": "ContextWindowGuard"}, "config: layers[1].max_context_tokens: is missing"),
        (
            {"use": "ContextWindowGuard", "max_context_tokens": 5, "prune_on_overflow": "yes"},
            "config: layers[1].prune_on_overflow: expected bool, got str: 'yes'",
        ),
        (
            {"use": "ContextWindowGuard", "max_context_tokens": 5, "warning_threshold": 2},
            "config: layers[1].warning_threshold: warning_threshold=2.0 must be "
            "a share of the window: greater than 0, at most 1",
        ),
        (
            {"use": "ContextWindowGard"},
            "config: layers[1].use: 'ContextWindowGard' is no layer; did you mean 'ContextWindowGuard'?",
        ),
        ({"use": 3}, "config: layers[1].use: 3 is no layer; known: "),
        ({"max_context_tokens": 5}, "config: layers[1]: has no 'use'; name a layer: "),
        ({"use": "ProgressReporter", "name": ""}, "config: layers[1].name: expected text, got ''"),
        (
            {"use": "ModelTracer"},
            "config: layers[1]: there is one of that name already; pass name='...' to tell them apart",
        ),
        ({"use": "os.system", "command": "true"}, "config: layers[1].use: 'os.system' is no layer; "),
    ],
)
def test_what_is_wrong_with_a_layer_is_told_with_its_place(layer: dict[str, object], told: str) -> None:
    assert wrong_layer(**layer).startswith(told)


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        ({"layer": []}, "config: unknown key 'layer'; did you mean 'layers'?"),
        ({"layers": "ModelTracer"}, "config: layers: expected a list, got a str"),
        (
            {"layers": [["ModelTracer"]]},
            "config: layers[0]: expected the name of a layer, or a table with 'use', got a list",
        ),
        ({"layers": [{"use": "ModelTracer", 1: 2}]}, "config: layers[0]: 1 is not a name; keys are text"),
        ({"layers": [None]}, "config: layers[0]: expected the name of a layer, or a table with 'use', got nothing"),
    ],
)
def test_a_config_of_another_shape_is_refused(recipe: object, told: str) -> None:
    assert wrong(recipe) == told


@pytest.mark.usefixtures("more_layers")
def test_what_a_layer_wants_from_a_container_is_left_to_the_build() -> None:
    stack = from_config({"layers": [{"use": "Noter", "tags": ["a", "b"]}]}, provider=ScriptedClient())
    notebook = Notebook()
    services: dict[type, object] = {Notebook: notebook}

    noter = find(stack.build(services.__getitem__), Noter)

    assert noter is not None
    assert noter.notebook is notebook
    assert noter.tags == ("a", "b")
    with pytest.raises(WiringError, match="nothing to give for notebook"):
        stack.build()


@pytest.mark.usefixtures("more_layers")
def test_a_list_of_the_wrong_things_is_refused() -> None:
    told = wrong({"layers": [{"use": "Noter", "tags": [1]}]})

    assert told == "config: layers[0].tags: expected str, got int - at $[0]: [1]"


@pytest.mark.usefixtures("more_layers")
def test_a_strategy_is_a_layer_too() -> None:
    provider = ScriptedClient()

    assert repr(from_config({"layers": [{"use": "Halver", "share": 0.5}]}, provider)) == repr(
        ChatStack(provider).use(Halver, share=0.5)
    )
    assert wrong({"layers": [{"use": "Halver", "share": 2}]}) == "config: layers[0]: share is a part of one"
    assert wrong({"layers": [{"use": "Halver", "shape": 1}]}) == (
        "config: layers[0].shape: unknown option of Halver; did you mean 'share'?"
    )


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.toml", "layers = [", "not valid TOML: "),
        ("a.json", "{", "not valid JSON: "),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.json", "[]", "expected a table of names and values, got a list"),
        ("a.yaml", "layers: [", "not valid YAML: line 1: "),
        (
            "a.yaml",
            "a: !!python/object/apply:os.getcwd []",
            "not valid YAML: line 1: could not determine a constructor",
        ),
        ("a.yaml", "", "expected a table of names and values, got nothing"),
        ("a.ini", "", "expected a file that ends in .json, .toml, .yaml, .yml"),
    ],
)
def test_a_file_that_holds_no_config_is_told_in_one_line(tmp_path: Path, name: str, text: str, told: str) -> None:
    path = file(tmp_path, name, text)

    message = wrong(path)

    assert message.startswith(f"{path}: {told}")
    assert "\n" not in message


def test_a_file_that_is_not_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xff\xfe\x00")

    assert wrong(path).startswith(f"{path}: not valid TOML: ")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert wrong(tmp_path / "a.toml") == f"{tmp_path / 'a.toml'}: cannot be read: No such file or directory"


def test_yaml_without_its_extra_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)

    assert wrong(file(tmp_path, "a.yaml", YAML)) == ("reading YAML needs an extra: pip install 'chatstack-core[yaml]'")


def test_every_layer_that_can_be_named_is_there() -> None:
    for name in config.LAYERS:
        with_it = {"use": name, **({"max_context_tokens": 10} if name == "ContextWindowGuard" else {})}
        built = from_config({"layers": [with_it]}, provider=ScriptedClient()).build()

        assert type(built.layers[0]).__name__ == name
