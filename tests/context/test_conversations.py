"""Conversations: how long a layer waits after it has looked in vain, and what earlier edits are carried out by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from chatstack import Message, Text
from chatstack.context.conversations import Carried, Wait
from chatstack.context.records import Insertion, Made, Record, edit_of
from tests.histories import decoded_again


@pytest.mark.parametrize(
    ("latest_user", "sizes", "goes_on"),
    [
        (3, (320, 64), True),
        (3, (330, 66), True),
        (3, (331, 64), False),
        (3, (320, 67), False),
        (3, (319, 64), False),
        (5, (320, 64), False),
    ],
    ids=["the same", "hardly grown", "grown", "another size has grown", "shrunk", "the user has spoken"],
)
def test_a_layer_waits_until_the_user_speaks_or_the_context_is_another(
    latest_user: int, sizes: tuple[int, ...], goes_on: bool
) -> None:
    assert Wait(3, (320, 64)).goes_on(latest_user, sizes) is goes_on


SUMMARY = Message("assistant", (Text("summary"),), mark="summary")
HEAD = (Message.system("be brief"),)


def edited_once(messages: Sequence[Message]) -> Carried:
    """The third and fourth message left out, a summary before the fifth, which is another, and one at the end."""
    now = messages[4].edited(parts=(messages[4].parts[0],) * 2)
    insert = (Insertion(4, SUMMARY, None), Insertion(6, SUMMARY, None))
    return Carried(Made(Record((2, 3), (edit_of(4, messages[4], now),), insert), {4: now}), 0)


def test_edits_of_a_history_that_grows_are_carried_out_on_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = tuple(Message.user(f"{at}") for at in range(12))
    carried, worked_on = edited_once(talk), list[int]()
    real = Record.carried_out

    def noted(self: Record, came: tuple[Message, ...], head: int, edited: Mapping[int, Message]) -> tuple[Message, ...]:
        worked_on.append(len(came))
        return real(self, came, head, edited)

    monkeypatch.setattr(Record, "carried_out", noted)
    for length in (6, 7, 7, 9, 12):
        after = carried.after((*HEAD, *talk[:length]), 1)
        assert after == (*HEAD, *real(carried.record, talk[:length], 0, carried.edited))
        assert after[-1] is (talk[length - 1] if length > 6 else SUMMARY)
    assert worked_on == [6]


def test_edits_are_carried_out_anew_on_fresh_objects_and_on_what_is_shorter() -> None:
    """Else those of an earlier call would be sent, and held."""
    talk = tuple(Message.user(f"{at}") for at in range(12))
    carried = edited_once(talk)
    carried.after(talk, 0)
    for came in (tuple(decoded_again(talk)), talk[:8], talk[:6], (*talk[:7], *decoded_again(talk[7:]))):
        after = carried.after(came, 0)
        untouched = (*came[:2], *came[5:])
        assert [id(each) for each in after if each is not SUMMARY and each is not carried.edited[4]] == [
            id(each) for each in untouched
        ]
