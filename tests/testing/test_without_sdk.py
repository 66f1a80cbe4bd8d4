"""Where the OpenTelemetry SDK is not installed, everything but the capture works."""

from __future__ import annotations

import subprocess
import sys

from tests.warning_lines import without_warnings

_PROGRAM = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("opentelemetry.sdk"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())

import asyncio
from chatstack import ChatStack, ContextWindowGuard, FunctionInvoker, Message, OldestFirst, ProgressReporter, ToolCall
from chatstack.testing import ScriptedClient

def weather(city: str) -> str:
    return "sunny"

async def main():
    model = ScriptedClient([[ToolCall("c", "weather", '{"city": "Dubai"}')], "fine"])
    stack = ChatStack(model).use(ProgressReporter).use(FunctionInvoker, tools=[weather])
    stack = stack.use(OldestFirst(60, 30)).use(ContextWindowGuard, max_context_tokens=50, prune_on_overflow=True)
    async with stack.open() as client:
        history = [Message.user("hello " * 10), Message.assistant("well " * 10), Message.user("hello")]
        print((await client.get_response(history)).text)
        async with client.get_streaming_response(history) as stream:
            print((await stream.response()).text, [len(request.messages) for request in model.requests])

asyncio.run(main())
"""


def test_a_whole_stack_answers() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _PROGRAM], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, without_warnings(done.stderr)) == (0, "")
    assert done.stdout.splitlines()[0] == "fine"
    assert done.stdout.splitlines()[1].startswith("fine [")
