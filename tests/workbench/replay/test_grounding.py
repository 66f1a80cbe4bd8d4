"""Which values of a call stood in its context, which of them far back, and which were still sent."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from chatstack import ChatOptions, ChatRequest, File, Message, Reasoning, Text, ToolCall, ToolResult
from chatstack.context.strategies.name_lists import Names, list_text
from chatstack.values.parts import ProviderItem
from chatstack.workbench.replay.measures import grounding, values
from chatstack.workbench.replay.measures.grounding import Evidence, Grounding
from chatstack.workbench.replay.measures.values import text_of, values_of

TASK = Message.user("please move the booking")


def call(id: str = "a", name: str = "look", **arguments: object) -> Message:
    return Message.assistant(ToolCall(id, name, json.dumps(arguments)))


def result(text: str, id: str = "a") -> Message:
    return Message.tool(id, text)


def filler(rounds: int) -> list[Message]:
    """Units of no interest."""
    return [Message.assistant(f"step {number}") for number in range(rounds)]


def weighed(
    full: Sequence[Message], asking: Message, sent: Sequence[Message] | None, *, instructions: str = ""
) -> tuple[int, int, int, int]:
    """Values, found, far values and far found of a call after ``full``, for which ``sent`` was sent."""
    found = Grounding()
    evidence = Evidence((*full, asking), instructions)
    evidence.weigh(len(full), None if sent is None else ChatRequest(tuple(sent)), found)
    return found.values, found.found, found.far_values, found.far_found


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ({"id": "four", "no": "low"}, ["four"]),
        ({"a": [{"b": {"c": "deep down"}}], "d": ["flat"]}, ["deep down", "flat"]),
        ({"a": 123, "b": 12, "c": -123, "d": 1.25, "e": 1.2, "f": 100}, ["123", "-123", "1.25", "100"]),
        ({"a": "123", "b": True, "c": None, "key that is long": ""}, []),
        ({"a": "twice", "b": "twice"}, ["twice"]),
        ({"command": "cat setup.py"}, ["cat setup.py"]),
    ],
)
def test_values_are_texts_and_numbers_at_any_depth(arguments: dict[str, object], values: list[str]) -> None:
    assert list(values_of(ToolCall("a", "look", json.dumps(arguments)))) == values


def test_a_number_is_looked_for_as_it_is_written() -> None:
    assert values_of(ToolCall("a", "look", '{"a": 1.50, "b": 12e5, "c": NaN}')) == ("1.50", "12e5")


@pytest.mark.parametrize("arguments", ["", "{", "null", "[" * 100_000, "\ud800"])
def test_arguments_that_are_no_json_have_no_values(arguments: str) -> None:
    assert values_of(ToolCall("a", "look", arguments)) == ()


@pytest.mark.parametrize(
    "name", ["bash", "Bash", "execute_bash", "local_shell", "run_terminal_cmd", "sh", "exec_command"]
)
def test_of_a_shells_command_its_words_count(name: str) -> None:
    given = ToolCall("a", name, json.dumps({"command": "cat src/a.py && grep -n 'some thing' src/a.py", "cwd": "/tmp"}))

    assert values_of(given) == ("src/a.py", "/tmp")


@pytest.mark.parametrize("name", ["publish", "dashboard", "refresh", "search"])
def test_not_every_name_with_sh_in_it_is_a_shell(name: str) -> None:
    assert values_of(ToolCall("a", name, '{"command": "cat src/a.py"}')) == ("cat src/a.py",)


def test_a_command_may_be_a_list_and_called_cmd() -> None:
    assert values_of(ToolCall("a", "shell", '{"cmd": ["bash", "-lc", "python tests.py"]}')) == ("python", "tests.py")


def test_a_call_with_too_many_values_is_looked_at_up_to_a_bound() -> None:
    given = ToolCall("a", "look", json.dumps([f"value {number}" for number in range(2_000)]))

    assert len(values_of(given)) == values.MOST_VALUES


def test_the_text_of_a_message_is_all_that_it_says() -> None:
    message = Message(
        "assistant",
        (Text("said"), Reasoning("thought"), ToolCall("a", "look", '{"at": "a\\nb"}'), ProviderItem("p", '{"x": 1}')),
    )
    answer = Message("tool", (ToolResult("a", "look", (Text("seen"), File(text="read", media_type="text/plain"))),))

    assert text_of(message).split("\0") == ["said", "thought", '{"at": "a\\nb"}', "a\nb", '{"x": 1}']
    assert text_of(answer).split("\0") == ["seen", "read"]


def test_only_values_that_stand_in_the_full_context_count() -> None:
    full = [TASK, call(id="a"), result("booking B1234 of 2,500 miles and 1500 more")]

    assert weighed(full, call(booking="B1234", other="Z9999", cost=1500, word="miles"), full) == (3, 3, 0, 0)


def test_what_is_left_out_is_not_found() -> None:
    full = [TASK, call(), result("booking B1234")]

    assert weighed(full, call(booking="B1234", verb="move"), full[:1]) == (2, 1, 0, 0)


def test_an_edited_message_counts_by_its_new_text() -> None:
    full = [TASK, call(), result("booking B1234 and ticket T5678")]
    edited = full[2].edited(parts=(ToolResult("a", "", "only T5678 is left"),))

    assert weighed(full, call(booking="B1234", ticket="T5678"), [*full[:2], edited]) == (2, 1, 0, 0)


def test_a_value_that_another_message_holds_too_is_found_there() -> None:
    full = [TASK, call(), result("booking B1234"), Message.assistant("I see B1234.")]

    assert weighed(full, call(booking="B1234"), [TASK, full[3]]) == (1, 1, 0, 0)


def test_far_is_what_stands_before_the_last_three_units_and_nowhere_else() -> None:
    full = [TASK, call(), result("old O1111 and both B2222"), call("b"), result("near N3333", "b"), *filler(1)]
    full.append(Message.assistant("both B2222"))
    asking = call(old="O1111", both="B2222", near="N3333")

    assert weighed(full, asking, full) == (3, 3, 1, 1)
    assert weighed(full, asking, [TASK, *full[3:]]) == (3, 2, 1, 0)


def test_a_unit_is_a_call_with_its_result() -> None:
    full = [TASK, call(id="a"), result("old O1111"), *filler(2)]

    assert weighed(full, call(old="O1111"), full) == (1, 1, 0, 0)
    assert weighed([*full, *filler(1)], call(old="O1111"), full) == (1, 1, 1, 1)


@pytest.mark.parametrize(
    "full",
    [
        [Message.system("rule R1111"), TASK, *filler(4)],
        [Message.user("task R1111"), *filler(4), TASK, *filler(4)],
        [TASK, *filler(4), Message.user("now R1111"), *filler(4)],
    ],
    ids=["system", "first user", "latest user"],
)
def test_system_messages_and_the_first_and_latest_user_message_are_near(full: list[Message]) -> None:
    assert weighed(full, call(rule="R1111"), full) == (1, 1, 0, 0)


def test_a_user_message_between_is_far() -> None:
    full = [TASK, Message.user("by the way R1111"), *filler(4), TASK, *filler(4)]

    assert weighed(full, call(rule="R1111"), [TASK]) == (1, 0, 1, 0)


def test_instructions_are_context_and_near() -> None:
    full = [TASK, call(), result("rule R1111"), *filler(4)]

    assert weighed(full, call(rule="R1111", other="R2222"), [TASK], instructions="R1111, R2222") == (2, 0, 0, 0)


def test_instructions_that_are_sent_hold_values_too() -> None:
    full = (TASK, call(), result("rule R1111"), call(rule="R1111"))
    found = Grounding()

    Evidence(full).weigh(3, ChatRequest((TASK,), ChatOptions(instructions="note: R1111")), found)

    assert (found.values, found.found) == (1, 1)


def test_values_inside_the_arguments_of_earlier_calls_are_context() -> None:
    full = [TASK, call(path='C:\\new "dir"', city="Münster"), result("ok")]

    assert weighed(full, call(path='C:\\new "dir"', city="Münster"), full) == (2, 2, 0, 0)
    assert weighed(full, call(raw="M\\u00fcnster"), full) == (1, 1, 0, 0)


def test_a_value_is_not_found_across_two_texts() -> None:
    full = [TASK, Message.assistant("ab", ToolCall("a", "look", "[]")), Message.user("cd")]
    full.append(Message("user", (Text("ab"), Text("cd"))))

    assert weighed(full, call(at="abcd"), full) == (0, 0, 0, 0)


def test_calls_that_use_an_id_again_are_told_apart() -> None:
    full = [TASK, call("a", at="one"), result("first F1111"), call("a", at="two"), result("second S2222"), *filler(3)]
    asking = call("a", one="F1111", two="S2222")
    edited = full[2].edited(parts=(ToolResult("a", "", "[cleared]"),))

    assert weighed(full, asking, [TASK, full[1], edited, *full[3:]]) == (2, 1, 2, 1)


def test_equal_messages_stand_for_each_other() -> None:
    again = result("same S1111")
    full = [TASK, call(), again, *filler(4), call(), result("same S1111")]

    assert weighed(full, call(same="S1111"), [TASK, call(), again]) == (1, 1, 0, 0)


def test_what_comes_later_is_no_context() -> None:
    full = (TASK, call(booking="B1234"), result("booking B1234"), call(booking="B1234"))
    evidence, found = Evidence(full), Grounding()
    for position in (3, 1):
        evidence.weigh(position, ChatRequest(full[:position]), found)

    assert (found.values, found.found) == (1, 1)


def test_each_call_of_a_message_counts_by_itself() -> None:
    full = [TASK, call(), result("booking B1234")]
    asking = Message.assistant(*(ToolCall(id, "look", '{"at": "B1234"}') for id in ("a", "b")))

    assert weighed(full, asking, full) == (2, 2, 0, 0)


def test_nothing_is_found_of_a_refused_call() -> None:
    full = [TASK, call(), result("booking B1234"), *filler(3)]

    assert weighed(full, call(booking="B1234"), None) == (1, 0, 1, 0)


def test_what_is_not_found_is_told_and_far_or_near_makes_no_difference() -> None:
    full = (TASK, call(), result("old O1111 and B2222"), *filler(4), result("new N3333"))
    evidence = Evidence((*full, call(old="O1111", both="B2222", new="N3333", none="Z9999")))

    assert evidence.weigh(len(full), ChatRequest(full), Grounding()) == []
    assert evidence.weigh(len(full), ChatRequest((TASK, Message.user("B2222"))), Grounding()) == ["O1111", "N3333"]
    assert evidence.weigh(len(full), None, Grounding()) == ["O1111", "B2222", "N3333"]


LISTS = {
    "no labels": [Names(("A1111", "B2222"))],
    "right label": [Names(("A1111",), "look first"), Names(("B2222",), "look second")],
    "one wrong label": [Names(("A1111",), "look first"), Names(("B2222",), "look first")],
    "one label too vague": [Names(("A1111",), "look first"), Names(("B2222",), "look")],
}


@pytest.mark.parametrize(
    ("form", "attributed"),
    [("no labels", 1), ("right label", 3), ("one wrong label", 2), ("one label too vague", 2)],
)
def test_what_stands_only_in_a_list_is_found_but_not_bare_and_attributed_by_its_label(
    form: str, attributed: int
) -> None:
    first, second = call("a", at="first"), call("b", at="second")
    full = (TASK, first, result("A1111"), second, result("B2222", "b"), Message.assistant("C3333"), *filler(3))
    asking = call("c", a="A1111", b="B2222", c="C3333", d="gone")
    full = (*full[:5], Message.assistant("C3333 and gone"), *full[6:])
    left = full[4].edited(parts=(ToolResult("b", "", "[cleared]" + list_text(LISTS[form])),))
    found = Grounding()

    lost = Evidence((*full, asking)).weigh(
        len(full), ChatRequest((TASK, left, Message.assistant("C3333"), *full[6:])), found
    )

    assert (found.values, found.found, found.bare, found.attributed) == (4, 3, 1, attributed)
    assert (found.far_values, found.far_found, found.far_bare, found.far_attributed) == (4, 3, 1, attributed)
    assert lost == ["gone"]
    shares = (found.share, found.bare_share, found.attributed_share)
    assert shares == (found.far_share, found.far_bare_share, found.far_attributed_share)
    assert shares == (0.75, 0.25, attributed / 4)


def test_what_stands_in_a_list_and_in_a_text_is_bare() -> None:
    full = (TASK, call(), result("A1111"), Message.assistant("A1111"))
    left = full[2].edited(parts=(ToolResult("a", "", "[cleared]" + list_text([Names(("A1111",))])),))
    found = Grounding()

    Evidence((*full, call(at="A1111"))).weigh(len(full), ChatRequest((TASK, left, full[3])), found)

    assert (found.found, found.bare, found.attributed) == (1, 1, 1)


def test_the_words_around_a_list_are_no_text_of_the_conversations() -> None:
    full = (TASK, call(), result("these Names were left out: A1111"))
    left = full[2].edited(parts=(ToolResult("a", "", "[cleared]" + list_text([Names(("A1111",), "look it")])),))
    found = Grounding()

    Evidence((*full, call(what="left out"))).weigh(3, ChatRequest((TASK, left)), found)

    assert (found.found, found.bare, found.attributed) == (1, 0, 0)


def test_what_was_looked_for_elsewhere_is_added() -> None:
    total = Grounding(4, 3, 2, 0, 5, 6, 7, 8)

    total.merge(Grounding(10, 1, 5, 1, 10, 20, 30, 40))

    assert total == Grounding(14, 4, 7, 1, 15, 26, 37, 48)


def test_shares_are_none_where_nothing_was_measured() -> None:
    nothing, some = Grounding(), Grounding(4, 3, 2, 0, 2, 1, 3, 2)

    assert (nothing.share, nothing.bare_share, nothing.attributed_share) == (None, None, None)
    assert (nothing.far_share, nothing.far_bare_share, nothing.far_attributed_share) == (None, None, None)
    assert (some.share, some.bare_share, some.attributed_share) == (0.75, 0.5, 0.75)
    assert (some.far_share, some.far_bare_share, some.far_attributed_share) == (0.0, 0.5, 1.0)


class Watched(str):
    """A text that knows how often something was looked for in it."""

    looks = 0

    def __contains__(self, value: object) -> bool:
        Watched.looks += 1
        return isinstance(value, str) and str.__contains__(self, value)


def test_each_text_is_looked_through_once_for_a_value_however_many_policies_and_calls_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[Message] = []

    def watched(message: Message) -> str:
        read.append(message)
        return Watched(text_of(message))

    monkeypatch.setattr(grounding, "text_of", watched)
    monkeypatch.setattr(Watched, "looks", 0)
    full = (TASK, *(each for number in range(20) for each in (call(at="S1111"), result(f"seen S1111, {number}"))))
    evidence, found = Evidence(full), Grounding()
    for _ in range(3):
        for position in range(1, len(full), 2):
            evidence.weigh(position, ChatRequest(full[:position]), found)

    assert len(read) == len(set(full)) == 22
    assert Watched.looks <= len(read)
    assert (found.values, found.found) == (57, 57)
