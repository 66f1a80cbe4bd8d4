"""Attempts at summaries: one at a time for each history, and none while it would only fail again."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass

import msgspec
import pytest

from chatstack import ChatRequest, Message, SummaryAttempts, Usage
from chatstack.client.protocol import ProviderInfo
from chatstack.client.stream import ChatStream
from chatstack.context.memory.memory import ContextMemory
from chatstack.context.requests.attempts import Leave
from chatstack.context.requests.opened import Opened
from chatstack.testing import ScriptedClient
from tests.context.strictness import context_of
from tests.context.test_outages import Clock

OWNER = "summarizer"
MEMORY = ContextMemory()
NUMBERS = itertools.count()


def opened(*messages: Message, conversation_id: str | None = None) -> Opened:
    """A request on its way through a layer."""
    context = context_of(messages)
    request = context.request.but(conversation_id=conversation_id)
    return Opened(msgspec.structs.replace(context, request=request), MEMORY.recognise(messages), "script")


def a_history() -> Opened:
    """A conversation that is like no other."""
    return opened(Message.user(f"conversation {next(NUMBERS)}"), Message.assistant("fine"), Message.user("more"))


@dataclass(eq=False)
class Wrapped:
    """A layer around a client."""

    inner: ScriptedClient

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request)


class Trying:
    """Attempts of one client, and time that passes when it is told to."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.attempts = SummaryAttempts()
        self.client = ScriptedClient()

    def leave(
        self, history: Opened, *, client: ScriptedClient | Wrapped | None = None, owner: str = OWNER
    ) -> Leave | None:
        return self.attempts.leave(client or self.client, owner, history, self.clock)

    def must_leave(self, history: Opened, client: ScriptedClient | Wrapped | None = None) -> Leave:
        leave = self.leave(history, client=client)
        assert leave is not None
        return leave


def test_a_history_whose_summary_went_wrong_rests_and_others_do_not() -> None:
    trying, history = Trying(), a_history()
    assert trying.must_leave(history).failed(is_outage=False) == 15
    trying.clock.now += 14.9
    assert trying.leave(history) is None
    assert trying.leave(a_history()) is not None
    trying.clock.now += 0.1
    assert trying.leave(history) is not None


def test_a_history_rests_twice_as_long_each_time_up_to_ten_minutes() -> None:
    trying, history = Trying(), a_history()
    rests: list[float] = []
    for _ in range(8):
        rests.append(trying.must_leave(history).failed(is_outage=False))
        trying.clock.now += rests[-1]
    assert rests == [15, 30, 60, 120, 240, 480, 600, 600]


def test_a_client_that_is_away_is_left_alone_by_every_history() -> None:
    trying = Trying()
    trying.must_leave(a_history()).failed(is_outage=True)
    trying.clock.now += 4.9
    assert trying.leave(a_history()) is None
    trying.clock.now += 0.1
    assert trying.leave(a_history()) is not None
    assert trying.leave(a_history()) is None  # one at a time, until it is back


def test_a_client_rests_twice_as_long_each_time_up_to_a_minute() -> None:
    trying = Trying()
    rests: list[float] = []
    for _ in range(6):
        trying.must_leave(a_history()).failed(is_outage=True)
        began = trying.clock.now
        while (leave := trying.leave(a_history())) is None:
            trying.clock.now += 1
        leave.gave_up(0.0)
        rests.append(trying.clock.now - began)
    assert rests == [5, 10, 20, 40, 60, 60]


def test_a_wrong_answer_says_that_the_client_is_there() -> None:
    trying = Trying()
    for _ in range(4):
        trying.must_leave(a_history()).failed(is_outage=True)
        trying.clock.now += 60
    trying.must_leave(a_history()).failed(is_outage=False)
    assert [trying.leave(a_history()) is not None for _ in range(3)] == [True] * 3


def test_a_summary_ends_the_rests_of_both() -> None:
    trying, history = Trying(), a_history()
    for _ in range(3):
        trying.must_leave(history).failed(is_outage=True)
        trying.clock.now += 600
    trying.must_leave(history).succeeded()
    assert trying.must_leave(history).failed(is_outage=True) == 15
    assert trying.leave(a_history()) is None
    trying.clock.now += 5
    assert trying.leave(a_history()) is not None


def test_whoever_is_cancelled_lets_the_next_one_try_at_once() -> None:
    trying, history = Trying(), a_history()
    trying.must_leave(history).failed(is_outage=True)
    trying.clock.now += 15
    leave = trying.must_leave(history)
    assert trying.leave(history) is None
    leave.gave_up(0.0)
    assert trying.leave(history) is not None


def test_a_history_may_try_as_soon_as_its_client_is_back() -> None:
    """Being told that the client rests is no attempt: it does not lengthen the rest of the history."""
    trying, history = Trying(), a_history()
    trying.must_leave(history).failed(is_outage=False)
    trying.must_leave(a_history()).failed(is_outage=True)  # rests until 5
    trying.clock.now += 5
    trying.must_leave(a_history()).failed(is_outage=True)  # rests until 15
    trying.clock.now += 10
    probe = trying.must_leave(a_history())
    assert trying.leave(history) is None  # its own rest is over, the client's is not
    probe.succeeded()
    assert trying.leave(history) is not None


def test_layers_around_one_provider_are_one_client() -> None:
    trying = Trying()
    trying.must_leave(a_history(), Wrapped(trying.client)).failed(is_outage=True)
    assert trying.leave(a_history(), client=Wrapped(trying.client)) is None
    assert trying.leave(a_history()) is None
    assert trying.leave(a_history(), client=ScriptedClient()) is not None


def test_a_client_that_sends_for_several_callers_rests_for_one_alone() -> None:
    trying = Trying()
    trying.client.info = ProviderInfo(name="shared", scope="one")
    trying.must_leave(a_history()).failed(is_outage=True)
    assert trying.leave(a_history()) is None
    trying.client.info = ProviderInfo(name="shared", scope="other")
    trying.must_leave(a_history()).failed(is_outage=True)
    trying.clock.now += 5
    trying.client.info = ProviderInfo(name="shared", scope="one")
    trying.must_leave(a_history()).succeeded()


def test_differently_configured_summarizers_of_one_history_rest_apart() -> None:
    trying, history = Trying(), a_history()
    trying.must_leave(history).failed(is_outage=False)
    assert trying.leave(history) is None
    assert trying.leave(history, owner="another summarizer") is not None


def test_so_many_clients_are_known_and_no_more() -> None:
    trying = Trying()
    clients = [ScriptedClient() for _ in range(200)]
    for client in clients:
        trying.must_leave(a_history(), client).failed(is_outage=True)
    rest = [trying.leave(a_history(), client=client) is None for client in clients[::-1][:64]]
    assert rest == [True] * 64
    assert trying.leave(a_history(), client=clients[0]) is not None


def test_what_rests_is_never_taken_for_another_client_that_came_to_lie_in_its_place() -> None:
    trying = Trying()
    for _ in range(50):
        client = ScriptedClient()
        trying.must_leave(a_history(), client).failed(is_outage=True)
        del client


def test_of_those_who_would_summarize_the_same_one_is_let_in_at_a_time() -> None:
    attempts = SummaryAttempts()
    inside: list[str] = []
    most: list[int] = []

    async def summarize(key: str) -> None:
        let_next_in = await attempts.enter(key)
        inside.append(key)
        most.append(inside.count(key))
        assert len({*inside}) <= 2
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        inside.remove(key)
        let_next_in()

    async def all_at_once() -> None:
        await asyncio.gather(*(summarize(key) for key in "ab" * 5))

    asyncio.run(all_at_once())
    assert most == [1] * 10


def test_a_stack_shares_one_and_its_repr_tells_nothing_of_anybody() -> None:
    assert SummaryAttempts.shared_by_stack
    assert repr(SummaryAttempts()) == "SummaryAttempts()"


@pytest.mark.parametrize("is_outage", [True, False])
def test_two_attempts_that_fail_together_are_one_failure(is_outage: bool) -> None:
    trying, history = Trying(), a_history()
    one, other = trying.must_leave(history), trying.must_leave(history)
    assert one.failed(is_outage=is_outage) == other.failed(is_outage=is_outage) == 15
    trying.clock.now += 15
    assert trying.leave(history) is not None


# By what a history is known


def test_a_history_that_has_grown_is_still_the_same() -> None:
    trying = Trying()
    messages = [Message.user("task"), Message.assistant("a"), Message.user("and?")]
    trying.must_leave(opened(*messages)).failed(is_outage=False)
    messages += [Message.assistant("b"), Message.user("now")]
    assert trying.leave(opened(*messages)) is None
    trying.clock.now += 15
    assert trying.must_leave(opened(*messages)).failed(is_outage=False) == 30


def test_a_conversation_is_known_by_its_id_and_how_it_began() -> None:
    trying = Trying()
    trying.must_leave(opened(Message.user("a"), conversation_id="c-42")).failed(is_outage=False)
    assert trying.leave(opened(Message.user("a"), Message.assistant("b"), conversation_id="c-42")) is None
    assert trying.leave(opened(Message.user("quite another"), conversation_id="c-42")) is not None
    assert trying.leave(opened(Message.user("a"), conversation_id="c-43")) is not None


def test_whether_one_rests_can_be_asked_without_taking_leave() -> None:
    trying, history = Trying(), a_history()

    def rests(of: Opened) -> bool:
        return trying.attempts.rests(trying.client, OWNER, of, trying.clock)

    assert not rests(history)
    trying.must_leave(history).failed(is_outage=False)
    assert rests(history)
    assert not rests(a_history())
    trying.clock.now += 15
    assert not rests(history)
    trying.must_leave(history).failed(is_outage=True)
    assert rests(a_history())


# What was spent


def test_what_is_owed_is_added_up_and_told_once_to_that_history() -> None:
    trying, history = Trying(), a_history()
    trying.attempts.owe(OWNER, history, Usage(10, 1), trying.clock)
    trying.attempts.owe(OWNER, history, Usage(20, 2), trying.clock)
    assert trying.attempts.settle(OWNER, a_history()) == Usage()
    assert trying.attempts.settle("another", history) == Usage()
    assert trying.attempts.settle(OWNER, history) == Usage(30, 3)
    assert trying.attempts.settle(OWNER, history) == Usage()


def test_a_history_that_owes_does_not_rest() -> None:
    trying, history = Trying(), a_history()
    trying.attempts.owe(OWNER, history, Usage(10, 1), trying.clock)
    assert trying.leave(history) is not None


def test_a_client_that_hangs_longer_than_its_callers_wait_is_not_waited_for_on_every_call() -> None:
    trying, history = Trying(), a_history()
    trying.must_leave(history).gave_up(5.0)
    assert trying.leave(history) is None
    trying.clock.now += 15
    assert trying.leave(history) is not None
