"""The layer: its contract, its options, its place, and how a config finds it."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from chatstack import (
    ChatClient,
    ChatStack,
    ContextWindowGuard,
    FunctionInvoker,
    LayerOrderWarning,
    TokenCounter,
    WiringError,
    find,
    from_config,
    plugins,
)
from chatstack.cli import main
from chatstack.telemetry.emission import Telemetry
from chatstack.testing import LayerContract, ScriptedClient
from chatstack.tokens.counter import CharCounter

from chatstack_ratelimit import RateLimiter, RateLimits


class TestRateLimiter(LayerContract):
    def make(self, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
        return RateLimiter(inner, requests_per_minute=10_000_000, tokens_per_minute=10_000_000_000)


@pytest.mark.parametrize(
    ("options", "parameter", "told"),
    [
        ({}, "requests_per_minute", "requests_per_minute=None must be given, unless tokens_per_minute is"),
        ({"requests_per_minute": 0}, "requests_per_minute", "=0 must be a whole number greater than 0"),
        ({"requests_per_minute": True}, "requests_per_minute", "=True must be a whole number"),
        ({"requests_per_minute": 1.5}, "requests_per_minute", "=1.5 must be a whole number"),
        ({"tokens_per_minute": -1}, "tokens_per_minute", "=-1 must be a whole number"),
        ({"tokens_per_minute": "9"}, "tokens_per_minute", "='9' must be a whole number"),
        ({"tokens_per_minute": 9, "burst_seconds": 0}, "burst_seconds", "=0 must be a number of seconds above 0"),
        ({"tokens_per_minute": 9, "burst_seconds": 61}, "burst_seconds", "=61 must be a number of seconds above 0"),
        ({"tokens_per_minute": 9, "burst_seconds": float("nan")}, "burst_seconds", "=nan must be a number"),
        ({"tokens_per_minute": 9, "counter": len}, "counter", "must be a TokenCounter"),
        ({"tokens_per_minute": 9, "counter": 0}, "counter", "counter=0 must be a TokenCounter"),
        ({"tokens_per_minute": 9, "limits": 60}, "limits", "limits=60 must be a RateLimits"),
        ({"tokens_per_minute": 9, "memory": 60}, "memory", "memory=60 must be a ContextMemory"),
    ],
)
def test_a_bad_option_fails_at_build_with_layer_parameter_and_value(
    options: dict[str, object], parameter: str, told: str
) -> None:
    with pytest.raises(WiringError) as caught:
        ChatStack(ScriptedClient()).use(RateLimiter, **options).build()

    assert (caught.value.layer, caught.value.parameter) == ("RateLimiter", parameter)
    assert str(caught.value).startswith(f"RateLimiter: {parameter}")
    assert told in str(caught.value)


def test_a_misspelt_option_is_told_the_nearest_one() -> None:
    with pytest.raises(WiringError, match="'request_per_minute'; did you mean 'requests_per_minute'"):
        ChatStack(ScriptedClient()).use(RateLimiter, request_per_minute=1).build()


def test_a_container_gives_the_limits_and_the_counter() -> None:
    limits, counter = RateLimits(), CharCounter(3)
    stack = ChatStack(ScriptedClient()).use(RateLimiter, tokens_per_minute=5)

    found = find(stack.build({RateLimits: limits, TokenCounter: counter}.get), RateLimiter)

    assert found is not None
    assert (found.limits, found.counter) == (limits, counter)


def test_its_repr_is_its_options() -> None:
    client = ChatStack(ScriptedClient()).use(RateLimiter, tokens_per_minute=5, counter=CharCounter(3)).build()

    assert "RateLimiter(tokens_per_minute=5, counter=CharCounter(chars_per_token=3))" in repr(client)


@pytest.mark.parametrize(
    ("layer", "options"), [(FunctionInvoker, {}), (ContextWindowGuard, {"max_context_tokens": 1_000})]
)
def test_outside_of_the_tool_loop_or_a_context_layer_it_is_warned_of(layer: type, options: dict[str, object]) -> None:
    outside = ChatStack(ScriptedClient()).use(RateLimiter, requests_per_minute=60).use(layer, **options)
    inside = ChatStack(ScriptedClient()).use(layer, **options).use(RateLimiter, requests_per_minute=60)

    with pytest.warns(LayerOrderWarning, match=f"RateLimiter is outside of {layer.__name__}.* behind {layer.__name__}"):
        outside.build()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inside.build()


CONFIG = {"layers": [{"use": "RateLimiter", "requests_per_minute": 60, "counter": {"use": "chars"}}]}


def test_a_config_finds_it_by_its_entry_point() -> None:
    stack = from_config(CONFIG, ScriptedClient())

    found = find(stack.build(), RateLimiter)
    assert found is not None
    assert (found.requests_per_minute, found.tokens_per_minute) == (60, None)
    assert isinstance(found.counter, CharCounter)


def test_a_bad_value_in_a_config_is_told_with_its_place() -> None:
    with pytest.raises(WiringError, match=r"layers\[0\]\.requests_per_minute: .*=0 must be .* \(plugin chatstack-rate"):
        from_config({"layers": [{"use": "RateLimiter", "requests_per_minute": 0}]}, ScriptedClient())


def test_where_the_environment_forbids_it_the_config_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHATSTACK_PLUGINS", "another-one")
    with pytest.raises(
        WiringError,
        match=r"layers\[0\].*'RateLimiter' is offered by chatstack-ratelimit 0\.1\.0, which may not be loaded: "
        "CHATSTACK_PLUGINS='another-one' does not name it",
    ):
        from_config(CONFIG, ScriptedClient())

    monkeypatch.setenv("CHATSTACK_PLUGINS", "chatstack-ratelimit")
    assert find(from_config(CONFIG, ScriptedClient()).build(), RateLimiter) is not None


def test_it_is_listed_without_being_imported() -> None:
    code = (
        "import sys\n"
        "from chatstack import plugins\n"
        "print([(each.name, each.source) for each in plugins.available('chatstack.layers')])\n"
        "print([name for name in sys.modules if name.startswith('chatstack_ratelimit')])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert ran.stdout.splitlines() == ["[('RateLimiter', 'chatstack-ratelimit 0.1.0')]", "[]"]
    assert [each.name for each in plugins.available("chatstack.layers")] == ["RateLimiter"]


def test_inspect_shows_it_with_its_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "pipeline.toml"
    config.write_text('[[layers]]\nuse = "RateLimiter"\nrequests_per_minute = 60\n')

    assert main(["inspect", str(config)]) == 0

    shown = capsys.readouterr().out
    assert "1. RateLimiter, plugin chatstack-ratelimit 0.1.0" in shown
    assert "* requests_per_minute  60" in shown
    assert "  tokens_per_minute    none" in shown
    assert "  burst_seconds        5.0" in shown
    assert "limits" not in shown.split("burst_seconds")[1]
