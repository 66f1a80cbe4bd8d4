"""Sizes come from the wire text by one counter; what a server would refuse is found on the wire."""

from __future__ import annotations

import sys

import pytest

from chatstack import ChatOptions, ChatRequest, Message, Text, ToolCall, ToolDeclaration, ToolResult
from chatstack.providers.openai.chat_wire import messages_from_wire
from chatstack.tokens.counter import CharCounter
from chatstack.workbench.replay.measures.measuring import Gauge, WireCounter, WireOrder, WireShape
from tests.workbench.replay.conversations import assistant, result, user

CHARACTERS = WireCounter(CharCounter(1), "characters")


def fault(*messages: dict[str, object], needs_user: bool = True) -> str:
    request = ChatRequest(messages_from_wire(messages))
    return Gauge(CHARACTERS).measure(request, needs_user=needs_user).fault


class Counted(CharCounter):
    """Counts characters, and how often it is asked for each text."""

    def __init__(self) -> None:
        super().__init__(1)
        self.asked: list[str] = []

    def count_text(self, text: str) -> int:
        self.asked.append(text)
        return super().count_text(text)


def test_a_message_is_its_text_and_four_tokens_around_it() -> None:
    assert CHARACTERS.count_message(Message.user("hello")) == 5 + 4


def test_a_call_is_its_name_and_arguments_and_a_result_its_text() -> None:
    assert CHARACTERS.count_message(Message.assistant("ok", ToolCall("id", "look", '{"at":1}'))) == 2 + 4 + 8 + 4
    assert CHARACTERS.count_message(Message.tool("id", "seen", name="look")) == 4 + 4


def test_two_results_in_one_message_are_two_messages_on_the_wire() -> None:
    message = Message("tool", (ToolResult("a", "look", "12"), ToolResult("b", "look", "345")))

    assert CHARACTERS.count_message(message) == (2 + 4) + (3 + 4)


def test_a_picture_counts_the_same_however_many_bytes_it_has() -> None:
    sizes = {
        CHARACTERS.count_wire(
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}]}
        )
        for data in ("AAAA", "A" * 100_000)
    }

    assert sizes == {1_004}


def test_a_function_call_of_the_old_kind_is_counted() -> None:
    message = {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}}

    assert CHARACTERS.count_wire(message) == 4 + 2 + 4


def test_tools_are_counted_as_compact_json_and_instructions_as_a_message() -> None:
    declared = ToolDeclaration("look", "Looks.", '{"type":"object"}')
    alone = CHARACTERS.count_options(ChatOptions(tools=(declared,)))
    text = '[{"type":"function","function":{"name":"look","description":"Looks.","parameters":{"type":"object"}}}]'

    assert alone == len(text)
    assert CHARACTERS.count_options(ChatOptions(tools=(declared,), instructions="brief")) == alone + 5 + 4
    assert CHARACTERS.count_options(ChatOptions()) == 0


def test_a_request_is_the_sum_of_its_messages_and_tools_and_each_is_counted_once() -> None:
    counted = Counted()
    gauge = Gauge(WireCounter(counted, "counted"))
    options = ChatOptions(tools=(ToolDeclaration("look"),))
    messages = (Message.user("one"), Message.assistant("two"), Message.user("three"))
    tools = gauge.counter.count_options(options)
    counted.asked.clear()

    sizes = [gauge.measure(ChatRequest(messages[:count], options), needs_user=True).tokens for count in (1, 2, 3, 2, 3)]

    assert sizes == [tools + size for size in (7, 14, 23, 14, 23)]
    assert sorted(counted.asked)[1:] == ["one", "three", "two"]


def test_the_counter_is_o200k_where_the_tokenizer_is_installed() -> None:
    best = WireCounter.best()

    assert best.name == "o200k"
    assert best.count_text("the quick brown fox") == 4
    assert best.count_text("<|endoftext|>") > 1


def test_the_counter_is_characters_by_four_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bpe_openai", None)

    best = WireCounter.best()

    assert best.name == "characters/4"
    assert best.count_text("x" * 400) == 100


def test_a_conversation_as_it_should_be_has_no_fault() -> None:
    assert fault(user("q"), assistant(None, "a", "b"), result("b"), result("a"), assistant("done"), user("more")) == ""


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([user("q"), result("a")], "result without a call"),
        ([user("q"), assistant(None, "a"), result("a"), result("a")], "result without a call"),
        ([user("q"), assistant(None, "a"), result("b")], "result without a call"),
        ([user("q"), assistant(None, "a"), result("a"), user("more"), result("a")], "result without a call"),
        ([user("q"), assistant(None, "a", "b"), result("a"), user("more")], "call without a result"),
        ([user("q"), assistant(None, "a"), assistant("so")], "call without a result"),
        ([user("q"), assistant(None, "a")], "call without a result"),
        ([assistant("hi")], "no user message"),
    ],
)
def test_what_a_server_would_refuse_is_a_fault(messages: list[dict[str, object]], told: str) -> None:
    assert fault(*messages) == told


def test_no_message_at_all_is_a_fault() -> None:
    assert WireOrder([]).fault(needs_user=False) == "empty request"


def test_a_call_id_may_be_used_again_in_a_later_round() -> None:
    assert fault(user("q"), assistant(None, "a"), result("a"), assistant(None, "a"), result("a")) == ""


def test_one_id_for_two_calls_needs_two_results() -> None:
    shapes = [WireShape("user", 1), WireShape("assistant", 1, ("a", "a")), WireShape("tool", 1, answers="a")]

    assert WireOrder(shapes).fault(needs_user=True) == "call without a result"
    assert WireOrder([*shapes, shapes[-1]]).fault(needs_user=True) == ""


def test_a_user_message_is_only_missed_where_the_conversation_has_one() -> None:
    assert fault(assistant("hi"), needs_user=False) == ""


def test_an_edited_message_is_measured_by_what_it_says_now() -> None:
    gauge = Gauge(CHARACTERS)
    long = Message.user("x" * 100)
    short = long.edited(parts=(Text("x"),))

    assert gauge.measure(ChatRequest((long,)), needs_user=True).tokens == 104
    assert gauge.measure(ChatRequest((short,)), needs_user=True).tokens == 5


def test_messages_that_say_the_same_have_the_same_digest_and_others_have_not() -> None:
    def digests(message: Message) -> list[bytes]:
        shapes = Gauge(CHARACTERS).measure(ChatRequest((message,)), needs_user=False).shapes
        return [shape.digest for shape in shapes]

    said = Message.assistant("so", ToolCall("a", "look", "{}"))
    others = (Message.assistant("so"), Message.assistant("so", ToolCall("b", "look", "{}")), Message.user("so"))

    assert digests(said) == digests(Message("assistant", said.parts, pinned=True))
    assert all(digests(said) != digests(other) for other in others)


def test_half_a_character_that_a_model_said_is_measured() -> None:
    said = Message("assistant", (Text("\ud800"),))

    assert Gauge(CHARACTERS).measure(ChatRequest((said,)), needs_user=False).tokens == 3 + 4


def test_instructions_are_the_first_wire_message_and_no_message_for_the_server() -> None:
    measured = Gauge(CHARACTERS).measure(ChatRequest((), ChatOptions(instructions="brief")), needs_user=False)

    assert [(shape.role, shape.tokens) for shape in measured.shapes] == [("system", 5 + 4)]
    assert measured.fault == "empty request"
