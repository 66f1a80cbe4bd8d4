"""Chat models of LangChain's that play a script, and count what they are asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field


class ScriptedModel(BaseChatModel):
    """Answers with messages in order, the last one again and again; an exception is raised."""

    answers: list[Any]
    received: list[list[BaseMessage]] = Field(default_factory=list)
    asked_with: list[dict[str, Any]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], *, tool_choice: Any = None, **kwargs: Any) -> Runnable[Any, Any]:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], tool_choice=tool_choice, **kwargs)

    def _next(self, messages: list[BaseMessage], kwargs: dict[str, Any]) -> AIMessage:
        answer = self.answers[min(len(self.received), len(self.answers) - 1)]
        self.received.append(messages)
        self.asked_with.append(kwargs)
        if isinstance(answer, BaseException):
            raise answer
        return AIMessage(answer) if isinstance(answer, str) else answer.model_copy()

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._next(messages, kwargs))])

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in _chunks(self._next(messages, kwargs)):
            if run_manager is not None:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk


def _chunks(message: AIMessage) -> Iterator[ChatGenerationChunk]:
    words = str(message.content).split(" ") if isinstance(message.content, str) and message.content else []
    for position, word in enumerate(words):
        yield ChatGenerationChunk(message=AIMessageChunk(content=word if position == 0 else f" {word}"))
    calls: list[Any] = [
        {"name": call["name"], "args": json.dumps(call["args"]), "id": call["id"], "index": at}
        for at, call in enumerate(message.tool_calls)
    ]
    yield ChatGenerationChunk(
        message=AIMessageChunk(
            content="",
            tool_call_chunks=calls,
            usage_metadata=message.usage_metadata,
            response_metadata=message.response_metadata,
            chunk_position="last",
        )
    )


def called(*calls: tuple[str, str, dict[str, Any]], text: str = "") -> AIMessage:
    """A message that calls tools: ``called(("id", "name", {...}))``."""
    return AIMessage(text, tool_calls=[{"id": id, "name": name, "args": args} for id, name, args in calls])
