"""A config that somebody else wrote: what it can name only if it is allowed, and what it can never do."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from chatstack import ChatStack, WiringError
from chatstack.config.recipes import Allowed, from_config
from chatstack.providers.openai import OpenAIChatClient
from chatstack.testing import ScriptedClient
from tests.plugin_fixtures import LAYER, PROVIDER, STORE, Shop
from tests.plugin_fixtures import shop as shop  # a fixture

OPENAI = {"use": "openai", "model": "gpt-5-mini"}
SUMMARIZER = {"use": "Summarizer", "max_tokens": 500, "summary_client": OPENAI}


@pytest.fixture(autouse=True)
def with_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def refused(recipe: object, allowed: Allowed | None = None) -> str:
    with pytest.raises(WiringError) as caught:
        from_config(recipe, allowed=allowed or Allowed())  # type: ignore[arg-type]
    return str(caught.value)


def test_a_provider_has_to_be_allowed() -> None:
    assert (
        refused({"provider": OPENAI}) == "config: provider.use: 'openai' is not allowed in this config; allowed: none"
    )
    assert refused({"provider": OPENAI}, Allowed(providers=["anthropic"])) == (
        "config: provider.use: 'openai' is not allowed in this config; allowed: anthropic"
    )

    made = from_config({"provider": OPENAI}, allowed=Allowed(providers=["openai"])).provider

    assert isinstance(made, OpenAIChatClient)


@pytest.mark.parametrize("name", [["openai"], {"openai": 1}, 3, None, True])
def test_what_is_no_name_is_not_allowed(name: object) -> None:
    for providers in (["openai"], {"openai"}, frozenset({"openai"})):
        told = refused({"provider": {"use": name, "model": "m"}}, Allowed(providers=providers))
        assert told == f"config: provider.use: {name!r} is not allowed in this config; allowed: openai"


def test_a_provider_that_writes_summaries_has_to_be_allowed_too() -> None:
    with pytest.raises(WiringError, match=r"layers\[0\]\.summary_client\.use: 'openai' is not allowed"):
        from_config({"layers": [SUMMARIZER]}, provider=ScriptedClient(), allowed=Allowed())

    from_config({"layers": [SUMMARIZER]}, provider=ScriptedClient(), allowed=Allowed(providers={"openai"}))


def test_a_store_has_to_be_allowed_for_it_writes_where_the_config_says(tmp_path: Path) -> None:
    recipe = {"memory": {"store": {"use": "sqlite", "path": str(tmp_path / "a")}, "scope": "t"}}

    with pytest.raises(WiringError, match=r"memory\.store\.use: 'sqlite' is not allowed in this config; allowed: none"):
        from_config(recipe, provider=ScriptedClient(), allowed=Allowed())

    from_config(recipe, provider=ScriptedClient(), allowed=Allowed(stores=["sqlite"]))


@pytest.mark.parametrize(
    "section",
    [
        {"layers": ["thing"]},
        {"layers": [{"use": "ContextWindowGuard", "max_context_tokens": 5, "counter": "thing"}]},
        {"layers": [{"use": "thing"}]},
    ],
)
def test_a_plugin_has_to_be_allowed_by_its_distribution(shop: Shop, section: dict[str, object]) -> None:
    shop.install(
        "acme",
        {"layers: thing": "acme_thing:Redactor", "counters: thing": "acme_thing:Redactor"},
        {"acme_thing": LAYER},
    )
    for allowed in (Allowed(), Allowed(plugins=["other"]), Allowed(plugins=["thing"])):
        with pytest.raises(WiringError, match=r"'thing' is offered by acme 1\.0, which is not allowed in this config"):
            from_config(section, provider=ScriptedClient(), allowed=allowed)

    assert not shop.was_imported("acme_thing")
    if section["layers"] in (["thing"], [{"use": "thing"}]):
        from_config(section, provider=ScriptedClient(), allowed=Allowed(plugins=["ACME"]))


def test_a_plugins_provider_or_store_has_to_be_allowed_by_both_names(shop: Shop) -> None:
    shop.install(
        "acme",
        {"providers: parrot": "acme_parrot:parrot", "stores: shelf": "acme_shelf:Shelf"},
        {"acme_parrot": PROVIDER, "acme_shelf": STORE},
    )
    provider = {"provider": {"use": "parrot", "model": "m"}}
    store = {**provider, "memory": {"store": {"use": "shelf", "url": "x"}, "scope": "t"}}

    assert "'parrot' is not allowed" in refused(provider, Allowed(plugins=["acme"]))
    assert "acme 1.0, which is not allowed" in refused(provider, Allowed(providers=["parrot"]))
    from_config(provider, allowed=Allowed(providers=["parrot"], plugins=["acme"]))
    assert "'shelf' is not allowed" in refused(store, Allowed(providers=["parrot"], plugins=["acme"]))
    from_config(store, allowed=Allowed(providers=["parrot"], plugins=["acme"], stores=["shelf"]))


def test_the_environment_restricts_what_a_config_is_allowed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.install("acme", {"layers: redact": "acme_redact:Redactor"}, {"acme_redact": LAYER})
    monkeypatch.setenv("CHATSTACK_PLUGINS", "")

    with pytest.raises(WiringError, match="CHATSTACK_PLUGINS='' does not name it"):
        from_config({"layers": ["redact"]}, provider=ScriptedClient(), allowed=Allowed(plugins=["acme"]))


def test_names_that_are_not_allowed_are_not_told(shop: Shop) -> None:
    shop.install("acme", {"layers: redact": "acme_redact:Redactor"}, {"acme_redact": LAYER})

    with pytest.raises(WiringError) as caught:
        from_config({"layers": ["redacd"]}, provider=ScriptedClient(), allowed=Allowed())

    assert "'redact'" not in str(caught.value)


def test_built_in_layers_and_counters_need_no_leave() -> None:
    layers = [{"use": "ContextWindowGuard", "max_context_tokens": 5, "counter": "table"}, "ModelTracer"]

    assert len(from_config({"layers": layers}, provider=ScriptedClient(), allowed=Allowed()).layers) == 2


@pytest.mark.parametrize("given", [{"providers": "openai"}, {"plugins": None}, {"stores": 3}])
def test_a_name_in_the_place_of_a_list_of_names_is_an_error(given: dict[str, object]) -> None:
    with pytest.raises(WiringError, match="must be a list of names"):
        Allowed(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{"providers": [1, "a"]}, {"plugins": ["a", None]}, {"stores": {b"a"}}])
def test_what_is_no_name_in_a_list_of_names_is_an_error(given: dict[str, object]) -> None:
    with pytest.raises(WiringError, match=r"^Allowed: (providers|plugins|stores): (1|None|b'a') is no name; "):
        Allowed(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("allowed", [["openai"], "openai", {"providers": ["openai"]}, True, Allowed])
def test_what_is_allowed_is_told_by_one_object_and_nothing_else(allowed: object) -> None:
    with pytest.raises(WiringError, match=r"^from_config: allowed is an? \w+; pass an Allowed\(\.\.\.\)$"):
        from_config({}, ScriptedClient(), allowed=allowed)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["api_key", "api_key_env", "http_client", "client", "headers", "timeout"])
def test_no_config_says_which_key_a_provider_uses_or_holds_an_object_for_it(key: str) -> None:
    assert f"provider: unknown key {key!r}" in refused(
        {"provider": {**OPENAI, key: "x"}}, Allowed(providers=["openai"])
    )
    with pytest.raises(WiringError, match=f"unknown key {key!r}"):
        from_config({"provider": {**OPENAI, key: "x"}})


@pytest.mark.parametrize(
    "name", ["os:system", "os.system", "subprocess.Popen", "chatstack.layers.guard:ContextWindowGuard", "../guard", ""]
)
@pytest.mark.parametrize("place", ["layer", "provider", "counter", "store"])
def test_no_name_is_imported(place: str, name: str) -> None:
    recipes: dict[str, dict[str, object]] = {
        "layer": {"layers": [{"use": name}]},
        "provider": {"layers": [{"use": "Summarizer", "max_tokens": 9, "summary_client": {"use": name, "model": "m"}}]},
        "counter": {"layers": [{"use": "ContextWindowGuard", "max_context_tokens": 9, "counter": {"use": name}}]},
        "store": {"memory": {"store": {"use": name}, "scope": "t"}},
    }
    with pytest.raises(WiringError, match=f" is no {place}; "):
        from_config(recipes[place], provider=ScriptedClient())


def test_yaml_makes_plain_data_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "mark"
    path = tmp_path / "a.yaml"
    for tag in ("object/apply:os.mkdir", "object/new:os.mkdir", "name:os.mkdir", "module:antigravity"):
        path.write_text(f"layers: !!python/{tag} ['{mark}']\n")
        assert "not valid YAML: line 1: could not determine a constructor" in refused(path)
    assert not mark.exists()
    assert "antigravity" not in sys.modules


def test_nothing_is_read_from_the_environment_into_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    layer = {"use": "ToolResultClearer", "placeholder": "$SECRET ${SECRET} {os.environ[SECRET]} %SECRET% ~"}

    stack = from_config({"layers": [layer]}, provider=ScriptedClient(), allowed=Allowed())

    assert "s3cret" not in repr(stack.build())
    assert stack.layers[0].options["placeholder"] == layer["placeholder"]


def test_what_a_config_does_not_say_is_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("pipeline.toml", "chatstack.toml", "pyproject.toml"):
        (tmp_path / name).write_text("[[layers]]\nuse = 'ModelTracer'\n")
    provider = ScriptedClient()

    assert repr(from_config({}, provider)) == repr(ChatStack(provider))


@pytest.mark.parametrize("suffix", ["json", "yaml", "toml"])
def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 1 << 34)

    assert refused(path) == f"{path}: 17,179,869,184 bytes; a config has 1,000,000 at most"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_refused(tmp_path: Path, number: str) -> None:
    path = tmp_path / "a.json"
    layer = {"use": "ContextWindowGuard", "max_context_tokens": 9, "warning_threshold": 0.125}
    path.write_text(json.dumps({"layers": [layer]}).replace("0.125", number))
    with pytest.raises(WiringError, match=r"layers\[0\]\.warning_threshold: expected a number .*: (nan|-?inf)"):
        from_config(path, provider=ScriptedClient(), allowed=Allowed())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"layers": [{"use": "ToolResultClearer", "trigger": {"tokens": 5, "tokens": 6}}]}'),
        ("a.json", '{"layers": [{"use": "ToolResultClearer", "trigger": {"tokens": 5}, "trigger": {"messages": 6}}]}'),
        ("a.yaml", "layers:\n- use: ToolResultClearer\n  trigger: {tokens: 5}\n  trigger: {messages: 6}\n"),
        ("a.yaml", "layers:\n- use: ToolResultClearer\n  trigger: {tokens: 5, tokens: 6}\n"),
        ("a.toml", "[[layers]]\nuse = 'ToolResultClearer'\ntrigger = {tokens = 5}\ntrigger = {messages = 6}\n"),
    ],
)
def test_a_key_that_is_there_twice_is_refused_and_not_silently_the_last(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)

    with pytest.raises(WiringError, match=r"not valid .*(twice|overwrite)"):
        from_config(path, provider=ScriptedClient())


def test_an_error_holds_no_line_break_or_escape_of_the_config() -> None:
    hostile = "a\nb\x1b[31m\u202e"
    for layer in (
        {"use": hostile},
        {"use": "ModelTracer", hostile: 1},
        {"use": "ModelTracer", "name": hostile, "x": 1},
        {"use": "ToolResultClearer", "trigger": {hostile: 5}},
        {"use": "ToolResultClearer", "keep": {"messages": hostile}},
        {"use": "ContextWindowGuard", "max_context_tokens": 5, "counter": {"use": "chars", hostile: 1}},
    ):
        told = refused(json.loads(json.dumps({"provider": OPENAI, "layers": [layer]})), Allowed(providers=["openai"]))
        assert told.isprintable()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "a: &a {x: 1}\nb: &b {<<: [*a, *a]}\nlayers: []\n"),
        ("a.yaml", "a: &a {x: 1}\nb: &b {!!merge x: [*a, *a]}\nlayers: []\n"),
        ("a.toml", ".".join(["a"] * 2_000) + " = 1\n"),
        ("a.toml", "[" + ".".join(["a"] * 2_000) + "]\n"),
        ("a.yaml", "layers: " + ":".join(["1"] * 2_000) + "\n"),
        ("a.toml", "".join(f"a{number}{'.a' * 900} = 1\n" for number in range(500))),
        ("a.yaml", "layers: " + "[" * 51 + "]" * 51 + "\n"),
        ("a.yaml", "layers: [" + f"{'[' * 300}{']' * 300}," * 160 + "]\n"),
        ("a.yaml", "layers: [" + "1," * 50_000 + "]\n"),
    ],
    ids=[
        *["merged tables", "merged tables by a tag", "a dotted key", "a dotted table", "a number of many colons"],
        *["many dotted keys", "many open brackets", "brackets again and again", "many characters"],
    ],
)
def test_what_readers_take_quadratic_time_for_is_refused(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(WiringError, match="not valid"):
        from_config(str(tmp_path / name), ScriptedClient(), allowed=Allowed())


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        ({"use": "Truncate", "max_tokens": 5, "services": None}, r"layers\[0\].services: wants an object"),
        ({"use": "Truncate", "max_tokens": "\ud800"}, r"layers\[0\].max_tokens: holds half a character"),
        ({"use": "Truncate", "max_tokens": 10**400}, r"layers\[0\].max_tokens: a number of 1,329 bits is too large"),
        (
            {"type": "ContextEditingMiddleware", "options": {"use": "FunctionInvoker"}},
            r"layers\[0\].options: unknown option 'use'",
        ),
        ({"type": "ContextEditingMiddleware", "options": {1: 2}}, r"layers\[0\].options: 1 is not a name"),
    ],
)
def test_odd_values_are_refused_with_their_place(layer: dict[str, object], told: str) -> None:
    with pytest.raises(WiringError, match=told):
        from_config({"layers": [layer]}, ScriptedClient())


def test_a_config_of_too_many_layers_is_refused_before_any_is_tried() -> None:
    layers = [{"use": "ContextWindowGuard", "name": f"g{number}", "max_context_tokens": 9} for number in range(101)]
    with pytest.raises(WiringError, match="layers: 101 of them, 100 at most"):
        from_config({"layers": layers}, ScriptedClient())
