"""LangChain's ways of shortening a conversation: clearing, trimming and summarizing, run by its own code.

The limit in tokens is the ceiling; all else is as LangChain documents it. The two middlewares are called as an agent of
``create_agent`` calls them, with the system messages at the head of the conversation kept apart, as its system prompt
is. They are kept apart from ``trim_messages``, too, which is called with the arguments that its documentation
recommends before a call of a model, except ``include_system``: there is no system message at the head for it to keep.
Nothing is traced to LangSmith, whatever the environment says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from importlib import import_module
from typing import Any, cast

from chatstack.values.messages import Message
from chatstack.workbench.replay.peers.layer import Left, PeerStack, Piece, Terms, said, written
from chatstack.workbench.replay.policies import Policy

# By name: the package is checked where LangChain is not installed, too.
_middleware: Any = import_module("langchain.agents.middleware")
_messages: Any = import_module("langchain_core.messages")
_models: Any = import_module("langchain_core.language_models.chat_models")
_outputs: Any = import_module("langchain_core.outputs")
_graph: Any = import_module("langgraph.graph.message")
_runtime: Any = import_module("langgraph.runtime")
_langsmith: Any = import_module("langsmith")

_ROLES = {"ai": "assistant", "human": "user"}


class _Conversation:
    """A conversation in LangChain's messages. ``head`` are the system messages that are kept apart."""

    def __init__(self, terms: Terms) -> None:
        self.room = terms.room
        self.model = _StandIn(write=terms.write, count=self.count)
        self.head: list[Left | Message] = []
        self.messages: list[Any] = []
        self._counter = terms.counter
        self._known: dict[str, tuple[object, int]] = {}

    def add(self, piece: Piece) -> None:
        if piece.role == "system" and not self.messages:
            self.head.append(Left(piece.id))
            self.room = max(1, self.room - piece.tokens)
            return
        message = _message_of(piece)
        self._known[piece.id] = (message.content, piece.tokens)
        self.messages = self.grown_by(message)

    def grown_by(self, message: Any) -> list[Any]:
        """Return the messages with one more."""
        self.messages.append(message)
        return self.messages

    def count(self, messages: Iterable[Any]) -> int:
        """Count tokens for LangChain."""
        return sum(map(self._size_of, messages))

    def left(self, messages: Iterable[Any]) -> list[Left | Message]:
        """Return the messages that LangChain would send after the head."""
        return [*self.head, *map(self._left, messages)]

    def _size_of(self, message: Any) -> int:
        content, tokens = self._known.get(message.id, (None, 0))
        if content is not None and message.content == content:
            return tokens
        return self._counter.count_wire(_messages.convert_to_openai_messages(message))

    def _left(self, message: Any) -> Left | Message:
        if message.id not in self._known:
            return written(_ROLES[message.type], str(message.content))
        if message.content == self._known[message.id][0]:
            return Left(message.id)
        if message.type != "tool":
            raise NotImplementedError(f"a {message.type} message was edited")
        return Left(message.id, str(message.content))


class Clearing(_Conversation):
    """``ContextEditingMiddleware``: it keeps no state from one call to the next."""

    async def shortened(self) -> Sequence[Left | Message]:
        sent: list[Any] = []

        async def model(request: Any) -> Any:
            sent.extend(request.messages)
            return _middleware.ModelResponse(result=[])

        request = _middleware.ModelRequest(model=self.model, messages=self.messages)
        await self._editing.awrap_model_call(request, model)
        return self.left(sent)

    @cached_property
    def _editing(self) -> Any:
        edit = _middleware.ClearToolUsesEdit(trigger=self.room)
        return _middleware.ContextEditingMiddleware(edits=[edit], token_count_method="model")


class Trimming(_Conversation):
    """``trim_messages``: it keeps no state from one call to the next."""

    async def shortened(self) -> Sequence[Left | Message]:
        return self.left(
            _messages.trim_messages(
                self.messages,
                max_tokens=self.room,
                token_counter=self.count,
                strategy="last",
                start_on="human",
            )
        )


class Summarizing(_Conversation):
    """``SummarizationMiddleware``: its result replaces the messages in the agent's state."""

    def grown_by(self, message: Any) -> list[Any]:
        grown: list[Any] = _graph.add_messages(self.messages, [message])
        return grown

    async def shortened(self) -> Sequence[Left | Message]:
        with _langsmith.tracing_context(enabled=False):
            update = await self._summarization.abefore_model({"messages": self.messages}, _runtime.Runtime())
        if update is not None:
            self.messages = _graph.add_messages(self.messages, update["messages"])
        return self.left(self.messages)

    @cached_property
    def _summarization(self) -> Any:
        return _middleware.SummarizationMiddleware(
            self.model, trigger=("tokens", self.room), token_counter=self.count, **self.keeping
        )

    @property
    def keeping(self) -> dict[str, Any]:
        """The options on what is kept: none, so the twenty newest messages."""
        return {}


class SummarizingMore(Summarizing):
    """``SummarizationMiddleware`` that keeps a third of the ceiling, so that the next summary is far off."""

    @property
    def keeping(self) -> dict[str, Any]:
        return {"keep": ("tokens", max(1, self.room // 3))}


class _StandIn(_models.BaseChatModel):  # type: ignore[misc]
    """The model that LangChain calls to count tokens, and to write summaries."""

    write: Any
    count: Any

    def get_num_tokens_from_messages(self, messages: list[Any], *_: object, **__: object) -> int:
        counted: int = self.count(messages)
        return counted

    @property
    def _llm_type(self) -> str:
        return "stand-in"

    async def _agenerate(self, messages: list[Any], *_: object, **__: object) -> Any:
        text = await self.write([Message("user", (said(str(message.content)),)) for message in messages])
        return _outputs.ChatResult(generations=[_outputs.ChatGeneration(message=_messages.AIMessage(text))])

    def _generate(self, *_: object, **__: object) -> Any:
        raise NotImplementedError("only asynchronous calls are made here")


def _message_of(piece: Piece) -> Any:
    """Return a piece as LangChain reads it from the wire: a call with arguments that are no JSON object is invalid."""
    if piece.role == "system":
        return _messages.SystemMessage(piece.content, id=piece.id)
    if piece.role == "user":
        return _messages.HumanMessage(piece.content, id=piece.id)
    if piece.role == "tool":
        return _messages.ToolMessage(piece.content, tool_call_id=piece.answers, id=piece.id)
    calls: list[dict[str, object]] = []
    invalid: list[dict[str, object]] = []
    for call in piece.calls:
        arguments = _decoded(call.arguments)
        given = {"id": call.id, "name": call.name}
        if arguments is not None:
            calls.append({**given, "args": arguments, "type": "tool_call"})
        else:
            invalid.append({**given, "args": call.arguments, "error": "no JSON object", "type": "invalid_tool_call"})
    return _messages.AIMessage(piece.content, tool_calls=calls, invalid_tool_calls=invalid, id=piece.id)


def _decoded(arguments: str) -> dict[str, object] | None:
    try:
        decoded: object = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, object]", decoded) if isinstance(decoded, dict) else None


POLICIES = tuple(
    Policy(name, PeerStack(name, opens), about)
    for name, opens, about in (
        ("langchain-clearing", Clearing, "LangChain: clears all but the three newest tool results above the ceiling"),
        ("langchain-trim", Trimming, "LangChain: trims to the newest messages that fit, from a user message on"),
        ("langchain-summary", Summarizing, "LangChain: summarizes all but the twenty newest messages at the ceiling"),
        ("langchain-summary-third", SummarizingMore, "LangChain: summarizes all but a third of the ceiling there"),
    )
)
