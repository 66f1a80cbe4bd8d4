"""An app of dependency-injector's providers: one client for all its handlers, and one for each conversation.

    python examples/dependency_injector_app.py

Each layer gets its own dependencies: the guard and the clearer a counter, the summarizer a cheaper client, all of them
the tracer provider. The HTTP clients are resources. It runs against a stand-in for a model, so it needs no key.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any, ClassVar

from dependency_injector import containers, providers
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
from chatstack.di.dependency_injector import chat_client, conversation
from chatstack.workbench.demo.stand_in import StandIn

CITIES = ("Dubai", "Lisbon", "Oslo", "Nairobi", "Lima", "Cairo", "Quito", "Delhi")


@tool
def get_weather(city: str) -> dict[str, object]:
    """The temperature in a city, in degrees Celsius."""
    return {"city": city, "temperature": 10 + len(city)}


def make_stack(provider: ChatClient, max_context_tokens: int) -> ChatStack:
    return (
        ChatStack(provider)
        .use(ProgressReporter, agent_name="weather")
        .use(FunctionInvoker, tools=[get_weather])
        .use(ToolResultClearer, trigger={"tokens": 240}, keep={"messages": 1})
        .use(Summarizer, max_tokens=360, keep_recent_turns=1)
        .use(ContextWindowGuard, max_context_tokens=max_context_tokens)
    )


def started() -> Generator[StandIn]:
    with StandIn() as stand_in:
        yield stand_in


async def opened(stand_in: StandIn) -> AsyncGenerator[ChatClient]:
    async with stand_in.client() as client:
        yield client


def tracers(exporter: InMemorySpanExporter) -> TracerProvider:
    spans = TracerProvider()
    spans.add_span_processor(SimpleSpanProcessor(exporter))
    return spans


class App(containers.DeclarativeContainer):
    config = providers.Configuration(strict=True)
    exporter = providers.ThreadSafeSingleton(InMemorySpanExporter)
    telemetry = providers.ThreadSafeSingleton(
        Telemetry, tracer_provider=providers.ThreadSafeSingleton(tracers, exporter)
    )
    counter = providers.ThreadSafeSingleton(CharCounter, chars_per_token=3)
    stand_in = providers.Resource(started)
    provider = providers.Resource(opened, stand_in)
    summaries = providers.Resource(opened, stand_in)
    stack = providers.ThreadSafeSingleton(make_stack, provider, config.max_context_tokens)
    services: ClassVar[dict[type, providers.Provider[Any]]] = {
        TokenCounter: counter,
        SummaryClient: summaries,
        Telemetry: telemetry,
    }
    chat = chat_client(stack, services, per_app=True)
    talk = conversation(stack, services)


async def ask_once(client: ChatFronts, city: str) -> str:
    return (await client.get_response(f"What is the weather in {city}?")).text


async def talk(client: ChatFronts, cities: Sequence[str]) -> list[str]:
    history: list[Message] = []
    for city in cities:
        history.append(Message.user(f"What is the weather in {city}?"))
        history += (await client.get_response(history)).messages
    return [message.text for message in history if message.role == "assistant" and message.text]


async def main() -> None:
    app = App(config={"max_context_tokens": 600})
    try:
        print(await ask_once(await app.chat.async_(), "Rome"))  # a future, because the resources are asynchronous
        async with app.talk() as client:  # no future, whatever they are
            print(*await talk(client, CITIES), sep="\n")
    finally:
        closing = app.shutdown_resources()
        if closing is not None:
            await closing
    edits = [span.name for span in app.exporter().get_finished_spans() if span.name.startswith("compact_context")]
    print("edits:", ", ".join(sorted(set(edits))))


if __name__ == "__main__":
    asyncio.run(main())
