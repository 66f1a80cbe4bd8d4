"""Counters: by characters, by the seed's table, and by a tokenizer."""

from __future__ import annotations

import json

import pytest

from chatstack import (
    CharCounter,
    ChatOptions,
    EstimatingCounter,
    File,
    Image,
    Message,
    OutputSchema,
    ProviderItem,
    Reasoning,
    TableCounter,
    Text,
    TokenCounter,
    TokenizerCounter,
    ToolCall,
    ToolDeclaration,
    ToolResult,
    WiringError,
)
from chatstack.values.parts import Part


class OneEach(TokenCounter):
    """A counter of one's own: what a user has to write, and no more."""

    def count_text(self, text: str) -> int:
        return 1 if text else 0


PNG = Image.from_bytes(b"\0" * 3_000_000, "image/png")


@pytest.mark.parametrize("bad", [0, -1, -0.5, float("nan")])
def test_characters_per_token_must_be_positive(bad: float) -> None:
    with pytest.raises(WiringError) as caught:
        CharCounter(bad)
    assert str(caught.value) == f"CharCounter: chars_per_token={bad!r} must be a number greater than 0"
    assert caught.value.parameter == "chars_per_token"


@pytest.mark.parametrize(
    ("text", "per_token", "tokens"),
    [("", 4, 0), ("abc", 4, 0), ("abcd", 4, 1), ("a" * 400, 4, 100), ("a" * 10, 2.5, 4), ("a" * 10, 0.5, 20)],
)
def test_characters_are_divided_by_characters_per_token(text: str, per_token: float, tokens: int) -> None:
    assert CharCounter(per_token).count_text(text) == tokens


def test_outside_ascii_bytes_are_counted() -> None:
    assert CharCounter().count_text("漢字" * 10) == 15
    assert CharCounter().count_text("é" * 4) == 2


def test_a_lone_surrogate_is_counted_not_refused() -> None:
    assert CharCounter().count_text("\ud83d" * 4) == 3


def test_a_message_has_a_frame_of_four() -> None:
    assert CharCounter().count_message(Message.user()) == 4
    assert CharCounter().count_message(Message.user("a" * 40)) == 14


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        (Text("a" * 40), 10),
        (ToolCall("c" * 400, "name" * 2, "x" * 40), 2 + 10 + 5),
        (ToolResult("c" * 400, "name" * 2, "x" * 40), 2 + 10 + 5),
        (ToolResult("c", "name", (Text("x" * 40), PNG)), 1 + 10 + 1_000 + 5),
        (Reasoning("a" * 40, item_json="x" * 4_000), 1_000),  # the item is what goes back
        (Reasoning("a" * 40), 10),
        (Reasoning("", item_json="x" * 4_000), 1_000),
        (ProviderItem("p", "x" * 40), 10),
        (File(text="x" * 40), 10),
    ],
)
def test_every_kind_of_part_is_counted(part: Part, tokens: int) -> None:
    assert CharCounter().count_part(part) == tokens


def test_a_picture_has_a_price_of_its_own_whatever_its_bytes() -> None:
    assert len(PNG.data) == 4_000_000
    assert CharCounter().count_part(PNG) == 1_000
    assert CharCounter().count_part(Image(url="https://example.test/a.png")) == 1_000


DATA = "A" * 1_000_000
INLINE = {
    "screenshot": {"type": "computer_call_output", "output": {"image_url": f"data:image/png;base64,{DATA}"}},
    "generated picture": {"type": "image_generation_call", "result": DATA},
    "sound": {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}},
}


@pytest.mark.parametrize("counter", [CharCounter(), CharCounter(1), EstimatingCounter("openai")], ids=repr)
@pytest.mark.parametrize("item", INLINE.values(), ids=INLINE)
def test_a_picture_in_an_item_has_a_bounded_price_whatever_its_bytes(
    item: dict[str, object], counter: TokenCounter
) -> None:
    written = json.dumps(item)
    assert 1_000 < counter.count_part(ProviderItem("openai", written)) < 2_200
    assert 1_000 < counter.count_part(ToolResult("c", "f", (ProviderItem("openai", written),))) < 2_200
    assert 1_000 < counter.count_message(Message("assistant", (), extra_json=written)) < 2_200
    assert counter.count_options(ChatOptions(tools=(ProviderItem("openai", written),))) < 2_200


def test_a_file_in_its_address_counts_like_one_beside_it() -> None:
    counter = CharCounter()
    for kind in ("text/plain", "application/pdf"):
        beside = File(data=DATA, media_type=kind)
        assert counter.count_part(File(url=f"data:{kind};base64,{DATA}")) == counter.count_part(beside) > 10_000
    assert counter.count_part(File(url=f"https://example.test/{DATA}")) == 2_000


def test_a_text_file_counts_its_bytes_and_a_pdf_its_pages() -> None:
    counter = CharCounter()
    assert counter.count_part(File.from_bytes(b"x" * 3_000, "text/plain")) == 750
    assert counter.count_part(File.from_bytes(b"x" * 3_000, "application/pdf")) == 2_000
    assert counter.count_part(File.from_bytes(b"x" * 300_000, "application/pdf")) == 8_000


def test_instructions_tools_and_answer_schema_are_counted() -> None:
    counter = CharCounter()
    assert counter.count_options(ChatOptions()) == 0
    assert counter.count_options(ChatOptions(instructions="a" * 40)) == 14
    declared = ToolDeclaration("f" * 4, "d" * 20, "{" * 16)
    assert counter.count_options(ChatOptions(tools=(declared, ProviderItem("openai", "x" * 40)))) == 14 + 10
    assert counter.count_options(ChatOptions(output_schema=OutputSchema("answer", "s" * 40))) == 10


def test_a_counter_of_your_own_needs_count_text_alone() -> None:
    call = Message.assistant("hello", ToolCall("c", "f"))
    assert OneEach().count_message(call) == 4 + 1 + (1 + 1 + 5)
    assert OneEach().source == "estimated"


def test_a_counter_without_count_text_cannot_be_made() -> None:
    class Forgot(TokenCounter):
        pass

    with pytest.raises(TypeError, match="count_text"):
        Forgot()  # type: ignore[abstract]


# S11: the table of the seed


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        (Message.user("x" * 43), 10 + 4),
        (Message.user(""), 0 + 4),
        (Message.user(Image(url="u")), 300 + 4),
        (Message.user("x" * 8, PNG, PNG), 2 + 600 + 4),
        (Message.assistant(ToolCall("id", "n" * 7, "a" * 11)), 1 + 2 + 5 + 4),
        (Message.assistant(ToolCall("a", "f", "x" * 8), ToolCall("b", "f", "x" * 8)), 2 * (0 + 2 + 5 + 4)),
        (Message.assistant("x" * 8, ToolCall("a", "f", "x" * 8)), (2 + 4) + (0 + 2 + 5 + 4)),
        (Message.tool("id", "o" * 15, name="n" * 8), 2 + 3 + 5 + 4),
        (Message("tool", (ToolResult("a", "f", "x" * 8), ToolResult("b", "f", "x" * 8))), 2 * (0 + 2 + 5 + 4)),
    ],
)
def test_the_table_of_the_seed_holds_exactly(message: Message, tokens: int) -> None:
    assert TableCounter().count_message(message) == tokens


def test_the_table_divides_name_and_content_apart() -> None:
    # 7 // 4 + 7 // 4 is 2, (7 + 7) // 4 would be 3
    assert TableCounter().count_part(ToolCall("c", "n" * 7, "a" * 7)) == 1 + 1 + 5
    assert TableCounter().count_part(ToolResult("c", "n" * 7, "a" * 7)) == 1 + 1 + 5


def test_the_table_counts_characters_not_bytes() -> None:
    assert TableCounter().count_text("漢" * 8) == 2


def test_what_the_table_does_not_know_is_free() -> None:
    assert TableCounter().count_part(Reasoning("thought" * 100)) == 0
    assert TableCounter().count_part(ProviderItem("p", "x" * 100)) == 0


# By tokenizer


def test_the_tokenizer_counts_exactly() -> None:
    pytest.importorskip("bpe_openai")
    counter = TokenizerCounter()
    assert counter.source == "counted"
    assert counter.count_text("") == 0
    assert counter.count_text("hello world") == 2
    assert counter.count_message(Message.user("hello world")) == 5


def test_the_tokenizer_takes_text_of_any_length() -> None:
    pytest.importorskip("bpe_openai")
    tokens = TokenizerCounter().count_text("word " * 50_000)
    assert 50_000 <= tokens <= 50_010
    cuneiform = "".join(chr(0x12000 + at % 900) for at in range(100_000))  # four tokens each, or nearly
    assert 390_000 <= TokenizerCounter().count_text(cuneiform) <= 400_000


def test_without_the_tokenizer_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "bpe_openai", None)
    with pytest.raises(WiringError, match=r"pip install 'chatstack-core\[tokenizer\]'"):
        TokenizerCounter()


@pytest.mark.parametrize(
    "counter", [CharCounter(), TableCounter(), OneEach()], ids=lambda counter: type(counter).__name__
)
def test_nothing_counts_less_than_zero(counter: TokenCounter) -> None:
    parts = (Text(""), ToolCall("", "", ""), ToolResult("", "", ""), File(), Reasoning(""), ProviderItem("", ""))
    assert min(counter.count_part(part) for part in parts) >= 0
    assert counter.count_options(ChatOptions()) == 0


def test_a_counter_shows_its_options() -> None:
    assert repr(CharCounter(3.5)) == "CharCounter(chars_per_token=3.5)"
    assert repr(TableCounter()) == "TableCounter()"


def test_fields_that_ride_along_are_counted_too() -> None:
    counter = CharCounter()
    plain = counter.count_message(Message.user("hello"))
    riding = Message("user", (Text("hello", extra_json="x" * 400),), extra_json="y" * 40)
    assert counter.count_message(riding) == plain + 110
