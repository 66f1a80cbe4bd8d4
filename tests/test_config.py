"""A stack from a file or a dict is the stack from code; what is wrong is told with its place in the file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from types import ModuleType

import pytest

from chatstack import ChatClient, ChatRequest, ChatStack, ChatStream, WiringError, find
from chatstack.config import recipes as config
from chatstack.config.recipes import from_config
from chatstack.testing import ScriptedClient
from tests.needed_options import NEEDED


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


@dataclass(frozen=True)
class Grumbler:
    """A strategy that refuses everything, at length."""

    at: int

    def as_layer(self) -> Callable[[ChatClient], ChatClient]:
        raise WiringError("no" * 1_000_000, parameter="at")


@pytest.fixture
def more_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("more_layers")
    added = {"Noter": Noter, "Halver": Halver, "Grumbler": Grumbler}
    vars(module).update(added)
    monkeypatch.setitem(sys.modules, "more_layers", module)
    monkeypatch.setattr(config, "LAYERS", {**config.LAYERS, **dict.fromkeys(added, "more_layers")})


def wrong(recipe: object) -> str:
    with pytest.raises(WiringError) as caught:
        from_config(recipe, provider=ScriptedClient())  # type: ignore[arg-type]
    return str(caught.value)


def wrong_layer(**layer: object) -> str:
    return wrong({"layers": ["ModelTracer", layer]})


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
        ("openai", "config: provider: expected a table, got text; write {use = 'openai', model = ...}"),
        ("gpt-5-mini", "config: provider: expected a table, got text; write {use = ..., model = ...}"),
        ({"model": "m"}, f"config: provider: has no 'use'; name a provider: {', '.join(sorted(config.PROVIDERS))}"),
        ({"use": "opena", "model": "m"}, "config: provider.use: 'opena' is no provider; did you mean 'openai'?"),
        ({"use": "openai"}, "config: provider.model: expected the name of a model, got None"),
        (
            {"use": "openai", "modl": "x"},
            "config: provider.model: expected the name of a model, got None; is it 'modl'?",
        ),
        (
            {"use": "openai", "model": "m", "base_url": "x"},
            "config: provider.base_url: base_url must be like 'https://host:port/path': scheme, host or port is "
            "missing or wrong",
        ),
        (
            {"use": "anthropic", "model": "m", "api_key": "x"},
            "config: provider: unknown key 'api_key'; a config holds no keys: leave it to the provider's variable of "
            "the environment",
        ),
        (
            {"use": "anthropic", "model": "m", "temperature": 1},
            "config: provider: unknown key 'temperature'; known: base_url, cache, cloud, max_retries, model, "
            "stall_seconds, timeout_seconds, use, window_tokens",
        ),
    ],
)
def test_what_is_wrong_in_a_provider_section_is_told_with_its_place(section: object, told: str) -> None:
    with pytest.raises(WiringError) as caught:
        from_config({} if section is None else {"provider": section})

    assert str(caught.value) == told


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
            {"use": "Fallback", "clients": {"use": "openai", "model": "m"}},
            "config: layers[1].clients: expected a list, got a dict; write clients = [{use = ..., model = ...}]",
        ),
        (
            {"use": "FunctionInvoker", "tools": "my_app:look"},
            "config: layers[1].tools: expected a list, got a str; write tools = ['package.module:function']",
        ),
        (
            {"use": "ContextWindowGuard", "max_context_tokens": 5, "prune_on_overflow": "yes"},
            "config: layers[1].prune_on_overflow: expected bool, got str: 'yes'",
        ),
        (
            {"use": "ContextWindowGuard", "max_context_tokens": 5, "warning_threshold": 2},
            "config: layers[1].warning_threshold: expected a number <= 1.0: 2.0",
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
            "config: layers[1]: there is one of that name already; use named('...', ...), or name in a file",
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
        ({"layers": 3}, "config: layers: expected a list, got an int"),
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
    with pytest.raises(WiringError, match=r"notebook \(\w+\) is required"):
        stack.build()


@pytest.mark.usefixtures("more_layers")
def test_a_list_of_the_wrong_things_is_refused() -> None:
    told = wrong({"layers": [{"use": "Noter", "tags": [1]}]})

    assert told == "config: layers[0].tags[0]: expected str, got int: 1"


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
    ("section", "told"),
    [
        ({"provider": {"use": "OpenAIChatClient", "model": "m"}}, "'OpenAIChatClient' is called 'openai' in a config"),
        ({"memory": {"store": "SQLiteStore", "scope": "t"}}, "'SQLiteStore' is called 'sqlite' in a config"),
    ],
)
def test_the_name_of_a_class_is_told_what_it_is_called_here(section: dict[str, object], told: str) -> None:
    with pytest.raises(WiringError, match=told):
        from_config({"layers": [], **section}, None if "provider" in section else ScriptedClient())


def test_every_layer_that_can_be_named_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    others = [{"use": "openai", "model": "m", "base_url": "http://127.0.0.1:9/v1"}]
    needed: dict[str, dict[str, object]] = {**NEEDED, "Fallback": {"clients": others}}
    for name in config.LAYERS:
        built = from_config({"layers": [{"use": name, **needed.get(name, {})}]}, provider=ScriptedClient()).build()
        layer = built.layers[0]

        assert type(getattr(layer, "strategy", layer)).__name__ == name


@pytest.mark.parametrize(
    ("config", "kind"), [(None, "nothing"), (5, "an int"), (b"a.toml", "a bytes"), ([], "a list"), (("a",), "a tuple")]
)
def test_what_is_neither_a_mapping_nor_a_path_is_refused(config: object, kind: str) -> None:
    assert wrong(config) == f"from_config: expected a mapping or the path of a file, got {kind}"


class Unshown:
    """What a repr of the whole value would come to."""

    def __repr__(self) -> str:
        raise AssertionError("the whole value was written out")


def bomb() -> object:
    """A small value whose repr would have a million parts."""
    value: object = [Unshown()]
    for _ in range(6):
        value = [value] * 10
    return value


@pytest.mark.parametrize(
    "layer",
    [
        {"use": bomb()},
        {"use": "ProgressReporter", "name": bomb()},
        {"use": "ProgressReporter", "agent_name": bomb()},
        {"use": "ProgressReporter", "agent_name": {"a": bomb()}},
        {"use": "x" * 1_000_000},
        {"use": "ProgressReporter", "x" * 1_000_000: 1},
        {"use": "ContextWindowGuard", "max_context_tokens": "9" * 1_000_000},
        {"use": "ContextWindowGuard", "max_context_tokens": 5, "strict": 1 << 1_000_000},
    ],
    ids=["use", "name", "option", "nested", "long use", "long option", "long text", "large number"],
)
def test_a_value_is_shown_in_80_characters_and_never_written_out(layer: dict[str, object]) -> None:
    told = wrong_layer(**layer).partition("known: ")[0]  # what follows are the names that there are
    assert 40 < len(told) < 300


def test_the_other_parts_of_a_config_are_shown_in_80_characters_too() -> None:
    assert len(wrong({"x" * 1_000_000: 1})) < 300
    for section in (
        {"use": bomb(), "model": "m"},
        {"use": "openai", "model": bomb()},
        {"use": "openai", 1 << 99: 1},
    ):
        with pytest.raises(WiringError) as caught:
            from_config({"provider": section})
        assert len(str(caught.value)) < 300


@pytest.mark.usefixtures("more_layers")
def test_what_a_layer_itself_says_of_a_value_is_cut() -> None:
    assert len(wrong({"layers": [{"use": "Halver", "share": 0.5, "name": "n"}, {"use": "Grumbler", "at": 1}]})) < 500


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("FunctionInvoker", "two tool loops in one stack: 'FunctionInvoker' and 'again'; leave one out"),
        ("ProgressReporter", "two progress reporters in one stack: 'ProgressReporter' and 'again'; leave one out"),
        ("ModelTracer", "two model tracers in one stack: 'ModelTracer' and 'again'; leave one out"),
    ],
)
def test_what_a_stack_can_have_once_is_told_where_it_comes_twice(kind: str, told: str) -> None:
    layers = [kind, {"use": "ContextWindowGuard", "max_context_tokens": 9}, {"use": kind, "name": "again"}]

    with pytest.raises(WiringError) as caught:
        from_config({"layers": layers}, provider=ScriptedClient())

    assert str(caught.value) == f"config: layers[2]: {told}"
    assert caught.value.layer == "again"


def test_a_schema_for_editors_may_be_named_at_the_top() -> None:
    provider = ScriptedClient()

    assert repr(from_config({"$schema": "pipeline.schema.json"}, provider)) == repr(ChatStack(provider))


def test_the_recommended_strategy_can_be_named() -> None:
    layers = [{"use": "ClearThenDrop", "max_tokens": 8_000, "target": 0.5}]
    built = from_config({"layers": layers}, provider=ScriptedClient()).build()
    assert "ClearThenDrop(max_tokens=8000, target=0.5" in repr(built)
