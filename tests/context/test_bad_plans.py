"""Plans that no strategy should make: each is refused, said, and the request goes out as it was."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from chatstack import ChatStack, ContextWindowGuard, Message, Plan, Strategy, Text, ToolCall, ToolResult
from chatstack.context.edits.context import Context
from chatstack.testing import ScriptedClient, TelemetryCapture

HISTORY = (Message.user("task " + "x" * 200), Message.assistant("old " + "y" * 200), Message.user("next"))


@dataclass(frozen=True)
class Says(Strategy):
    """Plans whatever it was told to."""

    what: Any
    name = "says"

    def plan(self, context: Context) -> Plan | None:
        plan: Plan | None = self.what(context) if callable(self.what) else self.what
        return plan


def edited(**changes: Any) -> Any:
    def plan(context: Context) -> Plan | None:
        if len(context.messages) < 2:  # the request that the history's first answer was given to
            return None
        return Plan(strategy="says", reason="r", replace=((1, context.messages[1].edited(**changes)),))

    return plan


def shaped(**fields: Any) -> Any:
    """A plan about the second message, with one field of another shape, new for each request."""

    def plan(context: Context) -> Plan | None:
        if len(context.messages) < 2:
            return None
        return Plan(strategy="says", reason="r", **{name: shape((1,)) for name, shape in fields.items()})

    return plan


async def unawaited(context: Context) -> Plan | None:
    return None


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("text", "the plan of 'says' was not applied: it is a str, not a Plan"),
        (unawaited, "the plan of 'says' was not applied: it is a coroutine, not a Plan"),
        (shaped(drop=iter), "drop is a tuple_iterator, not a tuple"),
        (shaped(drop=lambda found: map(int, found)), "drop is a map, not a tuple"),
        (shaped(drop=lambda found: (each for each in found)), "drop is a generator, not a tuple"),
        (shaped(replace=lambda found: ((at, HISTORY[0]) for at in found)), "replace is a generator, not a tuple"),
        (shaped(replace=lambda found: {at: HISTORY[0] for at in found}), "replace and insert hold pairs"),
        (shaped(insert=iter), "insert is a tuple_iterator, not a tuple"),
        (Plan(strategy="says", reason="r", drop=(1.0,)), "a position is not a whole number"),  # type: ignore[arg-type]
        (Plan(strategy="says", reason="r", replace=((1, "x"),)), "not a Message"),  # type: ignore[arg-type]
        (edited(parts=(Text("obey"),), pinned=True), "may not pin"),
        (edited(parts=(Text("obey"),), mark="summary"), "make a summary"),
    ],
)
def test_it_is_not_applied_and_warned_of(what: object, told: str) -> None:
    provider, capture = ScriptedClient(), TelemetryCapture()
    asyncio.run(ChatStack(provider).use(Says(what)).build(capture.resolve).get_response(HISTORY))
    assert provider.requests[0].messages == HISTORY
    assert capture.warnings == ("plan_rejected",)
    (rejected,) = [span for span in capture.spans if "chatstack.warning.code" in span.attributes]
    assert told in str(rejected.attributes["chatstack.warning.message"])


def test_what_a_strategy_raises_surfaces() -> None:
    def broken(context: Context) -> Plan:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as raised:
        asyncio.run(ChatStack(ScriptedClient()).use(Says(broken)).build().get_response(HISTORY))
    told = "in plan() of the strategy Says ('says'), which a StrategyApplier applies"
    assert [note for note in raised.value.__notes__ if note == told] == [told]


@pytest.mark.parametrize("shape", [list, iter, lambda sizes: (each for each in sizes)])
def test_the_sizes_that_a_strategy_waits_on_may_come_in_any_shape(shape: Any) -> None:
    class Waits(Says):
        def waits_on(self, context: Context) -> Any:
            return shape((context.tokens,))

    provider = ScriptedClient()
    client = ChatStack(provider).use(Waits(None)).build()
    for end in range(3):
        asyncio.run(client.get_response([*HISTORY, *[Message.user("on")] * end]))
    assert len(provider.requests) == 3


@pytest.mark.parametrize("role", ["user", "system"])
def test_results_in_odd_places_do_not_stand_in_the_way_of_repairs(role: Any) -> None:
    odd = Message(role, (ToolResult("gone", "f", "r"),))
    history = (Message.user("task"), Message.assistant(ToolCall("a", "f")), Message.assistant("so"), odd)
    provider, capture = ScriptedClient(), TelemetryCapture()
    client = ChatStack(provider).use(ContextWindowGuard, max_context_tokens=1_000).build(capture.resolve)
    asyncio.run(client.get_response(history))
    sent = provider.requests[0].messages
    assert [result.call_id for message in sent[:3] for result in message.results] == ["a"]
    assert capture.warnings == ("messages_repaired",)
    assert (odd in sent) == (role == "system")
