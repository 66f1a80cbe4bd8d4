"""Detection of the form of a recorded conversation, from signs in its content.

Every sign allows some of the forms, and all signs have to agree:

================================================================  =============================================
sign                                                              allows
================================================================  =============================================
``messages`` in the object                                        chat, messages
``input`` in it, and no ``messages``                              responses
``system`` beside (text, or a list of blocks)                     messages
``functions`` beside                                              chat
a tool with ``function``; with ``input_schema``;                  chat; messages;
of type ``function`` with a ``name`` of its own                   responses
role ``tool`` or ``function``; ``developer``                      chat; chat, responses
``tool_calls``, ``function_call``, ``tool_call_id``, ``refusal``  chat
in a message; ``content`` that is null
``stop_reason`` in a message                                      messages
an item with a ``type`` and no role; a message that says          responses
``type: message``, and no ``stop_reason``
a block ``tool_use``, ``tool_result``, ``thinking``, ``image``,   messages
``document`` and their like
a block ``image_url``, ``input_audio``, ``file``                  chat
a block ``input_text``, ``output_text``, ``input_image``,         responses
``input_file``
a block ``text``; ``refusal``                                     chat, messages; chat, responses
================================================================  =============================================

Of the items of a bare list at least one has to be of a type that Responses have.

What is not in the table allows all. Where more than one form is left, the conversation reads the same in each of them,
save what rides along for one wire alone, and it is taken for chat; but for messages, if that is one of them, where
``model`` names a Claude and no system message stands at the head: Anthropic has it beside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast

from chatstack.errors import InputError
from chatstack.providers.converters import CHAT_FIELDS, FORMS_OF, TOOL_BLOCKS, Form
from chatstack.providers.openai.responses_wire import item_type

_NAMES: dict[Form, str] = {
    "chat": "OpenAI chat messages",
    "messages": "Anthropic messages",
    "responses": "OpenAI Responses items",
}
FORMS_TOLD = "{}, {} or {}".format(*_NAMES.values())

_Forms: TypeAlias = frozenset[Form]
_CHAT: _Forms = frozenset({"chat"})
_MESSAGES: _Forms = frozenset({"messages"})
_RESPONSES: _Forms = frozenset({"responses"})

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_OF_ROLES: dict[str, _Forms] = {"tool": _CHAT, "function": _CHAT, "developer": _CHAT | _RESPONSES}
_OF_CHAT = (*CHAT_FIELDS, "refusal")
_OF_BLOCKS: dict[str, _Forms] = {
    "text": _CHAT | _MESSAGES,
    "refusal": _CHAT | _RESPONSES,
    **{kind: frozenset(forms) for kind, forms in FORMS_OF.items()},
}
_ITEMS = ("message", "reasoning", "item_reference", "compaction")
_ITEM_ENDINGS = ("_call", "_call_output", "_tools", "_approval_request", "_approval_response")
"""Types of Responses items, and endings of those of its tools."""
_TYPES_TOLD, _TYPE_CHARS = 5, 40
_AT_THE_SERVER = ("previous_response_id", "conversation")


def form_of(items: object, beside: Mapping[str, object]) -> Form:
    """Return the form of messages or items; ``beside`` is the object that they were in, empty for a bare list.

    Raises ``InputError``, naming the place, for a value that has not the shape of a conversation, mixes forms, or
    refers to data that only the server has.
    """
    evidence = _Evidence()
    where = "input" if "input" in beside and "messages" not in beside else "messages"
    if where in beside:
        evidence.add(_RESPONSES if where == "input" else _CHAT | _MESSAGES, where)
    _look_beside(beside, evidence)
    if where == "input" and isinstance(items, str):
        listed: list[object] = []
    elif isinstance(items, list):
        listed = cast("list[object]", items)
    else:
        raise InputError(f"{where}: expected a list of messages, got {kind_of(items)}")
    if not items:
        raise InputError("the conversation has no messages")
    for position, item in enumerate(listed):
        _look_at_item(item, where, position, evidence)
    form = _chosen(evidence.forms, listed, beside)
    if form == "responses":
        if where not in beside:
            _check_known(listed)
        _check_whole(listed, beside, where)
    return form


def is_item(value: object) -> bool:
    """Return True for a message or item: a list that begins with one is one conversation, not several."""
    if not isinstance(value, dict) or "messages" in value:
        return False
    return "role" in value or "call_id" in value or ("type" in value and "input" not in value)


def kind_of(value: object) -> str:
    """Return the kind of a value, for an error that does not quote it."""
    return "null" if value is None else type(value).__name__


class _Evidence:
    """The forms that all signs so far allow, and which sign ruled out the others."""

    def __init__(self) -> None:
        self.forms: _Forms = frozenset(_NAMES)
        self._taken: dict[Form, tuple[str, _Forms]] = {}

    def add(self, allowed: _Forms, *place: object) -> None:
        """Add a sign. The ``place`` is in pieces, joined only if needed: most signs rule out nothing new."""
        if self.forms <= allowed:
            return
        told = "".join(map(str, place))
        left = self.forms & allowed
        if not left:
            before, others = self._taken[min(allowed)]
            raise InputError(
                f"mixes forms: {told} is of {_named(allowed)}, but {before} is of {_named(others)}; "
                f"a conversation has to be all {FORMS_TOLD}"
            )
        for form in self.forms - left:
            self._taken[form] = (told, allowed)
        self.forms = left


def _named(forms: _Forms) -> str:
    return " or ".join(name for form, name in _NAMES.items() if form in forms)


def _look_beside(beside: Mapping[str, object], evidence: _Evidence) -> None:
    system, tools = beside.get("system"), beside.get("tools")
    if system and isinstance(system, (str, list)):
        evidence.add(_MESSAGES, "system")
    if beside.get("functions"):
        evidence.add(_CHAT, "functions")
    if tools is not None and not isinstance(tools, list):
        raise InputError(f"tools: expected a list, got {kind_of(tools)}")
    for position, tool in enumerate(cast("list[object]", tools or [])):
        if not isinstance(tool, dict):
            raise InputError(f"tools[{position}]: expected an object, got {kind_of(tool)}")
        if "function" in tool:
            evidence.add(_CHAT, "tools[", position, "].function")
        elif "input_schema" in tool:
            evidence.add(_MESSAGES, "tools[", position, "].input_schema")
        elif cast("dict[str, object]", tool).get("type") == "function" and "name" in tool:
            evidence.add(_RESPONSES, "tools[", position, "].name")


def _look_at_item(item: object, where: str, position: int, evidence: _Evidence) -> None:
    if not isinstance(item, dict):
        raise InputError(f"{where}[{position}]: expected an object, got {kind_of(item)}")
    fields = cast("dict[str, object]", item)
    role, kind = fields.get("role"), fields.get("type")
    if role is None and isinstance(kind, str) and kind != "message":
        if kind in _OF_BLOCKS or kind.endswith(TOOL_BLOCKS):
            raise InputError(f"{where}[{position}].type: a {kind} block stands where a message is expected")
        evidence.add(_RESPONSES, where, "[", position, "].type")
        return
    if not isinstance(role, str):
        raise InputError(f"{where}[{position}].role: expected text, got {kind_of(role)}")
    if role not in _ROLES:
        raise InputError(f"{where}[{position}].role: expected one of {', '.join(_ROLES)}")
    if role in _OF_ROLES:
        evidence.add(_OF_ROLES[role], where, "[", position, "].role")
    for name in _OF_CHAT:
        if name in fields:
            evidence.add(_CHAT, where, "[", position, "].", name)
    if "stop_reason" in fields:
        evidence.add(_MESSAGES, where, "[", position, "].stop_reason")
    elif kind == "message":
        evidence.add(_RESPONSES, where, "[", position, "].type")
    _look_at_content(fields.get("content"), f"{where}[{position}].content", evidence)


def _look_at_content(content: object, where: str, evidence: _Evidence) -> None:
    if isinstance(content, str):
        return
    if content is None:
        evidence.add(_CHAT, where, " that is null")
        return
    if not isinstance(content, list):
        raise InputError(f"{where}: expected text or a list, got {kind_of(content)}")
    for position, block in enumerate(cast("list[object]", content)):
        if not isinstance(block, dict):
            raise InputError(f"{where}[{position}]: expected an object, got {kind_of(block)}")
        kind = cast("dict[str, object]", block).get("type")
        if not isinstance(kind, str):
            raise InputError(f"{where}[{position}].type: expected text, got {kind_of(kind)}")
        allowed = _MESSAGES if kind.endswith(TOOL_BLOCKS) else _OF_BLOCKS.get(kind)
        if allowed is not None:
            evidence.add(allowed, where, "[", position, "].type ", kind)


def _chosen(forms: _Forms, items: Sequence[object], beside: Mapping[str, object]) -> Form:
    if len(forms) == 1:
        return next(iter(forms))
    model, first = beside.get("model"), cast("dict[str, object]", items[0])
    names_claude = isinstance(model, str) and "claude" in model.lower()
    return "messages" if "messages" in forms and names_claude and first.get("role") != "system" else "chat"


def _check_known(items: Sequence[object]) -> None:
    """Raise ``InputError`` if a bare list has no item that Responses have: other lists of objects have types, too."""
    kinds = [str(item_type(cast("dict[str, object]", item))) for item in items]
    if not any(kind in _ITEMS or kind.endswith(_ITEM_ENDINGS) for kind in kinds):
        told = ", ".join(repr(kind[:_TYPE_CHARS]) for kind in list(dict.fromkeys(kinds))[:_TYPES_TOLD])
        raise InputError(f"not a conversation: found a list of objects of type {told}; expected messages: {FORMS_TOLD}")


def _check_whole(items: Sequence[object], beside: Mapping[str, object], where: str) -> None:
    """Raise ``InputError`` unless the whole conversation is there: Responses can keep a part at the server."""
    for name in _AT_THE_SERVER:
        if beside.get(name):
            raise InputError(
                f"{name}: what came before is only at the server; record whole conversations to replay them"
            )
    for position, item in enumerate(items):
        if cast("dict[str, object]", item).get("type") == "item_reference":
            raise InputError(f"{where}[{position}]: an item_reference is of an item that only the server has")
