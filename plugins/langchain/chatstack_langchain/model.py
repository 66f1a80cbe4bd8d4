"""A stack as a chat model of LangChain's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any, Self, cast
from uuid import uuid4

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.errors import GraphBubbleUp
from pydantic import PrivateAttr, field_validator, model_validator

from chatstack import ChatRequest, ChatStream, find
from chatstack.client.answers import updates_of
from chatstack.client.blocking import Blocking
from chatstack.client.protocol import chain, layer_kind
from chatstack.nodes.conversions import Conversions
from chatstack.nodes.whole_stack import WholeStack, Within, tool_names
from chatstack.providers.sdk_provider import SdkProvider
from chatstack.tools.execution import graph_signals
from chatstack_langchain.client import LangChainClient
from chatstack_langchain.errors import errors_as_theirs
from chatstack_langchain.graphs import thread_id
from chatstack_langchain.options import options_from
from chatstack_langchain.turns import TurnWriter, content_of, from_agent


class ChatStackModel(BaseChatModel):
    """A chat model over a whole stack: ``create_agent(ChatStackModel(client=stack.build()), ...)``.

    Goes wherever LangChain takes a model: agents, deepagents, chains. The stack's layers see each call of the model;
    the agent's state keeps every message. Calls of the agent's tools are handed back to it. Tools of the stack's own
    tool loop run inside; what they added rides along in the message, and the stack gets it back as it was. A tool that
    runs inside may pause the graph by ``interrupt()``; the model is asked again when it resumes. The conversation's id
    is the graph's ``thread_id``.

    ``client`` is any chat client: a built stack, a provider. Tokens are streamed. A provider's errors are chatstack's
    and LangChain's at once. Synchronous calls run in a background loop that the process shares: ask a client either
    from there or from a loop of yours, as its connections belong to one.

    A global cache of LangChain's (``set_llm_cache``) is used where a provider of chatstack's own answers, without a
    tool loop or a fallback. Else only a cache that is passed as ``cache`` is used, for this model alone.
    """

    client: Any
    _blocking: Blocking = PrivateAttr(default_factory=Blocking)
    _alone: str = PrivateAttr(default_factory=lambda: uuid4().hex)

    @field_validator("client")
    @classmethod
    def _is_client(cls, given: object) -> object:
        return WholeStack(cast("Any", given), owner="ChatStackModel").client

    @model_validator(mode="after")
    def _without_a_shared_cache(self) -> Self:
        if self.cache is None and not _cache_key(self.client):
            self.cache = False
        return self

    @property
    def _stack(self) -> WholeStack:
        return WholeStack(self.client, owner="ChatStackModel")

    @property
    def _llm_type(self) -> str:
        return "chatstack"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """Return what LangChain's caches tell models apart by."""
        info = self._stack.info
        known = {} if info is None else {"provider": info.name, "model": info.model}
        return {**known, "stack": _cache_key(self.client) or self._alone}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        info = self._stack.info
        known = {} if info is None else {"ls_provider": info.name, "ls_model_name": kwargs.get("model") or info.model}
        return {**super()._get_ls_params(stop, **kwargs), **known}

    def _resolve_model_profile(self) -> Any:
        """Tell the window, by which deepagents and others choose their limits; of a model of LangChain's, all."""
        below = find(self.client, LangChainClient)
        if below is not None:
            return below.model.profile
        info = self._stack.info
        return None if info is None or info.window_tokens is None else {"max_input_tokens": info.window_tokens}

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: Any = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Declare an agent's tools. ``tool_choice`` is ``"auto"``, ``"none"``, ``"any"``, or the name of a tool."""
        chosen = {} if tool_choice is None else {"tool_choice": tool_choice}
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **chosen, **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        request = _request(messages, stop, kwargs, stream=False)
        return self._blocking.run(lambda _: self._answer(request), _never)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return await self._answer(_request(messages, stop, kwargs, stream=False))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        request = _request(messages, stop, kwargs, stream=True)
        for message in self._blocking.iterate(lambda: self._chunks(request)):
            chunk = ChatGenerationChunk(message=message)
            if run_manager is not None:
                run_manager.on_llm_new_token(message.text, chunk=chunk)
            yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        request = _request(messages, stop, kwargs, stream=True)
        async for message in self._chunks(request):
            chunk = ChatGenerationChunk(message=message)
            if run_manager is not None:
                await run_manager.on_llm_new_token(message.text, chunk=chunk)
            yield chunk

    async def _answer(self, request: ChatRequest) -> ChatResult:
        writer = _writer_for(request)
        with errors_as_theirs():
            async with await self._sent(request) as stream:
                response = await stream.response()
        for message in response.messages:
            for update in updates_of(message):
                writer.chunk_of(update)
        writer.closing(response)
        return ChatResult(generations=[ChatGeneration(message=writer.whole(response))])

    async def _chunks(self, request: ChatRequest) -> AsyncGenerator[AIMessageChunk, None]:
        """Yield the answer in chunks, whose sum it is."""
        writer = _writer_for(request)
        with errors_as_theirs():
            async with await self._sent(request) as stream:
                async for update in stream:
                    chunk = writer.chunk_of(update)
                    if chunk is not None:
                        yield chunk
                yield writer.closing(await stream.response())

    async def _sent(self, request: ChatRequest) -> ChatStream:
        return await self._stack.send(request, _PAUSING)


def _cache_key(client: object) -> str:
    """Return a digest of the stack, the same in each process; "" for one that cannot be told apart from others: only
    our providers say in full who answers, and what tools do, or a fallback, is not in any repr."""
    *layers, provider = chain(client)
    said = f"{client!r} {getattr(provider, 'info', None)!r}"
    is_known = isinstance(provider, SdkProvider) and " at 0x" not in said
    if not is_known or any(layer_kind(each) in ("tool_loop", "fallback") for each in layers):
        return ""
    return sha256(said.encode()).hexdigest()


_PAUSING = Within[tuple[type[Exception], ...]](graph_signals, (GraphBubbleUp,))
"""Lets a tool of the stack's pause the graph around it."""
_known = Conversions(from_agent, content_of)


def _request(
    messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any], *, stream: bool
) -> ChatRequest:
    ours = tuple(each for message in messages for each in _known.of(message))
    return ChatRequest(ours, options_from(kwargs, stop), thread_id(), stream)


def _writer_for(request: ChatRequest) -> TurnWriter:
    return TurnWriter(tool_names(request))


def _never(question: object) -> None:
    raise AssertionError(question)  # pragma: no cover - a whole stack asks its caller nothing
