"""Anthropic's Messages API and our values, both ways. Pure functions; the SDK is not imported.

Equivalent, hence not told apart, beside the list in ``blocks``: text as a string and as one text block; a request
without ``max_tokens`` and one with the default; a tool's empty description and none; ``stream: false`` and none; system
messages that lead ``messages`` and the ``system`` parameter; user messages in a row where the first one ends in tool
results (the API itself combines them).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile, zip_longest
from typing import cast

from chatstack.errors import InputError
from chatstack.providers.anthropic.blocks import THINKING, WIRE, block_to_part, call_ids, objects, part_to_block
from chatstack.providers.anthropic.marks import CacheLifetime, mark
from chatstack.providers.anthropic.native import ask_for_edits
from chatstack.providers.anthropic.options import (
    choice_from_wire,
    choice_to_wire,
    output_config,
    output_config_from_wire,
    tool_from_wire,
    tool_to_wire,
)
from chatstack.providers.anthropic.thinking import settle_thinking
from chatstack.providers.extras import (
    WireObject,
    encoded_extra,
    extra_fields,
    field_of,
    message_at,
    text_in,
    with_options_extra,
    without_nulls,
)
from chatstack.values.messages import Message, Role, was_edited
from chatstack.values.parts import Part, Reasoning, Text, ToolResult
from chatstack.values.requests import ChatOptions, ChatRequest, declared_names
from chatstack.values.responses import Usage

DEFAULT_MAX_TOKENS = 8_192
"""Output tokens of a call if the caller set no limit: the API requires one. Every current model allows this many, and
up to it the SDK never demands streaming."""

_ROLES: Mapping[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
_TOOLS = frozenset({"tools", "mcp_servers"})
"""Fields of ``extra`` that bring tools. The API refuses a choice without any."""
_CONTAINER = "container"
_MODEL = "model"
"""Fields that an answer's ``extra_json`` keeps: the container that its code ran in, and the model that thought, if it
is no Claude."""
_GO_ON = "Go on."
_OPENING = "Begin."
"""Opening user message for a conversation that begins with the assistant, which the API refuses."""
_BLANK = "(empty message)"
"""Text for a user message with nothing that can be sent: without it, the request would end with the assistant's
turn."""


def request_to_wire(request: ChatRequest, *, cache: CacheLifetime = "off", model: str = "") -> WireObject:
    """Return the body of the request, with marks for the ``cache``. ``model`` is the one that is asked if the options
    name none; only theirs is in the body. If the messages do not begin with the user, a short user message precedes
    them, always the same, so that the prefix stays stable.

    ``options.extra`` wins, save over a choice of no tools, ``output_config`` in it field by field; only its
    ``thinking`` may wait for the next turn, as ``thinking.py`` says. ``seed`` has no counterpart and is not sent;
    neither are the tools and items that belong to another provider.
    """
    options = request.options
    leading = len(list(takewhile(lambda message: message.role == "system", request.messages)))
    system: list[WireObject] = [{"type": "text", "text": options.instructions}] if options.instructions.strip() else []
    system += [block for message in request.messages[:leading] for block in _blocks(message)]
    is_claude = _is_claude(options.model or model)
    messages, edited = _written(request.messages[leading:], declared_names(options.tools), is_claude=is_claude)
    if not messages or messages[0]["role"] != "user":
        messages.insert(0, _user(_OPENING))
    _end_without_space(messages[-1])
    tools = [tool for each in options.tools if (tool := tool_to_wire(each)) is not None]
    known: dict[str, object] = {
        "model": options.model,
        "max_tokens": _max_tokens(options),
        "system": system or None,
        "messages": messages,
        "tools": tools or None,
        "tool_choice": choice_to_wire(options) if tools or _TOOLS & options.extra.keys() else None,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "stop_sequences": list(options.stop) or None,
        "stream": request.stream or None,
    }
    body = with_options_extra(without_nulls(known), options)
    config = output_config(options)
    given = body.get("output_config", {})
    if config and isinstance(given, Mapping):
        body["output_config"] = {**config, **cast("Mapping[str, object]", given)}
    if "messages" not in options.extra:
        settle_thinking(body, messages)
    _go_on_in_container(body, request.messages)
    ask_for_edits(body, options.native_edits)
    mark(body, cache, extra=options.extra, edited=edited)
    return body


def request_from_wire(body: Mapping[str, object]) -> ChatRequest:
    """Return the request for such a body; fields without a counterpart here go into ``options.extra``.

    Raises ``InputError`` naming the place of malformed data.
    """
    rest = dict(body)
    messages = messages_from_wire(objects(rest.pop("messages", ()), "messages"))
    system = rest.pop("system", None)
    if system:
        blocks = [{"type": "text", "text": system}] if isinstance(system, str) else objects(system, "system")
        messages = (message_at("system", "system", tuple(block_to_part(block) for block in blocks)), *messages)
    stream = rest.pop("stream", None) is True
    fields: dict[str, object] = {
        "tools": tuple(tool_from_wire(tool) for tool in objects(rest.pop("tools", None) or (), "tools"))
    }
    for name, kind in (("model", str), ("max_tokens", int), ("temperature", float), ("top_p", float)):
        value = rest.get(name)
        if isinstance(value, kind) or (kind is float and type(value) is int):
            fields[name] = rest.pop(name)
    stop = rest.get("stop_sequences")
    if isinstance(stop, list):
        fields["stop"] = tuple(str(each) for each in cast("list[object]", rest.pop("stop_sequences")))
    fields |= choice_from_wire(rest)
    fields |= output_config_from_wire(rest)
    return ChatRequest(messages, ChatOptions(extra=rest).but(**fields), stream=stream)


def messages_to_wire(messages: Sequence[Message]) -> list[WireObject]:
    """Return the messages in their order; a message with nothing that can be sent is left out, or, if it is the user's,
    sent as "(empty message)". Thinking that the assistant says nothing after is not sent.

    Tool messages in a row, and a user message right after them, become one wire message: the API wants the results of
    parallel calls together. Between a summary and an assistant message stands a short user message: the API joins
    assistant messages in a row, and refuses one whose thinking is not its beginning. The fields of a whole message
    (``Message.extra_json``) have no place among them.
    """
    return _written(messages)[0]


def _written(
    messages: Sequence[Message], declared: Collection[str] | None = None, *, is_claude: bool = False
) -> tuple[list[WireObject], WireObject | None]:
    """Return the messages, and the last block of the last one that a layer has edited or put in."""
    wire: list[WireObject] = []
    results: list[WireObject] | None = None
    edited: WireObject | None = None
    is_after_summary = False
    ids = call_ids(declared)
    for message, following in zip_longest(messages, messages[1:]):
        blocks = _blocks(message)
        if is_claude and message.extra_json and extra_fields(message.extra_json, WIRE, "messages").get(_MODEL):
            blocks = [block for block in blocks if block.get("type") not in THINKING]
        if message.role == "assistant" and (following is None or following.role != "assistant"):
            blocks = _returnable(blocks)
        elif message.role == "user":
            blocks = blocks or [_text(_BLANK)]
        if not blocks:
            continue
        if message.role == "assistant":
            ids.begin()
        for block in blocks:
            ids.rename(block)
        if is_after_summary and message.role == "assistant":
            wire.append(_user(_GO_ON))
        is_after_summary = message.mark == "summary"
        edited = blocks[-1] if is_after_summary or was_edited(message) else edited
        is_results = message.role == "tool"
        if results is not None and message.role in ("tool", "user"):
            results.extend(blocks)
        else:
            wire.append({"role": "user" if is_results else message.role, "content": blocks})
            results = blocks
        results = results if is_results else None
    return wire, edited


def messages_from_wire(wire: Sequence[Mapping[str, object]]) -> tuple[Message, ...]:
    """Return our messages for the wire's: every tool result is a message of its own, named after its call.

    Raises ``InputError`` naming the position of malformed data.
    """
    messages: list[Message] = []
    names: dict[str, str] = {}
    for position, each in enumerate(wire):
        given = each.get("role")
        role = _ROLES.get(given) if isinstance(given, str) else None
        if role is None:
            raise InputError(f"messages[{position}]: role is not user, assistant or system")
        content = each.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        parts: list[Part] = []
        where = f"messages[{position}]"
        for block in objects(blocks, f"{where}.content"):
            part = block_to_part(block, call_names=names)
            if isinstance(part, ToolResult):
                messages += _message(where, role, parts)
                messages.append(message_at(where, "tool", (part,)))
                parts = []
            else:
                parts.append(part)
        messages += _message(where, role, parts)
        if messages:
            names.update((call.id, call.name) for call in messages[-1].calls)
    return tuple(messages)


def message_of(parts: Iterable[Part], container: object = None, models: tuple[str, object] = ("", "")) -> Message:
    """Return the assistant message of those parts, without empty text; it keeps the id of the container that its code
    ran in. If it holds thinking, it keeps the model, too, if neither the one that was asked nor the one that says that
    it has answered is a Claude, which would refuse that thinking: it is not signed."""
    kept = tuple(part for part in parts if not (isinstance(part, Text) and not part.text))
    is_unsigned = any(isinstance(part, Reasoning) for part in kept) and not any(map(_is_claude, models))
    extra = {_CONTAINER: field_of(container, "id"), _MODEL: models[0] if is_unsigned else None}
    return Message("assistant", kept, extra_json=encoded_extra({k: v for k, v in extra.items() if v}, WIRE))


def usage_from_wire(usage: Mapping[str, object]) -> Usage:
    """Return the usage of the answer itself; the input includes cache reads and writes, which Anthropic counts
    apart."""
    read, written = _count(usage, "cache_read_input_tokens"), _count(usage, "cache_creation_input_tokens")
    return Usage(
        input_tokens=_count(usage, "input_tokens") + read + written,
        output_tokens=_count(usage, "output_tokens"),
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=_count(usage.get("output_tokens_details"), "thinking_tokens"),
        hour_write_tokens=min(written, _count(usage.get("cache_creation"), "ephemeral_1h_input_tokens")),
    )


def service_tier(usage: Mapping[str, object]) -> str:
    """Return how an answer was served; "fast" in the fast mode, which is a speed to Anthropic and a tier to others."""
    return "fast" if usage.get("speed") == "fast" else text_in(usage, "service_tier")


def overhead_from_wire(usage: Mapping[str, object]) -> Usage | None:
    """Return the usage beside the answer, by compactions and advisors, which the sums in ``usage`` leave out."""
    iterations = usage.get("iterations")
    if not isinstance(iterations, list):
        return None
    beside = [each for each in objects(cast("object", iterations), "usage.iterations") if each.get("type") != "message"]
    return sum((usage_from_wire(each) for each in beside), Usage()) if beside else None


def _is_claude(model: object) -> bool:
    return "claude" in str(model).lower()


def _text(text: str) -> WireObject:
    return {"type": "text", "text": text}


def _user(text: str) -> WireObject:
    return {"role": "user", "content": [_text(text)]}


def _blocks(message: Message) -> list[WireObject]:
    return [block for part in message.parts if (block := part_to_block(part)) is not None]


def _returnable(blocks: list[WireObject]) -> list[WireObject]:
    """Return the last blocks of the assistant's before others speak as the API takes them back. It refuses thinking at
    the end, as in an answer that was cut off while the model was thinking."""
    while blocks and blocks[-1].get("type") in THINKING:
        blocks.pop()
    return blocks


def _end_without_space(last: WireObject) -> None:
    """Take the white space from the end of a request that ends with the assistant's text, which the model is to go on
    with: the API refuses it."""
    block = cast("list[WireObject]", last["content"])[-1]
    if last["role"] == "assistant" and block.get("type") == "text":
        block["text"] = str(block["text"]).rstrip()


def _message(where: str, role: Role, parts: Sequence[Part]) -> list[Message]:
    return [message_at(where, role, tuple(parts))] if parts else []


def _go_on_in_container(body: WireObject, messages: Sequence[Message]) -> None:
    """Name the container of the turn's last answer that has one: code may wait in it for results, and the API does not
    find it by itself. A turn ends with the user's next message, as containers expire. One in ``extra`` wins."""
    turn = takewhile(lambda message: message.role != "user", reversed(messages))
    named = (extra_fields(each.extra_json, WIRE, "messages").get(_CONTAINER) for each in turn if each.extra_json)
    id, given = next(filter(None, named), None), body.get(_CONTAINER)
    if id and given is None:
        body[_CONTAINER] = id
    elif id and isinstance(given, Mapping):  # what is to be loaded into one
        asked = cast("WireObject", given)
        body[_CONTAINER] = {**asked, "id": asked.get("id") or id}


def _max_tokens(options: ChatOptions) -> int:
    """Return the caller's limit, else the default, raised to leave room beside a thinking budget (which must be
    smaller)."""
    if options.max_tokens is not None:
        return options.max_tokens
    budget = field_of(options.extra.get("thinking"), "budget_tokens")
    return DEFAULT_MAX_TOKENS + (budget if isinstance(budget, int) else 0)


def _count(usage: object, name: str) -> int:
    value = field_of(usage, name)
    return value if isinstance(value, int) else 0
