"""An app in an injectq container: one client for all its nodes, and one for each conversation.

    python examples/injectq_app.py

Each layer gets its own dependencies from the container: the guard and the clearer a counter, the summarizer a cheaper
client, all of them the tracer provider. It runs against a stand-in for a model, so it needs no key.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from injectq import Inject, InjectQ, inject
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chatstack import (
    CharCounter,
    ChatClient,
    ChatFronts,
    ChatStack,
    ContextWindowGuard,
    FunctionInvoker,
    Message,
    ProgressReporter,
    Summarizer,
    SummaryClient,
    Telemetry,
    TokenCounter,
    ToolResultClearer,
    tool,
)
from chatstack.di.injectq import conversation, install
from chatstack.workbench.demo.stand_in import StandIn

CITIES = ("Dubai", "Lisbon", "Oslo", "Nairobi", "Lima", "Cairo", "Quito", "Delhi")


@tool
def get_weather(city: str) -> dict[str, object]:
    """The temperature in a city, in degrees Celsius."""
    return {"city": city, "temperature": 10 + len(city)}


def make_stack(provider: ChatClient) -> ChatStack:
    return (
        ChatStack(provider)
        .use(ProgressReporter, agent_name="weather")
        .use(FunctionInvoker, tools=[get_weather])
        .use(ToolResultClearer, trigger={"tokens": 240}, keep={"messages": 1})
        .use(Summarizer, max_tokens=360, keep_recent_turns=1)
        .use(ContextWindowGuard, max_context_tokens=600)
    )


def make_container(provider: ChatClient, summaries: ChatClient, spans: TracerProvider) -> InjectQ:
    container = InjectQ()
    container.bind_instance(TokenCounter, CharCounter(chars_per_token=3))
    container.bind_instance(SummaryClient, summaries)
    container.bind_instance(Telemetry, Telemetry(tracer_provider=spans))
    install(container, make_stack(provider))
    return container


@inject
async def ask_once(city: str, client: ChatFronts = Inject[ChatFronts]) -> str:  # type: ignore[assignment]  # as injectq has it
    """A node: it shares the client of the app."""
    return (await client.get_response(f"What is the weather in {city}?")).text


async def talk(container: InjectQ, cities: Sequence[str]) -> list[str]:
    """A conversation: its client has layers of its own."""
    history: list[Message] = []
    async with conversation(container) as client:
        for city in cities:
            history.append(Message.user(f"What is the weather in {city}?"))
            history += (await client.get_response(history)).messages
    return [message.text for message in history if message.role == "assistant" and message.text]


async def main() -> None:
    exporter, spans = InMemorySpanExporter(), TracerProvider()
    spans.add_span_processor(SimpleSpanProcessor(exporter))
    async with AsyncExitStack() as closing:  # the app's: a container closes nothing
        stand_in = closing.enter_context(StandIn())
        provider = await closing.enter_async_context(stand_in.client())
        summaries = await closing.enter_async_context(stand_in.client())
        container = make_container(provider, summaries, spans)
        with container.context():
            print(await ask_once("Rome"))
        print(*await talk(container, CITIES), sep="\n")
    edits = [span.name for span in exporter.get_finished_spans() if span.name.startswith("compact_context")]
    print("edits:", ", ".join(sorted(set(edits))))


if __name__ == "__main__":
    asyncio.run(main())
