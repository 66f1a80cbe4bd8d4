"""The three wires' forms of an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from chatstack import ChatResponse
from chatstack.providers.extras import WireObject, call_input
from chatstack.providers.wires import Form
from chatstack_gateway.answer_events import AnswerWriter, Block, made_id
from chatstack_gateway.answer_terms import CHAT_FINISHES, INCOMPLETE, STOP_REASONS, usage_of
from chatstack_gateway.positions import written


class ChatWriter(AnswerWriter):
    """Chat completions. Reasoning is ``reasoning_content``, as compatible servers say it."""

    form: Form = "chat"
    tail = b"data: [DONE]\n\n"

    def __init__(self, model: str, *, says_reasoning: bool, tells_usage: bool = False) -> None:
        super().__init__(model, says_reasoning=says_reasoning)
        self._tells_usage = tells_usage
        self._positions: dict[int, int] = {}
        self._refusal = ""

    def _begin(self) -> Iterator[WireObject]:
        yield self._chunk({"role": "assistant", "content": ""})

    def _start(self, block: Block) -> Iterator[WireObject]:
        if block.kind == "call":
            index = self._positions[block.index] = len(self._positions)
            function = {"name": block.name, "arguments": ""}
            yield self._chunk(
                {"tool_calls": [{"index": index, "id": block.call_id, "type": "function", "function": function}]}
            )

    def _delta(self, block: Block, delta: str) -> Iterator[WireObject]:
        if block.kind == "call":
            index = self._positions[block.index]
            yield self._chunk({"tool_calls": [{"index": index, "function": {"arguments": delta}}]})
        else:
            yield self._chunk({"content" if block.kind == "text" else "reasoning_content": delta})

    def _stop(self, block: Block) -> Iterator[WireObject]:
        yield from ()

    def _refused(self, text: str) -> Iterator[WireObject]:
        self._refusal = text
        yield self._chunk({"refusal": text})

    def _end(self, response: ChatResponse) -> Iterator[WireObject]:
        yield self._chunk({}, self._finish(response))
        if self._tells_usage:
            yield {**self._about("chat.completion.chunk"), "choices": [], "usage": usage_of("chat", response.usage)}

    def _finish(self, response: ChatResponse) -> str:
        if self._refusal:
            return "stop"
        return CHAT_FINISHES[response.finish_reason or "other"]

    def _object(self, response: ChatResponse) -> WireObject:
        texts = {
            kind: "".join(block.text for block in self._done if block.kind == kind) for kind in ("text", "reasoning")
        }
        message: WireObject = {"role": "assistant", "content": texts["text"] or None, "refusal": self._refusal or None}
        if texts["reasoning"]:
            message["reasoning_content"] = texts["reasoning"]
        calls = [
            {"id": block.call_id, "type": "function", "function": {"name": block.name, "arguments": block.text or "{}"}}
            for block in self._done
            if block.kind == "call"
        ]
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish(response)}
        return {**self._about("chat.completion"), "choices": [choice], "usage": usage_of("chat", response.usage)}

    def _chunk(self, delta: WireObject, finish: str | None = None) -> WireObject:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._about("chat.completion.chunk"), "choices": [choice]}

    def _about(self, kind: str) -> WireObject:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _event(self, event: WireObject) -> bytes:
        return f"data: {written(event)}\n\n".encode()


class MessagesWriter(AnswerWriter):
    """Anthropic's Messages. Reasoning is thinking without a signature: no other provider gives one."""

    form: Form = "messages"

    def _begin(self) -> Iterator[WireObject]:
        usage = {"input_tokens": 0, "output_tokens": 0}
        about = {"stop_reason": None, "stop_sequence": None, "usage": usage}
        yield {"type": "message_start", "message": {**self._about(), "content": [], **about}}

    def _start(self, block: Block) -> Iterator[WireObject]:
        empty = _block(Block(block.kind, block.index, block.call_id, block.name))
        yield {"type": "content_block_start", "index": block.index, "content_block": empty}

    def _delta(self, block: Block, delta: str) -> Iterator[WireObject]:
        kinds = {"text": ("text_delta", "text"), "reasoning": ("thinking_delta", "thinking")}
        kind, name = kinds.get(block.kind, ("input_json_delta", "partial_json"))
        yield {"type": "content_block_delta", "index": block.index, "delta": {"type": kind, name: delta}}

    def _stop(self, block: Block) -> Iterator[WireObject]:
        yield {"type": "content_block_stop", "index": block.index}

    def _end(self, response: ChatResponse) -> Iterator[WireObject]:
        delta = {"stop_reason": STOP_REASONS[response.finish_reason or "other"], "stop_sequence": None}
        yield {"type": "message_delta", "delta": delta, "usage": usage_of("messages", response.usage)}
        yield {"type": "message_stop"}

    def _object(self, response: ChatResponse) -> WireObject:
        about = {"stop_reason": STOP_REASONS[response.finish_reason or "other"], "stop_sequence": None}
        content = [_block(block) for block in self._done]
        return {**self._about(), "content": content, **about, "usage": usage_of("messages", response.usage)}

    def _about(self) -> WireObject:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self.model}


class ResponsesWriter(AnswerWriter):
    """OpenAI's Responses. Each block is an item of its own."""

    form: Form = "responses"

    def __init__(self, model: str, *, says_reasoning: bool) -> None:
        super().__init__(model, says_reasoning=says_reasoning)
        self._refusal = ""
        self._items: list[WireObject] = []

    def _begin(self) -> Iterator[WireObject]:
        for kind in ("response.created", "response.in_progress"):
            yield {"type": kind, "response": self._response("in_progress", [])}

    def _start(self, block: Block) -> Iterator[WireObject]:
        block.item_id = block.item_id or made_id({"text": "msg_", "reasoning": "rs_", "call": "fc_"}[block.kind])
        item = self._item(
            Block(block.kind, block.index, block.call_id, block.name, item_id=block.item_id), "in_progress"
        )
        yield {"type": "response.output_item.added", "output_index": block.index, "item": item}
        if block.kind != "call":
            yield self._part(block, "added", "")

    def _delta(self, block: Block, delta: str) -> Iterator[WireObject]:
        logprobs: WireObject = {"logprobs": []} if block.kind == "text" else {}
        yield {"type": f"response.{_NAMES[block.kind]}.delta", **_place(block), "delta": delta, **logprobs}

    def _stop(self, block: Block) -> Iterator[WireObject]:
        done: WireObject = {"type": f"response.{_NAMES[block.kind]}.done", **_place(block)}
        if block.kind == "call":
            yield {**done, "name": block.name, "arguments": block.text or "{}"}
        else:
            yield {**done, "text": block.text, **({"logprobs": []} if block.kind == "text" else {})}
            yield self._part(block, "done", block.text)
        self._items.append(self._item(block, "completed"))
        yield {"type": "response.output_item.done", "output_index": block.index, "item": self._items[-1]}

    def _refused(self, text: str) -> Iterator[WireObject]:
        self._refusal = text
        yield from ()

    def _end(self, response: ChatResponse) -> Iterator[WireObject]:
        whole = self._object(response)
        yield {"type": f"response.{whole['status']}", "response": whole}

    def _object(self, response: ChatResponse) -> WireObject:
        output, why = [*self._items], None
        if self._refusal:
            output.append(_message(f"msg_{self.id}", "completed", [{"type": "refusal", "refusal": self._refusal}]))
        else:
            why = INCOMPLETE.get(response.finish_reason or "other")
        found = self._response("incomplete" if why else "completed", output)
        details = {"reason": why} if why else None
        return {**found, "incomplete_details": details, "usage": usage_of("responses", response.usage)}

    def _response(self, status: str, output: list[WireObject]) -> WireObject:
        about: WireObject = {"id": self.id, "object": "response", "created_at": self.created, "status": status}
        unsaid: WireObject = {"error": None, "incomplete_details": None, "instructions": None, "metadata": {}}
        tools: WireObject = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
        return {**about, "model": self.model, "output": output, **unsaid, **tools}

    def _item(self, block: Block, status: str) -> WireObject:
        is_done = status == "completed"
        if block.kind == "call":
            call = {"call_id": block.call_id, "name": block.name, "arguments": block.text or ("{}" if is_done else "")}
            return {"id": block.item_id, "type": "function_call", "status": status, **call}
        if block.kind == "reasoning":
            summary = [{"type": "summary_text", "text": block.text}] if is_done else []
            return {"id": block.item_id, "type": "reasoning", "summary": summary}
        text: WireObject = {"type": "output_text", "text": block.text, "annotations": []}
        return _message(block.item_id, status, [text] if is_done else [])

    def _part(self, block: Block, how: str, text: str) -> WireObject:
        if block.kind == "reasoning":
            kind, part = "response.reasoning_summary_part", WireObject({"type": "summary_text", "text": text})
        else:
            kind = "response.content_part"
            part = WireObject({"type": "output_text", "text": text, "annotations": []})
        return {"type": f"{kind}.{how}", **_place(block), "part": part}

    def _encoded(self, events: Iterator[WireObject]) -> bytes:  # type: ignore[override]
        return super()._encoded(self._numbered(events))

    def _numbered(self, events: Iterator[WireObject]) -> Iterator[WireObject]:
        for event in events:
            yield {"sequence_number": self._count, **event}
            self._count += 1

    _count = 0


_NAMES = {"text": "output_text", "reasoning": "reasoning_summary_text", "call": "function_call_arguments"}


def _message(item_id: str, status: str, content: list[WireObject]) -> WireObject:
    return {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": content}


def _place(block: Block) -> WireObject:
    """Return the fields that name the place of a delta."""
    at: Mapping[str, WireObject] = {"text": {"content_index": 0}, "reasoning": {"summary_index": 0}}
    return {"item_id": block.item_id, "output_index": block.index, **at.get(block.kind, {})}


def _block(block: Block) -> WireObject:
    """Return a block of Anthropic's content."""
    if block.kind == "text":
        return {"type": "text", "text": block.text}
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": call_input(block.text)}


def writer_for(form: Form, model: str, *, says_reasoning: bool, tells_usage: bool) -> AnswerWriter:
    """Return a writer of one answer. ``tells_usage`` is what a caller of streamed chat completions asks for."""
    if form == "chat":
        return ChatWriter(model, says_reasoning=says_reasoning, tells_usage=tells_usage)
    return (MessagesWriter if form == "messages" else ResponsesWriter)(model, says_reasoning=says_reasoning)
