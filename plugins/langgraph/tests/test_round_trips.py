"""Conversion loses nothing, whichever side it starts from."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import BaseMessage, messages_from_dict, messages_to_dict
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from chatstack import Message
from chatstack.testing.conversations import HISTORIES
from chatstack.testing.generated import PROPERTY
from chatstack_langgraph import from_langchain, to_langchain
from tests.generated import OURS, THEIRS


@PROPERTY
@given(st.lists(OURS, max_size=4))
def test_every_message_of_ours_comes_back_as_it_was(messages: list[Message]) -> None:
    assert from_langchain(to_langchain(messages)) == messages


@PROPERTY
@given(st.lists(OURS, max_size=4))
def test_it_does_also_from_a_checkpoint_where_messages_got_ids(messages: list[Message]) -> None:
    serializer = JsonPlusSerializer()
    stored: list[BaseMessage] = []
    for position, message in enumerate(to_langchain(messages)):
        message.id = f"m-{position}"
        stored.append(serializer.loads_typed(serializer.dumps_typed(message)))
    assert from_langchain(stored, keep_rest=False) == messages
    assert to_langchain(from_langchain(stored)) == stored


@PROPERTY
@given(st.lists(THEIRS, max_size=4))
def test_every_message_of_langchains_comes_back_as_it_was(messages: list[BaseMessage]) -> None:
    before = [message.model_dump() for message in messages]
    back = to_langchain(from_langchain(messages))
    assert [type(message) for message in back] == [type(message) for message in messages]
    assert [message.model_dump() for message in back] == before
    assert [message.model_dump() for message in messages] == before, "the caller's messages were changed"


@PROPERTY
@given(st.lists(THEIRS, max_size=3))
def test_what_is_sent_is_the_same_with_and_without_what_rides_along(messages: list[BaseMessage]) -> None:
    kept, sent = from_langchain(messages), from_langchain(messages, keep_rest=False)
    assert [(each.role, each.parts, each.pinned) for each in kept] == [(e.role, e.parts, e.pinned) for e in sent]
    assert not any("langchain" in each.extra_json for each in sent)


@pytest.mark.parametrize("name", HISTORIES)
def test_real_histories_survive_both_ways_and_langchains_own_serialisation(name: str) -> None:
    history = list(HISTORIES[name])
    theirs = to_langchain(history)
    stored = messages_from_dict(json.loads(json.dumps(messages_to_dict(theirs))))
    assert from_langchain(stored) == history
    assert to_langchain(from_langchain(stored)) == theirs
