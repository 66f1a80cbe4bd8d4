"""A stand-in for the summary writer, because a recording holds no summaries.

Its summaries have a fixed size and hold nothing of the conversation, so grounding under a policy that summarizes is a
lower bound. The cost of a summary is counted: all tokens that were read, uncached, and those that were written.
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
"""Size of each summary; fewer if the request allows no more."""
_PHRASE = ("the", "old", "way", "was", "and", "is", "so", "on", "it", "all")
"""Words that are shorter than any value that grounding looks for."""
_DELIMITER = re.compile(r"\[([0-9a-f]{16}) end\]\Z")
"""The end delimiter of the text that a summarizer reads: random for each, and repeated in many places."""
_DRAWN = "0f1e2d3c4b5a6978"
"""Replaces the delimiter before tokens are counted, so that equal conversations cost the same."""


class SummaryCost(msgspec.Struct, frozen=True):
    """Input and output of one summary, in tokens of the fixed counter."""

    input_tokens: int
    output_tokens: int


class StandInWriter:
    """A chat client that answers every request with an empty summary.

    In a replay, a layer that asks its container for a ``SummaryClient`` gets this one; ``asked`` is the cost since it
    was last cleared.
    """

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
    """Return a text of about ``tokens`` tokens without any content."""
    return " ".join(itertools.islice(itertools.cycle(_PHRASE), tokens))
