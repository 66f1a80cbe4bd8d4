"""The README's code runs as printed."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from tenxgraph.utils.interrupt import pending_interrupt

from chatstack import ChatClient, ChatStack, FunctionInvoker, Message, ToolCall, tool
from chatstack.testing import ScriptedClient
from chatstack_tenxgraph import GraphChatNode
from tests.graphs import asking, graph_of, state_of

CODE = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(), re.DOTALL)


def test_the_example_runs_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(CODE[0], "README.md", "exec"), {"__name__": "__main__"})
    assert "fine" in capsys.readouterr().out.split()


def function_of(name: str) -> Any:
    """A function that the README shows."""
    found: dict[str, Any] = {}
    (code,) = (each for each in CODE if f"def {name}(" in each)
    exec(compile(code, "README.md", "exec"), found)
    return found[name]


paid: list[int] = []


@tool
def pay(amount: int) -> str:
    """Pay."""
    paid.append(amount)
    return f"paid {amount}"


def pays(amount: int) -> Message:
    return Message.assistant(ToolCall("c", "pay", f'{{"amount": {amount}}}'))


def paying(*answers: Message | str) -> ChatClient:
    invoker = {"tools": [pay], "approve": function_of("approve"), "max_concurrency": 1}
    paid.clear()
    return ChatStack(ScriptedClient(answers)).use(FunctionInvoker, **invoker).build()


def test_an_approval_goes_to_the_call_that_the_person_was_shown_and_to_no_other(tmp_path: Path) -> None:
    async def check() -> None:
        client = paying(pays(5), pays(5000), pays(5000), "done")  # asked again, the model asks for something else
        database = tmp_path / "graph.sqlite"
        async with graph_of(GraphChatNode(client), database) as app:
            given: Any = asking("pay")
            for amount in (5, 5000):
                await app.ainvoke(given, {"thread_id": "t"})
                pause = pending_interrupt(await state_of(database, "t"))
                assert pause is not None
                assert pause.value == {"tool": "pay", "arguments": f'{{"amount": {amount}}}'}
                assert paid == []
                given = {"resume": {"shown": pause.value, "approved": True}}
            await app.ainvoke(given, {"thread_id": "t"})
        ended = await state_of(database, "t")
        assert (ended.context[-1].text(), paid) == ("done", [5000])

    asyncio.run(check())
