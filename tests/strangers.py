"""Layers that somebody else wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chatstack import ChatClient, ChatRequest, ChatStream, LayerKind


@dataclass(frozen=True, slots=True, eq=False)
class DropsThanks:
    """A stranger's layer, that says nothing of itself."""

    inner: ChatClient

    async def send(self, request: ChatRequest, /) -> ChatStream:
        kept = tuple(each for each in request.messages if each.text != "thanks")
        return await self.inner.send(request.but(messages=kept))


class ToldToEdit(DropsThanks):
    """The same, and it says that it edits the context."""

    kind: ClassVar[LayerKind] = "context"
