"""Many conversations at once, through one agent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent_framework import Agent, Content, Message

from chatstack import ChatStack, ToolResultClearer
from chatstack.testing.side_by_side import Converse, SideBySide
from chatstack_agent_framework import AgentFrameworkClient, ChatStackClient, StackMiddleware
from tests.scripted import TheirClient


class Talking(TheirClient):
    """Says what the conversations want."""

    def __init__(self, talks: SideBySide) -> None:
        super().__init__([])
        self.talks = talks

    def _next(self, messages: Sequence[Message], options: Mapping[str, Any]) -> list[Content]:
        texts = ["".join(f"{c.text}{c.arguments}{c.result}" for c in each.contents) for each in messages]
        about = self.talks.asked(texts)
        if about is None:
            return [Content.from_text(f"done {messages[0].text.split()[-1]}")]
        return [Content.from_function_call(about.split()[-1], "look", arguments=json.dumps({"about": about}))]


def agent(talks: SideBySide, *, is_whole: bool) -> Converse:
    def look(about: str) -> str:
        """Look around there."""
        return talks.result(about)

    client = Talking(talks)
    provider = AgentFrameworkClient(client)
    stack = ChatStack(provider).use(ToolResultClearer, trigger={"tokens": 1_200}, keep={"messages": 1})
    if is_whole:
        made: Agent[Any] = Agent(client=ChatStackClient(stack.build(talks.capture.resolve)), tools=[look])
    else:
        layers = StackMiddleware(stack, resolve=talks.capture.resolve)
        made = Agent(client=client, tools=[look], middleware=[layers])

    async def converse(number: int) -> str:
        return (await made.run(talks.question(number), session=made.create_session())).text

    return converse


def test_each_conversation_is_sent_what_it_would_be_alone_in_one_tree_of_spans() -> None:
    SideBySide.check(lambda talks: agent(talks, is_whole=False))
    SideBySide.check(lambda talks: agent(talks, is_whole=True))
