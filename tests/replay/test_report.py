"""The table: what a policy refused is shown, and never makes it look cheap."""

from __future__ import annotations

import asyncio
import io

from rich.console import Console

from chatstack import ChatClient, ChatStack, ContextWindowGuard
from chatstack.replay.measuring import WireCounter
from chatstack.replay.policies import Policy
from chatstack.replay.recordings import Recording
from chatstack.replay.report import report_table
from chatstack.replay.running import Replay

MESSAGES = tuple({"role": ("user", "assistant")[number % 2], "content": "word " * 50} for number in range(8))


def strict(ceiling: int, model: ChatClient) -> ChatStack:
    return ChatStack(model).use(ContextWindowGuard, max_context_tokens=ceiling, strict=True)


def test_a_policy_that_refuses_calls_has_no_share_of_the_tokens() -> None:
    policies = [Policy("nothing", lambda ceiling, model: ChatStack(model)), Policy("strict", strict)]
    replay = Replay(policies, window=150, counter=WireCounter.best())
    asyncio.run(replay.run([Recording(MESSAGES, "one", "", "made.json", 1)]))
    nothing, refusing = replay.figures
    assert (nothing.refused, refusing.refused) == (0, 3)
    console = Console(file=io.StringIO(), width=120)
    console.print(report_table(replay))
    rows = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    cells = {row.split()[0]: row.split() for row in rows if row.split() and row.split()[0] in ("nothing", "strict")}
    assert cells["nothing"][3:5] == ["100", "%"]
    assert cells["strict"][3] == "-"
    assert cells["strict"][-2] == "3"


def test_the_largest_figures_fit_80_columns_with_the_names_of_the_policies() -> None:
    policies = [Policy(name, lambda ceiling, model: ChatStack(model)) for name in ("nothing", "guard")]
    replay = Replay(policies, window=16_000, counter=WireCounter.best())
    for figures in replay.figures:
        figures.calls, figures.tokens_sent, figures.peak_tokens = 10_071, 142_535_559, 868_167
        figures.over_limit, figures.edits, figures.refused = 9_619, 6_179, 1_353
    console = Console(file=io.StringIO(), width=80)
    console.print(report_table(replay))
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    for told in ("nothing", "guard", "142,535,559", "868,167", "9,619", "6,179", "1,353"):
        assert told in printed
    assert "…" not in printed
