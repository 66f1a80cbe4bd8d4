"""Labels lead from a name to the call that held it, in few words."""

from __future__ import annotations

import pytest

from chatstack import Message
from chatstack.context.edits.handles import handle_of
from chatstack.context.strategies.labels import Labels
from chatstack.context.strategies.name_lists import Names
from chatstack.values.parts import ToolCall, ToolResult

LOOK = ToolCall("a", "look", '{"path": "src/main.py", "lines": [1, 40]}')
GREP = ToolCall("b", "bash", '{"command": "grep -rn  frobnicate\\n src/some/where/far/away.py"}')
SEEN = ToolResult("a", "look", "class Frob_nicator")
FOUND = ToolResult("b", "bash", "frob_count: 3")
MESSAGES = [
    Message.user("Find what_is_odd."),
    Message.assistant("I look.", LOOK, GREP),
    Message("tool", (SEEN, FOUND)),
    Message.assistant("It is odd_thing."),
]
AT = {"what_is_odd": 0, "src/main.py": 1, "Frob_nicator": 2, "frob_count": 2, "odd_thing": 3, "I_look": 1}


def labels(*, with_handles: bool = False) -> Labels:
    return Labels(MESSAGES, AT.__getitem__, with_handles=with_handles)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("Frob_nicator", "look src/main.py [1, 40]"),
        ("src/main.py", "look src/main.py [1, 40]"),
        ("frob_count", "bash grep -rn frobnicate src/some/whe…"),
        ("what_is_odd", ""),
        ("odd_thing", ""),
        ("I_look", ""),
    ],
)
def test_a_name_is_labelled_by_the_call_that_held_it(name: str, label: str) -> None:
    assert labels().of(name) == label


def test_where_results_can_be_recalled_the_label_ends_with_the_handle() -> None:
    assert labels(with_handles=True).of("frob_count") == f"bash grep -rn frobnicate src/some/whe… {handle_of(FOUND)}"
    assert labels(with_handles=True).of("src/main.py") == "look src/main.py [1, 40]"


@pytest.mark.parametrize("arguments", ["", "no json", "[1]", '"word"', "null", "[" * 100_000])
def test_arguments_of_any_kind_give_a_label(arguments: str) -> None:
    messages = [Message.assistant(ToolCall("a", "look", arguments)), Message.tool("a", "seen_it", name="look")]
    assert Labels(messages, lambda _: 1).of("seen_it").startswith("look")


def test_a_result_without_its_call_has_no_label() -> None:
    assert Labels([Message.tool("a", "seen_it", name="look")], lambda _: 0).of("seen_it") == ""


def test_names_of_one_call_share_a_row_and_what_the_label_says_is_not_said_again() -> None:
    assert labels().grouped(["Frob_nicator", "odd_thing", "src/main.py", "what_is_odd"]) == [
        Names(("odd_thing", "what_is_odd")),
        Names(("Frob_nicator",), "look src/main.py [1, 40]"),
    ]


def test_a_name_that_is_the_only_one_of_its_call_takes_no_room_for_a_label() -> None:
    assert labels().grouped(["Frob_nicator", "odd_thing"]) == [Names(("Frob_nicator", "odd_thing"))]


def test_names_that_were_told_come_first_then_those_of_the_same_calls() -> None:
    names = ["frob_count", "Frob_nicator", "src/main.py"]
    assert labels().sorted(names, {"src/main.py"}.__contains__) == ["src/main.py", "Frob_nicator", "frob_count"]
