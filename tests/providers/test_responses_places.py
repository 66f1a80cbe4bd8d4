"""The place of each message's items in a Responses input."""

from __future__ import annotations

from chatstack.providers.openai.responses_wire import messages_from_wire, messages_in_place

ITEMS: list[dict[str, object]] = [
    {"role": "user", "content": "go"},
    {"type": "reasoning", "id": "r", "summary": []},
    {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
    {"type": "function_call", "call_id": "b", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "a", "output": "one"},
    {"type": "function_call_output", "call_id": "b", "output": "two"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
]


def test_each_message_is_told_with_the_place_of_its_items() -> None:
    found = list(messages_in_place(ITEMS))
    assert [(place.start, place.stop) for _, place in found] == [(0, 1), (1, 4), (4, 5), (5, 6), (6, 7)]
    assert tuple(message for message, _ in found) == messages_from_wire(ITEMS)
    for message, place in found:
        assert messages_from_wire(ITEMS[place])[0].role == message.role
    assert found[2][0].results[0].name == "look"


def test_no_items_are_no_messages() -> None:
    assert list(messages_in_place([])) == []
