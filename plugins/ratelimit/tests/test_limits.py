"""What a budget promises: the limits are kept, in order, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import random

import pytest
from chatstack import (
    ChatOptions,
    ChatRequest,
    ChatStack,
    ChatStream,
    FunctionInvoker,
    Message,
    RateLimitError,
    Summarizer,
    ToolCall,
    Usage,
    named,
    tool,
)
from chatstack.errors import ServerError
from chatstack.tokens.counter import CharCounter
from hurried_time import TimedClient, hurried_limits, in_hurried_time, most_in_a_minute, now

from chatstack_ratelimit import RateLimiter


def limiter(inner: TimedClient, **options: object) -> RateLimiter:
    return RateLimiter(inner, limits=hurried_limits(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("per_minute", [1, 7, 60, 500])
@pytest.mark.parametrize("burst_seconds", [0.1, 5, 60])
def test_in_no_minute_are_there_more_requests_than_allowed(per_minute: int, burst_seconds: float) -> None:
    model = TimedClient()

    async def run() -> None:
        client = limiter(model, requests_per_minute=per_minute, burst_seconds=burst_seconds)
        await asyncio.gather(*(client.get_response("hello") for _ in range(3 * per_minute)))

    in_hurried_time(run)

    assert len(model.times) == 3 * per_minute
    assert most_in_a_minute(model.times) <= per_minute
    assert model.times[-1] < 3 * 60 * (60 + burst_seconds) / 60


def test_a_burst_that_is_below_the_limit_does_not_wait() -> None:
    model = TimedClient()

    async def run() -> None:
        client = limiter(model, requests_per_minute=60, burst_seconds=10)
        for _ in range(5):
            await asyncio.gather(*(client.get_response("hello") for _ in range(8)))
            await asyncio.sleep(60)

    in_hurried_time(run)

    assert [at % 60 < 0.1 for at in model.times] == [True] * 40


def test_in_no_minute_are_there_more_tokens_than_allowed() -> None:
    model, lengths = TimedClient(counter=CharCounter(1)), random.Random(3)
    sizes = [lengths.randint(1, 80) for _ in range(200)]

    async def run() -> None:
        client = limiter(model, tokens_per_minute=1_500, counter=CharCounter(1))
        await asyncio.gather(*(client.get_response("x" * size) for size in sizes))

    in_hurried_time(run)

    sent = [len(request.messages[0].text) + 4 for request in model.requests]
    assert most_in_a_minute(model.times, sent) <= 1_500
    assert model.times[-1] < 60 * (sum(sent) + 8 * len(sent)) / 1_500 * 65 / 60


def test_both_limits_are_kept_at_once() -> None:
    model = TimedClient()

    async def run() -> None:
        client = limiter(model, requests_per_minute=20, tokens_per_minute=400)
        # Twenty large ones are held up by tokens, forty small ones by their number.
        texts = ["x" * 100] * 20 + ["x"] * 40
        await asyncio.gather(*(client.get_response(text) for text in texts))

    in_hurried_time(run)

    sent = [len(request.messages[0].text) // 4 + 4 for request in model.requests]
    assert most_in_a_minute(model.times) <= 20
    assert most_in_a_minute(model.times, sent) <= 400


def test_instructions_and_tools_count() -> None:
    model = TimedClient()

    async def run() -> None:
        client = limiter(model, tokens_per_minute=600, burst_seconds=60)
        options = ChatOptions(instructions="x" * 1_600)
        await client.get_response("hello", options=options)
        await client.get_response("hello", options=options)

    in_hurried_time(run)

    assert model.times[1] - model.times[0] > 60


def test_a_request_larger_than_a_minute_goes_when_all_is_worked_off_and_holds_up_the_next_for_a_minute() -> None:
    model = TimedClient()

    async def run() -> None:
        client = limiter(model, tokens_per_minute=650, burst_seconds=5)  # 10 a second
        await client.get_response("x" * 4 * 36)
        await client.get_response("x" * 40_000)
        await client.get_response("x" * 4 * 36)

    in_hurried_time(run)

    first, huge, last = model.times
    assert huge - first == pytest.approx(4.5, abs=0.05), "40 tokens and an answer of 5 had to be worked off"
    assert last - huge == pytest.approx(64, abs=0.05), "640 of a minute's 650, no more, had to be worked off"


def test_what_the_answer_reports_takes_the_place_of_the_estimate() -> None:
    async def waited(reported: float) -> float:
        """How long the second call waits if so many characters are a token for the provider."""
        model = TimedClient(counter=CharCounter(reported))
        client = limiter(model, tokens_per_minute=1_200, burst_seconds=60)  # 10 a second, 600 at once
        await client.get_response("x" * 2_000)
        await client.get_response("x" * 2_000)
        return model.times[1] - model.times[0]

    assert in_hurried_time(lambda: waited(4)) == pytest.approx(41, abs=2)  # 509 reported, and 504 to come
    assert in_hurried_time(lambda: waited(2)) == pytest.approx(91, abs=2)  # 1,009 reported
    assert in_hurried_time(lambda: waited(40)) == 0  # 59 reported


class Thinking(TimedClient):
    """Thinks for a second, then says that an answer took so many tokens."""

    def __init__(self, took: int) -> None:
        super().__init__()
        self._took = took

    async def send(self, request: ChatRequest, /) -> ChatStream:
        stream = await super().send(request)
        await asyncio.sleep(1)
        return stream

    def _usage(self, request: object, answer: object) -> Usage:
        return Usage(self._took)


def times_of(took: int, first: str, *others: str) -> list[float]:
    """When calls go whose answers take so much: 10 tokens a second, 50 at once. The others come after half a second."""
    model = Thinking(took)

    async def run() -> None:
        client = limiter(model, tokens_per_minute=650, burst_seconds=5)

        async def later(text: str) -> None:
            await asyncio.sleep(0.5)
            await client.get_response(text)

        await asyncio.gather(client.get_response(first), *map(later, others))

    in_hurried_time(run)
    return [at - model.times[0] for at in model.times]


def test_what_an_answer_gives_back_reaches_those_that_wait_already() -> None:
    times = times_of(2, "x" * 4 * 496, *["x" * 4 * 6] * 4)  # 500 were estimated, and 10 for each of those that wait

    assert times == pytest.approx([0, 1, 1, 1, 1], abs=0.05)


def test_what_an_answer_took_beyond_the_estimate_reaches_those_that_wait_already() -> None:
    times = times_of(200, "x" * 4 * 96, "x" * 4 * 6)  # 100 were estimated, and 10 for the one that waits

    assert times == pytest.approx([0, 16], abs=0.05)


def test_what_many_answers_took_together_is_worked_off_however_much_it_is() -> None:
    times = times_of(600, "x" * 4 * 7, *["x" * 4 * 7] * 5)  # 11 were estimated for each: five go before any answer

    assert times == pytest.approx([0, 0.5, 0.5, 0.5, 0.5, 296], abs=0.2), "3,000 in five answers, less 39 of the room"


def test_an_estimate_that_comes_down_is_owed_a_minutes_tokens_still_where_the_answer_took_as_many() -> None:
    times = times_of(2_000, "x" * 4 * 10_000, "x" * 4 * 6)

    assert times == pytest.approx([0, 61], abs=0.05)


def test_an_answer_that_reports_nothing_corrects_nothing() -> None:
    class Silent(TimedClient):
        def _usage(self, request: object, answer: object) -> Usage:
            return Usage()

    model = Silent()

    async def run() -> None:
        client = limiter(model, tokens_per_minute=1_200, burst_seconds=60)
        await client.get_response("x" * 2_000)
        await client.get_response("x" * 2_000)

    in_hurried_time(run)

    assert model.times[1] - model.times[0] == pytest.approx(40.8, abs=1)


def test_an_answer_that_is_streamed_is_counted_at_its_end() -> None:
    model = TimedClient(counter=CharCounter(2))

    async def run() -> list[str]:
        client = limiter(model, tokens_per_minute=1_200, burst_seconds=60)
        async with client.get_streaming_response("x" * 2_000) as stream:
            heard = [update.text async for update in stream]
        await client.get_response("x" * 2_000)
        return heard

    assert "".join(in_hurried_time(run)) == "fine"
    assert model.times[1] - model.times[0] == pytest.approx(91, abs=2)


def test_first_come_first_served_large_or_small() -> None:
    model = TimedClient()
    texts = ["x" * size for size in (300, 4, 200, 8, 12, 400, 2, 100)]

    async def run() -> None:
        client = limiter(model, tokens_per_minute=100, burst_seconds=60)
        await asyncio.gather(*(client.get_response(text) for text in texts))

    in_hurried_time(run)

    assert [request.messages[0].text for request in model.requests] == texts
    assert model.times[-1] > 60


def test_whoever_is_cancelled_has_used_up_nothing_and_gives_the_place_to_the_next() -> None:
    model = TimedClient()

    async def run() -> int:
        client = limiter(model, requests_per_minute=60, tokens_per_minute=6_000, burst_seconds=0.1)
        calls = [asyncio.create_task(client.get_response(f"call {number}")) for number in range(10)]
        await asyncio.sleep(0.5)
        for call in calls[1:9]:  # the second has its turn and waits for its second to pass, the others stand behind
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        left = len(asyncio.all_tasks()) - 1
        await client.get_response("call 10")
        return left

    assert in_hurried_time(run) == 0
    assert [request.messages[0].text for request in model.requests] == ["call 0", "call 9", "call 10"]
    assert model.times == pytest.approx([0, 1, 2], abs=0.05)


def test_whoever_is_cancelled_in_the_line_is_passed_over() -> None:
    model = TimedClient()

    async def run() -> None:
        client = limiter(model, requests_per_minute=60, burst_seconds=0.1)
        calls = [asyncio.create_task(client.get_response(f"call {number}")) for number in range(6)]
        await asyncio.sleep(0.5)
        for call in calls[2:5]:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    in_hurried_time(run)

    assert [request.messages[0].text for request in model.requests] == ["call 0", "call 1", "call 5"]
    assert model.times == pytest.approx([0, 1, 2], abs=0.05)


def test_whoever_is_cancelled_while_a_large_request_is_worked_off_changes_nothing_about_it() -> None:
    model = TimedClient()

    async def run() -> None:
        client = limiter(model, tokens_per_minute=650, burst_seconds=5)  # 10 a second
        await client.get_response("x" * 40_000)
        waiting = asyncio.create_task(client.get_response("x"))
        await asyncio.sleep(10)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await client.get_response("x" * 4 * 36)

    in_hurried_time(run)

    assert model.times == pytest.approx([0, 64], abs=0.05)


def test_a_request_that_waits_for_its_tokens_gives_its_place_among_the_requests_back() -> None:
    model = TimedClient()

    async def run() -> None:
        client = limiter(model, requests_per_minute=1, tokens_per_minute=1_000, burst_seconds=60)
        await client.get_response("x" * 4_000)
        await asyncio.sleep(61)  # its place among the requests is free again, its tokens are not all worked off
        waiting = asyncio.create_task(client.get_response("x" * 4_000))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await client.get_response("x")

    in_hurried_time(run)

    assert len(model.times) == 2
    assert model.times[1] - model.times[0] < 100, "had the place been used up, a minute more would have passed"


def test_a_turn_that_runs_out_of_time_leaves_the_line() -> None:
    model = TimedClient()

    async def run() -> None:
        client = limiter(model, requests_per_minute=1)
        await client.get_response("one")
        with pytest.raises(TimeoutError):
            await client.get_response("two", timeout_seconds=3)
        await client.get_response("three")

    in_hurried_time(run)

    assert model.times == pytest.approx([0, 60], abs=0.05)


def told_to_wait(seconds: float | None) -> tuple[RateLimitError, list[float]]:
    """What is raised, and when the calls after it are made, the refused one being made at 0."""
    error = RateLimitError("slow down", retry_after_seconds=seconds)
    model = TimedClient(error, "fine")

    async def run() -> RateLimitError:
        client = limiter(model, requests_per_minute=6_000)
        with pytest.raises(RateLimitError) as caught:
            await client.get_response("one")
        await asyncio.gather(*(client.get_response("two") for _ in range(3)))
        return caught.value

    raised = in_hurried_time(run)
    assert raised is error
    return raised, [at - model.times[0] for at in model.times[1:]]


def test_a_provider_that_says_wait_makes_everybody_wait() -> None:
    raised, times = told_to_wait(20)

    assert (str(raised), raised.retry_after_seconds) == ("slow down", 20)
    assert times == pytest.approx([20] * 3, abs=0.05)


@pytest.mark.parametrize("seconds", [3_600, float("inf")])
def test_nobody_waits_longer_than_a_minute_because_a_provider_says_so(seconds: float) -> None:
    assert told_to_wait(seconds)[1] == pytest.approx([60] * 3, abs=0.05)


@pytest.mark.parametrize("seconds", [None, 0, -5, float("nan")])
def test_a_refusal_without_a_time_makes_nobody_wait(seconds: float | None) -> None:
    assert told_to_wait(seconds)[1] == pytest.approx([0] * 3, abs=0.05)


def test_another_error_makes_nobody_wait() -> None:
    model = TimedClient(ServerError("down"), "fine")

    async def run() -> None:
        client = limiter(model, requests_per_minute=600)
        with pytest.raises(ServerError, match="down"):
            await client.get_response("one")
        await client.get_response("two")

    in_hurried_time(run)

    assert model.times == pytest.approx([0, 0], abs=0.05)


def test_a_pause_that_is_prolonged_while_somebody_waits_is_waited_for() -> None:
    class Slow(TimedClient):
        async def send(self, request: ChatRequest, /) -> ChatStream:
            stream = await super().send(request)
            if (seconds := float(request.messages[0].text)) > 0:
                await stream.aclose()
                await asyncio.sleep(seconds)
                raise RateLimitError("slow down", retry_after_seconds=10)
            return stream

    model = Slow()

    async def run() -> None:
        client = limiter(model, requests_per_minute=6_000)
        calls = [asyncio.create_task(client.get_response(text)) for text in ("1", "5")]
        await asyncio.sleep(2)  # the first has been refused, and the pause is to last until 11
        await client.get_response("0")
        await asyncio.gather(*calls, return_exceptions=True)

    in_hurried_time(run)

    assert model.times == pytest.approx([0, 0, 15], abs=0.05)


def test_every_build_of_a_stack_has_a_part_of_one_budget() -> None:
    model = TimedClient()

    async def run() -> None:
        stack = ChatStack(model).use(RateLimiter, requests_per_minute=60, burst_seconds=0.1, limits=hurried_limits())
        clients = [
            stack.build(),
            stack.build(),
            stack.use(named("more", RateLimiter), requests_per_minute=9_999).build(),
        ]
        await asyncio.gather(*(client.get_response(Message.user("hello")) for client in clients * 10))

    in_hurried_time(run)

    assert len(model.times) == 30
    assert model.times[-1] == pytest.approx(29, abs=0.1)


def test_summaries_that_the_same_model_writes_and_rounds_of_a_tool_loop_count() -> None:
    call = Message.assistant(ToolCall("c", "look", "{}"))
    model = TimedClient("They looked around.", call, "fine")
    history = [turn for number in range(8) for turn in (Message.user(f"{number} " * 60), Message.assistant("y " * 60))]

    @tool
    def look() -> str:
        """Look around."""
        return "grey"

    async def run() -> None:
        stack = ChatStack(model).use(FunctionInvoker, tools=[look]).use(Summarizer, max_tokens=300)
        client = stack.use(RateLimiter, requests_per_minute=60, burst_seconds=0.1, limits=hurried_limits()).build()
        await client.get_response([*history, Message.user("And now?")])

    in_hurried_time(run)

    assert model.times == pytest.approx([0, 1, 2], abs=0.05)


def test_other_figures_are_another_budget() -> None:
    model = TimedClient()

    async def run() -> float:
        limits = hurried_limits()
        one = RateLimiter(model, requests_per_minute=1, limits=limits)
        two = RateLimiter(model, requests_per_minute=2, limits=limits)
        await one.get_response("hello")
        await two.get_response("hello")
        return now()

    assert in_hurried_time(run) < 1


def test_a_thousand_conversations_at_once_keep_the_limits_and_all_are_answered() -> None:
    model = TimedClient()

    async def run() -> list[str]:
        client = limiter(model, requests_per_minute=300, tokens_per_minute=20_000)
        answers = await asyncio.gather(
            *(client.get_response(f"number {number}", conversation_id=f"c{number}") for number in range(1_000))
        )
        return [answer.text for answer in answers]

    assert in_hurried_time(run) == ["fine"] * 1_000
    assert most_in_a_minute(model.times) <= 300
    assert model.times[-1] < 1_000 / 300 * 65
