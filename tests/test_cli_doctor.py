"""``chatstack doctor``: what is here and what is missing, without a call, a plugin's import or a key's value."""

from __future__ import annotations

from importlib import metadata

import pytest

from chatstack.cli import doctor, main
from chatstack.cli.doctor import FOR, Requirement, requirements
from tests.command_line import CONTROLS, HOSTILE
from tests.plugin_fixtures import BROKEN, Shop
from tests.plugin_fixtures import shop as shop  # a fixture


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["doctor", *arguments]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out


def test_every_extra_has_a_purpose_and_packages() -> None:
    extras = set(metadata.metadata("chatstack-core").get_all("Provides-Extra") or ())
    differ = sorted(extras - {"all", "demo"} ^ FOR.keys())
    assert not differ, f"{differ}: say in FOR of {doctor.__name__} what each extra of pyproject.toml is for"
    assert {each.extra for each in requirements()} == FOR.keys()


def test_what_is_installed_has_its_version_and_what_is_not_says_what_it_is_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"rich": "13.9", "openai": "1.99.1", "genai-prices": "0.2.3"}

    def version(name: str) -> str:
        if name == "chatstack-core":
            return "0.1.0"
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    shown = [" ".join(line.split()) for line in told(capsys).splitlines()]
    assert "cli rich 13.9 chatstack demo, replay and tune" in shown
    assert "prices genai-prices 0.2.3 windows and prices of models" in shown
    assert "yaml not installed config files in YAML" in shown
    assert "openai openai 1.99.1, needs <4,>=2.54 OpenAI, and servers with its API" in shown
    lacking = "openai,anthropic,otel,yaml,tokenizer,remote,injectq,dependency-injector"
    assert f"Missing: pip install 'chatstack-core[{lacking}]' for all that is above." in shown


@pytest.mark.parametrize("peers", ["", "1.5"])
def test_the_end_says_which_extras_keys_and_models_lack(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, peers: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    found = [Requirement(extra, extra, "1", "", fits=extra != "peers" or bool(peers)) for extra in FOR]
    monkeypatch.setattr(doctor, "requirements", lambda: found)
    left_out = "" if peers else " (but `peers`, which only `replay --peers` needs)"
    assert told(capsys, "--model", "nobodys-model").splitlines()[-3:] == [
        f"All extras are installed{left_out}.",
        "Not set: ANTHROPIC_API_KEY.",
        "No window or no prices known: nobodys-model.",
    ]
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    assert told(capsys).splitlines()[-1] == f"All extras are installed{left_out}."


def test_the_value_of_a_key_is_not_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    shown = told(capsys)
    assert "sk-secret" not in shown
    assert [line.split()[1:3] for line in shown.splitlines() if "_API_KEY " in line] == [
        ["set", "OpenAI"],
        ["not", "set"],
    ]


def test_plugins_are_listed_and_not_imported(
    capsys: pytest.CaptureFixture[str], shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.install("acme", {"layers: redact": "acme_redact:Redactor"}, {"acme_redact": BROKEN}, version="2.1")
    shop.install("other", {"strategies: halves": "acme_halves:Halves"}, {"acme_halves": BROKEN})
    monkeypatch.setenv("CHATSTACK_PLUGINS", "acme")
    shown = told(capsys)
    assert "  layer redact, of acme 2.1\n" in shown
    assert "  strategy halves, of other 1.0, kept out by CHATSTACK_PLUGINS\n" in shown
    assert not shop.was_imported("acme_redact")


def test_a_models_window_and_prices_are_those_of_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("genai_prices")
    shown = told(capsys, "--model", "claude-sonnet-4-5", "--model", "nobodys-model")
    known, unknown = shown.partition("\nclaude-sonnet-4-5\n")[2].split("\nnobodys-model\n")
    assert "No window or no prices known: nobodys-model.\n" in unknown
    assert "window       200,000 tokens" in known
    assert "input        $3 for a million tokens, $6 above 200,000 tokens" in known
    assert "cache read   $0.3 for a million tokens" in known
    assert "source       anthropic:claude-sonnet-4-5 of genai-prices " in known
    assert "window       not known: give max_context_tokens as a number" in unknown
    assert "prices       not known: Budget(max_cost=...) needs price=..." in unknown


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_refused(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["doctor", "--model", name]) == 2
    assert "argument --model: expected the name of a model, got an empty text" in capsys.readouterr().err


def test_a_hostile_name_moves_nothing_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert CONTROLS.search(told(capsys, "--model", HOSTILE)) is None
