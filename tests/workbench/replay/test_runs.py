"""A policy's figures: the same in whatever order, unless memory is shared; and by its own counter, if it is told to."""

from __future__ import annotations

import dataclasses
import random
import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from chatstack import (
    FROM_CONTAINER,
    ChatClient,
    ChatRequest,
    ChatResponse,
    ChatStack,
    ChatStream,
    ContextMemory,
    ContextWindowGuard,
    InputError,
    Telemetry,
)
from chatstack.client.protocol import provider_info
from chatstack.tokens.default import default_counter
from chatstack.tokens.estimating import EstimatingCounter
from chatstack.workbench.replay.measures.figures import Dearest, PolicyFigures
from chatstack.workbench.replay.measures.measuring import WireCounter
from chatstack.workbench.replay.parallel import replay
from chatstack.workbench.replay.policies import Policy, policies_for
from chatstack.workbench.replay.reading.recordings import Recording
from chatstack.workbench.replay.setup import Setup
from tests.workbench.replay.conversations import (
    assistant,
    conversation,
    outcome_of,
    recording,
    result,
    setup_of,
    talk,
    user,
)


class Tally:
    """A service of a stack: what a layer learns outlives a client."""

    shared_by_stack: ClassVar[bool] = True

    def __init__(self) -> None:
        self.calls = 0


@dataclass(frozen=True, slots=True, eq=False)
class Tiring:
    """Sends one message less with every three calls that it has seen anywhere."""

    inner: ChatClient
    _: KW_ONLY
    tally: Tally = FROM_CONTAINER
    memory: ContextMemory = FROM_CONTAINER
    telemetry: Telemetry = FROM_CONTAINER

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.tally.calls += 1
        left = request.messages[: max(1, len(request.messages) - self.tally.calls // 3)]
        return await self.inner.send(request.but(messages=left))


def tiring(ceiling: int, model: ChatClient) -> ChatStack:
    return ChatStack(model).use(Tiring)


def recordings() -> list[Recording]:
    """Some begin alike, and two are the same."""
    return [recording(talk(turns, 30) | {"id": f"talk-{at}"}, line=at) for at, turns in enumerate((6, 3, 9, 3, 12, 7))]


def by_policy(setup: Setup, items: Sequence[Recording], jobs: int = 1) -> list[PolicyFigures]:
    """Without the time that was taken, and the numbers of conversations, which are in the order of the input."""
    return [
        dataclasses.replace(each, cpu_seconds=0.0, dearest=each.dearest and each.dearest._replace(number=0))
        for each in replay(setup, items, jobs=jobs).figures
    ]


@pytest.fixture(params=[False, True], ids=["measured", "own counters"])
def setup(tmp_path: Path, request: pytest.FixtureRequest) -> Setup:
    """All that is there, and stacks whose layers have services: budgets, attempts, learnt windows, a memory."""
    path = tmp_path / "much.json"
    layers = '{"use": "Budget", "max_tokens": 9000, "per": "conversation"}, {"use": "Summarizer", "max_tokens": 900}'
    guard = '{"use": "ContextWindowGuard", "max_context_tokens": "auto", "prune_on_overflow": true}'
    path.write_text(f'{{"layers": [{layers}, {guard}]}}')
    policies = (*policies_for([path]), Policy("tiring", tiring))
    return Setup(policies, window=1_000, counter=WireCounter.best(), own_counter=request.param)


@pytest.mark.slow
def test_figures_depend_neither_on_the_order_of_the_input_nor_on_the_number_of_processes(setup: Setup) -> None:
    items = recordings()
    expected = by_policy(setup, items)
    assert all(each.edits for each in expected if each.name not in ("nothing", "tiring"))

    for seed in range(3):
        random.Random(seed).shuffle(items)
        assert by_policy(setup, items) == expected
    assert by_policy(setup, items, jobs=2) == expected


def test_with_a_shared_memory_what_was_learnt_goes_on() -> None:
    fresh = setup_of(Policy("tiring", tiring))
    shared = dataclasses.replace(fresh, shared_memory=True)
    items = recordings()

    assert by_policy(shared, items)[0].tokens_sent < by_policy(fresh, items)[0].tokens_sent
    assert by_policy(shared, items) != by_policy(shared, items[::-1])
    assert by_policy(shared, items) == by_policy(shared, items)


def test_a_shared_memory_is_in_one_process() -> None:
    setup = dataclasses.replace(setup_of(Policy("tiring", tiring)), shared_memory=True)

    with pytest.raises(InputError, match="one process"):
        replay(setup, recordings(), jobs=2)


@dataclass(frozen=True, slots=True, eq=False)
class Keeping:
    """Keeps the memories that it was given, and closes."""

    inner: ChatClient
    given: list[ContextMemory]
    closed: list[bool]
    memory: ContextMemory = FROM_CONTAINER

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.given.append(self.memory)
        return await self.inner.send(request)

    async def aclose(self) -> None:
        self.closed.append(True)


@pytest.mark.parametrize(("shared", "memories"), [(False, 6), (True, 1)])
def test_each_conversation_has_a_memory_and_a_client_of_its_own_unless_it_is_shared(
    shared: bool, memories: int
) -> None:
    given: list[ContextMemory] = []
    closed: list[bool] = []
    policy = Policy("keeping", lambda ceiling, model: ChatStack(model).use(Keeping, given=given, closed=closed))

    replay(dataclasses.replace(setup_of(policy), shared_memory=shared), recordings())

    assert len({id(each) for each in given}) == memories
    assert len(closed) == 7


def test_what_there_is_to_say_of_a_stack_is_said_once() -> None:
    def doubtful(ceiling: int, model: ChatClient) -> ChatStack:
        return ChatStack(model).use(Doubtful)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        replay(setup_of(Policy("doubtful", doubtful)), recordings())

    assert [str(each.message) for each in told] == ["doubtful"]


@dataclass(frozen=True, slots=True, eq=False)
class Doubtful:
    """Warns of itself when it is made."""

    inner: ChatClient

    def __post_init__(self) -> None:
        warnings.warn("doubtful", stacklevel=2)

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request)


@dataclass(frozen=True, slots=True, eq=False)
class Dropping:
    """Leaves out every user message but the first."""

    inner: ChatClient

    async def send(self, request: ChatRequest, /) -> ChatStream:
        users = [each for each in request.messages if each.role == "user"]
        kept = tuple(each for each in request.messages if each not in users[1:])
        return await self.inner.send(request.but(messages=kept))


def test_a_lost_latest_user_message_is_counted() -> None:
    policy = Policy("dropping", lambda ceiling, model: ChatStack(model).use(Dropping))
    talk = conversation(user("one"), assistant("a"), user("two"), assistant("b"), assistant("c"))

    (figures,) = outcome_of(setup_of(policy, *policies_for([], ["nothing"])), recording(talk), recording(talk)).figures[
        :1
    ]

    assert (figures.calls, figures.latest_user_lost, figures.invalid_requests) == (6, 4, 0)


def test_the_dearest_conversation_is_the_one_with_the_highest_relative_cost() -> None:
    (sliding, nothing), items = policies_for([], ["sliding-window", "nothing"]), recordings()

    outcome = outcome_of(setup_of(sliding, nothing), *items)

    alone = [outcome_of(setup_of(sliding), each) for each in items]
    costs = [each.figures[0].cost_relative(each.everything.spending) or 0.0 for each in alone]
    at = costs.index(max(costs))
    assert len(set(costs)) == 3
    assert outcome.figures[0].dearest == Dearest(costs[at], at + 1, f"talk-{at}")
    assert outcome.figures[1].dearest == Dearest(1.0, 1, "talk-0")


def test_of_a_conversation_with_refused_calls_no_cost_is_known() -> None:
    outcome = outcome_of(setup_of(Policy("strict", strict), window=20), recording(talk(1)))

    assert (outcome.figures[0].refused, outcome.figures[0].dearest) == (1, None)


def strict(ceiling: int, model: ChatClient) -> ChatStack:
    return ChatStack(model).use(ContextWindowGuard, max_context_tokens=ceiling, strict=True)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gpt-5-mini", "openai"),
        ("openai/o3", "openai"),
        ("anthropic/claude-sonnet-4-5", "anthropic"),
        ("google/gemini-3-pro-preview", "gcp.gemini"),
        ("llama-4", "recording"),
        ("", "recording"),
    ],
)
def test_layers_that_count_by_themselves_count_as_with_the_recorded_models_provider(model: str, name: str) -> None:
    seen: list[tuple[str, str, bool]] = []

    def stack(ceiling: int, inner: ChatClient) -> ChatStack:
        return ChatStack(inner).use(Looking, seen=seen)

    setup = dataclasses.replace(setup_of(Policy("looking", stack)), own_counter=True)
    outcome_of(setup, recording(talk(1) | {"model": model}))

    estimates = name != "recording"
    assert seen[-1] == (name, model, estimates)


@dataclass(frozen=True, slots=True, eq=False)
class Looking:
    """Notes the provider behind it, when it is made."""

    inner: ChatClient
    seen: list[tuple[str, str, bool]]

    def __post_init__(self) -> None:
        info = provider_info(self.inner)
        assert info is not None
        self.seen.append((info.name, info.model, isinstance(default_counter(self.inner), EstimatingCounter)))

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request)


def test_what_a_policys_own_counter_misjudges_shows_as_calls_over_the_window() -> None:
    """Measured is each character, four times what the guard takes it for."""
    long = conversation(
        *(user("hello"), assistant(None, "a"), result("a", "seen " * 120), assistant("so")),
        *(user("and?"), assistant(None, "b"), result("b", "seen " * 120), assistant("so")),
        model="llama-4",
    )
    (guard,) = policies_for([], ["guard"])
    setup = setup_of(guard, window=1_000)

    exact = outcome_of(dataclasses.replace(setup, counter=WireCounter.best()), recording(long)).figures[0]
    own = outcome_of(dataclasses.replace(setup, own_counter=True), recording(long)).figures[0]

    assert (exact.calls, exact.over_limit) == (4, 0)
    assert own.over_limit > 0
    assert own.peak_tokens > 1_000


def test_a_provider_reports_the_measured_size_of_each_call() -> None:
    usages: list[tuple[int, int]] = []

    def stack(ceiling: int, model: ChatClient) -> ChatStack:
        return ChatStack(model).use(Reading, usages=usages)

    setup = dataclasses.replace(setup_of(Policy("reading", stack)), own_counter=True)
    outcome = outcome_of(setup, recording(conversation(user("hello"), assistant("hi"), user("so"), assistant("bye"))))

    assert usages == [(9, 6), (21, 7)]
    assert outcome.figures[0].tokens_sent == 30
    usages.clear()
    outcome_of(dataclasses.replace(setup, own_counter=False), recording(conversation(user("hello"), assistant("hi"))))
    assert usages == [(0, 0)]


def test_a_provider_reports_what_comes_from_the_cache_that_is_paid_for() -> None:
    """Else layers would take the cache for cold, and edit whenever they can."""
    cached: list[int] = []

    def stack(ceiling: int, model: ChatClient) -> ChatStack:
        return ChatStack(model).use(Reading, usages=[], cached=cached)

    setup = dataclasses.replace(setup_of(Policy("reading", stack)), own_counter=True)
    said = (user("hello " * 300), assistant("hi"), user("so"), assistant("bye"))
    figures = outcome_of(setup, recording(conversation(*said))).figures[0]

    assert cached[0] == 0
    assert cached[1] == figures.spending.tokens_read > 1_024
    cached.clear()
    outcome_of(dataclasses.replace(setup, pause_seconds=600.0), recording(conversation(*said)))
    assert cached == [0, 0]


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Notes what is reported."""

    inner: ChatClient
    usages: list[tuple[int, int]]
    cached: list[int] = field(default_factory=list[int])

    async def send(self, request: ChatRequest, /) -> ChatStream:
        stream = await self.inner.send(request)
        stream.when_answered(self._note)
        return stream

    def _note(self, response: ChatResponse) -> None:
        self.usages.append((response.usage.input_tokens, response.usage.output_tokens))
        self.cached.append(response.usage.cache_read_tokens)
