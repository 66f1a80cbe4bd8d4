"""HTTP as odd callers send it, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time

import anthropic
import pytest
from answers import PATHS
from asks import body, history
from test_fail_open import FORMS, answer, ask, form_of, pruned
from test_faults import SHORT, SMUGGLED, raw, settings
from upstreams import Seen, Server, Wire, serving, upstream

HEAD = b"host: 127.0.0.1\r\nconnection: close\r\n"
H2C = b"host: 127.0.0.1\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
SENT = body("chat", SHORT)
LENGTH = b"content-length: %d\r\n" % len(SENT)
CHUNKED = b"transfer-encoding: chunked\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\n"


def in_pieces(gateway: Server, *pieces: bytes) -> bytes:
    """Send the pieces one after the other, and return what comes until the connection is closed."""
    port = int(gateway.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            connection.sendall(piece)
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(65536):
                found += piece
        return found


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
@pytest.mark.parametrize(
    "framed", [LENGTH + b"\r\n" + SENT, CHUNKED + b"\r\n%x\r\n" % len(SENT) + SENT + b"\r\n0\r\n\r\n"]
)
def test_a_request_that_offers_http2_is_answered_in_http1(framed: bytes, size: int) -> None:
    """As clients of Java send it. What comes behind it on the connection is the next request."""
    after = b"GET /v1/after HTTP/1.1\r\n" + HEAD + b"\r\n"
    with upstream(both) as api, serving(settings(api.url)) as gateway:
        found = in_pieces(gateway, *cut(POST + H2C + framed + POST + H2C + framed + after, size))
        assert found.count(b"HTTP/1.1 200 OK") == 3, found
        assert [each.body for each in api.requests] == [SENT, SENT, b""]
        assert api.requests[0].header("upgrade") is None


def test_a_body_behind_an_offer_is_no_request_of_its_own() -> None:
    with upstream(both) as api, serving(settings(api.url)) as gateway:
        length = b"content-length: %d\r\n\r\n" % len(SMUGGLED)
        in_pieces(gateway, POST + H2C + length, SMUGGLED + b"GET /v1/after HTTP/1.1\r\n" + HEAD + b"\r\n")
        assert [each.line.split()[1] for each in api.requests] == ["/v1/chat/completions", "/v1/after"]
        assert api.requests[0].body == SMUGGLED


async def both(seen: Seen, wire: Wire) -> None:
    if seen.line.startswith("GET"):
        await wire.whole(b"{}")
    else:
        await answer(seen, wire)


def test_an_upgrade_to_websockets_is_a_426(caplog: pytest.LogCaptureFixture) -> None:
    asked = b"GET /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    asked += b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
    with upstream(answer) as api, serving(settings(api.url)) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(asked)
            found = b""
            while not found.endswith(b"}"):
                found += connection.recv(65536)
        assert found.startswith(b"HTTP/1.1 426"), found
        assert b"no WebSockets" in found
        assert "uvicorn" not in caplog.text  # which would say what to install
        assert not api.requests


def test_a_head_without_an_end_is_refused() -> None:
    with upstream(answer) as api, serving(settings(api.url)) as gateway:
        for more in (b"x-long: " + b"x" * 2_000_000, b"x-many: x\r\n" * 200_000):
            assert not in_pieces_or_reset(gateway, POST + HEAD + LENGTH + more + b"\r\n\r\n" + SENT).count(b" 200 ")
        assert not api.requests
        large = b"x-token: " + b"x" * 60_000 + b"\r\n"
        assert b"200 OK" in raw(gateway, POST + HEAD + LENGTH + large + b"\r\n" + SENT)


def trickled(gateway: Server, begun: bytes, piece: bytes, pause: float = 0.1) -> tuple[bytes, float]:
    """Send a piece after each pause until the server closes the connection; return what came, and the seconds."""
    started, found = time.monotonic(), b""
    with socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2])), timeout=pause) as connection:
        connection.sendall(begun)
        while time.monotonic() - started < 10:
            try:
                data = connection.recv(65536)
            except TimeoutError:
                connection.sendall(piece)
                continue
            except ConnectionResetError:
                break
            if not data:
                break
            found += data
    return found, time.monotonic() - started


@pytest.mark.parametrize(
    "begun", [b"POST /", POST + HEAD + b"x-slow: ", POST + HEAD + LENGTH + b"\r\n" + SENT + b"POST /"]
)
def test_a_head_that_comes_a_byte_at_a_time_is_a_408(begun: bytes) -> None:
    """Before the first request on a connection, and behind an answer, too."""
    begun = begun.replace(b"connection: close\r\n", b"")
    with upstream(answer) as api, serving(settings(api.url, head_seconds=1)) as gateway:
        found, seconds = trickled(gateway, begun, b"x")
        assert found.count(b"HTTP/1.1 408") == 1, found
        assert found.count(b"HTTP/1.1 200") == begun.count(SENT)
        assert 0.9 < seconds < 8


def test_a_connection_on_which_nothing_comes_is_closed() -> None:
    with upstream(answer) as api, serving(settings(api.url, head_seconds=1)) as gateway:
        found, seconds = trickled(gateway, b"", b"")
        assert (found, 0.9 < seconds < 8) == (b"", True)
        assert trickled(gateway, b"", b"\r\n")[1] < 8  # empty lines are no request


def test_a_head_may_take_its_time_behind_an_answer_that_does() -> None:
    """The limit on a head ends no answer that is under way, nor a body that keeps its pace."""

    async def slow(seen: Seen, wire: Wire) -> None:
        await asyncio.sleep(1.5)
        await answer(seen, wire)

    with upstream(slow) as api, serving(settings(api.url, head_seconds=0.5)) as gateway:
        asked = POST + HEAD.replace(b"connection: close\r\n", b"") + LENGTH + b"\r\n" + SENT
        found, _ = trickled(gateway, asked + POST, b"x")
        assert found.startswith(b"HTTP/1.1 200 OK"), found
        assert b"HTTP/1.1 408" in found
        found, _ = trickled(gateway, POST + HEAD + LENGTH + b"\r\n" + SENT[:1], SENT[1:])
        assert found.startswith(b"HTTP/1.1 200 OK"), found


@pytest.mark.parametrize("route", [POST, b"POST /v1/other HTTP/1.1\r\n"])
def test_a_body_that_comes_a_byte_at_a_time_is_a_408(route: bytes) -> None:
    """Each byte comes within the limit for a piece; the whole is too slow."""
    with upstream(answer) as api, serving(settings(api.url, body_seconds=1, head_seconds=1)) as gateway:
        found, seconds = trickled(gateway, route + HEAD + b"content-length: 1000\r\n\r\n", b" ")
        assert found.startswith(b"HTTP/1.1 408"), found
        assert seconds < 8
        # Without "connection: close", too: what is left of the body does not keep the connection open.
        kept = route + b"host: 127.0.0.1\r\ncontent-length: 1000\r\n\r\n"
        found, seconds = trickled(gateway, kept, b" ")
        assert found.startswith(b"HTTP/1.1 408"), found
        assert seconds < 8


def in_pieces_or_reset(gateway: Server, data: bytes) -> bytes:
    try:
        return in_pieces(gateway, data)
    except (ConnectionResetError, BrokenPipeError):
        return b""


def test_a_long_body_is_no_head() -> None:
    with upstream(answer) as api, serving(settings(api.url)) as gateway:
        sent = body("chat", history(300))
        assert len(sent) > 500_000
        assert ask(gateway.url, "chat", sent).status_code == 200
        assert api.requests[0].body == sent
        assert api.requests[0].header("content-length") == str(len(sent))


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"chunked, gzip", b"identity"])
def test_a_body_in_another_transfer_coding_reaches_nobody(coding: bytes) -> None:
    with upstream(answer) as api, serving(settings(api.url)) as gateway:
        for path in (b"/v1/chat/completions", b"/v1/files"):
            asked = b"POST " + path + b" HTTP/1.1\r\n" + HEAD + b"transfer-encoding: " + coding + b"\r\n\r\n"
            found = in_pieces(gateway, asked, b"0\r\n\r\n")
            assert found.startswith((b"HTTP/1.1 501", b"HTTP/1.1 400")), found
        assert not api.requests


def test_trailers_are_read_and_left_out() -> None:
    trailing = b"trailer: x-t\r\n\r\n%x\r\n" % len(SENT) + SENT + b"\r\n0\r\nx-t: 1\r\nx-api-key: k\r\n\r\n"
    with upstream(answer) as api, serving(settings(api.url)) as gateway:
        assert b"200 OK" in in_pieces(gateway, POST + HEAD + CHUNKED + trailing)
        (seen,) = api.requests
        assert (seen.body, seen.header("x-t"), seen.header("x-api-key")) == (SENT, None, None)


def test_a_caller_that_waits_to_be_told_to_go_on_is_told() -> None:
    with upstream(answer) as api, serving(settings(api.url)) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(POST + HEAD + LENGTH + b"expect: 100-continue\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 100")
            connection.sendall(SENT)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK")
        assert (api.requests[0].body, api.requests[0].header("expect")) == (SENT, None)


@pytest.mark.parametrize("prefix", ["/openai", "/a/b%2Fc"])
@pytest.mark.parametrize("form", FORMS)
def test_behind_a_prefix_requests_are_edited_too(form: str, prefix: str) -> None:
    async def play(seen: Seen, wire: Wire) -> None:
        assert f" {prefix}/" in seen.line
        await answer(Seen(f"POST {PATHS[form]} ", seen.headers, seen.body), wire)

    with upstream(play) as api, serving(settings(api.url), pruned) as gateway:
        paths: list[str] = []
        sent = body(form, history(6))
        for path in (PATHS[form], *(["/deployments/x/chat/completions"] if form == "chat" else [])):
            asked = f"POST {prefix}{path}?v=1 HTTP/1.1\r\ncontent-length: {len(sent)}\r\n".encode()
            assert b"200 OK" in in_pieces(gateway, asked + HEAD + b"\r\n" + sent)
            paths.append(prefix + path)
            assert len(api.requests[-1].body) < len(sent)
        assert [each.line.split()[1] for each in api.requests] == [f"{each}?v=1" for each in paths]


def test_messages_of_another_api_are_none_of_anthropics() -> None:
    async def play(seen: Seen, wire: Wire) -> None:
        await wire.whole(seen.body)

    sent = json.dumps({"role": "user", "content": "x"}).encode()
    with upstream(play) as api, serving(settings(api.url), pruned) as gateway:
        asked = b"POST /v1/threads/t/messages HTTP/1.1\r\n" + HEAD + b"content-length: %d\r\n\r\n" % len(sent)
        assert in_pieces(gateway, asked + sent).endswith(sent)
        gateway.settled()
        assert not gateway.gateway.activity.outcomes
        assert api.requests[0].body == sent


def test_a_redirect_is_the_callers_to_follow() -> None:
    async def play(seen: Seen, wire: Wire) -> None:
        await wire.whole(b"", 307, "location: http://127.0.0.1:1/elsewhere\r\n")

    with upstream(play) as api, serving(settings(api.url), pruned) as gateway:
        for form in FORMS:
            got = ask(gateway.url, form, body(form, SHORT))
            assert (got.status_code, got.headers["location"]) == (307, "http://127.0.0.1:1/elsewhere")
        assert len(api.requests) == len(FORMS)


def test_an_sdk_does_its_job_behind_a_prefix() -> None:
    async def play(seen: Seen, wire: Wire) -> None:
        assert form_of(seen) == "messages"
        await answer(seen, wire)

    with (
        upstream(play) as api,
        serving(settings(f"{api.url}/anthropic")) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key="k", max_retries=0) as client,
    ):
        client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}])
        assert api.requests[0].line.startswith("POST /anthropic/v1/messages ")
