"""One request of a caller's, from its body to the answer's bytes."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from chatstack import ChatRequest
from chatstack.providers.wires import Form
from chatstack_gateway.came_answers import CameAnswer
from chatstack_gateway.headers import caller_of
from chatstack_gateway.positions import Body
from chatstack_gateway.splicing import same, spliced
from chatstack_gateway.tee import Tee

Outcome: TypeAlias = Literal["as it came", "edited", "not editable", "undone", "failed open", "switched off", "refused"]
"""What became of a request: sent as it came because nothing was to be edited; edited; sent as it came although a layer
would have edited it (its text cannot be edited in place; upstream refused the edited one; a layer failed; editing is
switched off); or not answered by upstream."""


@dataclass(slots=True, eq=False)
class Exchange:
    """A request as it came, with what has been made of it so far."""

    form: Form
    path: str
    query: str
    headers: list[tuple[bytes, bytes]]
    raw: bytes
    body: Body
    request: ChatRequest
    api: Form | None = None
    """Upstream's wire, if it is another one."""
    is_rewritten: bool = False
    """True if its answer is written anew, from what the layers yield."""
    answer_headers: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])
    """Headers of upstream's answer that one written anew keeps."""
    came: CameAnswer | None = None
    """Upstream's answer as it came, if one is written anew on the same wire."""
    answer_changed: bool = False
    """True if a layer has changed the answer, of which the caller got upstream's bytes."""
    is_bypassed: bool = False
    is_edited: bool = False
    outcome: Outcome = "as it came"
    reason: str = ""
    attempts: int = 0
    sent_bytes: int = 0
    caller: str = field(init=False)
    """Tells callers apart: see ``caller_of``."""
    tee: asyncio.Future[Tee] = field(init=False)

    def __post_init__(self) -> None:
        self.caller = caller_of(self.headers)

    @property
    def is_answering(self) -> bool:
        """True once upstream's answer is on its way to the caller."""
        return self.tee.done()

    def sendable(self, request: ChatRequest) -> bytes:
        """Return the body to send: the one that came, or with the edits of the layers in it. Raises
        ``UneditableError``: the layers must not take an edit for made that is not."""
        self.is_edited = False
        if self.is_bypassed or (
            same(request.messages, self.request.messages) and request.options is self.request.options
        ):
            return self.raw
        sent = spliced(self.form, self.body, self.request, request).encode()
        if sent == self.raw:
            return self.raw
        self.is_edited = True
        self.outcome, self.reason = "edited", ""
        return sent


def is_about(came: ChatRequest, request: ChatRequest) -> bool:
    """Return True if ``request`` is the one that came, edited or not; False for one that a layer makes of its own, as
    for a summary: that ends with another message, and has options of its own."""
    last = came.messages[-1].original if came.messages else None
    if request.messages and request.messages[-1].original is last:
        return True
    return request.options is came.options and any(each.original is last for each in request.messages)


CURRENT: ContextVar[Exchange | None] = ContextVar("chatstack_gateway_exchange", default=None)
"""The exchange that the running task works on."""
