"""A travel assistant: two tools, one conversation about several cities, and a guard on its context window.

    python examples/travel_assistant.py

runs it against a stand-in for a model, so it needs no key. For a real model, build the stack around a client of
yours: ``from chatstack.providers.openai import OpenAIChatClient``, then ``ChatStack(OpenAIChatClient("gpt-5-mini"))``.
"""

import asyncio
from collections.abc import Sequence

from chatstack import ChatFronts, ChatOptions, ChatStack, ContextWindowGuard, FunctionInvoker, Message, tool
from chatstack.demo.stand_in import StandIn

TEMPERATURES = {"Dubai": 38, "Lisbon": 18, "Oslo": -3, "Nairobi": 25}
OPTIONS = ChatOptions(
    instructions="Look up the weather, then what to wear at that temperature. Answer in two sentences."
)


@tool
def get_weather(city: str) -> dict[str, object]:
    """The temperature in a city, in degrees Celsius."""
    return {"city": city, "temperature": TEMPERATURES.get(city, 20)}


@tool
async def get_clothing_advice(temperature: float) -> dict[str, object]:
    """What to wear at a temperature in degrees Celsius."""
    return {"clothing_advice": "light clothes" if temperature > 20 else "a warm coat"}


async def plan(client: ChatFronts, cities: Sequence[str]) -> list[str]:
    """Ask about one city after the other. The history stays whole; what is sent of it is the guard's business."""
    history: list[Message] = []
    answers: list[str] = []
    for city in cities:
        history.append(Message.user(f"What is the weather in {city}, and what should I wear there?"))
        response = await client.get_response(history, options=OPTIONS, conversation_id="trip")
        history += response.messages
        answers.append(response.text)
    return answers


async def main() -> None:
    with StandIn() as stand_in:
        async with stand_in.client() as provider:
            stack = (
                ChatStack(provider)
                .use(FunctionInvoker, tools=[get_weather, get_clothing_advice])
                .use(ContextWindowGuard, max_context_tokens=400, prune_on_overflow=True)
            )
            async with stack.open() as client:
                for answer in await plan(client, list(TEMPERATURES)):
                    print(answer)


if __name__ == "__main__":
    asyncio.run(main())
