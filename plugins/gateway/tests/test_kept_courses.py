"""Streams that layers change in any way: callers read what the layers said, and the work grows with the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from test_fail_open import FORMS
from test_kept_answers import MESSAGE, SAID, chunk, deltas, event
from test_rewritten_answers import text_of

from chatstack import ChatResponse, ChatUpdate, Message
from chatstack.providers.wires import AnswerReader, Form
from chatstack_gateway.came_answers import CameAnswer
from chatstack_gateway.events import decoded
from chatstack_gateway.kept_answers import kept_writer

Course: TypeAlias = Callable[[Iterator[ChatUpdate]], Iterator[ChatUpdate]]
"""What a layer makes of the updates with words."""

WORDS = st.lists(st.sampled_from(["a", "b", "la", "A", " "]), min_size=1, max_size=12)
STEPS = st.lists(st.sampled_from(["keep", "drop", "raise", "say more", "hold back", "say"]), max_size=12)


def chat(words: Sequence[str]) -> list[bytes]:
    """Every second word comes with the one before it, as two parts of one event."""
    told = [[{"type": "text", "text": each} for each in words[at : at + 2]] for at in range(0, len(words), 2)]
    more: list[Any] = [{"role": "assistant", "content": ""}, *({"content": each} for each in told)]
    return [*map(chunk, more), chunk({"content": "other"}, 1), chunk({}, finish="stop"), b"data: [DONE]\n\n"]


def messages(words: Sequence[str]) -> list[bytes]:
    return [
        event(type="message_start", message={**MESSAGE, "usage": {"input_tokens": 5, "output_tokens": 1}}),
        *deltas(0, {"type": "text", "text": ""}, *({"type": "text_delta", "text": each} for each in words)),
        event(type="ping"),
        event(type="message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 9}),
        event(type="message_stop"),
    ]


def responses(words: Sequence[str]) -> list[bytes]:
    at: dict[str, Any] = {"output_index": 0, "item_id": "m1", "content_index": 0}
    item = {**SAID, "content": [{"type": "output_text", "text": "".join(words), "annotations": []}]}
    told = {"id": "r1", "object": "response", "status": "completed", "model": "m", "output": [item]}
    found: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**told, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**SAID, "content": []}},
        *({"type": "response.output_text.delta", **at, "delta": each} for each in words),
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": told},
    ]
    return [event(**each, sequence_number=number) for number, each in enumerate(found)]


STREAMS: dict[str, Callable[[Sequence[str]], list[bytes]]] = {
    "chat": chat,
    "messages": messages,
    "responses": responses,
}


def rewritten(form: Form, came: Sequence[bytes], course: Course, kind: type[str] = str) -> tuple[str, bytes]:
    """Return what the layer said, and what its caller gets of that stream. Texts are made of that ``kind``."""
    reader, answer = AnswerReader(form, streaming=True), CameAnswer(is_stream=True)
    writer, out, said = kept_writer(form, answer, "m"), b"", ""
    events, rest = (came[:-1], came[-1]) if form == "chat" else (came, b"")

    def updates() -> Iterator[ChatUpdate]:
        for raw in events:
            fields = decoded(raw.partition(b"data: ")[2])
            read = [replace(each, text=kind(each.text)) for each in reader.add(fields)]
            answer.add(raw, fields, read)
            yield from read

    for update in course(updates()):
        said += update.text
        out += writer.add(update)
    last = reader.finish()
    answer.end(rest, last)
    done = cast("Message", last[-1].message_done)
    left = done if said == done.text else Message.assistant(said)
    return said, out + writer.finish(ChatResponse(messages=(left,), finish_reason=last[-1].finish_reason))


def following(steps: Sequence[str]) -> Course:
    """Return the course of a layer that takes these steps, one for each update, and then those behind them as they
    come."""

    def course(updates: Iterator[ChatUpdate]) -> Iterator[ChatUpdate]:
        left, held = [*reversed(steps)], list[ChatUpdate]()
        for update in updates:
            step = left.pop() if left else "keep"
            if step != "drop":
                held.append(replace(update, text=update.text.upper()) if step == "raise" else update)
            if step == "say more":
                held.append(ChatUpdate(text="la"))
            if step == "say":
                held.insert(0, ChatUpdate(text="b"))
            if step != "hold back":
                yield from held
                held.clear()
        yield from held

    return course


@pytest.mark.parametrize("form", FORMS)
@given(words=WORDS, steps=STEPS)
def test_callers_read_what_the_layers_said(form: Any, words: list[str], steps: list[str]) -> None:
    said, got = rewritten(form, STREAMS[form](words), following(steps))
    assert text_of(form, got, True) == said


@pytest.mark.parametrize("form", FORMS)
@given(words=WORDS, held=st.lists(st.sampled_from(["keep", "hold back"]), max_size=12))
def test_what_is_held_back_and_handed_on_as_it_came_keeps_its_bytes(
    form: Any, words: list[str], held: list[str]
) -> None:
    came = STREAMS[form](words)
    assert rewritten(form, came, following(held))[1] == b"".join(came)


class Counted(str):
    """A text that counts how often it is compared."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("steps", [["raise"], ["drop"], ["raise", "keep"], ["hold back"], ["say more"], ["keep"]])
@pytest.mark.parametrize("form", FORMS)
def test_an_update_is_not_compared_with_all_that_came_before(form: Any, steps: list[str]) -> None:
    words = [f"word {at} " for at in range(400)]
    came, course = STREAMS[form](words), following(steps * len(words))
    Counted.comparisons = 0
    rewritten(form, came, course, Counted)
    assert Counted.comparisons <= 4 * len(words)
