"""Many conversations at once through one agent of another framework: for the tests of plugins."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise

from chatstack.telemetry.agent_turns import agent_turn
from chatstack.testing.capture import TelemetryCapture

_NUMBER = re.compile(r"<(\d{4})>")
_LONG = "word " * 400


class SideBySide:
    """The model's part in conversations that differ by a number alone, and what each of them was sent.

    In each the model calls a tool ``rounds`` times, then says that it is done. A test's own model gives the texts of
    each request to ``asked``, and does what that says; its tool answers with ``result``. ``check`` runs them::

        def agent(talks: SideBySide) -> Converse: ...  # a new agent with new layers; run it with talks.question(number)

        SideBySide.check(agent)

    As many as the environment variable ``CHATSTACK_CONVERSATIONS`` says; 40 by default, which take a second or two.
    """

    def __init__(self, rounds: int = 5) -> None:
        self.capture = TelemetryCapture()
        self.sent: dict[str, list[tuple[str, ...]]] = {}
        self._rounds = rounds

    @staticmethod
    def question(number: int) -> str:
        """Return the user's message."""
        return f"question <{number:04}>"

    @staticmethod
    def result(about: str) -> str:
        """Return what the tool answers, for the argument of its call."""
        return f"{about}: {_LONG}"

    def asked(self, texts: Sequence[str]) -> str | None:
        """Note a request, by the text of each of its messages; return the argument of the next call, None when done."""
        (number,) = {found for text in texts for found in _NUMBER.findall(text)}
        before = self.sent.setdefault(number, [])
        before.append(tuple(texts))
        return f"<{number}> {len(before)}" if len(before) <= self._rounds else None

    async def _run(self, converse: Converse, numbers: Sequence[int]) -> None:
        async def one(number: int) -> None:
            id = f"{number:04}"
            with agent_turn(f"agent {id}", conversation_id=id, telemetry=self.capture.telemetry):
                answer = await converse(number)
            assert answer.endswith(f"done <{id}>"), answer

        await asyncio.gather(*map(one, numbers))

    @classmethod
    def check(cls, agent: Callable[[SideBySide], Converse], count: int | None = None) -> None:
        """Check that each of them is sent what it would be alone, edits included, and has one tree of spans."""
        count = count or int(os.environ.get("CHATSTACK_CONVERSATIONS", "40"))
        alone, together = cls(), cls()
        asyncio.run(alone._run(agent(alone), [0]))
        asyncio.run(together._run(agent(together), range(count)))
        told = alone.sent["0000"]
        broken = [before != after[: len(before)] for before, after in pairwise(told)]
        assert 0 < sum(broken) < len(broken), "layers should edit now and then"
        assert sorted(together.sent) == [f"{number:04}" for number in range(count)]
        for id, requests in together.sent.items():
            expected = [tuple(text.replace("<0000>", f"<{id}>") for text in texts) for texts in told]
            assert requests == expected, f"conversation {id} is sent something else than alone"
        spans = len(alone.capture.spans)
        roots = [span for span in together.capture.spans if span.parent_id is None]
        assert sorted(root.name for root in roots) == [f"invoke_agent agent {number:04}" for number in range(count)]
        traces = Counter(span.trace_id for span in together.capture.spans)
        assert {traces[root.trace_id] for root in roots} == {spans}
        assert not together.capture.open_spans


Converse = Callable[[int], Awaitable[str]]
"""Runs the conversation of a number, and returns the agent's last answer: ``done``, and the number in brackets."""
