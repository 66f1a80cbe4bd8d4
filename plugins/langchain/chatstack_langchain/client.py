"""A chat model of LangChain's as the provider of a stack."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from itertools import count
from typing import Any, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, SystemMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.utils.function_calling import convert_to_openai_tool

from chatstack import ChatRequest, ChatUpdate, Message, ProviderInfo, WiringError
from chatstack.client.answers import updates_of
from chatstack.providers.foreign import ForeignClient, finish_reason_of
from chatstack.values.responses import CallDelta
from chatstack_langchain.heard_once import heard_once
from chatstack_langchain.options import kwargs_of, tools_of
from chatstack_langgraph import from_langchain, to_langchain
from chatstack_langgraph.updates import from_usage_metadata

_QUIET = RunnableConfig(tags=["nostream"], metadata={"lc_source": "chatstack"})
"""Tokens are told once, by whoever asked the stack: a graph around it must not hear them from the model as well."""
_NAMES = {
    "amazon_bedrock": "aws.bedrock",
    "azure": "azure.ai.openai",
    "google_genai": "gcp.gemini",
    "google_vertexai": "gcp.vertex_ai",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""Names of providers, in LangChain and in telemetry."""


class LangChainClient(ForeignClient):
    """The provider of a stack that asks a chat model of LangChain's: ``ChatStack(LangChainClient(model))``.

    So any model that LangChain supports answers for a stack. Name, model and window are the model's own, the window
    from its profile; ``info`` states others. What the model raises becomes the matching ``ProviderError``, its cause
    what was raised; an exception that does not come from the model's side surfaces as it is. ``response.raw`` is
    LangChain's message. Raises ``WiringError`` for what is no chat model.
    """

    def __init__(self, model: BaseChatModel, *, info: ProviderInfo | None = None) -> None:
        if not isinstance(model, BaseChatModel):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(
                f"LangChainClient: model is a {type(model).__name__}, not a BaseChatModel; pass the model itself, "
                "without tools bound to it",
                parameter="model",
            )
        self.model = model
        self.info = info or info_of(model)

    async def _updates(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        model, messages = self._bound(request), to_langchain(request.messages)
        if request.options.instructions.strip():
            messages.insert(0, SystemMessage(request.options.instructions))
        whole: AIMessageChunk | None = None
        deltas = _Deltas()
        chunks = model.astream(messages, _QUIET) if request.stream else None
        with heard_once():
            said: AIMessage | None = await (model.ainvoke(messages, _QUIET) if chunks is None else anext(chunks, None))
        while chunks is not None and isinstance(said, AIMessageChunk):
            for update in deltas.of(said):
                yield update
            whole = said if whole is None else whole + said
            said = await anext(chunks, None)
        if said is None:  # else a model that does not stream has said it whole
            said = whole
        if said is not None:
            for update in answer_of(said, streamed=said is whole):
                yield update

    def _bound(self, request: ChatRequest) -> Runnable[Any, Any]:
        options = request.options
        kwargs, tools = kwargs_of(options), tools_of(options)
        if not tools:
            return self.model.bind(**kwargs)
        if options.output_schema is not None and _is_openai(self.model):
            kwargs.setdefault("strict", True)  # langchain-openai parses the answer, and OpenAI wants both strict then
            tools = [convert_to_openai_tool(tool.get("function", tool), strict=True) for tool in tools]
        if options.tool_choice is not None:  # some models take tools alone
            kwargs["tool_choice"] = "any" if options.tool_choice == "required" else options.tool_choice
        return self.model.bind_tools(tools, **kwargs)


def info_of(model: BaseChatModel) -> ProviderInfo:
    """Return what a model of LangChain's says of itself, as telemetry and counters know it."""
    # There is no public one.
    told = cast("dict[str, Any]", model._get_ls_params())  # pyright: ignore[reportPrivateUsage]
    name = str(told.get("ls_provider") or "langchain")
    window: object = cast("dict[str, Any]", getattr(model, "profile", None) or {}).get("max_input_tokens")
    reserved: object = told.get("ls_max_tokens")
    return ProviderInfo(
        name=_NAMES.get(name, name),
        model=str(told.get("ls_model_name") or ""),
        window_tokens=window if type(window) is int else None,
        default_max_tokens=reserved if type(reserved) is int and reserved > 0 else 0,
    )


def _is_openai(model: BaseChatModel) -> bool:
    return any(kind.__name__ == "BaseChatOpenAI" for kind in type(model).__mro__)


def answer_of(message: AIMessage, *, streamed: bool = False) -> Iterator[ChatUpdate]:
    """Yield the updates of a message that a model of LangChain's has answered with."""
    said = cast("dict[str, Any]", message.response_metadata)
    finish = next((said[name] for name in ("finish_reason", "stop_reason", "status") if said.get(name)), "")
    return updates_of(
        _ours(message),
        streamed=streamed,
        usage=from_usage_metadata(message.usage_metadata),
        finish_reason="refused" if _is_refusal(message) else finish_reason_of(finish),
        response_id=str(said.get("id") or message.id or ""),
        model=str(said.get("model_name") or said.get("model") or ""),
        raw=message,
    )


def _ours(message: AIMessage) -> Message:
    """Return the message as ours, with what OpenAI's models get back as it came: of the Responses API all content, with
    ids of items and arguments as the model has spaced them; of chat completions, a refusal."""
    kept = {name: text for name, text in message.additional_kwargs.items() if name == "refusal" and text}
    if not kept and not any(map(_is_item, _blocks(message))):
        return from_langchain([message], keep_rest=False)[0]
    content: object = message.content  # pyright: ignore[reportUnknownMemberType]
    said = {"tool_calls": message.tool_calls, "invalid_tool_calls": message.invalid_tool_calls}
    return from_langchain([AIMessage(cast("Any", content), additional_kwargs=kept, **cast("Any", said))])[0]


def _is_refusal(message: AIMessage) -> bool:
    """Return True for a refusal of OpenAI's, which is an answer that has stopped like any other."""
    return bool(message.additional_kwargs.get("refusal")) or any(
        block.get("type") == "refusal" for block in _blocks(message)
    )


def _blocks(message: AIMessage) -> list[dict[str, Any]]:
    content: object = message.content  # pyright: ignore[reportUnknownMemberType]
    if not isinstance(content, list):
        return []
    return [cast("dict[str, Any]", each) for each in cast("list[object]", content) if isinstance(each, dict)]


def _is_item(block: dict[str, Any]) -> bool:
    return block.get("type") == "function_call" or (block.get("type") == "text" and "id" in block)


class _Deltas:
    """Reads the chunks of one message. Calls are numbered as they begin: some models give them no index, or all of them
    the same one."""

    def __init__(self) -> None:
        self._begun: dict[object, tuple[int, str]] = {}
        self._numbers = count()

    def of(self, chunk: AIMessageChunk) -> Iterator[ChatUpdate]:
        """Yield the updates of one chunk."""
        content: object = chunk.content  # pyright: ignore[reportUnknownMemberType]
        if isinstance(content, list):
            for block in chunk.content_blocks:
                if block["type"] == "reasoning" and (text := block.get("reasoning")):
                    yield ChatUpdate(reasoning=text)
        if chunk.text:
            yield ChatUpdate(text=str(chunk.text))
        for piece in chunk.tool_call_chunks:
            id = piece["id"] or ""
            number = self._number(piece["index"], id)
            yield ChatUpdate(call_delta=CallDelta(number, id, piece["name"] or "", piece["args"] or ""))

    def _number(self, index: object, id: str) -> int:
        """Return the number of the call that a piece belongs to. One without an index is a call of its own, as in
        LangChain's sum of the chunks."""
        key = object() if index is None else index
        number, known = self._begun.get(key, (None, ""))
        if number is None or (id and known and id != known):
            number, known = next(self._numbers), ""
        self._begun[key] = (number, known or id)
        return number
