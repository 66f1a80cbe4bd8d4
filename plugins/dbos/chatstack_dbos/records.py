"""Records of durable runs, and the serializer that keeps them as typed, versioned JSON text."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Literal, TypeAlias, TypeGuard

import msgspec
from dbos import PortableWorkflowError, Serializer

from chatstack import IterationRecord, Message, StoreError, Usage
from chatstack.loop.journal import Entry
from chatstack.loop.results import EndReason

VERSION = 1
"""Version of all records below. A record of a later version is refused: its run is for the workers that can read it."""

RunReason: TypeAlias = EndReason | Literal["deadline"]
"""The reason why a run ended: those of ``IterativeResult``, and ``deadline``. A turn is ``answered``, ``cancelled``,
``deadline`` or ``error``."""


class RunRequest(msgspec.Struct, frozen=True, tag="request", tag_field="record", forbid_unknown_fields=True):
    """What a run is started with: the name under which workers serve it, what was given, the conversation of a turn,
    and the deadline by the database's clock, in seconds since 1970."""

    name: str
    given: Any = None
    conversation_id: str | None = None
    deadline: float | None = None
    version: int = VERSION


class Step(msgspec.Struct, frozen=True, tag="step", tag_field="record", forbid_unknown_fields=True):
    """One step of a run: an entry of its journal. The first one has the number 0."""

    number: int
    entry: Entry
    version: int = VERSION


class RunEnded(
    msgspec.Struct, frozen=True, kw_only=True, tag="ended", tag_field="record", omit_defaults=True,
    forbid_unknown_fields=True,
):  # fmt: skip
    """The outcome of a run: why it ended, and what was done. ``text`` is the model's last text.

    A loop has ``iterations``, a turn has ``messages``: what to append to the history. ``cost`` is in dollars, None if
    no cost was limited. ``error`` is the type and the text of the exception, for the reason ``error``.
    """

    reason: RunReason
    text: str = ""
    iterations: tuple[IterationRecord, ...] = ()
    messages: tuple[Message, ...] = ()
    usage: Usage = Usage()
    overhead_usage: Usage = Usage()
    cost: Decimal | None = None
    error: str = ""
    version: int = VERSION


class _Failed(msgspec.Struct, frozen=True, tag="failed", tag_field="record", forbid_unknown_fields=True):
    """An exception that a workflow or a step of DBOS ended with, by its name and its text."""

    name: str
    message: str
    version: int = VERSION


Record: TypeAlias = RunRequest | Step | RunEnded | _Failed
_Plain: TypeAlias = dict[str, Any] | list[Any] | str | int | float | bool | None


class RecordSerializer(Serializer):
    """What DBOS writes as JSON text: records of runs, read back typed; and plain JSON for workflows of your own.

    Nothing is pickled, and nothing that was pickled is read. Raises ``StoreError`` for a record that does not fit, and
    for a value that JSON cannot say.
    """

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._decode: Callable[[str], _Plain] = msgspec.json.Decoder().decode

    def name(self) -> str:
        """Return the name that DBOS keeps beside each value."""
        return "chatstack_json"

    def serialize(self, data: Any) -> str:
        """Return the JSON text of a record, of an exception (its name and text), or of a plain value."""
        if isinstance(data, BaseException):
            data = _Failed(type(data).__name__, str(data))
        try:
            return self._encode(data).decode()
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise StoreError(f"{type(data).__name__}: it cannot be written as JSON: {error}") from error

    def deserialize(self, serialized_data: str) -> Any:
        """Return the record, the exception or the plain value that a text stands for."""
        try:
            found = self._decode(serialized_data)
            if isinstance(found, dict) and found.keys() == {"args", "kwargs"}:  # those of a workflow
                return {"args": tuple(_typed(each) for each in found["args"]), "kwargs": found["kwargs"]}
            record = _typed(found)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise StoreError(f"a record cannot be read: {error}") from error
        return PortableWorkflowError(record.message, record.name) if isinstance(record, _Failed) else record


def _typed(value: Any) -> object:
    """Return the record that a JSON object stands for; another value as it is."""
    if not _is_record(value):
        return value
    version = value.get("version", VERSION)
    if type(version) is not int or not 1 <= version <= VERSION:
        raise StoreError(f"a record has the version {version!r}, and this package reads up to {VERSION}: update it")
    return msgspec.convert(value, Record)


def _is_record(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and "record" in value
