"""What a loop does about uses that nobody has in mind: each ends with a reason, or is refused where it is made."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from chatstack import (
    Budget,
    BudgetExceeded,
    ChatStack,
    Fallback,
    FunctionInvoker,
    InputError,
    IterativeContext,
    IterativeLoop,
    IterativeResult,
    MemoryWorkspace,
    Message,
    ProviderInfo,
    ServerError,
    StoreError,
    WiringError,
    tool,
)
from chatstack.errors import StreamBusyError
from chatstack.stores.sqlite_journal import SQLiteJournal
from chatstack.testing import ScriptedClient
from chatstack.tokens.prices import Price, Rate
from chatstack.tools.turn import CUT_OFF
from tests.loop.runs import call, looped, numbered


def test_a_misspelt_option_is_told_with_the_name_of_the_class_that_was_written() -> None:
    with pytest.raises(TypeError, match=r"IterativeLoop\.__init__\(\) got an unexpected keyword argument 'max_turns'"):
        IterativeLoop(ScriptedClient(), "", lambda _: "", max_turns=3)  # type: ignore[call-arg]


def fresh(run_id: str | None = None) -> IterativeContext:
    return IterativeContext(workspace=MemoryWorkspace(), run_id=run_id)


def price(model: str, dollars: int) -> Price:
    rate = Rate(Decimal(dollars))
    return Price(model, "p", rate, rate, rate, output=rate)


def test_a_context_is_for_one_run_also_while_that_goes_on() -> None:
    loop, context = looped(["fine"]), fresh()
    loop.iterations(context)
    with pytest.raises(InputError, match="a new one needs a new context"):
        loop.iterations(context)


def test_a_run_is_read_by_one_task_at_a_time() -> None:
    async def main() -> None:
        asked = asyncio.Event()

        async def slow(context: IterativeContext) -> str:
            asked.set()
            await asyncio.sleep(3_600)
            return "never"

        run = looped(["fine"], slow).iterations(fresh())
        reader = asyncio.create_task(anext(run))
        await asked.wait()
        with pytest.raises(StreamBusyError):
            await anext(run)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert (await run.result()).reason == "cancelled"

    asyncio.run(main())


def test_a_run_that_is_closed_asks_nobody_any_more() -> None:
    async def main() -> None:
        client = ScriptedClient([Message.assistant(call("look", what="a"))])
        run: Any = None

        @tool
        async def look(what: str) -> str:
            """Looks, and closes the run."""
            await run.aclose()
            return what

        run = looped(client, tools=[look], mode="multi_round").iterations(fresh())
        result = await run.result()
        assert (result.reason, len(client.requests)) == ("cancelled", 1)

    asyncio.run(main())


@pytest.mark.parametrize("state", [{"a": (1, 2)}, {"a": {1}}, {1: "a"}, {"a": float("nan")}, {"a": b"x"}])
def test_a_state_that_would_come_back_as_something_else_is_refused(state: dict[Any, Any], tmp_path: Path) -> None:
    async def main() -> IterativeResult:
        journal, context = SQLiteJournal(tmp_path / "runs.db"), fresh("r")
        context.state.update(state)
        result = await looped(["fine"], journal=journal).run(context)
        await journal.aclose()
        return result

    result = asyncio.run(main())
    assert result.reason == "error"
    with pytest.raises(InputError, match=r"context\.state"):
        raise result.error or AssertionError


def test_a_run_of_another_loop_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    async def main() -> None:
        journal = SQLiteJournal(tmp_path / "runs.db")
        first = await looped(["found"], journal=journal, name="research").run(fresh("job-7"))
        assert first.reason == "answered"
        second = await looped(["written"], journal=journal, name="writing").run(fresh("job-7"))
        assert (second.reason, type(second.error)) == ("error", StoreError)
        assert "one of the loop 'research', not of 'writing'" in str(second.error)
        await journal.aclose()

    asyncio.run(main())


def test_the_model_that_answered_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    prices = {"small": price("small", 1), "large": price("large", 10)}
    monkeypatch.setattr("chatstack.layers.spending.price_of", prices.get)
    down = ScriptedClient([ServerError("down")], info=ProviderInfo(name="p", model="small"))
    client = (
        ChatStack(down)
        .use(Fallback, clients=[ScriptedClient(["fine"], info=ProviderInfo(name="p", model="large"))])
        .build()
    )
    result = asyncio.run(looped(client, max_cost=1).run(fresh()))
    assert result.cost == prices["large"].of_usage(result.usage)


def test_a_copy_with_another_client_has_the_price_of_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    prices = {"small": price("small", 1), "large": price("large", 10)}
    monkeypatch.setattr("chatstack.layers.spending.price_of", prices.get)
    loop = looped(ScriptedClient(["fine"], info=ProviderInfo(name="p", model="small")), max_cost=1)
    copy = replace(loop, client=ScriptedClient(["fine"], info=ProviderInfo(name="p", model="large")))
    assert (loop.asked_price, copy.asked_price) == (prices["small"], prices["large"])


def test_a_budget_of_somebody_else_is_an_error_of_the_prompt() -> None:
    async def prompt(context: IterativeContext) -> str:
        raise BudgetExceeded("of my own small client")

    result = asyncio.run(looped(["fine"], prompt).run(fresh()))
    assert (result.reason, str(result.error)) == ("error", "of my own small client")


def test_what_a_hook_cancels_of_its_own_is_an_error() -> None:
    async def prompt(context: IterativeContext) -> str:
        task = asyncio.create_task(asyncio.sleep(3_600))
        task.cancel()
        await task
        return "never"

    result = asyncio.run(looped(["fine"], prompt).run(fresh()))
    assert (result.reason, type(result.error)) == ("error", asyncio.CancelledError)


def test_no_text_of_a_tool_passes_for_a_word_of_the_loop() -> None:
    @tool
    async def look(what: str) -> str:
        """Gives back what a file might hold."""
        return str(CUT_OFF[:-1]) + CUT_OFF[-1]

    asking = Message.assistant(call("look", what="a"))
    client = ScriptedClient([asking, asking, asking, "fine"])
    stack = ChatStack(client).use(Budget, max_tokens=1).use(FunctionInvoker, tools=[look])
    with pytest.raises(BudgetExceeded):
        asyncio.run(stack.build().get_response("hello"))
    assert len(client.requests) == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tool_timeout_seconds": -1}, "tool_timeout_seconds="),
        ({"approve": True}, "approve="),
        ({"propagate": ["x"]}, "propagate="),
        ({"journal": "runs.db"}, "journal="),
        ({"feed": None}, "feed="),
        ({"options": None}, "options="),
        ({"tools": None}, "tools="),
        ({"client": "x"}, "client is a name, and no chat client"),
        ({"client": ChatStack(ScriptedClient())}, "client is a recipe, and no chat client"),
    ],
)
def test_what_cannot_work_is_refused_when_the_loop_is_made(options: dict[str, Any], named: str) -> None:
    given: dict[str, Any] = {"client": ScriptedClient(), "instructions": "", "prompt": numbered, "tools": [], **options}
    with pytest.raises(WiringError, match=f"IterativeLoop: {named}"):
        IterativeLoop(**given)


@pytest.mark.parametrize(("field", "value"), [("workspace", {}), ("workspace", None), ("run_id", ""), ("run_id", 5)])
def test_a_context_that_does_not_fit_is_refused_before_anything_is_paid(field: str, value: object) -> None:
    context = fresh()
    setattr(context, field, value)
    with pytest.raises(InputError, match=field):
        looped(["fine"]).iterations(context)
