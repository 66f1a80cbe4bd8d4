"""What a strict provider makes of a list of messages; told by counting, apart from the code under test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from chatstack import CharCounter, ChatOptions, ChatRequest, Context, Message, ToolCall, ToolResult

_COUNTER = CharCounter()


def leftovers(messages: Sequence[Message]) -> Counter[str]:
    """Results without a call before them, and calls without a result after them, but for those of the last message."""
    waiting: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCall):
                waiting[part.id] += 1
            elif isinstance(part, ToolResult) and waiting[part.call_id]:
                waiting[part.call_id] -= 1
            elif isinstance(part, ToolResult):
                found[f"result {part.call_id}"] += 1
    if messages:
        waiting -= Counter(call.id for call in messages[-1].calls)
    found.update({f"call {call_id}": times for call_id, times in waiting.items() if times})
    return found


def size(messages: Sequence[Message]) -> int:
    """Tokens of messages by the default counter."""
    return sum(map(_COUNTER.count_message, messages))


def context_of(messages: Sequence[Message]) -> Context:
    """The context of a request that has nothing but messages."""
    return Context.of(ChatRequest(tuple(messages), ChatOptions()), fixed_tokens=0, size_of=_COUNTER.count_message)


def is_subsequence(part: Sequence[Message], whole: Sequence[Message]) -> bool:
    """Whether the first are among the others, the same objects, in the same order."""
    rest = iter(whole)
    return all(any(each is other for other in rest) for each in part)
