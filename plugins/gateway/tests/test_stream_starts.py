"""The start of a stream: held back only so long that an edited request that is refused in it can be sent again."""

from __future__ import annotations

import json
import threading

import httpx2
import pytest
from answers import PATHS, STREAMS
from asks import body, history
from test_fail_open import FORMS, ask, pruned
from upstreams import Seen, Wire, serving, upstream

from chatstack_gateway import Settings, Upstream, provider

ERRORS = {
    "chat": b'data: {"error": {"message": "Overloaded", "type": "server_error"}}\n\n',
    "messages": b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "no"}}\n\n',
    "responses": b'event: error\ndata: {"type": "error", "code": "server_error", "message": "Overloaded"}\n\n',
}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n%stransfer-encoding: chunked\r\n\r\n"
PROCESSING = b": PROCESSING\n\n"


@pytest.mark.parametrize("observe", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_signs_of_life_reach_the_caller_before_the_first_event(
    form: str, observe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not observe:
        monkeypatch.setattr(provider, "_PRELUDE_SECONDS", 0.05)
    was_seen = threading.Event()

    async def play(seen: Seen, wire: Wire) -> None:
        await wire.raw(HEAD % b"")
        await wire.chunk(PROCESSING)
        while not was_seen.is_set():
            await wire.chunk(PROCESSING)
        for piece in STREAMS[form]:
            await wire.chunk(piece)
        await wire.raw(b"0\r\n\r\n")

    with upstream(play) as api, serving(Settings(Upstream(api.url), observe=observe)) as gateway:
        sent = body(form, history(1), stream=True)
        with httpx2.stream("POST", gateway.url + PATHS[form], content=sent, timeout=20) as got:
            pieces = got.iter_raw()
            raw = next(pieces)
            was_seen.set()
            raw += b"".join(pieces)
        assert raw.replace(PROCESSING, b"") == b"".join(STREAMS[form])


@pytest.mark.parametrize("observe", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_an_error_is_told_though_upstream_leaves_the_stream_open(form: str, observe: bool) -> None:
    is_told = threading.Event()

    async def play(seen: Seen, wire: Wire) -> None:
        await wire.raw(HEAD % b"")
        await wire.chunk(ERRORS[form])
        while not is_told.is_set():
            await wire.chunk(PROCESSING)
        await wire.raw(b"0\r\n\r\n")

    with upstream(play) as api, serving(Settings(Upstream(api.url), observe=observe)) as gateway:
        sent = body(form, history(1), stream=True)
        with httpx2.stream("POST", gateway.url + PATHS[form], content=sent, timeout=20) as got:
            assert next(got.iter_raw()).startswith(ERRORS[form])
            is_told.set()


@pytest.mark.parametrize("encoding", ["br", "zstd, gzip", "gzip"])
@pytest.mark.parametrize("observe", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_a_stream_that_cannot_be_read_along_is_handed_on_and_asked_for_once(
    form: str, observe: bool, encoding: str
) -> None:
    async def play(seen: Seen, wire: Wire) -> None:
        await wire.raw(HEAD % b"content-encoding: %b\r\n" % encoding.encode())
        await wire.chunk(b"\x8b\x02\x80 no gzip \x03")
        await wire.raw(b"0\r\n\r\n")

    with upstream(play) as api, serving(Settings(Upstream(api.url), observe=observe), pruned) as gateway:
        sent = body(form, history(6), stream=True)
        with httpx2.stream("POST", gateway.url + PATHS[form], content=sent, timeout=20) as got:
            assert (got.status_code, got.headers["content-encoding"]) == (200, encoding)
            assert b"".join(got.iter_raw()) == b"\x8b\x02\x80 no gzip \x03"
        assert len(api.requests) == 1


@pytest.mark.parametrize("form", FORMS)
def test_an_answer_to_be_written_anew_that_cannot_be_read_is_asked_for_once(form: str) -> None:
    async def play(seen: Seen, wire: Wire) -> None:
        await wire.whole(b"?", headers="content-type: application/json\r\ncontent-encoding: br\r\n")

    with upstream(play) as api, serving(Settings(Upstream(api.url), rewrite_answers=True), pruned) as gateway:
        got = ask(gateway.url, form, body(form, history(6)))
        assert (got.status_code, len(api.requests)) == (502, 1)
        assert "cannot be read" in json.dumps(got.json())
