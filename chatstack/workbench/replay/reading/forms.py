"""Conversion of recorded conversations to our values, from each form.

Fields that a recording has and a request has not (ids, statuses, finish reasons, usage, times) ride along or are
ignored; of the fields beside the messages, instructions and tools are taken. Anthropic's ``system`` becomes a system
message at the head. The old ``functions`` are tools.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from chatstack.providers.anthropic.wire import request_from_wire as anthropic_from_wire
from chatstack.providers.converters import Form, from_anthropic, from_openai_chat, from_openai_responses, naming_faults
from chatstack.providers.extras import WireObject, as_list, as_string
from chatstack.providers.openai.chat_options import tools_from_wire
from chatstack.providers.openai.responses_options import tools_from_wire as responses_tools_from_wire
from chatstack.values.messages import Message
from chatstack.values.requests import ChatOptions
from chatstack.workbench.replay.reading.recordings import Recording


class Conversation(msgspec.Struct, frozen=True):
    """A recorded conversation in our values. ``options`` hold its instructions and tools."""

    messages: tuple[Message, ...]
    options: ChatOptions


def conversation_of(recording: Recording) -> Conversation:
    """Return the conversation. Raises ``InputError``, naming the place inside, for malformed input."""
    return naming_faults(lambda: _READERS[recording.form](recording.body))


def _chat(body: WireObject) -> Conversation:
    tools = as_list(body.get("tools") or [], "tools")
    functions = as_list(body.get("functions") or [], "functions")
    tools += [{"type": "function", "function": each} for each in functions]
    messages = from_openai_chat(as_list(body["messages"], "messages"))
    return Conversation(tuple(messages), ChatOptions(tools=tools_from_wire(tools)))


def _anthropic(body: WireObject) -> Conversation:
    messages = from_anthropic(as_list(body["messages"], "messages"), system=body.get("system"))
    tools = anthropic_from_wire({"tools": body.get("tools")}).options.tools
    return Conversation(tuple(messages), ChatOptions(tools=tools))


def _responses(body: WireObject) -> Conversation:
    given = body["input"]
    messages = from_openai_responses(given if isinstance(given, str) else as_list(given, "input"))
    instructions = as_string(body.get("instructions") or "", "instructions")
    declared = responses_tools_from_wire(body.get("tools") or [])
    return Conversation(tuple(messages), ChatOptions(instructions=instructions, tools=declared))


_READERS: dict[Form, Callable[[WireObject], Conversation]] = {
    "chat": _chat,
    "messages": _anthropic,
    "responses": _responses,
}
