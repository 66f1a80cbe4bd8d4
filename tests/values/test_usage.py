"""Reported usage: what of it can be true."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from chatstack import ChatOptions, ChatRequest, File, Message, ProviderItem, ToolDeclaration, Usage
from chatstack.tokens.upper_bound import most_of
from chatstack.values.usage import SLACK, credible, doubted

NO_BOUND: Callable[[int], int] = lambda figure: figure  # noqa: E731


@pytest.mark.parametrize("figure", [0, 1, SLACK])
def test_usage_that_may_be_true_is_handed_on_as_it_is(figure: int) -> None:
    usage = Usage(figure, figure, figure, figure, figure, figure)
    assert credible(usage) is usage


@pytest.mark.parametrize(
    "figure", [-1, -(10**30), 10**30, 2**63, math.nan, math.inf, -math.inf, 1.5, True, False, "12", b"12", [12]]
)
def test_a_figure_that_cannot_be_true_is_not_told(figure: Any) -> None:
    assert credible(Usage(figure, 5)) == Usage(0, 5)
    assert type(credible(Usage(figure, 5)).input_tokens) is int
    assert credible(Usage(5, figure)) == Usage(5, 0)


def test_a_whole_number_is_one_however_it_is_written() -> None:
    usage: Any = Usage(12.0, 3, None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert credible(usage) == Usage(12, 3)
    assert type(credible(usage).input_tokens) is int
    assert doubted(usage, credible(usage)) == []


def test_what_belongs_to_a_figure_goes_with_it() -> None:
    assert credible(Usage(-1, 20, 7, 8, 9)) == Usage(0, 20, 0, 0, 9)
    assert credible(Usage(10, -1, 7, 8, 9)) == Usage(10, 0, 7, 8, 0)
    assert credible(Usage(10, 20, -7, 8, 9)) == Usage(10, 20, 0, 8, 9)
    assert credible(Usage(10, 20, 7, -8, 9, 5)) == Usage(10, 20, 7, 0, 9)
    assert credible(Usage(10, 20, 7, 8, -9)) == Usage(10, 20, 7, 8, 0)


def test_a_part_may_be_told_later_than_the_sum_that_it_belongs_to() -> None:
    for usage in (Usage(10, 9, 4_900), Usage(0, 9, 90_000), Usage(200, 9, 0, 200, hour_write_tokens=5_200)):
        assert credible(usage) is usage


def test_a_large_figure_is_believed_up_to_what_the_call_can_have_used() -> None:
    usage = Usage(SLACK + 5, SLACK + 6)
    assert credible(usage, lambda figure: SLACK + 5) == Usage(SLACK + 5, 0)
    assert credible(usage, lambda figure: SLACK + 6) == usage
    assert credible(Usage(10**12), NO_BOUND) == Usage()


def test_what_was_not_believed_is_told_by_name_and_never_as_text() -> None:
    odd: Any = "secret"
    reported = Usage(-1_000, odd, 10**30, 0, True)
    assert doubted(reported, credible(reported)) == [
        "input_tokens -1,000",
        "output_tokens as str",
        "cache_read_tokens of 100 bits",
        "reasoning_tokens as bool",
    ]


# What a call can have used


def request(text: str = "", *messages: Message, **options: Any) -> ChatRequest:
    return ChatRequest((*messages, Message.user(text)), ChatOptions(**options))


def test_the_bound_is_ten_times_the_estimate_and_a_hundred_thousand() -> None:
    # 400 characters are 100 tokens, and a message has 4 of its own
    assert most_of(request("x" * 400), (), 0, 10**9) == 10 * 104 + SLACK
    assert most_of(request("x" * 400), (Message.assistant("y" * 40),), 0, 10**9) == 10 * 118 + SLACK
    assert most_of(request("x" * 400), (), 1_000, 10**9) == 10 * 1_104 + SLACK
    declared = ToolDeclaration("look", "d" * 392, "{}")
    assert most_of(request("x" * 400, tools=(declared,)), (), 0, 10**9) > 10 * 200 + SLACK


def test_no_more_is_counted_than_a_figure_needs_to_be_believed() -> None:
    long = [Message.user("x" * 4_000) for _ in range(1_000)]
    newest_ten = most_of(request("", *long), (), 0, SLACK + 100_000)
    assert SLACK + 100_000 <= newest_ten < SLACK + 120_000


@pytest.mark.parametrize(
    "sees_more",
    [
        request(extra={"previous_response_id": "r-1"}),
        request(extra={"conversation": "c-1"}),
        request(tools=(ProviderItem("openai", '{"type":"web_search"}'),)),
        request("", Message.user(File(file_id="f-1"))),
        request("", Message.user(File(url="https://example.org/a.pdf"))),
        request("", Message.tool("1", (File(file_id="f-1"),))),
    ],
)
def test_where_the_server_adds_what_is_not_in_the_request_much_may_be_true(sees_more: ChatRequest) -> None:
    usage = Usage(5_000_000)
    assert credible(usage, lambda figure: most_of(sees_more, (), 0, figure)) == usage
    assert credible(Usage(10**30), lambda figure: most_of(sees_more, (), 0, figure)) == Usage()
