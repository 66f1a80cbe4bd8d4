"""The one measure of what was sent: the same for every policy, over the wire text, and never the policy's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import msgspec

from chatstack.errors import WiringError
from chatstack.providers.openai.chat_wire import messages_to_wire, request_to_wire
from chatstack.tokens.counter import CharCounter, TokenCounter, TokenizerCounter
from chatstack.values.messages import Message
from chatstack.values.requests import ChatOptions, ChatRequest, DeclaredTool
from chatstack.workbench.replay.measures.chat_form import wire_of

_MESSAGE_TOKENS = 4
"""Around each message: three, and one for its role. Source: OpenAI's published counting rule."""
_ITEM = "item"
"""What another API's own tools gave back (a computer's output): it stands where it likes among calls and results."""
_PART_TOKENS = 1_000
"""A picture, a sound or a file, whose size its text does not tell."""


class WireCounter(TokenCounter):
    """Counts what an OpenAI chat-completions request says: text, names, arguments and tool schemas as JSON."""

    def __init__(self, text: TokenCounter, name: str) -> None:
        self._text = text
        self.name = name

    @classmethod
    def best(cls) -> WireCounter:
        """By o200k where the extra ``tokenizer`` is installed, else by characters."""
        try:
            return cls(TokenizerCounter(), "o200k")
        except WiringError:
            return cls(CharCounter(4), "characters/4")

    def count_text(self, text: str) -> int:
        return self._text.count_text(text)

    def count_message(self, message: Message) -> int:
        """Tokens of a message as it goes out, however many wire messages that makes."""
        return sum(map(self.count_wire, wire_of(message)))

    def count_options(self, options: ChatOptions) -> int:
        """Tokens of instructions and of tool schemas, these as compact JSON."""
        body = request_to_wire(ChatRequest((), options.but(extra={})))
        messages = cast("list[dict[str, object]]", body.get("messages", []))
        tools = body.get("tools")
        schemas = 0 if not tools else self.count_text(json.dumps(tools, ensure_ascii=False, separators=(",", ":")))
        return schemas + sum(map(self.count_wire, messages))

    def count_wire(self, message: Mapping[str, object]) -> int:
        """Tokens of one wire message."""
        total = _MESSAGE_TOKENS
        for field in ("content", "refusal", "name"):
            total += self._count_content(message.get(field))
        for call in _objects(message.get("tool_calls")):
            total += self._count_call(call.get(str(call.get("type", "function"))))
        return total + self._count_call(message.get("function_call"))

    def _count_call(self, call: object) -> int:
        if not isinstance(call, dict):
            return 0
        said = cast("dict[str, object]", call).values()
        return sum(self.count_text(each) for each in said if isinstance(each, str))

    def _count_content(self, content: object) -> int:
        if isinstance(content, str):
            return self.count_text(content)
        total = 0
        for part in _objects(content):
            text = part.get("text", part.get("refusal"))
            total += self.count_text(text) if isinstance(text, str) else _PART_TOKENS
        return total

    def __repr__(self) -> str:
        return f"WireCounter({self.name!r})"


class WireShape(msgspec.Struct, frozen=True):
    """What measuring needs to know of one wire message: its size, the calls it opens, the call it answers, and a
    digest of all that it says."""

    role: str
    tokens: int
    opens: tuple[str, ...] = ()
    answers: str = ""
    digest: bytes = b""


class Measured(msgspec.Struct, frozen=True):
    """One request: its size in tokens, and why a server would refuse it, "" if it would not.

    The rest is what a prompt cache goes by: ``head`` are model and tools, ``head_tokens`` the size of the tools;
    ``shapes`` are the wire messages in order, the instructions first.
    """

    tokens: int
    fault: str
    head: tuple[object, ...] = ()
    head_tokens: int = 0
    shapes: tuple[WireShape, ...] = ()


class Gauge:
    """Measures requests; each message and each set of tools is put into wire form and counted once."""

    def __init__(self, counter: WireCounter) -> None:
        self.counter = counter
        self._shapes: dict[Message, tuple[WireShape, ...]] = {}
        self._tools: dict[tuple[DeclaredTool, ...], int] = {}
        self._instructions: dict[str, tuple[WireShape, ...]] = {}

    def measure(self, request: ChatRequest, *, needs_user: bool) -> Measured:
        """Size and fault of a request. ``needs_user`` says that the conversation has a user message."""
        shapes = tuple(shape for message in request.messages for shape in self._shapes_of(message))
        fault = fault_of(shapes, needs_user=needs_user)
        options = request.options
        tools = options.tools
        if tools not in self._tools:
            self._tools[tools] = self.counter.count_options(ChatOptions(tools=tools))
        if options.instructions:
            shapes = (*self._shapes_of_instructions(options.instructions), *shapes)
        tokens = sum(shape.tokens for shape in shapes) + self._tools[tools]
        return Measured(tokens, fault, (options.model, tools), self._tools[tools], shapes)

    def size_of(self, message: Message) -> int:
        """Tokens of one message."""
        return sum(shape.tokens for shape in self._shapes_of(message))

    def forget(self) -> None:
        """Drop what was counted: the next conversation has other messages."""
        self._shapes.clear()
        self._tools.clear()
        self._instructions.clear()

    def _shapes_of(self, message: Message) -> tuple[WireShape, ...]:
        shapes = self._shapes.get(message)
        if shapes is None:
            shapes = tuple(map(self._shape, wire_of(message)))
            if message.role == "tool" and not message.results:
                shapes = tuple(msgspec.structs.replace(shape, role=_ITEM) for shape in shapes)
            self._shapes[message] = shapes
        return shapes

    def _shapes_of_instructions(self, instructions: str) -> tuple[WireShape, ...]:
        shapes = self._instructions.get(instructions)
        if shapes is None:
            shapes = tuple(map(self._shape, messages_to_wire((), instructions)))
            self._instructions[instructions] = shapes
        return shapes

    def _shape(self, message: Mapping[str, object]) -> WireShape:
        calls = tuple(str(call.get("id")) for call in _objects(message.get("tool_calls")))
        role = str(message.get("role"))
        answers = str(message.get("tool_call_id")) if role == "tool" else ""
        # Escaped to ASCII: half a character in what a model said has no bytes of its own.
        digest = hashlib.blake2b(json.dumps(message).encode("ascii"), digest_size=16).digest()
        return WireShape(role, self.counter.count_wire(message), calls, answers, digest)


def fault_of(shapes: Sequence[WireShape], *, needs_user: bool) -> str:
    """Why a server would refuse such messages: "" if it would not.

    Every result answers a call of the assistant message before it, every call is answered before anything else
    follows, there is a message at all, and a user message where the conversation has one.
    """
    if not shapes:
        return "empty request"
    waiting: list[str] = []
    for shape in shapes:
        if shape.role == _ITEM:
            continue
        if shape.role == "tool":
            if shape.answers not in waiting:
                return "result without a call"
            waiting.remove(shape.answers)
        elif waiting:
            return "call without a result"
        else:
            waiting.extend(shape.opens)
    if waiting:
        return "call without a result"
    if needs_user and not any(shape.role == "user" for shape in shapes):
        return "no user message"
    return ""


def _objects(value: object) -> Iterable[dict[str, object]]:
    """The objects in a JSON list; nothing for whatever else it is."""
    if not isinstance(value, (list, tuple)):
        return ()
    return (cast("dict[str, object]", each) for each in cast("list[object]", value) if isinstance(each, dict))
