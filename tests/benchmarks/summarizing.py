# /// script
# requires-python = ">=3.11"
# dependencies = ["chatstack-core", "langchain>=1.3"]
#
# [tool.uv.sources]
# chatstack-core = { path = "../..", editable = true }
# ///
"""What is left after many summaries, beside LangChain: ``uv run tests/benchmarks/summarizing.py``.

One conversation, the same for both: every user message states a fact, the answers are long. The model that writes
summaries is the same stand-in, too: it repeats every fact that it is shown, and nothing else, so whatever is missing in
the end was not shown to it, or was dropped. Counted: calls for summaries, and the facts in the last request; timed: CPU
of all turns together, of a whole call on our side, and of a whole agent with nothing but the middleware on the other.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
import re
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from results import Run  # beside this file

import chatstack
from chatstack.testing import ScriptedClient

ROUNDS = 5
TURNS = 200
LIMIT = 4_000
KEEP_TURNS = 3
ANSWER = "It is as you say, and there is more to tell about it. " * 12
FACT = re.compile(r"fact\d+")


class Outcome(NamedTuple):
    """What came of one conversation."""

    summaries: int
    facts: int
    has_task: bool
    cpu_seconds: float


def main() -> None:
    run = Run.from_command_line("summarizing", __doc__, rounds=ROUNDS)
    ours, theirs = [], []
    for _ in range(run.rounds):
        ours.append(asyncio.run(our_turns()))
        theirs.append(their_turns())
    version = importlib.metadata.version("langchain")
    print(
        f"\nlangchain {version}; CPython {platform.python_version()}, {os.cpu_count()} cores; {TURNS} turns under "
        f"{LIMIT:,} tokens, {run.rounds} rounds\n"
    )
    print("| | summaries | facts in the last request | the task word for word | CPU of all turns (median) |")
    print("|---|---|---|---|---|")
    for name, found in (("chatstack", ours), ("LangChain", theirs)):
        assert len({each[:3] for each in found}) == 1, "each round is the same conversation"
        first, seconds = found[0], statistics.median(each.cpu_seconds for each in found)
        task = "yes" if first.has_task else "no"
        print(f"| {name} | {first.summaries} | {first.facts} of {TURNS} | {task} | {seconds * 1e3:,.0f} ms |")
        run.seconds(f"{TURNS} turns, {name}", [each.cpu_seconds for each in found], is_ours=found is ours)
    run.exact("summaries", ours[0].summaries)
    run.exact("facts in the last request", ours[0].facts)
    run.write()


def question(number: int) -> str:
    return f"Remember fact{number:03d}, please, and say what follows from it."


def facts_in(text: str) -> list[str]:
    return sorted(set(FACT.findall(text)))


# ours


class Writer(chatstack.ChatFronts):
    """Repeats the facts that it is shown."""

    def __init__(self) -> None:
        self.calls = 0

    async def send(self, request: chatstack.ChatRequest, /) -> chatstack.ChatStream:
        self.calls += 1
        shown = " ".join(message.text for message in request.messages)
        return await ScriptedClient([" ".join(facts_in(shown)) or "nothing"]).send(request)


async def our_turns() -> Outcome:
    model, writer = ScriptedClient([ANSWER]), Writer()
    stack = chatstack.ChatStack(model).use(
        chatstack.Summarizer,
        max_tokens=LIMIT,
        keep_recent_turns=KEEP_TURNS,
        summary_client=writer,
        max_summary_tokens=LIMIT // 2,
    )
    history: list[chatstack.Message] = []
    started = time.process_time()
    async with stack.open() as client:
        for number in range(TURNS):
            history.append(chatstack.Message.user(question(number)))
            history += (await client.get_response(history)).messages
    seconds = time.process_time() - started
    sent = [message.text for message in model.requests[-1].messages]
    return Outcome(writer.calls, len(facts_in(" ".join(sent))), question(0) in sent, seconds)


# theirs


class FakeModel(BaseChatModel):
    """Answers at once, or, as the writer, repeats the facts that it is shown."""

    writes: bool = False
    seen: list[Any] = []  # noqa: RUF012 - pydantic copies it

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **given: Any,
    ) -> ChatResult:
        self.seen.append(messages)
        shown = " ".join(str(message.content) for message in messages)
        text = (" ".join(facts_in(shown)) or "nothing") if self.writes else ANSWER
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools: Sequence[Any], **given: Any) -> Any:
        return self


def their_turns() -> Outcome:
    model, writer = FakeModel(seen=[]), FakeModel(writes=True, seen=[])
    middleware: Any = SummarizationMiddleware(
        model=writer, trigger=("tokens", LIMIT), keep=("messages", 2 * KEEP_TURNS - 1)
    )
    agent: Any = create_agent(model=model, tools=[], middleware=[middleware], checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "one"}}
    started = time.process_time()
    for number in range(TURNS):
        agent.invoke({"messages": [HumanMessage(question(number))]}, config)
    seconds = time.process_time() - started
    sent = [str(message.content) for message in model.seen[-1]]
    return Outcome(len(writer.seen), len(facts_in(" ".join(sent))), question(0) in sent, seconds)


if __name__ == "__main__":
    main()
