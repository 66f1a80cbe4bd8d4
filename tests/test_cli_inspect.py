"""``chatstack inspect``: the stack of a config file, in 80 columns, without a key; a bad file is one clear line."""

from __future__ import annotations

import json
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from chatstack import Truncate
from chatstack.cli import main
from chatstack.config.schema import summary
from chatstack.config.spellings import TYPES
from chatstack.context.edits.summaries import SUMMARY_PROMPT
from tests.command_line import CONTROLS, HOSTILE, error_of
from tests.plugin_fixtures import BROKEN, LAYER, PROVIDER, STORE, STRATEGY, Shop
from tests.plugin_fixtures import shop as shop  # a fixture
from tests.test_recipes_alike import TOML

GUARD: dict[str, object] = {"use": "ContextWindowGuard", "max_context_tokens": 900}


@pytest.fixture(autouse=True)
def without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def shown(capsys: pytest.CaptureFixture[str], tmp_path: Path, recipe: object) -> str:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(recipe))
    assert main(["inspect", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert max(map(len, captured.out.splitlines())) <= 80
    assert CONTROLS.search(captured.out) is None
    return captured.out


def line_of(text: str, option: str) -> str:
    return next(line for line in text.splitlines() if line.lstrip(" *").startswith(option))


def test_a_recipe_with_every_layer_is_shown_in_its_order(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pipeline.toml").write_text(TOML)

    assert main(["inspect", "pipeline.toml"]) == 0

    layers = tomllib.loads(TOML)["layers"]
    names = [each.get("use") or TYPES[each["type"]] for each in layers]
    called = [f"{each['name']} ({name})" if "name" in each else name for each, name in zip(layers, names, strict=True)]
    text = capsys.readouterr().out
    assert text.startswith(f"pipeline.toml: {len(layers)} layers, outermost first\n")
    assert max(map(len, text.splitlines())) <= 80
    titles = [line for line in text.splitlines() if line[:1].isdigit()]
    assert titles == [f"{number}. {name}" for number, name in enumerate(called, 1)]


def test_the_whole_page_of_a_small_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.toml").write_text(
        'provider = { use = "openai", model = "gpt-5-mini" }\n'
        'memory = { store = { use = "sqlite", path = "a.sqlite" }, scope = "tenant-7" }\n'
        '[[layers]]\nuse = "Truncate"\nname = "cut"\nmax_tokens = 4_000\ncounter = "table"\n'
    )

    assert main(["inspect", "p.toml"]) == 0

    about = textwrap.fill(summary(Truncate), 80, initial_indent="   ", subsequent_indent="   ")
    assert about.startswith("   Above max_tokens ")
    assert capsys.readouterr().out == (
        "p.toml: 1 layer, outermost first\n"
        "* is what the file sets; all else is as it is by default\n"
        "\n"
        "1. cut (Truncate)\n"
        f"{about}\n"
        "   * max_tokens         4000  (default none)\n"
        "     max_context_items  none\n"
        "     truncate_to        0.7\n"
        "   * counter            TableCounter()  (default none)\n"
        "\n"
        "2. ModelTracer, which build() puts around the provider\n"
        "\n"
        "memory: store sqlite, scope (set, not shown)\n"
        "provider: openai 'gpt-5-mini'; where it is, and its key, come from the\n"
        "  environment\n"
    )


def test_what_the_file_sets_is_marked_with_the_default_beside_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = shown(capsys, tmp_path, {"layers": [{**GUARD, "prune_on_overflow": True}]})

    assert line_of(text, "max_context_tokens").split() == ["*", "max_context_tokens", "900"]
    assert line_of(text, "prune_on_overflow").split() == ["*", "prune_on_overflow", "true", "(default", "false)"]
    assert line_of(text, "warning_threshold").split() == ["warning_threshold", "0.8"]


def test_long_values_are_cut(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    layer = {"use": "Summarizer", "max_tokens": 9, "summary_prompt": "Be brief. " * 90}

    line = line_of(shown(capsys, tmp_path, {"layers": [layer]}), "summary_prompt")

    assert line.endswith("...")
    assert len(line) == 80
    assert len(SUMMARY_PROMPT) > 80  # too long to be shown as a default


def test_no_provider_is_made_so_that_no_key_and_no_sdk_is_needed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sdk in ("openai", "anthropic"):
        monkeypatch.setitem(sys.modules, sdk, None)
    writer = {"use": "anthropic", "model": "claude-haiku-4-5"}
    layers = [{"use": "Summarizer", "max_tokens": 9, "summary_client": writer}]

    text = shown(capsys, tmp_path, {"provider": {"use": "openai", "model": "gpt-5-mini"}, "layers": layers})

    assert "provider: openai 'gpt-5-mini'; " in text
    assert "anthropic 'claude-haiku-4-5'" in line_of(text, "summary_client")


def test_a_file_without_a_provider_says_where_it_comes_from(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = shown(capsys, tmp_path, {"layers": [GUARD]})

    assert text.endswith("provider: none in the file; it is passed in code: from_config(file, provider)\n")


def test_an_order_that_is_hardly_meant_is_told(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    text = shown(capsys, tmp_path, {"layers": [GUARD, "FunctionInvoker"]})

    assert "warning: layer 'ContextWindowGuard' is outside the tool loop" in text
    assert caplog.records == []  # it would be on the screen twice
    assert "warning: " not in shown(capsys, tmp_path, {"layers": ["FunctionInvoker", GUARD]})


def test_tools_and_listeners_are_shown_as_given_in_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = shown(capsys, tmp_path, {"layers": ["ProgressReporter", "FunctionInvoker"]})

    assert line_of(text, "tools").endswith("none  (given in code)")
    assert line_of(text, "on_progress").endswith("none  (given in code)")
    assert "telemetry" not in text


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        ({"layers": [{**GUARD, "max_context_token": 5}]}, "layers[0].max_context_token: unknown option of "),
        ({"layers": [{**GUARD, "max_context_tokens": "x"}]}, "layers[0].max_context_tokens: "),
        ({"layers": ["FunctionInvoker", {"use": "FunctionInvoker", "name": "b"}]}, "layers[1]: two tool loops in one "),
        ({"provider": {"use": "opena", "model": "m"}}, "provider.use: 'opena' is no provider; did you mean 'openai'?"),
        ({"provider": {"use": "openai", "model": "m", "api_key": "k"}}, "provider: unknown key 'api_key'; "),
        ({"layers": [{"use": "ModelTracer", HOSTILE: 1}]}, "layers[0].'"),
        ({"layers": [{"use": "ModelTracer", "name": HOSTILE, "x": 1}]}, "layers[0].x: unknown option of '"),
    ],
)
def test_a_bad_file_is_one_line_with_the_place_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, recipe: object, told: str
) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(recipe))

    assert error_of(capsys, "inspect", path).startswith(f"chatstack: error: {path}: {told}")


def test_a_file_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert error_of(capsys, "inspect", tmp_path / "p.toml").endswith(
        "p.toml: cannot be read: No such file or directory"
    )
    assert "FILE" in error_of(capsys, "inspect")


def test_text_of_the_file_does_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    hostile = f"{HOSTILE}\n\x1b[2J"
    layers = [
        {"use": "ProgressReporter", "name": hostile, "agent_name": hostile},
        {"use": "ToolResultClearer", "exclude_tools": [hostile], "placeholder": hostile},
    ]

    text = shown(capsys, tmp_path, {"provider": {"use": "openai", "model": hostile}, "layers": layers})

    assert "red" in line_of(text, "agent_name")
    assert len([line for line in text.splitlines() if line[:1].isdigit()]) == 3


def test_plugins_are_shown_with_their_distribution(
    shop: Shop, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shop.install(
        "acme",
        {"layers: redact": "acme_redact:Redactor", "strategies: halves": "acme_halves:Halves"},
        {"acme_redact": LAYER, "acme_halves": STRATEGY},
        version="2.0",
    )
    shop.install(
        "acme-parrot", {"providers: parrot": "acme_broken:Parrot"}, {"acme_broken": BROKEN, "acme_p": PROVIDER}
    )

    text = shown(
        capsys,
        tmp_path,
        {
            "provider": {"use": "parrot", "model": "polly"},
            "layers": [{"use": "redact", "words": ["x"]}, {"use": "halves", "share": 0.25}],
        },
    )

    assert "1. Redactor, plugin acme 2.0\n   Takes out what is secret.\n   * words  [" in text
    assert "2. Halves, plugin acme 2.0\n   * share" in text
    assert "provider: parrot 'polly'; " in text
    assert not shop.was_imported("acme_broken")


def test_what_may_be_a_secret_is_not_shown(shop: Shop, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = (
        "from dataclasses import dataclass, field\n\n\n@dataclass(frozen=True)\nclass Sealed:\n    inner: object\n"
        "    token: str = field(default='', repr=False)\n\n    async def send(self, request, /):\n        ...\n\n\n"
        "def sealed(inner, *, token: str, size: int = 3):\n    return Sealed(inner, token)\n"
    )
    shop.install(
        "acme",
        {"layers: sealed": "acme_sealed:Sealed", "layers: made": "acme_sealed:sealed", "stores: shelf": "acme_s:Shelf"},
        {"acme_sealed": code, "acme_s": STORE},
    )
    layers = [{"use": "sealed", "token": "s3cret"}, {"use": "made", "token": "s3cret", "size": 7}]
    memory = {"store": {"use": "shelf", "url": "shelf://me:s3cret@here"}, "scope": "t"}

    text = shown(capsys, tmp_path, {"memory": memory, "layers": layers})

    assert "s3cret" not in text
    assert text.count("(set, not shown)") == 3
    assert line_of(text, "size").split() == ["*", "size", "7", "(default", "3)"]
    assert "memory: store shelf, scope (set, not shown)" in text


def test_what_a_container_has_to_give_is_told(shop: Shop, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = (
        "class Notebook:\n    pass\n\n\nclass Noter:\n    def __init__(self, inner, *, notebook: Notebook):\n"
        "        self.inner = inner\n\n    async def send(self, request, /):\n        ...\n"
    )
    shop.install("acme", {"layers: noter": "acme_noter:Noter"}, {"acme_noter": code})

    text = shown(capsys, tmp_path, {"layers": ["noter"]})

    assert line_of(text, "notebook").endswith("from the container: Notebook")
    assert "to be given by a container, or in code: layer 'Noter': " in text


NATIVE: dict[str, object] = {"use": "ToolResultClearer", "native": "on"}


@pytest.mark.parametrize("provider", ["anthropic", None, "acme"])
def test_an_edit_that_is_left_to_the_provider_is_shown_without_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, shop: Shop, provider: str | None
) -> None:
    shop.install("acme", {"providers: acme": "acme_provider:Acme"}, {"acme_provider": PROVIDER})
    named = {} if provider is None else {"provider": {"use": provider, "model": "m"}}

    assert '"on"' in line_of(shown(capsys, tmp_path, {**named, "layers": [NATIVE]}), "native")


@pytest.mark.parametrize(
    ("provider", "layer", "reason"),
    [
        ("openai", NATIVE, "no single provider that edits by itself"),
        ("openai-responses", NATIVE, "OpenAI"),
        ("anthropic", {"use": "Summarizer", "max_tokens": 900, "native": "on"}, "Anthropic compacts from"),
    ],
)
def test_an_edit_that_the_provider_does_not_make_is_refused_as_when_it_is_built(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, provider: str, layer: dict[str, object], reason: str
) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"provider": {"use": provider, "model": "m"}, "layers": [layer]}))

    error = error_of(capsys, "inspect", path)
    assert "layers[0].native" in error
    assert reason in error
