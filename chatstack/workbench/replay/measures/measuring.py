"""The one measure of requests: the wire text, counted alike for every policy, never by the policy's own counter."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from chatstack.errors import WiringError
from chatstack.providers.extras import objects_in
from chatstack.providers.openai.chat_wire import messages_to_wire, request_to_wire
from chatstack.tokens.counter import CharCounter, TokenCounter, TokenizerCounter
from chatstack.values.messages import Message
from chatstack.values.requests import ChatOptions, ChatRequest, DeclaredTool
from chatstack.workbench.replay.measures.chat_form import wire_of
from chatstack.workbench.replay.measures.following import Following

_MESSAGE_TOKENS = 4
"""Tokens around each message: three, and one for its role. Source: OpenAI's published counting rule."""
_ITEM = "item"
"""Output of another API's own tools (a computer's): it may stand anywhere among calls and results."""
_PART_TOKENS = 1_000
"""Tokens of a picture, a sound or a file, whose size is not in its text."""


class WireCounter(TokenCounter):
    """Counts the text of an OpenAI chat-completions request: text, names, arguments and tool schemas as JSON."""

    def __init__(self, text: TokenCounter, name: str) -> None:
        self._text = text
        self.name = name

    @classmethod
    def best(cls) -> WireCounter:
        """Return the best counter available: o200k if the extra ``tokenizer`` is installed, else characters."""
        try:
            return cls(TokenizerCounter(), "o200k")
        except WiringError:
            return cls(CharCounter(4), "characters/4")

    def count_text(self, text: str) -> int:
        return self._text.count_text(text)

    def count_message(self, message: Message) -> int:
        """Return the tokens of a message on the wire, however many wire messages it makes."""
        return sum(map(self.count_wire, wire_of(message)))

    def count_options(self, options: ChatOptions) -> int:
        """Return the tokens of instructions and of tool schemas, the latter as compact JSON."""
        body = request_to_wire(ChatRequest((), options.but(extra={})))
        messages = cast("list[dict[str, object]]", body.get("messages", []))
        tools = body.get("tools")
        schemas = 0 if not tools else self.count_text(json.dumps(tools, ensure_ascii=False, separators=(",", ":")))
        return schemas + sum(map(self.count_wire, messages))

    def count_wire(self, message: Mapping[str, object]) -> int:
        """Return the tokens of one wire message."""
        total = _MESSAGE_TOKENS
        for field in ("content", "refusal", "name"):
            total += self._count_content(message.get(field))
        for call in objects_in(message.get("tool_calls")):
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
        for part in objects_in(content):
            text = part.get("text", part.get("refusal"))
            total += self.count_text(text) if isinstance(text, str) else _PART_TOKENS
        return total

    def __repr__(self) -> str:
        return f"WireCounter({self.name!r})"


class WireShape(msgspec.Struct, frozen=True):
    """The measured properties of one wire message: size, calls opened, call answered, and a digest of the content."""

    role: str
    tokens: int
    opens: tuple[str, ...] = ()
    answers: str = ""
    digest: bytes = b""


class Measured(msgspec.Struct, frozen=True):
    """One request: its size in tokens, and the reason why a server would refuse it, or "".

    The rest determines the prompt cache: ``head`` are model and tools, ``head_tokens`` the size of the tools;
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
        """Return the size and the fault of a request. ``needs_user``: the conversation has a user message."""
        return Measuring(self).measure(request, needs_user=needs_user)

    def size_of(self, message: Message) -> int:
        """Return the tokens of one message."""
        return sum(shape.tokens for shape in self.shapes_of(message))

    def tools_size(self, tools: tuple[DeclaredTool, ...]) -> int:
        """Return the tokens of tool schemas."""
        if tools not in self._tools:
            self._tools[tools] = self.counter.count_options(ChatOptions(tools=tools))
        return self._tools[tools]

    def forget(self) -> None:
        """Clear the cache of counts: the next conversation has other messages."""
        self._shapes.clear()
        self._tools.clear()
        self._instructions.clear()

    def shapes_of(self, message: Message) -> tuple[WireShape, ...]:
        """Return the wire messages of a message."""
        shapes = self._shapes.get(message)
        if shapes is None:
            shapes = tuple(map(self._shape, wire_of(message)))
            if message.role == "tool" and not message.results:
                shapes = tuple(msgspec.structs.replace(shape, role=_ITEM) for shape in shapes)
            self._shapes[message] = shapes
        return shapes

    def shapes_of_instructions(self, instructions: str) -> tuple[WireShape, ...]:
        """Return the wire messages of instructions; none if there are none."""
        if not instructions:
            return ()
        shapes = self._instructions.get(instructions)
        if shapes is None:
            shapes = tuple(map(self._shape, messages_to_wire((), instructions)))
            self._instructions[instructions] = shapes
        return shapes

    def _shape(self, message: Mapping[str, object]) -> WireShape:
        calls = tuple(str(call.get("id")) for call in objects_in(message.get("tool_calls")))
        role = str(message.get("role"))
        answers = str(message.get("tool_call_id")) if role == "tool" else ""
        # Escaped to ASCII: a lone surrogate in a model's text has no UTF-8 encoding.
        digest = hashlib.blake2b(json.dumps(message).encode("ascii"), digest_size=16).digest()
        return WireShape(role, self.counter.count_wire(message), calls, answers, digest)


class Measuring:
    """Measures the requests of one conversation, one after the other: of each only what the last one did not hold."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._following = Following(self._take, self._drop)
        self._shapes: list[WireShape] = []
        self._tokens = 0
        self._order = WireOrder(self._shapes)

    def measure(self, request: ChatRequest, *, needs_user: bool) -> Measured:
        """Return the size and the fault of a request. ``needs_user``: the conversation has a user message."""
        self._following.follow(request.messages)
        options, gauge = request.options, self._gauge
        instructions = gauge.shapes_of_instructions(options.instructions)
        tools = gauge.tools_size(options.tools)
        tokens = sum(shape.tokens for shape in instructions) + self._tokens + tools
        fault = self._order.fault(needs_user=needs_user)
        return Measured(tokens, fault, (options.model, options.tools), tools, (*instructions, *self._shapes))

    def _take(self, message: Message) -> None:
        for shape in self._gauge.shapes_of(message):
            self._shapes.append(shape)
            self._tokens += shape.tokens

    def _drop(self, message: Message) -> None:
        for _ in self._gauge.shapes_of(message):
            self._tokens -= self._shapes.pop().tokens
        self._order.cut()


class WireOrder:
    """The order of wire messages, checked from where it was last found whole."""

    def __init__(self, shapes: Sequence[WireShape]) -> None:
        self._shapes = shapes
        self._whole: list[tuple[int, bool]] = []
        """Numbers of shapes at whose end nothing is wrong and no call waits; whether a user speaks up to there."""

    def fault(self, *, needs_user: bool) -> str:
        """Return the reason why a server would refuse the messages, or "".

        Every result must answer a call of the assistant message before it, and every call must be answered before
        anything else follows; there must be a message, and a user message if the conversation has one.
        """
        if not self._shapes:
            return "empty request"
        return self._fault_behind(*(self._whole[-1] if self._whole else (0, False)), needs_user)

    def cut(self) -> None:
        """Take note that shapes have gone from the end."""
        while self._whole and self._whole[-1][0] > len(self._shapes):
            self._whole.pop()

    def _fault_behind(self, start: int, has_user: bool, needs_user: bool) -> str:
        waiting: list[str] = []
        for at in range(start, len(self._shapes)):
            shape = self._shapes[at]
            has_user = has_user or shape.role == "user"
            if shape.role == "tool":
                if shape.answers not in waiting:
                    return "result without a call"
                waiting.remove(shape.answers)
            elif waiting and shape.role != _ITEM:
                return "call without a result"
            elif shape.role != _ITEM:
                waiting.extend(shape.opens)
            if not waiting:
                self._whole.append((at + 1, has_user))
        if waiting:
            return "call without a result"
        return "no user message" if needs_user and not has_user else ""
