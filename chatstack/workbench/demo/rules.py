"""The stand-in's answers: a few rules over the request it is sent, and over nothing else.

    the user asks for a city          -> call get_weather
    the weather is there              -> call get_clothing_advice with its temperature
    the advice is there, too          -> answer in two sentences
    tools are not allowed, or a tool  -> answer with what is there
    has failed
    the question is about what was    -> say which cities this request still holds, and what
    asked, or names no city              it says of the one that is asked about
    the instructions are about a      -> write one: a line for each city, those of the
    summary of a record                  "summary so far" first (see ``notes``)

It remembers nothing: a turn that was left out of the request never happened, as it would be for a real model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from chatstack.providers.extras import object_or_empty, objects_in
from chatstack.workbench.demo.notes import Note, city_in, notes_of, object_in, record_in, summary_of

Json: TypeAlias = Mapping[str, object]

_LOOKING_BACK = frozenset({"did", "was", "were"})


@dataclass(frozen=True, slots=True)
class Reply:
    """Either ``text``, or a call of the tool ``call`` with ``arguments``."""

    text: str = ""
    call: str = ""
    arguments: Json = field(default_factory=dict[str, object])


class BadRequestError(Exception):
    """The request is invalid: a chat completions server would refuse it."""


def reply_to(request: Json) -> Reply:
    """Return the next message of the conversation. Raises ``BadRequestError`` where a real server would refuse."""
    messages = check_messages(request)
    start = max((i for i, each in enumerate(messages) if each.get("role") == "user"), default=-1)
    if start < 0:
        raise BadRequestError("there is no user message to answer")
    question = text_of(messages[start])
    instructions = "\n".join(text_of(each) for each in messages if each.get("role") in ("system", "developer"))
    record = record_in(instructions, question)
    if record is not None:
        return Reply(summary_of(record, instructions))
    city = city_in(question)
    if not city or not _LOOKING_BACK.isdisjoint(question.split()):
        return Reply(_what_it_knows(messages[:start], city))
    results = _results(messages[start:])
    allowed = frozenset[str]() if request.get("tool_choice") == "none" else _tool_names(request)
    weather = results.get("get_weather")
    if weather is None and "get_weather" in allowed:
        return Reply(call="get_weather", arguments={"city": city})
    if weather is None or "temperature" not in weather:
        return Reply(f"I could not find out the weather in {city}. Please ask me about another city.")
    advice = results.get("get_clothing_advice")
    if advice is None and "get_clothing_advice" in allowed:
        return Reply(call="get_clothing_advice", arguments={"temperature": weather["temperature"]})
    return Reply(_sentences(city, weather, advice or {}))


def count_tokens(request: Json) -> int:
    """Return the tokens of a request by the stand-in's own count, at four characters a token.

    Each message and each tool takes four more, each call and each result five, as in ``CharCounter``, so that the
    guard's estimate and the server's usage can be compared.
    """
    messages, tools = objects_in(request.get("messages")), objects_in(request.get("tools"))
    names = _names_of_calls(messages)
    total = 0
    for message in messages:
        total += 4 + _fourth(text_of(message))
        for call in _calls(message):
            function = _function(call)
            total += _fourth(function.get("name")) + _fourth(function.get("arguments")) + 5
        if message.get("role") == "tool":
            total += _fourth(names.get(message.get("tool_call_id"))) + 5
    for each in tools:
        function = _function(each)
        schema = json.dumps(function.get("parameters", {}), ensure_ascii=False, separators=(",", ":"))
        total += 4 + _fourth(f"{function.get('name')}{function.get('description', '')}{schema}")
    return total


def check_messages(request: Json) -> Sequence[Json]:
    """Return the messages, if each tool result answers a call before it and each call is answered at once."""
    messages = request.get("messages")
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in cast("list[object]", messages)):
        raise BadRequestError("'messages' must be a list of objects")
    found = cast("list[Json]", messages)
    open_calls: set[object] = set()
    for position, message in enumerate(found):
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in open_calls:
                raise BadRequestError(f"messages[{position}]: a tool result without the call that it answers")
            open_calls.discard(message.get("tool_call_id"))
            continue
        if open_calls:
            raise BadRequestError(f"messages[{position}]: {len(open_calls)} tool calls before it have no result")
        open_calls = {call.get("id") for call in _calls(message)}
    return found


def text_of(message: Json) -> str:
    """Return the text of a message, which is given as text or as a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    texts = (part.get("text") for part in objects_in(content))
    return "".join(text for text in texts if isinstance(text, str))


def _results(messages: Sequence[Json]) -> dict[str, Json]:
    """Return the tools called in this turn, each with the object that it returned; {} if that is no object."""
    names = _names_of_calls(messages)
    found: dict[str, Json] = {}
    for message in messages:
        name = names.get(message.get("tool_call_id")) if message.get("role") == "tool" else None
        if isinstance(name, str):
            found[name] = object_in(text_of(message))
    return found


def _what_it_knows(messages: Sequence[Json], city: str) -> str:
    notes = notes_of(_entries(messages))
    if not notes:
        return "I am a stand-in for a model and know nothing yet. Ask me what to wear in a city."
    said = f"In this conversation I can see {len(notes)} of your cities. They are {', '.join(notes)}."
    if not city:
        return said
    note = notes.get(city, Note())
    if not note.temperature:
        return f"{said} What it was like in {city} is not in it any more."
    return f"{said} It was {note.temperature} degrees in {city}."


def _entries(messages: Sequence[Json]) -> Iterator[tuple[str, str]]:
    """Yield the messages as entries of a record."""
    names = _names_of_calls(messages)
    for message in messages:
        who = str(message.get("role"))
        yield f"result of {names.get(message.get('tool_call_id'))}" if who == "tool" else who, text_of(message)


def _sentences(city: str, weather: Json, advice: Json) -> str:
    sky = f" and {weather['sky']}" if weather.get("sky") else ""
    wear = advice.get("clothing_advice") or "what you would wear at home at that temperature"
    return f"{city} has {weather['temperature']} degrees{sky} today. I would wear {wear}."


def _tool_names(request: Json) -> frozenset[str]:
    names = (_function(each).get("name") for each in objects_in(request.get("tools")))
    return frozenset(name for name in names if isinstance(name, str))


def _names_of_calls(messages: Sequence[Json]) -> dict[object, object]:
    return {call.get("id"): _function(call).get("name") for each in messages for call in _calls(each)}


def _calls(message: Json) -> Sequence[Json]:
    return objects_in(message.get("tool_calls"))


def _function(call: Json) -> Json:
    return object_or_empty(call.get("function"))


def _fourth(text: object) -> int:
    return len(text.encode("utf-8", "surrogatepass")) // 4 if isinstance(text, str) else 0
