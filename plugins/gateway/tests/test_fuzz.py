"""Whatever an upstream or a client sends: it is read or refused, in a time and a space that go with its size."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatstack_gateway.events import EventSplitter, Inflater, decoded
from chatstack_gateway.positions import UneditableError, scan

EVENTS = b'event: a\ndata: {"type": "a"}\n\ndata: one\ndata: two\r\n\r\n: keep-alive\n\ndata: [DONE]\n\n'
BODY = '{"model": "m", "messages": [{"role": "user", "content": "a\\u00e9"}], "tools": [], "x": {"y": [1.5e3, null]}}'
NASTY = st.sampled_from(
    ["[" * 3_000, '{"a":' * 3_000, "9" * 5_000, "NaN", "\\ud800", '"', "\\", "\x00", ",", "}", "]", "-"]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 40)), st.binary(max_size=30))
def test_events_are_the_same_in_whatever_pieces_they_come(sizes: list[int], more: bytes) -> None:
    data = EVENTS + more
    whole = EventSplitter()
    expected = [*whole.feed(data), *whole.end()]
    pieces, at = EventSplitter(), 0
    found: list[bytes] = []
    for size in sizes:
        found += pieces.feed(data[at : at + size])
        at += size
    assert [*found, *pieces.feed(data[at:]), *pieces.end()] == expected
    assert expected[:2] == [b'{"type": "a"}', b"one\ntwo"]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.sampled_from(["", "gzip", "deflate", "br", "x-gzip"]), st.integers(0, 60))
def test_a_broken_answer_is_a_value_error(noise: bytes, encoding: str, at: int) -> None:
    packed = gzip.compress(EVENTS, mtime=0)
    for data in (noise, packed[:at] + noise + packed[at:]):
        try:
            for each in EventSplitter().feed(Inflater(encoding).feed(data)):
                decoded(each)
        except ValueError:
            pass


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(BODY)), st.integers(0, 9), NASTY | st.text(max_size=3)), max_size=4))
def test_a_body_is_scanned_as_json_reads_it_or_refused(changes: list[tuple[int, int, str]]) -> None:
    text = BODY
    for at, gone, put in changes:
        text = text[:at] + put + text[at + gone :]
    try:
        body = scan(text)
    except UneditableError:
        return
    assert body.value == json.loads(text)


def test_a_small_answer_that_becomes_a_huge_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatstack_gateway.events._MOST_PLAIN_BYTES", 1_000_000)
    bomb = zlib.compress(b"0" * 50_000_000)
    assert len(bomb) < 60_000
    with pytest.raises(ValueError, match="too large"):
        Inflater("deflate").feed(bomb)
    inflater = Inflater("deflate")
    assert len(inflater.feed(zlib.compress(b"0" * 1_000_000))) == 1_000_000


def test_an_event_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatstack_gateway.events._MOST_EVENT_BYTES", 1_000_000)
    for piece in (b"x" * 1_000, b"data: x\n" * 100):
        split = EventSplitter()
        with pytest.raises(ValueError, match="too large"):
            for _ in range(2_000):
                list(split.feed(piece))
    split = EventSplitter()
    assert len([each for _ in range(2_000) for each in split.feed(b"data: " + b"x" * 1_000 + b"\n\n")]) == 2_000
    assert [each for _ in range(100_000) for each in split.feed(b": keep-alive\n\n")] == []
