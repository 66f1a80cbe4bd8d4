"""A report writer that works in iterations; all it remembers from one to the next are the files of a workspace.

    python examples/report_writer.py

runs it against a stand-in that answers by rules, so it needs no key. A real model is named by ``--model NAME``, with
``--provider anthropic`` or ``--base-url URL`` where it is not OpenAI's; its key is taken from the environment. The
default budget does not last for the whole plan: near its end the report is asked for with what is there. With
``--max-tokens 20000`` it lasts. ``--folder DIR`` keeps the files, and a journal: whoever stops the program, with Ctrl-C
or harder, and starts it again with the same folder, goes on where it was.
"""

import argparse
import asyncio
import json
import re
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from rich import print as show

from chatstack import (
    ChatClient,
    ChatFronts,
    ChatRequest,
    ChatStack,
    ChatStream,
    ChatUpdate,
    FolderWorkspace,
    IterationRecord,
    IterativeContext,
    IterativeLoop,
    IterativeResult,
    Message,
    ProgressEvents,
    ProviderInfo,
    Telemetry,
    ToolCall,
    Usage,
    tool,
    workspace_tools,
)
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient
from chatstack.stores.sqlite_journal import SQLiteJournal
from chatstack.tokens.counter import char_counter
from chatstack.workbench.demo.span_tree import SpanRecorder, span_tree

FACTS = {
    "Mercury": "Mercury goes around the Sun in 88 days and has no moon.",
    "Venus": "Venus is the hottest planet, at about 465 degrees Celsius.",
    "Earth": "Earth is the only planet that is known to have life.",
    "Mars": "Mars has two small moons, Phobos and Deimos.",
    "Jupiter": "Jupiter has more mass than all other planets together.",
    "Saturn": "Saturn is less dense than water.",
}
COUNTER = char_counter(4)
INSTRUCTIONS = "You write a report on the planets. Each message is all that you know: what was noted is in files."


@tool(idempotent=True)
def search(topic: str) -> str:
    """Looks a topic up in an encyclopedia."""
    return FACTS.get(topic, f"Nothing is known of {topic}.")


def prompt(context: IterativeContext) -> str:
    """What to do next, as the files have it."""
    files = context.workspace
    if not files.exists("plan.md"):
        return "There is no plan yet. Write plan.md: the topics of the report, one a line."
    plan = [line.strip(" -*") for line in files.read("plan.md").splitlines() if line.strip(" -*")]
    topics = {topic: "notes/" + re.sub(r"[^\w -]+", " ", topic).strip() + ".md" for topic in plan}
    noted = "These are the notes:\n" + "\n".join(files.read(path) for path in topics.values() if files.exists(path))
    if context.is_finalizing:
        return f"{noted}\nThere is no time for more. Answer with the report as it can be written from these notes."
    missing = [topic for topic, path in topics.items() if not files.exists(path)]
    if missing:
        return f"Topic: {missing[0]}\nSearch for it, then write what is worth telling into {topics[missing[0]]}."
    return f"{noted}\nWrite report.md from them."


def keep_the_last_answer(record: IterationRecord, context: IterativeContext) -> None:
    """The last iteration may call no tool; what it says is the report."""
    if record.is_final:
        context.workspace.write("report.md", record.text)


def writer(
    client: ChatClient, files: FolderWorkspace, journal: SQLiteJournal, telemetry: Telemetry, max_tokens: int
) -> IterativeLoop:
    """The loop around any client."""
    return IterativeLoop(
        client,
        INSTRUCTIONS,
        prompt,
        [search, *workspace_tools(files)],
        is_complete=lambda context: context.workspace.exists("report.md"),
        max_tokens=max_tokens,
        on_iteration_end=keep_the_last_answer,
        journal=journal,
        name="report-writer",
        telemetry=telemetry,
    )


async def watch(events: ProgressEvents) -> None:
    """Print what happens, as it happens."""
    async for event in events:
        if event.kind == "iteration_started":
            print(f"iteration {event.round}")
        elif event.kind == "tool_started":
            print(f"  {event.name}")
        elif event.kind == "iteration_ended":
            print(f"  {event.numbers['budget']:.0%} of the budget is used")


async def write_report(client: ChatClient, folder: Path, *, max_tokens: int = 6_500) -> tuple[IterativeResult, str]:
    """Have it written, and watched, then show the spans. Returns what the run came to, and the report."""
    recorder, journal, files = SpanRecorder(), SQLiteJournal(folder / "journal.db"), FolderWorkspace(folder / "files")
    services: dict[type, object] = {Telemetry: recorder.telemetry}
    traced = ChatStack(client).build(services.__getitem__)
    loop = writer(traced, files, journal, recorder.telemetry, max_tokens)
    try:
        async with asyncio.TaskGroup() as tasks, loop.feed.events("report") as events:
            tasks.create_task(watch(events))
            result = await loop.run(IterativeContext(workspace=files, run_id="report"))
    finally:
        await journal.aclose()
    show(span_tree(recorder.spans()))
    return result, files.read("report.md") if files.exists("report.md") else ""


class StandIn(ChatFronts):
    """Answers by rules. Its tokens are four characters each."""

    info = ProviderInfo(name="stand-in", model="rules")

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await ChatStream.primed(self._answer(request))

    async def _answer(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        said = _next_step(request.messages, may_call=request.options.tool_choice != "none")
        yield ChatUpdate(part=said) if isinstance(said, ToolCall) else ChatUpdate(text=said)
        message = Message("assistant", (said,)) if isinstance(said, ToolCall) else Message.assistant(said)
        read = COUNTER.count_options(request.options) + sum(map(COUNTER.count_message, request.messages))
        usage = Usage(read, COUNTER.count_message(message))
        yield ChatUpdate(message_done=message, usage=usage, finish_reason="stop")


def _next_step(messages: Sequence[Message], *, may_call: bool) -> ToolCall | str:
    asked = messages[0].text.splitlines()
    found = [result.text for message in messages for result in message.results]
    report = "# The planets\n\n" + "\n".join(line for line in asked if line in FACTS.values())
    if not may_call:
        return report
    if asked[0].startswith("There is no plan"):
        return "The plan is written." if found else _write("plan.md", "\n".join(FACTS))
    if asked[0].startswith("Topic: "):
        topic = asked[0].removeprefix("Topic: ")
        return _write(f"notes/{topic}.md", found[0]) if found else _call("search", topic=topic)
    return "The report is written." if found else _write("report.md", report)


def _write(path: str, content: str) -> ToolCall:
    return _call("write_file", path=path, content=content)


def _call(name: str, **arguments: str) -> ToolCall:
    return ToolCall(f"call-{name}", name, json.dumps(arguments))


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-tokens", type=int, default=6_500, metavar="N", help="what the whole run may use")
    parser.add_argument("--folder", type=Path, help="where the files are kept; else they are removed in the end")
    parser.add_argument("--model", help="a real model instead of the stand-in")
    parser.add_argument("--provider", choices=("openai", "anthropic"), default="openai", help="whose model it is")
    parser.add_argument("--base-url", help="another server with the same API")
    given = parser.parse_args()
    async with AsyncExitStack() as closing:
        client: ChatClient = StandIn()
        if given.model is not None:
            kind = AnthropicChatClient if given.provider == "anthropic" else OpenAIChatClient
            client = real = kind(given.model, base_url=given.base_url)
            closing.push_async_callback(real.aclose)
        folder = given.folder or Path(closing.enter_context(tempfile.TemporaryDirectory()))
        result, report = await write_report(client, folder, max_tokens=given.max_tokens)
    print(f"{result.reason}: {len(result.iterations)} iterations, {result.usage.total_tokens:,} tokens\n\n{report}")
    if result.error is not None:
        raise result.error


if __name__ == "__main__":
    asyncio.run(main())
