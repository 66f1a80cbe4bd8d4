"""The three APIs whose calls can be wrapped: their addresses, and how their answers go on and end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chatstack.providers.extras import WireObject
from chatstack.providers.openai.responses_answers import ENDS
from chatstack.providers.wires import PROVIDERS, Form, read_request, write_request
from chatstack.providers.wrapping.joining import ChatJoining, Joining, MessagesJoining, ResponsesJoining
from chatstack.values.requests import ChatRequest

_DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Wire:
    """One API: ``path`` ends the address of its calls, ``events_have_names`` in its streams, which ``ends`` name the
    last event of."""

    form: Form
    path: str
    joining: type[Joining]
    ends: tuple[str, ...] = ()
    events_have_names: bool = True

    @property
    def provider(self) -> str:
        """The name of the provider whose API it is."""
        return PROVIDERS[self.form]

    def is_end(self, raw: bytes, event: WireObject | None) -> bool:
        """Return True for the event behind which nothing comes: the server may take its time to close."""
        if not self.ends:
            return event is None and _DONE in raw
        return event is not None and event.get("type") in self.ends

    def read(self, body: Mapping[str, object]) -> ChatRequest:
        """Return the request in a body. Raises ``InputError`` for what is malformed."""
        request = read_request(self.form, body)
        extra = {name: value for name, value in request.options.extra.items() if name != "tools"}  # it would win
        return request.but(options=request.options.but(extra=extra))

    def write(self, request: ChatRequest, model: str) -> WireObject:
        """Return the body of a request; ``model`` is for options that name none."""
        body = write_request(self.form, request)
        return body if body.get("model") else {"model": model, **body}


WIRES = (
    Wire("chat", "/chat/completions", ChatJoining, events_have_names=False),
    Wire("responses", "/responses", ResponsesJoining, ends=ENDS),
    Wire("messages", "/v1/messages", MessagesJoining, ends=("message_stop",)),
)
