"""Agent Framework's compaction strategies, run by its own ``apply_compaction``.

Where a strategy asks for a limit in tokens, that is the ceiling; all else is as it is documented. Those that have no
limit of their own are composed under a token budget, as its samples do, which drops the oldest groups where they do not
suffice. Strategies mark messages of a list as left out, and put summaries into it. Here a conversation is one list from
its first call to its last, as where a chat client of theirs is given the same list again and again: what is left out
stays out.

An agent of 1.23 whose chat client has the strategy loses some of these marks. Behind each call its tool loop takes the
mark off those of the loop's own messages whose summary covers others as well (the task, for one), so the next call has
them all summarized again. And a session hands out copies of its messages, so with every turn all marks are gone, and
the whole conversation is shortened anew. In loops and sessions that were tried, such an agent sent as much as is sent
here or less, broke its prompt cache as often or more often, and had more summaries written. Whether it costs more than
the figures here say depends on what tokens from a cache cost.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple, cast

from chatstack.values.messages import Message
from chatstack.workbench.replay.measures.measuring import WireCounter
from chatstack.workbench.replay.peers.layer import Left, PeerStack, Piece, Terms, said, written
from chatstack.workbench.replay.policies import Policy

# By name: the package is checked where Agent Framework is not installed, too.
_framework: Any = import_module("agent_framework")
_is_shortening = ContextVar("is_shortening", default=False)


def _is_heard(_: logging.LogRecord) -> bool:
    return not _is_shortening.get()


# What strategies log while they are replayed is in the figures: what is over the limit, edits, summaries. Logged, it
# would be once for each call, across the progress bar, and from one process only: others do not know how logging is
# configured. Nobody's handlers or levels are touched, and an agent in the same program is heard as before.
logging.getLogger("agent_framework").addFilter(_is_heard)

_SERIALIZED = '{"contents"'
"""Beginning of the text of a message that Agent Framework gives to a tokenizer; others are prompts and transcripts."""
_TASK = {"preserve_first_user_group": True}


class Tools(NamedTuple):
    """The tools that strategies are made with."""

    room: int
    tokenizer: Any
    writer: Any


class Compaction:
    """A conversation in Agent Framework's messages."""

    kept: Mapping[str, bool] = {}
    """Options of a strategy for what it keeps."""

    def __init__(self, terms: Terms) -> None:
        self._known: dict[str, tuple[int, str | None]] = {}
        self._messages: list[Any] = []
        self._tokenizer = _Tokenizer(terms.counter, self._known)
        self._tools = Tools(terms.room, self._tokenizer, _Writer(terms))

    def add(self, piece: Piece) -> None:
        message = _message_of(piece)
        self._known[piece.id] = (piece.tokens, _result_in(message.contents))
        self._messages.append(message)

    async def shortened(self) -> Sequence[Left | Message]:
        before = _is_shortening.set(True)
        try:
            sent = await _framework.apply_compaction(self._messages, strategy=self._strategy, tokenizer=self._tokenizer)
        finally:
            _is_shortening.reset(before)
        return [
            self._left(message) if message.message_id in self._known else written(message.role, message.text)
            for message in sent
        ]

    def _left(self, message: Any) -> Left:
        result = _result_in(message.contents)
        return Left(message.message_id, None if result == self._known[message.message_id][1] else result)

    @cached_property
    def _strategy(self) -> Any:
        return self.strategy_of(self._tools)

    def strategy_of(self, tools: Tools) -> Any:
        """Return the strategy, set up for one conversation."""
        raise NotImplementedError


class Truncation(Compaction):
    """``TruncationStrategy``. It has no default for its target: half the limit, as in its documentation."""

    def strategy_of(self, tools: Tools) -> Any:
        return _framework.TruncationStrategy(
            max_n=tools.room, compact_to=max(1, tools.room // 2), tokenizer=tools.tokenizer, **self.kept
        )


class TaskTruncation(Truncation):
    """``TruncationStrategy`` that keeps the first user message, too."""

    kept = _TASK


class ContextWindow(Compaction):
    """``ContextWindowCompactionStrategy``.

    It collapses tool results from half of the window on, and truncates from eight tenths on. Nothing is reserved for
    the answer, as the ceiling is that of the input.
    """

    def strategy_of(self, tools: Tools) -> Any:
        return _framework.ContextWindowCompactionStrategy(
            max_context_window_tokens=tools.room, max_output_tokens=0, tokenizer=tools.tokenizer, **self.kept
        )


class TaskContextWindow(ContextWindow):
    """``ContextWindowCompactionStrategy`` that keeps the first user message, too."""

    kept = _TASK


class ToolResults(Compaction):
    """``ToolResultCompactionStrategy`` under a token budget."""

    def strategy_of(self, tools: Tools) -> Any:
        return _composed(tools, _framework.ToolResultCompactionStrategy())


class SlidingWindow(Compaction):
    """``SlidingWindowStrategy`` under a token budget. It has no default: twenty groups, as in its documentation."""

    def strategy_of(self, tools: Tools) -> Any:
        return _composed(tools, _framework.SlidingWindowStrategy(keep_last_groups=20))


class Summarization(Compaction):
    """``SummarizationStrategy`` under a token budget."""

    def strategy_of(self, tools: Tools) -> Any:
        return _composed(tools, _framework.SummarizationStrategy(client=tools.writer, tokenizer=tools.tokenizer))


def _composed(tools: Tools, strategy: Any) -> Any:
    return _framework.TokenBudgetComposedStrategy(
        token_budget=tools.room, tokenizer=tools.tokenizer, strategies=[strategy]
    )


class _Tokenizer:
    """Counts a message as it goes out on the wire, not the JSON that Agent Framework would count."""

    def __init__(self, counter: WireCounter, known: dict[str, tuple[int, str | None]]) -> None:
        self._counter = counter
        self._known = known

    def count_tokens(self, text: str) -> int:
        if not text.startswith(_SERIALIZED):
            return self._counter.count_text(text)
        message = json.loads(text)
        tokens, result = self._known.get(message["message_id"], (None, None))
        now = next((each["result"] for each in message["contents"] if each["type"] == "function_result"), None)
        if tokens is not None and now == result:
            return tokens
        content = "".join(each.get("text", "") for each in message["contents"]) if now is None else now
        return self._counter.count_wire({"role": message["role"], "content": content})


class _Writer:
    """The chat client that writes summaries for Agent Framework."""

    def __init__(self, terms: Terms) -> None:
        self._write = terms.write

    async def get_response(self, messages: Sequence[Any], **_: object) -> Any:
        asked = [Message("system" if each.role == "system" else "user", (said(each.text),)) for each in messages]
        text = await self._write(asked)
        return _framework.ChatResponse(messages=[_framework.Message("assistant", [text])])


def _result_in(contents: Sequence[Any]) -> str | None:
    """Return the text of a tool result; None if there is none."""
    return next((content.result for content in contents if content.type == "function_result"), None)


def _message_of(piece: Piece) -> Any:
    content = _framework.Content
    if piece.role == "tool":
        result = piece.content if isinstance(piece.content, str) else _contents_of(piece.content)
        contents = [content.from_function_result(piece.answers, result=result)]
    else:
        contents = _contents_of(piece.content)
        contents += [content.from_function_call(each.id, each.name, arguments=each.arguments) for each in piece.calls]
    return _framework.Message(piece.role, contents, message_id=piece.id)


def _contents_of(content: str | list[dict[str, Any]]) -> list[Any]:
    """Return the parts of a content. A part that has neither text nor an address is left empty."""
    parts = [{"text": content}] if isinstance(content, str) and content else content or []
    found: list[Any] = []
    for part in cast("list[dict[str, Any]]", parts):
        uri = part.get("image_url", {}).get("url") or part.get("file", {}).get("file_data")
        if uri is None:
            found.append(_framework.Content.from_text(part.get("text", "")))
        else:
            found.append(_framework.Content.from_uri(uri, media_type=None if uri.startswith("data:") else "image/*"))
    return found


POLICIES = tuple(
    Policy(name, PeerStack(name, opens), about)
    for name, opens, about in (
        ("af-truncation", Truncation, "Agent Framework: drops the oldest groups, down to half of the ceiling"),
        ("af-truncation-task", TaskTruncation, "Agent Framework: the same, and keeps the first user message"),
        ("af-context-window", ContextWindow, "Agent Framework: collapses old tool results, then drops old groups"),
        ("af-context-window-task", TaskContextWindow, "Agent Framework: the same, and keeps the first user message"),
        ("af-tool-results", ToolResults, "Agent Framework: collapses all tool calls but the latest"),
        ("af-sliding-window", SlidingWindow, "Agent Framework: drops all but the twenty newest groups"),
        ("af-summary", Summarization, "Agent Framework: summarizes all but about four messages"),
    )
)
