"""What a turn says, told to LangChain's callbacks: ``stream_mode="messages"``, ``astream_events`` and tracers."""

from __future__ import annotations

from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackManager, AsyncCallbackManagerForLLMRun
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, LLMResult

from chatstack import ChatRequest, ChatUpdate
from chatstack_langgraph.messages import to_langchain
from chatstack_langgraph.updates import ChunkWriter


class CallbackListener:
    """Reports one turn as one run of a chat model. The n-th message of the turn has the id ``id_of(n)``.

    Graphs stream what has not been streamed yet when the node returns, and know by that id what has.
    """

    def __init__(self, callbacks: AsyncCallbackManager, model: str) -> None:
        self._callbacks = callbacks
        self._model = model
        self._run: AsyncCallbackManagerForLLMRun | None = None
        self._message = 0
        self._writer = ChunkWriter()

    def id_of(self, place: int) -> str | None:
        """The id of the n-th message of the turn."""
        return None if self._run is None else f"{self._run.run_id}-{place}"

    async def asked(self, request: ChatRequest) -> None:
        if self._run is None:  # a layer may send again what was refused
            runs = await self._callbacks.on_chat_model_start(
                {"name": self._model}, [to_langchain(request.messages)], invocation_params={"model": self._model}
            )
            self._run = runs[0]

    async def heard(self, update: ChatUpdate) -> None:
        chunk = self._writer.chunk_of(update, self.id_of(self._message))
        if chunk is not None and self._run is not None:
            token = update.text
            await self._run.on_llm_new_token(token, chunk=ChatGenerationChunk(message=chunk))
        if update.message_done is not None:
            self._message += len(to_langchain([update.message_done]))
            self._writer = ChunkWriter()

    async def ended(self, messages: list[BaseMessage]) -> None:
        """The turn is over, and has added these."""
        if self._run is not None:
            said = [ChatGeneration(message=cast("Any", each)) for each in messages[-1:]]
            await self._run.on_llm_end(LLMResult(generations=[cast("Any", said)]))

    async def failed(self, error: BaseException) -> None:
        """The turn has ended with that error."""
        if self._run is not None:
            await self._run.on_llm_error(error)
