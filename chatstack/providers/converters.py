"""Conversion of messages to and from the forms of the three APIs. No SDK is imported.

Messages from an API go back to it unchanged: fields without a counterpart here ride along. Pins, marks, annotations and
items of another API have no place in an API's form, and are dropped; ``to_json`` keeps all of it. What is read again is
the same objects, as long as anybody holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar, cast

import msgspec

from chatstack.errors import InputError
from chatstack.providers.anthropic.wire import request_from_wire as anthropic_from_wire
from chatstack.providers.anthropic.wire import request_to_wire as anthropic_to_wire
from chatstack.providers.extras import WireObject, as_list, as_object, as_string
from chatstack.providers.openai.chat_wire import messages_from_wire as chat_from_wire
from chatstack.providers.openai.chat_wire import messages_to_wire as chat_to_wire
from chatstack.providers.openai.responses_wire import item_type
from chatstack.providers.openai.responses_wire import messages_from_wire as responses_from_wire
from chatstack.providers.openai.responses_wire import messages_to_wire as responses_to_wire
from chatstack.values.interning import interned
from chatstack.values.messages import Message
from chatstack.values.mistakes import checked_messages
from chatstack.values.requests import ChatRequest

T = TypeVar("T")

Form: TypeAlias = Literal["chat", "messages", "responses"]
"""OpenAI chat completions, Anthropic messages, OpenAI Responses."""

BLOCKS: Mapping[Form, tuple[str, ...]] = {
    "chat": ("image_url", "input_audio", "file"),
    "messages": ("image", "document", "search_result", "container_upload", "thinking", "redacted_thinking"),
    "responses": ("input_text", "output_text", "input_image", "input_file", "input_audio"),
}
"""Types of content that not every form has; beside them Anthropic's ``..._use`` and ``..._result``."""
FORMS_OF: Mapping[str, tuple[Form, ...]] = {
    kind: tuple(form for form in BLOCKS if kind in BLOCKS[form]) for kinds in BLOCKS.values() for kind in kinds
}
"""The forms that have such a type."""
TOOL_BLOCKS = ("tool_use", "tool_result")
"""Endings of the types of Anthropic's blocks, those of its own tools included."""
CHAT_FIELDS = ("tool_calls", "function_call", "tool_call_id")
"""Fields of a message that only chat completions have."""

_ROLES = ("system", "developer", "user", "assistant")
"""Roles of a message among Responses items. Text of any other role must not become the model's."""

_READERS: dict[Form, str] = {
    "chat": "from_openai_chat",
    "messages": "from_anthropic",
    "responses": "from_openai_responses",
}
_TEXTS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "tool_use": ("id", "name"),
    "tool_result": ("tool_use_id",),
    "input_text": ("text",),
    "output_text": ("text",),
    "function_call": ("call_id", "name", "arguments"),
    "custom_tool_call": ("call_id", "name", "input"),
}
"""Fields that must be text, by type: without them calls and results could not be paired, or words would be lost."""


def from_openai_chat(messages: Sequence[object]) -> list[Message]:
    """Return the messages of a chat completion's ``messages``: dicts, the SDK's own objects, or both::

        history = from_openai_chat([{"role": "user", "content": "hello"}])

    Raises ``InputError``, naming the place, for what is malformed or of another API's form.
    """
    return naming_faults(lambda: interned(chat_from_wire(_checked(messages, "messages", "chat"))), "messages", messages)


def to_openai_chat(messages: Sequence[Message]) -> list[WireObject]:
    """Return the ``messages`` of a chat completion. Raises ``InputError`` for what this API has no form for."""
    return naming_faults(lambda: chat_to_wire(checked_messages(messages)), "messages", messages)


def from_openai_responses(items: str | Sequence[object]) -> list[Message]:
    """Return the messages of a Responses ``input``: text, or items as dicts or the SDK's own objects.

    The model's items in a row (reasoning, text, calls) are one message. ``instructions`` belong to the request, not to
    its messages. Raises ``InputError``, naming the place, for what is malformed or of another API's form.
    """
    given = [{"role": "user", "content": items}] if isinstance(items, str) else items
    return naming_faults(lambda: interned(responses_from_wire(_checked(given, "input", "responses"))), "input", given)


def to_openai_responses(messages: Sequence[Message]) -> list[WireObject]:
    """Return the ``input`` items of a Responses request. Raises ``InputError`` for what this API has no form for."""
    items = naming_faults(lambda: responses_to_wire(checked_messages(messages)), "messages", messages)
    for position, item in enumerate(items):
        if "type" not in item and "role" not in item:  # nothing that the API gave
            raise InputError(f"input[{position}]: a ProviderItem of OpenAI's without a type: nothing that it reads")
    return items


def from_anthropic(messages: Sequence[object], *, system: object = None) -> list[Message]:
    """Return the messages of Anthropic's ``messages``: dicts, the SDK's own objects, or both.

    ``system``, text or a list of blocks, becomes the system message at the head. Raises ``InputError``, naming the
    place, for what is malformed or of another API's form.
    """

    def read() -> list[Message]:
        body: WireObject = {"messages": _checked(messages, "messages", "messages")}
        if system:
            body["system"] = _plain(system, "system", "messages")
        return interned(anthropic_from_wire(body).messages)

    return naming_faults(read, "messages", messages)


def to_anthropic(messages: Sequence[Message]) -> WireObject:
    """Return ``messages``, and ``system`` where system messages lead, by name, as the API takes them::

        await anthropic.messages.create(model=..., max_tokens=..., **to_anthropic(history))

    It is a request to be sent: "Begin." stands before a history that begins with the assistant, and white space at the
    end of one that ends with its text is gone, as the API refuses both. So keep a history by ``to_json``;
    ``from_anthropic(**to_anthropic(history))`` reads what was sent. An empty history has no messages.
    """
    body = naming_faults(lambda: anthropic_to_wire(ChatRequest(checked_messages(messages))), "messages", messages)
    if not messages:
        return {"messages": []}
    return {name: body[name] for name in ("system", "messages") if name in body}


def naming_faults(convert: Callable[[], T], where: str = "", items: object = ()) -> T:
    """Return what ``convert`` makes of the ``items`` at ``where``.

    Raises ``InputError``, naming the place, for values that JSON cannot express, or that nest too deeply. It is no
    context manager: the exception, which holds the text, would be in the chain of the ``InputError``.
    """
    try:
        return convert()
    except RecursionError:
        fault = "nested too deeply"
    except UnicodeEncodeError:
        fault = "holds half a character (a lone surrogate) where none can be"
    listed = cast("Sequence[object]", items) if isinstance(items, list | tuple) else ()
    places = (f"{where}[{position}]: " for position, each in enumerate(listed) if not _is_json(each))
    raise InputError(next(places, "") + fault)


def _is_json(item: object) -> bool:
    try:
        msgspec.json.encode(item, enc_hook=_fields)
    except (RecursionError, TypeError, UnicodeEncodeError):
        return False
    return True


def _checked(given: object, where: str, form: Form) -> list[object]:
    """Return the items as plain JSON values, after a check for those that the reader would misinterpret."""
    items = as_list(given, where)
    for position, each in enumerate(items):
        if isinstance(each, Message):
            raise InputError(f"{where}[{position}]: is a Message of chatstack already")
    found = cast("list[object]", _plain(items, where, form))
    for position, each in enumerate(found):
        item = as_object(each, f"{where}[{position}]")
        if form != "chat":
            _check_item(item, f"{where}[{position}]", form)
        _check_block(item, f"{where}[{position}]", form, is_message=True)
    return found


def _check_item(item: Mapping[str, object], where: str, form: Form) -> None:
    for name in CHAT_FIELDS:
        if name in item:
            raise InputError(f"{where}.{name}: is of OpenAI's chat completions; read it with from_openai_chat")
    if form == "responses" and item_type(item) == "message" and item.get("role") not in _ROLES:
        raise InputError(f"{where}.role: expected one of {', '.join(_ROLES)}")


def _check_block(value: object, where: str, form: Form, *, is_message: bool = False) -> None:
    fields = as_object(value, where)
    kind = fields.get("type")
    is_mistrals = form == "chat" and kind == "thinking" and isinstance(fields.get("thinking"), list)
    if isinstance(kind, str) and not is_mistrals:
        _check_form(kind, f"{where}.type", form)
        for name in _TEXTS.get(kind, ()) if form != "chat" else ():
            as_string(fields.get(name), f"{where}.{name}")
    content = fields.get("content")
    if isinstance(content, list | tuple) and (is_message or kind == "tool_result"):
        for position, each in enumerate(cast("Sequence[object]", content)):
            _check_block(each, f"{where}.content[{position}]", form)


def _check_form(kind: str, where: str, form: Form) -> None:
    of = ("messages",) if kind.endswith(TOOL_BLOCKS) else FORMS_OF.get(kind, (form,))
    if form not in of:
        raise InputError(f"{where}: {kind!r} is of another API; read it with {_READERS[of[0]]}")


def _plain(value: object, where: str, form: Form) -> object:
    """Return a value as plain JSON; of the SDKs' objects only fields that were set. Chat completions refuse some of
    their own nulls."""
    try:
        return msgspec.to_builtins(value, enc_hook=_set_fields if form == "chat" else _fields, builtin_types=(bytes,))
    except TypeError as error:
        if isinstance(value, list) and where.isidentifier():  # once more, one by one, to name the item
            for position, each in enumerate(cast("list[object]", value)):
                _plain(each, f"{where}[{position}]", form)
        raise InputError(f"{where}: holds something that JSON has no form for") from error


def _fields(value: object, **options: bool) -> object:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, object]", value))
    to_dict = getattr(value, "to_dict", None)
    if not callable(to_dict) or isinstance(value, type):
        raise TypeError
    return to_dict(**options)


def _set_fields(value: object) -> object:
    return _fields(value, exclude_none=True)
