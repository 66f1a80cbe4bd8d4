"""A travel assistant that talks about forty cities, with a stand-in for its model and one for whoever summarizes.

Nothing in here knows how summaries are made: both stand-ins work from what a request holds, and from nothing else.
Source: seed ``videosdk-context-window``, "Complete Example".
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from chatstack import (
    BuiltClient,
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ChatStack,
    ContextMemory,
    ContextWindow,
    FunctionInvoker,
    Message,
    ToolCall,
    ToolDeclaration,
    Usage,
)
from chatstack.client.stream import ChatStream
from chatstack.context.edits.units import is_users, items_in
from chatstack.stores.sqlite import SQLiteStore
from chatstack.testing import Answer, CapturedSpan, ScriptedClient, TelemetryCapture
from chatstack.tokens.counter import char_counter
from tests.histories import decoded_again

FOLD = "compact_context summarize"
CITIES: list[str] = re.findall(
    r"\w+",
    "Dubai Mumbai Paris Oslo Lima Quito Cairo Tunis Delhi Seoul Tokyo Osaka Kyoto Hanoi Perth Miami Dallas Boston "
    "Austin Denver Havana Bogota Recife Lagos Accra Dakar Rabat Madrid Lisbon Porto Rome Milan Turin Vienna Prague "
    "Berlin Warsaw Sofia Athens Ankara",
)

COUNTER = char_counter(4)


def degrees_in(city: str) -> int:
    return 41 - CITIES.index(city)


def advice_for(degrees: int) -> str:
    kinds = {35: "hat and sunscreen", 25: "light clothes", 15: "light jacket", 5: "warm coat"}
    return next((advice for above, advice in kinds.items() if degrees > above), "winter coat")


def fact_of(city: str) -> str:
    """What must never be lost: as the assistant says it, and as a summary keeps it."""
    return f"{city}: {degrees_in(city)} C, {advice_for(degrees_in(city))}."


def question_about(city: str) -> str:
    return f"What should I wear in {city} today?"


def sent_tokens(request: ChatRequest) -> int:
    """The size of a request, instructions and tools included, by the counter that a layer uses if it is given none."""
    return COUNTER.count_options(request.options) + sum(map(COUNTER.count_message, request.messages))


def items(request: ChatRequest) -> int:
    return sum(map(items_in, request.messages))


def summaries_in(request: ChatRequest) -> list[Message]:
    return [message for message in request.messages if message.mark == "summary"]


class Ruled(ScriptedClient):
    """Answers by a rule, from nothing but the request; ``spent`` is what it has reported."""

    def __init__(self, rule: Callable[[ChatRequest], Answer], **options: Any) -> None:
        super().__init__(**options)
        self.rule = rule
        self.spent = Usage()

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.answers = [self.rule(request)]
        stream = await super().send(request)

        def note(answer: ChatResponse) -> None:
            self.spent += answer.usage

        stream.when_answered(note)
        return stream


# The assistant


def get_weather(city: str) -> dict[str, object]:
    """Get the current weather temperature for a given city."""
    return {"city": city, "temperature": degrees_in(city), "unit": "Celsius"}


def get_long_weather(city: str) -> dict[str, object]:
    """Get the current weather temperature for a given city."""
    return {"city": city, "temperature": degrees_in(city), "unit": "Celsius", "report": f"sun over {city} " * 60}


def get_clothing_advice(temperature: int) -> dict[str, object]:
    """Get clothing recommendation based on temperature."""
    return {"temperature": temperature, "clothing_advice": advice_for(temperature)}


def assistant(request: ChatRequest) -> Answer:
    """Calls both tools, then answers. What it finds in no message, it does not know."""
    asked = max(at for at, message in enumerate(request.messages) if is_users(message))
    city = next(word for word in re.findall(r"\w+", request.messages[asked].text) if word in CITIES)
    if request.messages[asked].text.startswith("Remind"):
        said = (line for message in request.messages[:asked] for line in message.text.splitlines())
        return next((line for line in said if line.startswith(f"{city}: ")), "I do not know.")
    results = {result.name: result.text for message in request.messages[asked:] for result in message.results}
    weather = next((text for name, text in results.items() if name.endswith("weather")), None)
    number = len(request.messages)
    if request.options.tool_choice == "none":
        return "No more tools."
    if weather is None:
        declared = (tool.name for tool in request.options.tools if isinstance(tool, ToolDeclaration))
        name = next(each for each in declared if each.endswith("weather"))
        return Message.assistant(ToolCall(f"w{number}", name, json.dumps({"city": city})))
    degrees = json.loads(weather)["temperature"]
    if "get_clothing_advice" not in results:
        call = ToolCall(f"a{number}", "get_clothing_advice", json.dumps({"temperature": degrees}))
        return Message.assistant(call)
    return f"{city}: {degrees} C, {json.loads(results['get_clothing_advice'])['clothing_advice']}."


# The one who summarizes


class Entry(NamedTuple):
    who: str
    text: str


def entries_in(request: ChatRequest) -> list[Entry]:
    """What a summary request holds: its record, read as it is framed."""
    (message,) = request.messages
    record = message.text
    delimiter = record[1:].split(" ", 1)[0]
    pieces = re.split(rf"^\[{delimiter} ([^\n]*)\]$", record, flags=re.MULTILINE)
    assert pieces[0] == ""
    assert pieces[-2:] == ["end", ""]
    found = zip(pieces[1:-2:2], pieces[2:-2:2], strict=True)
    return [Entry(who, text.removeprefix("\n").removesuffix("\n")) for who, text in found]


_FACT = re.compile(r"^(\w+): (-?\d+) C(?:, [a-z ]+\.)?$", re.MULTILINE)
_REPORT = re.compile(r'"city":"(\w+)","temperature":(-?\d+)')

FACTS_PROMPT = 'Keep every fact as a line of its own, in the form "City: degrees C, advice." {these are just braces}'


def facts_in(request: ChatRequest) -> Answer:
    """The lines of facts in a record, those of the summary so far first; what it was not told to do, it does not."""
    assert request.options.instructions.startswith(FACTS_PROMPT)
    found: dict[str, str] = {}
    for _, text in entries_in(request):
        for match in _FACT.finditer(text):
            found[match[1]] = max(match[0], found.get(match[1], ""), key=len)
        for match in _REPORT.finditer(text):
            found.setdefault(match[1], f"{match[1]}: {match[2]} C")
    return "\n".join(found.values()) or "Nothing was said."


# The trip

WINDOW: dict[str, Any] = {"max_tokens": 4_000, "max_context_items": 20, "keep_recent_turns": 3}
INSTRUCTIONS = ChatOptions(instructions="You are a helpful travel assistant. First the weather, then what to wear.")


class Trip:
    """A conversation with the assistant, and all that was asked of the stand-ins meanwhile.

    ``fresh`` rebuilds all messages for every call; ``streamed`` reads answers as they come; ``path`` is a file of
    decisions, which lets ``restart`` go on in what might as well be another process.
    """

    def __init__(
        self,
        *,
        fresh: bool = False,
        streamed: bool = False,
        conversation_id: str | None = None,
        path: Path | None = None,
        weather: Callable[[str], dict[str, object]] = get_weather,
        **options: Any,
    ) -> None:
        self.model = Ruled(assistant)
        self.summarizer = Ruled(facts_in)
        self.capture = TelemetryCapture()
        self.history: list[Message] = []
        self.responses: list[ChatResponse] = []
        self.streamed_text: list[str] = []
        self._fresh, self._streamed, self._conversation_id, self._path = fresh, streamed, conversation_id, path
        self._weather = weather
        self._options: dict[str, Any] = {
            **WINDOW,
            "summary_client": self.summarizer,
            "summary_prompt": FACTS_PROMPT,
            **options,
        }
        self._memory, self._client = self._started()

    def _started(self) -> tuple[ContextMemory, BuiltClient]:
        if self._path is None:
            memory = ContextMemory()
        else:
            memory = ContextMemory(store=SQLiteStore(self._path), scope="tenant", store_timeout_seconds=300)
        stack = ChatStack(self.model, memory=memory)
        stack = stack.use(FunctionInvoker, tools=[self._weather, get_clothing_advice])
        return memory, stack.use(ContextWindow, **self._options).build(self.capture.resolve)

    async def restart(self) -> None:
        """Go on with a stack and a memory that know nothing but what the file holds."""
        await self._memory.aclose()
        self._memory, self._client = self._started()
        self.history = decoded_again(self.history)

    async def end(self) -> None:
        await self._memory.aclose()

    async def say(self, text: str) -> ChatResponse:
        """One turn."""
        self.history.append(Message.user(text))
        given = decoded_again(self.history) if self._fresh else self.history
        before = [*map(id, given)], decoded_again(given)
        response = await self._answer(given)
        assert ([*map(id, given)], given) == before  # the caller's list: the same objects, and equal
        self.history.extend(response.messages)
        self.responses.append(response)
        return response

    async def _answer(self, given: Sequence[Message]) -> ChatResponse:
        named: dict[str, Any] = {"options": INSTRUCTIONS, "conversation_id": self._conversation_id}
        if not self._streamed:
            answer: ChatResponse = await self._client.get_response(given, **named)
            return answer
        stream: ChatStream = self._client.get_streaming_response(given, **named)
        async with stream:
            self.streamed_text.append("".join([update.text async for update in stream]))
            return await stream.response()

    @property
    def folds(self) -> tuple[CapturedSpan, ...]:
        """The spans of summaries that took effect."""
        return tuple(
            span for span in self.capture.spans_named(FOLD) if span.attributes.get("chatstack.severity") == "INFO"
        )

    @property
    def breaks(self) -> list[int]:
        """Which requests do not begin with all of what the one before them sent."""
        requests = self.model.requests
        return [
            number
            for number in range(1, len(requests))
            if requests[number].messages[: len(requests[number - 1].messages)] != requests[number - 1].messages
        ]

    @property
    def transcripts(self) -> list[list[Entry]]:
        """What each summary was asked for."""
        return [entries_in(request) for request in self.summarizer.requests]


def toured(
    cities: Sequence[str] = tuple(CITIES), *, restart_before: Callable[[int], bool] | None = None, **options: Any
) -> Trip:
    """A trip through these cities. ``restart_before`` says before which of them another process takes over."""

    async def tour(path: Path | None) -> Trip:
        trip = Trip(path=path, **options)
        for number, city in enumerate(cities):
            if restart_before is not None and restart_before(number):
                await trip.restart()
            await trip.say(question_about(city))
        await trip.end()
        return trip

    if restart_before is None:
        return asyncio.run(tour(None))
    with TemporaryDirectory() as folder:
        return asyncio.run(tour(Path(folder) / "decisions.db"))
