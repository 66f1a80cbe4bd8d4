"""Whether the latest user message is in a request: as it was recorded, or in other words around it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from chatstack import ChatOptions, ChatRequest, Image, Message
from chatstack.values.parts import Text
from chatstack.workbench.replay.reading.forms import Conversation
from chatstack.workbench.replay.talks import Talk

RULE, FIRST, SO = Message.system("be brief"), Message.user("yes"), Message.assistant("so")
PICTURE, AGAIN = Message.user(Image(url="https://example.org/a.png")), Message.user("yes")
MESSAGES = (RULE, SO, FIRST, SO, PICTURE, SO, AGAIN, SO, SO)


def loses(position: int, sent: Sequence[Message]) -> bool:
    talk = Talk(Conversation(MESSAGES, ChatOptions()), called="one")
    return talk.loses_latest_user(position, ChatRequest(tuple(sent)))


def test_everything_holds_it() -> None:
    assert not any(loses(at, MESSAGES[:at]) for at in range(len(MESSAGES)))


@pytest.mark.parametrize(("position", "latest"), [(3, 2), (5, 4), (7, 6), (8, 6)])
def test_it_is_lost_where_only_others_are_sent(position: int, latest: int) -> None:
    before = MESSAGES[:position]

    assert loses(position, [*before[:latest], *before[latest + 1 :]])
    assert not loses(position, [before[latest]])


def test_before_the_first_user_message_there_is_none_to_lose() -> None:
    assert not loses(1, [])


def test_an_earlier_message_that_reads_the_same_does_not_stand_for_it() -> None:
    assert FIRST == AGAIN
    assert loses(8, [FIRST, SO])


def test_a_message_of_somebody_elses_may_say_it_and_more() -> None:
    assert not loses(8, [Message.user("It is late. yes")])
    assert not loses(5, [Message("user", PICTURE.parts)])
    assert loses(8, [Message.assistant("yes")])
    assert loses(8, [Message.user("no")])
    assert loses(5, [Message.user("anything")])


def test_one_that_was_edited_counts_if_it_still_says_it() -> None:
    assert not loses(8, [AGAIN.edited(parts=(Text("yes, and hurry"),))])
    assert loses(8, [AGAIN.edited(parts=(Text("[cleared]"),))])
    assert loses(8, [SO, FIRST.edited(parts=(Text("yes, and hurry"),))])
