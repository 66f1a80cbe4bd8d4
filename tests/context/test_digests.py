"""Digests: the same conversation is recognised, another is not."""

from __future__ import annotations

import hashlib
import pickle

import pytest
from hypothesis import given

from chatstack import File, Image, Message, Part, ProviderItem, Reasoning, Text, ToolCall, ToolResult
from chatstack.context.histories.digests import (
    digest,
    head_digest,
    next_link,
    next_links,
    soft_digest,
    soft_hash,
    subject_digest,
)
from chatstack.context.histories.recognising import Recogniser
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


# Softly: as callers send it again


def call(arguments: str, name: str = "look", id: str = "c1") -> Message:
    return Message.assistant("let me see", ToolCall(id, name, arguments))


ITEM = ProviderItem("openai-responses", '{"type": "web_search_call"}')


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Message.assistant("a  b\n"), Message.assistant("\ta b")),
        (Message.assistant("a   b\n\n  c " * 99), Message.assistant(" a b\tc" * 99)),
        (Message.assistant("a ", "b"), Message.assistant("a b")),
        (call('{"at": "sky", "n": 1}'), call('{"n":1,"at":"sky"}')),
        (call('{"at": "caf\\u00e9"}'), call('{"at": "caf\u00e9"}')),
        (call("{}", id="c1"), call("{}", id="toolu_7")),
        (call("not JSON"), call("not JSON")),
        (Message("assistant", (Reasoning("hm"), Text("a"))), Message.assistant("a")),
        (Message("assistant", (ITEM, Text("a"))), Message.assistant("a")),
        (Message("assistant", (Text("a", '{"cache": true}'),), extra_json='{"id": 1}'), Message.assistant("a")),
        (Message.tool("c1", "sun", name="look"), Message.tool("toolu_7", "sun")),
        (Message("assistant", (Text("a"),), mark="summary"), Message.assistant("a")),
    ],
    ids=[
        "white space of answers",
        "white space of long answers",
        "texts joined",
        "arguments encoded anew",
        "escapes in arguments",
        "ids of calls",
        "arguments that are no JSON",
        "reasoning",
        "items of the provider",
        "fields of the provider",
        "ids of results",
        "marks",
    ],
)
def test_what_callers_do_not_keep_of_a_message_is_no_difference(one: Message, other: Message) -> None:
    assert soft_digest(one) == soft_digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Message.user("a b"), Message.user("a  b")),
        (Message.user("a"), Message.user("a\n")),
        (Message.tool("c1", "a b"), Message.tool("c1", "a  b")),
        (Message.tool("c1", "a"), Message("tool", (ToolResult("c1", "", "a", is_error=True),))),
        (Message.assistant("a b"), Message.assistant("ab")),
        (Message.assistant("a"), Message.user("a")),
        (Message.assistant("a"), Message.assistant("a", pinned=True)),
        (call('{"at": 1}'), call('{"at": 2}')),
        (call('{"at": 1}'), call('{"at": "1"}')),
        (call("{}"), call("{}", name="listen")),
        (call("not  JSON"), call("not JSON")),
        (Message("user", (Reasoning("hm"), Text("a"))), Message.user("a")),
        (Message("user", (ITEM, Text("a"))), Message.user("a")),
        (Message.user("a", Image(url="https://example.org/a.png")), Message.user("a")),
        (Message.user(File(data="YQ==", name="a.txt")), Message.user(File(data="Yg==", name="a.txt"))),
    ],
    ids=[
        "white space of the user",
        "the user's last line",
        "white space of a result",
        "a result that is an error",
        "words",
        "roles",
        "pins",
        "values",
        "kinds of values",
        "names of tools",
        "arguments that are no JSON",
        "reasoning that a user tells",
        "items that a user sends",
        "pictures",
        "files",
    ],
)
def test_what_is_said_by_anybody_is_a_difference(one: Message, other: Message) -> None:
    assert soft_digest(one) != soft_digest(other)


@pytest.mark.parametrize(
    "arguments", ["[" * 5_000, "1e999", "9" * 400, '{"a": "\ud800"}', '"\\ud800"', "", '{"a":1}' * 20_000]
)
def test_odd_arguments_have_a_digest_like_any_others(arguments: str) -> None:
    assert soft_digest(call(arguments)) == soft_digest(call(arguments)) != soft_digest(call("{}"))


def test_an_edited_message_has_a_soft_digest_of_its_own() -> None:
    message = Message.user("hello")
    before = soft_digest(message)
    assert soft_digest(message.edited(parts=(Text("bye"),))) == soft_digest(Message.user("bye")) != before


def test_a_chain_goes_by_what_callers_keep() -> None:
    said: tuple[Part, ...] = (Reasoning("hm"), Text("a  b"))
    one = chain_of([Message.user("q"), Message("assistant", said), Message.user("more")])
    assert one == chain_of([Message.user("q"), Message.assistant("a b"), Message.user("more")])
    assert one[:1] == chain_of([Message.user("q"), Message.assistant("other"), Message.user("more")])[:1]
    assert one[1:] != chain_of([Message.user("q"), Message.assistant("other"), Message.user("more")])[1:]


def test_a_date_above_a_conversation_does_not_make_another_of_it() -> None:
    one = head_digest((Message.system("It is 2026-01-09,\n 10:05."),), "be brief")
    assert one == head_digest((Message.system("It is 2026-01-11, 9:00. "),), "be  brief")
    assert one != head_digest((Message.system("It is 2026-01-09, 10:05."),), "be long")
    assert one != head_digest((Message.system("It was 2026-01-09, 10:05."),), "be brief")
    assert head_digest((), "a") != head_digest((), None)


def test_a_subject_is_exactly_these_messages_in_this_order() -> None:
    a, b = Message.assistant("a"), Message.assistant("b")
    assert subject_digest((a, b)) == subject_digest(tuple(decoded_again([a, b])))
    others = [(a,), (b, a), (a, b, b), (Message.assistant("a "), b)]
    assert subject_digest((a, b)) not in [subject_digest(each) for each in others]


@PROPERTY
@given(histories())
def test_links_made_in_one_loop_are_those_of_each_message(messages: list[Message]) -> None:
    hashed = digested = b""
    for message, alone, kept in zip(
        messages, next_links(b"", messages, b""), next_links(b"", messages, b"secret"), strict=True
    ):
        hashed = hash((hashed, soft_hash(message))).to_bytes(8, "little", signed=True)
        digested = hashlib.blake2b(digested + soft_digest(message), digest_size=16, key=b"secret").digest()
        assert (alone, kept) == (hashed, digested)
        assert next_link(kept, message, b"") == next_links(kept, [message], b"")[0]
