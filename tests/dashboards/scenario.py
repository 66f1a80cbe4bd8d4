"""A little of everything that a dashboard shows: tools, streams, edits, each warning with an alert, failures."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from chatstack import (
    ChatStack,
    ContextMemory,
    ContextWindowGuard,
    FunctionInvoker,
    Message,
    Plan,
    ProgressReporter,
    Strategy,
    Summarizer,
    ToolCall,
    tool,
)
from chatstack.client.protocol import ProviderInfo
from chatstack.context.edits.context import Context
from chatstack.errors import ServerError
from chatstack.telemetry.emission import Telemetry
from chatstack.testing import Answer, ScriptedClient

MODEL = "gpt-5-mini"  # which has a price
TURNS = 10
FAILED_TURNS = 1
WARNINGS = 8
"""How many of each one run has."""
_CHUNK_SECONDS = 0.01
_LONG = (
    Message.user("first " + "x" * 200),
    *(each for _ in range(6) for each in (Message.assistant("y" * 200), Message.user("z" * 200))),
)


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"mild in {city}"


@tool
def get_mail(folder: str) -> str:
    """The mail in a folder."""
    raise OSError("the mail server is down")


@dataclass(frozen=True)
class DropsTheQuestion(Strategy):
    """A strategy that would lose what the user asked."""

    name = "drops_the_question"

    def plan(self, context: Context) -> Plan | None:
        return Plan(strategy=self.name, reason="a mistake", drop=(len(context.messages) - 1,))


class BrokenStore:
    """A store that never answers well."""

    async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        raise ConnectionError("refused")

    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        raise ConnectionError("refused")

    async def forget(self, links: Sequence[bytes] | None = None) -> None:
        raise ConnectionError("refused")

    async def aclose(self) -> None:
        return


async def run_a_little_of_everything(telemetry: Telemetry) -> None:
    """Run ``TURNS`` turns, one of which fails. What they say goes to ``telemetry``."""

    def resolve(kind: type) -> object:
        if kind is Telemetry:
            return telemetry
        raise LookupError(kind)

    async def turn(stack: ChatStack, messages: str | Sequence[Message]) -> None:
        await stack.build(resolve).get_response(messages)

    calls = (ToolCall("1", "get_weather", '{"city": "Oslo"}'), ToolCall("2", "get_mail", '{"folder": "in"}'))
    with_tools = _stack(Message("assistant", calls), "Oslo is mild, and the mail is down.")
    client = with_tools.use(FunctionInvoker, tools=[get_weather, get_mail]).build(resolve)
    async with client.get_streaming_response("How is Oslo?") as stream:
        await stream.response()

    guarded = _stack("short").use(ContextWindowGuard, max_context_tokens=100)
    await turn(guarded, "small")
    await turn(guarded, "x" * 380)  # near its limit
    pruned = _stack("short").use(ContextWindowGuard, max_context_tokens=300, prune_on_overflow=True)
    await turn(pruned, _LONG)
    await turn(pruned, "x" * 2_000)  # nothing can be removed from it

    down = ScriptedClient([ServerError("down")])
    for writer in (ScriptedClient(["they talked"]), down):
        await turn(_stack("fine").use(Summarizer, max_tokens=300, summary_client=writer), _LONG)
    await turn(_stack("fine").use(DropsTheQuestion()), _LONG)

    memory = ContextMemory(store=BrokenStore(), scope="tests")
    await turn(_stack("fine", memory=memory).use(ContextWindowGuard, max_context_tokens=300), _LONG)
    await failed_turn(telemetry)


async def failed_turn(telemetry: Telemetry) -> None:
    """Run a turn whose one model call fails."""
    with suppress(ServerError):
        await _stack(ServerError("down")).build({Telemetry: telemetry}.get).get_response("Is anybody there?")


def _stack(*answers: Answer, memory: ContextMemory | None = None) -> ChatStack:
    info = ProviderInfo(name="scripted", model=MODEL, server_address="127.0.0.1", server_port=8080)
    model = ScriptedClient(answers, info=info, delay_seconds=_CHUNK_SECONDS)
    return ChatStack(model, memory=memory).use(ProgressReporter)
