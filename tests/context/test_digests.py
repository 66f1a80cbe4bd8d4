"""Digests: the same conversation is recognised, another is not."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given

from chatstack import Message, Reasoning, Text, ToolCall, ToolResult
from chatstack.context.digests import digest
from chatstack.context.history import Recogniser
from tests.histories import PROPERTY, decoded_again, histories

HELLO = Message.user("hello")


def chain_of(messages: list[Message], key: bytes = b"") -> tuple[bytes, ...]:
    seen = Recogniser(key, 1_000).recognise(tuple(messages))
    return tuple(seen.links[: seen.length])


@pytest.mark.parametrize(
    "other",
    [
        Message.user("hello "),
        Message.assistant("hello"),
        Message.user("hel", "lo"),
        Message.user("hello", pinned=True),
        Message("user", (Text("hello", '{"cache": true}'),)),
        Message("user", (Text("hello"),), extra_json='{"name": "me"}'),
        Message("user", (Reasoning("hello"),)),
        Message("user", (ToolCall("hello", ""),)),
        Message("user", (ToolResult("hello"),)),
        Message("user", ()),
    ],
    ids=str,
)
def test_what_differs_on_the_wire_or_by_its_pin_has_another_digest(other: Message) -> None:
    assert digest(other) != digest(HELLO)


def test_the_mark_of_a_message_is_not_on_the_wire() -> None:
    assert digest(Message("user", (Text("hello"),), mark="summary")) == digest(HELLO)


def test_an_edited_message_does_not_keep_the_digest_of_its_original() -> None:
    message = Message.user("hello")
    before = digest(message)
    edited = message.edited(parts=(Text("bye"),))
    assert digest(edited) == digest(Message.user("bye")) != before


@pytest.mark.parametrize("copy", [lambda each: decoded_again([each])[0], lambda each: pickle.loads(pickle.dumps(each))])
def test_a_fresh_copy_has_the_same_digest(copy: object) -> None:
    assert callable(copy)
    message = Message.assistant("let me see", ToolCall("a", "look", '{"at": "sky"}'))
    fresh = copy(message)
    assert fresh is not message
    assert digest(fresh) == digest(message)


def test_system_messages_are_no_part_of_the_history() -> None:
    plain = [Message.user("a"), Message.assistant("b")]
    dated = [Message.system("it is Monday"), plain[0], Message.system("be brief"), plain[1]]
    assert chain_of(dated) == chain_of(plain)
    assert Recogniser(b"", 9).recognise(tuple(dated)).positions == (1, 3)


def test_each_link_stands_for_everything_before_it() -> None:
    one = chain_of([Message.user("a"), Message.assistant("b"), Message.user("c")])
    other = chain_of([Message.user("x"), Message.assistant("b"), Message.user("c")])
    assert not set(one) & set(other)
    assert len(set(one)) == 3


def test_the_same_messages_in_another_order_are_another_history() -> None:
    a, b = Message.user("a"), Message.user("b")
    assert chain_of([a, b])[-1] != chain_of([b, a])[-1]


def test_a_key_makes_digests_that_say_nothing_to_whoever_has_not_got_it() -> None:
    chains = [chain_of([HELLO], key) for key in (b"", b"one", b"two")]
    assert len({chain[0] for chain in chains}) == 3
    assert chain_of([Message.user("hello")], b"one") == chains[1]


def test_no_messages_have_no_chain() -> None:
    assert chain_of([]) == chain_of([Message.system("s")]) == ()


@PROPERTY
@given(histories())
def test_a_beginning_has_the_beginning_of_the_chain_fresh_or_not(messages: list[Message]) -> None:
    whole = chain_of(messages)
    for end in range(len(messages) + 1):
        start = chain_of(decoded_again(messages[:end]))
        assert start == whole[: len(start)]
