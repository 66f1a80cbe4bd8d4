"""Several rounds of a turn as one answer in the form of an API: what was shown of a round before, the next one goes on
from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import cast

from chatstack.providers.extras import WireObject, objects_in


class Joining(ABC):
    """The answer of a turn, as far as it was shown."""

    def __init__(self) -> None:
        self.is_continued = False

    def shown(self, event: Mapping[str, object]) -> None:  # noqa: B027 - chat completions need none
        """Take note of an event that the caller gets."""

    def next_round(self) -> None:
        """Begin the next round, of which something was shown before."""
        self.is_continued = True

    @abstractmethod
    def continued(self, event: WireObject) -> WireObject | None:
        """Return an event of a later round as it goes on from those shown; None if it has no place there."""

    @abstractmethod
    def with_text(self, answer: WireObject, text: str) -> WireObject:
        """Return a whole answer that begins with the text of the rounds before."""


class ChatJoining(Joining):
    """Of chat completions: only the role may not come twice."""

    def continued(self, event: WireObject) -> WireObject | None:
        choices = [_without_role(each) for each in objects_in(event.get("choices"))]
        return {**event, "choices": choices}

    def with_text(self, answer: WireObject, text: str) -> WireObject:
        first, *others = objects_in(answer["choices"])
        message = cast("WireObject", first["message"])
        content = message.get("content")
        written = {**message, "content": text + (content if isinstance(content, str) else "")}
        return {**answer, "choices": [{**first, "message": written}, *others]}


class MessagesJoining(Joining):
    """Of Anthropic's Messages: one beginning, and blocks that are counted on."""

    def __init__(self) -> None:
        Joining.__init__(self)
        self._offset = self._blocks = 0

    def shown(self, event: Mapping[str, object]) -> None:
        self._blocks += event.get("type") == "content_block_start"

    def next_round(self) -> None:
        Joining.next_round(self)
        self._offset = self._blocks

    def continued(self, event: WireObject) -> WireObject | None:
        if event.get("type") == "message_start":
            return None
        index = event.get("index")
        return {**event, "index": index + self._offset} if isinstance(index, int) else event

    def with_text(self, answer: WireObject, text: str) -> WireObject:
        return {**answer, "content": [{"type": "text", "text": text}, *objects_in(answer["content"])]}


class ResponsesJoining(Joining):
    """Of Responses: one beginning, items and events that are counted on, and an end with all items."""

    def __init__(self) -> None:
        Joining.__init__(self)
        self._items: list[object] = []
        self._offset = self._events = 0

    def shown(self, event: Mapping[str, object]) -> None:
        self._events += 1
        if event.get("type") == "response.output_item.done":
            self._items.append(event.get("item"))

    def next_round(self) -> None:
        Joining.next_round(self)
        self._offset = len(self._items)

    def continued(self, event: WireObject) -> WireObject | None:
        if event.get("type") in ("response.created", "response.in_progress", "response.queued"):
            return None
        found: WireObject = {**event, "sequence_number": self._events}
        index, response = event.get("output_index"), event.get("response")
        if isinstance(index, int):
            found["output_index"] = index + self._offset
        if isinstance(response, Mapping):
            end = cast("WireObject", response)
            found["response"] = {**end, "output": [*self._items[: self._offset], *objects_in(end.get("output"))]}
        return found

    def with_text(self, answer: WireObject, text: str) -> WireObject:
        content: list[WireObject] = [{"type": "output_text", "text": text, "annotations": []}]
        item: WireObject = {
            "type": "message",
            "id": "msg_before",
            "role": "assistant",
            "status": "completed",
            "content": content,
        }
        return {**answer, "output": [item, *objects_in(answer["output"])]}


def _without_role(choice: WireObject) -> WireObject:
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return choice
    return {**choice, "delta": {name: value for name, value in cast("WireObject", delta).items() if name != "role"}}
