"""Records: typed, versioned, and read back as they were written, also those of the first version."""

from __future__ import annotations

import base64
import pickle
from decimal import Decimal

import msgspec
import pytest
from dbos import PortableWorkflowError

from chatstack import IterationRecord, Message, StoreError, ToolCall, ToolResult, Usage
from chatstack.loop.journal import IterationEnded, IterationStarted, ModelAnswered, ToolEnded, ToolStarted
from chatstack_dbos import RecordSerializer, RunEnded
from chatstack_dbos.records import RunRequest, Step

CALL = ToolCall("1", "look_up", '{"word": "tram"}')
OF_VERSION_1: list[tuple[str, object]] = [
    (
        '{"record":"request","name":"reports","given":{"topic":"trams"},"conversation_id":null,"deadline":12.5,"version":1}',
        RunRequest("reports", {"topic": "trams"}, None, 12.5),
    ),
    (
        '{"record":"step","number":0,"entry":{"type":"iteration_started","iteration":0,"prompt":[{"role":"user",'
        '"parts":[{"type":"text","text":"Write."}]}],"loop":"loop"},"version":1}',
        Step(0, IterationStarted(0, (Message.user("Write."),), loop="loop")),
    ),
    (
        '{"record":"step","number":1,"entry":{"type":"model_answered","messages":[{"role":"assistant","parts":[{"type":'
        '"tool_call","id":"1","name":"look_up","arguments":"{\\"word\\": \\"tram\\"}"}]}],"usage":{"input_tokens":7},'
        '"overhead_usage":{},"finish_reason":"tool_calls","model":"m"},"version":1}',
        Step(1, ModelAnswered((Message.assistant(CALL),), Usage(7), Usage(), "tool_calls", "m")),
    ),
    (
        '{"record":"step","number":2,"entry":{"type":"tool_started","round":0,"position":0},"version":1}',
        Step(2, ToolStarted(0, 0)),
    ),
    (
        '{"record":"step","number":3,"entry":{"type":"tool_ended","round":0,"position":0,"result":{"call_id":"1",'
        '"name":"look_up","output":"a vehicle"}},"version":1}',
        Step(3, ToolEnded(0, 0, ToolResult("1", "look_up", "a vehicle"))),
    ),
    (
        '{"record":"step","number":4,"entry":{"type":"iteration_ended","record":{"iteration":0},"last_tool_results":[],'
        '"reason":"completed"},"version":1}',
        Step(4, IterationEnded(IterationRecord(iteration=0), (), reason="completed")),
    ),
    (
        '{"record":"ended","reason":"deadline","text":"done","cost":"0.25"}',
        RunEnded(reason="deadline", text="done", cost=Decimal("0.25")),
    ),
]


@pytest.mark.parametrize(("text", "record"), OF_VERSION_1)
def test_a_record_of_the_first_version_is_read_and_comes_back(text: str, record: object) -> None:
    serializer = RecordSerializer()
    assert serializer.deserialize(text) == record
    assert serializer.deserialize(serializer.serialize(record)) == record


def test_the_arguments_of_a_workflow_and_plain_values_come_back() -> None:
    serializer, request = RecordSerializer(), RunRequest("reports")
    given = serializer.deserialize(serializer.serialize({"args": (request, 3), "kwargs": {"a": [1]}}))
    assert given == {"args": (request, 3), "kwargs": {"a": [1]}}
    for value in (None, 3, "text", [1, {"a": None}], {"args": 1}):
        assert serializer.deserialize(serializer.serialize(value)) == value


def test_an_exception_is_kept_by_name_and_text() -> None:
    serializer = RecordSerializer()
    error = serializer.deserialize(serializer.serialize(ValueError("wrong")))
    assert isinstance(error, PortableWorkflowError)
    assert (error.name, error.message) == ("ValueError", "wrong")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"record":"else","version":1}',
        '{"record":"request","name":5,"version":1}',
        '{"record":"request","name":"a","more":1,"version":1}',
        '{"record":"step","number":0,"entry":{"type":"model_answered"},"version":1}',
        '{"record":"ended","reason":"bored"}',
        '{"record":"request","name":"a","version":2}',
        '{"record":"request","name":"a","version":true}',
        '{"args":3,"kwargs":{}}',
        "[" * 100_000,
        base64.b64encode(pickle.dumps(ValueError("wrong"))).decode(),
    ],
)
def test_what_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(StoreError):
        RecordSerializer().deserialize(text)


def test_what_json_cannot_say_is_refused() -> None:
    for value in (object(), {1: lambda: None}, float):
        with pytest.raises(StoreError, match="cannot be written"):
            RecordSerializer().serialize(value)


def test_records_are_no_larger_than_they_have_to_be() -> None:
    text = RecordSerializer().serialize(Step(2, ToolStarted(0, 0)))
    assert msgspec.json.decode(text) == {
        "record": "step",
        "number": 2,
        "entry": {"type": "tool_started", "round": 0, "position": 0},
        "version": 1,
    }
