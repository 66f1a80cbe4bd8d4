"""Long work is done beside the event loop: others go on meanwhile, and nothing is left where a call is cancelled."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field

import pytest

from chatstack import ChatStack, Message, Plan, Strategy
from chatstack.context.edits.context import Context
from chatstack.context.requests.asking import MANY, Asking, answered, aside
from chatstack.testing import ScriptedClient

LONG = [Message.user("Begin."), *(Message.assistant(f"Step {at}.") for at in range(MANY)), Message.user("Go on.")]


@dataclass(frozen=True)
class SlowToDrop(Strategy):
    """Drops the first answer, once it is allowed to go on."""

    may_go_on: threading.Event = field(default_factory=threading.Event)
    has_begun: threading.Event = field(default_factory=threading.Event)
    fails: bool = False

    def plan(self, context: Context) -> Plan | None:
        self.has_begun.set()
        assert self.may_go_on.wait(300)
        if self.fails:
            raise ArithmeticError("no plan")
        return Plan(strategy=self.name, reason="too old", drop=(1,)) if len(context.messages) == len(LONG) else None


async def begun(strategy: SlowToDrop) -> None:
    assert await asyncio.to_thread(strategy.has_begun.wait, 300)


def test_others_have_the_event_loop_while_a_long_conversation_is_planned() -> None:
    async def run() -> int:
        model, strategy = ScriptedClient(["fine"]), SlowToDrop()
        client = ChatStack(model).use(strategy).build()
        call = asyncio.ensure_future(client.get_response(LONG))
        await begun(strategy)  # would never come back if the plan held the loop
        strategy.may_go_on.set()
        await call
        return len(model.requests[0].messages)

    assert asyncio.run(run()) == len(LONG) - 1


@dataclass(frozen=True)
class Located(Strategy):
    """Notes the thread that each plan is made in."""

    aside_from = 8
    threads: list[int] = field(default_factory=list[int], compare=False)

    def plan(self, context: Context) -> Plan | None:
        self.threads.append(threading.get_ident())
        return None


@pytest.mark.parametrize(("messages", "is_aside"), [(7, False), (8, True)])
def test_a_strategy_says_from_which_length_on_it_is_asked_in_a_thread(messages: int, is_aside: bool) -> None:
    """For the request at hand, and for the earlier ones that its history tells of."""
    strategy = Located()
    history = [Message.user("Begin."), *(Message.assistant(f"Step {at}.") for at in range(messages - 2))]
    client = ChatStack(ScriptedClient(["fine"])).use(strategy).build()
    asyncio.run(client.get_response([*history, Message.user("Go on.")]))
    assert {each != threading.get_ident() for each in strategy.threads} == {is_aside}


def test_where_no_thread_can_be_started_it_is_asked_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = Located()
    client = ChatStack(ScriptedClient(["fine"])).use(strategy).build()
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert asyncio.run(client.get_response(LONG)).text == "fine"
    assert set(strategy.threads) == {threading.get_ident()}


def no_thread(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_an_error_of_a_strategy_comes_out_of_the_call() -> None:
    async def run() -> None:
        strategy = SlowToDrop(fails=True)
        strategy.may_go_on.set()
        await ChatStack(ScriptedClient(["fine"])).use(strategy).build().get_response(LONG)

    with pytest.raises(ArithmeticError, match="no plan"):
        asyncio.run(run())


def test_a_call_that_is_cancelled_meanwhile_sends_nothing_and_the_next_one_plans_anew() -> None:
    async def run() -> list[int]:
        model, strategy = ScriptedClient(["fine"]), SlowToDrop()
        client = ChatStack(model).use(strategy).build()
        call = asyncio.ensure_future(client.get_response(LONG))
        await begun(strategy)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert model.requests == []
        strategy.may_go_on.set()
        await client.get_response(LONG)
        return [len(each.messages) for each in model.requests]

    assert asyncio.run(run()) == [len(LONG) - 1]


def test_of_many_at_once_one_is_worked_on_at_a_time() -> None:
    at_work, most = 0, 0

    def work() -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        threading.Event().wait(0.001)
        at_work -= 1

    def core() -> Asking[None]:
        yield from aside(work, MANY)

    async def run() -> None:
        await asyncio.gather(*(answered(core()) for _ in range(50)))

    asyncio.run(run())
    assert most == 1


def test_what_is_short_stays_where_it_is() -> None:
    def core() -> Asking[int]:
        return (yield from aside(threading.get_ident, MANY - 1))

    assert asyncio.run(answered(core())) == threading.get_ident()
