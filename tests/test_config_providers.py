"""What a config says of a provider beside its model: anything but a key, in others' files what is allowed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from chatstack import Fallback, Summarizer, WiringError, find, from_config
from chatstack.cli import main
from chatstack.config.recipes import Allowed
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient
from chatstack.testing import ScriptedClient
from tests.plugin_fixtures import Shop
from tests.plugin_fixtures import shop as shop  # a fixture
from tests.test_config_schema import errors

LOCAL = {"use": "openai", "model": "gemma", "base_url": "http://127.0.0.1:8080/v1", "max_tokens_field": "max_tokens"}
REMOTE = {
    "use": "openai",
    "model": "big",
    "base_url": "https://models.example/v1",
    "timeout_seconds": 5,
    "max_retries": 0,
    "stall_seconds": None,
    "window_tokens": 32_000,
}
SUMMARIZER = {"use": "Summarizer", "max_tokens": 500, "summary_client": LOCAL}
PARROT = """
from chatstack.testing import ScriptedClient


class Parrot(ScriptedClient):
    def __init__(self, model, *, base_url="", timeout_seconds=None, api_key=""):
        super().__init__([f"{model} {base_url}"])
"""


@pytest.fixture(autouse=True)
def with_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI", "ANTHROPIC"):
        monkeypatch.setenv(f"{name}_API_KEY", "sk-none")
        monkeypatch.delenv(f"{name}_BASE_URL", raising=False)


def wrong(provider: object, allowed: Allowed | None = None) -> str:
    with pytest.raises(WiringError) as caught:
        from_config({"provider": provider}, allowed=allowed)
    return str(caught.value)


def test_the_clients_of_a_fallback_are_a_list_of_providers_each_with_a_place_of_its_own() -> None:
    others = [LOCAL, {**LOCAL, "model": "b"}]
    stack = from_config({"provider": REMOTE, "layers": [{"use": "Fallback", "clients": others}]})
    clients = cast("list[OpenAIChatClient]", stack.layers[0].options["clients"])
    assert [(each.info.model, each.info.server_port) for each in clients] == [("gemma", 8080), ("b", 8080)]
    assert find(stack.build(), Fallback) is not None

    def told(clients: object, allowed: Allowed | None = None) -> str:
        with pytest.raises(WiringError) as caught:
            from_config({"layers": [{"use": "Fallback", "clients": clients}]}, ScriptedClient(), allowed=allowed)
        return str(caught.value)

    assert "layers[0].clients[1]: unknown key 'modell'; did you mean 'model'?" in told(
        [LOCAL, {**LOCAL, "modell": "x"}]
    )
    assert told([LOCAL, "openai"]).startswith("config: layers[0].clients[1]: expected a table")
    assert "a list of chat clients, at least one" in told([])
    assert "is not allowed in this config" in told([LOCAL], Allowed())


def test_two_compatible_servers_are_described_in_one_file() -> None:
    stack = from_config({"provider": REMOTE, "layers": [SUMMARIZER]})
    made, writer = stack.provider, stack.layers[0].options["summary_client"]
    assert isinstance(made, OpenAIChatClient)
    assert isinstance(writer, OpenAIChatClient)
    assert (made.info.server_address, made.info.window_tokens, made.stall_seconds) == ("models.example", 32_000, None)
    assert (writer.info.server_address, writer.info.server_port) == ("127.0.0.1", 8080)
    assert (writer.max_tokens_field, writer.stall_seconds) == ("max_tokens", 120)


def test_every_provider_of_ours_has_them() -> None:
    for use in ("anthropic", "openai-responses"):
        section = {"use": use, "model": "m", "base_url": "http://127.0.0.1:9", "window_tokens": 5}
        made: Any = from_config({"provider": section}).provider
        assert (made.info.server_port, made.info.window_tokens) == (9, 5)
    assert "unknown key 'max_tokens_field'" in wrong(
        {"use": "anthropic", "model": "m", "max_tokens_field": "max_tokens"}
    )


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("base_url", "127.0.0.1:8080", "base_url must be like 'https://host:port/path': scheme, host or port"),
        ("base_url", 5, "expected str | null, got int"),
        ("timeout_seconds", -1, "expected a number > 0.0: -1.0"),
        ("timeout_seconds", "5", "expected float | null, got str"),
        ("max_retries", -1, "expected an integer >= 0: -1"),
        ("window_tokens", 0, "expected an integer >= 1: 0"),
        ("stall_seconds", 0, "expected a number > 0.0: 0.0"),
        ("max_tokens_field", "tokens", "expected 'max_completion_tokens' | 'max_tokens', got str"),
    ],
)
def test_a_wrong_value_is_told_with_its_place_and_by_inspect_and_the_schema_too(
    option: str, value: object, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    provider = {"use": "openai", "model": "m", option: value}
    assert wrong(provider).startswith(f"config: provider.{option}: {told}")
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"provider": provider}))
    assert main(["inspect", str(path)]) == 2
    assert f"provider.{option}: " in capsys.readouterr().err
    assert errors({"provider": provider}) != []


@pytest.mark.parametrize("provider", [LOCAL, REMOTE, {**LOCAL, "base_url": None}], ids=["local", "remote", "none"])
def test_what_is_right_validates(provider: dict[str, object]) -> None:
    assert errors({"provider": provider, "layers": [SUMMARIZER]}) == []
    assert errors({"provider": {**provider, "api_key": "k"}}) != []


def test_inspect_shows_where_a_provider_is_without_making_it_and_without_a_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    monkeypatch.delenv("OPENAI_API_KEY")
    address = "https://me:hunter2@models.example:8443/sk-hunter2/v1?key=hunter2"
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"provider": {**REMOTE, "base_url": address}, "layers": [SUMMARIZER]}))
    assert main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    assert "hunter2" not in text
    shown = " ".join(text.split())
    assert "provider: openai 'big' at models.example:8443, timeout_seconds=5.0, max_retries=0" in shown
    assert "its key comes from the environment" in shown
    assert "summary_client openai 'gemma' at 127.0.0.1" in shown


def test_no_error_quotes_an_address() -> None:
    for address in ("htp://me:hunter2@host", ["http://me:hunter2@host"], "http://me:hunter2@host:99999999"):
        assert "hunter2" not in wrong({"use": "openai", "model": "m", "base_url": address})


def test_in_somebody_elses_file_what_is_not_allowed_is_refused() -> None:
    allowed = Allowed(providers=["openai"])
    for option, value in REMOTE.items():
        if option not in ("use", "model"):
            provider = {"use": "openai", "model": "m", option: value}
            what = "address" if option == "base_url" else "option"
            told = f"config: provider.{option}: this {what} is not allowed in this config"
            assert wrong(provider, allowed) == told
            with pytest.raises(WiringError, match=r"summary_client\.\w+: this \w+ is not allowed"):
                from_config({"layers": [{**SUMMARIZER, "summary_client": provider}]}, ScriptedClient(), allowed=allowed)


def test_what_is_allowed_is_taken_the_very_address_and_no_other() -> None:
    allowed = Allowed(
        providers=["openai"], base_urls={"https://models.example/v1"}, provider_options=["timeout_seconds"]
    )
    section = {"use": "openai", "model": "m", "base_url": "https://models.example/v1", "timeout_seconds": 5}
    made: Any = from_config({"provider": section}, allowed=allowed).provider
    assert made.info.server_address == "models.example"
    for other in ("https://models.example/v2", "https://models.example@evil.example/v1", ["x"], None):
        assert "base_url: this address is not allowed" in wrong({**section, "base_url": other}, allowed)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"base_urls": "https://host"}, "base_urls='https://host' must be a list of names"),
        ({"provider_options": ["base_url"]}, "provider_options: 'base_url'; list the addresses in base_urls"),
        ({"provider_options": ["timeout"]}, "provider_options: 'timeout'; did you mean 'timeout_seconds'?"),
        ({"provider_options": ["api_key"]}, "provider_options: 'api_key'; known: base_url, "),
        ({"tools": [len]}, "tools: <built-in function len> is no name"),
    ],
)
def test_what_cannot_be_allowed_is_an_error(given: dict[str, Any], told: str) -> None:
    with pytest.raises(WiringError) as caught:
        Allowed(**given)
    assert str(caught.value).startswith(f"Allowed: {told}")


def test_a_providers_plugin_has_those_that_it_takes(shop: Shop) -> None:
    shop.install("acme", {"providers: parrot": "acme_parrot:Parrot"}, {"acme_parrot": PARROT})
    section = {"use": "parrot", "model": "m", "base_url": "http://host"}
    made: Any = from_config({"provider": section}).provider
    assert made.answers == ["m http://host"]
    for key in ("max_retries", "headers"):
        assert f"unknown key {key!r}; known: base_url, model, timeout_seconds, use" in wrong({**section, key: 1})


def test_the_providers_in_code_and_in_a_file_are_alike() -> None:
    made = from_config({"provider": {"use": "anthropic", "model": "m", "base_url": "http://127.0.0.1:9"}})
    assert repr(made.provider) == repr(AnthropicChatClient("m", base_url="http://127.0.0.1:9"))
    assert made.use(Summarizer, max_tokens=5).layers
