"""Stands for whoever writes summaries: a recording holds none.

What it writes has a fixed size and holds nothing of the conversation, so grounding under a policy that summarizes is a
lower bound. What a summary costs is counted: all that it read, uncached, and what it wrote.
"""

from __future__ import annotations

import itertools
import re

import msgspec

from chatstack.client.protocol import ProviderInfo
from chatstack.client.stream import ChatStream
from chatstack.values.messages import Message
from chatstack.values.parts import Part, Text
from chatstack.values.requests import ChatOptions, ChatRequest
from chatstack.values.responses import Usage
from chatstack.workbench.replay.measures.measuring import WireCounter
from chatstack.workbench.replay.recorder import Playback

SUMMARY_TOKENS = 500
"""Of each summary; fewer where the request allows no more."""
_PHRASE = ("the", "old", "way", "was", "and", "is", "so", "on", "it", "all")
"""Words that are shorter than any value that is looked for."""
_DELIMITER = re.compile(r"\[([0-9a-f]{16}) end\]\Z")
"""At the end of what a summarizer has to read. It is drawn anew for each and stands in many places."""
_DRAWN = "0f1e2d3c4b5a6978"
"""Takes its place before tokens are counted: equal conversations are to cost the same."""


class SummaryCost(msgspec.Struct, frozen=True):
    """What one summary read and wrote, in tokens of the fixed counter."""

    input_tokens: int
    output_tokens: int


class StandInWriter:
    """A chat client that answers every request with a summary of nothing. In a replay, a layer gets it where it asks
    its container for a ``SummaryClient``; ``asked`` is what that cost since it was last cleared."""

    def __init__(self, counter: WireCounter) -> None:
        self.info = ProviderInfo(name="stand-in")
        self.asked: list[SummaryCost] = []
        self._counter = counter

    async def send(self, request: ChatRequest, /) -> ChatStream:
        options = request.options
        answer = Message.assistant(stand_in_summary(min(SUMMARY_TOKENS, options.max_tokens or SUMMARY_TOKENS)))
        cost = SummaryCost(self._size_of(request), self._counter.count_text(answer.text))
        self.asked.append(cost)
        usage = Usage(input_tokens=cost.input_tokens, output_tokens=cost.output_tokens)
        return await ChatStream.primed(Playback(answer, usage))

    def _size_of(self, request: ChatRequest) -> int:
        messages, instructions = request.messages, request.options.instructions
        drawn = _DELIMITER.search(messages[-1].text) if messages else None
        if drawn is not None:
            messages = tuple(
                Message(each.role, tuple(_redrawn(part, drawn[1]) for part in each.parts)) for each in messages
            )
            instructions = instructions.replace(drawn[1], _DRAWN)
        size = self._counter.count_options(ChatOptions(instructions=instructions))
        return size + sum(map(self._counter.count_message, messages))

    def __repr__(self) -> str:
        return "StandInWriter()"


def _redrawn(part: Part, delimiter: str) -> Part:
    return Text(part.text.replace(delimiter, _DRAWN)) if isinstance(part, Text) else part


def stand_in_summary(tokens: int) -> str:
    """A text of about so many tokens that says nothing."""
    return " ".join(itertools.islice(itertools.cycle(_PHRASE), tokens))
