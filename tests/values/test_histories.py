"""Histories are written as JSON and read again whole; what is not known is refused, and its place is named."""

from __future__ import annotations

import enum
import gzip
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import (
    Annotation,
    File,
    Image,
    InputError,
    Message,
    ProviderItem,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    from_json,
    from_openai_chat,
    to_json,
)
from chatstack.testing.generated import MESSAGES
from tests.histories import PROPERTY
from tests.workbench.replay.conversations import data_file

NOTES = st.builds(
    Annotation,
    strategy=st.sampled_from(["", "clear_tool_results"]),
    tokens_before=st.integers(0, 2**40),
    handles=st.lists(st.text(max_size=3), max_size=2).map(tuple),
    model=st.sampled_from(["", "m"]),
)


def annotations_of(messages: Sequence[Message]) -> list[Annotation | None]:
    return [message.annotation for message in messages]


@PROPERTY
@given(st.lists(MESSAGES, max_size=6), st.lists(st.one_of(st.none(), NOTES), min_size=6, max_size=6))
def test_what_was_written_is_read_again_equal(messages: list[Message], notes: list[Annotation | None]) -> None:
    history = [
        message if note is None else message.edited(annotation=note)
        for message, note in zip(messages, notes, strict=False)
    ]
    text = to_json(history)
    read = from_json(text)
    assert read == history
    assert annotations_of(read) == annotations_of(history)
    assert to_json(read) == text
    assert from_json(text.encode()) == history


@pytest.mark.data
@pytest.mark.parametrize("name", ["tau_airline_gpt4o", "tau2_activegraph"])
def test_recorded_conversations_come_back_equal(name: str) -> None:
    with gzip.open(data_file(f"{name}.dev.jsonl.gz")) as lines:
        for line in lines:
            history = from_openai_chat(json.loads(line)["messages"])
            assert from_json(to_json(history)) == history


def test_every_kind_of_part_pins_marks_and_what_rides_along_are_kept() -> None:
    history = [
        Message("system", (Text("be kind"),), pinned=True, extra_json='{"openai-chat":{"role":"developer"}}'),
        Message.user("look", Image(url="u", detail="low"), File(data="aGk=", media_type="text/plain", name="a")),
        Message.assistant(Reasoning("hm", '{"signature":"s"}', "anthropic"), ToolCall("c", "f", '{ "a": 1.0 }')),
        Message("tool", (ToolResult("c", "f", (Text("x"), ProviderItem("openai", '{"type":"y"}')), True),)),
        Message("assistant", (Text("earlier: ..."),), mark="summary"),
    ]
    assert from_json(to_json(history)) == history


def test_an_edited_message_is_written_as_it_is_and_read_as_its_own_original() -> None:
    edited = Message.tool("c", "long " * 50).edited(
        parts=(ToolResult("c", "", "[cleared]"),), annotation=Annotation("clear_tool_results", 50, handles=("h",))
    )
    (read,) = from_json(to_json([edited]))
    assert "long" not in to_json([edited])
    assert read == edited
    assert read.annotation == edited.annotation
    assert read.original is read


class Role(enum.StrEnum):
    USER = "user"


class Word(str):
    """Text of a kind of its own."""


@pytest.mark.parametrize("role", [Role.USER, Word("user")])
def test_a_role_that_is_text_of_its_own_kind_is_written_as_text(role: Any) -> None:
    assert from_json(to_json([Message(role, (Text("hi"),))])) == [Message.user("hi")]


def test_a_history_without_messages_is_one() -> None:
    assert from_json(to_json([])) == []


def told(text: Any) -> str:
    with pytest.raises(InputError) as caught:
        from_json(text)
    return str(caught.value)


def written(**changes: Any) -> str:
    return json.dumps(
        {"version": 1, "messages": [{"role": "user", "parts": [{"type": "text", "text": "hi"}]}], **changes}
    )


def part(**changes: Any) -> str:
    fields = {"type": "text", "text": "hi", **changes}
    return written(messages=[{"role": "user", "parts": []}, {"role": "user", "parts": [fields]}])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (written(version=2), "version 2 is not known here"),
        (written(version=True), "version True is not known"),
        (written(version="1"), "version of type str is not known"),
        (
            '{"messages": [{"role": "user", "content": "hi"}]}',
            "no version, so to_json did not write it; from_openai_chat",
        ),
        ('{"version": 1}', "missing required field `messages`"),
        (written(model="m"), "unknown field `model`"),
        (part(type="video"), "messages[1].parts[0].type: "),
        (part(tokens=1), "messages[1].parts[0]: Object contains unknown field `tokens`"),
        (part(text=5), "messages[1].parts[0].text: Expected `str`"),
        (written(messages=[{"role": "robot", "parts": []}]), "messages[0].role: "),
        (written(messages=[{"role": "user", "parts": [], "content": "hi"}]), "messages[0]: "),
        (written(messages=[{"role": "user", "parts": [{"text": "hi"}]}]), "messages[0].parts[0]: "),
        (written(annotations={"1": {"strategy": "s"}}), "annotations: there is no message 1"),
        (written(annotations={"-1": {"strategy": "s"}}), "annotations: there is no message -1"),
        (written(annotations={"0": {"strategy": "s", "by": 1}}), "annotations"),
        (part(text="\ud800"), "malformed"),
        ("[]", "Expected `object`"),
        ("{", "truncated"),
        ("", "truncated"),
        ("\ud800", "not JSON text"),
        ('{"version": 1, "messages": ' + "[" * 100_000, "not JSON text"),
        ({"version": 1, "messages": []}, "expected JSON text, got dict"),
        (None, "expected JSON text, got NoneType"),
    ],
)
def test_what_is_not_known_is_refused_and_its_place_is_named(text: Any, says: str) -> None:
    assert says in told(text)


def test_an_error_quotes_no_message() -> None:
    assert "secret" not in told(written(messages=[{"role": "user", "parts": "secret"}]))
    assert "secret" not in told(part(text=["secret"]))


class Dated(Message, frozen=True):
    day: str = ""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            [Message.user("a"), {"role": "user", "content": "b"}],
            r"messages\[1\]: expected Message, got dict; convert with chatstack.from_openai_c",
        ),
        ("hello", "messages: expected a list of Message, got str"),
        (Message.user("a"), "messages: expected a list of Message, got Message"),
        ([Message("assistant", (Text("\ud800"),))], r"messages\[0\]: contains a lone surrogate"),
        ([Message.user("a"), Dated("user", (Text("b"),), day="1")], r"messages\[1\]: Dated has fields of its own"),
    ],
)
def test_what_cannot_be_written_is_refused_and_its_place_is_named(given: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        to_json(given)
