"""Stacks of two processes with one store: the second sends what the first has decided, at no further cost."""

from __future__ import annotations

import asyncio

import msgspec

from chatstack.context.memory.memory import ContextMemory
from chatstack.context.memory.sharing import DecisionStore
from chatstack.layers.clearer import ToolResultClearer
from chatstack.layers.summarizer import Summarizer
from chatstack.stack.recipe import ChatStack
from chatstack.testing.capture import TelemetryCapture
from chatstack.testing.exchanges import same
from chatstack.testing.scripted import ScriptedClient
from chatstack.values.messages import Message
from chatstack.values.parts import ToolCall
from chatstack.values.requests import ChatRequest

_TURNS = 14
_SUMMARY = "They looked at places, all of them grey."
_EDITS = {"compact_context clear_tool_results", "compact_context summarize"}


class SharingContract:
    """Promises to stacks that share a store. See ``StoreContract``."""

    def make(self) -> DecisionStore:
        """Return a store at the place of this instance."""
        raise NotImplementedError(f"{type(self).__name__}: write make(self)")

    def test_a_second_process_sends_the_same_and_has_no_summary_written(self) -> None:
        length = len(_conversation())
        first, second = _Process(self.make()), _Process(self.make())
        here = _sent(first.asked(length))
        same(len(first.writer.requests), 1, "summaries written by the first")
        same(set(first.edits), _EDITS, "what the first has edited")
        same((b"cleared" in here[0], _SUMMARY.encode() in here[0]), (True, True), "whether both edits were sent")
        same(_sent(second.asked(length)) == here, True, "whether the second sends the same")
        same(second.writer.requests, [], "summaries written by the second")
        # No answer ties it to the edited history of the first, so it edits again, with the first one's summary.
        same(second.edits, first.edits, "what the second has edited")
        same(second.capture.warnings, first.capture.warnings, "warnings of the second")

    def test_a_second_process_goes_on_from_an_answer_with_no_edit_of_its_own(self) -> None:
        length = len(_conversation())
        first, second = _Process(self.make()), _Process(self.make())
        before = first.asked(length - 4)[-1].messages
        same(set(first.edits), _EDITS, "what the first has edited")
        after = second.asked(length - 2)[-1].messages
        same(_encoded(after[:-2]) == _encoded(before), True, "whether the second begins with what the first has sent")
        same(
            (len(second.edits), len(second.writer.requests)),
            (0, 0),
            "edits of the second, and summaries it had written",
        )
        same((first.capture.warnings, second.capture.warnings), ((), ()), "warnings")

    def test_processes_take_turns_as_if_they_were_one(self) -> None:
        lengths = [1 + 4 * turn + 1 for turn in range(_TURNS)]
        alone = _Process(self.make(), scope="alone")
        expected = _sent(alone.asked(*lengths))
        same(len(alone.writer.requests) > 1, True, "whether one process alone writes summaries")
        taken: list[bytes] = []
        edits: list[str] = []
        summaries = 0
        for length in lengths:
            process = _Process(self.make(), scope="shared")
            taken += _sent(process.asked(length))
            edits += process.edits
            summaries += len(process.writer.requests)
        same(taken == expected, True, "whether they have sent the same as one process alone")
        same(edits, alone.edits, "what all of them have edited")
        same(summaries, len(alone.writer.requests), "summaries written by all of them")

    def test_another_tenant_finds_none_of_it(self) -> None:
        length = len(_conversation())
        _Process(self.make()).asked(length)
        other = _Process(self.make(), scope="another")
        other.asked(length)
        same(len(other.writer.requests), 1, "summaries written for another tenant")


class _Process:
    """A stack with a memory, a store and models of its own; the requests it was sent, and its edits."""

    def __init__(self, store: DecisionStore, *, scope: str = "tenant") -> None:
        self.model, self.writer = ScriptedClient(["fine"]), ScriptedClient([_SUMMARY])
        self.capture = TelemetryCapture()
        self._memory = ContextMemory(store=store, scope=scope, store_timeout_seconds=20)
        stack = ChatStack(self.model, memory=self._memory)
        stack = stack.use(ToolResultClearer, trigger={"tokens": 1_500}, keep={"messages": 2})
        self._stack = stack.use(Summarizer, max_tokens=1_200, keep_recent_turns=5, summary_client=self.writer)

    def asked(self, *lengths: int) -> list[ChatRequest]:
        """Return the requests sent for the first so many messages of the conversation, one call after another, each
        answered as in the conversation."""

        async def calls() -> None:
            client = self._stack.build(self.capture.resolve)
            for length in lengths:
                history = _conversation()
                self.model.answers[:] = [history[length] if length < len(history) else "fine"]
                await client.get_response(history[:length])
            await self._memory.aclose()

        asyncio.run(calls())
        return self.model.requests

    @property
    def edits(self) -> list[str]:
        """The edits, by name, in order."""
        return [span.name for span in self.capture.spans if span.name in _EDITS]


def _conversation() -> list[Message]:
    """Return the conversation as new objects each time, as in another process."""
    history = [Message.user("Look around until I say stop.")]
    for number in range(_TURNS):
        call = ToolCall(f"c{number}", "look", f'{{"place": {number}}}')
        history += [
            Message.user(f"Look at place {number}."),
            Message.assistant(call),
            Message.tool(call.id, f"seen {number}: " + "grey and blue " * 60, name="look"),
            Message.assistant(f"I was at place {number}, " + "which was nice " * 8),
        ]
    return [*history, Message.user("And now?")]


def _sent(requests: list[ChatRequest]) -> list[bytes]:
    return [_encoded(request.messages) for request in requests]


def _encoded(messages: tuple[Message, ...]) -> bytes:
    return msgspec.json.encode(messages)
