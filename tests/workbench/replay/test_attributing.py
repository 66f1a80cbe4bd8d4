"""Which call the label of a name leads to: by its handle, by its arguments, or nowhere."""

from __future__ import annotations

import json

import pytest

from chatstack import Message, ToolCall
from chatstack.context.edits.handles import handle_of
from chatstack.workbench.replay.measures.attributing import Attribution


def call(id: str, name: str, **arguments: object) -> Message:
    return Message.assistant(ToolCall(id, name, json.dumps(arguments)))


MESSAGES = (
    Message.user("start"),
    call("a", "bash", command="cat src/a.py"),
    Message.tool("a", "holds A1111"),
    call("b", "bash", command="cat src/a.py | head -100"),
    Message.tool("b", "holds B2222"),
    call("c", "book", flight="HAT136", user={"name": "mia", "seats": 2}),
    Message.tool("c", "holds C3333"),
    call("d", "bash", command="pytest\n  -x"),
    Message.tool("d", "first D4444"),
    call("d", "bash", command="pytest\n  -x"),
    Message.tool("d", "then E5555"),
    call("e", "bash", command="ls"),
)
END = len(MESSAGES)


def led_to(label: str, end: int = END) -> list[int]:
    """The positions of the results."""
    return [each.position for each in Attribution(MESSAGES).led_to(label, end)]


@pytest.mark.parametrize(
    ("label", "positions"),
    [
        ("bash cat src/a.py", [2]),
        ("bash head -100", [4]),
        ("bash cat … head", [4]),
        ("bash head … cat", []),
        ("bash src/a.py", []),
        ("bash", []),
        ("book", [6]),
        ("book HAT136 mia", [6]),
        ('book {"flight": "HAT136"', [6]),
        ("bash pytest -x", [8, 10]),
        ("bas cat src/a.py", []),
        ("cat src/a.py", []),
        ("look B1234", []),
        ("bash ls", []),
        ("", []),
    ],
)
def test_a_label_leads_to_the_one_call_that_it_quotes(label: str, positions: list[int]) -> None:
    assert led_to(label) == positions


@pytest.mark.parametrize("form", ["{}", "#{}", "bash [{}]", "bash cat src/a.py ({})"])
def test_a_label_that_ends_with_a_handle_leads_to_its_result(form: str) -> None:
    handle = handle_of(MESSAGES[4].results[0])

    assert led_to(form.format(handle)) == [4]


def test_only_calls_that_were_answered_before_count() -> None:
    assert led_to("book", 6) == []
    assert led_to("bash cat", 4) == [2]
    assert led_to("bash cat", END) == []


def test_a_call_holds_what_stands_in_its_arguments_or_in_its_result() -> None:
    attribution = Attribution(MESSAGES)

    assert attribution.holds("book", "C3333", END)
    assert attribution.holds("book", "HAT136", END)
    assert not attribution.holds("book", "A1111", END)
    assert attribution.holds("bash pytest -x", "D4444", END)
    assert attribution.holds("bash pytest -x", "E5555", END)
    assert not attribution.holds("bash pytest -x", "E5555", 9)
