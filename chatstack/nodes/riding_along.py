"""Data that rides along: what our messages carry for another library's, and the other way round."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from chatstack.errors import InputError
from chatstack.nodes.remainder import Json, as_object, completed, json_text, object_in
from chatstack.values.messages import Message


def json_of(message: Message) -> dict[str, Json]:
    """Return the message as JSON data, to take a remainder of."""
    return cast("dict[str, Json]", _with_lists(msgspec.to_builtins(message)))


def completed_message(plain: Message, rest: Json) -> Message:
    """Return the message with its remainder applied; the plain message if the result is no valid message.

    The remainder may come from outside, so it can turn no message into a system message, and no user message into an
    assistant's.
    """
    if not isinstance(rest, dict):
        return plain
    try:
        whole = msgspec.convert(completed(json_of(plain), rest), Message)
    except (msgspec.ValidationError, InputError, RecursionError):
        return plain
    forged = ("system", "assistant") if plain.role == "user" else ("system",)
    return plain if whole.role != plain.role and whole.role in forged else whole


def with_rest(message: Message, wire: str, rest: dict[str, Json], where: str) -> Message:
    """Return the message with the remainder stored under the wire's name in ``extra_json``, beside other wires' data.

    Raises ``InputError`` naming the place for what JSON cannot hold.
    """
    own: dict[str, Json] = {"rest": rest}
    others: dict[str, Json] = {}
    if message.extra_json:
        own["was"] = message.extra_json  # to restore the same text
        others = object_in(message.extra_json)
    return msgspec.structs.replace(message, extra_json=json_text({**others, wire: own}, where))


def without_rest(message: Message, wire: str) -> tuple[Message, Json]:
    """Return the message as it was before ``with_rest``, and what that added; None if it added nothing."""
    own = as_object(object_in(message.extra_json).get(wire)) if message.extra_json else None
    if own is None or "rest" not in own:
        return message, None
    was = own.get("was", "")
    return msgspec.structs.replace(message, extra_json=was if isinstance(was, str) else ""), own["rest"]


def _with_lists(value: Any) -> Json:
    """Return the value with lists instead of tuples."""
    fields = as_object(value)
    if fields is not None:
        return {name: _with_lists(each) for name, each in fields.items()}
    if isinstance(value, tuple | list):
        return [_with_lists(each) for each in cast("list[Any]", cast("object", value))]
    return value
