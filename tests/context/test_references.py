"""References: which results one stands for, and what it says."""

from __future__ import annotations

from typing import Any

import pytest

from chatstack import CharCounter, Image, Message, Text, ToolCall, ToolResult
from chatstack.context.shapes.references import References
from chatstack.context.shapes.shaping import NOTHING_SHAPED
from chatstack.values.messages import Annotation, relink, shaped, was_edited
from tests.histories import decoded_again

LONG = "grey 0 " * 60
size_of = CharCounter().count_message


def is_reference(result: ToolResult) -> bool:
    return result.text.startswith("[Same result, word for word, as that of ")


MARKED = '{"anthropic": {"cache_control": {"type": "ephemeral"}}}'
CALL = Message.assistant(ToolCall("c", "look"))
FIRST = Message("tool", (ToolResult("c", "look", LONG),))


def result_of(*parts: Any, **fields: Any) -> Message:
    output = parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts
    return Message("tool", (ToolResult("c", "look", output, **fields),))


STAYS = {
    "another text": result_of(LONG + "."),
    "an error with the same text": result_of(LONG, is_error=True),
    "a marked result": result_of(LONG, extra_json=MARKED),
    "a marked text": result_of(Text(LONG, MARKED)),
    "a text beside a picture": result_of(Text(LONG), Image(url="https://example.org/a.png")),
    "a pinned message": Message("tool", FIRST.parts, pinned=True),
    "a repair": Message("tool", FIRST.parts, mark="repair"),
    "a result beside words of the user": Message("user", (*FIRST.parts, Text("and now?"))),
    "a result of a tool of the server": Message("assistant", FIRST.parts),
    "what the user says": Message.user(LONG),
}


def referred(message: Message, **options: Any) -> Message:
    rule = References(frozenset(options.get("never", ())), options.get("recall", ""), size_of)
    messages = [CALL, FIRST, CALL, message]
    found = rule.of_new(messages, range(4), NOTHING_SHAPED).messages
    assert set(found) <= {3}
    return found.get(3, message)


@pytest.mark.parametrize("message", STAYS.values(), ids=STAYS)
def test_this_stays_as_it_is(message: Message) -> None:
    assert referred(message) is message
    assert is_reference(referred(result_of(LONG)).results[0])
    assert is_reference(referred(result_of(Text(LONG))).results[0])
    assert is_reference(referred(Message("user", FIRST.parts)).results[0])


def test_results_of_some_tools_stay() -> None:
    message = result_of(LONG)
    assert referred(message, never=["look"]) is message
    assert referred(message, recall="look") is message
    unnamed = Message.tool("c", LONG)
    assert referred(unnamed, never=["look"]) is unnamed


def test_what_it_says_is_short_however_long_the_call_was_and_has_no_half_characters() -> None:
    call = ToolCall("c", "look" * 100, '{"text": "\ud800' + "x" * 5_000 + '"}')
    messages = [Message("assistant", (call,)), Message("tool", (ToolResult("c", "", LONG),)), CALL, FIRST]
    text = References(frozenset(), "", size_of).of_new(messages, range(4), NOTHING_SHAPED).messages[3].results[0].text
    assert len(text) < 260
    assert text.encode()


def asked(arguments: str, text: str, tool: str = "look") -> list[Message]:
    return [Message.assistant(ToolCall("c", tool, arguments)), Message.tool("c", text, name=tool)]


def references_in(*rounds: list[Message]) -> list[int]:
    """Which of these rounds have a reference for a result."""
    messages = [message for each in rounds for message in each]
    rule = References(frozenset(), "", size_of)
    return [at // 2 for at in rule.of_new(messages, range(len(messages)), NOTHING_SHAPED).messages]


def test_a_call_that_has_given_something_else_since_is_not_referred_to() -> None:
    """Or the model would take the wrong one of two results for what it has now: read, changed, read, changed back."""
    one, other, short = asked("{}", LONG), asked("{}", LONG + "!"), asked("{}", "short")
    assert references_in(one, other, one) == []
    assert references_in(one, one, one, short, one) == [1, 2]
    assert references_in(one, other, other, one) == [2]
    assert references_in(one, asked('{"a": 1}', LONG + "!"), one) == [2]


def test_two_calls_that_a_reference_would_quote_alike_are_told_apart_by_having_none() -> None:
    path = '{"path": "' + "deep/" * 30
    one, other = asked(path + 'a.py"}', LONG), asked(path + 'b.py"}', LONG + "!")
    assert references_in(one, other, one) == []
    assert references_in(one, one) == [1]


def test_a_result_without_a_call_is_not_referred_to() -> None:
    message = Message.tool("d", LONG)
    assert references_in([CALL, message], [CALL, message]) == []


def test_one_message_used_twice_is_a_duplicate_of_itself() -> None:
    assert references_in([CALL, FIRST], [CALL, FIRST]) == [1]


def test_where_a_reference_is_not_smaller_the_result_stays() -> None:
    rule = References(frozenset(), "", lambda message: 7)
    assert not rule.of_new([CALL, FIRST, CALL, FIRST], range(4), NOTHING_SHAPED).messages


def test_a_reference_is_no_edit_of_a_conversation_whatever_objects_it_comes_in() -> None:
    messages = [CALL, FIRST, CALL, FIRST]
    made = References(frozenset(), "", size_of).of_new(messages, range(4), NOTHING_SHAPED).messages
    assert not was_edited(made[3])
    for again in (
        decoded_again(messages),
        [shaped(each, each.parts, Annotation("x")) for each in decoded_again(messages)],
    ):
        relink(dict(made), again, 0)
        assert made[3].original is again[3].original
        assert not was_edited(made[3])
