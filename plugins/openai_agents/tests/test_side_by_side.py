"""Many conversations at once, through one agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from agents.testing import assistant_message, function_call

from chatstack import ChatStack, ToolResultClearer
from chatstack.testing.side_by_side import Converse, SideBySide
from chatstack_openai_agents import AgentsModelClient, StackModel

set_tracing_disabled(True)


class Talking(Model):
    """Says what the conversations want."""

    def __init__(self, talks: SideBySide) -> None:
        self.talks = talks

    async def get_response(self, system_instructions: Any, input: Any, *given: Any, **named: Any) -> ModelResponse:
        items = [{"content": input}] if isinstance(input, str) else input
        about = self.talks.asked([f"{i.get('content')}{i.get('arguments')}{i.get('output')}" for i in items])
        said: Any = (
            assistant_message(f"done {str(items[0]['content']).split()[-1]}")
            if about is None
            else function_call("look", {"about": about}, call_id=about.split()[-1])
        )
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *given: Any, **named: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def agent(talks: SideBySide) -> Converse:
    @function_tool
    def look(about: str) -> str:
        """Look around there."""
        return talks.result(about)

    stack = ChatStack(AgentsModelClient(Talking(talks)))
    stack = stack.use(ToolResultClearer, trigger={"tokens": 1_200}, keep={"messages": 1})
    made = Agent(name="a", model=StackModel(stack.build(talks.capture.resolve)), tools=[look])

    async def converse(number: int) -> str:
        return str((await Runner.run(made, talks.question(number))).final_output)

    return converse


def test_each_conversation_is_sent_what_it_would_be_alone_in_one_tree_of_spans() -> None:
    SideBySide.check(agent)
