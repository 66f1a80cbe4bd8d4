"""Keys and tokens: whose they are, where they go, and where they never show."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace

import httpx2
import pytest
from answers import PATHS
from asks import body, history
from test_fail_open import FORMS, answer, ask, pruned
from upstreams import Seen, Wire, serving, upstream

from chatstack import Message, WiringError
from chatstack_gateway import Limits, Settings, Upstream
from chatstack_gateway.command import settings_from

KEY, OWN, TOKEN = "sk-callers-key-1234567890", "sk-servers-key-1234567890", "gateway-token-1234567890"
SHORT = [Message.user("hello")]


async def answer_of_any(seen: Seen, wire: Wire) -> None:
    await wire.whole(b"upstream's")


@pytest.mark.parametrize("form", FORMS)
def test_the_callers_key_goes_on_as_it_came(form: str) -> None:
    with upstream(answer) as api, serving(Settings(Upstream(api.url))) as gateway:
        for headers in ({"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}, {"api-key": KEY}):
            ask(gateway.url, form, body(form, SHORT), **headers)
            (name, value), *_ = headers.items()
            assert api.requests[-1].header(name) == value


@pytest.mark.parametrize("form", FORMS)
def test_the_servers_key_goes_in_the_place_of_the_callers(form: str) -> None:
    with upstream(answer) as api, serving(Settings(Upstream(api.url), key=OWN)) as gateway:
        ask(gateway.url, form, body(form, SHORT), **{"authorization": f"Bearer {KEY}", "x-api-key": KEY})
        seen = api.requests[-1]
        keys = {name: value for name, value in seen.headers if name.lower() in ("authorization", "x-api-key")}
        assert keys == ({"x-api-key": OWN} if form == "messages" else {"authorization": f"Bearer {OWN}"})


@pytest.mark.parametrize("form", FORMS)
def test_a_token_is_wanted_and_goes_no_further(form: str) -> None:
    with upstream(answer) as api, serving(Settings(Upstream(api.url), token=TOKEN)) as gateway:
        for headers in ({}, {"x-chatstack-token": "wrong"}, {"authorization": f"Bearer {TOKEN}"}):
            got = ask(gateway.url, form, body(form, SHORT), **headers)
            assert (got.status_code, TOKEN in got.text) == (401, False)
            assert httpx2.get(f"{gateway.url}/v1/models", headers=headers).status_code == 401
        assert not api.requests
        assert ask(gateway.url, form, body(form, SHORT), **{"x-chatstack-token": TOKEN}).status_code == 200
        assert api.requests[-1].header("x-chatstack-token") is None


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    "path",
    ["/chatstack", "/chatstack/editing", "/chatstack/editing/", "/chatstack/activity/", "/chatstack/x/y", "/metrics/"],
)
def test_a_wrong_call_of_the_gateways_own_is_told_the_right_one_and_goes_no_further(method: str, path: str) -> None:
    admin = {"authorization": f"Bearer {TOKEN}"}
    with upstream(answer) as api, serving(Settings(Upstream(api.url), admin_token=TOKEN)) as gateway:
        got = httpx2.request(method, gateway.url + path, headers=admin)
        if path == "/chatstack/editing":
            expected = {"GET": 200, "PUT": 400}.get(method, 405)
            assert got.headers.get("allow") == ("GET, PUT" if expected == 405 else None)
        else:
            expected = 404
            assert path.rstrip("/") in got.json()["error"].partition("but ")[2] or path == "/chatstack/x/y"
        assert (got.status_code, api.requests) == (expected, [])


@pytest.mark.parametrize(
    ("path", "right"),
    [
        *(("/metrics/x", ""), ("//metrics", "/metrics"), ("/Metrics", "/metrics"), ("/%6Detrics/x", "")),
        *(("//chatstack/editing", "/chatstack/editing"), ("/ChatStack/editing/", "/chatstack/editing")),
        *(("/chatstack//editing", ""), ("/chatstack%2Fx", ""), ("/%2Fchatstack/x", "")),
        *((f"{own}{path}", "") for own in ("/chatstack", "//metrics") for path in (*PATHS.values(), "/responses")),
    ],
)
def test_a_misspelt_call_of_the_gateways_own_goes_no_further(path: str, right: str) -> None:
    with upstream(answer) as api, serving(Settings(Upstream(api.url), admin_token=TOKEN)) as gateway:
        for method in ("GET", "POST", "PUT"):
            got = httpx2.request(method, gateway.url + path, headers={"authorization": f"Bearer {TOKEN}"})
            assert (got.status_code, api.requests) == (404, [])
            assert got.json()["error"].partition(" here, but ")[2] == right or not right


@pytest.mark.parametrize("path", ["/metricsx", "/chatstacks/x", "/v1/metrics", "/v1/chatstack/x"])
def test_a_path_that_is_not_the_gateways_own_goes_on(path: str) -> None:
    with upstream(answer_of_any) as api, serving(Settings(Upstream(api.url))) as gateway:
        assert httpx2.get(gateway.url + path).text == "upstream's"
        assert [each.line for each in api.requests] == [f"GET {path} HTTP/1.1"]


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
@pytest.mark.parametrize("name", ["authorization", "x-api-key", "api-key"])
def test_a_token_of_the_gateways_own_is_no_key_for_upstream(name: str, scheme: str) -> None:
    settings = Settings(Upstream("http://127.0.0.1:9"), token="gateway-token", admin_token=TOKEN)
    with upstream(answer) as api, serving(replace(settings, upstream=Upstream(api.url))) as gateway:
        for token in ("gateway-token", TOKEN):
            headers = {name: f"{scheme} {token}" if name == "authorization" else token}
            headers["x-chatstack-token"] = "gateway-token"
            ask(gateway.url, "chat", body("chat", SHORT), **headers)
            httpx2.put(f"{gateway.url}/v1/chatstack/editing", headers=headers, json={"editing": False})
        assert len(api.requests) == 4
        assert not any(each.header(name) for each in api.requests)


def test_with_the_servers_key_the_token_may_stand_where_a_key_stands() -> None:
    with upstream(answer) as api, serving(Settings(Upstream(api.url), token=TOKEN, key=OWN)) as gateway:
        for headers in ({"authorization": f"Bearer {TOKEN}"}, {"x-api-key": TOKEN}):
            assert ask(gateway.url, "messages", body("messages", SHORT), **headers).status_code == 200
            assert TOKEN not in str(api.requests[-1].headers)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gateway.example"])
def test_another_address_wants_a_token(host: str) -> None:
    with pytest.raises(WiringError, match="CHATSTACK_GATEWAY_TOKEN"):
        Settings(Upstream("http://127.0.0.1:1"), host=host)
    assert Settings(Upstream("http://127.0.0.1:1"), host=host, token="t").host == host


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "https://["},
        {"origin": "null"},
        {"host": "evil.example"},
        {"host": "evil.example:8080"},
    ],
)
def test_pages_of_strangers_are_refused(headers: dict[str, str]) -> None:
    with upstream(answer) as api, serving(Settings(Upstream(api.url), key=OWN)) as gateway:
        assert ask(gateway.url, "chat", body("chat", SHORT), **headers).status_code == 403
        assert httpx2.get(f"{gateway.url}/v1/models", headers=headers).status_code == 403
        assert not api.requests
        for own in ("http://localhost:3000", "app://obsidian.md", "vscode-webview://0a1b", "tauri://localhost"):
            assert ask(gateway.url, "chat", body("chat", SHORT), origin=own).status_code == 200


def test_secrets_are_taken_without_the_white_space_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("OWN_KEY", OWN), ("CHATSTACK_GATEWAY_TOKEN", TOKEN), ("CHATSTACK_ADMIN_TOKEN", "adm")):
        monkeypatch.setenv(name, f" {value}\r\n")
    found = settings_from(["--observe=http://127.0.0.1:9", "--key-env=OWN_KEY"])
    assert (found.key, found.token, found.admin_token) == (OWN, TOKEN, "adm")


@pytest.mark.parametrize("name", ["OWN_KEY", "CHATSTACK_GATEWAY_TOKEN", "CHATSTACK_ADMIN_TOKEN"])
@pytest.mark.parametrize("value", ["one\ntwo", "\x7f", "k\xe9y"])
def test_a_secret_that_cannot_stand_in_a_header_is_refused(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN_KEY", OWN)
    monkeypatch.setenv(name, value)
    with pytest.raises(WiringError, match=f"{name}: holds a character") as told:
        settings_from(["--observe=http://127.0.0.1:9", "--key-env=OWN_KEY"])
    assert value not in str(told.value)


def test_a_key_of_white_space_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_KEY", " \n")
    with pytest.raises(WiringError, match="OWN_KEY is not set"):
        settings_from(["--observe=http://127.0.0.1:9", "--key-env=OWN_KEY"])


def test_keys_are_seen_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def leak(seen: Seen, wire: Wire) -> None:
        await wire.whole(json.dumps({"error": {"message": f"bad key {KEY}", "code": KEY}}).encode(), 400)

    settings = Settings(Upstream("http://127.0.0.1:9"), token=TOKEN, key=OWN, admin_token="admin-token-123")
    assert not any(each in repr(settings) for each in (TOKEN, OWN, "admin-token-123"))
    headers = {"authorization": f"Bearer {KEY}", "x-chatstack-token": TOKEN}
    with upstream(leak) as api:
        for url in (api.url, "http://127.0.0.1:9"):
            with serving(replace(settings, upstream=Upstream(url)), pruned) as gateway:
                for form in PATHS:
                    got = ask(gateway.url, form, body(form, history(6)), **headers)
                    assert not any(each in got.text for each in (TOKEN, OWN))
                    assert (KEY in got.text) == (url == api.url)  # what upstream says is the caller's own affair
                assert not any(each in repr(gateway.gateway) for each in (TOKEN, OWN, KEY))
    assert not any(each in caplog.text for each in (KEY, OWN, TOKEN))


@pytest.mark.parametrize("address", ["ftp://x", "x", "https://user:pw@api.example", "https://api.example?key=1", ""])
def test_an_upstream_address_that_cannot_be_is_refused_without_its_secrets(address: str) -> None:
    with pytest.raises(WiringError) as caught:
        Upstream(address)
    assert "pw" not in str(caught.value)
    assert "key=1" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Upstream(b"https://user:pw@x"), "upstream: the address is of type bytes, and no text"),  # type: ignore[arg-type]
        (lambda: Settings("https://x"), "Settings: upstream is a str; write Upstream('https://...')"),  # type: ignore[arg-type]
        (lambda: Settings(Upstream("https://x"), port="80"), "Settings: port='80' must be a whole number"),  # type: ignore[arg-type]
        (lambda: Settings(Upstream("https://x"), token=b"hunter2"), "Settings: token=<class 'bytes'> must be text"),  # type: ignore[arg-type]
        (lambda: Limits(stall_seconds=0), "Limits: stall_seconds=0 must be a number greater than 0"),
    ],
)
def test_a_setting_of_the_wrong_type_is_named(make: Callable[[], object], said: str) -> None:
    with pytest.raises(WiringError) as caught:
        make()
    assert str(caught.value) == said
