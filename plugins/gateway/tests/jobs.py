"""A job with tools, done by the makers' own SDKs: look at pages until the model says that it is done."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anthropic
import openai
from asks import LONG

READ: list[int] = []
TOOL = {
    "name": "look",
    "description": "Look at a page.",
    "parameters": {"type": "object", "properties": {"page": {"type": "integer"}}},
}


def look(page: int) -> str:
    """Look at a page."""
    READ.append(page)
    return f"page {page}: {LONG}"


def chat(url: str, stream: bool) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        return _chat(client, stream)


def _chat(client: openai.OpenAI, stream: bool) -> str:
    messages: list[Any] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "read"}]
    tools: Any = [{"type": "function", "function": TOOL}]
    while True:
        if stream:
            with client.chat.completions.stream(model="m", messages=messages, tools=tools) as events:
                for _ in events:
                    pass
                choice: Any = events.get_final_completion().choices[0]
        else:
            choice = client.chat.completions.create(model="m", messages=messages, tools=tools).choices[0]
        messages.append(choice.message.to_dict())
        assert choice.finish_reason == ("tool_calls" if choice.message.tool_calls else "stop")
        if not choice.message.tool_calls:
            return str(choice.message.content)
        for call in choice.message.tool_calls:
            result = look(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def responses(url: str, stream: bool) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        return _responses(client, stream)


def _responses(client: openai.OpenAI, stream: bool) -> str:
    items: list[Any] = [{"role": "user", "content": "read"}]
    tools: Any = [{"type": "function", **TOOL}]
    while True:
        if stream:
            with client.responses.stream(
                model="m", input=items, tools=tools, store=False, instructions="be brief"
            ) as events:
                for _ in events:
                    pass
                said: Any = events.get_final_response()
        else:
            said = client.responses.create(model="m", input=items, tools=tools, store=False, instructions="be brief")
        assert said.status == "completed"
        calls = [each for each in said.output if each.type == "function_call"]
        items += [each.to_dict() for each in said.output]
        if not calls:
            return str(said.output_text)
        for call in calls:
            result = look(**json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})


def messages(url: str, stream: bool) -> str:
    with anthropic.Anthropic(base_url=url, api_key="k", max_retries=0) as client:
        return _messages(client, stream)


def _messages(client: anthropic.Anthropic, stream: bool) -> str:
    asked: list[Any] = [{"role": "user", "content": "read"}]
    tools: Any = [{"name": "look", "input_schema": TOOL["parameters"]}]
    while True:
        if stream:
            with client.messages.stream(
                model="m", max_tokens=99, messages=asked, tools=tools, system="be brief"
            ) as events:
                said: Any = events.get_final_message()
        else:
            said = client.messages.create(model="m", max_tokens=99, messages=asked, tools=tools, system="be brief")
        asked.append({"role": "assistant", "content": [each.to_dict() for each in said.content]})
        assert said.stop_reason in ("tool_use", "end_turn")
        if said.stop_reason == "end_turn":
            return str(said.content[0].text)
        results = [
            {"type": "tool_result", "tool_use_id": each.id, "content": look(**each.input)}
            for each in said.content
            if each.type == "tool_use"
        ]
        asked.append({"role": "user", "content": results})


JOBS: dict[str, Callable[[str, bool], str]] = {"chat": chat, "responses": responses, "messages": messages}
