"""What a strict provider makes of a list of messages; told by counting, apart from the code under test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import cast

from chatstack import CharCounter, ChatOptions, ChatRequest, Context, Message, ToolCall, ToolResult
from chatstack.providers.anthropic.wire import messages_to_wire as anthropic_messages_to_wire
from chatstack.providers.openai.chat_wire import messages_to_wire as chat_messages_to_wire

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


def is_new(messages: Sequence[Message], position: int) -> bool:
    """Whether there are tool results in that message that no answer of the model follows."""
    answered = any(each.role == "assistant" and not each.mark for each in messages[position:])
    return bool(messages[position].results) and not answered


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


def refusals(messages: Sequence[Message]) -> list[str]:
    """What the strict wires refuse in these messages, but for calls of the last one."""
    last = {call.id for call in messages[-1].calls} if messages else set[str]()
    chat = [("chat completions", *each) for each in _chat_rounds(messages)]
    blocks = [("anthropic", *each) for each in _block_rounds(messages)]
    return [
        f"{wire}: after the calls {asked} come the results {given}"
        for wire, asked, given in (*chat, *blocks)
        if sorted(asked) != sorted(given) and not (given == [] and set(asked) <= last)
    ]


def _chat_rounds(messages: Sequence[Message]) -> list[tuple[list[str], list[str]]]:
    """The calls of each message, and the results right behind it; for other messages, no calls."""
    rounds: list[tuple[list[str], list[str]]] = []
    for each in chat_messages_to_wire(messages):
        if each["role"] == "tool":
            if not rounds:
                rounds.append(([], []))
            rounds[-1][1].append(cast("str", each["tool_call_id"]))
        else:
            calls = cast("list[dict[str, str]]", each.get("tool_calls") or [])
            rounds.append(([call["id"] for call in calls], []))
    return rounds


def _block_rounds(messages: Sequence[Message]) -> list[tuple[list[str], list[str]]]:
    """The same where results are blocks of a user's message, before all others; neighbours of one role are joined."""
    joined: list[tuple[str, list[dict[str, str]]]] = []
    for each in anthropic_messages_to_wire(messages):
        role, content = cast("str", each["role"]), cast("list[dict[str, str]]", each["content"])
        if joined and joined[-1][0] == role:
            joined[-1][1].extend(content)
        else:
            joined.append((role, list(content)))
    rounds: list[tuple[list[str], list[str]]] = []
    for role, content in joined:
        kinds = [block["type"] for block in content]
        given = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        late = "tool_result" in kinds[len(given) :]
        if role == "user" and rounds and not late:
            rounds[-1][1].extend(given)
        elif given:
            rounds.append(([], given))
        rounds.append(([block["id"] for block in content if block["type"] == "tool_use"], []))
    return rounds
