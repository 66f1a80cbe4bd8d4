# /// script
# requires-python = ">=3.11"
# dependencies = ["chatstack-core[openai]", "agent-framework-core>=1.23"]
#
# [tool.uv.sources]
# chatstack-core = { path = "../..", editable = true }
# ///
"""What the layers cost, as ratios in one run: ``uv run tests/benchmarks/layers.py``.

Each pair of subjects is timed in turn, over and over, so that a machine that changes its speed changes it for both;
the ratio printed is the median of the ratios of the pairs, with the lowest and the highest beside it. Times are CPU
times of this process (a server that answers runs in another one).
"""

from __future__ import annotations

import asyncio
import http.server
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any

import agent_framework
import openai
from agent_framework.observability import ChatTelemetryLayer
from results import Run  # beside this file

import chatstack

ROUNDS = 9
CALLS = 300
CHUNKS = 20_000
TEXT = "some words of text " * 10

Call = Callable[[], Awaitable[object]]


def main() -> None:
    if sys.argv[1:] == ["--serve"]:
        serve()
        return
    run = Run.from_command_line("layers", __doc__, rounds=ROUNDS)
    with subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            asyncio.run(compare(run, f"http://127.0.0.1:{int(server.stdout.readline())}/v1"))
        finally:
            server.terminate()
    compare_imports(run)
    run.write()


async def compare(run: Run, base_url: str) -> None:
    for length in (3, 21, 61):
        subjects = (f"four layers, {length} messages", ours(length)), ("Agent Framework's client stack", theirs(length))
        await against(run, *subjects)
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as client:
        subjects = (
            ("four layers, 3 messages beside an SDK", ours(3)),
            ("one openai SDK call over loopback", sdk(client)),
        )
        await against(run, *subjects, calls=150)
    guarded, bare = streamed(guarded=True), streamed(guarded=False)
    await against(run, ("a stream of 20,000 chunks under the guard", guarded), ("bare", bare), calls=1)


async def against(run: Run, subject: tuple[str, Call], other: tuple[str, Call], *, calls: int = CALLS) -> None:
    """Print the ratio of the two, pair by pair."""
    pairs = []
    for _ in range(run.rounds):
        pairs.append((await seconds_of(subject[1], calls), await seconds_of(other[1], calls)))
    report(run, subject[0], other[0], pairs)


async def seconds_of(call: Call, calls: int) -> float:
    await call()
    started = time.process_time()
    for _ in range(calls):
        await call()
    return (time.process_time() - started) / calls


def report(run: Run, subject: str, other_subject: str, pairs: list[tuple[float, float]]) -> None:
    run.seconds(subject, [mine for mine, _ in pairs])
    run.seconds(f"{other_subject} (beside {subject})", [other for _, other in pairs], is_ours=False)
    ratios = sorted(mine / other for mine, other in pairs)
    mine, other = (statistics.median(each) * 1e6 for each in zip(*pairs, strict=True))
    print(
        f"{subject} / {other_subject}: {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}); "
        f"{mine:,.0f} us / {other:,.0f} us, {len(pairs)} pairs"
    )


# ours


class FakeModel(chatstack.ChatFronts):
    def __init__(self, chunks: int = 1) -> None:
        self.updates = [chatstack.ChatUpdate(text="fine")] * chunks
        done = chatstack.Message.assistant("fine" * chunks)
        self.updates.append(chatstack.ChatUpdate(message_done=done, usage=chatstack.Usage(1, 1), finish_reason="stop"))

    async def send(self, request: chatstack.ChatRequest, /) -> chatstack.ChatStream:
        return await chatstack.ChatStream.primed(self.play())

    async def play(self) -> AsyncGenerator[chatstack.ChatUpdate, None]:
        for update in self.updates:
            yield update


def add_one(number: int) -> int:
    """Adds one."""
    return number + 1


def ours(length: int) -> Call:
    client = (
        chatstack.ChatStack(FakeModel())
        .use(chatstack.ProgressReporter)
        .use(chatstack.FunctionInvoker, tools=[add_one])
        .use(chatstack.ContextWindowGuard, max_context_tokens=100_000, prune_on_overflow=True)
        .build()
    )
    make = (chatstack.Message.user, chatstack.Message.assistant)
    messages = [make[number % 2](TEXT) for number in range(length)]

    def call() -> Coroutine[Any, Any, object]:
        return client.get_response(messages)

    return call


def streamed(*, guarded: bool) -> Call:
    stack = chatstack.ChatStack(FakeModel(CHUNKS), trace_model_calls=False)
    if guarded:
        stack = stack.use(chatstack.ContextWindowGuard, max_context_tokens=100_000)
    client = stack.build()

    async def call() -> None:
        async for _ in client.get_streaming_response("hello"):
            pass

    return call


# the others


class TheirFakeModel(agent_framework.BaseChatClient):
    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **kwargs: Any) -> Any:
        return self.answer()

    async def answer(self) -> agent_framework.ChatResponse:
        return agent_framework.ChatResponse(messages=[agent_framework.Message("assistant", ["fine"])], response_id="1")


class TheirStack(
    agent_framework.FunctionInvocationLayer,
    agent_framework.ChatMiddlewareLayer,
    ChatTelemetryLayer,
    TheirFakeModel,
):
    pass


@agent_framework.chat_middleware
async def look_on(context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
    await call_next()


def theirs(length: int) -> Call:
    """The same four: a middleware that looks on, the function loop, compaction under a limit, telemetry (off)."""
    tokenizer = agent_framework.CharacterEstimatorTokenizer()
    client = TheirStack(
        middleware=[look_on],
        compaction_strategy=agent_framework.TruncationStrategy(max_n=100_000, compact_to=70_000, tokenizer=tokenizer),
        tokenizer=tokenizer,
    )
    roles = ("user", "assistant")
    messages = [agent_framework.Message(roles[number % 2], [TEXT]) for number in range(length)]
    options = {"tools": [agent_framework.tool(add_one)]}

    def call() -> Awaitable[object]:
        answer: Awaitable[object] = client.get_response(messages, options=options)
        return answer

    return call


def sdk(client: openai.AsyncOpenAI) -> Call:
    """The official SDK alone."""
    messages: Any = [{"role": ("user", "assistant")[number % 2], "content": TEXT} for number in range(3)]

    def call() -> Awaitable[object]:
        return client.chat.completions.create(model="none", messages=messages)

    return call


class Canned(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    body = json.dumps(
        {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": "none",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "fine"}}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
    ).encode()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def serve() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Canned) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


# imports

BASELINE = "import asyncio, dataclasses, typing, json, logging"


def compare_imports(run: Run) -> None:
    everything = "import chatstack; [getattr(chatstack, name) for name in chatstack.__all__]"
    for title, code in (("import chatstack", "import chatstack"), ("every public name of chatstack", everything)):
        pairs = [(import_seconds(code), import_seconds(BASELINE)) for _ in range(run.rounds)]
        report(run, title, BASELINE, pairs)


def import_seconds(code: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
