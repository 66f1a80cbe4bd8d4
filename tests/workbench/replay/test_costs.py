"""What a prompt cache would hold of each request, and what the requests cost with it: every figure by hand."""

from __future__ import annotations

from decimal import Decimal

import pytest

from chatstack import ChatOptions, ChatRequest, Message, Text, ToolResult
from chatstack.tokens.counter import CharCounter
from chatstack.tokens.prices import Price, Rate, Split
from chatstack.values.requests import ToolDeclaration
from chatstack.workbench.replay.measures.costs import Spending, breaks_prefix, shared_tokens, split
from chatstack.workbench.replay.measures.measuring import Gauge, Measured, WireCounter

GAUGE = Gauge(WireCounter(CharCounter(1), "characters"))
LOOK, FIND = ToolDeclaration("look"), ToolDeclaration("find")
DOLLARS = Price("m", "p", Rate(Decimal(2)), Rate(Decimal("0.5")), Rate(Decimal(3)))


def sized(tokens: int, letter: str = "x") -> Message:
    """A user message of that size."""
    return Message.user(letter * (tokens - 4))


def measured(*messages: Message, instructions: str = "", tools: tuple[ToolDeclaration, ...] = ()) -> Measured:
    options = ChatOptions(instructions=instructions, tools=tools)
    return GAUGE.measure(ChatRequest(messages, options), needs_user=False)


def spending(*calls: list[Measured], price: Price | None = None) -> Spending:
    spent = Spending()
    spent.begin(price)
    for requests in calls:
        spent.add(requests)
    return spent


def parts(spent: Spending) -> tuple[int, int, int]:
    return spent.tokens_read, spent.tokens_written, spent.tokens_plain


@pytest.mark.parametrize(
    ("tokens", "shared", "expected"),
    [
        (1_023, 0, Split(0, 0, 1_023)),
        (1_023, 1_000, Split(0, 0, 1_023)),
        (1_024, 0, Split(0, 1_024, 0)),
        (2_000, 1_023, Split(0, 2_000, 0)),
        (2_000, 1_024, Split(1_024, 976, 0)),
        (2_000, 2_000, Split(2_000, 0, 0)),
    ],
)
def test_nothing_under_the_minimum_is_read_or_written(tokens: int, shared: int, expected: Split) -> None:
    assert split(tokens, shared, 1_024) == expected


def test_what_was_sent_before_is_read_and_what_is_new_is_written() -> None:
    first, second, third = sized(2_000, "a"), sized(300, "b"), sized(50, "c")

    spent = spending([measured(first)], [measured(first, second)], [measured(first, second, third)])

    assert parts(spent) == (2_000 + 2_300, 2_000 + 300 + 50, 0)
    assert spent.cost == 10 * 4_300 + 125 * 2_350
    assert spent.prefix_breaks == 0


def test_a_request_under_1024_tokens_costs_plain_input_and_leaves_nothing_to_read() -> None:
    first, second = sized(900, "a"), sized(200, "b")

    spent = spending([measured(first)], [measured(first)], [measured(first, second)])

    assert parts(spent) == (0, 1_100, 1_800)
    assert spent.cost == 100 * 1_800 + 125 * 1_100


def test_a_prefix_under_1024_tokens_is_not_read() -> None:
    head = sized(1_000, "a")

    spent = spending([measured(head, sized(500, "b"))], [measured(head, sized(600, "c"))])

    assert parts(spent) == (0, 1_500 + 1_600, 0)
    assert spent.prefix_breaks == 1


def test_an_edited_message_ends_the_prefix_before_it() -> None:
    head, middle, tail = sized(1_100, "a"), sized(400, "b"), sized(200, "c")
    edited = middle.edited(parts=(Text("gone"),))

    spent = spending([measured(head, middle, tail)], [measured(head, edited, tail)], [measured(head, edited, tail)])

    assert parts(spent) == (1_100 + 1_308, 1_700 + 208, 0)
    assert spent.prefix_breaks == 1


def test_a_message_put_in_its_original_words_again_is_the_same_to_a_cache() -> None:
    head = sized(1_100)
    same = Message("user", head.parts, pinned=True, mark="summary")

    assert shared_tokens(measured(head), measured(same)) == 1_100
    assert not breaks_prefix(measured(head), measured(same))


def test_the_same_text_in_another_role_or_for_another_call_is_something_else() -> None:
    said, answered = Message.assistant("x" * 100), Message.tool("one", "x" * 100)

    assert shared_tokens(measured(sized(104)), measured(said)) == 0
    assert shared_tokens(measured(answered), measured(Message.tool("two", "x" * 100))) == 0


def test_a_prefix_is_made_of_whole_wire_messages() -> None:
    before = Message("tool", (ToolResult("a", "look", "1" * 96), ToolResult("b", "look", "2" * 96)))
    now = Message("tool", (ToolResult("a", "look", "1" * 96), ToolResult("b", "look", "2" * 95 + "3")))

    assert shared_tokens(measured(before), measured(now)) == 100


def test_a_shorter_request_breaks_the_prefix_though_all_of_it_was_sent_before() -> None:
    long, short = measured(sized(100, "a"), sized(100, "b")), measured(sized(100, "a"))

    assert shared_tokens(long, short) == 100
    assert breaks_prefix(long, short)
    assert not breaks_prefix(short, long)


def test_tools_and_instructions_belong_to_the_prefix() -> None:
    before = measured(sized(50), instructions="be brief", tools=(LOOK,))
    now = measured(sized(50), sized(60), instructions="be brief", tools=(LOOK,))
    tools = GAUGE.counter.count_options(ChatOptions(tools=(LOOK,)))

    assert now.tokens == tools + len("be brief") + 4 + 50 + 60
    assert shared_tokens(before, now) == now.tokens - 60
    assert not breaks_prefix(before, now)


def test_other_instructions_leave_the_tools_and_other_tools_leave_nothing() -> None:
    before = measured(sized(50), instructions="be brief", tools=(LOOK,))

    assert shared_tokens(before, measured(sized(50), instructions="be long", tools=(LOOK,))) == before.head_tokens > 0
    for now in (
        measured(sized(50), instructions="be brief", tools=(FIND,)),
        measured(sized(50), instructions="be brief"),
    ):
        assert shared_tokens(before, now) == 0
        assert breaks_prefix(before, now)


def test_another_model_has_a_cache_of_its_own() -> None:
    def asked(model: str) -> Measured:
        return GAUGE.measure(ChatRequest((sized(50),), ChatOptions(model=model)), needs_user=False)

    assert shared_tokens(asked("small"), asked("small")) == 50
    assert shared_tokens(asked("small"), asked("large")) == 0


def test_a_new_conversation_finds_an_empty_cache() -> None:
    spent = spending([measured(sized(2_000))])
    spent.begin(None)
    spent.add([measured(sized(2_000))])

    assert parts(spent) == (0, 4_000, 0)
    assert spent.prefix_breaks == 0


def test_a_request_beside_the_calls_own_does_not_push_that_out_of_the_cache() -> None:
    aside, asked, more = sized(1_500, "s"), sized(2_000, "a"), sized(100, "b")

    spent = spending([measured(aside), measured(asked)], [measured(aside), measured(asked, more)])

    assert parts(spent) == (1_500 + 2_000, 1_500 + 2_000 + 100, 0)
    assert spent.prefix_breaks == 0


def test_a_request_sent_again_for_the_same_call_is_read() -> None:
    spent = spending([measured(sized(2_000)), measured(sized(2_000))])

    assert parts(spent) == (2_000, 2_000, 0)


def test_a_refused_call_costs_nothing_and_the_one_before_it_stays_in_the_cache() -> None:
    spent = spending([measured(sized(2_000))], [], [measured(sized(2_000))])

    assert parts(spent) == (2_000, 2_000, 0)
    assert spent.prefix_breaks == 0


def test_dollars_are_those_of_the_price_with_its_own_minimum() -> None:
    first, second = sized(2_000, "a"), sized(1_000, "b")
    requests = ([measured(first)], [measured(first, second)])

    spent = spending(*requests, price=DOLLARS)
    late = spending(*requests, price=Price("m", "p", DOLLARS.input, DOLLARS.read, DOLLARS.write, minimum_tokens=2_001))

    assert spent.usd == (3 * 2_000 + Decimal("0.5") * 2_000 + 3 * 1_000) / 1_000_000
    assert late.usd == (2 * 2_000 + 3 * Decimal(3_000)) / 1_000_000
    assert spent.usd_uncached == late.usd_uncached == Decimal(2 * 5_000) / 1_000_000


def test_dollars_are_unknown_as_soon_as_one_price_is() -> None:
    spent = spending([measured(sized(2_000))], price=DOLLARS)
    spent.begin(None)
    assert spent.usd is not None
    spent.add([measured(sized(100))])
    spent.begin(DOLLARS)
    spent.add([measured(sized(100))])

    assert spent.usd is None
    assert spent.usd_uncached is None


def test_an_unknown_price_of_writing_leaves_the_cost_without_a_cache() -> None:
    price = Price("m", "p", DOLLARS.input, DOLLARS.read, None)

    spent = spending([measured(sized(2_000))], price=price)

    assert spent.usd is None
    assert spent.usd_uncached == Decimal(4_000) / 1_000_000
