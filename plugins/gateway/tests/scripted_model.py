"""A model on all three wires that calls a tool some times, then says that it is done; for clients that know nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from upstreams import Seen, Wire

LOOKS = 4
DONE = "All four pages have been read."
_USAGE = {"input_tokens": 10, "output_tokens": 10, "total_tokens": 20}


class ScriptedModel:
    """Calls ``tool`` with each of the arguments in turn, then answers. ``page=0`` and so on unless told otherwise."""

    def __init__(self, tool: str = "look", arguments: Iterable[dict[str, Any]] = (), *, done: str = DONE) -> None:
        self.tool = tool
        self.arguments = [*arguments] or [{"page": number} for number in range(LOOKS)]
        self.done = done
        self.asked = 0
        self.edited = 0

    async def __call__(self, seen: Seen, wire: Wire) -> None:
        if "/models" in seen.line:
            await wire.whole(b'{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"x"}]}')
            return
        if not seen.body:  # some look first whether somebody is there
            await wire.whole(b"")
            return
        body = json.loads(seen.body)
        number, self.asked = self.asked, self.asked + 1
        call = self.arguments[number] if number < len(self.arguments) else None
        form = "chat" if "/chat/" in seen.line else "responses" if "/responses" in seen.line else "messages"
        events, whole = getattr(self, f"_{form}")(number, call)
        if not body.get("stream"):
            await wire.whole(json.dumps(whole).encode())
            return
        named = form != "chat"
        texts = [json.dumps(each) for each in events]
        kinds = [f"event: {each['type']}\n" if named else "" for each in events]
        lines = [f"{kind}data: {text}\n\n" for kind, text in zip(kinds, texts, strict=True)]
        await wire.stream(*(line.encode() for line in lines), *([] if named else [b"data: [DONE]\n\n"]))

    def _chat(self, number: int, call: dict[str, Any] | None) -> tuple[list[Any], Any]:
        about = {"id": f"c{number}", "created": 1, "model": "m"}
        usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
        finish = "stop" if call is None else "tool_calls"
        message: dict[str, Any] = {"role": "assistant", "content": self.done if call is None else None}
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        if call is None:
            deltas += [{"content": self.done[:9]}, {"content": self.done[9:]}]
        else:
            function = {"name": self.tool, "arguments": json.dumps(call)}
            tool = {"id": f"call_{number}", "type": "function", "function": function}
            message["tool_calls"] = [tool]
            deltas += [
                {"tool_calls": [{**tool, "index": 0, "function": {**function, "arguments": ""}}]},
                {"tool_calls": [{"index": 0, "function": {"arguments": function["arguments"]}}]},
            ]
        choices = [*({"index": 0, "delta": each, "finish_reason": None} for each in deltas)]
        choices.append({"index": 0, "delta": {}, "finish_reason": finish})
        events = [{**about, "object": "chat.completion.chunk", "choices": [each]} for each in choices]
        events.append({**about, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        return events, {**about, "object": "chat.completion", "choices": [choice], "usage": usage}

    def _messages(self, number: int, call: dict[str, Any] | None) -> tuple[list[Any], Any]:
        stop = "end_turn" if call is None else "tool_use"
        about = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
        usage = {"input_tokens": 10, "output_tokens": 10}
        block: dict[str, Any]
        if call is None:
            block, began = {"type": "text", "text": self.done}, {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": self.done}
        else:
            block = {"type": "tool_use", "id": f"toolu_{number}", "name": self.tool, "input": call}
            began = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(call)}
        events = [
            {"type": "message_start", "message": {**about, "content": [], "stop_reason": None, "usage": usage}},
            {"type": "content_block_start", "index": 0, "content_block": began},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": stop, "stop_sequence": None},
                "usage": {"output_tokens": 10},
            },
            {"type": "message_stop"},
        ]
        return events, {**about, "content": [block], "stop_reason": stop, "usage": usage}

    def _responses(self, number: int, call: dict[str, Any] | None) -> tuple[list[Any], Any]:
        settings = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "error": None}
        about = {"id": f"resp_{number}", "object": "response", "created_at": 1, "model": "m", **settings}
        about |= {"instructions": None, "metadata": {}, "temperature": 1.0, "top_p": 1.0, "incomplete_details": None}
        item: dict[str, Any]
        middle: list[dict[str, Any]]
        if call is None:
            text = {"type": "output_text", "text": self.done, "annotations": []}
            item = {
                "type": "message",
                "id": f"m{number}",
                "role": "assistant",
                "status": "completed",
                "content": [text],
            }
            where = {"item_id": item["id"], "output_index": 0, "content_index": 0}
            began = {**item, "status": "in_progress", "content": []}
            middle = [
                {"type": "response.content_part.added", **where, "part": {**text, "text": ""}},
                {"type": "response.output_text.delta", **where, "delta": self.done, "logprobs": []},
                {"type": "response.output_text.done", **where, "text": self.done, "logprobs": []},
                {"type": "response.content_part.done", **where, "part": text},
            ]
        else:
            arguments = json.dumps(call)
            item = {"type": "function_call", "id": f"fc{number}", "call_id": f"call_{number}", "name": self.tool}
            item |= {"arguments": arguments, "status": "completed"}
            began = {**item, "status": "in_progress", "arguments": ""}
            where = {"item_id": item["id"], "output_index": 0}
            middle = [
                {"type": "response.function_call_arguments.delta", **where, "delta": arguments},
                {"type": "response.function_call_arguments.done", **where, "arguments": arguments, "name": self.tool},
            ]
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        whole = {**about, "status": "completed", "output": [item], "usage": {**_USAGE, **details}}
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": {**about, "status": "in_progress", "output": [], "usage": None}},
            {"type": "response.output_item.added", "output_index": 0, "item": began},
            *middle,
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": whole},
        ]
        return [{**each, "sequence_number": at} for at, each in enumerate(events)], whole
