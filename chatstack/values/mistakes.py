"""Remedies for common mistakes: the end of an error, which says what to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import CoroutineType

from chatstack.values.errors import InputError
from chatstack.values.messages import Message
from chatstack.values.parts import PART_TYPES

_OF_APIS = "; convert with chatstack.from_openai_chat(messages) (or from_openai_responses, from_anthropic)"
_BY_NAME = {
    "ChatResponse": "; add what it added: history += response.messages",
    "ParsedResponse": "; add what it added: history += response.messages",
    "ChatStream": "; add what it added: history += (await stream.response()).messages",
}


def check_messages(given: Iterable[object]) -> None:
    """Raise ``InputError`` for the first that is no ``Message``, naming its position, its type and the remedy."""
    for position, each in enumerate(given):
        if not isinstance(each, Message):
            raise InputError(f"messages[{position}]: expected Message, got {kind_of(each)}{remedy_for(each)}")


def check_list(given: object) -> None:
    """Raise ``InputError`` for what stands in the place of a list of messages, with the remedy."""
    if not isinstance(given, list | tuple):
        raise InputError(f"messages: expected a list of Message, got {kind_of(given)}{remedy_for(given)}")


def checked_messages(given: Sequence[Message]) -> tuple[Message, ...]:
    """Return a list of messages as a tuple. Raises ``InputError`` for anything else, with the remedy."""
    check_list(given)
    check_messages(given)
    return tuple(given)


def kind_of(value: object) -> str:
    """Return the name of a value's type, or of the class that it is."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def remedy_for(value: object) -> str:
    """Return advice for a value that stands where messages are wanted, "; ..."; "" if there is none."""
    if isinstance(value, CoroutineType):
        return "; await it first"
    package = type(value).__module__.partition(".")[0]
    if isinstance(value, Mapping) or package in ("openai", "anthropic"):
        return _OF_APIS
    if package == "langchain_core":
        return "; from_langchain(...) of the plugin chatstack-langgraph makes messages of LangChain's"
    if isinstance(value, str):
        return "; write Message.user(text)"
    if type(value) in PART_TYPES:
        return "; a part stands in a message: Message.user(part), Message.assistant(part)"
    if isinstance(value, list | tuple):
        return "; add several with history += messages"
    return _BY_NAME.get(type(value).__name__, "")
