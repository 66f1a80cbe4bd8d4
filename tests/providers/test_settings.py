"""What providers are made with: mistakes fail when the client is made, and no key is ever shown."""

from __future__ import annotations

import copy
import pickle
import traceback
from typing import Any

import pytest

from chatstack import ChatStack, WiringError
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient

ALL = pytest.mark.parametrize("kind", [OpenAIChatClient, OpenAIResponsesClient, AnthropicChatClient])
BAD_KEYS = [f"{space}secret-part" for space in " \n\t"] + [
    "secret-part\n",
    "secret-part\r\n",
    "secret- part",
    "secret-part\x00",
    "“secret-part”",
    "secret-part\x7f",
]


def refused(kind: type[Any], **settings: Any) -> WiringError:
    with pytest.raises(WiringError) as caught:
        kind(**{"model": "m", "api_key": "k", **settings})
    assert str(caught.value).startswith(kind.__name__)
    assert "secret-part" not in "".join(traceback.format_exception(caught.value))
    return caught.value


@ALL
@pytest.mark.parametrize("key", BAD_KEYS)
def test_a_key_that_no_header_may_hold_is_refused_and_not_shown(kind: type[Any], key: str) -> None:
    error = refused(kind, api_key=key)
    assert error.parameter == "api_key"
    assert "characters that no header may hold" in str(error)


@ALL
@pytest.mark.parametrize("key", ["secret-part\n", "secret-part é"])
def test_a_key_from_the_environment_is_looked_at_too(
    kind: type[Any], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, key)
    assert refused(kind, api_key=None).parameter == "api_key"


@ALL
def test_an_empty_address_from_the_environment_is_looked_at_too(
    kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        monkeypatch.setenv(name, "")
    assert refused(kind).parameter == "base_url"


def test_a_field_for_the_bound_of_an_answer_that_is_none_is_named() -> None:
    assert refused(OpenAIChatClient, max_tokens_field="max_output_tokens").parameter == "max_tokens_field"


@ALL
@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("model", None),
        ("model", ""),
        ("model", 5),
        ("max_retries", -1),
        ("max_retries", "2"),
        ("max_retries", True),
        ("stall_seconds", -1),
        ("stall_seconds", 0),
        ("stall_seconds", "5"),
        ("stall_seconds", float("nan")),
        ("timeout_seconds", -1),
        ("timeout_seconds", "5"),
        ("window_tokens", 0),
        ("window_tokens", -1),
        ("window_tokens", "5"),
        ("api_key", ""),
        ("api_key", 5),
        ("base_url", 5),
        ("base_url", 0),
        ("base_url", ""),
        ("http_client", "http://127.0.0.1"),
        ("timeout_seconds", 10**400),
        ("base_url", "http://127.0.0.1:99999/v1"),
        ("base_url", "http://127.0.0.1:-1/v1"),
        ("base_url", "http://user:secret-part@127.0.0.1:x/v1"),
        ("base_url", "127.0.0.1:8000"),
    ],
)
def test_a_setting_that_cannot_be_is_named(kind: type[Any], parameter: str, value: object) -> None:
    assert refused(kind, **{parameter: value}).parameter == parameter


@ALL
@pytest.mark.parametrize("client", [5, "http://127.0.0.1", object()])
def test_a_client_that_is_none_is_named(kind: type[Any], client: object) -> None:
    assert refused(kind, client=client, api_key=None).parameter == "client"


@ALL
def test_a_port_out_of_range_in_the_environment_is_named(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:99999")
    assert refused(kind).parameter == "base_url"


@ALL
def test_none_means_no_limit(kind: type[Any]) -> None:
    made = kind("m", api_key="k", stall_seconds=None, window_tokens=None, max_retries=0, timeout_seconds=0.5)
    assert (made.stall_seconds, made.info.window_tokens) == (None, None)


@ALL
def test_a_provider_is_its_own_copy_and_not_pickled(kind: type[Any]) -> None:
    client = kind("m", api_key="k")
    stack = ChatStack(client)
    assert copy.copy(client) is copy.deepcopy({"client": client})["client"] is client
    for each in (client, stack):
        with pytest.raises(WiringError, match=f"{kind.__name__}: cannot be pickled, .*; build one in each process"):
            pickle.dumps(each)
