"""The README's code runs as printed."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from chatstack import ChatClient, ChatOptions, ChatStack, FunctionInvoker, Message, ToolCall, tool
from chatstack.testing import ScriptedClient
from chatstack_langgraph import GraphChatNode
from tests.graphs import asking, graph_of, thread

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


def test_an_approval_goes_to_the_call_that_the_person_was_shown_and_to_no_other() -> None:
    async def check() -> None:
        client = paying(pays(5), pays(5000), pays(5000), "done")  # asked again, the model asks for something else
        graph = graph_of(GraphChatNode(client), InMemorySaver())
        given: Any = asking("pay")
        for amount in (5, 5000):
            state = await graph.ainvoke(given, thread("t"))
            (pause,) = state["__interrupt__"]
            assert pause.value == {"tool": "pay", "arguments": f'{{"amount": {amount}}}'}
            assert paid == []
            given = Command(resume={"shown": pause.value, "approved": True})
        state = await graph.ainvoke(given, thread("t"))
        assert (state["messages"][-1].text, paid) == ("done", [5000])

    asyncio.run(check())


def test_a_call_of_a_tool_of_the_graph_is_run_beside_one_of_the_client() -> None:
    def look(what: str) -> str:
        """Look."""
        return f"saw {what}"

    @tool
    def add(a: int) -> int:
        """Add one."""
        return a + 1

    both = Message.assistant(ToolCall("c1", "add", '{"a": 1}'), ToolCall("c2", "look", '{"what": "x"}'))
    model = ScriptedClient([both, "done"])
    client = ChatStack(model).use(FunctionInvoker, tools=[add]).build()
    builder = StateGraph(MessagesState)
    builder.add_node("chat", GraphChatNode(client, options=ChatOptions(tools=(tool(look).declaration(),))))
    builder.add_node("tools", ToolNode([look]))
    builder.add_edge(START, "chat")
    builder.add_conditional_edges("chat", function_of("open_calls"), ["tools", END])
    builder.add_edge("tools", "chat")
    graph: Any = builder.compile()
    held = asyncio.run(graph.ainvoke({"messages": [HumanMessage("go")]}))["messages"]
    assert [(each.type, each.text) for each in held[2:]] == [("tool", "2"), ("tool", "saw x"), ("ai", "done")]
    assert [each.tool_call_id for each in held[2:4]] == ["c1", "c2"]
    assert [each.mark for each in model.requests[-1].messages] == ["", "", "", ""]
