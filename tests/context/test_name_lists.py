"""Lists of names: what is written is read back, with labels and without, and only what an edit put in is a list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import ClearThenDrop, Message, ToolResult
from chatstack.context.edits.context import Context
from chatstack.context.strategies.name_lists import Names, list_text, without_list, without_lists
from chatstack.tokens.counter import CharCounter
from chatstack.values.parts import Text, ToolCall
from chatstack.values.requests import ChatRequest

names = st.lists(st.from_regex(r"[A-Za-z0-9_./~-]{3,12}[A-Za-z0-9_]", fullmatch=True), min_size=1, max_size=5)
labels = st.text(min_size=1).map(lambda text: " ".join(text.split())).filter(bool)


labelled = st.builds(lambda found, label: Names(tuple(found), label), names | st.just([]), labels)


@given(st.lists(labelled, min_size=1, max_size=5))
def test_every_list_with_labels_is_read_as_it_was_written(rows: list[Names]) -> None:
    assert without_list("[cleared]" + list_text(rows)) == ("[cleared]", tuple(rows))


@given(names)
def test_every_list_without_labels_is_one_line_and_read_as_it_was_written(found: list[str]) -> None:
    text = list_text([Names(tuple(found))])

    assert text == f" Words in what was left out: {' '.join(found)}"
    assert without_list(f"[cleared]{text}") == ("[cleared]", (Names(tuple(found)),))


def test_each_label_has_a_line_and_names_without_one_stand_before_them() -> None:
    empty = Names((), "bash ls a.py")

    text = list_text([Names(("src/a.py", "B1234"), "bash cat\n setup.py"), Names(()), Names(("loose",)), empty])
    assert text == " Words in what was left out: loose\n- bash cat setup.py: src/a.py B1234\n- bash ls a.py:"
    assert without_list(text)[1] == (Names(("loose",)), Names(("src/a.py", "B1234"), "bash cat setup.py"), empty)


@pytest.mark.parametrize("rows", [[], [Names(())]])
def test_without_names_there_is_no_text(rows: list[Names]) -> None:
    assert list_text(rows) == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[cleared]",
        "Words in what was left out",
        "[cleared] Words in what was left out:",
        "x Words in what was left out:\nno row",
        "x Words in what was left out:\n- bash ls: a.py\nand more",
    ],
)
def test_any_other_text_has_no_list(text: str) -> None:
    assert without_list(text) == (text, ())


def edited(text: str, came: str = "long") -> Message:
    message = Message("tool", (ToolResult("a", "look", came), Text("and hurry")))
    return message.edited(parts=(ToolResult("a", "look", text), Text("and hurry")))


def test_of_an_edited_message_the_list_is_taken_out_and_all_else_stays() -> None:
    rest, rows = without_lists(edited("[cleared] Words in what was left out: B1234 C5678"))

    assert rest == edited("[cleared]")
    assert rows == (Names(("B1234", "C5678")),)


@pytest.mark.parametrize(
    "message",
    [
        Message.tool("a", "seen Words in what was left out: B1234"),
        edited("[head] Words in what was left out: B1234", "head and middle Words in what was left out: B1234"),
        edited("[cleared]"),
        Message.user("go").edited(parts=(Text("x Words in what was left out: B1234"),)),
    ],
    ids=["a tool's own", "kept of a tool's own", "no list", "no result"],
)
def test_what_a_tool_wrote_is_no_list(message: Message) -> None:
    assert without_lists(message) == (message, ())


def rows_left_by(strategy: ClearThenDrop) -> set[Names]:
    messages = [Message.user("find it")]
    for number in range(8):
        messages.append(Message.assistant(ToolCall(f"c{number}", "look", f'{{"at": "part_{number}.py"}}')))
        messages.append(Message.tool(f"c{number}", f"seen_{number} also_{number} " * 60))
    counter = CharCounter(1)
    context = Context.of(
        ChatRequest((*messages, Message.assistant("so"))), fixed_tokens=0, size_of=counter.count_message
    )
    plan = strategy.plan(context)
    assert plan is not None
    return {row for message in context.after(plan).messages for row in without_lists(message)[1]}


def test_what_clear_then_drop_leaves_is_such_a_list() -> None:
    rows = rows_left_by(ClearThenDrop(4_000, mentions=0.1))
    assert {(row.label, frozenset(row.names)) for row in rows} >= {
        (f"look part_{number}.py", frozenset((f"seen_{number}", f"also_{number}"))) for number in range(2)
    }


def test_in_a_short_list_labels_would_take_the_room_of_names() -> None:
    (row,) = rows_left_by(ClearThenDrop(4_000, mentions=0.05))
    assert row.label == ""
    assert {"seen_0", "seen_1"} <= set(row.names)
