"""The same wire in and out: bytes go up as they came, and come back as they came."""

from __future__ import annotations

import json

import httpx2
import pytest
from answers import PATHS, STREAMS, WHOLE
from upstreams import Seen, Wire, serving, upstream

from chatstack_gateway.settings import Settings, Upstream

ODD = (
    b'{ "model":"m",\t"max_tokens" : 9 , "messages":[ {"role":"user", "content":"h\\u00e9llo \xf0\x9f\x98\x80"} ],'
    b'\n"zz":{"b":1,"a":[1.0,1e3]}}'
)


def odd(form: str, *, stream: bool = False) -> bytes:
    body = ODD.replace(b'"messages"', b'"input"') if form == "responses" else ODD
    return body[:-1] + b', "stream": true}' if stream else body


async def answer(seen: Seen, wire: Wire) -> None:
    form = next(form for form, path in PATHS.items() if path in seen.line)
    if b'"stream": true' in seen.body:
        await wire.stream(*STREAMS[form])
    else:
        await wire.whole(
            json.dumps(WHOLE[form], indent=1).encode(), headers="content-type: application/json\r\nx-odd: 1\r\n"
        )


@pytest.mark.parametrize("form", PATHS)
def test_a_request_and_its_answer_pass_unchanged(form: str) -> None:
    with upstream(answer) as api, serving(Settings(Upstream(api.url))) as gateway:
        body = odd(form)
        headers = {"authorization": "Bearer sk-secret", "anthropic-beta": "x-2026", "x-mine": "1"}
        got = httpx2.post(f"{gateway.url}{PATHS[form]}?beta=true&x=%20", content=body, headers=headers)

        assert got.status_code == 200
        assert got.content == json.dumps(WHOLE[form], indent=1).encode()
        assert got.headers["x-odd"] == "1"
        seen = api.requests[0]
        assert seen.line == f"POST {PATHS[form]}?beta=true&x=%20 HTTP/1.1"
        assert seen.body == body
        assert {name: seen.header(name) for name in headers} == headers


@pytest.mark.parametrize("form", PATHS)
def test_a_stream_comes_back_byte_for_byte_with_events_that_nobody_knows(form: str) -> None:
    with upstream(answer) as api, serving(Settings(Upstream(api.url))) as gateway:
        body = odd(form, stream=True)
        with httpx2.stream("POST", f"{gateway.url}{PATHS[form]}", content=body) as got:
            raw = b"".join(got.iter_raw())

        assert raw == b"".join(STREAMS[form])
        assert api.requests[0].body == body
        assert got.headers["content-type"] == "text/event-stream"
