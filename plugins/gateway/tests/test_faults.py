"""Faults of upstream and of callers, each with the answer that its wire's clients understand."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from answers import PATHS, STREAMS, WHOLE
from asks import body, history
from test_fail_open import FORMS, answer, ask, form_of, pruned
from upstreams import Seen, Server, Wire, serving, upstream

from chatstack import Message
from chatstack_gateway import Limits, Settings, Upstream

ERRORS = Path(__file__).resolve().parents[3] / "../shared/data/provider_errors.jsonl.gz"
SHORT = [Message.user("hello")]


def settings(url: str, **limits: Any) -> Settings:
    return Settings(Upstream(url), limits=replace(Limits(), **limits))


def told(form: str, content: bytes) -> str:
    error = json.loads(content)["error"]
    assert (json.loads(content).get("type") == "error") == (form == "messages")
    return str(error["message"])


@pytest.mark.parametrize("form", FORMS)
def test_an_upstream_that_is_not_there_is_a_502(form: str) -> None:
    with serving(settings("http://127.0.0.1:9")) as gateway:
        got = ask(gateway.url, form, body(form, SHORT))
        assert got.status_code == 502
        assert "no connection" in told(form, got.content)
        assert httpx2.get(f"{gateway.url}/v1/models").status_code == 502


@pytest.mark.parametrize("form", FORMS)
def test_an_upstream_that_hangs_up_is_a_502(form: str) -> None:
    async def hang_up(seen: Seen, wire: Wire) -> None:
        wire.writer.close()

    with upstream(hang_up) as api, serving(settings(api.url)) as gateway:
        assert ask(gateway.url, form, body(form, SHORT)).status_code == 502
        assert len(api.requests) == 1  # nothing is tried twice


@pytest.mark.parametrize("form", FORMS)
def test_an_upstream_that_stalls_is_a_504(form: str) -> None:
    async def stall(seen: Seen, wire: Wire) -> None:
        await asyncio.sleep(60)

    with upstream(stall) as api, serving(settings(api.url, stall_seconds=0.2)) as gateway:
        got = ask(gateway.url, form, body(form, SHORT))
        assert got.status_code == 504
        assert "no answer in time" in told(form, got.content)


@pytest.mark.parametrize("how", ["drops", "stalls", "sends nonsense for a length"])
@pytest.mark.parametrize("form", FORMS)
def test_a_stream_that_breaks_off_is_told_and_never_ended_well(form: str, how: str) -> None:
    first, half = STREAMS[form][0], b'data: {"type":"half'
    arrived = threading.Event()

    async def break_off(seen: Seen, wire: Wire) -> None:
        await wire.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        await wire.chunk(first)
        await wire.chunk(STREAMS[form][1])
        await wire.chunk(half)
        if how == "stalls":
            await asyncio.sleep(60)
        while not arrived.is_set():  # before that it would be a 502
            await asyncio.sleep(0.01)
        if how != "drops":
            await wire.raw(b"zzz\r\n")
        wire.writer.close()

    with upstream(break_off) as api, serving(settings(api.url, stall_seconds=0.5)) as gateway:
        came = b""
        with (
            pytest.raises(httpx2.RemoteProtocolError),
            httpx2.stream("POST", gateway.url + PATHS[form], content=body(form, SHORT, stream=True)) as got,
        ):
            for piece in got.iter_raw():
                came += piece
                arrived.set()

        assert came.startswith(first + STREAMS[form][1] + half)
        last = json.loads(came.rpartition(b"data: ")[2])
        assert "broke off" in json.dumps(last)
        assert ("event: error" in came.decode()) == (form != "chat")
        gateway.settled()


def test_the_sdks_see_a_broken_stream_as_an_error() -> None:
    arrived: set[str] = set()

    async def break_off(seen: Seen, wire: Wire) -> None:
        form = form_of(seen)
        await wire.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for piece in STREAMS[form][: 5 if form == "messages" else 2]:
            await wire.chunk(piece)
        while form not in arrived:
            await asyncio.sleep(0.01)
        wire.writer.close()

    with (
        upstream(break_off) as api,
        serving(settings(api.url)) as gateway,
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0) as theirs,
        anthropic.Anthropic(base_url=gateway.url, api_key="k", max_retries=0) as claude,
    ):
        with pytest.raises(openai.APIError, match="broke off"):
            for _ in theirs.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "x"}], stream=True
            ):
                arrived.add("chat")
        with (
            pytest.raises(anthropic.APIStatusError, match="broke off"),
            claude.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}]) as stream,
        ):
            for _ in stream:
                arrived.add("messages")


@pytest.mark.parametrize("form", FORMS)
def test_an_answer_shorter_than_it_says_is_not_whole(form: str) -> None:
    async def lie(seen: Seen, wire: Wire) -> None:
        whole = json.dumps(WHOLE[form]).encode()
        await wire.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99999\r\n\r\n" + whole)
        wire.writer.close()

    with upstream(lie) as api, serving(settings(api.url)) as gateway:
        with pytest.raises(httpx2.RemoteProtocolError):
            ask(gateway.url, form, body(form, SHORT))
        gateway.settled()


@pytest.mark.parametrize("content", [b"", b"nonsense", b"[1]", b'{"choices": 3, "content": 3, "output": 3}'])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_an_answer_that_cannot_be_read_is_handed_on_all_the_same(form: str, streamed: bool, content: bytes) -> None:
    async def odd(seen: Seen, wire: Wire) -> None:
        if streamed:
            await wire.stream(b"data: " + content + b"\n\n")
        else:
            await wire.whole(content)

    with upstream(odd) as api, serving(settings(api.url), pruned) as gateway:
        got = ask(gateway.url, form, body(form, history(6), stream=streamed))
        assert got.content == (b"data: " + content + b"\n\n" if streamed else content)
        assert len(api.requests) == 1


@pytest.mark.parametrize("form", FORMS)
def test_a_compressed_answer_is_handed_on_compressed_and_read(form: str) -> None:
    whole = gzip.compress(json.dumps(WHOLE[form]).encode())

    async def compressed(seen: Seen, wire: Wire) -> None:
        await wire.whole(whole, headers="content-type: application/json\r\ncontent-encoding: gzip\r\n")

    read: list[str] = []
    with upstream(compressed) as api, serving(settings(api.url)) as gateway:
        gateway.gateway.listeners.append(lambda _, response, __: read.append(response.text if response else "?"))
        with httpx2.stream(
            "POST",
            gateway.url + PATHS[form],
            content=body(form, SHORT),
            headers={"accept-encoding": "br, gzip, zstd;q=0.5"},
        ) as got:
            assert b"".join(got.iter_raw()) == whole
        gateway.settled()
        assert api.requests[0].header("accept-encoding") == "gzip"
    assert read == ["hello"]


@pytest.mark.skipif(not ERRORS.exists(), reason="the recorded errors are not on this machine")
def test_recorded_errors_come_back_as_they_are() -> None:
    with gzip.open(ERRORS, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    said = {str(at): row for at, row in enumerate(rows)}

    async def refuse(seen: Seen, wire: Wire) -> None:
        row = said[seen.header("x-row") or ""]
        await wire.whole(json.dumps(row["response"]).encode(), int(row["status"]))

    with upstream(refuse) as api, serving(settings(api.url), pruned) as gateway:
        for at, row in said.items():
            form = (
                "messages"
                if row["kind"].startswith("anthropic")
                else "responses"
                if "responses" in row["kind"]
                else "chat"
            )
            got = ask(gateway.url, form, body(form, SHORT), **{"x-row": at})
            assert (got.status_code, got.content) == (int(row["status"]), json.dumps(row["response"]).encode())


@pytest.mark.parametrize("form", FORMS)
def test_a_body_that_is_too_large_is_a_413(form: str) -> None:
    with upstream(answer) as api, serving(settings(api.url, body_bytes=5_000)) as gateway:
        got = ask(gateway.url, form, body(form, history(6)))
        assert (got.status_code, "5,000 bytes" in told(form, got.content)) == (413, True)

        def pieces() -> Any:
            yield from [b"x" * 1_000] * 6

        assert httpx2.post(gateway.url + PATHS[form], content=pieces()).status_code == 413
        assert httpx2.post(f"{gateway.url}/v1/files", content=pieces()).status_code == 413
        assert not any(PATHS[form] in each.line for each in api.requests)


@pytest.mark.parametrize("form", FORMS)
def test_a_chunked_request_goes_on_whole(form: str) -> None:
    with upstream(answer) as api, serving(settings(api.url)) as gateway:
        sent = body(form, SHORT)
        got = httpx2.post(gateway.url + PATHS[form], content=iter([sent[:9], sent[9:]]))
        assert got.status_code == 200
        assert api.requests[0].body == sent
        assert api.requests[0].header("transfer-encoding") is None


def raw(gateway: Server, data: bytes, *, wait: float = 5.0) -> bytes:
    port = int(gateway.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as connection:
        connection.sendall(data)
        found = b""
        try:
            while piece := connection.recv(65536):
                found += piece
        except TimeoutError:
            pass
        return found


SMUGGLED = b"GET /v1/smuggled HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
SHAPES = {
    "two lengths": b"content-length: 2\r\ncontent-length: 40\r\n\r\n{}" + SMUGGLED,
    "length and chunks": b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "odd chunks": b"transfer-encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
    "chunks by another name": b"transfer-encoding: xchunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "a length that is none": b"content-length: +2\r\n\r\n{}",
    "a header without a name": b": x\r\ncontent-length: 2\r\n\r\n{}",
    "a space before the colon": b"content-length : 2\r\n\r\n{}",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_request_with_two_readings_reaches_nobody_twice(shape: str) -> None:
    with upstream(answer) as api, serving(settings(api.url)) as gateway:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        found = raw(gateway, head + SHAPES[shape], wait=2)
        assert found.startswith(b"HTTP/1.1 4"), found[:200]
        assert not any("smuggled" in each.line for each in api.requests)


def test_headers_of_one_connection_stay_there() -> None:
    with upstream(answer) as api, serving(settings(api.url)) as gateway:
        ask(gateway.url, "chat", body("chat", SHORT), connection="close, x-mine", **{"x-mine": "1", "te": "trailers"})
        assert all(api.requests[0].header(name) is None for name in ("x-mine", "te"))


@pytest.mark.parametrize("form", FORMS)
def test_a_slow_body_is_a_408(form: str) -> None:
    with upstream(answer) as api, serving(settings(api.url, body_seconds=0.2)) as gateway:
        head = f"POST {PATHS[form]} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{{".encode()
        assert raw(gateway, head, wait=3).startswith(b"HTTP/1.1 408")
        assert not api.requests


@pytest.mark.parametrize("form", FORMS)
def test_a_caller_that_goes_away_cancels_upstream(form: str) -> None:
    async def forever(seen: Seen, wire: Wire) -> None:
        await wire.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            await wire.chunk(STREAMS[form][0])
            await asyncio.sleep(0.02)

    with upstream(forever) as api, serving(settings(api.url), pruned) as gateway:
        with httpx2.stream("POST", gateway.url + PATHS[form], content=body(form, SHORT, stream=True)) as got:
            next(got.iter_raw())
        assert api.gone.wait(20)
        gateway.settled()


def test_a_caller_that_goes_away_before_the_answer_cancels_upstream() -> None:
    async def silent(seen: Seen, wire: Wire) -> None:
        assert await wire.reader.read(1) == b""
        raise ConnectionError

    with upstream(silent) as api, serving(settings(api.url), pruned) as gateway:
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(gateway.url + PATHS["chat"], content=body("chat", SHORT), timeout=httpx2.Timeout(20, read=0.3))
        assert api.gone.wait(20)
        gateway.settled()


def test_a_slow_reader_slows_upstream_and_nothing_is_lost() -> None:
    piece = b"data: " + json.dumps({"choices": [], "pad": "x" * 60_000}).encode() + b"\n\n"
    written = 0

    async def flood(seen: Seen, wire: Wire) -> None:
        nonlocal written
        await wire.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(600):
            await wire.chunk(piece)
            written += 1
        await wire.raw(b"0\r\n\r\n")

    with upstream(flood) as api, serving(settings(api.url)) as gateway:
        with httpx2.stream("POST", gateway.url + PATHS["chat"], content=body("chat", SHORT, stream=True)) as got:
            time.sleep(1)
            assert written < 500
            assert sum(map(len, got.iter_raw())) == 600 * len(piece)
        gateway.settled()


def test_more_open_requests_than_allowed_are_told_to_come_again() -> None:
    release = asyncio.Event()

    async def held(seen: Seen, wire: Wire) -> None:
        await asyncio.wait_for(release.wait(), 20)
        await answer(seen, wire)

    with upstream(held) as api, serving(settings(api.url, open_requests=1)) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as first:
            sent = body("chat", SHORT)
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(sent)}\r\n\r\n"
            first.sendall(head.encode() + sent)
            until = time.monotonic() + 20
            while not api.requests and time.monotonic() < until:
                time.sleep(0.01)
            for form in FORMS:
                got = ask(gateway.url, form, body(form, SHORT))
                assert (got.status_code, got.headers["retry-after"]) == (503, "1")
                told(form, got.content)
        gateway.settled()
        release.set()


def test_other_routes_are_forwarded_as_they_come() -> None:
    async def echo(seen: Seen, wire: Wire) -> None:
        await wire.whole(seen.line.encode() + b"|" + seen.body, 202, "x-odd: 1\r\ncontent-type: text/odd\r\n")

    with upstream(echo) as api, serving(settings(api.url)) as gateway:
        for method, path, content in (
            ("GET", "/v1/models", b""),
            ("GET", "/v1/models/a%2Fb?limit=3", b""),
            ("POST", "/v1/messages/count_tokens", b'{ "a":1}'),
            ("POST", "/v1/responses/input_tokens", b"{}"),
            ("GET", "/v1/responses/r_1", b""),
            ("DELETE", "/v1/files/f", b""),
            ("POST", "/v1/embeddings", b"{}"),
            ("GET", "/models", b""),
        ):
            got = httpx2.request(method, gateway.url + path, content=content or None, headers={"x-api-key": "k"})
            assert (got.status_code, got.headers["x-odd"]) == (202, "1")
            assert got.content == f"{method} {path} HTTP/1.1|".encode() + content
            assert api.requests[-1].header("x-api-key") == "k"


def test_the_version_in_the_path_stands_there_once() -> None:
    with upstream(answer) as api:
        for base in (api.url, f"{api.url}/v1", f"{api.url}/v1/", f"{api.url}/api/v1"):
            with serving(settings(base)) as gateway:
                httpx2.post(f"{gateway.url}/v1/chat/completions", content=body("chat", SHORT))
                httpx2.post(f"{gateway.url}/v1/messages", content=body("messages", SHORT))
        assert [each.line.split()[1] for each in api.requests] == [
            *("/v1/chat/completions", "/v1/messages") * 3,
            *("/api/v1/chat/completions", "/api/v1/messages"),
        ]
