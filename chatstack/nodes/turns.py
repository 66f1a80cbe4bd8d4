"""The newest turns: the last user messages and what follows them, whole units only."""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from chatstack.client.options import PositiveInt, check_options
from chatstack.context.edits.context import Context
from chatstack.context.edits.plans import Plan
from chatstack.context.edits.units import Unit, is_users
from chatstack.context.strategy import Strategy
from chatstack.values.messages import Message


@dataclass(frozen=True, slots=True, repr=False)
class NewestTurns(Strategy):
    """Keeps the newest ``max_messages`` user messages and everything that follows the first of them.

    ``remove_tool_msgs`` leaves out tool calls with their results, but for the loop that still runs: without its
    results the model would only call again. ``max_rounds`` bounds each turn to its newest rounds (one assistant
    message with its results is a round, also where those are left out), so that a long tool loop after one user
    message is bounded too.
    A unit that begins before the first message kept, and ends behind it, stays whole. Never touched: system, pinned
    and summary messages, what a user said within these turns, calls that wait, and results that the model is
    about to read.
    Source: Agentflow's context manager, with its errors corrected.
    """

    max_messages: PositiveInt = 10
    remove_tool_msgs: bool = False
    max_rounds: PositiveInt | None = None
    name = "newest_turns"
    quotes_nothing = True

    def __post_init__(self) -> None:
        check_options(self)

    def plan(self, context: Context) -> Plan | None:
        users = [at for at, message in enumerate(context.messages) if is_users(message)]
        kept = users[-self.max_messages :]
        first = kept[0] if len(users) > len(kept) else 0
        inside = [unit for unit in context.units if unit.positions[-1] >= first]
        outside = [unit for unit in context.units if unit.positions[-1] < first]
        tools = list(_finished_tools(inside, context)) if self.remove_tool_msgs else []
        rounds = list(_old_rounds(inside, kept, context, self.max_rounds)) if self.max_rounds is not None else []
        older = [unit for unit in outside if not _must_stay(unit, context)]
        drop = {position for unit in (*older, *tools, *rounds) for position in unit.positions}
        if not drop:
            return None
        reasons = (
            f"{len(users)} user messages, more than {self.max_messages}" if older else "",
            "finished tool calls" if tools else "",
            f"turns of more than {self.max_rounds} rounds" if rounds else "",
        )
        return Plan(strategy=self.name, reason="; ".join(filter(None, reasons)), drop=tuple(sorted(drop)))


def _finished_tools(units: list[Unit], context: Context) -> Iterator[Unit]:
    """Yield finished tool calls with their results; those of a tool loop that still runs are kept.

    The loop that runs begins after the user's last message, and after the model's last message without a call. Both
    positions only move forward, so a unit that was left out never comes back.
    """
    last_word = max((at for at, message in enumerate(context.messages) if _is_a_word(message)), default=-1)
    for unit in units:
        of_tools = any(context.messages[position].calls for position in unit.positions)
        if of_tools and unit.positions[-1] <= last_word and not _must_stay_inside(unit, context):
            yield unit


def _old_rounds(units: list[Unit], kept_users: list[int], context: Context, most: int) -> Iterator[Unit]:
    """Yield the rounds beyond the newest of each turn, except results that the model is about to read.

    Units that begin before the first message kept, and stay for their late results, count as one turn.
    """
    turns: defaultdict[int, list[Unit]] = defaultdict(list)
    for unit in units:
        message = context.messages[unit.positions[0]]
        if message.role == "assistant" and message.mark != "summary":
            turns[bisect(kept_users, unit.positions[0])].append(unit)
    for rounds in turns.values():
        for unit in rounds[:-most]:
            if unit.positions[-1] <= context.latest_assistant and not _must_stay_inside(unit, context):
                yield unit


def _must_stay(unit: Unit, context: Context) -> bool:
    messages = (context.messages[position] for position in unit.positions)
    return unit.is_open or any(each.role == "system" or each.pinned or each.mark == "summary" for each in messages)


def _must_stay_inside(unit: Unit, context: Context) -> bool:
    """Return True for what must stay inside the kept turns: also a unit with user text beside a tool result."""
    return _must_stay(unit, context) or any(is_users(context.messages[position]) for position in unit.positions)


def _is_a_word(message: Message) -> bool:
    """Return True for words between user and model: no tool call, no tool result."""
    return is_users(message) or (message.role == "assistant" and not message.calls)
