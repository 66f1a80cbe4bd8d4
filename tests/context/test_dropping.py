"""Dropping: which units go first, and what of a call may go before it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from chatstack import Message, Text, ToolCall, ToolResult
from chatstack.context.edits.units import Unit, units_of
from chatstack.context.strategies.dropping import least_telling_first, newest, without_words
from chatstack.context.strategies.mentions import words_said
from tests.context.strictness import context_of

PLAIN = [Message.user("first things"), Message.assistant("many other words at the beginning"), Message.user("yes")]


def asked(number: int, **arguments: object) -> list[Message]:
    call = ToolCall(f"c{number}", "look", json.dumps(arguments))
    return [Message("assistant", (call,)), Message("tool", (ToolResult(f"c{number}", "look", "some result"),))]


def words_at(messages: Sequence[Message]) -> Callable[[int], frozenset[str]]:
    context = context_of(messages)
    return lambda at: frozenset[str]().union(*words_said(context, messages[at]))


def order(messages: Sequence[Message], candidates: slice = slice(None)) -> list[int]:
    """The first positions of the units, in the order in which they go."""
    units = units_of(messages)[candidates]
    others = {*range(len(messages))}.difference(*(unit.positions for unit in units))
    found = least_telling_first(units, words_at(messages), others, lambda unit: 10.0 * len(unit.positions))
    return [unit.positions[0] for unit in found]


def test_a_call_goes_first_whose_words_newer_calls_hold() -> None:
    messages = [*asked(0, path="src/one.py"), *asked(1, path="src/two.py"), *asked(2, path="src/one.py")]
    assert order(messages) == [0, 2, 4]
    messages = [*asked(0, path="src/two.py"), *asked(1, path="src/one.py"), *asked(2, path="src/one.py")]
    assert order(messages) == [2, 0, 4]


def test_words_of_messages_that_stay_tell_nothing() -> None:
    messages = [Message.user("look at src/two.py"), *asked(1, path="src/one.py"), *asked(2, path="src/two.py")]
    assert order(messages, slice(1, None)) == [3, 1]


def test_words_in_results_do_not_count() -> None:
    messages = [*asked(0, path="src/one.py"), *asked(1), *asked(2, path="some result")]
    assert order(messages) == [2, 0, 4]


def test_a_larger_unit_has_to_tell_more() -> None:
    messages = [*asked(0, path="src/one.py"), *asked(1, path="src/two.py")]
    units = units_of(messages)
    found = least_telling_first(units, words_at(messages), (), lambda unit: 50.0 if unit is units[1] else 10.0)
    assert found == [units[1], units[0]]


def test_plain_messages_go_oldest_first() -> None:
    assert order(PLAIN) == [0, 1, 2]
    assert order([*asked(0), *PLAIN]) == [0, 2, 3, 4]


def test_the_newest_are_those_that_fit_but_one_at_least() -> None:
    units = [Unit((at,)) for at in range(5)]
    assert newest(units, 2.0, lambda _: 1.0) == {*units[3:]}
    assert newest(units, 0.0, lambda _: 1.0) == {units[4]}
    assert newest([], 1.0, lambda _: 1.0) == set()


@pytest.mark.parametrize(
    "message",
    [
        Message.assistant("no call"),
        Message("assistant", (Text("pinned"), ToolCall("c", "look", "{}")), pinned=True),
        Message("assistant", (Text("signed", extra_json='{"a": 1}'), ToolCall("c", "look", "{}"))),
        Message.user("words"),
        Message.tool("c", "words"),
    ],
)
def test_nobody_else_loses_words(message: Message) -> None:
    assert without_words(message) == message.parts


def test_beside_calls_words_may_go() -> None:
    call = ToolCall("c", "look", "{}")
    assert without_words(Message("assistant", (Text("I look"), call, Text("and see")))) == (call,)
