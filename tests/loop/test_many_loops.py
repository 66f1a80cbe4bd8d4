"""A thousand loops at once in one process: each has its own workspace, budget and trace, and an end of its own."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator

import pytest

from chatstack import ChatClient, ChatRequest, ChatStack, ChatStream, ChatUpdate, Message, Usage
from chatstack.client.fronts import ChatFronts
from chatstack.loop.context import IterativeContext
from chatstack.loop.iterative import IterativeLoop
from chatstack.loop.results import IterativeResult
from chatstack.loop.workspace import MemoryWorkspace
from chatstack.testing import TelemetryCapture
from tests.loop.runs import call, note

pytestmark = pytest.mark.slow

LOOPS = 1_000


class Clerk(ChatFronts):
    """Has everybody note who asked, after what others have asked meanwhile. A call is 50 tokens."""

    def __init__(self) -> None:
        self.waiting = self.most = 0

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await ChatStream.primed(self._answer(request))

    async def _answer(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        await asyncio.sleep(0.01)
        self.waiting -= 1
        if request.options.tool_choice == "none" or any(message.results for message in request.messages):
            message = Message.assistant(f"noted for {request.conversation_id}")
            yield ChatUpdate(text=message.text)
        else:
            asked = call("note", "c", text=request.messages[0].text)
            message = Message("assistant", (asked,))
            yield ChatUpdate(part=asked)
        yield ChatUpdate(message_done=message, usage=Usage(45, 5), finish_reason="stop")


def prompt(context: IterativeContext) -> str:
    before = context.workspace.read("notes.md").count("\n") if context.workspace.exists("notes.md") else 0
    return f"{context.run_id} has {before}"


def test_a_thousand_loops_at_once_do_not_see_one_another() -> None:
    capture = TelemetryCapture()
    clerk = Clerk()
    client: ChatClient = ChatStack(clerk).build(capture.resolve)

    async def one(number: int) -> tuple[IterativeResult, IterativeContext]:
        loop = IterativeLoop(
            client,
            "Note.",
            prompt,
            [note],
            is_complete=lambda context: False,
            max_tokens=200 * (1 + number % 3),
            pressure=0.5,
            telemetry=capture.telemetry,
        )
        context = IterativeContext(workspace=MemoryWorkspace(), run_id=f"r{number}")
        return await loop.run(context), context

    async def main() -> list[tuple[IterativeResult, IterativeContext]]:
        async with asyncio.timeout(100):
            ended = await asyncio.gather(*(one(number) for number in range(LOOPS)))
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return ended

    ended = asyncio.run(main())
    assert clerk.most > LOOPS // 2
    for number, (result, context) in enumerate(ended):
        rounds = 1 + number % 3  # of a hundred tokens, up to half of the budget
        assert (result.reason, result.error, len(result.iterations)) == ("budget", None, rounds + 1)
        assert result.usage.total_tokens == 100 * rounds + 50
        assert context.workspace.read("notes.md").splitlines() == [
            f"r{number} has {before}" for before in range(rounds)
        ]
        assert context.records == list(result.iterations)
        assert {record.text for record in result.iterations} == {f"noted for r{number}"}

    assert capture.open_spans == ()
    whose: dict[int, set[object]] = {}
    for span in capture.spans:
        whose.setdefault(span.trace_id, set()).add(span.attributes.get("gen_ai.conversation.id"))
    assert sorted(whose.values(), key=str) == sorted(({f"r{number}"} for number in range(LOOPS)), key=str)
    names = Counter(re.sub(r" .*", "", span.name) for span in capture.spans)
    iterations = sum(len(result.iterations) for result, _ in ended)
    assert names == {
        "invoke_workflow": LOOPS,
        "invoke_agent": iterations,
        "chat": 2 * iterations - LOOPS,
        "execute_tool": iterations - LOOPS,
    }


def test_one_loop_may_run_any_number_of_contexts_at_once() -> None:
    loop = IterativeLoop(Clerk(), "Note.", prompt, [note], max_iterations=3, is_complete=lambda context: False)

    async def main() -> list[IterativeResult]:
        contexts = [IterativeContext(workspace=MemoryWorkspace(), run_id=f"r{number}") for number in range(100)]
        return await asyncio.gather(*map(loop.run, contexts))

    for number, result in enumerate(asyncio.run(main())):
        assert (result.reason, result.usage.total_tokens) == ("max_iterations", 300)
        assert [each.output for record in result.iterations for each in record.tool_calls] == [
            f"noted r{number} has {before}" for before in range(3)
        ]
