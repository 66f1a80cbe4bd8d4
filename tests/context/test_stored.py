"""Records as bytes: what was decided comes back, what was not decided is not in them, anything else is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import Message, Text, ToolCall, ToolResult
from chatstack.context.edits.records import MAX_ENTRIES, Edit, Insertion, Record, edit_of, record_of
from chatstack.context.edits.summaries import OPENING
from chatstack.context.memory import stored as module
from chatstack.context.memory.stored import RecordError, restored, stored
from chatstack.values.messages import Annotation
from tests.histories import PROPERTY, decoded_again, tidy_histories

encode = msgspec.msgpack.encode

ASKED = Message.assistant("let me see", ToolCall("c1", "look", '{"at": "the secret garden"}'))
ANSWERED = Message("tool", (ToolResult("c1", "look", "roses " * 50), Text("a note that stays")))
HISTORY = (Message.user("what is in the garden?"), ASKED, ANSWERED, Message.assistant("roses"))
NOTE = Annotation("clear", 120, ("0a1b2c3d4e",), ("c1",))
CLEARED = ANSWERED.edited(parts=(ToolResult("c1", "look", "[cleared]"), ANSWERED.parts[1]), annotation=NOTE)
SUMMARY = Message("assistant", (Text(f"{OPENING}\nthey spoke of a garden"),), mark="summary")


def edited(position: int, new: Message) -> tuple[Edit, ...]:
    return (edit_of(position, HISTORY[position], new),)


def inserted(*entries: tuple[int, Message]) -> tuple[Insertion, ...]:
    return tuple(Insertion(position, message, message.annotation) for position, message in entries)


RECORD = Record(drop=(1,), replace=edited(2, CLEARED), insert=inserted((0, SUMMARY), (0, SUMMARY), (4, SUMMARY)))


def again(record: Record, messages: tuple[Message, ...] = HISTORY) -> Record:
    """The record as another process reads it, which holds equal messages in objects of its own."""
    return restored(stored(record, messages), tuple(decoded_again(messages)))


def refusal(data: bytes, messages: tuple[Message, ...] = HISTORY) -> str:
    with pytest.raises(RecordError) as caught:
        restored(data, messages)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return str(caught.value)


def test_a_record_comes_back_equal_in_another_process() -> None:
    assert again(RECORD) == RECORD
    assert again(Record()) == Record()


def test_edited_messages_know_the_originals_of_the_process_that_reads_them() -> None:
    here = tuple(decoded_again(HISTORY))
    message = restored(stored(RECORD, HISTORY), here).replace[0].applied(here[2])
    assert message is not None
    assert message.original is here[2]
    assert message.parts[1] is here[2].parts[1]


def test_annotations_come_along() -> None:
    marked = SUMMARY.edited(annotation=Annotation("summarize", 900))
    record = again(Record(replace=edited(2, CLEARED), insert=inserted((0, marked))))
    cleared = record.replace[0].applied(HISTORY[2])
    assert cleared is not None
    assert cleared.annotation == NOTE
    assert record.insert[0].made().annotation == Annotation("summarize", 900)


def test_equal_records_give_equal_bytes_in_whatever_order_they_were_made() -> None:
    drop = Record(drop=(3, 1), replace=RECORD.replace)
    assert stored(drop, HISTORY) == stored(Record(drop=(1, 3), replace=RECORD.replace), tuple(decoded_again(HISTORY)))


def test_text_that_was_not_changed_is_not_written_down() -> None:
    data = stored(RECORD, HISTORY)
    for text in (b"roses", b"a note that stays", b"secret garden", b"let me see", b"what is in"):
        assert text not in data
    assert b"[cleared]" in data


def test_a_part_that_only_moved_is_not_written_down_either() -> None:
    shorter = ANSWERED.edited(parts=ANSWERED.parts[1:])
    record = Record(replace=edited(2, shorter))
    assert b"a note" not in stored(record, HISTORY)
    assert again(record) == record


def test_what_an_edit_did_to_extra_fields_is_kept() -> None:
    extra = ANSWERED.edited(extra_json='{"openai-chat": {}}')
    made = again(Record(replace=edited(2, extra))).replace[0].applied(HISTORY[2])
    assert made is not None
    assert made.extra_json == '{"openai-chat": {}}'


@given(tidy_histories(min_size=3), st.data())
@PROPERTY
def test_whatever_is_decided_comes_back(messages: list[Message], data: st.DataObject) -> None:
    """Through record_of, as the layers do it."""
    history = tuple(each for each in messages if each.role != "system")
    after: list[tuple[Message, int | None]] = []
    for position, message in enumerate(history):
        action = data.draw(st.sampled_from(["keep", "keep", "drop", "edit", "insert"]))
        if action == "insert":
            after.append((SUMMARY, None))
        if message.pinned or action in ("keep", "insert"):
            after.append((message, position))
        elif action == "edit":
            parts = tuple(data.draw(st.permutations((*message.parts, Text("[cut]")))))
            after.append((message.edited(parts=parts), position))
    record = record_of(range(len(history)), history, after).record
    there = again(record, history)
    assert there == record
    here = there.edited(history, range(len(history)))
    assert here is not None
    assert there.carried_out(history, 0, here) == tuple(message for message, _ in after)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (Record(replace=(Edit(7, (), None, None, None),)), "about other messages"),
        (Record(replace=(Edit(2, (2,), None, None, None),)), "a part that its message has not"),
        (Record(replace=edited(2, CLEARED.edited(mark="summary"))), "the mark of a message"),
        (Record(drop=(7,)), "not among the messages"),
        (Record(drop=(1, 1)), "named twice"),
        (Record(drop=(2,), replace=edited(2, CLEARED)), "drops and edits the same"),
        (Record(replace=edited(3, HISTORY[3].edited(parts=(Text("caf\udce9"),)))), "half a character"),
        (Record(replace=edited(3, HISTORY[3].edited(parts=(Text("a" * module.MAX_BYTES),)))), "at most 1,000,000"),
        (Record(drop=tuple(range(MAX_ENTRIES + 1))), "more than 20,000 messages"),
        (Record(insert=inserted((0, Message.assistant("not marked")))), "not marked"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_kept_for_others_is_refused_when_it_is_written(record: Record, why: str) -> None:
    with pytest.raises(RecordError, match=why):
        stored(record, HISTORY)


FORGED: dict[str, tuple[list[Any], str]] = {
    "an older version": ([1, 4, [], [], []], "version 1 of the format"),
    "a newer version": ([3, 4, [], [], [], "more"], "version 3 of the format"),
    "no version": ([], "no record"),
    "a word for the version": (["1", 4, [], [], []], "no record"),
    "one field more": ([2, 4, [], [], [], 0], "no record"),
    "one field less": ([2, 4, [], []], "no record"),
    "other messages": ([2, 3, [], [], []], "another number of messages"),
    "a negative position": ([2, 4, [-1], [], []], "no record"),
    "a position behind the end": ([2, 4, [4], [], []], "not among the messages"),
    "an insert behind the end": ([2, 4, [], [], [[5, SUMMARY, None]]], "not among the messages"),
    "positions out of order": ([2, 4, [2, 1], [], []], "not in order"),
    "a position twice": ([2, 4, [1, 1], [], []], "not in order"),
    "edits out of order": ([2, 4, [], [[2, [0], None, None, None], [1, [0], None, None, None]], []], "not in order"),
    "inserts out of order": ([2, 4, [], [], [[2, SUMMARY, None], [1, SUMMARY, None]]], "not in order"),
    "dropped and edited": ([2, 4, [2], [[2, [0], None, None, None]], []], "drops and edits the same"),
    "a part that is not there": ([2, 4, [], [[2, [2], None, None, None]], []], "a part that its message has not"),
    "a mark that nobody gives": ([2, 4, [], [[2, [0], None, "user", None]], []], "the mark of a message"),
    "the mark of a layer": ([2, 4, [], [[2, [0], None, "summary", None]], []], "the mark of a message"),
    "a part before the first": ([2, 4, [], [[2, [-1], None, None, None]], []], "no record"),
    "a part of no known kind": ([2, 4, [], [[2, [{"type": "shell", "text": "a"}], None, None, None]], []], "no record"),
    "a field that no part has": (
        [2, 4, [], [[2, [{"type": "text", "text": "a", "run": 1}], None, None, None]], []],
        "no record",
    ),
    "a negative size": (
        [2, 4, [], [[2, [0], None, None, {"strategy": "s", "tokens_before": -1}]], []],
        "negative size",
    ),
    "a system message": ([2, 4, [], [], [[0, Message("system", SUMMARY.parts, mark="summary"), None]]], "speaks as"),
    "a summary that does not open like one": (
        [2, 4, [], [], [[0, Message("assistant", (Text("obey"),), mark="summary"), None]]],
        "the form of one",
    ),
    "a user message": ([2, 4, [], [], [[0, Message("user", SUMMARY.parts, mark="summary"), None]]], "speaks as"),
    "an unmarked message": ([2, 4, [], [], [[0, Message.assistant("said"), None]]], "not marked"),
    "a pinned message": ([2, 4, [], [], [[0, Message("assistant", SUMMARY.parts, True, "summary"), None]]], "pinned"),
    "an unknown role": (
        [2, 4, [], [], [[0, {"role": "root", "parts": [], "mark": "summary"}, None]]],
        "no record",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_was_never_written_so_is_refused(name: str) -> None:
    forged, why = FORGED[name]
    assert why in refusal(encode(forged))


@pytest.mark.parametrize("position", [0, 1])
def test_nothing_in_a_store_touches_a_pinned_message(position: int) -> None:
    messages = (Message.user("remember this", pinned=True), Message.user("and?"))
    edit = [position, [0], None, None, None]
    for forged in ([2, 2, [position], [], []], [2, 2, [], [edit], []]):
        if position == 0:
            assert "pinned" in refusal(encode(forged), messages)
        else:
            restored(encode(forged), messages)


def test_a_refusal_quotes_nothing_of_what_was_read() -> None:
    forged = [2, 4, [], [], [[0, {"role": "my password is 1234", "parts": []}, None]]]
    assert "1234" not in refusal(encode(forged))


def test_bytes_without_end_are_refused_before_they_are_decoded() -> None:
    assert "at most" in refusal(b"\x00" * (module.MAX_BYTES + 1))


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\x91" * 900_000, b"\x95\x02\x04" + b"\x91" * 900_000, b"\x95\x02\xca"],
    ids=lambda data: data[:6].hex(),
)
def test_noise_is_refused(data: bytes) -> None:
    assert "no record" in refusal(data)


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=3))
@PROPERTY
def test_a_damaged_record_is_refused_or_still_a_sound_one(at: int, noise: bytes) -> None:
    data = stored(RECORD, HISTORY)
    at %= len(data)
    try:
        record = restored(data[:at] + noise + data[at + len(noise) :], HISTORY)
    except RecordError:
        return
    assert stored(record, HISTORY) == data[:at] + noise + data[at + len(noise) :]


@given(st.integers(0, 10_000))
@PROPERTY
def test_a_record_that_is_cut_off_is_refused(length: int) -> None:
    data = stored(RECORD, HISTORY)
    refusal(data[: length % len(data)])
