"""Many conversations at once, through one agent."""

from __future__ import annotations

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from chatstack import ChatStack, ToolResultClearer
from chatstack.testing.side_by_side import Converse, SideBySide
from chatstack_pydantic_ai import ChatStackModel, PydanticAIClient, StackedModel


def agent(talks: SideBySide, *, is_whole: bool) -> Converse:
    def look(about: str) -> str:
        """Look around there."""
        return talks.result(about)

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        parts = [part for message in messages for part in message.parts]
        about = talks.asked([f"{getattr(part, 'content', '')}{getattr(part, 'args', '')}" for part in parts])
        if about is None:
            return ModelResponse([TextPart(f"done {str(getattr(parts[0], 'content', '')).split()[-1]}")])
        return ModelResponse([ToolCallPart("look", {"about": about}, about.split()[-1])])

    model = FunctionModel(answer)
    stack = ChatStack(PydanticAIClient(model)).use(ToolResultClearer, trigger={"tokens": 1_200}, keep={"messages": 1})
    layered = StackedModel(model, stack, resolve=talks.capture.resolve)
    made = Agent(ChatStackModel(stack.build(talks.capture.resolve)) if is_whole else layered, tools=[look])

    async def converse(number: int) -> str:
        return (await made.run(talks.question(number))).output

    return converse


def test_each_conversation_is_sent_what_it_would_be_alone_in_one_tree_of_spans() -> None:
    SideBySide.check(lambda talks: agent(talks, is_whole=False))
    SideBySide.check(lambda talks: agent(talks, is_whole=True))
