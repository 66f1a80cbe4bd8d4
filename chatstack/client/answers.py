"""A whole answer as the updates of a stream, for clients whose model gives no others."""

from __future__ import annotations

from collections.abc import Iterator

from chatstack.values.messages import Message
from chatstack.values.parts import Reasoning, Text
from chatstack.values.responses import ChatUpdate, FinishReason, Usage


def updates_of(
    message: Message,
    *,
    streamed: bool = False,
    usage: Usage | None = None,
    finish_reason: FinishReason | None = None,
    response_id: str = "",
    model: str = "",
    raw: object = None,
) -> Iterator[ChatUpdate]:
    """Yield the updates that bring one message: its parts in order, then the one that closes it, with the rest.

    ``streamed`` says that its text and its reasoning have gone out as deltas already, so they are not sent again.
    Without a ``finish_reason`` it is ``tool_calls`` for a message with calls, else ``stop``.
    """
    for part in message.parts:
        if isinstance(part, Text):
            if part.text and not streamed:
                yield ChatUpdate(text=part.text)
        elif isinstance(part, Reasoning):
            if part.text and not streamed:
                yield ChatUpdate(reasoning=part.text)
        else:
            yield ChatUpdate(part=part)
    yield ChatUpdate(
        message_done=message,
        usage=usage,
        finish_reason=finish_reason or ("tool_calls" if message.calls else "stop"),
        response_id=response_id,
        model=model,
        raw=raw,
    )
