"""Bodies of wrapped calls: patched where they were edited, and split into events without losing a byte."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack.providers.wrapping.bodies import event_bytes, events_in, object_in, patched
from chatstack.providers.wrapping.joining import ChatJoining, MessagesJoining, ResponsesJoining


async def as_chunks(chunks: Sequence[bytes]) -> AsyncGenerator[bytes, None]:
    for chunk in chunks:
        yield chunk


def events_of(*chunks: bytes) -> list[bytes]:
    async def read() -> list[bytes]:
        return [event async for event in events_in(as_chunks(chunks))]

    return asyncio.run(read())


@given(
    st.lists(st.sampled_from([b"data: {}", b"\n", b"\r\n", b"\r", b"\n\n", b": comment", b"\r\n\r\n"]), max_size=20),
    st.integers(1, 5),
)
def test_no_byte_is_lost_and_no_event_depends_on_how_the_bytes_come(pieces: list[bytes], size: int) -> None:
    whole = b"".join(pieces)
    chunks = [whole[at : at + size] for at in range(0, len(whole), size)]
    assert b"".join(events_of(*chunks)) == whole
    if b"\r" not in whole:  # half of a line's end is an end, too
        assert events_of(*chunks) == events_of(whole)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_events_end_with_a_blank_line(end: bytes) -> None:
    events = [b"event: a\ndata: 1" + end, b": ping" + end, b"data: [DONE]" + end]
    assert events_of(b"".join(events)) == events
    assert events_of(b"".join(events) + b"rest") == [*events, b"rest"]


def test_an_event_of_many_chunks_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    class Counting:
        def finditer(self, text: bytearray, start: int) -> Iterator[re.Match[bytes]]:
            searched.append(len(text) - start)
            return iter(())

    monkeypatch.setattr("chatstack.providers.wrapping.bodies._END", Counting())
    events_of(*[b"x" * 100] * 1_000)
    assert sum(searched) < 110 * 1_000


@pytest.mark.parametrize(
    ("event", "found"),
    [
        (b'event: x\ndata: {"a": 1}\n\n', {"a": 1}),
        (b'data: {"a":\ndata: 1}\n\n', {"a": 1}),
        (b"data: [DONE]\n\n", None),
        (b": ping\n\n", None),
        (b"data: [1]\n\n", None),
    ],
)
def test_the_object_in_an_event_is_read(event: bytes, found: object) -> None:
    assert object_in(event) == found


def test_an_event_is_written_as_it_is_read() -> None:
    event: dict[str, object] = {"type": "a", "text": "naïve\u2028"}
    assert object_in(event_bytes(event, named=True)) == event
    assert event_bytes(event, named=True).startswith(b"event: a\n")
    assert event_bytes(event, named=False).startswith(b"data: ")


def test_what_was_not_edited_keeps_its_spelling() -> None:
    given_ = {"b": 1.50, "messages": [{"content": "one", "role": "user"}, {"role": "user", "content": ["two"]}]}
    before = {"b": 1.5, "messages": [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}], "c": 3}
    after = {"b": 1.5, "messages": [before["messages"], {"role": "user", "content": "two"}], "c": 3, "d": 4}
    found = patched(given_, before, after)
    assert found["messages"] == [before["messages"], {"role": "user", "content": ["two"]}]
    assert json.dumps(found["b"]) == "1.5"
    assert "c" not in found, "both spellings have it: the caller left it out"
    assert found["d"] == 4


def test_a_field_that_was_taken_out_goes() -> None:
    assert patched({"a": 1, "tools": [1]}, {"a": 1, "tools": [1]}, {"a": 1}) == {"a": 1}


def test_a_field_of_another_shape_is_replaced_whole() -> None:
    assert patched({"input": "hello"}, {"input": [1]}, {"input": [1, 2]}) == {"input": [1, 2]}


def test_a_later_round_of_chat_completions_has_no_second_role() -> None:
    chunk: dict[str, object] = {"choices": [{"delta": {"role": "assistant", "content": "a"}}, {}]}
    assert ChatJoining().continued(chunk) == {"choices": [{"delta": {"content": "a"}}, {}]}


def test_blocks_of_messages_are_counted_on() -> None:
    joining = MessagesJoining()
    joining.shown({"type": "content_block_start", "index": 0})
    joining.next_round()
    assert joining.is_continued
    assert joining.continued({"type": "message_start"}) is None
    assert joining.continued({"type": "content_block_delta", "index": 1}) == {"type": "content_block_delta", "index": 2}
    assert joining.continued({"type": "message_stop"}) == {"type": "message_stop"}


def test_items_and_events_of_responses_are_counted_on() -> None:
    joining = ResponsesJoining()
    joining.shown({"type": "response.output_item.done", "item": {"id": "a"}})
    joining.next_round()
    assert joining.continued({"type": "response.created"}) is None
    end: dict[str, object] = {"type": "response.completed", "response": {"output": [{"id": "b"}]}, "output_index": 0}
    found = joining.continued(end)
    assert found is not None
    assert found["response"] == {"output": [{"id": "a"}, {"id": "b"}]}
    assert (found["output_index"], found["sequence_number"]) == (1, 1)
