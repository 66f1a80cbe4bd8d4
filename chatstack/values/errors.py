"""The root of all errors, and the error that values raise. What they carry is typed in ``chatstack.errors``."""

from __future__ import annotations

from typing import Any


class ChatStackError(Exception):
    """Root of the tree: ``except ChatStackError`` catches whatever chatstack raises itself.

    Where it ends a turn, streamed or not, ``messages`` holds what the turn had added until then, calls and results in
    whole pairs, ``usage`` and ``overhead_usage`` (of summaries) what has been paid for; None where nothing is known.
    """

    __module__ = "chatstack.errors"

    messages: tuple[Any, ...] = ()
    usage: Any = None
    overhead_usage: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restored, (type(self), self.args, self.__dict__))


def _restored(kind: type[ChatStackError], args: tuple[object, ...], state: dict[str, object]) -> ChatStackError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InputError(ChatStackError, ValueError):
    """An argument of the wrong type or shape, also a ``ValueError``; says where and what it was, never its text."""

    __module__ = "chatstack.errors"
