"""Many conversations at once, through one agent."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage

from chatstack import ChatStack, ToolResultClearer
from chatstack.testing.side_by_side import Converse, SideBySide
from chatstack_langchain import ChatStackModel, LangChainClient, StackMiddleware
from tests.models import ScriptedModel, called


class Talking(ScriptedModel):
    """Says what the conversations want."""

    answers: list[Any] = []  # noqa: RUF012 - a field of pydantic's, which copies it
    talks: Any

    def _next(self, messages: list[Any], kwargs: dict[str, Any]) -> AIMessage:
        about = self.talks.asked([f"{each.text}{getattr(each, 'tool_calls', '')}" for each in messages])
        if about is None:
            return AIMessage(f"done {messages[0].text.split()[-1]}")
        return called((about.split()[-1], "look", {"about": about}))


def agent(talks: SideBySide, *, is_whole: bool) -> Converse:
    def look(about: str) -> str:
        """Look around there."""
        return talks.result(about)

    model = Talking(talks=talks)
    stack = ChatStack(LangChainClient(model)).use(ToolResultClearer, trigger={"tokens": 1_200}, keep={"messages": 1})
    if is_whole:
        made = create_agent(ChatStackModel(client=stack.build(talks.capture.resolve)), [look])
    else:
        made = create_agent(model, [look], middleware=[StackMiddleware(stack, resolve=talks.capture.resolve)])

    async def converse(number: int) -> str:
        state = await made.ainvoke({"messages": [HumanMessage(talks.question(number))]})
        return str(state["messages"][-1].content)

    return converse


def test_each_conversation_is_sent_what_it_would_be_alone_in_one_tree_of_spans() -> None:
    SideBySide.check(lambda talks: agent(talks, is_whole=False))
    SideBySide.check(lambda talks: agent(talks, is_whole=True))
