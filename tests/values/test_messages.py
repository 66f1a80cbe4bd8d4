"""Messages never change; an edited one still knows the original it stands for."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import msgspec
import pytest

from chatstack import File, Image, InputError, Message, Reasoning, Text, ToolCall, ToolResult
from chatstack.values.messages import Annotation, as_shaped, relink, shaped


def test_each_role_has_its_constructor() -> None:
    assert Message.system("be kind") == Message("system", (Text("be kind"),))
    assert Message.user("hi") == Message("user", (Text("hi"),))
    assert Message.assistant("hello") == Message("assistant", (Text("hello"),))
    assert Message.tool("c", "42", name="sum") == Message("tool", (ToolResult("c", "sum", "42"),))


def test_a_user_message_takes_text_pictures_and_files_in_order() -> None:
    image, file = Image(url="u"), File(text="t")
    assert Message.user("look:", image, file).parts == (Text("look:"), image, file)


def test_an_assistant_message_takes_reasoning_and_calls() -> None:
    thought, call = Reasoning("hm"), ToolCall("c", "f")
    message = Message.assistant(thought, "well", call)
    assert message.parts == (thought, Text("well"), call)
    assert message.calls == (call,)
    assert message.results == ()


def test_a_tool_message_says_whether_it_is_an_error() -> None:
    assert Message.tool("c", "boom", is_error=True).results == (ToolResult("c", "", "boom", True),)


def test_pinned_is_off_unless_asked_for() -> None:
    assert not Message.user("a").pinned
    assert Message.user("a", pinned=True).pinned
    assert Message.system("a", pinned=True).pinned
    assert Message.assistant("a", pinned=True).pinned


def test_text_joins_the_text_parts_only() -> None:
    assert Message.assistant("a", Reasoning("not this"), "b", ToolCall("c", "f")).text == "ab"
    assert Message.tool("c", "not this either").text == ""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Message("robot", ()), "Message: role='robot' is not one of assistant, system, tool, user"),  # type: ignore[arg-type]
        (lambda: Message(5, ()), "Message: role=5 is not one of assistant, system, tool, user"),  # type: ignore[arg-type]
        (lambda: Message(["secret"], ()), "Message: role=list is not one of assistant, system, tool, user"),  # type: ignore[arg-type]
        (
            lambda: Message("assistant", "secret"),  # type: ignore[arg-type]
            "Message: parts must be a tuple of parts, not str; try Message.assistant('...')",
        ),
        (
            lambda: Message("tool", "secret"),  # type: ignore[arg-type]
            "Message: parts must be a tuple of parts, not str; try Message.tool(call_id, output)",
        ),
        (
            lambda: Message("user", "secret"),  # type: ignore[arg-type]
            "Message: parts must be a tuple of parts, not str; try Message.user('...')",
        ),
        (
            lambda: Message("user", [Text("secret")]),  # type: ignore[arg-type]
            "Message: parts must be a tuple of parts, not list; try Message.user('...')",
        ),
        (
            lambda: Message("user", (Text("a"), "secret")),  # type: ignore[arg-type]
            "Message: parts[1] is a str, not a part; write Text(text), or Message.user(text)",
        ),
        (lambda: Message.system(b"secret"), "Message.system: expected text, got bytes"),  # type: ignore[arg-type]
        (lambda: Message.user("a", 7), "Message.user: argument 1 is a int, not text or a part"),  # type: ignore[arg-type]
        (lambda: Message.assistant(None), "Message.assistant: argument 0 is a NoneType, not text or a part"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_message_is_refused_by_position_and_type_never_by_text(
    make: Callable[[], Message], said: str
) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value) == said


def test_a_message_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Message.user("a").role = "system"  # type: ignore[misc]


def test_equal_messages_have_equal_hashes() -> None:
    one, other = Message.user("a", Image(url="u")), Message.user("a", Image(url="u"))
    assert one is not other
    assert {one: "found"}[other] == "found"


def test_an_edited_message_is_a_new_one_that_knows_its_original() -> None:
    message = Message.tool("c", "long " * 100, name="read")
    edited = message.edited(parts=(ToolResult("c", "read", "[cleared]"),))
    assert edited.results[0].output == "[cleared]"
    assert edited.original is message
    assert message.results[0].output == "long " * 100


@pytest.mark.parametrize(
    "message",
    [
        Message.tool("c", "long"),
        Message("tool", (ToolResult("c", "read", "long"),), pinned=True, extra_json='{"a":1}'),
        Message("user", (Text("and"), ToolResult("c", "read", "long"))),
        Message.tool("c", "long").edited(parts=(Text("short"),), annotation=Annotation("once")),
        shaped(Message.tool("c", "long"), (ToolResult("c", "", "lon"),), Annotation("shape")),
    ],
)
def test_an_edit_of_one_plain_result_is_the_edit_that_is_checked(message: Message) -> None:
    """Plain ones are copied; one that is not ASCII, and another field beside it, are checked as all are."""
    hash(message)  # kept with it, and not to be copied
    for output in ("[cleared]", "日"):
        parts = (ToolResult("c", "read", output),)
        for annotation in (None, Annotation("again", 7)):
            quick, checked = (
                message.edited(parts=parts, annotation=annotation),
                message.edited(parts=parts, pinned=message.pinned, annotation=annotation),
            )
            assert quick == checked == Message(message.role, parts, message.pinned, message.mark, message.extra_json)
            assert hash(quick) == hash(checked)
            assert quick.original is checked.original is message.original
            assert as_shaped(quick) is as_shaped(checked)
            assert quick.annotation == checked.annotation


def test_an_edit_does_not_put_in_what_cannot_be_sent() -> None:
    with pytest.raises(InputError, match="lone surrogate"):
        Message.tool("c", "long").edited(parts=(ToolResult("c", "", "\ud800"),))


def test_edited_messages_are_linked_to_equal_ones() -> None:
    first, second = ([Message.user("go"), Message.tool("c", "long"), shaped_one()] for _ in range(2))
    edited = {at: first[at].edited(parts=(ToolResult("c", "", "short"),)) for at in (1, 2)}
    relink(edited, second, 0)
    assert [edited[at].original is second[at].original for at in (1, 2)] == [True, True]
    assert as_shaped(edited[1]) is second[1]
    assert as_shaped(edited[2]) is second[2]


def shaped_one() -> Message:
    return shaped(Message.tool("c", "long"), (ToolResult("c", "", "lon"),), Annotation("shape"))


def test_the_original_is_always_the_root_however_often_it_was_edited() -> None:
    root = Message.user("a")
    assert root.original is root
    assert root.edited(parts=(Text("b"),)).edited(parts=(Text("c"),)).edited(mark="summary").original is root


def test_the_original_is_no_part_of_the_value() -> None:
    plain, edited = Message.user("b"), Message.user("a").edited(parts=(Text("b"),))
    assert edited == plain
    assert hash(edited) == hash(plain)
    assert repr(edited) == repr(plain)
    assert msgspec.json.encode(edited) == msgspec.json.encode(plain)


def test_the_original_stays_in_this_process() -> None:
    edited = Message.user("a").edited(parts=(Text("b"),))
    restored = pickle.loads(pickle.dumps(edited))
    assert restored == edited
    assert restored.original is restored


def test_an_edit_is_checked_like_a_message() -> None:
    with pytest.raises(InputError, match="role='robot'"):
        Message.user("a").edited(role="robot")


def test_a_copy_is_the_message_itself() -> None:
    message = Message.user("a").edited(pinned=True)
    assert copy.copy(message) is message
    assert copy.deepcopy([message])[0] is message


def test_pickle_keeps_every_field() -> None:
    message = Message("assistant", (Text("a"),), True, "summary", '{"x":1}')
    assert pickle.loads(pickle.dumps(message)) == message


def test_json_and_back_gives_an_equal_message() -> None:
    message = Message.assistant(Reasoning("hm"), "a", ToolCall("c", "f", '{"x":1}'), pinned=True)
    assert msgspec.json.decode(msgspec.json.encode(message), type=Message) == message


def test_reading_a_message_that_is_none_names_the_path() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.parts\[0\]"):
        msgspec.json.decode(b'{"role":"user","parts":[{"type":"text","text":5}]}', type=Message)


HALF = "hunter2 \ud83d"


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: Message.user(HALF), "parts[0].text"),
        (lambda: Message.user("a", Text(HALF)), "parts[1].text"),
        (lambda: Message.system(HALF), "parts[0].text"),
        (lambda: Message.assistant("a", HALF), "parts[1].text"),
        (lambda: Message.tool("c", HALF), "parts[0].output"),
        (lambda: Message.tool("c", (Text("a"), Text(HALF))), "parts[0].output[1].text"),
        (lambda: Message.user(File(text=HALF)), "parts[0].text"),
        (lambda: Message.user(File(text="a", name=HALF)), "parts[0].name"),
        (lambda: Message("user", (Text(HALF),)), "parts[0].text"),
        (lambda: Message.user("a").edited(parts=(Text(HALF),)), "parts[0].text"),
    ],
)
def test_half_a_character_is_refused_by_its_place_never_with_the_text(make: Callable[[], Message], where: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value) == (
        f"Message: {where} has half a character (a lone surrogate) at position 8, which cannot be sent; "
        "text.encode('utf-8', 'replace').decode() gives text that can"
    )
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_any_other_text_is_taken_and_so_is_what_a_model_said() -> None:
    assert Message.user("Grüße 你好 😀").text == "Grüße 你好 😀"
    assert Message("assistant", (Text(HALF),)).text == HALF
