"""Conversion loses nothing, whichever side it starts from."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tenxgraph.core.state import Message as GraphMessage

from chatstack import Message
from chatstack.testing.conversations import HISTORIES
from chatstack.testing.generated import MESSAGES, PROPERTY
from chatstack_tenxgraph import from_tenxgraph, to_tenxgraph
from tests.generated import THEIRS


def stored(messages: list[GraphMessage]) -> list[GraphMessage]:
    """As a checkpointer writes and reads them."""
    return [GraphMessage.model_validate(json.loads(json.dumps(each.model_dump(mode="json")))) for each in messages]


@PROPERTY
@given(st.lists(MESSAGES, max_size=4))
def test_every_message_of_ours_comes_back_as_it_was_also_from_a_checkpoint(messages: list[Message]) -> None:
    theirs = to_tenxgraph(messages)
    assert from_tenxgraph(theirs, keep_rest=False) == messages
    assert from_tenxgraph(stored(theirs), keep_rest=False) == messages


@PROPERTY
@given(st.lists(MESSAGES, max_size=4))
def test_what_was_ours_first_keeps_its_id_through_any_number_of_conversions(messages: list[Message]) -> None:
    theirs = to_tenxgraph(messages)
    assert to_tenxgraph(from_tenxgraph(theirs)) == theirs
    assert from_tenxgraph(to_tenxgraph(from_tenxgraph(theirs)), keep_rest=False) == messages


@PROPERTY
@given(st.lists(THEIRS, max_size=4))
def test_every_message_of_10xgraphs_comes_back_as_it_was(messages: list[GraphMessage]) -> None:
    before = [message.model_dump() for message in messages]
    back = to_tenxgraph(from_tenxgraph(messages))
    assert [message.model_dump() for message in back] == before
    assert [message.model_dump() for message in messages] == before, "the caller's messages were changed"


@PROPERTY
@given(st.lists(THEIRS, max_size=3))
def test_what_is_sent_is_the_same_with_and_without_what_rides_along(messages: list[GraphMessage]) -> None:
    kept, sent = from_tenxgraph(messages), from_tenxgraph(messages, keep_rest=False)
    assert [(each.role, each.parts) for each in kept] == [(each.role, each.parts) for each in sent]
    assert not any(each.extra_json for each in sent)


@pytest.mark.parametrize("name", HISTORIES)
def test_real_histories_survive_both_ways(name: str) -> None:
    history = list(HISTORIES[name])
    theirs = stored(to_tenxgraph(history))
    assert from_tenxgraph(theirs, keep_rest=False) == history
    assert to_tenxgraph(from_tenxgraph(theirs)) == theirs
