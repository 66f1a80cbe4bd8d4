"""Conversations that are alike but for their number, so that one process alone edits each at the same calls."""

from __future__ import annotations

import functools
import hashlib

import msgspec

from chatstack import ChatStack, ContextWindowGuard, Message, Summarizer, ToolCall, ToolResultClearer
from chatstack.client.protocol import ChatClient

CALLS = 30
"""How many calls a conversation has."""
SECRET = "secret of"
"""What every tool result holds, with the number of its conversation, and what excerpts and summaries quote."""


@functools.lru_cache(maxsize=256)
def talk(number: int) -> tuple[Message, ...]:
    """All its messages; each assistant message is the answer to a call."""
    messages = [Message.system("Be brief."), Message.user(f"Task {number:05d}: look around until I say stop.")]
    for at in range(CALLS):
        if at % 3 == 2:
            messages.append(Message.assistant(f"I was at {at:02d} of {number:05d}, " + "it was nice " * 8))
            messages.append(Message.user(f"Go on, {at:02d} of {number:05d}."))
            continue
        call = ToolCall(f"c{at % 5}", "look", f'{{"at": {at:02d}}}')
        messages.append(Message.assistant(call))
        messages.append(Message.tool(call.id, f"{SECRET} {number:05d} {at:02d} " + "grey " * 60, name="look"))
    return (*messages, Message.assistant("Done."))


@functools.cache
def ends() -> tuple[int, ...]:
    """How many messages each call has; the same for every conversation."""
    return tuple(at for at, each in enumerate(talk(0)) if each.role == "assistant")


def identifier(number: int) -> str | None:
    """Every other conversation has an id."""
    return f"talk-{number}" if number % 2 else None


def recipe(stack: ChatStack, writer: ChatClient) -> ChatStack:
    """Layers that replace, fold and drop."""
    return (
        stack.use(ToolResultClearer, trigger={"tokens": 520}, keep={"messages": 2})
        .use(Summarizer, max_tokens=760, keep_recent_turns=1, max_summary_tokens=60, summary_client=writer)
        .use(ContextWindowGuard, max_context_tokens=735, prune_on_overflow=True)
    )


def fingerprints(messages: tuple[Message, ...]) -> list[str]:
    """One for each message, the same in every process: what kind it is of, and a digest."""
    return [f"{_kind(each)} {_digest(each)}" for each in messages]


def _kind(message: Message) -> str:
    return message.mark or ("edited" if message.original is not message else "kept")


def _digest(message: Message) -> str:
    return hashlib.blake2b(msgspec.json.encode(message), digest_size=8).hexdigest()
