"""A model call of the Agents SDK's on its way through a stack."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, cast

from agents.tracing import get_current_trace

from chatstack import ChatOptions, ChatRequest, Message, to_openai_responses
from chatstack.providers.openai.responses_wire import messages_in_place
from chatstack_openai_agents.calls import ModelCall, call_of, with_options


class Asked:
    """A call with its request, and the items that each message was made from."""

    def __init__(self, call: ModelCall, options: ChatOptions, *, stream: bool) -> None:
        self.call = call
        self.items = [{"role": "user", "content": call.input}] if isinstance(call.input, str) else list(call.input)
        found = list(messages_in_place(self.items))
        self._known = {id(message): self.items[place] for message, place in found}
        trace = get_current_trace()
        group: object = getattr(trace, "group_id", None)
        self.request = ChatRequest(
            tuple(message for message, _ in found),
            options,
            group if isinstance(group, str) else None,
            stream,
        )

    def call_for(self, sent: ChatRequest) -> ModelCall:
        """Return the call with what the layers leave of it; for what a layer asks on the way, a call of its own."""
        if not any(id(message.original) in self._known for message in sent.messages):
            return call_of(sent, self.call.model_settings)
        before = self.request.options
        call = self.call if sent.options == before else with_options(self.call, before, sent.options)
        if sent.messages is self.request.messages:
            return call
        items = [item for message in sent.messages for item in self._items_of(message)]
        return call._replace(input=cast("Any", items))

    def _items_of(self, message: Message) -> Sequence[Any]:
        same = self._known.get(id(message))
        if same is not None:
            return same
        made, before = to_openai_responses([message]), self._known.get(id(message.original), ())
        if message.role != "tool" or len(made) != len(before):
            return made
        return [
            {**old, "output": new["output"]} for old, new in zip(before, made, strict=True)
        ]  # its type, id and status


asked_now: ContextVar[Asked | None] = ContextVar("chatstack_asked", default=None)
"""The call that a request is about, for a model of theirs at the bottom of a stack."""
