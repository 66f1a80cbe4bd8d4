"""One message of ours, plainly as the messages that LangChain has for it, and these as one of ours again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from chatstack import File, Image, InputError, Message, Part, ProviderItem, Text, ToolCall, ToolResult
from chatstack.nodes.remainder import as_list, as_object, told_at
from chatstack.values.messages import Role
from chatstack_langgraph.blocks import WIRE, Block, arguments_object, arguments_text, block_of, part_of

_ROLES: dict[str, Role] = {"ai": "assistant", "human": "user", "system": "system", "tool": "tool"}
_CALL_BLOCKS = ("tool_call", "invalid_tool_call", "tool_use", "function_call")


def pieces_of(message: Message) -> list[BaseMessage]:
    """LangChain's messages for one of ours: one for each tool result, one for what stands before or behind them."""
    pieces: list[BaseMessage] = []
    for is_result, parts in groupby(message.parts, key=lambda part: isinstance(part, ToolResult)):
        if is_result:
            pieces.extend(_result_message(cast("ToolResult", part)) for part in parts)
        else:
            pieces.append(_plain_message(message.role, tuple(parts)))
    return pieces or [_plain_message(message.role, ())]


def group_of(pieces: Sequence[BaseMessage], places: Sequence[str]) -> Message:
    """Our message for these. Raises ``InputError`` for what JSON cannot say, naming where in these places it is."""
    parts = tuple(part for each, where in zip(pieces, places, strict=True) for part in _parts_of(each, where))
    speaking = next((each for each in pieces if each.type != "tool"), pieces[0])
    return Message(_ROLES[speaking.type], parts)


def _plain_message(role: Role, parts: tuple[Part, ...]) -> BaseMessage:
    if role == "assistant":
        return _ai_message(parts)
    blocks = [block_of(part) for part in parts]
    content = parts[0].text if len(parts) == 1 and isinstance(parts[0], Text) else cast("list[Any]", blocks)
    return SystemMessage(content) if role == "system" else HumanMessage(content)


def _ai_message(parts: tuple[Part, ...]) -> AIMessage:
    said = [part for part in parts if not isinstance(part, ToolCall)]
    valid: list[dict[str, Any]] = []
    invalid: list[dict[str, Any]] = []
    for call in parts:
        if isinstance(call, ToolCall):
            given = arguments_object(call.arguments)
            named: dict[str, Any] = {"id": call.id, "name": call.name}
            if given is None:
                invalid.append({**named, "args": call.arguments, "error": None})
            else:
                valid.append({**named, "args": given})
    return AIMessage(_said(said), tool_calls=valid, invalid_tool_calls=invalid)


def _said(parts: Sequence[Part]) -> str | list[Any]:
    if not parts:
        return ""
    only = parts[0]
    return only.text if len(parts) == 1 and isinstance(only, Text) and only.text else [block_of(part) for part in parts]


def _result_message(result: ToolResult) -> ToolMessage:
    output = result.output
    return ToolMessage(
        output if isinstance(output, str) else [block_of(part) for part in output],
        tool_call_id=result.call_id,
        name=result.name or None,
        status="error" if result.is_error else "success",
    )


def _parts_of(message: BaseMessage, where: str) -> tuple[Part, ...]:
    content = _content_of(message)
    if isinstance(message, ToolMessage):
        output = content if isinstance(content, str) else tuple(_output_parts(content, where))
        return (ToolResult(message.tool_call_id, message.name or "", output, message.status == "error"),)
    said = _placed(content, where)
    if isinstance(message, AIMessage):
        calls = _calls_of(message, where)
        known = {call.id for call in calls}
        own = [(place, each) for place, each in said if each != "" and not _is_call(each, known, place)]
        return (*_read(own), *calls)
    return _read(said)


def _placed(content: str | list[Block | str], where: str) -> list[tuple[str, Block | str]]:
    """The blocks, and where each of them is."""
    if isinstance(content, str):
        return [(f"{where}.content", content)]
    return [(f"{where}.content[{at}]", each) for at, each in enumerate(content)]


def _read(placed: list[tuple[str, Block | str]]) -> tuple[Part, ...]:
    parts: list[Part] = []
    for place, each in placed:
        with told_at(place):
            parts.append(part_of(each))
    return tuple(parts)


def _output_parts(content: list[Block | str], where: str) -> Iterator[Text | Image | File | ProviderItem]:
    for part, each in zip(_read(_placed(content, where)), content, strict=True):
        if isinstance(part, Text | Image | File | ProviderItem):
            yield part
        else:
            yield ProviderItem(WIRE, arguments_text(each))


def _calls_of(message: AIMessage, where: str) -> list[ToolCall]:
    received = _received_arguments(message)
    calls: list[ToolCall] = []
    for at, call in enumerate(message.tool_calls):
        with told_at(f"{where}.tool_calls[{at}].args"):
            id, text = call.get("id") or "", arguments_text(call["args"])
            was = received.get(id)
            is_same = isinstance(was, str) and arguments_object(was) == call["args"]
        calls.append(ToolCall(id, call["name"], was if was is not None and is_same else text))
    for cut_off in message.invalid_tool_calls:
        calls.append(ToolCall(cut_off.get("id") or "", cut_off.get("name") or "", cut_off.get("args") or ""))
    return calls


def _received_arguments(message: AIMessage) -> dict[str, str]:
    """The arguments as the model wrote them, where an integration has kept OpenAI's own calls."""
    theirs: object = message.additional_kwargs.get("tool_calls")
    found: dict[str, str] = {}
    for call in as_list(theirs) or ():
        try:
            found[call["id"]] = call["function"]["arguments"]
        except (LookupError, TypeError):
            continue  # something else's
    return found


def _is_call(block: object, known: set[str], where: str) -> bool:
    """Whether that block only repeats, in an integration's own spelling, one of the message's calls."""
    told = as_object(block)
    if told is None or told.get("type") not in _CALL_BLOCKS:
        return False
    name = "call_id" if told.get("call_id") else "id"
    id = told.get(name)
    if id is not None and not isinstance(id, str):
        raise InputError(f"{where}.{name}: the id of a {told['type']} block must be text, not {type(id).__name__}")
    return id in known


def _content_of(message: BaseMessage) -> str | list[Block | str]:
    content: object = message.content  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return cast("str | list[Block | str]", content)
