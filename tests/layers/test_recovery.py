"""What the guard does about a refusal: it learns, sends less, and remembers; and what it must not believe."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import pytest

from chatstack import (
    BuiltClient,
    CharCounter,
    ChatOptions,
    ChatRequest,
    ChatStack,
    ChatStream,
    ContextOverflowError,
    ContextWindowGuard,
    FunctionInvoker,
    Message,
    OldestFirst,
    ProviderInfo,
    ProviderItem,
    ServerError,
    ToolCall,
    ToolResultClearer,
    Windows,
    named,
)
from chatstack.context.requests.services import ContextServices
from chatstack.context.strategy import StrategyApplier
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.tracer import ModelTracer
from chatstack.testing import Answer, ScriptedClient, TelemetryCapture
from chatstack.testing.capture import SpanTree
from chatstack.tokens.calibration import Calibration
from tests.histories import decoded_again

NEAR, EXCEEDED, IRREDUCIBLE = "context_window_near_limit", "context_window_exceeded", "context_irreducible"
MAKE = (Message.user, Message.assistant)
COUNTER = CharCounter()
Telling: TypeAlias = Callable[[int, int], tuple[int | None, int | None]]


def talk(messages: int = 31, start: str = "") -> list[Message]:
    """User and assistant in turn, 100 tokens each, no two of them equal."""
    return [MAKE[number % 2](f"{start}{number} ".ljust(384, "x")) for number in range(messages)]


def size(messages: Sequence[Message]) -> int:
    """Tokens of messages by the default counter."""
    return sum(map(COUNTER.count_message, messages))


def both(actual: int, limit: int) -> tuple[int | None, int | None]:
    return actual, limit


def limit_only(actual: int, limit: int) -> tuple[int | None, int | None]:
    return None, limit


def nothing(actual: int, limit: int) -> tuple[int | None, int | None]:
    return None, None


class Picky(ScriptedClient):
    """A provider with a window: what is larger, by its own count, it refuses. ``sizes`` are by the default counter.

    It counts ``weight`` times what that counter does. ``tells`` makes the two numbers of a refusal of the true ones.
    """

    def __init__(self, window: int, *, weight: float = 1.0, tells: Telling = both, **options: Any) -> None:
        super().__init__(["fine"], **options)
        self.window, self.weight, self.tells = window, weight, tells
        self.sizes: list[int] = []
        self.refusals: list[ContextOverflowError] = []
        self.concerned: Callable[[ChatRequest], bool] = lambda request: True

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.sizes.append(size(request.messages))
        true = int(self.sizes[-1] * self.weight) + (request.options.max_tokens or 0)
        await asyncio.sleep(0)
        if true > self.window and self.concerned(request):
            self.requests.append(request)
            told = self.tells(true, self.window)
            self.refusals.append(ContextOverflowError(*told, provider="picky", status=400))
            raise self.refusals[-1] from ConnectionError("the body of the answer")
        return await super().send(request)


class Guarded:
    """A pruning guard with a window that is far too large around a provider, and all that it said."""

    def __init__(
        self,
        provider: ScriptedClient,
        limit: int | Literal["auto"] = 1_000_000,
        *,
        calibration: Calibration | None = None,
        **options: Any,
    ) -> None:
        self.provider = provider
        self.calibration = calibration or Calibration()
        self.capture, self.windows = TelemetryCapture(), Windows()
        options = {"prune_on_overflow": True, **options}
        self.stack = ChatStack(provider).use(ContextWindowGuard, max_context_tokens=limit, **options)
        self.client: BuiltClient = self.stack.build(
            {Windows: self.windows, Calibration: self.calibration, Telemetry: self.capture.telemetry}.get
        )

    def ask(self, messages: Sequence[Message], *, stream: bool = False, **options: Any) -> list[list[Message]]:
        """What reached the provider, attempt by attempt."""
        before = len(self.provider.requests)

        async def asked() -> None:
            if stream:
                async with self.client.get_streaming_response(messages, **options) as answer:
                    assert "".join([update.text async for update in answer]) == "fine"
            else:
                assert (await self.client.get_response(messages, **options)).text == "fine"

        asyncio.run(asked())
        return [list(request.messages) for request in self.provider.requests[before:]]


BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
REFUSAL = ContextOverflowError


# G6: what a refusal tells


@BOTH_WAYS
@pytest.mark.parametrize("weight", [0.4, 1.0, 2.5, 9.0], ids=["overestimated", "right", "underestimated", "by far"])
@pytest.mark.parametrize("tells", [both, limit_only, nothing], ids=["both", "limit", "nothing"])
def test_a_refused_request_is_sent_again_smaller_until_it_is_taken(tells: Telling, weight: float, stream: bool) -> None:
    provider = Picky(1_200 if weight < 1 else 2_000 if weight < 9 else 6_000, weight=weight, tells=tells)
    guarded = Guarded(provider)
    guarded.ask(talk(), stream=stream)
    assert 2 <= len(provider.sizes) <= 4
    assert provider.sizes == sorted(set(provider.sizes), reverse=True)
    assert provider.sizes[-1] * weight <= provider.window


@pytest.mark.parametrize("weight", [0.4, 1.0, 2.5, 9.0])
def test_both_numbers_are_enough_for_a_single_retry_that_removes_no_more_than_it_must(weight: float) -> None:
    provider = Picky(int(2_000 * weight), weight=weight)
    Guarded(provider).ask(talk())
    first, second = provider.sizes
    assert first > 3_000
    assert 0.6 * 2_000 < second <= 0.7 * 2_000


def test_room_for_the_answer_that_a_refusal_counts_in_is_not_taken_for_input() -> None:
    provider, calibration = Picky(4_000), Calibration()
    guarded = Guarded(provider, calibration=calibration)
    guarded.ask(talk(), options=ChatOptions(max_tokens=1_000))
    assert provider.refusals[0].actual == provider.sizes[0] + 1_000
    assert 0.6 * 4_000 < provider.sizes[-1] + 1_000 <= 0.7 * 4_000
    assert guarded.windows.learnt(provider) == 4_000
    assert calibration.factor("script", COUNTER) == 1.0


@pytest.mark.parametrize(
    "told",
    [(10, 3), (None, 3), (None, 0), (0, 0), (None, -5), (-5, -5), (3, None), (None, 50_000_000), (500, 90_000)],
    ids=repr,
)
def test_numbers_that_cannot_be_true_are_survived_and_not_believed(told: tuple[int | None, int | None]) -> None:
    provider = ScriptedClient([REFUSAL(*told), "fine"])
    guarded = Guarded(provider)
    first, second = guarded.ask(talk())
    assert size(second) < size(first)
    assert guarded.windows.learnt(provider) is None
    other = talk(start="another ")
    assert guarded.ask(other) == [other]


@pytest.mark.parametrize("told", [(None, 0), (None, 50_000_000), (500, 90_000), (3, None)], ids=repr)
def test_without_numbers_to_go_by_three_quarters_are_tried(told: tuple[int | None, int | None]) -> None:
    provider = ScriptedClient([REFUSAL(*told), "fine"])
    first, second = Guarded(provider, prune_to=1.0).ask(talk())
    assert 0.7 * size(first) < size(second) <= 0.75 * size(first)


def test_a_size_that_would_have_fitted_is_not_believed_and_the_limit_is() -> None:
    guarded = Guarded(ScriptedClient([REFUSAL(1_500, 2_000), "fine"]))
    _, second = guarded.ask(talk())
    assert 0.6 * 2_000 < size(second) <= 0.7 * 2_000


def test_a_limit_below_what_is_then_taken_is_disproved() -> None:
    """Pinned messages may not go, and are taken all the same."""
    history = [talk()[0], *(Message("assistant", each.parts, pinned=True) for each in talk()[1:12]), *talk()[12:]]
    guarded = Guarded(ScriptedClient([REFUSAL(None, 1_000), "fine"]))
    _, taken = guarded.ask(history)
    assert size(taken) > 1_000
    assert guarded.windows.learnt(guarded.provider) is None


def test_a_limit_that_no_answer_has_proved_is_not_kept() -> None:
    provider = ScriptedClient([REFUSAL(4_000, 2_000)] * 4 + ["fine"])
    guarded = Guarded(provider)
    with pytest.raises(ContextOverflowError):
        guarded.ask(talk())
    assert guarded.windows.learnt(provider) is None


def test_the_limit_beside_a_size_that_is_not_the_requests_own_is_not_kept_for_others() -> None:
    """A server quotes a log of another one's refusal. This conversation goes by it, as nothing else is told."""
    guarded = Guarded(ScriptedClient([REFUSAL(800, 600), "fine"]))
    first, second = guarded.ask(talk(41))
    assert size(first) > 4 * 800
    assert size(second) < 600
    assert guarded.windows.learnt(guarded.provider) is None


def test_a_limit_that_only_the_first_refusal_tells_is_kept() -> None:
    guarded = Guarded(ScriptedClient([REFUSAL(None, 2_000), REFUSAL(), REFUSAL(None, 2_500), "fine"]))
    assert len(guarded.ask(talk(61))) == 4
    assert guarded.windows.learnt(guarded.provider) == 2_000


def test_a_limit_above_the_guards_own_does_not_raise_it() -> None:
    provider = Picky(5_000, weight=3.0)
    guarded = Guarded(provider, limit=4_000)
    first = guarded.ask(talk())[-1]
    assert 0.6 * 4_000 < 3 * size(first) <= 0.7 * 4_000
    assert guarded.windows.learnt(provider) == 5_000
    (then,) = guarded.ask([*talk(), Message.assistant("fine"), Message.user("more")])
    assert then[: len(first)] == first
    assert len(guarded.capture.spans_named("compact_context truncate")) == 1
    other = guarded.ask(talk(61, "next "))[0]
    assert size(other) <= 4_000


# How often, and what is raised


@BOTH_WAYS
@pytest.mark.parametrize("told", [(None, None), (None, 2_000), (4_000, 2_000), (None, 3)], ids=repr)
def test_three_retries_at_most_each_smaller_and_then_the_last_refusal(
    told: tuple[int | None, int | None], stream: bool
) -> None:
    provider = Picky(0, tells=lambda actual, limit: told)
    with pytest.raises(ContextOverflowError) as caught:
        Guarded(provider).ask(talk(200), stream=stream)
    assert 2 <= len(provider.sizes) <= 4
    assert provider.sizes == sorted(set(provider.sizes), reverse=True)
    assert caught.value is provider.refusals[-1]
    assert isinstance(caught.value.__cause__, ConnectionError)


def test_it_takes_all_four_attempts_where_each_leaves_something_to_remove() -> None:
    provider = Picky(0, tells=nothing)
    with pytest.raises(ContextOverflowError):
        Guarded(provider).ask(talk(200))
    assert len(provider.sizes) == 4


@pytest.mark.parametrize("strict", [False, True])
def test_where_nothing_may_be_removed_the_refusal_is_raised_after_one_attempt(strict: bool) -> None:
    provider = Picky(1_000)
    guarded = Guarded(provider, strict=strict)
    with pytest.raises(ContextOverflowError) as caught:
        guarded.ask([Message.system("s" * 9_000), Message.user("hello")])
    assert caught.value is provider.refusals[0]
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert len(provider.sizes) == 1
    assert guarded.capture.warnings == (EXCEEDED, IRREDUCIBLE)


def test_what_can_go_is_tried_before_it_is_given_up() -> None:
    provider = Picky(100, tells=limit_only)
    guarded = Guarded(provider)
    with pytest.raises(ContextOverflowError) as caught:
        guarded.ask(talk())
    assert provider.sizes == [size(talk()), 2 * size(talk(1))]
    assert caught.value is provider.refusals[-1]
    assert guarded.capture.warnings == (EXCEEDED, EXCEEDED, IRREDUCIBLE)


def test_strict_recovers_too() -> None:
    guarded = Guarded(Picky(2_000), strict=True)
    assert len(guarded.ask(talk())) == 2


@BOTH_WAYS
@pytest.mark.parametrize("strict", [False, True])
def test_a_guard_that_does_not_prune_passes_the_refusal_on(strict: bool, stream: bool) -> None:
    provider = Picky(2_000)
    guarded = Guarded(provider, prune_on_overflow=False, strict=strict)
    with pytest.raises(ContextOverflowError) as caught:
        guarded.ask(talk(), stream=stream)
    assert caught.value is provider.refusals[0]
    assert len(provider.sizes) == 1
    assert guarded.capture.warnings == ()
    assert guarded.windows.learnt(provider) is None


def test_other_errors_are_not_taken_for_refusals() -> None:
    provider = ScriptedClient([ServerError("overloaded"), "fine"])
    with pytest.raises(ServerError):
        Guarded(provider).ask(talk())
    assert len(provider.requests) == 1


@BOTH_WAYS
def test_after_the_first_word_nothing_is_sent_again(stream: bool) -> None:
    provider = ScriptedClient([["The ", REFUSAL(4_000, 2_000)], "fine"])
    guarded = Guarded(provider)
    with pytest.raises(ContextOverflowError):
        guarded.ask(talk(), stream=stream)
    assert len(provider.requests) == 1
    assert guarded.windows.learnt(provider) is None
    assert provider.open_streams == 0


# What is kept


def test_the_next_calls_need_no_refusal_and_go_on_from_the_same_beginning() -> None:
    provider = Picky(2_000)
    guarded = Guarded(provider)
    history = talk()
    first = guarded.ask(history)[-1]
    for _ in range(2):
        history = [*decoded_again(history), Message.assistant("fine"), Message.user("and then?")]
        (sent,) = guarded.ask(history)
        assert sent[: len(first)] == first
        first = sent
    assert len(provider.refusals) == 1
    assert len(guarded.capture.spans_named("compact_context truncate")) == 1


def test_what_was_cut_without_a_limit_to_go_by_stays_cut_too() -> None:
    provider = Picky(2_000, tells=nothing)
    guarded = Guarded(provider)
    first = guarded.ask(talk())[-1]
    (sent,) = guarded.ask([*talk(), Message.assistant("fine"), Message.user("and then?")])
    assert sent[: len(first)] == first


@pytest.mark.parametrize("told", [both, limit_only, nothing])
def test_other_conversations_of_the_model_profit_from_what_was_learnt(told: Telling) -> None:
    provider = Picky(2_000, tells=told)
    guarded = Guarded(provider)
    guarded.ask(talk())
    if told is nothing:  # what was refused and what was taken bound the limit, ever closer
        assert len(guarded.ask(talk(start="another "))) <= 2
    (sent,) = guarded.ask(talk(start="other "))
    assert size(sent) <= 2_000
    small = talk(15, "small ")
    assert guarded.ask(small) == [small]


@BOTH_WAYS
def test_where_no_limit_is_told_long_conversations_are_not_refused_again_and_again(stream: bool) -> None:
    """Each grows by a question and an answer from 1,900 tokens, up to and over the window of 2,000, and then on."""
    provider = Picky(2_000, tells=nothing)
    guarded = Guarded(provider)
    refused = []
    for start in ("one ", "two ", "three ", "four "):
        before, history = len(provider.refusals), talk(19, start)
        for number in range(20):
            guarded.ask(history, stream=stream)
            history = [*history, *talk(2, f"{start}more {number} ")]
        refused.append(len(provider.refusals) - before)
    assert refused[0] in (1, 2)
    assert refused[1:] == [0, 0, 0]


def test_what_was_taken_just_before_the_refusal_is_the_limit_that_is_learnt() -> None:
    provider = Picky(2_000, tells=nothing)
    guarded = Guarded(provider)
    guarded.ask(talk(19))
    guarded.ask([*talk(19), *talk(2, "more ")])
    assert guarded.windows.learnt(provider) == size(talk(19))


def test_the_sum_of_passes_between_which_the_server_ran_tools_raises_no_bound() -> None:
    found = ProviderItem("theirs", '{"type":"web_search_tool_result","tool_use_id":"s1","content":[]}')
    provider = Picky(2_000, tells=nothing, counter=CharCounter(4 / 3))
    provider.answers = [Message.assistant(found, "fine")]
    guarded = Guarded(provider)
    guarded.ask(talk())
    learnt = guarded.windows.learnt(provider)
    assert learnt is not None
    assert learnt <= size(talk())


def test_an_estimate_that_was_too_low_does_not_bind_other_conversations() -> None:
    """The refused one is three times as large as it was estimated, which the usage of the answer tells."""
    provider = Picky(6_000, weight=3.0, tells=nothing, counter=CharCounter(4 / 3))
    guarded = Guarded(provider)
    guarded.ask(talk())
    learnt = guarded.windows.learnt(provider)
    assert learnt is not None
    assert learnt >= 0.7 * 6_000


def test_other_models_do_not() -> None:
    provider = Picky(2_000)
    provider.concerned = lambda request: request.options.model == "small"
    guarded = Guarded(provider)
    assert len(guarded.ask(talk(), options=ChatOptions(model="small"))) == 2
    other = talk(start="other ")
    assert guarded.ask(other) == [other]
    assert guarded.ask(other, options=ChatOptions(model="large")) == [other]
    (sent,) = guarded.ask(other, options=ChatOptions(model="small"))
    assert size(sent) <= 2_000
    assert (guarded.windows.learnt(provider, "small"), guarded.windows.learnt(provider)) == (2_000, None)


def test_the_providers_own_model_and_its_name_in_the_options_are_one() -> None:
    provider = Picky(2_000, info=ProviderInfo(name="picky", model="small"))
    guarded = Guarded(provider)
    guarded.ask(talk(), options=ChatOptions(model="small"))
    assert len(guarded.ask(talk(start="other "))) == 1


def test_auto_goes_by_what_was_learnt_where_nobody_knew_the_window() -> None:
    provider = Picky(2_000)
    guarded = Guarded(provider, limit="auto")
    guarded.ask(talk())
    assert len(guarded.ask(talk(start="other "))) == 1


def test_auto_keeps_to_the_stated_window_whatever_nonsense_was_told() -> None:
    provider = ScriptedClient([REFUSAL(None, 9_000_000), "fine"], info=ProviderInfo(name="p", window_tokens=4_000))
    guarded = Guarded(provider, limit="auto")
    guarded.ask(talk())
    assert size(guarded.ask(talk(61, "long "))[-1]) <= 4_000


def test_a_tighter_limit_that_is_told_later_replaces_the_first() -> None:
    provider = Picky(2_000)
    guarded = Guarded(provider)
    guarded.ask(talk())
    provider.window = 1_000
    guarded.ask(talk(start="other "))
    assert guarded.windows.learnt(provider) == 1_000


def test_conversations_at_the_same_time_recover_each_for_itself() -> None:
    provider = Picky(2_000)
    guarded = Guarded(provider)
    talks = [talk(start=f"{number}: ") for number in range(100)]

    async def all_at_once() -> list[str]:
        answers = await asyncio.gather(*(guarded.client.get_response(each) for each in talks))
        return [answer.text for answer in answers]

    assert asyncio.run(all_at_once()) == ["fine"] * 100
    taken = [request.messages for request in provider.requests if size(request.messages) <= 2_000]
    assert {messages[0] for messages in taken} == {each[0] for each in talks}
    assert len(taken) == 100
    assert len(provider.refusals) <= 100
    assert provider.open_streams == 0


def test_calls_of_one_conversation_at_the_same_time_cut_it_the_same_way() -> None:
    provider = Picky(2_000)
    guarded = Guarded(provider)

    async def all_at_once() -> None:
        await asyncio.gather(*(guarded.client.get_response(talk()) for _ in range(10)))

    asyncio.run(all_at_once())
    taken = [request.messages for request in provider.requests if size(request.messages) <= 2_000]
    assert len(set(taken)) == 1
    assert len(taken) == 10


# With other layers


@BOTH_WAYS
@pytest.mark.parametrize("tells", [both, limit_only, nothing])
def test_a_guard_around_a_guard_leaves_it_the_recovery(tells: Telling, stream: bool) -> None:
    provider = Picky(2_000, tells=tells)
    capture = TelemetryCapture()
    stack = ChatStack(provider).use(ContextWindowGuard, max_context_tokens=500_000, prune_on_overflow=True)
    stack = stack.use(named("inner", ContextWindowGuard), max_context_tokens=1_000_000, prune_on_overflow=True)
    guarded = Guarded(provider)
    guarded.client = stack.build(capture.resolve)
    assert len(guarded.ask(talk(), stream=stream)) == 2
    assert capture.warnings == (EXCEEDED,)


def test_a_guard_around_a_guard_takes_its_refusal_for_no_measure_of_its_own() -> None:
    """The inner one has sent less than the outer one had weighed: that is no error of the outer one's estimate."""
    provider = Picky(1_000, tells=both)
    big = Message("user", talk(1)[0].parts * 25, pinned=True)  # what neither may remove, and nobody takes
    stack = ChatStack(provider).use(ContextWindowGuard, max_context_tokens=500_000, prune_on_overflow=True)
    stack = stack.use(named("inner", ContextWindowGuard), max_context_tokens=4_000, prune_on_overflow=True)
    guarded = Guarded(provider)
    guarded.client = stack.build(guarded.capture.resolve)
    with pytest.raises(ContextOverflowError) as caught:
        guarded.ask([big, *talk(61)])
    assert caught.value in provider.refusals
    assert len(provider.sizes) <= 16
    assert provider.sizes[-1] <= min(provider.sizes)


def test_the_size_of_what_somebody_further_in_has_left_is_not_taken_for_that_of_all() -> None:
    """The strategy inside sends 3,400 of 6,100 tokens. The refusal is of those."""
    provider, capture = Picky(2_000), TelemetryCapture()
    strategy = StrategyApplier(ModelTracer(provider), strategy=OldestFirst(max_tokens=4_000, target_tokens=2_800))
    guard = ContextWindowGuard(
        strategy,
        max_context_tokens=1_000_000,
        prune_on_overflow=True,
        services=ContextServices(telemetry=capture.telemetry),
    )
    asyncio.run(guard.get_response(talk(61)))
    assert provider.sizes == [3_400, 1_400]


def test_the_limit_of_what_somebody_further_in_has_left_is_learnt() -> None:
    provider, windows = Picky(2_000), Windows()
    strategy = StrategyApplier(ModelTracer(provider), strategy=OldestFirst(max_tokens=4_000, target_tokens=2_800))
    services = ContextServices(windows=windows)
    guard = ContextWindowGuard(strategy, max_context_tokens=1_000_000, prune_on_overflow=True, services=services)
    asyncio.run(guard.get_response(talk(181)))
    (refusal,) = provider.refusals
    assert refusal.actual is not None
    assert refusal.actual * 4 < size(talk(181))
    assert windows.learnt(provider) == 2_000


def test_what_was_cleared_stays_cleared_through_a_recovery() -> None:
    history: list[Message] = [Message.user("go")]
    for number in range(20):
        history.append(Message.assistant(f"step {number}", ToolCall(f"c{number}", "look", "{}")))
        history.append(Message.tool(f"c{number}", f"{number} ".ljust(2_000, "x")))
    provider = Picky(1_500)
    stack = ChatStack(provider).use(ToolResultClearer, trigger={"tokens": 4_000}, keep={"messages": 5})
    stack = stack.use(ContextWindowGuard, max_context_tokens=1_000_000, prune_on_overflow=True)
    guarded = Guarded(provider)
    guarded.client = stack.build(guarded.capture.resolve)
    cleared, taken = guarded.ask(history)
    assert all(message in cleared for message in taken)
    (sent,) = guarded.ask([*history, Message.assistant("fine"), Message.user("more")])
    assert sent[: len(taken)] == taken


def test_each_round_of_a_tool_loop_recovers() -> None:
    def look() -> str:
        """Look."""
        return "y" * 2_000

    script: list[Answer] = [Message.assistant(ToolCall("c", "look")), REFUSAL(4_000, 2_000), "fine"]
    provider = ScriptedClient(script)
    stack = ChatStack(provider).use(FunctionInvoker, tools=[look])
    stack = stack.use(ContextWindowGuard, max_context_tokens=1_000_000, prune_on_overflow=True)
    guarded = Guarded(provider)
    guarded.client = stack.build(guarded.capture.resolve)
    asked, refused, taken = guarded.ask(talk())
    assert asked == talk()
    assert size(taken) <= 1_400 < size(refused)
    assert taken[-2:] == refused[-2:]


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_call_that_is_cancelled_while_it_recovers_leaves_nothing_open(attempt: int) -> None:
    class Hanging(Picky):
        async def send(self, request: ChatRequest, /) -> ChatStream:
            if len(self.sizes) == attempt:
                self.sizes.append(size(request.messages))
                there.set()
                await asyncio.Event().wait()
            return await super().send(request)

    there = asyncio.Event()
    provider = Hanging(500, tells=nothing)
    guarded = Guarded(provider)

    async def cancelled() -> None:
        task = asyncio.ensure_future(guarded.client.get_response(talk()))
        await there.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert len(provider.sizes) == attempt + 1
    assert guarded.capture.open_spans == ()
    assert guarded.windows.learnt(provider) is None
    assert len(guarded.ask(talk())[-1]) < len(talk())


@pytest.mark.usefixtures("without_collector")
def test_a_stream_that_is_dropped_after_recoveries_ends_its_span_at_once() -> None:
    """Even where somebody keeps the refusals, as this provider does."""
    guarded = Guarded(Picky(1_000, tells=nothing))

    async def dropped() -> None:
        stream = await guarded.client.send(ChatRequest(tuple(talk()), stream=True))
        await anext(stream)
        assert guarded.capture.open_spans == ("chat script",)
        del stream

    asyncio.run(dropped())
    assert guarded.capture.open_spans == ()
    assert len(guarded.capture.spans_named("chat script")) == 3


# What is said


def test_one_warning_holds_the_edit_and_every_attempt_has_a_span() -> None:
    guarded = Guarded(Picky(2_000))
    guarded.ask(talk())
    assert guarded.capture.tree() == [
        ("chat script", []),
        ("context_guard", [("compact_context truncate", [])]),
        ("chat script", []),
    ]
    refused, taken = guarded.capture.spans_named("chat script")
    assert (refused.status, refused.attributes["error.type"]) == ("error", "ContextOverflowError")
    assert (taken.status, taken.attributes["gen_ai.usage.input_tokens"]) == ("unset", guarded_size(guarded))
    assert taken.attributes["gen_ai.conversation.compacted"] is True
    assert "gen_ai.conversation.compacted" not in refused.attributes
    (warning,) = guarded.capture.spans_named("context_guard")
    assert guarded.capture.warnings == (EXCEEDED,)
    assert warning.attributes["chatstack.guard.action"] == "prune"
    assert warning.attributes["chatstack.context.input_tokens"] == size(talk())
    assert warning.attributes["chatstack.context.window_tokens"] == 2_000
    assert warning.attributes["chatstack.warning.message"] == (
        f"pruned: the provider refused about {size(talk()):,} tokens as too long; 2,000 at most are sent next"
    )


def guarded_size(guarded: Guarded) -> int:
    return size(guarded.provider.requests[-1].messages)


def test_the_warning_tells_the_true_size_and_not_the_estimate() -> None:
    guarded = Guarded(Picky(5_000, weight=2.5))
    guarded.ask(talk())
    (warning,) = guarded.capture.spans_named("context_guard")
    assert warning.attributes["chatstack.context.input_tokens"] == int(size(talk()) * 2.5)


def test_each_refusal_is_warned_of_in_a_span_of_its_own() -> None:
    guarded = Guarded(Picky(1_000, tells=nothing))
    attempts = len(guarded.ask(talk()))
    assert attempts == 3
    guard: SpanTree = ("context_guard", [("compact_context truncate", [])])
    chat: SpanTree = ("chat script", [])
    assert guarded.capture.tree() == [chat, guard, chat, guard, chat]


# G3: levels, with sizes that reports have corrected


class Times(CharCounter):
    """Counts that many times what the default counter does."""

    def __init__(self, weight: float) -> None:
        super().__init__(4)
        self.weight = weight

    def count_message(self, message: Message) -> int:
        return round(super().count_message(message) * self.weight)


def levels_of(
    weight: float, limit: int, lengths: Sequence[int], *, stream: bool, named: bool, **options: Any
) -> list[list[str]]:
    """What is warned of, call by call, while a conversation of 100 tokens a message grows to those lengths."""
    capture = TelemetryCapture()
    stack = ChatStack(ScriptedClient(["fine"], counter=Times(weight))).use(
        ContextWindowGuard, max_context_tokens=limit, **options
    )
    client = stack.build(capture.resolve)
    said: list[list[str]] = []

    async def grow() -> None:
        for length in lengths:
            before = len(capture.warnings)
            name = "c" if named else None
            if stream:
                async with client.get_streaming_response(talk(length), conversation_id=name) as answer:
                    await answer.response()
            else:
                await client.get_response(talk(length), conversation_id=name)
            said.append(list(capture.warnings[before:]))

    asyncio.run(grow())
    return said


@BOTH_WAYS
@pytest.mark.parametrize("named", [False, True], ids=["without an id", "with an id"])
def test_a_false_alarm_is_taken_back_and_the_true_crossing_is_warned_of(named: bool, stream: bool) -> None:
    """At nine messages the estimate is near the limit, and twice too high."""
    said = levels_of(0.5, 1_000, [9, 10, 12, 13, 14, 15, 17, 18, 20], stream=stream, named=named)
    assert said == [[NEAR], [], [], [], [], [NEAR], [], [], [EXCEEDED]]


@BOTH_WAYS
@pytest.mark.parametrize("named", [False, True], ids=["without an id", "with an id"])
def test_what_is_larger_than_estimated_is_warned_of_as_soon_as_that_is_known(named: bool, stream: bool) -> None:
    said = levels_of(2.0, 2_000, [7, 8, 9, 10, 11, 12], stream=stream, named=named)
    assert said == [[], [], [NEAR], [], [EXCEEDED], []]


@BOTH_WAYS
def test_every_call_repeats_it_by_corrected_sizes(stream: bool) -> None:
    said = levels_of(2.0, 2_000, [5, 7, 8, 9, 10, 11, 12], stream=stream, named=True, every_call=True)
    assert said == [[], [], [], [NEAR], [NEAR], [EXCEEDED], [EXCEEDED]]
