from __future__ import annotations

import json
import re

import pytest

from chatstack import ChatRequest, Message, Reasoning, Text, ToolCall
from chatstack.providers.assembly import MessageAssembly
from chatstack.values.parts import ProviderItem
from chatstack.values.responses import CallDelta


def test_text_in_pieces_is_one_text() -> None:
    assembly = MessageAssembly("openai-chat")
    for piece in ("a ", "day ", "out"):
        assembly.add_text(piece)
    assert assembly.finish() == Message.assistant("a day out")


def test_text_behind_a_call_begins_a_new_text() -> None:
    assembly = MessageAssembly("openai-chat")
    assembly.add_text("first")
    assembly.add_call(0, id="c1", name="look")
    assembly.add_text("second")
    assert assembly.finish().parts == (Text("first"), ToolCall("c1", "look"), Text("second"))


def test_text_of_two_blocks_that_come_interleaved_stays_apart() -> None:
    assembly = MessageAssembly("openai-chat")
    for block, piece in ((0, "a"), (1, "x"), (0, "b"), (1, "y")):
        assembly.add_text(piece, block=block)
    assert assembly.finish().parts == (Text("ab"), Text("xy"))


def test_text_without_a_block_does_not_continue_one_with_a_block() -> None:
    assembly = MessageAssembly("openai-chat")
    assembly.add_text("a", block=0)
    assembly.add_text("b")
    assert assembly.finish().parts == (Text("a"), Text("b"))


def test_blocks_are_in_the_order_in_which_they_began() -> None:
    assembly = MessageAssembly("openai-chat")
    assembly.add_reasoning("hm", block="thinking")
    assembly.add_text("yes", block="answer")
    assembly.add_reasoning("...", block="thinking")
    assert assembly.finish().parts == (Reasoning("hm..."), Text("yes"))


def test_arguments_in_fragments_are_the_exact_text() -> None:
    assembly = MessageAssembly("openai-chat")
    text = '{"city":  "Dubaï", "n": 1.0}\n'
    assembly.add_call(0, id="c1", name="look")
    for character in text:
        assembly.add_call(0, arguments=character)
    assert assembly.finish().calls == (ToolCall("c1", "look", text),)


def test_no_arguments_are_an_empty_object() -> None:
    assembly = MessageAssembly("openai-chat")
    assembly.add_call(0, id="c1", name="now", arguments="")
    assert assembly.finish().calls[0].arguments == "{}"


def test_parallel_calls_that_come_interleaved_stay_apart() -> None:
    assembly = MessageAssembly("openai-chat")
    deltas = [
        assembly.add_call(0, id="a", name="one"),
        assembly.add_call(1, id="b", name="two"),
        assembly.add_call(0, arguments="[1]"),
        assembly.add_call(1, arguments="[2]"),
    ]
    assert assembly.finish().calls == (ToolCall("a", "one", "[1]"), ToolCall("b", "two", "[2]"))
    assert [delta.index for delta in deltas] == [0, 1, 0, 1]
    assert deltas[3] == CallDelta(1, arguments="[2]")


def test_two_ids_at_one_index_are_two_calls() -> None:
    assembly = MessageAssembly("openai-chat")
    assembly.add_call(0, id="a", name="one", arguments="[1]")
    assembly.add_call(0, id="b", name="one", arguments="[2]")
    assembly.add_call(0, id="b", arguments="")
    assert assembly.finish().calls == (ToolCall("a", "one", "[1]"), ToolCall("b", "one", "[2]"))


def test_a_name_may_come_in_pieces_or_again_and_again() -> None:
    assembly = MessageAssembly("openai-chat")
    for name in ("get_", "weather"):
        assembly.add_call(0, id="a", name=name)
    for _ in range(3):
        assembly.add_call(1, id="b", name="get_time")
    assert [call.name for call in assembly.finish().calls] == ["get_weather", "get_time"]


def test_calls_without_ids_get_some_to_be_paired_by() -> None:
    assembly = MessageAssembly("openai-chat")
    assembly.add_call(0, name="one")
    assembly.add_call(1, name="two")
    ids = [call.id for call in assembly.finish().calls]
    assert all(ids)
    assert len(set(ids)) == 2


def turns_without_ids(turns: int) -> list[str]:
    """The ids of a conversation whose turns are all alike, two calls in each, from a server that sends no ids."""
    messages: list[Message] = []
    ids: list[str] = []
    for _ in range(turns):
        messages.append(Message.user("again"))
        assembly = MessageAssembly("openai-chat", request=ChatRequest(tuple(messages)))
        assembly.add_call(0, name="look", arguments="{}")
        assembly.add_call(1, name="look", arguments="{}")
        answer = assembly.finish()
        ids += [call.id for call in answer.calls]
        messages += [answer, *(Message.tool(call.id, "the same") for call in answer.calls), Message.assistant("so")]
    return ids


def test_calls_without_ids_get_some_that_no_other_call_of_the_conversation_has() -> None:
    ids = turns_without_ids(50)
    assert len(set(ids)) == 100
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", each) for each in ids)  # what all providers take back


def test_the_same_request_gives_the_same_ids() -> None:
    assert turns_without_ids(3) == turns_without_ids(3)


def test_empty_text_and_reasoning_are_left_out() -> None:
    assembly = MessageAssembly("openai-chat")
    assembly.add_text("", block=0)
    assembly.add_reasoning("", block=1)
    assert assembly.finish() == Message.assistant()


def test_a_whole_part_takes_the_place_of_its_block() -> None:
    assembly = MessageAssembly("openai-chat")
    assembly.add_reasoning("because", block=0)
    assembly.add_text("so", block=1)
    assembly.add_part(Reasoning("because", '{"signature":"s"}', "anthropic"), block=0)
    assert assembly.finish().parts == (Reasoning("because", '{"signature":"s"}', "anthropic"), Text("so"))


def test_extra_fields_of_calls_and_message_are_kept_under_the_name_of_the_wire() -> None:
    assembly = MessageAssembly("openai-chat")
    assembly.add_text("so", block=0)
    assembly.add_call(0, id="a", name="one", extra={"x": 1})
    assembly.add_call(0, arguments="{}")
    assembly.add_part(ProviderItem("openai", "{}"))
    assembly.add_extra({"refusal": "n"})
    assembly.add_extra({"refusal": "no", "annotations": []})
    message = assembly.finish()
    assert message.parts == (
        Text("so"),
        ToolCall("a", "one", "{}", '{"openai-chat":{"x":1}}'),
        ProviderItem("openai", "{}"),
    )
    assert json.loads(message.extra_json) == {"openai-chat": {"refusal": "no", "annotations": []}}


def test_a_block_cannot_change_its_kind() -> None:
    assembly = MessageAssembly("openai-chat")
    assembly.add_text("so", block=0)
    with pytest.raises(ValueError, match="block 0"):
        assembly.add_reasoning("hm", block=0)
