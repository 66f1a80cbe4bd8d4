"""A travel assistant: two tools, one conversation about up to forty cities, and a context window that stays small.

    python examples/travel_assistant.py --cities 20

runs it against a stand-in for a model, so it needs no key. A real model is named by ``--model NAME``, with
``--provider anthropic`` or ``--base-url URL`` where it is not OpenAI's; its key is taken from the environment.
``--export URL`` sends the spans to a tracing dashboard that takes OTLP over HTTP there: ``dashboards/phoenix.md``.
"""

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from chatstack import (
    ChatClient,
    ChatFronts,
    ChatOptions,
    ChatRequest,
    ChatStack,
    ChatStream,
    ContextWindow,
    ContextWindowGuard,
    FunctionInvoker,
    Message,
    ProgressReporter,
    Telemetry,
    Usage,
    tool,
)
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient
from chatstack.workbench.demo.stand_in import StandIn

_KNOWN = """Dubai 38 Lisbon 18 Oslo -3 Nairobi 25 Tokyo 21 Lima 19 Cairo 33 Seoul 8 Sydney 24 Reykjavik 1 Mumbai 31
Athens 22 Vienna 12 Prague 10 Warsaw 7 Madrid 20 Rome 19 Dublin 11 Helsinki -1 Riga 4 Bern 9 Delhi 35 Dhaka 32 Hanoi 28
Manila 33 Jakarta 31 Perth 27 Hobart 14 Suva 29 Apia 30 Quito 15 Bogota 16 Havana 30 Dallas 26 Boston 9 Denver 5
Calgary -4 Dakar 27 Accra 31 Tunis 21"""
TEMPERATURES = {city: int(degrees) for city, degrees in zip(*[iter(_KNOWN.split())] * 2, strict=True)}
OPTIONS = ChatOptions(
    instructions="Look up the weather, then what to wear at that temperature. Answer in two sentences. "
    "Answer questions about what was said from the conversation, without tools.",
)
LIMIT = 2_000
WINDOW = ContextWindow(max_tokens=LIMIT, max_context_items=90, keep_recent_turns=3)


@tool
def get_weather(city: str) -> dict[str, object]:
    """The temperature in a city, in degrees Celsius."""
    return {"city": city, "temperature": TEMPERATURES.get(city, 20)}


@tool
async def get_clothing_advice(temperature: float) -> dict[str, object]:
    """What to wear at a temperature in degrees Celsius."""
    return {"clothing_advice": "light clothes" if temperature > 20 else "a warm coat"}


@dataclass(frozen=True, slots=True, eq=False)
class SummaryCollector(ChatFronts):
    """A layer of our own: notes every summary that is sent. Goes inside the context window."""

    inner: ChatClient
    found: list[str] = field(repr=False)

    async def send(self, request: ChatRequest, /) -> ChatStream:
        sent = (message.text for message in request.messages if message.mark == "summary")
        self.found.extend(text for text in sent if text not in self.found)
        return await self.inner.send(request)


def assistant(provider: ChatClient, summaries: list[str]) -> ChatStack:
    """The stack around any client: the context window sees every round of the tool loop, the guard what is left."""
    stack = ChatStack(provider).use(ProgressReporter, agent_name="travel-assistant")
    stack = stack.use(FunctionInvoker, tools=[get_weather, get_clothing_advice]).use(WINDOW)
    guarded = stack.use(ContextWindowGuard, max_context_tokens=LIMIT, prune_on_overflow=True)
    return guarded.use(SummaryCollector, found=summaries)


def exporting(url: str, project: str = "travel-assistant") -> TracerProvider:
    """Sends spans there in batches, from a thread of its own. Shutting it down sends the last ones."""
    about = {"service.name": project, "openinference.project.name": project}  # the second is Phoenix's own
    provider = TracerProvider(resource=Resource.create(about))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
    return provider


async def plan(client: ChatFronts, cities: Sequence[str]) -> tuple[list[str], Usage]:
    """Ask about one city after the other, at the end about the first; the history stays whole, whatever is sent of it.
    Returns the answers, and what summaries cost."""
    history: list[Message] = []
    answers: list[str] = []
    overhead = Usage()
    questions = [f"What is the weather in {city}, and what should I wear there?" for city in cities]
    for question in [*questions, f"Which cities did I ask about, and what was the temperature in {cities[0]}?"]:
        history.append(Message.user(question))
        response = await client.get_response(history, options=OPTIONS, conversation_id="trip")
        history += response.messages
        answers.append(response.text)
        overhead += response.overhead_usage
    return answers, overhead


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cities", type=int, default=40, choices=range(1, 41), metavar="N", help="how many: 1 to 40")
    parser.add_argument("--model", help="a real model instead of the stand-in")
    parser.add_argument("--provider", choices=("openai", "anthropic"), default="openai", help="whose model it is")
    parser.add_argument("--base-url", help="another server with the same API")
    parser.add_argument("--export", metavar="URL", help="where a dashboard takes OTLP, such as http://127.0.0.1:6006")
    given = parser.parse_args()
    summaries: list[str] = []
    services: dict[type, object] = {}
    async with AsyncExitStack() as closing:
        if given.model is None:
            provider: ChatClient = await closing.enter_async_context(closing.enter_context(StandIn()).client())
        else:
            kind = AnthropicChatClient if given.provider == "anthropic" else OpenAIChatClient
            provider = real = kind(given.model, base_url=given.base_url)
            closing.push_async_callback(real.aclose)
        if given.export:
            tracing = exporting(given.export)
            closing.callback(tracing.shutdown)
            services[Telemetry] = Telemetry(tracer_provider=tracing)
        client = await closing.enter_async_context(assistant(provider, summaries).open(services.__getitem__))
        answers, overhead = await plan(client, list(TEMPERATURES)[: given.cities])
    print("\n".join([*answers, *(f"\n{summary}" for summary in summaries)]))
    print(f"\n{len(summaries)} summaries took {overhead.input_tokens:,} tokens in and {overhead.output_tokens:,} out.")


if __name__ == "__main__":
    asyncio.run(main())
